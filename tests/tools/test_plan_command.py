"""Tests of `deepnet plan`: its output, its recommendations and its refusals."""

from __future__ import annotations

import functools
import json
import re
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.tools.plan import fit
from deepnet_fairseq.tools.plan.fit import Option, recommend
from deepnet_fairseq.tools.plan.needs import memory
from deepnet_fairseq.tools.plan.setting import GIB, parse_setting

from ..support.errors import assert_refused, refusal
from ..support.helpers import ROOT

MIB = 2**20
BATCH = 8192  # tokens of an update
TRANSLATOR = f"--arch deepnet_transformer_100_100 --share-all-embeddings --max-tokens {BATCH} --bf16"
LANGUAGE_MODEL = f"--arch deepnet_lm_100 --vocab 51200 --max-tokens {BATCH} --bf16"
MASKED_MODEL = f"--arch deepnet_masked_lm_100 --bf16 --max-tokens {BATCH}"


def output_of_plan(*words: object) -> str:
    """Return what `deepnet plan WORDS`, run in this process, prints."""
    with redirect_stdout(StringIO()) as output:
        main(["plan", *map(str, words)])
    return output.getvalue()


# recommendations

SCARCE = [  # flags with too little memory for the setting as it is
    f"{TRANSLATOR} --gpu-memory 44",
    f"{TRANSLATOR} --gpu-memory 33",
    f"{TRANSLATOR} --gpu-memory 8 --gpus 4",
    f"{LANGUAGE_MODEL} --gpu-memory 8",
    f"{MASKED_MODEL} --gpu-memory 6 --gpus 4",
]
ENOUGH = f"{TRANSLATOR} --gpu-memory 80"


@functools.cache
def recommended(flags: str) -> list:
    return recommend(parse_setting(flags.split()))


@pytest.mark.parametrize("flags", SCARCE)
def test_each_recommended_step_needs_less_memory_than_the_one_before(flags):
    peaks = [option.memory.peak for option in recommended(flags)]

    assert len(peaks) > 1
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize("flags", [ENOUGH, *SCARCE])
def test_only_the_last_recommended_step_fits(flags):
    *before, last = [option.fits for option in recommended(flags)]

    assert last
    assert not any(before)


def test_a_step_that_fits_is_recommended_however_little_it_saves(monkeypatch):
    """The setting lacks a thousandth of the memory, which the step saves: it is not left out."""
    setting = parse_setting(["--gpu-memory", "100"])
    limit = fit.USABLE * setting.gpu_memory
    saving = Option("saving", setting, setting, SimpleNamespace(peak=limit))
    monkeypatch.setattr(fit, "memory", lambda setting: SimpleNamespace(peak=1.001 * limit))
    monkeypatch.setattr(fit, "_candidates", lambda *given, **more: [("saving", setting)])
    monkeypatch.setattr(fit, "_in_largest_batch", lambda *given, **more: saving)

    assert [option.name for option in recommend(setting)] == ["as given", "saving"]


@pytest.mark.parametrize("flags", [ENOUGH, *SCARCE])
def test_the_flags_of_the_last_recommended_step_give_its_memory(flags):
    last = recommended(flags)[-1]

    setting = parse_setting([*flags.split(), *last.flags.split(), "--gpus", str(last.setting.gpus)])

    assert memory(setting) == last.memory
    assert setting.max_tokens * setting.update_freq == BATCH


@pytest.mark.parametrize("flags", SCARCE)
def test_a_loss_in_chunks_is_recommended_but_for_masked_models(flags):
    """A masked model's loss is not chunked."""
    names = [option.name for option in recommended(flags)]

    assert any("chunk" in name for name in names) == (MASKED_MODEL not in flags)


@pytest.mark.parametrize(
    ("gib", "steps"),
    [
        (80, ["as given"]),
        (44, ["as given", "loss in chunks"]),
        (33, ["as given", "loss in chunks, batches of 4,096 tokens x 2"]),
    ],
)
def test_the_recommended_steps_depend_on_the_memory(gib, steps):
    assert [option.name for option in recommended(f"{TRANSLATOR} --gpu-memory {gib}")] == steps


def test_a_gpu_for_which_nothing_fits_is_named():
    printed = output_of_plan(*TRANSLATOR.split(), "--gpu-memory", "0.1")

    assert "nothing" in printed
    assert "0.1 GiB" in printed


# report

UPDATES = 1000
TFLOPS, GPUS = 100, 2
CORPUS = BATCH * GPUS * 400  # target tokens of 400 updates, an epoch
REPORTED = f"{TRANSLATOR} --gpus {GPUS} --flops {TFLOPS} --epochs 2.5 --corpus-tokens {CORPUS}"


@pytest.fixture(scope="module")
def json_plan() -> dict:
    return json.loads(output_of_plan(*REPORTED.split(), "--json"))


@pytest.fixture(scope="module")
def table() -> str:
    return output_of_plan(*REPORTED.split())


def test_the_table_shows_the_numbers_of_the_json(json_plan, table):
    assert f"{json_plan['parameters']['total']:,}" in table
    assert f"{json_plan['memory']['peak'] / GIB:.2f}" in table
    assert f"{json_plan['speed']['tokens_per_second']:,.0f}" in table


