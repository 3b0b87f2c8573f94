"""Back to a good checkpoint with a lower learning rate, in whole trainings of a few updates."""

import json
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.divergence import GRADIENTS, STATUS, Stop, diagnosis
from deepnet_fairseq.plugin.divergence.rollback import Rollbacks, Taken

from .conftest import TRAIN_FLAGS
from .support import ranks
from .support.diverging import TINY, WILD, Training, events, train, updates, weights
from .support.helpers import run

SAVED = ("--save-interval-updates", "1", "--max-update", "4", "--max-tokens", "20000", "--batch-size", "200")
BACK = ("--rollbacks", "3", "--rollback-lr-factor", "0.001")
LOWER = ("--lr", "0.3", "--warmup-init-lr", "1e-7")  # WILD's times 0.001


@pytest.fixture(scope="module")
def set_back(data, tmp_path_factory):
    """WILD, which diverges at update 3, the first of epoch 2, set back into epoch 1 and trained for 4 updates."""
    folder = tmp_path_factory.mktemp("back")
    train(data, folder, *WILD, *SAVED, *BACK)
    return folder


def test_a_run_that_is_set_back_is_one_started_from_there(data, set_back, tmp_path):
    """Bit for bit, as the checkpoint after update 1 and the lower rates given by hand."""
    (event,) = events(set_back)
    assert event["update"] == 3 and event["rollback"] == {
        "number": 1, "limit": 3, "checkpoint": "checkpoint_previous.pt", "update": 1, "factor": 0.001, "given": [300.0],
        "lr": [300.0 * 0.001],
    }  # fmt: skip
    shutil.copy(set_back / "checkpoint_1_1.pt", tmp_path / "checkpoint_last.pt")
    train(data, tmp_path, *WILD, *SAVED, *LOWER)
    ours, plain = (weights(folder / "checkpoint_last.pt") for folder in (set_back, tmp_path))
    assert all(torch.equal(ours[name], plain[name]) for name in plain)
    assert updates(set_back) == 4
    said = (set_back / diagnosis.TEXT).read_text()
    assert "rollback 1 of 3: back to update 1 of checkpoint_previous.pt, --lr times 0.001, now 0.3" in said


def test_a_run_killed_before_its_next_save_has_been_set_back(data, set_back, tmp_path, monkeypatch, caplog):
    """What it went back to is its last checkpoint, its lower rate is written down; with another --lr it counts anew."""
    step, folder = Trainer.train_step, tmp_path / "killed"

    def stop_after_rollback(trainer, samples):
        if trainer.rollbacks.taken:
            raise KeyboardInterrupt
        return step(trainer, samples)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "train_step", stop_after_rollback)
        train(data, folder, *WILD, *SAVED, *BACK)
    assert updates(folder) == 1
    other = shutil.copytree(folder, tmp_path / "other")
    train(data, folder, *WILD, *SAVED, *BACK)
    assert "set back 1 times before, --lr is now 0.3" in caplog.text
    caplog.clear()
    ours, whole = (weights(one / "checkpoint_last.pt") for one in (folder, set_back))
    assert all(torch.equal(ours[name], whole[name]) for name in whole)
    assert len(events(folder)) == 1
    train(data, other, *WILD, *SAVED, "--max-update", "2", *BACK, "--lr", "0.2")
    assert "set back" not in caplog.text


def test_rollbacks_run_out(data, tmp_path, capsys):
    """Each goes back to a checkpoint that has not failed, the third divergence is the last."""
    with pytest.raises(SystemExit) as ended:
        train(data, tmp_path, *WILD, *SAVED, "--rollbacks", "2", "--rollback-lr-factor", "0.9")
    assert ended.value.code == STATUS
    found = events(tmp_path)
    assert [event["rollback"] and event["rollback"]["number"] for event in found] == [1, 2, None]
    assert all(event["rollback"]["update"] < event["update"] - 1 for event in found[:-1])
    assert found[-1]["setting"]["lr"] == [300.0 * 0.9 * 0.9]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert f"error: diverged at update {found[-1]['update']}: " in line and str(tmp_path / diagnosis.TEXT) in line


def test_a_new_run_has_no_past(data, tmp_path):
    (tmp_path / diagnosis.JSON).write_text(json.dumps({"format": 1, "events": [{"update": 9, "rollback": {}}]}))
    (tmp_path / diagnosis.TEXT).write_text("diverged at update 9")
    train(data, tmp_path, *TINY, "--max-update", "1", "--no-save", "--lr", "1e-3")
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_finite_replace_no_checkpoint(data, tmp_path, monkeypatch):
    """An update that breaks them is found at its save."""
    train(data, tmp_path, *TINY, "--max-update", "1")
    good = (tmp_path / "checkpoint_last.pt").read_bytes()
    make = Trainer.set_num_updates

    def break_weights(trainer, num_updates):
        make(trainer, num_updates)
        if num_updates == 3:
            with torch.no_grad():
                trainer.get_model().encoder.layers[1].fc2.bias[2] = float("inf")

    monkeypatch.setattr(Trainer, "set_num_updates", break_weights)
    with pytest.raises(SystemExit) as ended:
        train(data, tmp_path, *TINY, "--max-update", "3")
    assert ended.value.code == STATUS and (tmp_path / "checkpoint_last.pt").read_bytes() == good
    (event,) = events(tmp_path)
    assert event["kind"] == "weights not finite" and event["first"]["where"] == "encoder.2.ffn"
    assert event["reason"] == "encoder.layers.1.fc2.bias is not finite; not saved"


