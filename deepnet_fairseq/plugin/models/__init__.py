"""The models that fairseq knows by name; importing this registers them and their architectures."""

from fairseq.models import ARCH_CONFIG_REGISTRY, register_model_architecture

from ...core import archs
from .language_models import DeepLanguageModel, DeepMaskedLanguageModel
from .translation import DeepTransformer

MODELS = {model.NAME: model for model in (DeepTransformer, DeepLanguageModel, DeepMaskedLanguageModel)}
for _arch, _model in archs.MODELS.items():
    if _arch in MODELS:
        ARCH_CONFIG_REGISTRY[_arch] = archs.fill  # where register_model has put an empty function
    else:
        register_model_architecture(_model, _arch)(archs.fill)

__all__ = ["MODELS", "DeepLanguageModel", "DeepMaskedLanguageModel", "DeepTransformer"]
