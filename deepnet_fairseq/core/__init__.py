"""The Transformer itself, and every way to keep a deep one trainable, on torch alone.

slots.py has the addresses of branches and what several methods put into them, layer.py the equation; attention.py and
modules.py compute a branch; stack.py has the encoder and the decoder; cache.py holds the keys and values of decoding,
pass_state.py what layers share in one pass; recomputation.py saves memory. models.py has the three models, config.py
what they are built from, archs.py its numbers by name; initialisation.py draws the weights, profile.py measures
Admin's. methods/ has a file a method, probes/ a file a probe; saving.py keeps a model in a file. Nothing here imports
fairseq.
"""

from contextlib import suppress

from .beam_search import Hypothesis, beam_search
from .methods import METHODS, Method, Option, register
from .models import BOS, EOS, PAD, SPECIALS, UNK, DeepModel, build
from .saving import load, save

with suppress(ImportError):  # a speed-up that may be deleted
    from . import cpu_dropout  # noqa: F401

__all__ = [
    "BOS",
    "EOS",
    "METHODS",
    "PAD",
    "SPECIALS",
    "UNK",
    "DeepModel",
    "Hypothesis",
    "Method",
    "Option",
    "beam_search",
    "build",
    "load",
    "register",
    "save",
]
