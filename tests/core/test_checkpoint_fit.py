"""Tests that a checkpoint of another model is refused with the flag that differs."""

import logging
from functools import lru_cache

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq import register
from deepnet_fairseq.core.archs import LM, MASKED_LM
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.building import build

from ..support import single_stacks
from ..support.helpers import SMALL, VOCAB, batch, logits, small
from ..support.prepared_again import BEGINNING, save_start


def refused(state, model, *words):
    """Check that a state is refused in one line with these words, and that the model keeps its weights."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError) as caught:
        model.load_state_dict(state)
    assert "\n" not in str(caught.value) and all(word in str(caught.value) for word in words), str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


OTHERS = [  # fields of the checkpoint's model, words of the refusal
    ({"encoder_layers": 3}, ("3 encoder layers", "has 2", "--encoder-layers 3")),
    ({"decoder_layers": 5}, ("5 decoder layers", "--decoder-layers 5")),
    ({"encoder_embed_dim": 32}, ("--encoder-embed-dim 32",)),
    ({"decoder_ffn_embed_dim": 48}, ("--decoder-ffn-embed-dim 48",)),
    ({"decoder_learned_pos": True}, ("decoder.embed_positions", "flags")),
]


@pytest.mark.parametrize(("fields", "words"), OTHERS)
def test_a_model_of_another_shape_is_refused(fields, words):
    refused(small(2, **fields).state_dict(), small(2), *words)


def test_another_vocabulary_is_refused():
    other = build(vocab=VOCAB + 8, encoder_layers=2, decoder_layers=2, **SMALL)
    refused(other.state_dict(), small(2), f"holds {VOCAB + 8} encoder embeddings", "data of its own run")


@lru_cache
def of_method(name):
    """Build a model that other methods' checkpoints are loaded into."""
    return causal(4, method=name)


@pytest.mark.parametrize("saved", sorted(METHODS))
def test_other_methods(saved):
    """A checkpoint loads into another method only if the function is the same; every other pair is refused."""
    tokens = single_stacks.batch()
    source = single_stacks.awake(LM, 4, method=saved)
    for built in METHODS:
        model = of_method(built)
        try:
            model.load_state_dict(source.state_dict())
        except UserError as error:
            assert saved != built and ("--method" in str(error) or "other depths or options" in str(error))
        else:
            assert torch.equal(single_stacks.scores(model, tokens), single_stacks.scores(source, tokens)), built


def test_constants_of_another_depth():
    """Layers cut from a deeper model are refused, because alpha is that of the depth they were trained at."""
    state = small(2).state_dict() | {"encoder.alpha": torch.tensor(3.415742)}
    refused(state, small(2), "encoder.alpha", "3.41574", "other depths")


def constants_of(model):
    """Return a model's numbers that follow from depth and options, as its state dict holds them."""
    state = model.state_dict()
    return {
        f"{name}.{key}": state[f"{name}.{key}"] for name, stack in model.stacks().items() for key in stack.constants
    }


def listed(constants):
    """Return constants as numbers, which can be compared."""
    return {name: value.tolist() for name, value in constants.items()}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_part_of_a_model_of_another_depth(method):
    """An encoder alone from 6-6 into 6-2: other constants are refused by name, or with strict=False not taken over.

    What the model then saves loads again, and computes the same bits.
    """
    source, model = (
        small(method=method, encoder_layers=6, decoder_layers=6),
        small(method=method, encoder_layers=6, decoder_layers=2),
    )
    own = constants_of(model)
    other = {name: value for name, value in constants_of(source).items() if name.startswith("encoder.")}
    state = {name: value for name, value in source.state_dict().items() if name.startswith("encoder.")}
    alone = {name.removeprefix("encoder."): value for name, value in state.items()}

    different = [name for name, value in other.items() if not torch.equal(value, own[name])]
    if different:
        with pytest.raises(UserError, match=different[0]):
            model.encoder.load_state_dict(alone)
    else:
        model.encoder.load_state_dict(alone)
    for load in (
        lambda: model.encoder.load_state_dict(alone, strict=False),
        lambda: model.load_state_dict(state, strict=False),
        lambda: torch.nn.Module.load_state_dict(model, state, strict=False),
        lambda: [value.copy_(torch.full_like(value, 9.0)) for value in constants_of(model).values()],
    ):
        load()
        assert listed(constants_of(model)) == listed(own)

    again = small(method=method, encoder_layers=6, decoder_layers=2)
    again.load_state_dict(model.state_dict())
    src, prev = batch()
    assert torch.equal(logits(again, src, prev), logits(model, src, prev))
    assert torch.equal(again.encoder.layers[5].fc1.weight, source.encoder.layers[5].fc1.weight)


