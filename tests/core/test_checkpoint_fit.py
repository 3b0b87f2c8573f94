"""Tests that a checkpoint of another model is refused with the flag that differs."""

import logging
import re
from contextlib import contextmanager
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
from ..support.errors import refused
from ..support.helpers import SMALL, VOCAB, batch, logits, small
from ..support.prepared_again import BEGINNING, save_start


@contextmanager
def weights_kept(model):
    """Check that the block changes no weight of a model."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    yield
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def assert_state_refused(state, model, *facts):
    """Check that a model refuses a state in one line with these facts, and keeps its weights."""
    with weights_kept(model), refused() as caught:
        model.load_state_dict(state)

    for fact in facts:
        assert re.search(rf"(?<!\w){re.escape(fact)}(?!\w)", str(caught.value)), caught.value


@pytest.mark.parametrize(
    ("fields", "facts"),  # fields of the checkpoint's model; what the refusal names
    [
        ({"encoder_layers": 3}, ("--encoder-layers 3", "2")),
        ({"decoder_layers": 5}, ("--decoder-layers 5", "2")),
        ({"encoder_embed_dim": 32}, ("--encoder-embed-dim 32",)),
        ({"decoder_ffn_embed_dim": 48}, ("--decoder-ffn-embed-dim 48",)),
        ({"decoder_learned_pos": True}, ("decoder.embed_positions",)),
    ],
)
def test_a_checkpoint_of_another_size_is_refused_with_the_flag(fields, facts):
    state = small(2, **fields).state_dict()

    assert_state_refused(state, small(2), *facts)


def test_a_checkpoint_of_another_vocabulary_is_refused_with_both_sizes():
    other = build(vocab=VOCAB + 8, encoder_layers=2, decoder_layers=2, **SMALL)

    assert_state_refused(other.state_dict(), small(2), f"{VOCAB + 8} encoder embeddings", f"{VOCAB}")


LEARNED = {"encoder_learned_pos": True}
LANGUAGE_MODELS = {  # the checkpoint's kind and fields, the model's, what the refusal names
    "of a masked model": (MASKED_LM, {}, LM, {}, ("--arch",)),
    "learned positions": (LM, {"decoder_learned_pos": True}, LM, {}, ("give --decoder-learned-pos",)),
    "computed positions": (MASKED_LM, {}, MASKED_LM, LEARNED, ("drop --encoder-learned-pos",)),
    "a LayerNorm more": (MASKED_LM, {"layernorm_embedding": True}, MASKED_LM, {}, ("give --layernorm-embedding",)),
    "more positions": (
        MASKED_LM, LEARNED | {"max_positions": 64}, MASKED_LM, LEARNED | {"max_positions": 32},
        ("32", "give --max-positions 64"),
    ),
    "two matrices": (MASKED_LM, {"untie_weights_roberta": True}, MASKED_LM, {}, ("give --untie-weights-roberta",)),
}  # fmt: skip


@pytest.mark.parametrize("case", LANGUAGE_MODELS)
def test_a_language_models_checkpoint_is_refused_with_the_flag(case):
    saved_kind, saved_fields, built_kind, built_fields, facts = LANGUAGE_MODELS[case]
    state = single_stacks.small(saved_kind, 2, **saved_fields).state_dict()

    assert_state_refused(state, single_stacks.small(built_kind, 2, **built_fields), *facts)


@lru_cache
def model_of_method(name):
    """Build a model that other methods' checkpoints are loaded into."""
    return single_stacks.small(LM, 4, method=name)


@pytest.mark.parametrize("saved", sorted(METHODS))
def test_a_checkpoint_loads_only_into_methods_of_the_same_function(saved):
    tokens = single_stacks.batch()
    source = single_stacks.noisy_model(LM, 4, method=saved)
    expected = single_stacks.scores(source, tokens)

    for built in METHODS:
        model = model_of_method(built)
        try:
            model.load_state_dict(source.state_dict())
        except UserError as error:
            assert saved != built
            assert "--method" in str(error) or "options" in str(error)
        else:
            assert torch.equal(single_stacks.scores(model, tokens), expected), built


def test_layers_cut_from_a_deeper_model_are_refused():
    """Its alpha is that of the depth that they were trained at."""
    state = small(2).state_dict()
    state["encoder.alpha"] = torch.tensor(3.415742)

    assert_state_refused(state, small(2), "encoder.alpha", "3.41574")


def constants_of(model):
    """Return a model's numbers that follow from depth and options, as its state dict holds them."""
    state = model.state_dict()
    constants = {}
    for name, stack in model.stacks().items():
        for key in stack.constants:
            constants[f"{name}.{key}"] = state[f"{name}.{key}"]
    return constants


def as_numbers(constants):
    """Return constants as numbers, which can be compared."""
    return {name: value.tolist() for name, value in constants.items()}


def encoder_entries(state):
    return {name: value for name, value in state.items() if name.startswith("encoder.")}


def without_stack(state):
    return {name.removeprefix("encoder."): value for name, value in state.items()}


@lru_cache
def deep_model(method):
    """Build a model of 6-6 layers, which tests take weights from and do not change."""
    return small(method=method, encoder_layers=6, decoder_layers=6)


def shallow_model(method):
    """Build a model of 6-2 layers, whose encoder has the deep one's shape and other constants in some methods."""
    return small(method=method, encoder_layers=6, decoder_layers=2)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_an_encoder_with_other_constants_is_refused_by_name(method):
    source = deep_model(method)
    model = shallow_model(method)
    own = constants_of(model)
    different = []
    for name, value in encoder_entries(constants_of(source)).items():
        if not torch.equal(value, own[name]):
            different.append(name)
    encoder = without_stack(encoder_entries(source.state_dict()))

    if different:
        with refused() as caught:
            model.encoder.load_state_dict(encoder)
        assert different[0] in str(caught.value)
    else:
        model.encoder.load_state_dict(encoder)


