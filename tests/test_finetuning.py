"""A masked language model, ours or with fairseq's roberta's weights, as a classifier: gradients, learning, loading."""

import argparse
import logging
import re

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.roberta import RobertaModel

from deepnet_fairseq.building import blank_task, build
from deepnet_fairseq.methods import METHODS

from .support.helpers import TOLERANCE, VOCAB
from .support.sentiment import HEAD, batches, configured, some_data  # noqa: F401  a fixture

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


@pytest.fixture(scope="module", name="classes")
def a_task(data):
    """Task, cfg and the batches of both splits."""
    task, cfg = configured(data, "--dropout", "0")
    return task, cfg, list(batches(task, "train")), list(batches(task, "valid"))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_learns_the_classes(method, classes):
    """Which half of the words a sentence has more of, from nothing, in 30 updates: chance is 50%."""
    task, cfg, train, valid = classes
    cfg.model.method, cfg.model.admin_profile = method, "auto" if method == "admin" else None
    torch.manual_seed(0)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model.train().set_num_updates(1000)
    for step in range(30):
        loss, size, _log = criterion(model, train[step % len(train)])
        optimizer.zero_grad()
        (loss / size).backward()
        gradients = {name: each.grad for name, each in model.named_parameters() if each.requires_grad}
        assert {name.split(".")[0] for name, gradient in gradients.items() if gradient is None} == {"lm_head"}
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients.values())
        optimizer.step()
    assert gradients["encoder.layers.0.fc1.weight"].any()
    assert gradients[f"classification_heads.{HEAD}.dense.weight"].any()
    model.eval()
    logs = [criterion(model, batch)[2] for batch in valid]
    assert sum(log["ncorrect"] for log in logs) >= 0.8 * sum(log["nsentences"] for log in logs)


def test_targets_that_are_numbers(data):
    """--regression-target, a sentence's share of good words: the squared error falls far below their variance."""
    task, cfg = configured(data, "--dropout", "0", "--regression-target", "--num-classes", "1")
    torch.manual_seed(0)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    optimizer, train = torch.optim.Adam(model.parameters(), lr=1e-2), list(batches(task, "train"))
    for step in range(50):
        loss, size, _log = criterion(model, train[step % len(train)])
        optimizer.zero_grad()
        (loss / size).backward()
        optimizer.step()
    shares = [float(line) for line in (data / "classes" / "label" / "valid.label").read_text().split()]
    mean = sum(shares) / len(shares)
    variance = sum((share - mean) ** 2 for share in shares) / len(shares)
    logs = [criterion(model.eval(), batch)[2] for batch in batches(task, "valid")]
    assert sum(float(log["loss"]) for log in logs) / len(shares) < 0.5 * variance
    assert not any("ncorrect" in log for log in logs)


@pytest.mark.parametrize("method", ["post_ln", "pre_ln"])
def test_the_head_is_robertas(method):
    """In training mode: fairseq's encoder has a fast path of its own in evaluation."""
    peer, _ = stock_roberta(encoder_normalize_before=method == "pre_ln")
    model = masked_lm(method=method, **OF_ROBERTA)
    for each in (peer, model):
        each.register_classification_head("topic", num_classes=3)
        each.register_classification_head("narrow", num_classes=2, inner_dim=8)
    model.load_state_dict(peer.state_dict())
    for name, classes in (("topic", 3), ("narrow", 2)):
        expected, _ = peer(sentences(), features_only=True, classification_head_name=name)
        given, _ = model(sentences(), features_only=True, classification_head_name=name)
        assert given.shape == (5, classes)
        torch.testing.assert_close(given, expected, rtol=0, atol=TOLERANCE[torch.float32])


def test_names_of_robertas_first_releases():
    """decoder. for encoder., emb_layer_norm, and queries, keys and values in one matrix."""
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
