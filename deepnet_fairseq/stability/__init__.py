"""`deepnet check`: the first few dozen updates of a run, watched, and a verdict on the rest.

short_training.py trains, observed.py is what was seen, signals.py the numbers drawn from it, verdict.py the word,
report.py the page.
"""
