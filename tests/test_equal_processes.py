"""One, two and four processes train the same model on the same batches, by DDP, ZeRO and FSDP."""

import pytest
from fairseq import checkpoint_utils

from .conftest import TRAIN_FLAGS
from .support import ranks

MODEL = (
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "3", "--encoder-embed-dim", "24",
    "--encoder-ffn-embed-dim", "40", "--encoder-attention-heads", "3", "--dropout", "0", "--max-tokens", "400",
    "--max-update", "12", "--adam-eps", "1e-6",
)  # fmt: skip
METHODS = {"deepnorm": (), "admin": ("--admin-profile", "auto"), "dlcl": (), "rezero": ()}
MODES = {
    "ddp": (),
    "zero": ("--optimizer", "deepnet_adam", "--zero-sharding", "os"),
    "fsdp": ("--ddp-backend", "fully_sharded"),
    "fsdp in files": ("--ddp-backend", "fully_sharded", "--use-sharded-state"),
}
# 2 processes with every method, 4 with one; the rest are slow
SOME = [(2, method, mode, index % 2) for index, method in enumerate(METHODS) for mode in MODES]
SOME += [(4, "deepnorm", mode, 1) for mode in MODES]
ALL = [(world, method, mode, again) for world in (2, 4) for method in METHODS for mode in MODES for again in (0, 1)]
CASES = [pytest.param(*case, marks=() if case in SOME else pytest.mark.slow) for case in ALL]


def train(folder, data, world, method, *flags):
    """Losses of 12 updates of the batches of 4, and the checkpoint."""
    words = (*TRAIN_FLAGS, *MODEL, "--method", method, *METHODS[method], "--update-freq", 4 // world, *flags)
    rows = ranks.train(world, folder / "log", data, *words, "--save-dir", folder)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(folder / "checkpoint_last.pt"))
    return [float(row["loss"]) for row in rows], state


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """Method -> what one process makes of it."""
    found = {}

    def of(method):
        if method not in found:
            found[method] = train(tmp_path_factory.mktemp("alone"), data, 1, method)
        return found[method]

    return of


@pytest.mark.parametrize("world, method, mode, again", CASES)
def test_losses_weights_and_state_are_those_of_one(alone, world, method, mode, again, data, tmp_path):
    """Float32, 12 updates; what differs is the order of sums."""
    flags = (*MODES[mode], *["--checkpoint-activations"][:again])
    losses, state = train(tmp_path, data, world, method, *flags)
    expected, one = alone(method)
    assert len(losses) == 12 and losses == pytest.approx(expected, abs=2.1e-3) and expected[-1] < 0.97 * expected[0]
    assert_same(state, one)


def assert_same(state, expected):
    """Weights and moments; a unit whose ReLU is at its edge may fall to the other side."""
    assert state["model"].keys() == expected["model"].keys()
    for name, weight in expected["model"].items():
        assert_close(state["model"][name], weight, name)
    moments, others = state["last_optimizer_state"]["state"], expected["last_optimizer_state"]["state"]
    assert moments.keys() == others.keys() and moments
    for place, entry in others.items():
        assert moments[place]["step"] == entry["step"] == 12
        for name in ("exp_avg", "exp_avg_sq"):
            assert_close(moments[place][name], entry[name], (place, name))


def assert_close(found, expected, name):
    assert found.shape == expected.shape
    apart = (found - expected).abs().flatten()
    assert apart.max() < 1e-3 and apart.quantile(0.95) < 1e-4, (name, apart.max())


RESUMED = {  # world and mode before, world and mode after
    "files of 4 on 1": (4, "fsdp in files", 1, "ddp"),
    "files of 2 on 4": (2, "fsdp in files", 4, "fsdp in files"),
    "fsdp on 2 by zero": (4, "fsdp", 2, "zero"),
    "zero on 4 by fsdp": (2, "zero", 4, "fsdp"),
    "1 on 2 by fsdp": (1, "ddp", 2, "fsdp"),
    "zero on 1": (4, "zero", 1, "ddp"),
}


@pytest.mark.parametrize("change", RESUMED)
def test_resumes_on_another_number_in_another_mode(alone, change, data, tmp_path):
    """5 updates and 7 more are 12, whoever makes them."""
    world, mode, later, other = RESUMED[change]
    first, _ = train(tmp_path, data, world, "rezero", *MODES[mode], "--max-update", 5)
    both, state = train(tmp_path, data, later, "rezero", *MODES[other])
    expected, one = alone("rezero")
    assert len(first) == 5 and both == pytest.approx(expected, abs=2.1e-3)
    assert_same(state, one)