def test_time_is_operations_by_rate_and_updates(json_plan):
    speed = json_plan["speed"]

    assert speed["step"] == pytest.approx(json_plan["flops"]["step"] / (GPUS * TFLOPS * 1e12))
    assert speed["updates"] == UPDATES
    assert speed["hours"] == pytest.approx(UPDATES * speed["step"] / 3600)


def test_a_vocabulary_that_is_not_given_has_32000_entries(json_plan):
    assert json_plan["setting"]["vocab"] == [32000, 32000]


@pytest.mark.parametrize("model", ["deepnet_lm", "deepnet_masked_lm"])
def test_the_report_of_a_single_stack_shows_its_layers_once(model):
    assert f"{model}_48, 48, deepnorm" in output_of_plan("--arch", f"{model}_48")


@pytest.mark.parametrize("model", ["deepnet_lm", "deepnet_masked_lm"])
def test_no_time_is_printed_without_a_rate(model):
    printed = output_of_plan("--arch", f"{model}_48")

    assert "--flops" in printed
    assert "seconds an update" not in printed


# mistakes

TOO_MANY = "1" + 30 * "0"
MISTAKES = [  # flags, what the refusal names
    ("--arch deepnet_transformer_100_10", ["--arch deepnet_transformer_100_10: "]),
    ("--lr 5e-4", ["--lr 5e-4"]),
    ("--method deep", ["--method deep: "]),
    (f"--max-tokens {TOO_MANY}", [f"--max-tokens {TOO_MANY}: ", "100,000,000"]),
    ("--gpu-memory nan", ["--gpu-memory nan: "]),
    ("--flops nan", ["--flops nan: "]),
    ("--flops 9 --epochs 1 --corpus-tokens 0", ["--corpus-tokens 0: "]),
    ("--rows none.txt --side-by-side 0", ["--side-by-side 0: "]),
    ("--length 5000", ["--length 5000: ", "--max-tokens"]),
    ("--vocab large", ["--vocab large: "]),
    ("--share-all-embeddings --vocab 3,4", ["--share-all-embeddings: ", "--vocab 3,4"]),
    ("--fp16 --bf16", ["--fp16 and --bf16: "]),
    ("--zero-sharding os", ["--zero-sharding os: ", "--gpus"]),
    ("--zero-sharding os --gpus 2", ["--zero-sharding os: ", "--optimizer deepnet_adam"]),
    ("--memory-efficient-bf16 --optimizer deepnet_adam", ["--memory-efficient-bf16: ", "--optimizer deepnet_adam"]),
    ("--updates 10", ["--updates and --epochs: "]),
    ("--epochs 3 --flops 9", ["--epochs: ", "--corpus-tokens"]),
    ("--rows none.txt", ["--rows none.txt: "]),
    ("--rows none.txt --arch deepnet_transformer", ["--rows: "]),
    ("--rows none.txt --updates 5", ["--updates: "]),
    ("--rows none.txt --json", ["--json: "]),
    ("--arch deepnet_lm --encoder-layers 6", ["--encoder-layers 6"]),
    ("--arch deepnet_lm --vocab 3,4", ["--vocab 3,4: ", "deepnet_lm"]),
    (
        "--arch deepnet_lm --criterion label_smoothed_cross_entropy",
        ["--criterion label_smoothed_cross_entropy: ", "chunked_cross_entropy"],
    ),
]


@pytest.mark.parametrize(("flags", "named"), MISTAKES)
def test_a_mistake_is_named_in_one_line(flags, named):
    line = refusal("plan", *flags.split())

    for name in named:
        assert name in line


@pytest.mark.parametrize("flags", ["--max-epoch nan", "--kept -1", "--corpus-tokens -5", "--epoch-weights last:x"])
def test_a_mistake_in_a_row_is_named_with_the_row(flags, tmp_path):
    (tmp_path / "rows").write_text(f"first {flags}\n")

    assert_refused(f"first: {flags.split()[0]}", "plan", "--rows", tmp_path / "rows")


# rows of an experiment

ROW = "--arch deepnet_transformer_6_6 --share-all-embeddings --vocab 40000 --fp16 --max-tokens 4096"
ROWS = [
    f"by-updates {ROW} --max-update 5000 --unknown-flag x --optimizer radam",
    f"by-epochs --kept 2 {ROW} --max-epoch 10 --corpus-tokens 2048000 --epoch-weights 3-5",  # 5000 updates
    f"over --done {ROW} --max-update 5000",
]


@pytest.fixture(scope="module")
def summary(tmp_path_factory) -> str:
    """Provide what is printed for three rows, two at a time."""
    file = tmp_path_factory.mktemp("rows") / "rows"
    file.write_text("".join(f"{row}\n" for row in ROWS))
    return output_of_plan("--rows", file, "--side-by-side", "2", "--flops", "100")


@pytest.fixture(scope="module")
def plan_of_both() -> dict:
    """Provide the plan of the two rows that are not done, as one training of 10,000 updates."""
    return json.loads(output_of_plan(*ROW.split(), "--json", "--flops", "100", "--updates", "10000"))


