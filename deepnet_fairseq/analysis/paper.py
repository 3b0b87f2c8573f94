"""The points of Figures 3-8 of DeepNet (Wang et al. 2022, arXiv 2203.00555v1), read off the published pictures.

Below them, under names of their own, those of NormFormer.

They are no data of the authors: ERROR says how far off a reading may be. Methods go by this package's names.
"""

from __future__ import annotations

SETTING = {
    3: "IWSLT-14 De-En, width 512",
    4: "IWSLT-14 De-En, width 512",
    5: "IWSLT-14 De-En, width 64",
    6: "IWSLT-14 De-En, width 512",
    7: "WMT-17 En-De, 18L-18L",
    8: "OPUS-100, width 512",
}
ERROR = {
    3: "to the digits given",
    4: "to the digits given, (d) by eye",
    5: "+-0.01 for Post-LN between its spikes, +-0.0004 for DeepNorm",
    6: "+-0.3 in the Post-LN panel, +-0.1 in the others",
    7: "+-0.01",
    8: "+-0.05",
}

# Figure 3, 18L-18L in (a) and (c)
FIGURE3_LAYERS = (13, 14, 15, 16, 17, 18)
FIGURE3_NORMS = {  # (a) gradient norm of those decoder layers
    "post_ln": (0.20, 0.26, 0.33, 0.43, 0.53, 0.69),
    "post_ln_init": (0.38, 0.45, 0.59, 0.80, 1.20, 2.25),
}
FIGURE3_LAST = {  # (b) layers of an N-N model -> lowest and highest gradient norm of the last decoder layer
    "post_ln": {6: (0.63, 0.74), 24: (0.63, 0.74)},
    "post_ln_init": {
        6: (2.61, 2.61), 9: (2.27, 2.27), 12: (2.32, 2.32),
        14: (2.18, 2.26), 19: (2.18, 2.26), 20: (2.02, 2.19), 24: (2.02, 2.19),
    },
}  # fmt: skip
FIGURE3_LOSS = {  # (c) epoch, from 0 -> validation loss in bits; Post-LN stays within 12.4-13.4 behind epoch 2
    "post_ln": {0: 9.7, 2: 9.7, 3: 12.9, 29: 12.9},
    "post_ln_init": {0: 8.0, 1: 6.7, 2: 5.8, 3: 5.3, 4: 4.8, 5: 4.6, 10: 4.1, 15: 3.97, 24: 3.87, 29: 3.87},
}

# Figure 4, 18L-18L
FIGURE4_UPDATES = (0, 1, 2, 5, 10, 20, 29)
FIGURE4_UPDATE = {  # (a) accumulated model update
    "post_ln_no_warmup": (0, 0, 29.3, 28.3, 28.5, 28.1, 27.9),
    "post_ln_warmup": (0, 0, 0.1, 1.0, 4.0, 14, 21.7),
    "post_ln_init_warmup": (0, 0, 0.1, 0.3, 1.5, 5.6, 10.5),
}
FIGURE4_FFN = {  # (b) norm of what the LayerNorms behind the feed-forward branches read
    "post_ln_no_warmup": (23.8, 23.8, 24.7, 27.2, 28.8, 29.9, 30.1),
    "post_ln_warmup": (23.8, 23.8, 23.8, 23.8, 23.9, 23.9, 24.0),
    "post_ln_init_warmup": (22.7, 22.7, 22.7, 22.7, 22.7, 22.8, 22.8),
}
FIGURE4_ATTENTION = {  # (c) the same behind self-attention
    "post_ln_no_warmup": (29.2, 29.2, 31.4, 35.0, 37.3, 38.2, 38.2),
    "post_ln_warmup": (29.2, 29.2, 28.9, 28.0, 29.0, 28.9, 28.9),
    "post_ln_init_warmup": (23.7, 23.7, 23.8, 23.4, 23.9, 23.9, 24.0),
}
FIGURE4_GRADIENT = {  # (d) decoder layer -> gradient norm; at which update the paper does not say
    "post_ln_no_warmup": {1: 0, 15: 0, 16: 0.013, 17: 0.05, 18: 0.20},
    "post_ln_warmup": {1: 0.003, 6: 0.02, 10: 0.07, 13: 0.15, 15: 0.30, 16: 0.40, 17: 0.54, 18: 0.815},
    "post_ln_init_warmup": {1: 0.141, 5: 0.163, 10: 0.202, 13: 0.247, 15: 0.327, 16: 0.384, 17: 0.487, 18: 0.814},
}

