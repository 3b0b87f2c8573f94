"""Tests of fine-tuning a masked language model as a classifier: sentence_prediction by fairseq-train.

Training starts from our own checkpoint, or from one of fairseq's roberta.
"""

from __future__ import annotations

import argparse
import logging
import re
import signal
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.roberta import RobertaModel

from deepnet_fairseq.plugin.building import blank_task, build
from deepnet_fairseq.tools.export.transformer import NO_TRAINING

from ..support import lives, ranks, sentiment
from ..support.helpers import FIRST, PAD, TOLERANCE, VOCAB
from ..support.sentiment import CLASSES, HEAD, RUN, make_sentiment_data  # noqa: F401  a fixture

BOS = 0
LENGTHS = {"max_positions": 32}
SIZES = {"encoder_layers": 2, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 2}
BEST = ("--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric")
# fields of our masked language model with which it computes what fairseq's roberta does
LIKE_ROBERTA = {"encoder_learned_pos": True, "layernorm_embedding": True, "no_scale_embedding": True}
FLAGS_LIKE_ROBERTA = ("--encoder-learned-pos", "--layernorm-embedding", "--no-scale-embedding")
OTHER_HEAD = {"classification_head_name": "other"}  # setting of a task whose head has not the default name HEAD


def roberta_config(**fields) -> argparse.Namespace:
    """Return the config of a small roberta of fairseq, without dropout."""
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    cfg = argparse.Namespace(arch="roberta", **LENGTHS, **SIZES, **no_dropout, **fields)
    ARCH_CONFIG_REGISTRY["roberta"](cfg)
    return cfg


def stock_roberta(cfg: argparse.Namespace, vocab: int = VOCAB) -> RobertaModel:
    torch.manual_seed(0)
    return RobertaModel.build_model(cfg, blank_task(vocab))


def masked_lm(**fields):
    """Build our masked language model in the sizes of roberta_config."""
    return build("deepnet_masked_lm", VOCAB, **(SIZES | LENGTHS | {"dropout": 0.0} | fields))


