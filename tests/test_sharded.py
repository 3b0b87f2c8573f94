"""Models in shards: which rows lie where, what their checkpoints hold, and what happens to damaged ones."""

import errno
import inspect
import shutil
import subprocess
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import CheckpointConfig
from omegaconf import OmegaConf

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.checkpoints import atomic
from deepnet_fairseq.plugin.distributed import sharded_trainer as training
from deepnet_fairseq.plugin.distributed import shards
from deepnet_fairseq.plugin.trainer import parse
from deepnet_fairseq.tools.averaging import average

from .conftest import TRAIN_FLAGS
from .faults import states
from .support import ranks
from .support.helpers import ROOT, USER_DIR, run
from .test_equal_processes import MODEL, MODES
from .test_scripts import needs_venv

SHAPES = [(7, 3), (1,), (), (2, 2, 2), (8,)]


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "by parameter"])
@pytest.mark.parametrize("world", [1, 3])
def test_an_optimisers_state_is_cut_and_joined(world, flat):
    """torch keeps its count of updates as a tensor, which is no part of a scalar parameter's state."""
    shapes = [torch.Size(shape) for shape in SHAPES]
    found = [{"step": torch.tensor(3.0), "exp_avg": torch.randn(shape), "on": True} for shape in shapes]
    places = [0] if flat else list(range(len(shapes)))
    state = shards.with_entries({"param_groups": [{"lr": 1, "params": places}], "loss_scale": 2}, found, flat)
    parts = [shards.cut_state(state, shapes, rank, world) for rank in range(world)]
    assert sum(entry["exp_avg"].numel() for part in parts for entry in part["state"].values()) == 39
    whole = shards.join_state(parts, shapes)
    assert whole["loss_scale"] == 2 and whole["state"].keys() == state["state"].keys()
    for place, entry in state["state"].items():
        assert torch.equal(whole["state"][place]["exp_avg"], entry["exp_avg"]) and entry["step"] == 3


def train(folder, data, world, *flags, check=True):
    words = (*TRAIN_FLAGS, *MODEL, "--max-update", 6, "--save-dir", folder, *flags)
    return ranks.train(world, folder / "log", data, *words, check=check)


@pytest.fixture(scope="module")
def files(data, tmp_path_factory):
    """A folder of a run of 6 updates with a checkpoint in files of 2 ranks after every second one."""
    folder = tmp_path_factory.mktemp("shards_7")  # a name that the config in the checkpoint holds too
    flags = ("--save-interval-updates", 2, "--keep-interval-updates", 1)
    train(folder, data, 2, "--method", "rezero", *MODES["fsdp in files"], *flags)
    return folder


def test_each_rank_writes_its_rows(files):
    """Half the numbers each; what no checkpoint names any more is removed."""
    assert {path.name for path in files.glob("shards_*")} == {"shards_4", "shards_6"}
    assert {path.name for path in (files / "shards_6").iterdir()} == {"0_of_2.pt", "1_of_2.pt"}
    sizes = [(files / "shards_6" / f"{rank}_of_2.pt").stat().st_size for rank in (0, 1)]
    assert (files / "checkpoint_last.pt").stat().st_size < 30_000 < sizes[1] <= sizes[0] < 1.2 * sizes[1]


def test_other_programs_read_it_as_a_whole(files, tmp_path, data):
    (tmp_path / "linked.pt").symlink_to(files / "checkpoint_last.pt")
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "linked.pt"))
    tied = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight")
    assert len({state["model"][name].data_ptr() for name in tied}) == 1
    average([files / "checkpoint_previous.pt", files / "checkpoint_last.pt"], tmp_path / "mean.pt")
    mean = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "mean.pt"))["model"]
    name = "encoder.layers.0.fc1.weight"
    before = checkpoint_utils.load_checkpoint_to_cpu(str(files / "checkpoint_previous.pt"))["model"]
    assert torch.allclose(mean[name], (before[name] + state["model"][name]) / 2)
    generated = run("fairseq-generate", data, "--path", files / "checkpoint_last.pt", "--user-dir", USER_DIR,
                    "--cpu", "--max-tokens", "500", "--beam", "2", "--max-len-b", "5")  # fmt: skip
    assert "BLEU4" in generated.stdout


