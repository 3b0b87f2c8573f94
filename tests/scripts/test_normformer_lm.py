"""Tests of scripts/normformer_lm.sh: the paper's hyper-parameters, and its grid of methods, sizes and rates.

The script has three parts: clm trains causal language models, ablation trains causal ones without one of NormFormer's
additions, and mlm trains masked ones. A row is a training; all tests read the commands that a dry run lists.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from ..support.experiments import dry_run, needs_venv, tokens_an_update, values

pytestmark = needs_venv

# Shleifer et al. 2021, Table 1, and the authors' commands in fairseq's examples/normformer.
EVERYWHERE = {
    "--adam-betas": "(0.9, 0.98)", "--adam-eps": "1e-8", "--weight-decay": "0.01", "--clip-norm": "0.0",
    "--lr-scheduler": "polynomial_decay", "--warmup-updates": "750", "--tokens-per-sample": "2048",
    "--sample-break-mode": "none", "--memory-efficient-fp16": "", "--fp16-init-scale": "4",
    "--criterion": "cross_entropy", "--checkpoint-activations": "", "--task": "language_modeling",
}  # fmt: skip


class Size(NamedTuple):
    """A size of the paper's causal models. tokens: of an update; rates: learning rates beyond GRID."""

    tokens: int
    updates: str
    dropout: str
    rates: set[str]


SIZES = {  # each is trained on 2^19 x 572,204 tokens, 300 billion
    "125m": Size(2**19, "572204", "0.1", set()),
    "355m": Size(2**19, "572204", "0.0", set()),
    "1.3b": Size(2**20, "286102", "0.1", {"2e-4"}),
    "2.7b": Size(2**20, "286102", "0.1", {"1.6e-4"}),
}
GRID = {"1e-4", "3e-4", "6e-4", "1e-3", "3e-3"}  # learning rates
WHOLE = ("normformer", "--normformer-scale-residual")  # with all that the paper adds, as `variant` returns it
ABLATION = [  # variants
    WHOLE,
    (*WHOLE, "--normformer-no-attention-norm"),
    (*WHOLE, "--normformer-no-ffn-norm"),
    ("normformer",),
    (*WHOLE, "--normformer-head-scale=none"),
    ("pre_ln",),
]


@pytest.fixture(scope="module")
def marked_text(tmp_path_factory):
    """Provide a folder of the empty files that mark binarised text, which suffice for a dry run."""
    folder = tmp_path_factory.mktemp("text")
    for file in ("dict.txt", "train.idx"):
        (folder / file).touch()
    return folder


@pytest.fixture(scope="module")
def rows_of_parts(marked_text):
    """Provide part (clm, ablation, mlm) -> the flags (flag -> value) of its trainings. A dry run writes nothing."""
    rows = {"clm": [], "ablation": [], "mlm": []}
    for flags in trained(dry_run("normformer_lm", DATA=marked_text, OUT=marked_text / "out")):
        (part,) = [part for part in rows if f"normformer_{part}/" in flags["--save-dir"]]
        rows[part].append(flags)
    assert not (marked_text / "out").exists()
    return rows


def trained(commands) -> list[dict[str, str]]:
    """Return the flags of each training among the commands, flag -> its last value."""
    return [values(words) for words in commands if words[0] == "fairseq-train"]


def variant(flags) -> tuple[str, ...]:
    """Return the method of a training and its options, the flags that begin with its name, as "FLAG=VALUE"."""
    method = flags["--method"]
    options = []
    for flag, value in flags.items():
        if flag.startswith(f"--{method}-"):
            options.append(f"{flag}={value}" if value else flag)
    return (method, *options)


@pytest.mark.parametrize("size", SIZES)
def test_causal_models_have_the_paper_s_hyper_parameters(size, rows_of_parts):
    papers = SIZES[size]
    expected = EVERYWHERE | {
        "--max-update": papers.updates, "--total-num-update": papers.updates, "--dropout": papers.dropout,
        "--attention-dropout": papers.dropout,
    }  # fmt: skip

    rows = [flags for flags in rows_of_parts["clm"] if flags["--arch"] == f"normformer_lm_{size}"]

    assert rows
    for flags in rows:
        assert {flag: flags.get(flag) for flag in expected} == expected
        assert tokens_an_update(flags) == papers.tokens


