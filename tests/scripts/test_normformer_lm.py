"""Tests of scripts/normformer_lm.sh: the paper's hyper-parameters, its grid, and the files of a row."""

import pytest

from ..support.experiments import batch, dry_run, needs_venv, values

pytestmark = needs_venv

# Shleifer et al. 2021, Table 1, and the authors' commands in fairseq's examples/normformer.
EVERYWHERE = {
    "--adam-betas": "(0.9, 0.98)", "--adam-eps": "1e-8", "--weight-decay": "0.01", "--clip-norm": "0.0",
    "--lr-scheduler": "polynomial_decay", "--warmup-updates": "750", "--tokens-per-sample": "2048",
    "--sample-break-mode": "none", "--memory-efficient-fp16": "", "--fp16-init-scale": "4",
    "--criterion": "cross_entropy", "--checkpoint-activations": "", "--task": "language_modeling",
}  # fmt: skip
SIZES = {  # tokens an update, updates, dropout, learning rates beyond the grid's
    "125m": (2**19, "572204", "0.1", set()),
    "355m": (2**19, "572204", "0.0", set()),
    "1.3b": (2**20, "286102", "0.1", {"2e-4"}),
    "2.7b": (2**20, "286102", "0.1", {"1.6e-4"}),
}
GRID = {"1e-4", "3e-4", "6e-4", "1e-3", "3e-3"}
WHOLE = ("normformer", "--normformer-scale-residual")
ABLATION = [
    WHOLE,
    (*WHOLE, "--normformer-no-attention-norm"),
    (*WHOLE, "--normformer-no-ffn-norm"),
    ("normformer",),
    (*WHOLE, "--normformer-head-scale=none"),
    ("pre_ln",),
]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Provide the empty files that mark binarised text, which suffice for a dry run."""
    folder = tmp_path_factory.mktemp("text")
    for file in ("dict.txt", "train.idx"):
        (folder / file).touch()
    return folder


@pytest.fixture(scope="module")
def commands(text):
    """Provide the commands of the rows of each part, split into words."""
    parts = {"clm": [], "ablation": [], "mlm": []}
    for words in dry_run("normformer_lm", DATA=text, OUT=text / "out"):
        parts[next(part for part in parts if f"normformer_{part}/" in " ".join(words))].append(words)
    assert not (text / "out").exists()
    return parts


def trained(commands):
    return [values(words) for words in commands if words[0] == "fairseq-train"]


def variant(flags):
    """Return the method and its options."""
    method = flags["--method"]
    options = {flag: value for flag, value in flags.items() if flag.startswith(f"--{method}-")}
    return (method, *(f"{flag}={value}" if value else flag for flag, value in options.items()))


@pytest.mark.parametrize("size", SIZES)
def test_causal_language_models(size, commands):
    tokens, updates, dropout, more = SIZES[size]
    rows = [flags for flags in trained(commands["clm"]) if flags["--arch"] == f"normformer_lm_{size}"]
    setting = EVERYWHERE | {
        "--max-update": updates, "--total-num-update": updates, "--dropout": dropout, "--attention-dropout": dropout,
    }  # fmt: skip
    lrs = {}
    for flags in rows:
        assert {flag: flags.get(flag) for flag in setting} == setting and batch(flags) == tokens
        lrs.setdefault(variant(flags), set()).add(flags["--lr"])
    small = {WHOLE: GRID | more} if size in ("125m", "355m") else {}
    small |= {("post_ln",): {"1e-3"}} if size == "125m" else {}
    expected = {("pre_ln",): GRID | more, ("normformer",): GRID | more} | small
    assert lrs == expected


def test_the_ablation_takes_one_part_away_at_a_time(commands):
    rows = trained(commands["ablation"])
    assert sorted(map(variant, rows)) == sorted(ABLATION)
    assert {(flags["--arch"], flags["--lr"], batch(flags)) for flags in rows} == {("normformer_lm_125m", "3e-3", 2**19)}


def test_masked_language_models(commands):
    """Masked language models train by RoBERTa base's recipe in fairseq: 2,048 samples of 512 tokens an update."""
    rows = trained(commands["mlm"])
    assert {(variant(flags), flags["--lr"]) for flags in rows} == {
        ((method,), lr) for method in ("pre_ln", "normformer") for lr in ("5e-4", "1e-3")
    }
    setting = {
        "--task": "masked_lm", "--criterion": "masked_lm", "--arch": "normformer_masked_lm_base", "--adam-eps": "1e-6",
        "--warmup-updates": "10000", "--max-update": "125000", "--total-num-update": "125000", "--dropout": "0.1",
        "--tokens-per-sample": "512", "--sample-break-mode": "complete", "--fp16": "",
    }  # fmt: skip
    for flags in rows:
        assert {flag: flags.get(flag) for flag in setting} == setting and batch(flags) == 2**20


def test_rows_can_be_narrowed(tmp_path):
    """Rows can be narrowed to any method, fewer GPUs and the user's text, which is prepared first."""
    names = [str(tmp_path / name) for name in "abc"]
    chosen = {"PARTS": "clm", "SIZES": "355m", "METHODS": "deepnorm post_ln@2e-4", "LRS": "1e-3 2e-3", "SEEDS": 3}
    where = {"MAX_TOKENS": 4096, "GPUS": 2, "OUT": tmp_path, "TEXT": " ".join(names)}
    prepare, *commands = dry_run("normformer_lm", **chosen, **where)
    dest, rows = str(tmp_path / "data/text"), trained(commands)
    assert prepare == ["deepnet", "prepare", "lm", *names, dest, "--bpe", "gpt2"] and commands[0][1] == dest
    assert [(flags["--method"], flags["--lr"], flags["--seed"], batch(flags)) for flags in rows] == [
        ("deepnorm", "1e-3", "3", 2**19), ("deepnorm", "2e-3", "3", 2**19), ("post_ln", "2e-4", "3", 2**19),
    ]  # fmt: skip
    assert len({flags["--save-dir"] for flags in rows}) == 3
