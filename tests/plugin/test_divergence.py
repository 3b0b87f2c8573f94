"""Tests of divergence: every case has a known place where numbers stop being finite."""

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.trainer import Trainer

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.plugin import divergence
from deepnet_fairseq.plugin.optimisers import papers
from deepnet_fairseq.plugin.trainer import DeepTrainer

from ..conftest import TRAIN_FLAGS
from ..support import ranks
from ..support.diverging import TINY, WILD, Poison, Training, train


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_branch_with_a_broken_weight_is_named(method, data, tmp_path):
    training = Training(data, tmp_path, *TINY, "--method", method, *METHODS[method].train_flags)
    training.step()
    weights = [weight for stack in ("encoder", "decoder") for layer in getattr(training.model, stack).layers
               for weight in layer.weights()]  # fmt: skip
    weight = weights[7 * sorted(METHODS).index(method) % len(weights)]  # covers all branches and roles over the methods
    with torch.no_grad():
        weight.linear.weight[3, 5] = math.nan
    assert training.diverge() == f"diverged at update 2: loss not finite, first at {weight.site} (forward)"
    assert not list(tmp_path.iterdir()), "no crash.pt"


def test_a_model_of_another_package_is_addressed_by_its_modules(data, tmp_path):
    """A divergence of fairseq's own model at the floor of the --amp loss scale is named by its module."""
    training = Training(data, tmp_path, "--arch", "transformer", *TINY[2:], "--amp", "--min-loss-scale", "100")
    with torch.no_grad():
        training.model.decoder.layers[0].fc1.bias[0] = math.inf
    assert training.diverge() == (
        "diverged at update 1: loss scale at its floor, first at decoder.layers.0.fc1 (forward)"
    )


def test_a_gradient_that_is_not_finite_behind_a_finite_forward_pass(data, tmp_path):
    training = Training(data, tmp_path, *TINY, "--checkpoint-activations")
    training.model.decoder.layers[0].fc2.register_forward_hook(lambda module, inputs, y: Poison.apply(y))
    assert training.diverge() == "diverged at update 1: gradients not finite, first at decoder.1.ffn (backward)"


def test_a_loss_that_is_not_finite_with_gradients_that_are(data, tmp_path, monkeypatch):
    """A loss that is not finite is reported with finite gradients too, and when the search for the place fails."""
    training = Training(data, tmp_path, *TINY)
    criterion, compute = training.trainer.criterion, training.trainer.criterion.compute_loss
    monkeypatch.setattr(criterion, "compute_loss", lambda *a, **k: tuple(x + math.inf for x in compute(*a, **k)))
    monkeypatch.setattr(divergence, "repeat_update", None)
    assert training.diverge() == "diverged at update 1: loss not finite"


def test_only_the_floor_of_the_loss_scale_is_a_divergence(data, tmp_path):
    """Overflows are skipped while the loss scale falls; an overflow at its floor is a divergence."""
    training = Training(data, tmp_path, *TINY, "--fp16", "--fp16-init-scale", "32", "--min-loss-scale", "1")
    optimizer = training.trainer.optimizer
    optimizer.clip_grad_norm = lambda *_, **__: optimizer.scaler.check_overflow(math.inf)
    for _ in range(4):
        training.step()
    assert training.trainer.get_num_updates() == 0
    assert training.diverge().startswith("diverged at update 1: loss scale at its floor")


def test_weights_that_are_not_finite_replace_no_checkpoint(data, tmp_path, monkeypatch, capsys):
    """Weights that are not finite replace no checkpoint: the save finds them, and the program ends in one line."""
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
    assert ended.value.code == divergence.STATUS and (tmp_path / "checkpoint_last.pt").read_bytes() == good
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert line.endswith("error: diverged at update 3: weights not finite, first at encoder.2.ffn (forward)")


@pytest.mark.smoke
def test_two_processes_end_together_with_one_line(data, tmp_path):
    flags = ("--max-update", "4", "--max-tokens", "20000", "--batch-size", "200", "--save-dir", tmp_path)
    ranks.train(2, tmp_path / "log", data, *TRAIN_FLAGS, *WILD, *flags, check=False, timeout=100)
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log and log.count("error: diverged at update ") == 1


def test_norms_of_several_gpus_that_are_not_finite_are_no_inconsistency(monkeypatch):
    """Gradient norms of several GPUs that are not finite are a divergence, not fairseq's fatal inconsistency."""
    trainer = DeepTrainer.__new__(DeepTrainer)
    trainer.cfg = SimpleNamespace(common=SimpleNamespace(amp=False))
    trainer.probes, trainer._num_updates = None, 6
    monkeypatch.setattr(papers, "clip_apart", lambda trainer: None)
    monkeypatch.setattr(Trainer, "clip_grad_norm", lambda trainer, limit: torch.tensor(math.nan))
    with pytest.raises(divergence.Diverged) as raised:
        trainer.clip_grad_norm(1.0)
    assert (raised.value.update, raised.value.kind) == (7, divergence.GRADIENTS)
