"""`deepnet export` of language models, as a user runs them; fairseq without our package."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from itertools import chain

import ctranslate2
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq import cli
from deepnet_fairseq.core import archs
from deepnet_fairseq.plugin.building import blank_task, from_checkpoint
from deepnet_fairseq.plugin.config import namespace
from deepnet_fairseq.plugin.models import DeepLanguageModel

from .support.helpers import EOS, FIRST, PAD, USER_DIR, VOCAB, run, teach
from .support.ranks import train
from .support.sentiment import write
from .support.single_stacks import batch, disturb, scores

MARKS, ENDS, LONGEST = 2, 6, 24
EVAL = ("--cpu", "--gen-subset", "test", "--sample-break-mode", "complete", "--tokens-per-sample", str(LONGEST))
SENTENCES = {"train": 300, "valid": 100, "test": 60}
WIDTHS = {"layers": 2, "embed-dim": 32, "ffn-embed-dim": 64, "attention-heads": 2}
TASKS = {archs.LM: "language_modeling", archs.MASKED_LM: "masked_lm"}
TRAIN = (
    "--user-dir", USER_DIR, "--cpu", "--optimizer", "adam", "--lr", "1e-3", "--max-tokens", "400", "--num-workers", "0",
    "--no-epoch-checkpoints", "--disable-validation", "--dropout", "0", "--tokens-per-sample", str(LONGEST),
)  # fmt: skip


def chains(rows, seed):
    """(B, LONGEST): eos, mark, symbols, eos, padding; a language that a small causal model learns in seconds.

    The mark chooses the one of two tables by which symbols follow each other, so a model has to look back at it as well
    as at the last symbol; the last symbols of the alphabet end a sentence.
    """
    tables = [torch.randperm(VOCAB - FIRST - MARKS, generator=torch.Generator().manual_seed(n)) for n in range(MARKS)]
    generator = torch.Generator().manual_seed(seed)
    marks = torch.randint(MARKS, (rows,), generator=generator)
    symbols = torch.randint(VOCAB - FIRST - MARKS, (rows,), generator=generator)
    columns, ended = [torch.full((rows,), EOS), FIRST + marks], torch.zeros(rows, dtype=torch.bool)
    for _ in range(LONGEST - len(columns)):
        columns.append(torch.where(ended, PAD, FIRST + MARKS + symbols))
        ended |= symbols >= VOCAB - FIRST - MARKS - ENDS
        symbols = torch.stack(tables)[marks, symbols]
    found = torch.stack(columns, 1)
    return found.scatter(1, found.ne(PAD).sum(1, keepdim=True).clamp(max=LONGEST - 1), EOS)


@pytest.fixture(scope="module", name="data")
def a_data(tmp_path_factory):
    """Chains, binarised; their symbols have the numbers they are made with."""
    folder = tmp_path_factory.mktemp("chains")
    dictionary = Dictionary()
    for number in range(len(dictionary), VOCAB):
        dictionary.add_symbol(f"w{number}")
    for seed, (split, count) in enumerate(SENTENCES.items()):
        rows = chains(count, 1000 + seed).tolist()
        write(folder / split, [[dictionary[i] for i in row if i not in (PAD, EOS)] for row in rows], dictionary)
    return folder


def trained(kind, data, folder, *flags):
    """checkpoint_last.pt of fairseq-train after some updates. fairseq copies the config of an architecture that has its
    model's name (and any under hydra), so the checkpoint does not know what the model has filled in."""
    widths = [(f"--{archs.STACKS[kind][0]}-{name}", number) for name, number in WIDTHS.items()]
    words = ("--task", TASKS[kind], "--arch", kind, *chain(*widths), *flags, "--save-dir", folder)
    train(1, folder.with_suffix(".log"), data, *TRAIN, *words)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module", name="ran")
def a_ran(data, tmp_path_factory):
    """A DeepNorm run of 2 updates."""
    return trained(archs.LM, data, tmp_path_factory.mktemp("lm") / "save", "--max-update", 2)


@pytest.fixture(scope="module", name="checkpoint")
def a_checkpoint(ran):
    """The last one, its model then taught the chains."""
    state, (model, _) = torch.load(ran), from_checkpoint(str(ran))

    def what_follows(step):
        tokens = chains(64, step)
        return (tokens[:, :-1],), tokens[:, 1:]

    teach(model, 100, what_follows)
    torch.save(state | {"model": model.state_dict()}, ran.with_name("taught.pt"))
    return ran.with_name("taught.pt")


