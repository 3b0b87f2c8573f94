"""A config class for each model: its own flags and the options of every method."""

from dataclasses import make_dataclass
from typing import Optional  # fairseq reads field types at run time and does not know X | None

from fairseq.dataclass import ChoiceEnum

from .. import archs
from ..methods import METHODS, Method, Option
from .fields import CausalFields, MaskedFields, TranslationFields, flag


def _option_field(method: type[Method], key: str, option: Option) -> tuple:
    kind = type(option.default)
    if option.choices:
        kind = ChoiceEnum(option.choices)
    elif option.default is None:
        kind = Optional[str]
    return f"{method.name}_{key}", kind, flag(option.default, f"--method {method.name}: {option.help}")


def _with_options(name: str, fields: type, doc: str) -> type:
    return make_dataclass(
        name,
        [_option_field(method, key, option) for method in METHODS.values() for key, option in method.options.items()],
        bases=(fields,),
        namespace={"__module__": __name__, "__doc__": doc},
    )


DeepTransformerConfig = _with_options("DeepTransformerConfig", TranslationFields, "What a model is built from.")
DeepLanguageModelConfig = _with_options(
    "DeepLanguageModelConfig", CausalFields, "What a decoder-only language model is built from."
)
DeepMaskedLanguageModelConfig = _with_options(
    "DeepMaskedLanguageModelConfig", MaskedFields, "What an encoder-only masked language model is built from."
)
CONFIGS = {
    archs.MODEL_NAME: DeepTransformerConfig,
    archs.LM: DeepLanguageModelConfig,
    archs.MASKED_LM: DeepMaskedLanguageModelConfig,
}


def config_of(cfg) -> type:
    """The config class, one of CONFIGS, of the model that `cfg` (Namespace, omegaconf or dataclass) names."""
    return CONFIGS[archs.model_of(cfg)]
