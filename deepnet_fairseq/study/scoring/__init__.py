"""Scores of what fairseq-generate printed, and whether two systems differ.

score() makes the content of score.json, significance() compares systems; all BLEU, chrF and perplexity are computed
here, by sacreBLEU or from fairseq's logs.
"""

from .paired import significance
from .scores import score, score_table

__all__ = ["score", "score_table", "significance"]
