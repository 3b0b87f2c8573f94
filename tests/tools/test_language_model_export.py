"""Tests of `deepnet export` for language models, as a user runs it, and of fairseq without our package."""

from __future__ import annotations

import json
import re

import ctranslate2
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import data_utils
from fairseq.sequence_generator import SequenceGenerator
from torch.nn.utils.rnn import pad_sequence

from deepnet_fairseq.plugin.building import blank_task, from_checkpoint
from deepnet_fairseq.plugin.flags import namespace
from deepnet_fairseq.plugin.models import DeepLanguageModel

from ..support.errors import assert_refused, refusal
from ..support.exports import export, reported_difference
from ..support.helpers import EOS, PAD, USER_DIR, run, teach
from ..support.lm_trainings import WORDS, make_text, train_language_model
from ..support.single_stacks import disturb, scores

EVAL = ("--cpu", "--gen-subset", "valid", "--sample-break-mode", "eos", "--tokens-per-sample", "32")
SYMBOLS = WORDS + 4  # of the dictionary, with <s>, <pad>, </s> and <unk>
ROUNDING = 1e-4  # most that two log-probabilities may differ by rounding in float32, in nats


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Provide a folder of binarised lines, in which words follow from each other."""
    return make_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def checkpoint_of_two_updates(data, tmp_path_factory):
    """Provide the checkpoint of a causal DeepNorm model after 2 updates, which has learnt nothing yet."""
    return train_language_model("causal", data, tmp_path_factory.mktemp("lm") / "save", "--max-update", 2)


@pytest.fixture(scope="module")
def taught_checkpoint(checkpoint_of_two_updates, data):
    """Provide a checkpoint whose model was trained on the text, so that it continues prompts in different ways."""
    state = torch.load(checkpoint_of_two_updates)
    model, _ = from_checkpoint(str(checkpoint_of_two_updates))
    text = padded_lines(data, "train")

    def lines_and_next_words(step):
        order = torch.randperm(len(text), generator=torch.Generator().manual_seed(step))
        tokens = text[order[:64]]
        inputs = (tokens[:, :-1],)
        targets = tokens[:, 1:]
        return inputs, targets

    teach(model, 100, lines_and_next_words)
    path = checkpoint_of_two_updates.with_name("taught.pt")
    torch.save(state | {"model": model.state_dict()}, path)
    return path


@pytest.fixture(scope="module")
def masked_checkpoint(data, tmp_path_factory):
    """Provide the checkpoint of a masked model after 2 updates."""
    return train_language_model("masked", data, tmp_path_factory.mktemp("masked") / "save", "--max-update", 2)


def padded_lines(data, split: str):
    """Return the lines of a split, each after an eos and padded on the right, (B, T)."""
    rows = []
    for line in data_utils.load_indexed_dataset(str(data / split)):
        rows.append(torch.cat([line.new_tensor([EOS]), line]).long())
    return pad_sequence(rows, batch_first=True, padding_value=PAD)


def write_with_other_flags(checkpoint, path, task: dict | None = None, predicted: int = SYMBOLS, **fields):
    """Write the checkpoint that the run would have begun with, had its flags been others; return `path`.

    The new checkpoint's parameters are drawn anew, with noise on them. task, fields: entries of the config's sections
    "task" and "model" that differ; predicted: number of symbols that the model predicts.
    """
    state = torch.load(checkpoint)
    config = state["cfg"]["model"] | fields
    state["cfg"]["model"] = config
    state["cfg"]["task"] |= task or {}

    flags = {name: value for name, value in config.items() if name != "_name"}
    model = DeepLanguageModel.build_model(namespace(config["_name"], **flags), blank_task(SYMBOLS, predicted))
    torch.save(state | {"model": disturb(model).state_dict()}, path)
    return path


def loaded_by_fairseq(path):
    """Load a checkpoint as every program of fairseq does; return model and task."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    return model.eval(), task


