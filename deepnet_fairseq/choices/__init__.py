"""Multiple-choice items answered by a language model without training for them: the choice it finds likeliest.

items.py reads them, pieces.py cuts them, model.py gives likelihoods, scoring.py compares, report.py sums up.
"""
