"""The Transformer and every method that keeps a deep one trainable, on torch alone.

layer.py has the layers, and the equation that all their residual branches compute; attention.py and modules.py have
what a branch is made of. methods/ has one file for each method, and in base.py what a method can put into a layer;
slots.py has modules that several methods put there, modifiers.py what changes any method. stack.py has the encoder and
the decoder, cache.py the keys and values of decoding, pass_state.py the state that layers share in one forward pass,
recomputation.py activation checkpointing.

models.py has the three models, config.py their settings, archs.py the named architectures, initialisation.py the values
of weights at first. checkpoint_fit.py and constants.py tell whether a checkpoint is this model's, saving.py keeps a
model in a file, beam_search.py decodes. probes/ has the probes, which measure why a training goes well or not.
profile.py measures the omegas of the method Admin, its factors on shortcuts. Nothing here imports fairseq.
"""

from contextlib import suppress

from .beam_search import Hypothesis, beam_search
from .methods import METHODS, Method, Option, register
from .models import BOS, EOS, PAD, SPECIALS, UNK, DeepModel, build
from .saving import load, save

with suppress(ImportError):  # a file for speed alone, which may be deleted
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
