"""Settings that fairseq reads by eval(): "(0.9, 0.98)", "[(512, 3)] * 20". They stand in YAML files and checkpoints.

A checkpoint of an `fconv`, a YAML with adam_betas: "__import__('os').system(...)" ran that. The modules below find this
function in the place of the builtin.
"""

from __future__ import annotations

import ast
import operator
import sys

from ..errors import UserError

MODULES = (
    "utils", "models.fconv", "models.fconv_lm", "models.fconv_self_att", "models.lightconv_lm", "models.transformer_lm",
    "models.hubert.hubert", "models.wav2vec.wav2vec", "models.wav2vec.wav2vec2",
    "models.speech_to_text.s2t_wav_transformer", "criterions.ctc", "data.audio.raw_audio_dataset", "data.codedataset",
    "optim.adam", "optim.cpu_adam", "optim.adamax", "optim.adafactor", "optim.fused_lamb",
)  # fmt: skip
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
LONGEST = 100_000  # entries of a list


def read_without_running() -> None:
    """Idempotent. What is imported later keeps Python's eval: no setting of a translation model reaches it."""
    for name in MODULES:
        if module := sys.modules.get(f"fairseq.{name}"):
            vars(module)["eval"] = literal


def literal(text: str):
    """The value of `text`: numbers, strings, None, True, False, their lists, tuples and dicts, with + - * and /.

    UserError for anything else, and for lists longer than LONGEST; nothing of it is run.
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        shown = text if len(repr(text)) < 100 else f"{text[:100]}..."
        raise UserError(f"{shown!r}: is no plain value, as (0.9, 0.98) is; nothing of it was run") from error


def _value(node: ast.expr):
    match node:
        case ast.Constant(value):
            return value
        case ast.List(items):
            return [_value(item) for item in items]
        case ast.Tuple(items):
            return tuple(_value(item) for item in items)
        case ast.Dict(keys, values):
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand)
        case ast.BinOp(left, kind, right) if type(kind) in OPERATORS:
            return _bounded(OPERATORS[type(kind)], _value(left), _value(right))
    raise ValueError(type(node).__name__)


def _bounded(function, left, right):
    """A list times a number may not fill the memory."""
    lengths = [len(side) for side in (left, right) if hasattr(side, "__len__")]
    factors = [abs(side) for side in (left, right) if isinstance(side, (int, float))]
    if function is operator.mul and lengths and lengths[0] * (factors or [0])[0] > LONGEST:
        raise ValueError("too long")
    return function(left, right)
