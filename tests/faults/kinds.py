"""The kinds of training that are disturbed."""

from __future__ import annotations

BACKGROUND = "--write-checkpoints-asynchronously"
KINDS = {  # name: processes, flags
    "alone": (1, ("--optimizer", "adam", "--store-ema", "--ema-decay", "0.9", "--ema-fp32")),
    "background": (1, ("--optimizer", "adam", BACKGROUND)),
    "pair": (2, ("--optimizer", "deepnet_adam", "--update-freq", "2", "--heartbeat-timeout", "15")),
}
