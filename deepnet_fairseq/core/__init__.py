"""The Transformer and every method that keeps a deep one trainable, on torch alone.

slots.py has the addresses of branches and the modules that several methods share, layer.py the equation; attention.py
and modules.py compute a branch; stack.py has the encoder and the decoder; cache.py holds the keys and values of
decoding, pass_state.py the state that layers share in one forward pass; recomputation.py saves memory. models.py has
the three models, config.py their settings, archs.py the named architectures; initialisation.py draws the weights,
profile.py measures Admin's omegas. methods/ has one file for each method, probes/ one for each probe; saving.py keeps a
model in a file. Nothing here imports fairseq.
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