# Figure 5: model update of N-N models early in training
FIGURE5_LAYERS = range(6, 101)
# fmt: off
FIGURE5_POST_LN = (
    0.02, 0.019, 0.022, 0.022, 0.032, 0.022, 0.031, 0.032, 0.027, 0.048, 0.032, 0.045, 0.038, 0.042, 0.056, 0.05,
    0.057, 0.058, 0.069, 0.089, 0.081, 0.055, 0.064, 0.056, 0.076, 0.067, 0.04, 0.078, 0.1, 0.082, 0.064, 0.113,
    0.097, 0.097, 0.091, 0.081, 0.073, 0.091, 0.127, 0.146, 0.069, 0.097, 0.096, 0.097, 0.135, 0.176, 0.143, 0.14,
    0.112, 0.267, 0.223, 0.172, 0.194, 0.198, 0.406, 0.11, 0.204, 0.296, 0.096, 0.158, 0.185, 0.202, 0.232, 0.324,
    0.384, 0.368, 0.193, 0.3, 0.233, 0.288, 0.113, 0.445, 0.187, 0.347, 0.273, 0.249, 0.22, 0.368, 0.327, 0.182,
    0.311, 0.272, 0.422, 0.276, 0.265, 0.19, 0.286, 0.466, 0.231, 0.205, 0.268, 0.402, 0.256, 0.336, 0.468,
)
FIGURE5_DEEPNORM = (  # the picture's resolution leaves steps
    0.0016, 0.0016, 0.0024, 0.0024, 0.0024, 0.0024, 0.0024, 0.0024, 0.0024, 0.0024, 0.0033, 0.0033, 0.0033, 0.0033,
    0.0033, 0.0033, 0.0033, 0.0033, 0.0033, 0.0033, 0.0033, 0.0033, 0.0033, 0.0033, 0.0041, 0.0041, 0.0041, 0.0041,
    0.0041, 0.0041, 0.0041, 0.0041, 0.0041, 0.0041, 0.0049, 0.0049, 0.0049, 0.0049, 0.0049, 0.0049, 0.0049, 0.0049,
    0.0049, 0.0049, 0.0049, 0.0049, 0.0049, 0.0049, 0.0049, 0.0049, 0.0049, 0.0057, 0.0057, 0.0057, 0.0057, 0.0057,
    0.0057, 0.0057, 0.0057, 0.0057, 0.0065, 0.0065, 0.0065, 0.0065, 0.0065, 0.0065, 0.0065, 0.0065, 0.0065, 0.0065,
    0.0065, 0.0065, 0.0065, 0.0065, 0.0065, 0.0065, 0.0065, 0.0065, 0.0065, 0.0073, 0.0073, 0.0073, 0.0073, 0.0073,
    0.0073, 0.0073, 0.0073, 0.0082, 0.0082, 0.0082, 0.0082, 0.0082, 0.0082, 0.0082, 0.0082,
)
# fmt: on

# Figure 6: BLEU of N-N models on the test set after 8,000 updates; ReZero in fp32
FIGURE6_LAYERS = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
FIGURE6 = {
    "deepnorm": (29.8, 30.9, 31.1, 31.3, 31.2, 31.4, 31.7, 31.5, 31.5, 31.7),
    "post_ln": (4.3, 0.1, 0, 0, 0, 0, 0, 0, 0, 0),
    "ds_init": (29.8, 29.5, 13.8, 10.4, 13.1, 10.2, 7.1, 27.6, 11.9, 6.6),
    "admin": (28.8, 29.2, 28.8, 28.2, 27.8, 22.6, 16.7, 16.9, 0.6, 0.7),
    "t_fixup": (29.6, 29.3, 28.6, 28.2, 28.6, 27.6, 27.2, 25.8, 26.4, 27.0),
    "rezero": (25.9, 26.4, 27.1, 27.7, 28.2, 27.7, 27.8, 28.0, 27.8, 27.8),
    "r_fixup": (29.6, 30.3, 30.2, 30.4, 30.3, 30.2, 30.1, 30.3, 30.2, 30.2),
    "pre_ln": (29.6, 29.1, 28.2, 27.0, 26.6, 26.3, 25.6, 25.1, 24.7, 24.3),
    "dlcl": (28.6, 29.1, 29.3, 29.5, 29.5, 29.5, 29.5, 29.6, 29.3, 29.8),
    "normformer": (27.3, 26.9, 26.3, 26.5, 26.3, 26.2, 25.9, 25.9, 25.8, 25.6),
}

# Figure 7: validation loss, 18L-18L DeepNorm; batch in units of 4,096 tokens, size as width-FFN-heads
FIGURE7_UPDATES = (5000, 10000, 15000, 20000, 25000, 29500)
FIGURE7 = {
    "lr": {
        "5e-4": (4.44, 4.10, 4.03, 4.00, 3.98, 3.98),
        "1e-3": (4.21, 4.00, 3.95, 3.94, 3.92, 3.91),
        "1.5e-3": (4.14, 3.97, 3.92, 3.91, 3.90, 3.89),
    },
    "batch": {
        "64": (4.24, 4.04, 3.97, 3.94, 3.93, 3.91),
        "128": (4.14, 3.97, 3.93, 3.92, 3.90, 3.88),
        "256": (4.07, 3.94, 3.91, 3.89, 3.89, 3.89),
    },
    "size": {
        "512-2048-8": (4.47, 4.12, 4.05, 4.01, 4.00, 3.98),
        "768-3072-12": (4.26, 4.01, 3.97, 3.98, 3.99, 4.00),
        "1024-4096-16": (4.13, 3.98, 4.01, 4.06, 4.09, 4.13),
    },
}

# Figure 8: encoder and decoder layers together -> BLEU, mean over all directions; the last is of Table 2
FIGURE8 = {"deepnorm": {12: 25.3, 20: 26.6, 100: 30.1, 200: 31.1, 1000: 32.1}}

# Figures 3 and 4 of NormFormer (Shleifer et al. 2021, arXiv 2110.09456), read off a reproduction, so secondary; layers
# count from 1 (the paper's from 0), slots go by this package's names
NORMFORMER_SETTING = "125M parameters, 12 layers"
NORMFORMER_ERROR = "by eye, from a reproduction"
NORMFORMER_LAYERS = 12

# Figure 3 has no axis that could be read; what its text says of gradients by layer, first layer over last
NORMFORMER_FIGURE3 = {"post_ln": "far below 1", "pre_ln": "far above 1", "normformer": "nearer to 1 than Pre-LN"}

NORMFORMER_FIGURE4 = {  # slot -> layer -> lowest and highest: of LayerNorms the median gain, of heads all factors
    "ffn.inner": {1: (0.22, 0.22), 12: (0.9, 0.9)},
    "self_attn.outer": {1: (0.14, 0.14)} | dict.fromkeys(range(2, 13), (0.25, 0.38)),
    "self_attn.inner.c": dict.fromkeys(range(1, 13), (0.35, 1.8)),
}
