"""sentence_prediction by fairseq-train, from a checkpoint of our own or of fairseq's roberta."""

import logging

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq.export.transformer import NO_TRAINING

from .support import lives, ranks, sentiment
from .support.sentiment import CLASSES, HEAD, RUN, batches, some_data  # noqa: F401  a fixture
from .test_finetuning import stock_roberta

BEST = ("--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric")


@pytest.fixture(scope="module", name="pretrained")
def a_pretrained(data, tmp_path_factory):
    """checkpoint_last.pt of deepnet_masked_lm after 12 updates."""
    folder = tmp_path_factory.mktemp("pretrained")
    flags = ("--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", "32", "--max-update", "12")
    flags += ("--sample-break-mode", "eos", "--save-dir", folder)
    rows = ranks.train(1, folder / "log", data / "text", *RUN, *flags)
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module", name="tuned")
def a_tuned(data, pretrained, tmp_path_factory):
    """The folder, with log, of a fine-tuning without a break."""
    folder = tmp_path_factory.mktemp("tuned")
    assert lives.live(folder / "log", *tuning(data, pretrained, folder)) == 0
    return folder


def tuning(data, pretrained, folder):
    words = (data / "classes", *RUN, *CLASSES, *BEST, "--num-classes", "2", "--save-interval-updates", "5")
    return (*words, "--finetune-from-model", pretrained, "--max-update", "30", "--save-dir", folder)


def test_accuracy_is_reported_and_chooses_the_best(tuned):
    rows = {updates: row for (kind, updates), row in lives.rows(tuned / "log").items() if kind == "valid"}
    accuracy = {updates: float(row["valid_accuracy"]) for updates, row in rows.items()}
    assert max(accuracy.values()) > 85
    best = torch.load(tuned / "checkpoint_best.pt")
    assert best["extra_state"]["best"] == max(accuracy.values())
    assert accuracy[best["optimizer_history"][-1]["num_updates"]] == max(accuracy.values())
    assert best["cfg"]["task"]["num_classes"] == 2


def test_a_killed_fine_tuning_goes_on_exactly(data, pretrained, tuned, tmp_path):
    """By the same command: from its own checkpoint, not from the pretrained model again."""
    log, words = tmp_path / "log", tuning(data, pretrained, tmp_path / "save")
    assert lives.live(log, *words, at=("update", 18)) < 0
    assert lives.live(log, *words) == 0
    assert lives.rows(log) == lives.rows(tuned / "log")


def test_saved_is_loaded_with_the_head(data, tuned):
    """As fairseq-validate and Python load it; its accuracy is the one that was logged."""
    [model], cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(tuned / "checkpoint_best.pt")])
    criterion = task.build_criterion(cfg.criterion).eval()
    model.eval()
    logs = [criterion(model, batch)[2] for batch in batches(task, "valid")]
    accuracy = 100 * float(sum(log["ncorrect"] for log in logs)) / sum(log["nsentences"] for log in logs)
    assert accuracy == pytest.approx(torch.load(tuned / "checkpoint_best.pt")["extra_state"]["best"], abs=0.06)


def test_heads_that_the_task_has_not(tuned, caplog):
    """Left out with a warning, or taken under load_checkpoint_heads, as fairseq's roberta does."""
    logging.getLogger("deepnet_fairseq").propagate = True
    path, other = str(tuned / "checkpoint_last.pt"), {"classification_head_name": "other"}
    saved = torch.load(path)["model"][f"classification_heads.{HEAD}.out_proj.weight"]
    [model], _, _ = checkpoint_utils.load_model_ensemble_and_task([path], other)
    assert set(model.classification_heads) == {"other"}
    assert HEAD in caplog.text and "2 classes" in caplog.text
    [model], _, _ = checkpoint_utils.load_model_ensemble_and_task([path], other | {"load_checkpoint_heads": True})
    assert set(model.classification_heads) == {"other", HEAD}
    assert torch.equal(model.classification_heads[HEAD].out_proj.weight, saved)
    [model], _, _ = checkpoint_utils.load_model_ensemble_and_task([path], {"num_classes": 5})
    assert model.classification_heads[HEAD].out_proj.out_features == 5


@pytest.fixture(scope="module", name="alone")
def one_process(data, pretrained, tmp_path_factory):
    """Losses of what two processes are compared with."""
    folder = tmp_path_factory.mktemp("alone")
    return losses(1, folder, *few_updates(data, pretrained), "--update-freq", "2")


def few_updates(data, pretrained):
    words = (data / "classes", *RUN, *CLASSES, "--num-classes", "2", "--finetune-from-model", pretrained)
    return (*words, "--dropout", "0", "--max-update", "4", "--disable-validation", "--no-save", "--max-tokens", "128")


def losses(world, folder, *words):
    return [row["loss"] for row in ranks.train(world, folder / "log", *words, "--save-dir", folder / "save")]


@pytest.mark.parametrize("backend", ["pytorch_ddp", pytest.param("fully_sharded", marks=pytest.mark.smoke)])
def test_two_processes_leave_the_masked_head_out(backend, data, pretrained, alone, tmp_path):
    """lm_head has no gradient, for which DistributedDataParallel would wait; the loss is that of one process."""
    assert len(alone) == 4
    assert losses(2, tmp_path, *few_updates(data, pretrained), "--ddp-backend", backend) == alone


def test_a_checkpoint_of_roberta_is_fine_tuned(data, tmp_path):
    """As fairseq-train writes it: --restore-file starts from its weights."""
    symbols = len(sentiment.dictionary()) + 1  # <mask>
    peer, cfg = stock_roberta(vocab=symbols)
    cfg.data, cfg.task = str(data / "text"), "masked_lm"
    path = tmp_path / "roberta.pt"
    torch.save({"args": cfg, "cfg": None, "model": peer.state_dict()} | NO_TRAINING, path)
    words = (data / "classes", *RUN, *CLASSES, "--num-classes", "2", "--method", "post_ln", "--encoder-learned-pos")
    words += ("--layernorm-embedding", "--no-scale-embedding", "--lr", "0", "--max-update", "1", "--disable-validation")
    words += ("--restore-file", path, "--reset-optimizer", "--reset-dataloader", "--reset-meters")
    ranks.train(1, tmp_path / "log", *words, "--save-dir", tmp_path / "save")
    state = torch.load(tmp_path / "save" / "checkpoint_last.pt")["model"]
    for name, value in peer.state_dict().items():
        if "version" not in name:
            own = name.replace("sentence_encoder.", "").replace("encoder.lm_head", "lm_head")
            assert torch.equal(state[own], value), name