def assert_scores_of_checkpoint(checkpoint, model, data) -> None:
    """Check that a model gives the validation text the scores that a checkpoint's model gives it, padding aside."""
    model_of_checkpoint, _ = from_checkpoint(str(checkpoint))
    tokens = padded_lines(data, "valid")

    difference = scores(model_of_checkpoint, tokens) - scores(model, tokens)

    assert difference[tokens.ne(PAD)].abs().max() <= ROUNDING


# stock fairseq


def perplexity_by_fairseq(data, checkpoint, *flags) -> str:
    """Return the perplexity of the validation text as fairseq-eval-lm prints it."""
    output = run("fairseq-eval-lm", data, *EVAL, "--path", checkpoint, *flags).stdout
    return re.search(r"Perplexity: (\S+)", output).group(1)


def test_stock_fairseq_finds_the_same_perplexity(data, taught_checkpoint, tmp_path):
    """Stock fairseq-eval-lm without --user-dir finds the same perplexity, although transformer_lm is Pre-LN."""
    export(taught_checkpoint, "--to", "transformer", "--out", tmp_path / "plain.pt")

    ours = perplexity_by_fairseq(data, taught_checkpoint, "--user-dir", USER_DIR)
    stock = perplexity_by_fairseq(data, tmp_path / "plain.pt")

    assert stock == ours
    assert 1 < float(ours) < WORDS / 3  # the model has learnt from the text: a guess has a perplexity of WORDS


@pytest.fixture
def pre_ln_checkpoint(checkpoint_of_two_updates, tmp_path):
    """Provide the checkpoint of a causal Pre-LN, with noise on its parameters."""
    return write_with_other_flags(checkpoint_of_two_updates, tmp_path / "pre.pt", method="pre_ln")


def test_in_stock_fairseq_a_pre_ln_keeps_its_closing_layernorm_and_scores(data, pre_ln_checkpoint, tmp_path):
    export(pre_ln_checkpoint, "--to", "transformer", "--out", tmp_path / "plain.pt")

    model, _ = loaded_by_fairseq(tmp_path / "plain.pt")
    assert model.decoder.layer_norm is not None
    assert model.decoder.layers[0].normalize_before
    assert_scores_of_checkpoint(pre_ln_checkpoint, model, data)


def test_a_masked_model_becomes_a_roberta_with_the_same_scores(data, masked_checkpoint, tmp_path):
    export(masked_checkpoint, "--to", "transformer", "--out", tmp_path / "plain.pt")

    model, task = loaded_by_fairseq(tmp_path / "plain.pt")
    assert type(model).__name__ == "RobertaModel"
    assert len(task.dictionary) == SYMBOLS + 1  # and <mask>, which fairseq's task adds
    assert_scores_of_checkpoint(masked_checkpoint, model, data)


# CTranslate2

PROMPT = 4  # tokens, with the </s> that begins a line
LONGEST = 24  # tokens of a text, prompt included


def test_in_ctranslate2_a_pre_ln_has_the_same_scores(pre_ln_checkpoint, tmp_path):
    """`deepnet export` compares the scores with the checkpoint's, and prints the largest difference."""
    output = export(pre_ln_checkpoint, "--to", "ctranslate2", "--out", tmp_path / "ct2")

    assert reported_difference(output) < ROUNDING


@pytest.fixture
def ctranslate2_folder(data, taught_checkpoint, tmp_path):
    """Provide the taught model exported for CTranslate2."""
    output = export(taught_checkpoint, "--to", "ctranslate2", "--data", data, "--out", tmp_path / "ct2")
    assert reported_difference(output) < ROUNDING
    return tmp_path / "ct2"


def words_of(dictionary, tokens: list[int]) -> list[str]:
    """Return the symbols of tokens, </s> included."""
    return [dictionary[token] for token in tokens]


def continued_by_fairseq(checkpoint, prompts) -> list[list[str]]:
    """Continue prompts (B, T) greedily with fairseq; return the words of each, prompt included, without </s>."""
    model, task = loaded_by_fairseq(checkpoint)
    search = SequenceGenerator([model], task.target_dictionary, beam_size=1, max_len_b=LONGEST)
    sample = {"net_input": {"src_tokens": prompts, "src_lengths": torch.full((len(prompts),), PROMPT)}}
    texts = []
    for beams in search.generate([model], sample, prefix_tokens=prompts[:, 1:], bos_token=EOS):
        best = beams[0]["tokens"].tolist()
        texts.append([word for word in words_of(task.dictionary, best) if word != "</s>"])
    return texts