def fill_constants(model, state):
    for value in constants_of(model).values():
        value.copy_(torch.full_like(value, 9.0))


@pytest.mark.parametrize(
    "load",
    [
        lambda model, state: model.encoder.load_state_dict(without_stack(state), strict=False),
        lambda model, state: model.load_state_dict(state, strict=False),
        lambda model, state: torch.nn.Module.load_state_dict(model, state, strict=False),
        fill_constants,
    ],
    ids=["into the encoder", "into the model", "by torch", "by hand"],
)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_constants_of_another_depth_are_not_taken_over(method, load):
    source = deep_model(method)
    model = shallow_model(method)
    own = as_numbers(constants_of(model))

    load(model, encoder_entries(source.state_dict()))

    assert as_numbers(constants_of(model)) == own


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_model_with_an_encoder_of_another_depth_is_saved_and_loaded(method):
    """It takes over the encoder's weights without its constants, and computes the same bits after it is loaded."""
    source = deep_model(method)
    model = shallow_model(method)
    model.load_state_dict(encoder_entries(source.state_dict()), strict=False)

    again = shallow_model(method)
    again.load_state_dict(model.state_dict())

    src, prev = batch()
    assert torch.equal(logits(again, src, prev), logits(model, src, prev))
    assert torch.equal(again.encoder.layers[5].fc1.weight, source.encoder.layers[5].fc1.weight)


def test_constants_that_a_model_has_not_are_warned_of(caplog):
    """A part of a DeepNorm model in a Post-LN one computes something else."""
    logging.getLogger("deepnet_fairseq").propagate = True
    caplog.set_level(logging.WARNING)

    small(2, method="post_ln").load_state_dict(small(2).state_dict(), strict=False)

    assert "encoder.alpha" in caplog.text
    assert "decoder.alpha" in caplog.text


@pytest.mark.parametrize(("saved", "built"), [("deepnorm", "post_ln"), ("post_ln", "deepnorm")])
def test_an_encoder_of_a_method_with_other_constants_is_refused(saved, built):
    state = small(2, method=saved).encoder.state_dict()

    with pytest.raises(RuntimeError, match="alpha"):
        small(2, method=built).encoder.load_state_dict(state)


@pytest.fixture(scope="module")
def checkpoints(data, tmp_path_factory):
    """Provide a folder with checkpoints of 6-6 and 6-2 layers, deep.pt and own.pt, and the trainer of own.pt."""
    register()
    folder = tmp_path_factory.mktemp("checkpoints")
    flags = ("--arch", "deepnet_transformer_tiny", "--share-all-embeddings", "--encoder-layers", "6")
    save_start(folder / "deep.pt", data, *flags, "--decoder-layers", "6")
    trainer = save_start(folder / "own.pt", data, *flags, "--decoder-layers", "2")
    save_start(folder / "plain.pt", data, *flags, "--decoder-layers", "6", "--method", "post_ln")
    return folder, trainer


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_fairseqs_loader_of_a_part_names_the_file_and_the_constant(stack, checkpoints):
    folder, trainer = checkpoints
    path = str(folder / "deep.pt")
    part = trainer.get_model().stacks()[stack]

    with refused(path) as caught:
        checkpoint_utils.load_pretrained_component_from_model(part, path)

    assert f"{stack}.alpha" in str(caught.value)


def test_fairseqs_loader_of_a_part_names_the_file_of_another_depth(checkpoints):
    folder, _ = checkpoints
    path = str(folder / "plain.pt")
    model = build(vocab=VOCAB, method="post_ln", encoder_layers=6, decoder_layers=2, **SMALL)

    with refused(path) as caught:
        checkpoint_utils.load_pretrained_component_from_model(model.decoder, path)

    assert "decoder" in str(caught.value)


def test_a_part_that_was_taken_over_is_saved_for_fairseq_generate(checkpoints, tmp_path):
    folder, trainer = checkpoints
    deep = str(folder / "deep.pt")
    started = str(tmp_path / "started.pt")

    checkpoint_utils.load_pretrained_component_from_model(trainer.get_model().encoder, deep, strict=False)
    trainer.save_checkpoint(started, dict(BEGINNING))
    [model], _, _ = checkpoint_utils.load_model_ensemble_and_task([started])

    expected = torch.load(deep)["model"]["encoder.layers.5.fc1.weight"]
    assert torch.equal(model.encoder.layers[5].fc1.weight, expected)


def test_fairseq_generates_loader_names_the_file_and_the_constant(checkpoints, tmp_path):
    folder, _ = checkpoints
    wrong = str(tmp_path / "wrong.pt")
    state = torch.load(folder / "deep.pt")
    state["model"]["encoder.alpha"].fill_(3.0)
    torch.save(state, wrong)

    with refused(wrong) as caught:
        checkpoint_utils.load_model_ensemble_and_task([str(folder / "own.pt"), wrong])

    assert "encoder.alpha" in str(caught.value)


def test_constants_in_half_precision_are_near_enough():
    state = {name: tensor.half() for name, tensor in small(18).state_dict().items()}

    small(18).load_state_dict(state)


def test_overrides_that_prune_layers_are_refused(checkpoints):
    """fairseq would silently ignore them for our configs."""
    folder, _ = checkpoints

    with refused("encoder_layers_to_keep") as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(folder / "own.pt"), {"encoder_layers_to_keep": "0,2"})

    assert "export" in caught.value.way_out
