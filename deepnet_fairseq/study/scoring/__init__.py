"""Score translations that fairseq-generate printed (scores.py), and test systems for differences (paired.py).

All BLEU, chrF and perplexity are computed here, by sacreBLEU or from fairseq's logs.
"""