def test_a_row_has_its_parameters_batch_recomputation_memory_and_updates(summary):
    assert re.search(r"by-updates +64.6 M +4,096 x 1 +no +3.7 +5,000 ", summary)


def test_a_row_that_is_done_says_so(summary):
    assert re.search(r"\nover .* done ", summary)
    assert re.search(r"\b3 rows, 1 .*done", summary)


def test_the_hours_of_rows_are_summed_up(summary, plan_of_both):
    hours = plan_of_both["speed"]["hours"] / 2  # side by side
    assert f"2 at a time: {hours:.2g} hours" in summary
    assert "100 TFLOP/s" in summary


def test_the_bytes_of_rows_are_summed_up(summary, plan_of_both):
    """14 a parameter for a checkpoint in fp16, 2 for weights."""
    parameters = plan_of_both["parameters"]["total"]
    checkpoint = 14 * parameters
    weights = 2 * parameters
    kept = 4 * weights
    most = kept + 2 * (3 * checkpoint + weights) + 3 * weights

    shown = rf"at most {most / 1e9:.1f} GB, .*{kept / 1e9:.2g} GB"
    assert re.search(shown, summary)


def chosen_for(row: str, folder) -> tuple[str, str]:
    """Plan one row; return the line of flags that are chosen for it, and what is printed."""
    (folder / "rows").write_text(f"{row}\n")
    printed = output_of_plan("--rows", folder / "rows", "--chosen", folder / "chosen")
    return (folder / "chosen").read_text(), printed


def test_a_batch_without_whole_fractions_stays(tmp_path):
    """A prime number of tokens, more than the largest batch that is tried, has no whole fraction to choose."""
    row = "row --arch deepnet_transformer_tiny_6_6 --vocab 1000 --optimizer adam --max-tokens 20011 --free batch"

    chosen, printed = chosen_for(row, tmp_path)

    assert chosen == "row\t\n"
    assert "20,011 x 1" in printed


TABLE1 = "--arch deepnet_transformer_100_100 --share-all-embeddings --vocab 40000 --fp16 --optimizer deepnet_adam"
TABLE1_ROW = f"{TABLE1} --distributed-world-size 8 --max-tokens 4096 --update-freq 16"
DOES_NOT_FIT = "!"
CHOSEN = [  # what may be chosen, GiB of a GPU, further flags -> chosen flags
    ("batch,recompute", 80, "", "--max-tokens 8192 --update-freq 8"),
    ("batch,recompute", 24, "", "--checkpoint-activations --max-tokens 8192 --update-freq 8"),
    ("batch", 24, "", "--zero-sharding os"),
    ("recompute", 24, "", "--checkpoint-activations"),
    ("", 24, "", DOES_NOT_FIT),
    ("batch,recompute", 12, "", "--checkpoint-every 4 --max-tokens 8192 --update-freq 8 --zero-sharding os"),
    ("batch,recompute", 12, "--optimizer radam", DOES_NOT_FIT),
]


@pytest.mark.parametrize(("free", "gib", "more", "flags"), CHOSEN)
def test_the_largest_batch_that_fits_is_chosen(free, gib, more, flags, tmp_path):
    """By a line through two small ones; a tenth of the GPU stays free."""
    row = f"row --gpu-memory {gib} {TABLE1_ROW} --free '{free}' {more}"

    chosen, printed = chosen_for(row, tmp_path)

    assert chosen == f"row\t{flags}\n"
    assert max(map(len, printed.splitlines())) <= 100
    assert ("\n! " in printed) == (flags == DOES_NOT_FIT)
    if flags != DOES_NOT_FIT:
        words = TABLE1_ROW.replace("--distributed-world-size", "--gpus").split()
        peak = memory(parse_setting([*words, *flags.split()])).peak / GIB
        shown = float(re.search(r"memory: at most ([\d.]+)", printed)[1])
        assert shown == pytest.approx(peak, abs=0.1)
        assert peak <= 0.9 * gib


# documented plans


def documented_plans() -> list[tuple[str, int, int, float]]:
    """Return flags, planned and measured MiB and their ratio from the table of docs/planning.md."""
    page = (ROOT / "docs" / "planning.md").read_text()
    rows = re.findall(r"^\| `(--arch .*?)` \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|", page, re.MULTILINE)
    plans = []
    for flags, planned, measured, ratio in rows:
        plans.append((flags, int(planned.replace(",", "")), int(measured.replace(",", "")), float(ratio)))
    return plans


def test_nine_plans_are_documented():
    assert len(documented_plans()) == 9


@pytest.mark.parametrize(("flags", "planned", "measured", "ratio"), documented_plans())
def test_a_documented_plan_is_todays_and_within_a_tenth_of_the_measured(flags, planned, measured, ratio):
    setting = parse_setting([*flags.split(), "--share-all-embeddings", "--cpu"])

    assert memory(setting).peak / MIB == pytest.approx(planned, rel=0.01)
    assert ratio == pytest.approx(planned / measured, abs=0.005)
    assert 0.9 < ratio < 1.1
