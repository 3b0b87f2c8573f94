"""Tests that a checkpoint of another model is refused with the flag that differs.

`small(layers, **fields)` builds a translator of width 16 by DeepNorm, `single_stacks.small(kind, layers, **fields)` any
kind of model. A constant of a method is a number of its formula that follows from depth and options, as DeepNorm's
alpha; state dicts hold constants, but loading one never changes those of a model.
"""

import logging
import re
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq import register
from deepnet_fairseq.core.archs import LM, MASKED_LM
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.building import build
from deepnet_fairseq.plugin.trainer import DeepTrainer

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
    """Check that a model refuses a state dict in one line that has each fact as words of its own; weights are kept."""
    with weights_kept(model), refused() as caught:
        model.load_state_dict(state)

    for fact in facts:
        assert re.search(rf"(?<!\w){re.escape(fact)}(?!\w)", str(caught.value)), caught.value


@pytest.mark.parametrize(
    ("saved_with", "facts"),  # fields of the checkpoint's model; the flag that would help, and the model's own number
    [
        ({"encoder_layers": 3}, ("--encoder-layers 3", "2")),
        ({"decoder_layers": 5}, ("--decoder-layers 5", "2")),
        ({"encoder_embed_dim": 32}, ("--encoder-embed-dim 32", "16")),
        ({"decoder_ffn_embed_dim": 48}, ("--decoder-ffn-embed-dim 48", "32")),
        ({"decoder_learned_pos": True}, ("--decoder-learned-pos",)),
    ],
)
def test_a_checkpoint_of_another_size_is_refused_with_the_flag(saved_with, facts):
    state = small(2, **saved_with).state_dict()

    assert_state_refused(state, small(2), *facts)


def test_a_checkpoint_of_another_vocabulary_is_refused_with_both_sizes():
    other = build(vocab=VOCAB + 8, encoder_layers=2, decoder_layers=2, **SMALL)

    assert_state_refused(other.state_dict(), small(2), str(VOCAB + 8), str(VOCAB))


class OtherModel(NamedTuple):
    """A language model's checkpoint that does not fit a model."""

    saved_kind: str
    saved_with: dict  # fields
    kind: str
    fields: dict
    facts: tuple[str, ...]  # what the refusal names: the flag that would help, or the model's own number