@pytest.mark.parametrize("size", SIZES)
def test_causal_models_are_trained_at_the_paper_s_rates(size, rows_of_parts):
    """NormFormer with scaled residuals has the two small sizes alone. Post-LN has the smallest, at one rate."""
    rates = GRID | SIZES[size].rates
    expected = {("pre_ln",): rates, ("normformer",): rates}
    if size in ("125m", "355m"):
        expected[WHOLE] = rates
    if size == "125m":
        expected[("post_ln",)] = {"1e-3"}

    trained_at = {}
    for flags in rows_of_parts["clm"]:
        if flags["--arch"] == f"normformer_lm_{size}":
            trained_at.setdefault(variant(flags), set()).add(flags["--lr"])

    assert trained_at == expected


def test_the_ablation_takes_one_addition_away_at_a_time(rows_of_parts):
    """The whole NormFormer has four additions. Each of four rows lacks one, and Pre-LN has none. All have one rate."""
    rows = rows_of_parts["ablation"]

    assert sorted(variant(flags) for flags in rows) == sorted(ABLATION)
    for flags in rows:
        assert flags["--arch"] == "normformer_lm_125m"
        assert flags["--lr"] == "3e-3"
        assert tokens_an_update(flags) == 2**19


def test_masked_models_are_pre_ln_and_normformer_at_two_rates(rows_of_parts):
    trained_at = {(variant(flags), flags["--lr"]) for flags in rows_of_parts["mlm"]}

    assert trained_at == {
        (("pre_ln",), "5e-4"), (("pre_ln",), "1e-3"), (("normformer",), "5e-4"), (("normformer",), "1e-3"),
    }  # fmt: skip


def test_masked_models_are_trained_by_the_recipe_of_roberta_base(rows_of_parts):
    """The recipe is fairseq's: 2,048 samples of 512 tokens an update."""
    expected = {
        "--task": "masked_lm", "--criterion": "masked_lm", "--arch": "normformer_masked_lm_base", "--adam-eps": "1e-6",
        "--warmup-updates": "10000", "--max-update": "125000", "--total-num-update": "125000", "--dropout": "0.1",
        "--tokens-per-sample": "512", "--sample-break-mode": "complete", "--fp16": "",
    }  # fmt: skip

    assert rows_of_parts["mlm"]
    for flags in rows_of_parts["mlm"]:
        assert {flag: flags.get(flag) for flag in expected} == expected
        assert tokens_an_update(flags) == 2048 * 512


class DryRun(NamedTuple):
    """Folder OUT of a dry run, and the commands that it lists, each as words."""

    folder: Path
    commands: list[list[str]]


@pytest.fixture(scope="module")
def narrowed(tmp_path_factory) -> DryRun:
    """Provide a dry run of one size and seed, two rates and two methods, on 2 GPUs and on the user's own text.

    The text is in the files a, b and c; post_ln has a rate of its own.
    """
    folder = tmp_path_factory.mktemp("narrowed")
    names = [str(folder / name) for name in "abc"]
    chosen = {"PARTS": "clm", "SIZES": "355m", "METHODS": "deepnorm post_ln@2e-4", "LRS": "1e-3 2e-3", "SEEDS": 3}
    where = {"MAX_TOKENS": 4096, "GPUS": 2, "OUT": folder, "TEXT": " ".join(names)}
    return DryRun(folder, dry_run("normformer_lm", **chosen, **where))


def test_the_user_s_text_is_prepared_before_it_is_trained_on(narrowed):
    names = [str(narrowed.folder / name) for name in "abc"]
    prepared = str(narrowed.folder / "data/text")

    prepare, train, *_ = narrowed.commands

    assert prepare == ["deepnet", "prepare", "lm", *names, prepared, "--bpe", "gpt2"]
    assert train[:2] == ["fairseq-train", prepared]


def test_rows_can_be_narrowed_to_any_methods_rates_and_seeds(narrowed):
    """A method has the rate after its @; the batch is the paper's on two GPUs; each row has a folder of its own."""
    rows = trained(narrowed.commands)

    chosen = [(flags["--method"], flags["--lr"], flags["--seed"]) for flags in rows]
    assert chosen == [("deepnorm", "1e-3", "3"), ("deepnorm", "2e-3", "3"), ("post_ln", "2e-4", "3")]
    assert [tokens_an_update(flags) for flags in rows] == [2**19] * 3
    assert len({flags["--save-dir"] for flags in rows}) == 3
