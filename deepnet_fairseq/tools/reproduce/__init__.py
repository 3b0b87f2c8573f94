"""`deepnet reproduce`: train and score the rows of a paper's table or figure, each of which is one training.

hardware.py decides what the machine gives to a training, corpus.py prepares its data, commands.py says what is run for
a row, and run.py runs it.
"""