def padded_sentences() -> torch.Tensor:
    """Draw tokens (5, 9) that begin with bos; the second row is padded."""
    tokens = torch.randint(FIRST, VOCAB, (5, 9), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = BOS
    tokens[1, 6:] = PAD
    return tokens


@pytest.mark.parametrize("method", ["post_ln", "pre_ln"])
def test_the_classification_head_is_robertas(method):
    """Scores are compared in training mode, where fairseq's encoder takes no fast path; there is no dropout."""
    peer = stock_roberta(roberta_config(encoder_normalize_before=method == "pre_ln"))
    model = masked_lm(method=method, **LIKE_ROBERTA)
    for each in (peer, model):
        each.register_classification_head("narrow", num_classes=2, inner_dim=8)
    model.load_state_dict(peer.state_dict())

    scores, _ = model(padded_sentences(), features_only=True, classification_head_name="narrow")

    expected, _ = peer(padded_sentences(), features_only=True, classification_head_name="narrow")
    assert scores.shape == (5, 2)  # sentences, classes
    torch.testing.assert_close(scores, expected, rtol=0, atol=TOLERANCE[torch.float32])


def with_names_of_first_releases(state: dict) -> dict:
    """Rename weights as in roberta's first releases: decoder., emb_layer_norm, and one in_proj matrix.

    in_proj holds the weights of queries, keys and values one below the other.
    """
    old = {}
    for name, value in state.items():
        if re.search(r"\.self_attn\.[kv]_proj\.", name):
            continue  # a part of in_proj
        if ".self_attn.q_proj." in name:
            value = torch.cat([state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
            name = name.replace("q_proj.", "in_proj_")
        name = re.sub("^encoder", "decoder", name).replace("layernorm_embedding", "emb_layer_norm")
        old[name] = value
    return old


def test_weights_with_the_names_of_robertas_first_releases_load():
    peer = stock_roberta(roberta_config())
    model = masked_lm(method="post_ln", **LIKE_ROBERTA)

    model.load_state_dict(with_names_of_first_releases(peer.state_dict()))

    scores, _ = model(padded_sentences())
    expected, _ = peer.train()(padded_sentences())
    torch.testing.assert_close(scores, expected, rtol=0, atol=TOLERANCE[torch.float32])


def test_a_model_that_scales_robertas_embeddings_is_warned_of(caplog):
    peer = stock_roberta(roberta_config())
    logging.getLogger("deepnet_fairseq").propagate = True  # to caplog
    model = masked_lm(method="post_ln", **LIKE_ROBERTA | {"no_scale_embedding": False})

    model.load_state_dict(peer.state_dict())

    assert "--no-scale-embedding" in caplog.text


@pytest.fixture(scope="module")
def pretrained(data, tmp_path_factory) -> Path:
    """Provide checkpoint_last.pt of deepnet_masked_lm after 12 updates, which have lowered its loss."""
    folder = tmp_path_factory.mktemp("pretrained")
    task = ("--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", "32")
    flags = (*task, "--sample-break-mode", "eos", "--max-update", "12", "--save-dir", folder)
    rows = ranks.train(1, folder / "log", data / "text", *RUN, *flags)
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])
    return folder / "checkpoint_last.pt"


def fine_tuning(data, pretrained, folder) -> tuple:
    """Return the arguments of fairseq-train for 30 updates from the pretrained model."""
    task = (data / "classes", *RUN, *CLASSES, *BEST, "--num-classes", "2", "--save-interval-updates", "5")
    return (*task, "--finetune-from-model", pretrained, "--max-update", "30", "--save-dir", folder)


@pytest.fixture(scope="module")
def fine_tuned(data, pretrained, tmp_path_factory) -> Path:
    """Provide the folder of an undisturbed fine-tuning, with its checkpoints and its output in `log`."""
    folder = tmp_path_factory.mktemp("tuned")
    status = lives.status_of_training(folder / "log", *fine_tuning(data, pretrained, folder))
    assert status == 0
    return folder


def test_accuracy_is_reported_and_chooses_the_best_checkpoint(fine_tuned):
    accuracy = {}  # by number of updates, in per cent
    for (kind, updates), row in lives.logged_numbers(fine_tuned / "log").items():
        if kind == "valid":
            accuracy[updates] = float(row["valid_accuracy"])

    best = torch.load(fine_tuned / "checkpoint_best.pt")

    highest = max(accuracy.values())
    updates_of_best = best["optimizer_history"][-1]["num_updates"]
    assert highest > 85  # of two classes, so that chance is about 50
    assert best["extra_state"]["best"] == highest
    assert accuracy[updates_of_best] == highest


def test_a_killed_fine_tuning_resumes_exactly_by_the_same_command(data, pretrained, fine_tuned, tmp_path):
    """The second run goes on from the fine-tuning's own checkpoint, of update 15, not from the pretrained one."""
    log = tmp_path / "log"
    command = fine_tuning(data, pretrained, tmp_path / "save")

    status_of_killed = lives.status_of_training(log, *command, at=("update", 18))
    status_of_resumed = lives.status_of_training(log, *command)

    assert status_of_killed == -signal.SIGKILL
    assert status_of_resumed == 0
    assert lives.logged_numbers(log) == lives.logged_numbers(fine_tuned / "log")


def load_classifier(folder, **overrides):
    """Load checkpoint_last.pt as fairseq's programs do; overrides: settings in the place of the checkpoint's."""
    paths = [str(folder / "checkpoint_last.pt")]
    models, _cfg, _task = checkpoint_utils.load_model_ensemble_and_task(paths, overrides)
    return models[0]


def test_a_head_that_the_task_lacks_is_dropped_with_a_warning(fine_tuned, caplog):
    logging.getLogger("deepnet_fairseq").propagate = True  # to caplog

    model = load_classifier(fine_tuned, **OTHER_HEAD)

    assert set(model.classification_heads) == {"other"}
    assert HEAD in caplog.text


def test_a_head_that_the_task_lacks_is_kept_with_load_checkpoint_heads(fine_tuned):
    """--load-checkpoint-heads is a flag of fairseq's roberta."""
    saved = torch.load(fine_tuned / "checkpoint_last.pt")["model"][f"classification_heads.{HEAD}.out_proj.weight"]

    model = load_classifier(fine_tuned, **OTHER_HEAD, load_checkpoint_heads=True)

    assert set(model.classification_heads) == {"other", HEAD}
    assert torch.equal(model.classification_heads[HEAD].out_proj.weight, saved)


def test_a_head_for_another_number_of_classes_is_made_anew(fine_tuned):
    model = load_classifier(fine_tuned, num_classes=5)

    assert model.classification_heads[HEAD].out_proj.out_features == 5


@pytest.mark.smoke
def test_two_processes_fine_tune_as_one(data, pretrained, tmp_path):
    """The losses are those of one process.

    lm_head gets no gradient, although DistributedDataParallel expects one for every weight.
    """
    task = (data / "classes", *RUN, *CLASSES, "--num-classes", "2", "--finetune-from-model", pretrained, "--no-save")
    flags = (*task, "--dropout", "0", "--max-update", "4", "--disable-validation", "--max-tokens", "128")

    # rows of the log, one an update
    two = ranks.train(2, tmp_path / "log2", *flags, "--update-freq", 1)
    one = ranks.train(1, tmp_path / "log1", *flags, "--update-freq", 2)

    assert len(one) == 4
    assert [row["loss"] for row in two] == [row["loss"] for row in one]


def test_a_checkpoint_of_roberta_is_fine_tuned(data, tmp_path):
    """--restore-file starts from roberta's weights, and an update with learning rate 0 leaves them unchanged."""
    cfg = roberta_config()
    cfg.data = str(data / "text")
    cfg.task = "masked_lm"
    mask = 1  # the task adds <mask> to the dictionary
    peer = stock_roberta(cfg, vocab=len(sentiment.dictionary()) + mask)
    checkpoint = tmp_path / "roberta.pt"
    torch.save({"args": cfg, "cfg": None, "model": peer.state_dict()} | NO_TRAINING, checkpoint)
    task = (data / "classes", *RUN, *CLASSES, "--num-classes", "2")
    model = ("--method", "post_ln", *FLAGS_LIKE_ROBERTA)
    start = ("--restore-file", checkpoint, "--reset-optimizer", "--reset-dataloader", "--reset-meters")
    one_update = ("--lr", "0", "--max-update", "1", "--disable-validation", "--save-dir", tmp_path / "save")

    ranks.train(1, tmp_path / "log", *task, *model, *start, *one_update)

    state = torch.load(tmp_path / "save" / "checkpoint_last.pt")["model"]
    expected = {name: value for name, value in peer.state_dict().items() if "version" not in name}
    assert expected
    for name, value in expected.items():
        own_name = name.replace("sentence_encoder.", "").replace("encoder.lm_head", "lm_head")
        assert torch.equal(state[own_name], value), name