REFUSED = {
    "--no-save": ("checkpoint", "no_save", True),
    "--no-save-optimizer-state": ("checkpoint", "no_save_optimizer_state", True),
    "--lr-scheduler manual": ("lr_scheduler", "_name", "manual"),
}


def test_flags_that_leave_nothing_to_go_back_to(data, tmp_path):
    rollbacks = Training(data, tmp_path, *TINY, "--rollbacks", "1").trainer.rollbacks
    for words, (section, key, value) in REFUSED.items():
        kept, rollbacks.cfg[section][key] = rollbacks.cfg[section][key], value
        with pytest.raises(UserError, match=f"--rollbacks: not with {words},"):
            rollbacks.check()
        rollbacks.cfg[section][key] = kept


def checkpoint(folder, name: str, updates: int) -> None:
    torch.save({"optimizer_history": [{"num_updates": updates}]}, folder / f"{name}.pt")


# failed at, last healthy update, rollbacks before as (failed, to) -> where to, of checkpoints after 10, 20, ... 50
CHOICES = {
    "the newest": ((58, 57, ()), "checkpoint_last"),
    "not the weights that failed": ((51, 50, ()), "checkpoint_1_40"),
    "from before the loss rose": ((58, 33, ()), "checkpoint_1_30"),
    "its own loss is of the weights before": ((58, 30, ()), "checkpoint_1_20"),
    "twice as far": ((58, 57, ((58, 50),)), "checkpoint_1_40"),
    "and again": ((57, 56, ((58, 50), (58, 40))), "checkpoint_1_20"),
    "it came further than the one before": ((58, 57, ((48, 40),)), "checkpoint_last"),
    "as far as there are any": ((58, 57, ((58, 30),)), "checkpoint_1_10"),
    "none was good": ((9, 8, ()), None),
}


@pytest.mark.parametrize("case", CHOICES)
def test_which_checkpoint_is_good(case, tmp_path):
    (failed, healthy, before), name = CHOICES[case]
    for number in range(10, 60, 10):
        checkpoint(tmp_path, f"checkpoint_1_{number}", number)
    checkpoint(tmp_path, "checkpoint_last", 50)
    checkpoint(tmp_path, "checkpoint_previous", 40)
    (tmp_path / "checkpoint_previous.pt").write_bytes(b"damaged")
    cfg = OmegaConf.create({"checkpoint": {"save_dir": str(tmp_path)}, "model": {}, "optimization": {"lr": [1.0]}})
    rollbacks = Rollbacks(cfg)
    rollbacks.taken = [Taken(failed_at, to, 0.5) for failed_at, to in before]
    trainer = Namespace(checkpoint_suffix="", watch=Namespace(healthy=healthy))
    assert rollbacks._good(trainer, Stop(failed, GRADIENTS, "", [])) == name


@pytest.mark.smoke
@pytest.mark.parametrize("files", [(), ("--use-sharded-state",)], ids=["one file", "a file a rank"])
def test_two_processes_with_a_sharded_model_are_set_back_and_end_together(files, data, tmp_path):
    """One report, one line, status 3."""
    both = ("--distributed-world-size", "2", "--ddp-backend", "fully_sharded", *SAVED, *files)
    flags = ("--rollbacks", "1", "--rollback-lr-factor", "0.9")
    done = run("fairseq-train", data, *TRAIN_FLAGS, *WILD, *both, *flags, "--save-dir", tmp_path, check=False)
    assert "rollback 1 of 1: back to update 1" in done.stdout
    assert done.returncode == STATUS and "Traceback" not in done.stdout
    assert done.stdout.count("error: diverged at update ") == 1 and len(events(tmp_path)) == 2


def full_on_the_second(number, *process):
    """A rank; the second has no memory left for the search."""

    def full(*_):
        raise torch.OutOfMemoryError("no memory is left")

    if number == 1:
        diagnosis.repeat = full
    ranks.be_rank(number, *process)


@pytest.mark.smoke
@pytest.mark.parametrize("backend", ["fully_sharded", "pytorch_ddp"])
def test_a_search_that_one_process_cannot_make_is_waited_for_by_none(backend, data, tmp_path, monkeypatch):
    """Whole models are searched by each rank alone, so the run is set back; of a sharded one the report stays."""
    log = tmp_path / "log"
    monkeypatch.setattr(ranks, "be_rank", full_on_the_second)
    flags = ("--ddp-backend", backend, *SAVED, "--rollbacks", "1", "--rollback-lr-factor", "0.001")
    ranks.train(2, log, data, *TRAIN_FLAGS, *WILD, *flags, "--save-dir", tmp_path, check=False, timeout=100)
    said, (event,) = log.read_text(), events(tmp_path)
    assert "Traceback" not in said
    if backend == "pytorch_ddp":
        assert event["rollback"] and updates(tmp_path) == 4
        return
    assert event["search"] == "the search did not end" and event["rollback"] is None and event["update"] == 3
    assert "where, was not found (OutOfMemoryError: no memory is left); the rest of the report: " in said
    assert said.count("train: error: diverged at update 3") == 2 and "Connection " in said
