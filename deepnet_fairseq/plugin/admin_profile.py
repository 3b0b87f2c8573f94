"""Measure, read and write the profiles of the method Admin, and set a model's omegas by one before its training.

A profile holds one omega, the weight of the shortcut, for each residual branch; core/profile.py measures it on one
batch. A training with --admin-profile auto measures its profile when its first batch is known, and before there is an
optimiser; `deepnet profile` does nothing else.
"""

from __future__ import annotations

import copy
import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from torch import nn

from ..core.profile import apply_omegas, depths_and_widths, dropouts, profile_omegas, residuals
from ..errors import UserError
from ..files import WRONG_VALUES, parse_json, whole
from .batches import first_training_batch

logger = logging.getLogger(__name__)
FORMAT = "deepnet_fairseq admin profile 1"


@dataclass
class Profile:
    """Profile of Admin (Liu et al. 2020): one omega for each residual branch, with facts of model and batch.

    omega: {"STACK.LAYER.SUBLAYER": value} in forward order, as "encoder.1.self_attn", with layers counted from 1;
    *_layers: number of layers, 0 for a stack that the model does not have; *_width: features of a token, None if
    unknown; *_ffn_width: features inside the feed-forward network; seed: of weights and dropout; dropout: the model's
    three probabilities by name ("attention_dropout"); data: size of the batch, {"sentences": number of sentences,
    "source_length": tokens of the longest one}.
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

    def check_model(self, model: nn.Module, path: str) -> None:
        """Raise a UserError if this profile was measured on a model of other depth, width or branches than `model`.

        path: the file of the profile, for messages. If it was measured with other dropout, a warning is logged.
        """
        for name, number in depths_and_widths(model).items():
            own_number = getattr(self, name)
            if own_number is not None and own_number != number:
                raise UserError(
                    f"--admin-profile {path}",
                    f"taken with {name.replace('_', ' ')} {own_number}, this model has {number}; "
                    "profile the model you train (`deepnet profile --help`)",
                )

        branches_of_model = [str(site) for site, _merge in residuals(model)]  # as the keys of omega
        if list(self.omega) != branches_of_model:
            raise UserError(f"--admin-profile {path}", "its branches are not those of this model; profile it anew")

        for name, value in dropouts(model).items():
            if self.dropout.get(name, value) != value:  # a file that was written by hand may lack the name
                other = f"--{name.replace('_', '-')} {self.dropout[name]}"
                logger.warning(f"--admin-profile {path}: taken with {other}, this model has {value}")

    def write(self, path: Path) -> None:
        """Write the profile as JSON; the file appears whole or not at all."""
        content = {"format": FORMAT} | asdict(self)
        with whole(path) as part:
            part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def omegas_of(self, stack: str) -> list[float]:
        """Return the omegas of one stack, "encoder" or "decoder", in forward order."""
        return [omega for site, omega in self.omega.items() if site.startswith(f"{stack}.")]


def read_profile(path: str) -> Profile:
    """Read a profile from a file that Profile.write made.

    Raises a UserError, naming the file, if there is none, or if it does not hold a whole profile.
    """
    try:
        values = parse_json(Path(path).read_text(encoding="utf-8"))
        if values.pop("format", None) != FORMAT:
            raise ValueError(f"no file of format {FORMAT!r}")
        profile = Profile(**values)  # raises a TypeError if a name is missing or unknown
        profile.omega = {site: _positive(omega) for site, omega in profile.omega.items()}
        if not isinstance(profile.dropout, dict):  # in which check_model looks names up
            raise ValueError(f"dropout {profile.dropout!r}")
        return profile
    except OSError as error:
        raise UserError(f"--admin-profile {path}", f"{error.strerror}; `deepnet profile` writes one") from error
    except WRONG_VALUES as error:
        raise UserError(f"--admin-profile {path}", f"not a whole profile ({error}); profile the model anew") from error


def _positive(value: Any) -> float:
    """Return `value`, an omega, as a float; raise ValueError unless it is a finite number above 0."""
    value = float(value)
    if not 0 < value < float("inf"):
        raise ValueError(f"omega {value}")
    return value


def set_omegas_by_profile(model: nn.Module, iterator) -> None:
    """Read or measure the profile of a model by --admin-profile, and set the model's omegas by it.

    model: at its initial weights; its profile_source is the flag's value, a file or "auto" to measure, and its
    omega_profile is set to the profile. iterator: fairseq's EpochBatchIterator over the training's batches, whose seed
    is that of dropout too. Raises a UserError without the flag, or if the profile is another model's.
    """
    source: Any = model.profile_source
    profile = profile_of_source(source)
    if profile is None:
        profile = measure_profile(model, first_training_batch(iterator), iterator.seed)
    else:
        profile.check_model(model, str(source))

    model.omega_profile = profile  # type: ignore[assignment]  # a plain attribute
    apply_omegas(model, list(profile.omega.values()))

    ranges = []
    for stack in ("encoder", "decoder"):
        omegas = profile.omegas_of(stack)
        if omegas:
            ranges.append(f"{stack} {omegas[0]:.4g} to {omegas[-1]:.4g}")
    logger.info(f"admin profile {source}: omega of {', '.join(ranges)}")


def profile_of_source(source: str | None) -> Profile | None:
    """Read the profile of the file that --admin-profile names; return None for "auto", which asks to measure one.

    source: the flag's value, None if it is not given. Raises a UserError without the flag, or if the file is missing or
    broken.
    """
    if source is None:
        raise UserError(
            "--method admin",
            "this model is not profiled; add --admin-profile auto, or run `deepnet profile DATA --out "
            "profile.json` with the flags of this run and add --admin-profile profile.json",
        )
    return None if source == "auto" else read_profile(source)


def measure_profile(model: nn.Module, net_input: dict, seed: int) -> Profile:
    """Measure the profile of `model` on one batch, in float32, and return it.

    net_input: arguments of the model's forward, {name: tensor}, on any device; seed: of dropout while it is measured.
    All ranks must call this together: each returns what rank 0 has measured, so that all set the same omegas, to the
    last bit.
    """
    device = next(model.parameters()).device
    net_input = utils.apply_to_sample(lambda tensor: tensor.to(device), net_input)

    in_half_precision = any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in model.parameters())
    measured_model = copy.deepcopy(model).float() if in_half_precision else model
    omegas = profile_omegas(measured_model, net_input, seed)  # branch -> omega

    values = torch.tensor(list(omegas.values()), dtype=torch.float64, device=device)
    if torch.distributed.is_initialized():
        torch.distributed.broadcast(values, 0)

    source = net_input["src_tokens"]  # (sentences, tokens of the longest one)
    return Profile(
        **depths_and_widths(model),
        omega={str(site): value for site, value in zip(omegas, values.tolist(), strict=True)},
        seed=seed,
        dropout=dropouts(model),
        data={"sentences": len(source), "source_length": source.size(1)},
    )
