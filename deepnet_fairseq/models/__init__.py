"""The models that fairseq knows by name; importing this registers them and their architectures."""

from .base import register_architectures
from .language_models import DeepLanguageModel, DeepMaskedLanguageModel
from .translation import DeepTransformer

MODELS = {model.NAME: model for model in (DeepTransformer, DeepLanguageModel, DeepMaskedLanguageModel)}
for _name in MODELS:
    register_architectures(_name)

__all__ = ["MODELS", "DeepLanguageModel", "DeepMaskedLanguageModel", "DeepTransformer"]
