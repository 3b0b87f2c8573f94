"""Scores of what fairseq-generate printed, and whether two systems differ.

score() makes the content of score.json, significance() compares systems; all BLEU, chrF and perplexity are computed
here, by sacreBLEU or from fairseq's logs.
"""

from .generated import hypotheses
from .metrics import bleu
from .outputs import find_outputs
from .paired_mean import compare_to_baseline
from .paired_test import significance
from .prepared import Prepared, prepare
from .score_json import score, score_output

__all__ = [
    "Prepared",
    "bleu",
    "compare_to_baseline",
    "find_outputs",
    "hypotheses",
    "prepare",
    "score",
    "score_output",
    "significance",
]
