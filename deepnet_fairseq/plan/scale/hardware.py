"""What a machine can do, by its makers' figures, and how much of it a training is taken to reach."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import UserError
from ..setting import GIB
from ..tape import FLOAT32

GIGA, TERA, MICRO = 1e9, 1e12, 1e-6


@dataclass(frozen=True)
class Network:
    """What connects the GPUs.

    node: GPUs of a machine; intra, inter: bytes/s that one GPU sends inside of it, and out of it; share: of these that
    collectives reach; start: seconds before one moves; hop_intra, hop_inter: seconds of a step to the next GPU. The
    latencies are those NCCL chooses its algorithms by (src/graph/tuning.cc, protocol LL128): of a ring 10 us, and 1.9
    us or 4.0 us a step; of a tree 4.4 us, and 1.2 us or 8.5 us.
    """

    node: int
    intra: float
    inter: float
    share: float = 0.75
    start: float = 10 * MICRO
    hop_intra: float = 1.9 * MICRO
    hop_inter: float = 4.0 * MICRO
    tree_start: float = 4.4 * MICRO
    tree_intra: float = 1.2 * MICRO
    tree_inter: float = 8.5 * MICRO


@dataclass(frozen=True)
class Hardware:
    """A kind of machine; UserError, naming the flag, for values out of range.

    half, single: FLOP/s of dense matrix products in half precision and in float32; memory: bytes of a GPU; bandwidth:
    bytes/s of it; asynchronous: does the host run ahead of the device?; storage: bytes/s of the shared file system, all
    writers together; mtbf: GPU-hours for one failure that ends the run; restart: seconds from a failure to the first
    update, reading the checkpoint apart; source: where the figures are from.
    """

    name: str
    half: float
    single: float
    memory: int
    bandwidth: float
    network: Network
    source: str
    asynchronous: bool = True
    storage: float = 10 * GIGA
    mtbf: float = 50_000.0
    restart: float = 600.0

    def __post_init__(self):
        for flag, value in (
            ("--gpu-memory", self.memory),
            ("--gpus-per-node", self.network.node),
            ("--intra-bandwidth", self.network.intra),
            ("--inter-bandwidth", self.network.inter),
            ("--storage-bandwidth", self.storage),
            ("--mtbf", self.mtbf),
        ):
            if not value > 0:
                raise UserError(f"{flag} {value:g}: must be above 0")
        if not 0 < self.network.share <= 1:
            raise UserError(f"--network-share {self.network.share:g}: must be above 0 and at most 1")
        if self.restart < 0:
            raise UserError(f"--restart {self.restart / 60:g}: must be at least 0")

    def peak(self, itemsize: int) -> float:
        """FLOP/s for numbers of so many bytes: `single` for 4, `half` for 2."""
        return self.single if itemsize == FLOAT32 else self.half


def _dgx(name: str, half: float, single: float, memory: int, bandwidth: float, links: tuple, source: str) -> Hardware:
    """links: NVLink's GB/s of a GPU in one direction, and Gbit/s of network ports a GPU."""
    network = Network(8, links[0] * GIGA, links[1] / 8 * GIGA)
    return Hardware(name, half * TERA, single * TERA, memory * GIB, bandwidth * GIGA, network, source)


# float32 without TF32, which torch leaves off; NVLink's advertised bandwidth is of both directions together
PRESETS = {
    hardware.name: hardware
    for hardware in (
        _dgx("v100", 125, 15.7, 32, 900, (150, 50), "NVIDIA V100 SXM2 data sheet; DGX-1: 4 x 100 Gbit/s for 8 GPUs"),
        _dgx("a100-40", 312, 19.5, 40, 1555, (300, 200), "NVIDIA A100 SXM data sheet; DGX A100: 8 x 200 Gbit/s"),
        _dgx("a100", 312, 19.5, 80, 2039, (300, 200), "NVIDIA A100 80GB SXM data sheet; DGX A100: 8 x 200 Gbit/s"),
        _dgx("h100", 989, 67, 80, 3350, (450, 400), "NVIDIA H100 SXM data sheet; DGX H100: 8 x 400 Gbit/s"),
    )
}


def hardware(name: str, **changes) -> Hardware:
    """A preset with other values for some of its fields, or of its network's; None keeps one.

    UserError, naming the flag, for a preset that is none and for values out of range.
    """
    if name not in PRESETS:
        raise UserError(f"--hardware {name}: unknown; there are {', '.join(PRESETS)}")
    found = PRESETS[name]
    changes = {key: value for key, value in changes.items() if value is not None}
    ours = {key: value for key, value in changes.items() if key in Network.__dataclass_fields__}
    rest = {key: value for key, value in changes.items() if key not in ours}
    return replace(found, network=replace(found.network, **ours), **rest)