def test_a_constant_of_another_method_is_warned_of(caplog):
    """A part of a DeepNorm model in a Post-LN one computes something else, which a line says."""
    logging.getLogger("deepnet_fairseq").propagate = True
    caplog.set_level(logging.WARNING)
    small(2, method="post_ln").load_state_dict(small(2).state_dict(), strict=False)
    assert "encoder.alpha" in caplog.text and "decoder.alpha" in caplog.text
    with pytest.raises(RuntimeError, match="alpha"):
        small(2, method="post_ln").encoder.load_state_dict(small(2).encoder.state_dict())
    with pytest.raises(RuntimeError, match="alpha"):
        small(2).encoder.load_state_dict(small(2, method="post_ln").encoder.state_dict())


def test_a_part_of_a_file_names_the_file(data, tmp_path):
    """fairseq's load_pretrained_component_from_model, and what fairseq-generate loads by, name the file."""
    register()
    flags = ("--arch", "deepnet_transformer_tiny", "--share-all-embeddings", "--encoder-layers", "6")
    save_start(tmp_path / "deep.pt", data, *flags, "--decoder-layers", "6")
    trainer = save_start(tmp_path / "own.pt", data, *flags, "--decoder-layers", "2")
    model, path = trainer.get_model(), str(tmp_path / "deep.pt")
    load = checkpoint_utils.load_pretrained_component_from_model
    with pytest.raises(UserError, match=f"^{path}: encoder.alpha"):
        load(model.encoder, path)
    with pytest.raises(UserError, match=f"^{path}: decoder.alpha"):
        load(model.decoder, path)
    load(model.encoder, path, strict=False)
    trainer.save_checkpoint(str(tmp_path / "started.pt"), dict(BEGINNING))
    [started], _, _ = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "started.pt")])
    assert torch.equal(started.encoder.layers[5].fc1.weight, torch.load(path)["model"]["encoder.layers.5.fc1.weight"])

    save_start(tmp_path / "plain.pt", data, *flags, "--decoder-layers", "6", "--method", "post_ln")
    plain = build(vocab=VOCAB, method="post_ln", encoder_layers=6, decoder_layers=2, **SMALL)
    with pytest.raises(UserError, match=f"^{tmp_path}/plain.pt: .* decoder"):
        load(plain.decoder, str(tmp_path / "plain.pt"))

    state = torch.load(path)
    state["model"]["encoder.alpha"].fill_(3.0)
    torch.save(state, path)
    with pytest.raises(UserError, match=f"^{path}: encoder.alpha"):
        checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "own.pt"), path])


def test_constants_survive_half_precision():
    model = small(18)
    model.load_state_dict({name: tensor.half() for name, tensor in small(18).state_dict().items()})


def causal(layers=2, **fields):
    return single_stacks.small(LM, layers, **fields)


def masked(layers=2, **fields):
    return single_stacks.small(MASKED_LM, layers, **fields)


CHECKPOINTS = {
    "of a masked model": (masked, causal, "another kind of model", "--arch"),
    "learned positions": (lambda: causal(decoder_learned_pos=True), causal, "give --decoder-learned-pos"),
    "computed positions": (masked, lambda: masked(encoder_learned_pos=True), "drop --encoder-learned-pos"),
    "a LayerNorm more": (lambda: masked(layernorm_embedding=True), masked, "give --layernorm-embedding"),
    "fewer positions": (
        lambda: masked(encoder_learned_pos=True, max_positions=64),
        lambda: masked(encoder_learned_pos=True, max_positions=32),
        "64 learned positions, this model 32; give --max-positions 64",
    ),
    "two matrices": (lambda: masked(untie_weights_roberta=True), masked, "give --untie-weights-roberta"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpoints_of_other_language_models(kind):
    saved, built, *named = CHECKPOINTS[kind]
    refused(saved().state_dict(), built(), *named)


def test_overrides_that_prune_layers_are_refused(trained):
    """Overrides that prune layers are refused; fairseq would silently ignore them for our configs."""
    register()
    with pytest.raises(UserError, match="encoder_layers_to_keep: .* export the model"):
        checkpoint_utils.load_checkpoint_to_cpu(str(trained / "checkpoint_last.pt"), {"encoder_layers_to_keep": "0,2"})
