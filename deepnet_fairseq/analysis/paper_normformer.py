"""Points of Figures 3 and 4 of NormFormer (Shleifer, Weston, Ott 2021, arXiv 2110.09456), read off a reproduction.

Secondary: they are no data of the authors. Layers count from 1 (the paper's from 0), slots go by this package's names.
"""

from __future__ import annotations

SETTING = "125M parameters, 12 layers"
ERROR = "by eye, from a reproduction"
LAYERS = 12

# Figure 3 has no axis that could be read; what its text says of gradients by layer, first layer over last
FIGURE3 = {"post_ln": "far below 1", "pre_ln": "far above 1", "normformer": "nearer to 1 than Pre-LN"}

FIGURE4 = {  # slot -> layer -> lowest and highest: of LayerNorms the median gain, of heads all factors
    "ffn.inner": {1: (0.22, 0.22), 12: (0.9, 0.9)},
    "self_attn.outer": {1: (0.14, 0.14)} | dict.fromkeys(range(2, 13), (0.25, 0.38)),
    "self_attn.inner.c": dict.fromkeys(range(1, 13), (0.35, 1.8)),
}
