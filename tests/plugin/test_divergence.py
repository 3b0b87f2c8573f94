"""Tests of divergence: a training whose numbers stop being finite ends in a line that names the first place."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.trainer import Trainer

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.plugin import divergence
from deepnet_fairseq.plugin.divergence import BACKWARD, FLOOR, FORWARD, GRADIENTS, LOSS, WEIGHTS
from deepnet_fairseq.plugin.graphs.step import GraphedStep
from deepnet_fairseq.plugin.optimisers import papers
from deepnet_fairseq.plugin.trainer import DeepTrainer

from ..conftest import TRAIN_FLAGS
from ..support import ranks
from ..support.diverging import DIVERGING, TINY, NanGradient, Training, train
from ..support.marks import smoke_but
from ..support.recorded_graph import RecordedDevice


def beginning(update: int, kind: str) -> str:
    """Return how the line for a divergence begins; scripts look for these words. kind: LOSS or another constant."""
    return f"diverged at update {update}: {kind}"


def assert_diverged(line: str, update: int, kind: str, place: str) -> None:
    """Check that a line names the update, the kind of divergence, and the place at its end."""
    assert line.startswith(beginning(update, kind))
    assert line.endswith(f" {place}")


# beside each branch, admin has parameters of its own, and dlcl weights
@pytest.mark.parametrize("method", smoke_but(("deepnorm", "admin", "dlcl"), sorted(METHODS)))
def test_the_branch_with_a_broken_weight_is_named(method, data, tmp_path):
    training = Training(data, tmp_path, *TINY, "--method", method, *METHODS[method].train_flags)
    training.step()
    weights = []
    for stack in (training.model.encoder, training.model.decoder):
        for layer in stack.layers:
            weights += layer.weights()
    number = sorted(METHODS).index(method)
    broken = weights[7 * number % len(weights)]  # another one for each method: all together cover every branch
    with torch.no_grad():
        broken.linear.weight[3, 5] = math.nan

    line = training.diverge()

    assert_diverged(line, update=2, kind=LOSS, place=f"{broken.site} ({FORWARD})")
    assert list(tmp_path.iterdir()) == []  # no crash.pt, which fairseq would write


def test_the_layer_is_named_in_a_training_by_graphs(data, tmp_path):
    """The update is repeated without graphs, whose replays call no hooks."""
    training = Training(data, tmp_path, *TINY)
    graphs = GraphedStep(limit=2, pad_index=1, device=RecordedDevice())
    graphs.plan(training.trainer.iterator)
    training.trainer.use_graphs(graphs)
    training.step()
    with torch.no_grad():
        training.model.decoder.layers[1].fc1.bias[0] = math.inf

    line = training.diverge()

    assert graphs.served == 2
    assert_diverged(line, update=2, kind=LOSS, place=f"decoder.2.ffn ({FORWARD})")


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_the_attention_is_named_whose_scores_alone_overflow(stack, data, tmp_path):
    """Queries and keys are finite, and their products are not."""
    training = Training(data, tmp_path, *TINY)
    attention = training.model.stacks()[stack].layers[0].self_attn
    with torch.no_grad():
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight.mul_(1e25)

    line = training.diverge()

    assert_diverged(line, update=1, kind=LOSS, place=f"{stack}.1.self_attn ({FORWARD})")


def test_a_layer_of_fairseqs_own_model_is_named_by_its_module(data, tmp_path):
    """--amp begins with a loss scale of 128, which one overflow halves to 64, below the floor of 100."""
    sizes = TINY[2:]  # TINY without its --arch
    training = Training(data, tmp_path, "--arch", "transformer", *sizes, "--amp", "--min-loss-scale", "100")
    with torch.no_grad():
        training.model.decoder.layers[0].fc1.bias[0] = math.inf

    line = training.diverge()

    assert_diverged(line, update=1, kind=FLOOR, place=f"decoder.layers.0.fc1 ({FORWARD})")


def test_the_branch_is_named_whose_gradient_alone_is_not_finite(data, tmp_path):
    """The search finds the branch, although recomputation runs the layer's forward pass within the backward pass."""
    training = Training(data, tmp_path, *TINY, "--checkpoint-activations")
    training.model.decoder.layers[0].fc2.register_forward_hook(lambda module, inputs, y: NanGradient.apply(y))

    line = training.diverge()

    assert_diverged(line, update=1, kind=GRADIENTS, place=f"decoder.1.ffn ({BACKWARD})")


