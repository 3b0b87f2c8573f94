"""Scores of what fairseq-generate printed, in scores.py, and whether two systems differ, in paired.py.

All BLEU, chrF and perplexity are computed here, by sacreBLEU or from fairseq's logs.
"""