def test_a_damaged_part_is_passed_over(files, data, tmp_path):
    """As a damaged checkpoint is: with the one before the run ends as it did. A missing one is named too."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    damaged = tmp_path / "shards_6" / "1_of_2.pt"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(UserError, match=r"checkpoint_last.pt: truncated or damaged \(its part shards_6/1_of_2.pt"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_last.pt"))
    damaged.unlink()
    with pytest.raises(UserError, match=r"its part shards_6/1_of_2.pt: No such file"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_last.pt"))
    train(tmp_path, data, 1, "--method", "rezero", "--update-freq", 2, "--ddp-backend", "fully_sharded")
    assert "resuming from" in (tmp_path / "log").read_text()
    ours, theirs = (
        checkpoint_utils.load_checkpoint_to_cpu(str(folder / "checkpoint_last.pt"))["model"]
        for folder in (tmp_path, files)
    )
    assert all(torch.allclose(ours[name], value, atol=1e-5) for name, value in theirs.items())


def test_no_save_replaces_the_files_of_another(tmp_path):
    """As at the same update after a rollback: other checkpoints may name them."""
    for name in ("shards_6", "shards_6_1", "shards_60"):
        assert shards._new_folder(tmp_path, int(name.split("_")[1])) == name
        (tmp_path / name).mkdir()


def test_the_best_score_outlives_a_save_that_failed(tmp_path, monkeypatch):
    """fairseq notes it while it saves; where the ranks' files cannot be written, it would not come to that."""
    place = checkpoint_utils.save_checkpoint
    monkeypatch.setattr(place, "best", 5.0, raising=False)
    cfg = OmegaConf.structured(CheckpointConfig(save_dir=str(tmp_path / "run")))
    monkeypatch.setattr(training, "sharded", lambda trainer: True)

    def full(*_):
        raise atomic.SaveError(tmp_path, OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr(training, "_found", full)
    trainer = SimpleNamespace(data_parallel_rank=0, is_data_parallel_master=True, cfg=Namespace(model=Namespace()))
    for loss, best in (4.0, 4.0), (4.5, 4.0):
        with pytest.raises(atomic.SaveError, match="No space left"):
            training.save_from_all(inspect.unwrap(place), cfg, trainer, None, loss)
        assert (place.best, cfg.no_save, trainer.found) == (best, False, None)
    assert not list((tmp_path / "run").iterdir())


def test_nothing_is_removed_while_a_checkpoint_cannot_be_read(tmp_path):
    (tmp_path / "shards_6").mkdir()
    (tmp_path / "checkpoint_last.pt").write_bytes(b"PK\x05\x06" + bytes(18))  # an archive of nothing
    shards.remove_unused(str(tmp_path))
    assert (tmp_path / "shards_6").exists()
    (tmp_path / "checkpoint_last.pt").unlink()
    shards.remove_unused(str(tmp_path))
    assert not (tmp_path / "shards_6").exists()


EXACT = [(precision, mode) for precision in ((), ("--bf16",), ("--fp16",)) for mode in MODES]
QUICK = [(("--fp16",), "fsdp in files")]


@pytest.mark.parametrize(
    "precision, mode", [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in EXACT]
)
def test_resumed_on_two_processes_bit_for_bit(precision, mode, data, tmp_path):
    """6 updates, and 3 and 3 more: weights and state of the optimiser, with its float32 weights in half precision.

    The losses are about those of float32 on one process. DLCL has vectors in float32, of fewer numbers than processes.
    """
    found, method = [], ("--method", "dlcl")
    for name, stops in (("at once", [6]), ("in two", [3, 6])):
        (folder := tmp_path / name).mkdir()
        for stop in stops:
            rows = train(folder, data, 2, *method, *precision, *MODES[mode], "--max-update", stop)
        found.append(checkpoint_utils.load_checkpoint_to_cpu(str(folder / "checkpoint_last.pt")))
    (folder := tmp_path / "alone").mkdir()
    alone = train(folder, data, 1, *method, "--update-freq", 2, "--no-save")
    bits = 0.03 if precision == ("--bf16",) else 2.1e-3
    assert [float(row["loss"]) for row in rows] == pytest.approx([float(row["loss"]) for row in alone], abs=bits)
    tied = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight")
    assert all(len({state["model"][name].data_ptr() for name in tied}) == 1 for state in found)
    one, two = ({key: state[key] for key in ("model", "last_optimizer_state", "optimizer_history")} for state in found)
    assert bool(precision) == ("fp32_params" in str(two["last_optimizer_state"].keys()))
    assert list(states.differences(one, two)) == []


REFUSED = {
    ("--ddp-backend", "fully_sharded"): {
        ("--store-ema",): "--store-ema: not with --ddp-backend fully_sharded",
        ("--cpu-offload",): "--cpu-offload: not with",
        ("--zero-sharding", "os", "--optimizer", "deepnet_adam"): "--zero-sharding: not with",
        ("--optimizer", "deepnet_adam"): "--ddp-backend fully_sharded: not with --optimizer deepnet_adam",
        ("--eval-bleu",): "--eval-bleu: not with",
    },
    ("--zero-sharding", "os"): {("--optimizer", "adam"): "--zero-sharding os: with --optimizer deepnet_adam"},
}


@pytest.mark.parametrize("mode, flags", [(mode, flags) for mode in REFUSED for flags in REFUSED[mode]])
def test_what_cannot_be_is_refused(mode, flags, data, tmp_path, capsys):
    model = MODEL[: MODEL.index("--adam-eps")]
    with pytest.raises(SystemExit):
        parse([str(data), *TRAIN_FLAGS, *model, "--save-dir", str(tmp_path), *mode, *flags])
    assert f"error: {REFUSED[mode][flags]}" in capsys.readouterr().err
    with pytest.raises(UserError, match="--optimizer adafactor: not with --ddp-backend fully_sharded"):
        training._read_rows(None, Namespace(supports_flat_params=False), "adafactor")


@needs_venv
@pytest.mark.smoke
def test_from_shards_to_a_translation(tmp_path):
    """scripts/sharded_check.sh, which results/ has at 500L-500L."""
    words = ["bash", ROOT / "scripts" / "sharded_check.sh", "3", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "trained_by_two: updates 1 to 10" in done.stdout and "resumed_on_one: updates 11 to 14" in done.stdout
    assert "translated: 4 sentences" in done.stdout
