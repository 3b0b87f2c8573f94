"""Tests of `deepnet plan`: its output, its recommendations and its refusals."""

from __future__ import annotations

import json
import re

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.tools.plan.fit import recommend
from deepnet_fairseq.tools.plan.needs import memory
from deepnet_fairseq.tools.plan.setting import GIB, parse_setting

from ..support.errors import assert_refused
from ..support.helpers import ROOT

BASE = ["--arch", "deepnet_transformer_100_100", "--share-all-embeddings", "--max-tokens", "8192", "--bf16"]


LM = ["--arch", "deepnet_lm_100", "--vocab", "51200", "--max-tokens", "8192", "--bf16"]
MASKED = ["--arch", "deepnet_masked_lm_100", "--bf16", "--max-tokens", "8192", "--gpus", "4"]


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        ([*BASE, "--gpu-memory", "80"], ["as given"]),
        ([*BASE, "--gpu-memory", "44"], ["as given", "loss in chunks"]),
        ([*BASE, "--gpu-memory", "33"], ["as given", "loss in chunks, batches of 4,096 tokens x 2"]),
        ([*BASE, "--gpu-memory", "8", "--gpus", "4"], None),
        ([*LM, "--gpu-memory", "8"], None),
        ([*MASKED, "--gpu-memory", "6"], None),
    ],
)
def test_what_is_recommended_fits(flags, steps):
    """Each recommended step needs less memory than the one before, and the last one's flags give its peak."""
    options = recommend(parse_setting(flags))
    peaks = [option.memory.peak for option in options]
    assert peaks == sorted(peaks, reverse=True)
    assert [option.fits for option in options] == [False] * (len(options) - 1) + [True]
    assert steps is None or [option.name for option in options] == steps
    last = options[-1]
    again = parse_setting([*flags, *last.flags.split(), "--gpus", str(last.setting.gpus)])
    assert memory(again) == last.memory
    assert again.max_tokens * again.update_freq == 8192
    chunks = any("chunk" in option.name for option in options)
    assert chunks == (len(options) > 1 and flags[1] != MASKED[1])  # a masked model's loss is not chunked


def test_json_and_table_say_the_same(capsys):
    corpus = 8192 * 2 * 400  # target tokens of 400 updates
    flags = ["plan", *BASE, "--gpus", "2", "--flops", "100", "--epochs", "2.5", "--corpus-tokens", str(corpus)]
    main([*flags, "--json"])
    plan = json.loads(capsys.readouterr().out)
    main(flags)
    table = capsys.readouterr().out
    for shown in (f"{plan['parameters']['total']:,}", f"{plan['memory']['peak'] / GIB:.2f}"):
        assert shown in table
    speed = plan["speed"]
    assert speed["step"] == pytest.approx(plan["flops"]["step"] / 2e14) and speed["updates"] == 1000
    assert speed["hours"] == pytest.approx(1000 * speed["step"] / 3600)
    assert f"{speed['tokens_per_second']:,.0f}" in table and plan["setting"]["vocab"] == [32000, 32000]


@pytest.mark.parametrize("model", ["deepnet_lm", "deepnet_masked_lm"])
def test_report_speaks_of_the_one_stack(model, capsys):
    main(["plan", "--arch", f"{model}_48"])
    printed = capsys.readouterr().out
    assert f"{model}_48, 48, deepnorm" in printed
    assert "--flops" in printed and "seconds an update" not in printed  # no time is printed without a rate


def test_nothing_fits(capsys):
    main(["plan", *BASE, "--gpu-memory", "0.1"])
    assert "nothing of this fits into 0.1 GiB" in capsys.readouterr().out


MISTAKES = [
    ("--arch deepnet_transformer_100_10", "no such architecture"),
    ("--lr 5e-4", "unknown: --lr 5e-4"),
    ("--method deep", "--method deep: unknown"),
    ("--max-tokens 1" + 30 * "0", "0: must be from 1 to 100,000,000"),
    ("--gpu-memory nan", "--gpu-memory nan: must be a number of GiB"),
    ("--flops nan", "--flops nan: must be a number above 0"),
    ("--flops 9 --epochs 1 --corpus-tokens 0", "--corpus-tokens 0: must be a number above 0"),
    ("--rows none.txt --side-by-side 0", "--side-by-side 0: must be a number above 0"),
    ("--length 5000", "--length 5000: longer than a batch"),
    ("--vocab large", "--vocab large"),
    ("--share-all-embeddings --vocab 3,4", "--share-all-embeddings"),
    ("--fp16 --bf16", "--fp16 and --bf16: choose one"),
    ("--zero-sharding os", "--zero-sharding os: shards over several GPUs"),
    ("--zero-sharding os --gpus 2", "--zero-sharding os: with --optimizer deepnet_adam"),
    ("--memory-efficient-bf16 --optimizer deepnet_adam", "not with --optimizer deepnet_adam"),
    ("--updates 10", "--updates and --epochs: time needs a rate"),
    ("--epochs 3 --flops 9", "--epochs: give --corpus-tokens"),
    ("--rows none.txt", "--rows none.txt: no such file"),
    ("--rows none.txt --arch deepnet_transformer", "--rows: the flags of each training stand in its line"),
    ("--arch deepnet_lm --encoder-layers 6", "unknown: --encoder-layers 6"),
    ("--arch deepnet_lm --vocab 3,4", "--vocab 3,4: a deepnet_lm has one vocabulary"),
    ("--arch deepnet_lm --criterion label_smoothed_cross_entropy", "knows cross_entropy or chunked_cross_entropy"),
]


