"""Who is measured: a name, and the flags of fairseq-train that make it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from importlib import import_module

from fairseq.optim import OPTIMIZER_REGISTRY

from .. import archs
from ..errors import UserError

STOCK = "stock"


@dataclass(frozen=True)
class Candidate:
    """One that is measured.

    flags: of fairseq-train, that make it; module: what registers its model, empty where this package does; unavailable:
    why it cannot run here, if so.
    """

    name: str
    flags: tuple[str, ...]
    module: str = ""
    unavailable: str = ""

    def register(self) -> None:
        """Makes its flags known to fairseq. ImportError without its package."""
        if self.module:
            import_module(self.module)


def _ours(name: str, method: str, optimizer: str, flags: str) -> Candidate:
    if any(word.split("=")[0] in ("--arch", "-a") for word in shlex.split(flags)):
        raise UserError(f"{flags}: the benchmark is of {archs.MODEL_NAME} beside fairseq's transformer; drop --arch")
    words = (f"--arch={archs.MODEL_NAME}", f"--method={method}", f"--optimizer={optimizer}", *shlex.split(flags))
    return Candidate(name, words)


def our_optimizer() -> str:
    """Name of the optimiser our model is measured with: ours where this package has one, else fairseq's adam."""
    return "deepnet_adam" if "deepnet_adam" in OPTIMIZER_REGISTRY else "adam"


def candidates(
    names: str = "ours,stock,torchscale",
    method: str = "post_ln",
    optimizer: str | None = None,
    ours: str = "",
    variants: tuple[str, ...] = (),
) -> list[Candidate]:
    """Those that a comma-separated list names, of ours, stock and torchscale, then our variants.

    method, optimizer and ours (flags in one string): of our model; each of variants, "NAME=FLAGS", is our model again
    with FLAGS besides. UserError for a name that is none.
    """
    optimizer = optimizer or our_optimizer()
    known = {
        "ours": lambda: _ours("ours", method, optimizer, ours),
        STOCK: lambda: Candidate(STOCK, ("--arch=transformer", "--optimizer=adam")),
        "torchscale": lambda: _torchscale(method),
    }
    found = []
    for name in names.split(","):
        if name not in known:
            raise UserError(f"--candidates {name}: no candidate; there are {', '.join(known)}")
        found.append(known[name]())
    for variant in variants:
        name, equals, flags = variant.partition("=")
        if not equals or not name or name.startswith("-") or name in known:
            raise UserError(f'--variant {variant}: give NAME=FLAGS, a new name, as compiled="--compile-layers"')
        found.append(_ours(name, method, optimizer, f"{ours} {flags}"))
    return found


def _torchscale(method: str) -> Candidate:
    flags = ("--arch=deepnet_bench_torchscale", "--optimizer=adam", *(["--deepnorm"] if method == "deepnorm" else []))
    candidate = Candidate("torchscale", flags, f"{__package__}.peers.torchscale")
    try:
        candidate.register()
    except ImportError as error:
        return replace(candidate, unavailable=f"{error}; pip install 'deepnet_fairseq[bench]'")
    return candidate
