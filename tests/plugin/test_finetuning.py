"""Tests of fine-tuning a masked language model as a classifier: sentence_prediction by fairseq-train.

Training starts from nothing, from our own checkpoint, or from one of fairseq's roberta.
"""

import argparse
import logging
import re

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.roberta import RobertaModel

from deepnet_fairseq.plugin.building import blank_task, build
from deepnet_fairseq.tools.export.transformer import NO_TRAINING

from ..support import lives, ranks, sentiment
from ..support.helpers import TOLERANCE, VOCAB
from ..support.sentiment import CLASSES, HEAD, RUN, some_data  # noqa: F401  a fixture

BEST = ("--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric")
OF_ROBERTA = {"encoder_learned_pos": True, "layernorm_embedding": True, "no_scale_embedding": True}


def stock_roberta(**fields):
    torch.manual_seed(0)
    names = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    sizes = dict(zip(names, (2, 16, 32, 2), strict=True))
    cfg = argparse.Namespace(arch="roberta", max_positions=32, dropout=0.0, attention_dropout=0.0, **sizes, **fields)
    ARCH_CONFIG_REGISTRY["roberta"](cfg)
    return RobertaModel.build_model(cfg, blank_task(fields.get("vocab", VOCAB))), cfg


def masked_lm(vocab=VOCAB, **fields):
    sizes = {"encoder_layers": 2, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 2}
    return build("deepnet_masked_lm", vocab, **(sizes | {"max_positions": 32, "dropout": 0.0} | fields))


def sentences():
    tokens = torch.randint(4, VOCAB, (5, 9), generator=torch.Generator().manual_seed(0))
    tokens[:, 0], tokens[1, 6:] = 0, 1
    return tokens


@pytest.mark.parametrize("method", ["post_ln", "pre_ln"])
def test_the_head_is_robertas(method):
    """The classification head equals roberta's in training mode, where fairseq's encoder takes no fast path."""
    peer, _ = stock_roberta(encoder_normalize_before=method == "pre_ln")
    model = masked_lm(method=method, **OF_ROBERTA)
    asked = {"features_only": True, "classification_head_name": "narrow"}
    for each in (peer, model):
        each.register_classification_head("narrow", num_classes=2, inner_dim=8)
    model.load_state_dict(peer.state_dict())
    (expected, _), (given, _) = (each(sentences(), **asked) for each in (peer, model))
    assert given.shape == (5, 2)
    torch.testing.assert_close(given, expected, rtol=0, atol=TOLERANCE[torch.float32])


def test_names_of_robertas_first_releases():
    """Names of roberta's first releases load: decoder. for encoder., emb_layer_norm, and one in_proj matrix."""
    peer, _ = stock_roberta()
    state, old = peer.state_dict(), {}
    for name, value in state.items():
        if ".self_attn.q_proj." in name:
            parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            name, value = name.replace("q_proj.", "in_proj_"), torch.cat(parts)
        elif re.search(r"\.self_attn\.[kv]_proj\.", name):
            continue
        old[re.sub("^encoder", "decoder", name).replace("layernorm_embedding", "emb_layer_norm")] = value
    model = masked_lm(method="post_ln", **OF_ROBERTA)
    model.load_state_dict(old)
    expected = peer.train()(sentences())[0]
    torch.testing.assert_close(model(sentences())[0], expected, rtol=0, atol=TOLERANCE[torch.float32])


def test_embeddings_that_are_scaled_are_warned_of(caplog):
    peer, _ = stock_roberta()
    logging.getLogger("deepnet_fairseq").propagate = True
    masked_lm(method="post_ln", **OF_ROBERTA | {"no_scale_embedding": False}).load_state_dict(peer.state_dict())
    assert "--no-scale-embedding" in caplog.text


@pytest.fixture(scope="module", name="pretrained")
def a_pretrained(data, tmp_path_factory):
    """Provide checkpoint_last.pt of deepnet_masked_lm after 12 updates."""
    folder = tmp_path_factory.mktemp("pretrained")
    flags = ("--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", "32", "--max-update", "12")
    flags += ("--sample-break-mode", "eos", "--save-dir", folder)
    rows = ranks.train(1, folder / "log", data / "text", *RUN, *flags)
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module", name="tuned")
def a_tuned(data, pretrained, tmp_path_factory):
    """Provide the folder and log of an undisturbed fine-tuning."""
    folder = tmp_path_factory.mktemp("tuned")
    assert lives.live(folder / "log", *tuning(data, pretrained, folder)) == 0
    return folder


def tuning(data, pretrained, folder):
    words = (data / "classes", *RUN, *CLASSES, *BEST, "--num-classes", "2", "--save-interval-updates", "5")
    return (*words, "--finetune-from-model", pretrained, "--max-update", "30", "--save-dir", folder)


def test_accuracy_is_reported_and_chooses_the_best(tuned):
    rows = {updates: row for (kind, updates), row in lives.rows(tuned / "log").items() if kind == "valid"}
    accuracy = {updates: float(row["valid_accuracy"]) for updates, row in rows.items()}
    best = torch.load(tuned / "checkpoint_best.pt")
    assert best["extra_state"]["best"] == max(accuracy.values()) > 85
    assert accuracy[best["optimizer_history"][-1]["num_updates"]] == max(accuracy.values())


def test_a_killed_fine_tuning_goes_on_exactly(data, pretrained, tuned, tmp_path):
    """A killed fine-tuning resumes exactly with the same command, from its own checkpoint."""
    log, words = tmp_path / "log", tuning(data, pretrained, tmp_path / "save")
    assert lives.live(log, *words, at=("update", 18)) < 0
    assert lives.live(log, *words) == 0
    assert lives.rows(log) == lives.rows(tuned / "log")


def test_heads_that_the_task_has_not(tuned, caplog):
    """Heads that the task lacks are dropped with a warning, or kept with load_checkpoint_heads, as in roberta."""
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


def test_two_processes_leave_the_masked_head_out(data, pretrained, tmp_path):
    """Fine-tuning on two processes has the losses of one, although lm_head gets no gradient."""
    words = (data / "classes", *RUN, *CLASSES, "--num-classes", "2", "--finetune-from-model", pretrained, "--no-save")
    words += ("--dropout", "0", "--max-update", "4", "--disable-validation", "--max-tokens", "128")
    two, one = (
        [row["loss"] for row in ranks.train(world, tmp_path / f"log{world}", *words, "--update-freq", 3 - world)]
        for world in (2, 1)
    )
    assert len(one) == 4 and one == two


def test_a_checkpoint_of_roberta_is_fine_tuned(data, tmp_path):
    """A checkpoint of fairseq's roberta is fine-tuned: --restore-file starts from its weights."""
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