@pytest.mark.parametrize(("flags", "said"), MISTAKES)
def test_mistakes_end_in_one_line(flags, said):
    assert_refused(said, "plan", *flags.split())


@pytest.mark.parametrize("flags", ["--max-epoch nan", "--kept -1", "--corpus-tokens -5", "--epoch-weights last:x"])
def test_mistakes_in_a_row(flags, tmp_path):
    (tmp_path / "rows").write_text(f"first {flags}\n")
    assert_refused(f"first: {flags.split()[0]}", "plan", "--rows", str(tmp_path / "rows"))


def test_rows_are_summed_up(tmp_path, capsys):
    """The summary of rows adds hours and bytes: 14 a parameter for a checkpoint in fp16, 2 for weights."""
    model = "--arch deepnet_transformer_6_6 --share-all-embeddings --vocab 40000 --fp16 --max-tokens 4096"
    rows = [
        f"by-updates {model} --max-update 5000 --unknown-flag x --optimizer radam",
        f"by-epochs --kept 2 {model} --max-epoch 10 --corpus-tokens 2048000 --epoch-weights 3-5",
        f"over --done {model} --max-update 5000",
    ]
    (tmp_path / "rows").write_text("".join(f"{row}\n" for row in rows))
    main(["plan", "--rows", str(tmp_path / "rows"), "--side-by-side", "2", "--flops", "100"])
    output = capsys.readouterr().out
    main(["plan", *model.split(), "--json", "--flops", "100", "--updates", "10000"])
    alone = json.loads(capsys.readouterr().out)
    size, hours = alone["parameters"]["total"], alone["speed"]["hours"]
    assert re.search(r"by-updates +64.6 M +4,096 x 1 +no +3.7 +5,000 ", output)
    kept, most = 4 * 2 * size, 4 * 2 * size + 2 * (3 * 14 + 2) * size + 3 * 2 * size
    assert f"3 rows, 1 of them done, 2 at a time: {hours / 2:.2g} hours" in output
    assert f"at most {most / 1e9:.1f} GB, in the end {kept / 1e9:.2g} GB" in output
    assert re.search(r"\nover .* done ", output) and "at 100 TFLOP/s of each GPU, as given" in output


def test_a_batch_without_fractions_stays(tmp_path, capsys):
    """A prime number of tokens, more than the largest batch that is tried, has no whole fraction to choose."""
    row = "row --arch deepnet_transformer_tiny_6_6 --vocab 1000 --optimizer adam --max-tokens 20011 --free batch"
    (tmp_path / "rows").write_text(f"{row}\n")
    main(["plan", "--rows", str(tmp_path / "rows"), "--chosen", str(tmp_path / "chosen")])
    assert (tmp_path / "chosen").read_text() == "row\t\n"
    assert "20,011 x 1" in capsys.readouterr().out


TABLE1 = "--arch deepnet_transformer_100_100 --share-all-embeddings --vocab 40000 --fp16 --optimizer deepnet_adam "
TABLE1 += "--distributed-world-size 8 --max-tokens 4096 --update-freq 16 --free "
CHOSEN = [  # what may be chosen, GiB of a GPU, further flags -> chosen flags
    ("batch,recompute", 80, "", "--max-tokens 8192 --update-freq 8"),
    ("batch,recompute", 24, "", "--checkpoint-activations --max-tokens 8192 --update-freq 8"),
    ("batch", 24, "", "--zero-sharding os"),
    ("recompute", 24, "", "--checkpoint-activations"),
    ("", 24, "", "!"),
    ("batch,recompute", 12, "", "--checkpoint-every 4 --max-tokens 8192 --update-freq 8 --zero-sharding os"),
    ("batch,recompute", 12, "--optimizer radam", "!"),
]


@pytest.mark.parametrize(("free", "gib", "more", "flags"), CHOSEN)
def test_the_largest_batch_that_fits_is_chosen(free, gib, more, flags, tmp_path, capsys):
    """The largest batch that fits is chosen by a line through two small ones; a tenth of the GPU stays free."""
    (tmp_path / "rows").write_text(f"row --gpu-memory {gib} {TABLE1} '{free}' {more}\n")
    main(["plan", "--rows", str(tmp_path / "rows"), "--chosen", str(tmp_path / "chosen")])
    assert (tmp_path / "chosen").read_text() == f"row\t{flags}\n"
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 100 and ("\n! does not fit" in table) == (flags == "!")
    if flags != "!":
        words = TABLE1.replace("--distributed-world-size", "--gpus").removesuffix("--free ").split()
        peak = memory(parse_setting([*words, *flags.split()])).peak / GIB
        assert float(re.search(r"memory: at most ([\d.]+)", table)[1]) == pytest.approx(peak, abs=0.1)
        assert peak <= 0.9 * gib


def test_documented_plans_are_those_of_today():
    """docs/planning.md shows today's planned peaks, each within 10% of the measured one beside it."""
    page = (ROOT / "docs" / "planning.md").read_text()
    rows = re.findall(r"^\| `(--arch .*?)` \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|", page, re.MULTILINE)
    assert len(rows) == 9
    for flags, planned, peak, ratio in rows:
        planned, peak = (int(number.replace(",", "")) for number in (planned, peak))
        now = memory(parse_setting([*flags.split(), "--share-all-embeddings", "--cpu"])).peak / 2**20
        assert now == pytest.approx(planned, rel=0.01)
        assert float(ratio) == pytest.approx(planned / peak, abs=0.005)
        assert 0.9 < float(ratio) < 1.1
