"""Tests of `deepnet export` for language models, as a user runs it, and of fairseq without our package."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO

import ctranslate2
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import data_utils
from fairseq.sequence_generator import SequenceGenerator
from torch.nn.utils.rnn import pad_sequence

from deepnet_fairseq import cli
from deepnet_fairseq.core import archs
from deepnet_fairseq.plugin.building import blank_task, from_checkpoint
from deepnet_fairseq.plugin.flags import namespace
from deepnet_fairseq.plugin.models import DeepLanguageModel

from ..support.helpers import EOS, PAD, USER_DIR, run, teach
from ..support.lm_trainings import FLAGS, KINDS, WORDS, make_text
from ..support.ranks import train
from ..support.single_stacks import disturb, scores

ARCHS = {"causal": archs.LM, "masked": archs.MASKED_LM}
EVAL = ("--cpu", "--gen-subset", "valid", "--sample-break-mode", "eos", "--tokens-per-sample", "32")
SYMBOLS, PROMPTED, LONGEST = WORDS + 4, 4, 24


@pytest.fixture(scope="module", name="data")
def a_data(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


def lines_of(data, split):
    """Return the lines of a split, each after an eos and padded on the right, (B, T)."""
    lines = data_utils.load_indexed_dataset(str(data / split))
    return pad_sequence([torch.cat([line.new_tensor([EOS]), line]).long() for line in lines], True, PAD)


def trained(kind, data, folder, *flags):
    """Train with fairseq-train; return checkpoint_last.pt.

    fairseq copies the config of an architecture that has its model's name (and any under hydra), so the checkpoint
    lacks the values that the model has filled in.
    """
    words = (*FLAGS, "--disable-validation", *KINDS[kind], "--arch", ARCHS[kind], *flags, "--save-dir", folder)
    train(1, folder.with_suffix(".log"), data, *words)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module", name="ran")
def a_ran(data, tmp_path_factory):
    """Provide the checkpoint of a DeepNorm run of 2 updates."""
    return trained("causal", data, tmp_path_factory.mktemp("lm") / "save", "--max-update", 2)


@pytest.fixture(scope="module", name="checkpoint")
def a_checkpoint(ran, data):
    """Provide that checkpoint after its model was trained on the text."""
    state, (model, _), text = torch.load(ran), from_checkpoint(str(ran)), lines_of(data, "train")

    def what_follows(step):
        tokens = text[torch.randperm(len(text), generator=torch.Generator().manual_seed(step))[:64]]
        return (tokens[:, :-1],), tokens[:, 1:]

    teach(model, 100, what_follows)
    torch.save(state | {"model": model.state_dict()}, ran.with_name("taught.pt"))
    return ran.with_name("taught.pt")


def variant(ran, path, task=(), predicted=SYMBOLS, **fields):
    """Write a checkpoint as the run would have begun with other flags."""
    state = torch.load(ran)
    cfg = state["cfg"]["model"] | fields
    state["cfg"] |= {"model": cfg, "task": state["cfg"]["task"] | dict(task)}
    flags = {name: value for name, value in cfg.items() if name != "_name"}
    model = DeepLanguageModel.build_model(namespace(cfg["_name"], **flags), blank_task(SYMBOLS, predicted))
    torch.save(state | {"model": disturb(model).state_dict()}, path)
    return path


def export(*words) -> str:
    """Run `deepnet export` in this process; return its output."""
    with redirect_stdout(StringIO()) as output:
        cli.main(["export", *map(str, words)])
    return output.getvalue()


@pytest.fixture(scope="module")
def exported(checkpoint):
    out = checkpoint.with_name("plain.pt")
    export(checkpoint, "--to", "transformer", "--out", out)
    return out


def loaded(path):
    """Load a checkpoint as every program of fairseq does."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    return model.eval(), task


def assert_same_scores(path, model, data):
    ours, tokens = from_checkpoint(str(path))[0], lines_of(data, "valid")
    assert (scores(ours, tokens) - scores(model, tokens))[tokens.ne(PAD)].abs().max() <= 1e-4


