"""The profile of an Admin model: a JSON file of our own, and the two columns of the authors' `profile.ratio.init`."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ..atomic_output import whole
from ..errors import UserError
from ..json_text import WRONG_VALUES, parse
from .recorder import residuals

logger = logging.getLogger(__name__)
FORMAT = "deepnet_fairseq admin profile 1"


@dataclass
class Profile:
    """What was profiled (Liu et al. 2020), and one omega a branch: "STACK.LAYER.SUBLAYER" -> value, in forward order.

    encoder_layers N, decoder_layers M, 0 for a stack that the model does not have; widths in features, None if unknown;
    seed of weights and dropout; dropout: the three probabilities; data: hash and size of the batch.
    """

    omega: dict[str, float]
    encoder_layers: int = 0
    decoder_layers: int = 0
    encoder_width: int | None = None
    encoder_ffn_width: int | None = None
    decoder_width: int | None = None
    decoder_ffn_width: int | None = None
    seed: int | None = None
    dropout: dict[str, float] = field(default_factory=dict)
    data: dict = field(default_factory=dict)
    method: str = "admin"

    def check(self, model: nn.Module, path: str) -> None:
        """UserError if the profile, read from `path`, was taken of a model of other depth or width.

        Other dropout is a warning in the log.
        """
        built = shape(model)
        for name, number in built.items():
            held = getattr(self, name)
            if held is not None and held != number:
                raise UserError(
                    f"--admin-profile {path}: taken with {name.replace('_', ' ')} {held}, this model has {number}; "
                    "profile the model you train (`deepnet profile --help`)"
                )
        if list(self.omega) != [str(site) for site, _ in residuals(model)]:
            raise UserError(f"--admin-profile {path}: its branches are not those of this model; profile it anew")
        for name, value in dropouts(model).items():
            if self.dropout.get(name, value) != value:
                flag = f"--{name.replace('_', '-')}"
                logger.warning(
                    f"--admin-profile {path}: taken with {flag} {self.dropout[name]}, this model has {value}"
                )

    def write(self, path: Path) -> None:
        """JSON; the file appears whole or not at all."""
        _write(path, json.dumps({"format": FORMAT} | asdict(self), indent=1) + "\n")

    def write_official(self, path: Path) -> None:
        """One line "index omega" a branch, counted from 1 in each stack, encoder first.

        UserError for a stack alone: the authors' file says which stack a line is of by its place, so it needs both.
        """
        if not (self.encoder_layers and self.decoder_layers):
            raise UserError("--official: the authors' columns are of two stacks, this model has one; drop the flag")
        columns = [pair for stack in ("encoder", "decoder") for pair in enumerate(self.of(stack), 1)]
        _write(path, "".join(f"{index} {omega!r}\n" for index, omega in columns))

    def of(self, stack: str) -> list[float]:
        """The omegas of one stack, in forward order."""
        return [omega for site, omega in self.omega.items() if site.startswith(f"{stack}.")]


def shape(model: nn.Module) -> dict[str, Any]:
    """Depth and widths of the stacks that the model has, by the names of Profile's fields."""
    stacks = model.stacks()
    depths = {f"{name}_layers": len(stack.layers) for name, stack in stacks.items()}
    widths = {f"{name}_width": stack.layers[0].fc1.in_features for name, stack in stacks.items()}
    return depths | widths | {f"{name}_ffn_width": stack.layers[0].fc1.out_features for name, stack in stacks.items()}


def dropouts(model: nn.Module) -> dict[str, float]:
    """The three probabilities of dropout, by their config fields: dropout, attention_dropout, activation_dropout."""
    layer = next(iter(model.stacks().values())).layers[0]
    places = {"dropout": layer, "attention_dropout": layer.self_attn}
    found = {name: place.dropout.p for name, place in places.items()}
    return found | {"activation_dropout": layer.activation_dropout.p}


def read_profile(path: str) -> Profile:
    """A profile from a file of either format; UserError, naming it, if there is none or it is none."""
    if Path(path).exists() and not Path(path).is_file():  # a pipe would be waited for
        raise UserError(f"--admin-profile {path}: is no ordinary file; `deepnet profile` writes one")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--admin-profile {path}: {error.strerror}; `deepnet profile` writes one") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--admin-profile {path}: not a profile; `deepnet profile` writes one") from error
    try:
        return _from_json(text) if text.lstrip().startswith("{") else _from_columns(text)
    except WRONG_VALUES as error:
        raise UserError(f"--admin-profile {path}: not a whole profile ({error}); profile the model anew") from error


def _from_json(text: str) -> Profile:
    values = parse(text)
    if values.pop("format", None) != FORMAT:
        raise ValueError(f"no file of format {FORMAT!r}")
    profile = Profile(**values)
    profile.omega = {site: positive(omega) for site, omega in profile.omega.items()}
    for name in ("dropout", "data"):
        if not isinstance(getattr(profile, name), dict):
            raise ValueError(f"{name} {getattr(profile, name)!r}")
    return profile


def _from_columns(text: str) -> Profile:
    rows = [line.split() for line in text.splitlines() if line.strip()]
    indices, omegas = [int(index) for index, _ in rows], [positive(omega) for _, omega in rows]
    if indices.count(1) != 2:
        raise ValueError("its lines do not begin twice at 1, for an encoder and a decoder")
    start = indices.index(1, 1)
    if indices != [*range(1, start + 1), *range(1, len(rows) - start + 1)]:
        raise ValueError("its lines are not numbered 1 to 2N and 1 to 3M")
    N, M = start // 2, (len(rows) - start) // 3
    names = [f"encoder.{l}.{s}" for l in range(1, N + 1) for s in ("self_attn", "ffn")]
    names += [f"decoder.{l}.{s}" for l in range(1, M + 1) for s in ("self_attn", "encoder_attn", "ffn")]
    if len(names) != len(rows):
        raise ValueError(f"{start} and {len(rows) - start} lines are no 2N and 3M")
    return Profile(dict(zip(names, omegas, strict=True)), N, M)


def positive(value) -> float:
    """`value` as an omega, a finite number above 0; ValueError for anything else."""
    value = float(value)
    if not 0 < value < float("inf"):
        raise ValueError(f"omega {value}")
    return value


def _write(path: Path, text: str) -> None:
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")