@pytest.fixture(scope="module", name="masked")
def a_masked(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("masked") / "save"
    return trained(archs.MASKED_LM, data, path, "--criterion", "masked_lm", "--max-update", 2)


def variant(ran, path, task=(), predicted=VOCAB, **fields):
    """As the run with other flags would have begun."""
    state = torch.load(ran)
    cfg = state["cfg"]["model"] | fields
    state["cfg"] |= {"model": cfg, "task": state["cfg"]["task"] | dict(task)}
    flags = {name: value for name, value in cfg.items() if name != "_name"}
    model = DeepLanguageModel.build_model(namespace(cfg["_name"], **flags), blank_task(VOCAB, predicted))
    torch.save(state | {"model": disturb(model).state_dict()}, path)
    return path


def export(*words) -> None:
    cli.main(["export", *map(str, words)])


@pytest.fixture(scope="module")
def exported(checkpoint):
    out = checkpoint.with_name("plain.pt")
    export(checkpoint, "--to", "transformer", "--out", out)
    return out


def loaded(path):
    """As every program of fairseq loads it."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    return model.eval(), task


def largest_difference(path, model):
    """Of a checkpoint's scores and a model's, at the symbols of sentences."""
    ours, tokens = from_checkpoint(str(path))[0], chains(20, seed=5)
    return (scores(ours, tokens) - scores(model, tokens))[tokens.ne(PAD)].abs().max()


def test_stock_fairseq_finds_the_same_perplexity(data, checkpoint, exported):
    """Plain fairseq-eval-lm, no --user-dir; the architectures of transformer_lm would make it Pre-LN."""
    said = [
        run("fairseq-eval-lm", data, *EVAL, "--path", path, *flags).stdout
        for path, flags in ((checkpoint, ("--user-dir", USER_DIR)), (exported, ()))
    ]
    found = [re.search(r"Loss \(base 2\): (\S+), Perplexity: (\S+)", text).groups() for text in said]
    assert found[0] == found[1]
    assert 1 < float(found[0][1]) < VOCAB / 10  # it has learnt something


def test_pre_ln_keeps_its_last_norm(ran, tmp_path):
    path = variant(ran, tmp_path / "pre.pt", method="pre_ln")
    export(path, "--to", "transformer", "--out", tmp_path / "plain.pt")
    model, _ = loaded(tmp_path / "plain.pt")
    assert model.decoder.layer_norm is not None and model.decoder.layers[0].normalize_before
    assert largest_difference(path, model) <= 1e-4
    export(path, "--to", "ctranslate2", "--out", tmp_path / "ct2")  # checks itself


@pytest.fixture(scope="module")
def converted(checkpoint, data):
    out, said = checkpoint.with_name("ct2"), StringIO()
    with redirect_stdout(said):
        export(checkpoint, "--to", "ctranslate2", "--data", data, "--out", out)
    assert float(re.search(r"at most (\S+),", said.getvalue()).group(1)) < 1e-4
    return out


def test_ctranslate2_continues_alike(checkpoint, converted):
    """Greedily behind 60 prompts, symbol by symbol."""
    model, task = loaded(checkpoint)
    prompts = chains(300, seed=99)
    prompts = prompts[prompts[:, 4].ne(PAD)][:60, :4]
    search = SequenceGenerator([model], task.target_dictionary, beam_size=1, max_len_b=LONGEST)
    sample = {"net_input": {"src_tokens": prompts, "src_lengths": torch.full((60,), 4)}}
    found = search.generate([model], sample, prefix_tokens=prompts[:, 1:], bos_token=EOS)
    ours = [[task.dictionary[i] for i in f[0]["tokens"].tolist() if i != EOS] for f in found]
    generator = ctranslate2.Generator(str(converted), intra_threads=1)
    words = [[task.dictionary[i] for i in row.tolist()] for row in prompts]
    assert words[0][0] == "</s>"
    theirs = generator.generate_batch(words, beam_size=1, max_length=LONGEST, include_prompt_in_result=True)
    theirs = [result.sequences[0] for result in theirs]  # without the eos they begin with
    ended = [i for i in range(60) if len(ours[i]) < LONGEST - 2]  # fairseq forces an end, CTranslate2 just stops
    assert [theirs[i] for i in ended] == [ours[i] for i in ended]
    assert len(ended) >= 50 and len({tuple(ours[i]) for i in ended}) > 30


def test_a_beginning_of_its_own(ran, tmp_path, capsys):
    """--add-bos-token: CTranslate2 is told of it."""
    task = {"add_bos_token": True, "sample_break_mode": "eos"}
    export(variant(ran, tmp_path / "bos.pt", task), "--to", "ctranslate2", "--out", tmp_path / "ct2")
    assert "on 50 sentences" in capsys.readouterr().out
    assert json.loads((tmp_path / "ct2" / "config.json").read_text())["bos_token"] == "<s>"


def test_masked_models_become_roberta(masked, tmp_path):
    export(masked, "--to", "transformer", "--out", tmp_path / "plain.pt")
    model, task = loaded(tmp_path / "plain.pt")
    assert type(model).__name__ == "RobertaModel" and len(task.dictionary) == VOCAB + 1  # <mask>
    ours, tokens = from_checkpoint(str(masked))[0], batch()
    assert (scores(ours, tokens) - scores(model, tokens)).abs().max() <= 1e-4


REFUSED = {
    "roberta": ("masked", {}, "ctranslate2", (), "CTranslate2 reads no fairseq roberta; give --to transformer"),
    "other data": ("few", {}, "ctranslate2", (), "60 symbols, the decoder has 40; give the run's own data"),
    "unknown type": ("checkpoint", {}, "ctranslate2", ("--quantization", "int3"), "int3"),
    "no positions": ("ran", {"no_token_positional_embeddings": True}, "ctranslate2", (), "not supported"),
}


@pytest.fixture
def few(ran, tmp_path):
    """A model that predicts fewer symbols than its data have."""
    return variant(ran, tmp_path / "few.pt", predicted=VOCAB - 20)


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, request, tmp_path):
    given, fields, kind, flags, message = REFUSED[case]
    path = request.getfixturevalue(given)
    path = variant(path, tmp_path / "variant.pt", **fields) if fields else path
    with pytest.raises(SystemExit, match=f"^deepnet: error: [^\n]*{message}[^\n]*$"):
        export(path, "--to", kind, *flags, "--out", tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
