"""Scores of what fairseq-generate printed, and whether two systems differ.

score() makes the content of score.json, significance() compares systems; all BLEU, chrF and perplexity are computed
here, by sacreBLEU or from fairseq's logs.
"""

from .paired import compare_to_baseline, significance
from .scores import score

__all__ = ["compare_to_baseline", "score", "significance"]
