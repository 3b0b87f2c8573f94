"""Times that were measured on one machine, as `deepnet scale --measure FILE` writes them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ...atomic_output import whole
from ...errors import UserError

FORMAT = 1
STACKS = ("encoder", "decoder")


@dataclass(frozen=True)
class LayerTime:
    """Passes of one layer over n target tokens and as many source tokens, which take host + n * token seconds.

    flops: of the forward pass, a token.
    """

    forward_host: float
    forward_token: float
    backward_host: float
    backward_token: float
    flops: float


@dataclass(frozen=True)
class Width:
    """Layers of both stacks at a width, the share of the machine's matrix products that an update of them reaches."""

    dim: int
    encoder: LayerTime
    decoder: LayerTime

    def share(self, matmul: float) -> float:
        """Share of `matmul` FLOP/s, the rate of one large product, that passes of both layers reach."""
        seconds = sum(layer.forward_token + layer.backward_token for layer in (self.encoder, self.decoder))
        return 3 * (self.encoder.flops + self.decoder.flops) / (seconds * matmul)


@dataclass(frozen=True)
class Measured:
    """What one machine takes.

    matmul: FLOP/s of one large product; widths: smallest first; adam: seconds of an update a parameter; loader: target
    tokens/s that one worker makes batches of; index_seconds, index_bytes: of a pair, to sort and batch an epoch; write,
    read: bytes/s of a checkpoint, one writer; environment: commit, versions, hardware; settings: of the run.
    """

    matmul: float
    widths: tuple[Width, ...]
    adam: float
    loader: float
    index_seconds: float
    index_bytes: float
    write: float
    read: float
    environment: dict
    settings: dict

    def width(self, dim: int) -> Width:
        """The measured width that is nearest, by ratio."""
        return min(self.widths, key=lambda width: max(width.dim / dim, dim / width.dim))

    @property
    def dispatch(self) -> Width:
        """The narrowest: what its layers take beside their tokens is Python's and torch's, no weights to read."""
        return self.widths[0]

    def dump(self, path: Path) -> None:
        """Writes it as JSON that load() reads, whole or not at all."""
        with whole(path) as part:
            part.write_text(json.dumps({"format": FORMAT} | asdict(self), indent=1) + "\n", encoding="utf-8")


def load(path: str | Path) -> Measured:
    """From JSON that dump() wrote.

    UserError if the file is not what `deepnet scale --measure` writes, or holds a rate that is not above 0.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        if found.pop("format") != FORMAT:
            raise ValueError
        widths = tuple(_width(width) for width in found.pop("widths"))
        measured = Measured(widths=widths, **found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"--measured {path}: is not what `deepnet scale --measure` writes") from error
    rates = ("matmul", "adam", "loader", "index_seconds", "index_bytes", "write", "read")
    if not widths or not all(_positive(getattr(measured, name)) for name in rates):
        raise UserError(f"--measured {path}: a rate in it is not a number above 0; measure again")
    return measured


def _width(found: dict) -> Width:
    stacks = {stack: LayerTime(**found.pop(stack)) for stack in STACKS}
    width = Width(**(found | stacks))
    times = [getattr(layer, name) for layer in stacks.values() for name in LayerTime.__dataclass_fields__]
    if not all(_positive(number) for number in (width.dim, *times)):
        raise ValueError
    return width


def _positive(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < float("inf")
