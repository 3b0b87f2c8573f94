"""Settings in YAML files and checkpoints: tasks that fairseq knows by flags alone, and values that are never run.

Tasks such as translation_multi_simple_epoch take a YAML's task section here. fairseq reads settings such as
"(0.9, 0.98)" and "[(512, 3)] * 20" with eval(), so that a checkpoint of an `fconv`, or a YAML with
adam_betas: "__import__('os').system(...)", ran what it named.
"""

from __future__ import annotations

import argparse
import ast
import operator
import sys

from fairseq import tasks
from omegaconf import DictConfig, OmegaConf, open_dict

from ..errors import UserError

SECTIONS = ("common", "dataset", "optimization", "checkpoint")
MODULES = (  # that find `literal` in the place of the builtin
    "utils", "models.fconv", "models.fconv_lm", "models.fconv_self_att", "models.lightconv_lm", "models.transformer_lm",
    "models.hubert.hubert", "models.wav2vec.wav2vec", "models.wav2vec.wav2vec2",
    "models.speech_to_text.s2t_wav_transformer", "criterions.ctc", "data.audio.raw_audio_dataset", "data.codedataset",
    "optim.adam", "optim.cpu_adam", "optim.adamax", "optim.adafactor", "optim.fused_lamb",
)  # fmt: skip
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
LONGEST = 100_000  # entries of a list


def setup_by_flags(setup, cfg, **kwargs):
    """Set up a task without a dataclass from a YAML's task section, with its flags' defaults for missing settings."""
    name = getattr(cfg, "_name", None)
    if not isinstance(cfg, DictConfig) or name not in tasks.TASK_REGISTRY or name in tasks.TASK_DATACLASS_REGISTRY:
        return setup(cfg, **kwargs)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    tasks.TASK_REGISTRY[name].add_args(parser)
    flags = {action.dest: action for action in parser._actions}
    if unknown := sorted(set(cfg) - flags.keys() - {"_name"}):
        raise UserError(f"task.{unknown[0]}: {name} has no such setting; drop it")
    with open_dict(cfg):  # the model's settings refer to the task's
        cfg.update({dest: action.default for dest, action in flags.items() if dest not in cfg})
    whole, settings = cfg._get_parent(), OmegaConf.to_container(cfg)
    values = {}  # with flags such a task sees the settings of common, dataset and so on beside its own
    for section in () if whole is None else (whole[key] for key in SECTIONS if key in whole):
        values |= OmegaConf.to_container(section)
    for dest, action in flags.items():  # words as the flags would read them
        value = settings[dest]
        values[dest] = action.type(value) if action.type and isinstance(value, str) else value
    return setup(argparse.Namespace(**(values | {"task": name})), **kwargs)


def read_without_running() -> None:
    """Put `literal` in the place of eval. Idempotent.

    Modules imported later keep Python's eval; no setting of a translation model reaches it.
    """
    for name in MODULES:
        if module := sys.modules.get(f"fairseq.{name}"):
            vars(module)["eval"] = literal


def literal(text):
    """Return the value of `text`: numbers, strings, None, True, False, lists, tuples and dicts, with + - * and /.

    A value that is no string is returned as it is, as checkpoints hold some. UserError for anything else, and for
    lists longer than LONGEST; nothing of the text is run.
    """
    if not isinstance(text, str):
        return text
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        shown = text if len(repr(text)) < 100 else f"{text[:100]}..."
        raise UserError(f"{shown!r}: is no plain value, as (0.9, 0.98) is; nothing of it was run") from error


def _value(node: ast.expr):
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Mult):  # a list times a number may not fill the memory
            for long, times in ((left, right), (right, left)):
                if hasattr(long, "__len__") and len(long) * abs(times) > LONGEST:
                    raise ValueError("too long")
        return OPERATORS[type(node.op)](left, right)
    return ast.literal_eval(node)
