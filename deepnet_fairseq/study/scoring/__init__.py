"""Score translations that fairseq-generate printed (scores.py), and test whether systems differ (paired.py).

All BLEU, chrF, TER and perplexity are computed here, by sacreBLEU or from fairseq's logs.
"""