def test_stock_fairseq_finds_the_same_perplexity(data, checkpoint, exported):
    """Stock fairseq-eval-lm without --user-dir finds the same perplexity, although transformer_lm is Pre-LN."""
    outputs = [
        run("fairseq-eval-lm", data, *EVAL, "--path", path, *flags).stdout
        for path, flags in ((checkpoint, ("--user-dir", USER_DIR)), (exported, ()))
    ]
    numbers = [re.search(r"Loss \(base 2\): (\S+), Perplexity: (\S+)", text).groups() for text in outputs]
    assert numbers[0] == numbers[1]
    assert 1 < float(numbers[0][1]) < WORDS / 3  # the model has learnt from the text


def test_pre_ln_keeps_its_last_norm(data, ran, tmp_path):
    path = variant(ran, tmp_path / "pre.pt", method="pre_ln")
    export(path, "--to", "transformer", "--out", tmp_path / "plain.pt")
    model, _ = loaded(tmp_path / "plain.pt")
    assert model.decoder.layer_norm is not None and model.decoder.layers[0].normalize_before
    assert_same_scores(path, model, data)
    export(path, "--to", "ctranslate2", "--out", tmp_path / "ct2")  # checks its own result


def test_ctranslate2_continues_alike(data, checkpoint, tmp_path):
    """CTranslate2 continues 30 prompts greedily with the same symbols."""
    output = export(checkpoint, "--to", "ctranslate2", "--data", data, "--out", tmp_path / "ct2")
    assert float(re.search(r"at most (\S+)", output).group(1)) < 1e-4
    model, task = loaded(checkpoint)
    prompts = lines_of(data, "valid")[:, :PROMPTED]
    search = SequenceGenerator([model], task.target_dictionary, beam_size=1, max_len_b=LONGEST)
    sample = {"net_input": {"src_tokens": prompts, "src_lengths": torch.full((len(prompts),), PROMPTED)}}
    beams = search.generate([model], sample, prefix_tokens=prompts[:, 1:], bos_token=EOS)
    ours = [[task.dictionary[i] for i in f[0]["tokens"].tolist() if i != EOS] for f in beams]
    words = [[task.dictionary[i] for i in row.tolist()] for row in prompts]
    generator = ctranslate2.Generator(str(tmp_path / "ct2"), intra_threads=1)
    theirs = generator.generate_batch(words, beam_size=1, max_length=LONGEST, include_prompt_in_result=True)
    until = LONGEST - PROMPTED  # fairseq forces an end of sentence, CTranslate2 stops without one
    assert [result.sequences[0][:until] for result in theirs] == [row[:until] for row in ours]
    assert len({tuple(row) for row in ours}) > 20


def test_a_beginning_of_its_own(ran, tmp_path):
    """An export of a model trained with --add-bos-token tells CTranslate2 to begin with <s>."""
    path = variant(ran, tmp_path / "bos.pt", {"add_bos_token": True})
    export(path, "--to", "ctranslate2", "--out", tmp_path / "ct2")
    assert json.loads((tmp_path / "ct2" / "config.json").read_text())["bos_token"] == "<s>"


@pytest.fixture(scope="module", name="masked")
def a_masked(data, tmp_path_factory):
    return trained("masked", data, tmp_path_factory.mktemp("masked") / "save", "--max-update", 2)


def test_masked_models_become_roberta(data, masked, tmp_path):
    export(masked, "--to", "transformer", "--out", tmp_path / "plain.pt")
    model, task = loaded(tmp_path / "plain.pt")
    assert type(model).__name__ == "RobertaModel" and len(task.dictionary) == SYMBOLS + 1  # <mask>
    assert_same_scores(masked, model, data)


FEWER = {"predicted": 24, "share_decoder_input_output_embed": False}
REFUSED = {
    "roberta": ("masked", {}, (), "CTranslate2 reads no fairseq roberta; give --to transformer"),
    "other data": ("ran", FEWER, (), "target dictionary has 44 symbols, the model 24; give the run's own data"),
    "unknown type": ("ran", {}, ("--quantization", "int3"), "int3"),
    "no positions": ("ran", {"no_token_positional_embeddings": True}, (), "not supported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, request, tmp_path):
    given, fields, flags, message = REFUSED[case]
    path = request.getfixturevalue(given)
    path = variant(path, tmp_path / "variant.pt", **fields) if fields else path
    with pytest.raises(SystemExit, match=f"^deepnet: error: [^\n]*{message}[^\n]*$"):
        export(path, "--to", "ctranslate2", *flags, "--out", tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