def test_an_infinite_loss_is_reported_where_the_search_for_its_place_fails(data, tmp_path, monkeypatch):
    """All gradients are finite here, as infinity is added to the finished loss."""
    training = Training(data, tmp_path, *TINY)
    criterion = training.trainer.criterion
    compute_loss = criterion.compute_loss

    def compute_infinite_loss(*args, **kwargs):
        return tuple(loss + math.inf for loss in compute_loss(*args, **kwargs))

    monkeypatch.setattr(criterion, "compute_loss", compute_infinite_loss)
    monkeypatch.setattr(divergence, "repeat_update", None)  # the search raises a TypeError

    line = training.diverge()

    assert line == beginning(update=1, kind=LOSS)  # without a place


def test_only_an_overflow_at_the_floor_of_the_loss_scale_is_a_divergence(data, tmp_path):
    """Updates that overflow are skipped and halve the loss scale; fairseq raises an error where it would reach 1."""
    training = Training(data, tmp_path, *TINY, "--fp16", "--fp16-init-scale", "32", "--min-loss-scale", "1")
    optimizer = training.trainer.optimizer
    optimizer.clip_grad_norm = lambda *_, **__: optimizer.scaler.check_overflow(math.inf)  # in each update

    for _scale in (32, 16, 8, 4):
        training.step()
    updates_made = training.trainer.get_num_updates()
    line = training.diverge()  # at scale 2

    assert updates_made == 0
    assert line.startswith(beginning(update=1, kind=FLOOR))


def test_weights_that_are_not_finite_replace_no_checkpoint(data, tmp_path, monkeypatch, capsys):
    """The save finds such a weight, and the program ends in one line and with a status of its own."""
    train(data, tmp_path, *TINY, "--max-update", "1")
    good = (tmp_path / "checkpoint_last.pt").read_bytes()
    set_num_updates = Trainer.set_num_updates

    def break_a_weight_after_update_3(trainer, num_updates):
        set_num_updates(trainer, num_updates)
        if num_updates == 3:
            with torch.no_grad():
                trainer.get_model().encoder.layers[1].fc2.bias[2] = math.inf

    monkeypatch.setattr(Trainer, "set_num_updates", break_a_weight_after_update_3)

    with pytest.raises(SystemExit) as ended:
        train(data, tmp_path, *TINY, "--max-update", "3")

    assert ended.value.code == divergence.STATUS
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == good
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    _, _, message = line.partition("error: ")
    assert_diverged(message, update=3, kind=WEIGHTS, place=f"encoder.2.ffn ({FORWARD})")


@pytest.mark.smoke
def test_two_processes_that_diverge_end_together_with_one_line(data, tmp_path):
    """DIVERGING diverges at update 3 of 4. The 400 sentences of an epoch are two batches, one for each process."""
    flags = ("--max-update", "4", "--max-tokens", "20000", "--batch-size", "200", "--save-dir", tmp_path)

    ranks.train(2, tmp_path / "log", data, *TRAIN_FLAGS, *DIVERGING, *flags, check=False, timeout=100)

    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert log.count("error: diverged") == 1


def test_norms_of_several_gpus_that_are_not_finite_are_no_inconsistency(monkeypatch):
    """fairseq compares the norms of all GPUs, and ends with an error if they differ or are not finite."""
    trainer = DeepTrainer.__new__(DeepTrainer)  # without the data and model that its __init__ needs
    trainer.cfg = SimpleNamespace(common=SimpleNamespace(amp=False))
    trainer.probes = None
    trainer._num_updates = 6
    monkeypatch.setattr(papers, "clip_apart", lambda trainer: None)
    monkeypatch.setattr(Trainer, "clip_grad_norm", lambda trainer, limit: torch.tensor(math.nan))

    with pytest.raises(divergence.Diverged) as raised:
        trainer.clip_grad_norm(1.0)

    assert raised.value.update == 7
    assert raised.value.kind == GRADIENTS
