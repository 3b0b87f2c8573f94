"""Training with deepnet_adam through fairseq's Trainer, alone and on two ranks; checkpoints for all who read them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fairseq.distributed.legacy_distributed_data_parallel import LegacyDistributedDataParallel
from fairseq.logging import metrics

from deepnet_fairseq.building import from_checkpoint
from deepnet_fairseq.checkpoints.averaging import average
from deepnet_fairseq.export.transformer import fold_checkpoint
from deepnet_fairseq.trainer import build_trainer, parse

from .conftest import TRAIN_FLAGS
from .support import ranks
from .support.helpers import PAD, batch, small
from .test_deepnet_adam import NAMES, difference, optimiser

TINY = (
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2", "--clip-norm", "0.5",
    "--weight-decay", "0.01", "--dropout", "0.1",
)  # fmt: skip


def trainer(data, folder, name: str, *flags):
    """fairseq's Trainer over `data`, resumed from `folder` if that holds a checkpoint."""
    given = (str(data), *TRAIN_FLAGS, *TINY, "--optimizer", name, "--save-dir", str(folder), *flags)
    built = build_trainer(parse(list(given)))
    if (folder / "checkpoint_last.pt").exists():
        built.load_checkpoint(str(folder / "checkpoint_last.pt"))
    return built


def updates(built, first: int, last: int, accumulated: int = 1) -> None:
    """The updates number `first` to `last` of the run."""
    batches = list(built.get_train_iterator(1).next_epoch_itr(shuffle=True))
    with metrics.aggregate("train"):
        for update in range(first, last + 1):
            built.train_step([batches[(update * accumulated + k) % len(batches)] for k in range(accumulated)])


def save(built, folder) -> None:
    folder.mkdir(exist_ok=True)
    built.consolidate_optimizer()
    iterator = {"epoch": 1, "iterations_in_epoch": 1, "shuffle": True}
    built.save_checkpoint(str(folder / "checkpoint_last.pt"), {"train_iterator": iterator, "val_loss": 3.0})


def weights(model) -> list:
    """Copies of the parameters but for one kind, whose gradient is rounding noise: attention does not see a bias that
    all keys share."""
    return [p.detach().clone() for name, p in model.named_parameters() if "k_proj.bias" not in name]


def gap(ours, theirs) -> float:
    """Mean difference of the tensors that differ most."""
    return max((a.float() - b.float()).abs().mean().item() for a, b in zip(ours, theirs, strict=True))


TRAININGS = {
    "rezero": (("--update-freq", "2", "--store-ema", "--ema-fp32"), 2e-6),
    "admin_torch": (("--bf16",), 4e-4),  # bf16: the weights' last place, here and there
}


@pytest.mark.parametrize("method", TRAININGS)
def test_a_run_may_switch_when_it_resumes(method, data, tmp_path):
    """adam, then deepnet_adam, then adam again, two updates each and a checkpoint between: as either all the way.

    The weights differ by far less than training moved them.
    """
    flags, tolerance = TRAININGS[method]
    kept = []
    for number, names in enumerate((("adam",) * 3, ("adam", "deepnet_adam", "adam"), ("deepnet_adam",) * 3)):
        for part, name in enumerate(names):
            built = trainer(data, tmp_path / str(number), name, "--method", method, *flags)
            if part == 0:
                start = weights(built.get_model())
            assert built.get_num_updates() == 2 * part
            updates(built, 2 * part + 1, 2 * part + 2, accumulated=2 if "--update-freq" in flags else 1)
            entries = built.optimizer.state_dict()["state"]
            assert {entry["step"] for entry in entries.values()} == {2 * part + 2}
            save(built, tmp_path / str(number))
        kept.append(weights(built.get_model()) + (weights(built.ema.get_model()) if "--store-ema" in flags else []))
    assert difference(kept[0][: len(start)], start) > 2e-3
    assert gap(kept[0], kept[1]) < tolerance and gap(kept[0], kept[2]) < tolerance


@pytest.mark.parametrize("flags", [(), ("--bf16",)], ids=["fp32", "bf16"])
def test_checkpoints_are_read_by_everybody(flags, data, tmp_path):
    """Weights, means and squares are one memory each in the file; average, export and building take it as ever."""
    built = trainer(data, tmp_path, "deepnet_adam", *flags)
    updates(built, 1, 2)
    save(built, tmp_path)
    path = tmp_path / "checkpoint_last.pt"
    state = torch.load(path, weights_only=True)
    entries = state["last_optimizer_state"]["state"].values()
    trained = [state["model"][name] for name, _ in built.get_model().named_parameters()]
    for group in (trained, [e["exp_avg"] for e in entries], [e["exp_avg_sq"] for e in entries]):
        assert len({value.untyped_storage().data_ptr() for value in group}) == 1
    each = 16 if flags else 12  # bytes: the weights, two moments, and in half precision the float32 weights
    assert path.stat().st_size < 1.25 * each * sum(p.numel() for p in built.get_model().parameters())
    average([path, path], tmp_path / "mean.pt")
    assert fold_checkpoint(str(tmp_path / "mean.pt")).difference < 1e-4
    model, _ = from_checkpoint(str(path))
    assert difference(model.parameters(), built.get_model().parameters()) == 0


def test_wrong_flags_end_in_one_line(data, tmp_path, capsys):
    """As fairseq-train parses them, before it makes a folder."""
    with pytest.raises(SystemExit, match="2"):
        trainer(data, tmp_path / "none", "deepnet_adam", "--bf16", "--memory-efficient-bf16")
    line = "--memory-efficient-bf16: not with --optimizer deepnet_adam: float32 weights are kept; take --bf16"
    assert line in capsys.readouterr().err and not (tmp_path / "none").exists()


def on_rank(rank: int, folder: str) -> None:
    """Three updates of a small model on batches of the rank's own, under both wrappers and optimisers."""
    torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    for wrap in (torch.nn.parallel.DistributedDataParallel, LegacyDistributedDataParallel):
        for name in NAMES:
            model = small(2)
            wrapped = wrap(model, process_group=torch.distributed.group.WORLD)
            built = optimiser(name, list(wrapped.parameters()))
            for update in range(3):
                built.zero_grad()
                src, prev = batch(seed=2 * update + rank)
                scores = wrapped(src, None, prev)[0].flatten(0, 1)
                built.backward(F.cross_entropy(scores, prev.flatten(), ignore_index=PAD))
                built.all_reduce_grads(wrapped)
                built.multiply_grads(2.0)
                built.clip_grad_norm(0.5)
                built.step()
            torch.save(weights(model), f"{folder}/{wrap.__name__}-{name}-{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_ranks(tmp_path):
    """Every rank has the weights that fairseq's adam gives, under torch's and under fairseq's own wrapper."""
    ranks.call(on_rank, 2, str(tmp_path))
    start = weights(small(2))
    for wrap in ("DistributedDataParallel", "LegacyDistributedDataParallel"):
        found = {(n, r): torch.load(tmp_path / f"{wrap}-{n}-{r}.pt") for n in NAMES for r in (0, 1)}
        assert difference(found["deepnet_adam", 0], found["deepnet_adam", 1]) == 0
        assert difference(found["deepnet_adam", 0], start) > 1e-2
        assert gap(found["adam", 0], found["deepnet_adam", 0]) < 1e-6