def continued_by_ctranslate2(folder, prompts: list[list[str]]) -> list[list[str]]:
    """Continue prompts greedily with an exported model; return the words of each, prompt included, without </s>."""
    generator = ctranslate2.Generator(str(folder), intra_threads=1)
    options = {"beam_size": 1, "max_length": LONGEST, "include_prompt_in_result": True}
    results = generator.generate_batch(prompts, **options)
    return [[word for word in result.sequences[0] if word != "</s>"] for result in results]


def test_ctranslate2_continues_prompts_with_the_same_words(data, taught_checkpoint, ctranslate2_folder):
    """CTranslate2 continues the beginnings of 30 lines greedily with the same symbols as fairseq."""
    prompts = padded_lines(data, "valid")[:, :PROMPT]
    _, task = loaded_by_fairseq(taught_checkpoint)
    words_of_prompts = [words_of(task.dictionary, row) for row in prompts.tolist()]

    ours = continued_by_fairseq(taught_checkpoint, prompts)
    theirs = continued_by_ctranslate2(ctranslate2_folder, words_of_prompts)

    # at the limit of length, fairseq forces an end of sentence, and CTranslate2 stops without one
    compared = LONGEST - PROMPT
    assert [row[:compared] for row in theirs] == [row[:compared] for row in ours]
    assert len({tuple(row) for row in ours}) > 20  # were all texts alike, equal ones would say little


def test_ctranslate2_begins_with_s_where_the_training_did(checkpoint_of_two_updates, tmp_path):
    """The config of an export of a model trained with --add-bos-token names <s> as the first symbol of a text."""
    path = write_with_other_flags(checkpoint_of_two_updates, tmp_path / "bos.pt", task={"add_bos_token": True})

    export(path, "--to", "ctranslate2", "--out", tmp_path / "ct2")

    assert json.loads((tmp_path / "ct2" / "config.json").read_text())["bos_token"] == "<s>"


# refusals


def test_a_masked_model_is_refused_for_ctranslate2(masked_checkpoint, tmp_path):
    """A masked model becomes fairseq's roberta, which CTranslate2 does not convert."""
    line = refusal("export", masked_checkpoint, "--to", "ctranslate2", "--out", tmp_path / "out")

    assert "--to ctranslate2: " in line
    assert "roberta" in line
    assert not list(tmp_path.iterdir())


def test_data_of_another_dictionary_are_refused(checkpoint_of_two_updates, tmp_path):
    """The refusal names both sizes: that of the dictionary beside the run's data, and that of the model."""
    fewer = {"predicted": 24, "share_decoder_input_output_embed": False}
    path = write_with_other_flags(checkpoint_of_two_updates, tmp_path / "other.pt", **fewer)

    line = refusal("export", path, "--to", "ctranslate2", "--out", tmp_path / "out")

    assert "--data" in line
    assert str(SYMBOLS) in line
    assert "24" in line
    assert not list(tmp_path.glob("out*"))


def test_an_unknown_quantization_is_refused(checkpoint_of_two_updates, tmp_path):
    words = ("--to", "ctranslate2", "--quantization", "int3", "--out", tmp_path / "out")

    assert_refused("int3", "export", checkpoint_of_two_updates, *words)

    assert not list(tmp_path.iterdir())


def test_a_model_without_positions_is_refused_for_ctranslate2(checkpoint_of_two_updates, tmp_path):
    without = {"no_token_positional_embeddings": True}
    path = write_with_other_flags(checkpoint_of_two_updates, tmp_path / "other.pt", **without)

    assert_refused("--to ctranslate2: ", "export", path, "--to", "ctranslate2", "--out", tmp_path / "out")

    assert not list(tmp_path.glob("out*"))
