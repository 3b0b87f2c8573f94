"""The points of Figures 3 to 8 of DeepNet (Wang et al. 2022, arXiv 2203.00555v1), read off the published pictures.

They are not the authors' data. The numbers are in paper.toml, whose comments say what each table holds; methods have
this package's names. NormFormer's Figures 3 and 4 follow at the end.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

_READ = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SETTING = {int(figure): text for figure, text in _READ["SETTING"].items()}  # figure -> corpus and model
ERROR = {int(figure): text for figure, text in _READ["ERROR"].items()}  # figure -> uncertainty of a reading
PAPERS: dict[str, dict[str, str]] = _READ["papers"]  # name -> "citation" and "url"


def _points(name: str) -> dict[str, dict]:
    """Return a table of paper.toml as {method or series: {x: y}}; in the file {x: y} is a list of pairs [x, y].

    name: of the table, as "FIGURE3_LOSS". In FIGURE3_LAST y is a range, a list of two numbers.
    """
    return {series: dict(points) for series, points in _READ[name].items()}


# The ranges and tuples are the x values of the lists below them: layers of the decoder, updates or depths.
FIGURE3_LAYERS = range(13, 19)
FIGURE3_NORMS: dict[str, list[float]] = _READ["FIGURE3_NORMS"]
FIGURE3_LAST = _points("FIGURE3_LAST")
FIGURE3_LOSS = _points("FIGURE3_LOSS")
FIGURE4_UPDATES = (0, 1, 2, 5, 10, 20, 29)
FIGURE4_UPDATE = _READ["FIGURE4_UPDATE"]
FIGURE4_FFN = _READ["FIGURE4_FFN"]
FIGURE4_ATTENTION = _READ["FIGURE4_ATTENTION"]
FIGURE4_GRADIENT = _points("FIGURE4_GRADIENT")
FIGURE5_LAYERS = range(6, 101)
FIGURE5 = {method: dict(zip(FIGURE5_LAYERS, updates, strict=True)) for method, updates in _READ["FIGURE5"].items()}
FIGURE6_LAYERS = range(10, 101, 10)
FIGURE6: dict[str, list[float]] = _READ["FIGURE6"]
FIGURE7_UPDATES = (5000, 10000, 15000, 20000, 25000, 29500)
FIGURE7: dict[str, dict[str, list[float]]] = _READ["FIGURE7"]
FIGURE8 = _points("FIGURE8")

# Figures 3 and 4 of NormFormer (Shleifer et al. 2021, arXiv 2110.09456), read off somebody else's copies of them, so
# second-hand. Layers count from 1 here, and from 0 in the paper.
NORMFORMER_SETTING = "125M parameters, 12 layers"
NORMFORMER_ERROR = "by eye, from a reproduction"

# Figure 3 has no readable axis; this is what the paper's text says of the gradient of the first layer over the last's
NORMFORMER_FIGURE3 = {"post_ln": "far below 1", "pre_ln": "far above 1", "normformer": "nearer to 1 than Pre-LN"}

# Part of an address of the probe learned_scale (core/probes/learned_scale.py) -> layer -> (lowest, highest value). Of
# the two LayerNorms the median gain lies between these two; of the factors on heads, each factor does.
NORMFORMER_FIGURE4 = {
    "ffn.inner": {1: (0.22, 0.22), 12: (0.9, 0.9)},
    "self_attn.outer": {1: (0.14, 0.14)} | dict.fromkeys(range(2, 13), (0.25, 0.38)),
    "self_attn.inner.c": dict.fromkeys(range(1, 13), (0.35, 1.8)),
}