LEARNED = {"encoder_learned_pos": True}
UNFIT_LANGUAGE_MODELS = {
    "a masked model's": OtherModel(MASKED_LM, {}, LM, {}, ("--arch",)),
    "learned positions": OtherModel(LM, {"decoder_learned_pos": True}, LM, {}, ("give --decoder-learned-pos",)),
    "computed positions": OtherModel(MASKED_LM, {}, MASKED_LM, LEARNED, ("drop --encoder-learned-pos",)),
    "a LayerNorm more": OtherModel(
        MASKED_LM, {"layernorm_embedding": True}, MASKED_LM, {}, ("give --layernorm-embedding",)
    ),
    "more positions": OtherModel(
        MASKED_LM, LEARNED | {"max_positions": 64}, MASKED_LM, LEARNED | {"max_positions": 32},
        ("give --max-positions 64", "32"),
    ),
    "an output matrix of its own": OtherModel(
        MASKED_LM, {"untie_weights_roberta": True}, MASKED_LM, {}, ("give --untie-weights-roberta",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("other", UNFIT_LANGUAGE_MODELS.values(), ids=UNFIT_LANGUAGE_MODELS)
def test_a_language_models_checkpoint_is_refused_with_the_flag(other):
    state = single_stacks.small(other.saved_kind, 2, **other.saved_with).state_dict()
    model = single_stacks.small(other.kind, 2, **other.fields)

    assert_state_refused(state, model, *other.facts)


@lru_cache
def model_of_method(name):
    """Build a model that other methods' checkpoints are loaded into."""
    return single_stacks.small(LM, 4, method=name)


@pytest.mark.parametrize("saved", sorted(METHODS))
def test_a_checkpoint_loads_only_into_methods_of_the_same_function(saved):
    """Another method's model refuses the checkpoint or has the same scores, as Post-LN with a checkpoint of DS-Init."""
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


def test_layers_cut_from_a_deeper_model_are_refused_with_its_alpha():
    """DeepNorm's alpha is that of the depth that the layers were trained at, here 100L-100L."""
    alpha = 0.81 * (100**4 * 100) ** (1 / 16)
    state = small(2).state_dict()
    state["encoder.alpha"] = torch.tensor(alpha)

    assert_state_refused(state, small(2), "encoder.alpha", f"{alpha:.6g}")


def constants_of(model):
    """Return a model's constants as its state dict holds them: name -> a number, or a list of them."""
    state = model.state_dict()
    constants = {}
    for stack_name, stack in model.stacks().items():
        for constant in stack.constants:
            name = f"{stack_name}.{constant}"
            constants[name] = state[name].tolist()
    return constants


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
def test_an_encoder_is_refused_only_if_its_constants_differ(method):
    """The refusal names the first constant that differs, as DeepNorm's alpha."""
    source = deep_model(method)
    model = shallow_model(method)
    own = constants_of(model)
    different = []
    for name, value in encoder_entries(constants_of(source)).items():
        if value != own[name]:
            different.append(name)
    if method == "deepnorm":
        assert different == ["encoder.alpha"]

    with refused(different[0]) if different else nullcontext():
        model.encoder.load_state_dict(without_stack(encoder_entries(source.state_dict())))


def overwrite_constants(model, state):
    """Write numbers into the constants that the model's own state dict holds, as averaging of checkpoints may."""
    own = model.state_dict()
    for name in constants_of(model):
        own[name].fill_(9.0)


@pytest.mark.parametrize(
    "load",
    [
        lambda model, state: model.encoder.load_state_dict(without_stack(state), strict=False),
        lambda model, state: model.load_state_dict(state, strict=False),
        lambda model, state: torch.nn.Module.load_state_dict(model, state, strict=False),
        overwrite_constants,
    ],
    ids=["into the encoder", "into the model", "by torch", "by hand"],
)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_model_keeps_its_own_constants_whatever_is_loaded(method, load):
    """The encoder of a deeper model is loaded, or numbers are written into the state dict."""
    source = deep_model(method)
    model = shallow_model(method)
    own = constants_of(model)

    load(model, encoder_entries(source.state_dict()))

    assert constants_of(model) == own


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_model_with_the_encoder_of_a_deeper_one_is_saved_and_loaded(method):
    """The model has the deeper encoder's weights and its own constants. A model that loads it has the same scores."""
    source = deep_model(method)
    model = shallow_model(method)
    model.load_state_dict(encoder_entries(source.state_dict()), strict=False)

    again = shallow_model(method)
    again.load_state_dict(model.state_dict())

    src, prev = batch()
    assert torch.equal(logits(again, src, prev), logits(model, src, prev))
    assert torch.equal(again.encoder.layers[5].fc1.weight, source.encoder.layers[5].fc1.weight)


def test_constants_that_the_model_lacks_are_logged_as_a_warning(caplog):
    """A DeepNorm checkpoint computes something else in a Post-LN model, which has no alpha."""
    logging.getLogger("deepnet_fairseq").propagate = True
    caplog.set_level(logging.WARNING)

    small(2, method="post_ln").load_state_dict(small(2, method="deepnorm").state_dict(), strict=False)

    assert "encoder.alpha" in caplog.text
    assert "decoder.alpha" in caplog.text


@pytest.mark.parametrize(("saved", "built"), [("deepnorm", "post_ln"), ("post_ln", "deepnorm")])
def test_an_encoder_with_or_without_alpha_does_not_load_into_the_other(saved, built):
    state = small(2, method=saved).encoder.state_dict()

    with pytest.raises(RuntimeError, match="alpha"):
        small(2, method=built).encoder.load_state_dict(state)


class Checkpoints(NamedTuple):
    """Files of trainings that have made no update; all models have 6 encoder layers."""

    deep: Path  # DeepNorm, 6 decoder layers
    shallow: Path  # DeepNorm, 2 decoder layers
    deep_post_ln: Path  # Post-LN, 6 decoder layers
    shallow_trainer: DeepTrainer  # that of `shallow`


@pytest.fixture(scope="module")
def checkpoints(data, tmp_path_factory):
    register()
    folder = tmp_path_factory.mktemp("checkpoints")
    flags = ("--arch", "deepnet_transformer_tiny", "--share-all-embeddings", "--encoder-layers", "6")
    deep = folder / "deep.pt"
    shallow = folder / "shallow.pt"
    deep_post_ln = folder / "deep_post_ln.pt"

    save_start(deep, data, *flags, "--decoder-layers", "6")
    shallow_trainer = save_start(shallow, data, *flags, "--decoder-layers", "2")
    save_start(deep_post_ln, data, *flags, "--decoder-layers", "6", "--method", "post_ln")
    return Checkpoints(deep, shallow, deep_post_ln, shallow_trainer)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_fairseqs_loader_of_a_part_names_the_file_and_the_constant(stack, checkpoints):
    part = checkpoints.shallow_trainer.get_model().stacks()[stack]

    with refused(checkpoints.deep) as caught:
        checkpoint_utils.load_pretrained_component_from_model(part, str(checkpoints.deep))

    assert f"{stack}.alpha" in str(caught.value)


def test_fairseqs_loader_of_a_part_names_the_file_of_another_depth(checkpoints):
    model = build(vocab=VOCAB, method="post_ln", encoder_layers=6, decoder_layers=2, **SMALL)

    with refused(checkpoints.deep_post_ln) as caught:
        checkpoint_utils.load_pretrained_component_from_model(model.decoder, str(checkpoints.deep_post_ln))

    assert "decoder" in str(caught.value)


def test_a_model_that_took_over_a_part_is_saved_for_fairseq_generate(checkpoints, tmp_path):
    trainer = checkpoints.shallow_trainer
    encoder = trainer.get_model().encoder
    saved = str(tmp_path / "saved.pt")
    checkpoint_utils.load_pretrained_component_from_model(encoder, str(checkpoints.deep), strict=False)
    trainer.save_checkpoint(saved, dict(BEGINNING))

    [model], _, _ = checkpoint_utils.load_model_ensemble_and_task([saved])

    expected = torch.load(checkpoints.deep)["model"]["encoder.layers.5.fc1.weight"]
    assert torch.equal(model.encoder.layers[5].fc1.weight, expected)


def test_fairseq_generates_loader_names_the_file_and_the_constant(checkpoints, tmp_path):
    """The wrong file is the second of an ensemble."""
    wrong = str(tmp_path / "wrong.pt")
    state = torch.load(checkpoints.deep)
    state["model"]["encoder.alpha"].fill_(3.0)
    torch.save(state, wrong)

    with refused(wrong) as caught:
        checkpoint_utils.load_model_ensemble_and_task([str(checkpoints.shallow), wrong])

    assert "encoder.alpha" in str(caught.value)


def test_a_half_precision_checkpoint_with_rounded_constants_is_loaded():
    state = {name: tensor.half() for name, tensor in small(18).state_dict().items()}
    model = small(18)

    model.load_state_dict(state)

    assert state["encoder.alpha"].item() != model.encoder.constants["alpha"]
    assert torch.equal(model.encoder.layers[17].fc1.weight, state["encoder.layers.17.fc1.weight"].float())


def test_overrides_that_prune_layers_are_refused(checkpoints):
    """fairseq would silently ignore such overrides for our configs. An export by `deepnet export` can be pruned."""
    with refused("encoder_layers_to_keep") as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(checkpoints.shallow), {"encoder_layers_to_keep": "0,2"})

    assert "export" in caught.value.way_out
