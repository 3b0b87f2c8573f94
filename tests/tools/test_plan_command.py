"""Tests of `deepnet plan`: its output, its recommendations and its refusals."""

from __future__ import annotations

import functools
import json
import re
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.tools.plan.fit import USABLE, Option, recommend
from deepnet_fairseq.tools.plan.needs import count, memory
from deepnet_fairseq.tools.plan.setting import GIB, parse_setting

from ..support.errors import assert_refused, refusal
from ..support.helpers import ROOT

MIB = 2**20
BATCH = 8192  # tokens of an update
TRANSLATOR = f"--arch deepnet_transformer_100_100 --share-all-embeddings --max-tokens {BATCH} --bf16"
LANGUAGE_MODEL = f"--arch deepnet_lm_100 --vocab 51200 --max-tokens {BATCH} --bf16"
MASKED_MODEL = f"--arch deepnet_masked_lm_100 --bf16 --max-tokens {BATCH}"
CHUNKED = "chunked_label_smoothed_cross_entropy"  # the criterion of a translator's loss in chunks


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
def recommended(flags: str) -> list[Option]:
    """Return the recommended steps for a setting: itself as given, then more and more that saves memory."""
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


def test_a_step_that_fits_is_recommended_however_little_it_saves():
    """With 2,000 symbols the logits are so small that a loss in chunks saves less than 1%.

    Steps that save so little are left out if they do not fit.
    """
    flags = f"{TRANSLATOR} --vocab 2000"
    peak = memory(parse_setting(flags.split())).peak
    peak_in_chunks = memory(parse_setting([*flags.split(), "--criterion", CHUNKED])).peak
    assert 0.99 * peak < peak_in_chunks < peak
    between = (peak + peak_in_chunks) / 2

    steps = recommended(f"{flags} --gpu-memory {between / USABLE / GIB}")

    assert [step.name for step in steps] == ["as given", "loss in chunks"]


@pytest.mark.parametrize("flags", [ENOUGH, *SCARCE])
def test_the_flags_of_the_last_recommended_step_give_its_memory(flags):
    """The number of GPUs is added: it depends on how a training is launched, and is no flag of fairseq-train."""
    last = recommended(flags)[-1]

    setting = parse_setting([*flags.split(), *last.flags.split(), "--gpus", str(last.setting.gpus)])

    assert memory(setting) == last.memory
    assert setting.max_tokens * setting.update_freq == BATCH  # an update is as large as before


@pytest.mark.parametrize("flags", SCARCE)
def test_a_loss_in_chunks_is_recommended_but_for_masked_models(flags):
    """A masked model's loss has no criterion in chunks."""
    has_criterion_in_chunks = MASKED_MODEL not in flags

    last = recommended(flags)[-1]

    assert ("--criterion chunked" in last.flags) == has_criterion_in_chunks


@pytest.mark.parametrize(
    ("gib", "steps"),
    [
        (80, ["as given"]),  # needs 41.1 GiB of the 72 that may be used
        (44, ["as given", "loss in chunks"]),  # needs 39.1 of 39.6
        (33, ["as given", "loss in chunks, batches of 4,096 tokens x 2"]),  # needs 27.7 of 29.7
    ],
)
def test_the_recommended_steps_depend_on_the_memory(gib, steps):
    """A tenth of a GPU's memory stays free; an update stays as large."""
    assert [option.name for option in recommended(f"{TRANSLATOR} --gpu-memory {gib}")] == steps


def test_for_a_gpu_into_which_nothing_fits_another_precision_is_named():
    printed = output_of_plan(*TRANSLATOR.split(), "--gpu-memory", "0.1")

    (line,) = [line for line in printed.splitlines() if "0.1 GiB" in line]
    assert "--memory-efficient-fp16" in line


# report

TFLOPS = 100
GPUS = 2
UPDATES_AN_EPOCH = 400
CORPUS = BATCH * GPUS * UPDATES_AN_EPOCH  # target tokens
REPORTED = f"{TRANSLATOR} --gpus {GPUS} --flops {TFLOPS} --epochs 2.5 --corpus-tokens {CORPUS}"


@pytest.fixture(scope="module")
def json_plan() -> dict:
    """Provide the plan of REPORTED, printed as JSON: setting, parameters, memory, flops, options and speed."""
    return json.loads(output_of_plan(*REPORTED.split(), "--json"))


@pytest.fixture(scope="module")
def table() -> str:
    """Provide the plan of REPORTED, printed as text."""
    return output_of_plan(*REPORTED.split())


def test_the_table_shows_the_numbers_of_the_json(json_plan, table):
    assert f"{json_plan['parameters']['total']:,}" in table
    assert f"{json_plan['memory']['peak'] / GIB:.2f}" in table
    assert f"{json_plan['speed']['tokens_per_second']:,.0f}" in table


def test_the_table_shows_the_rate_that_was_given(table):
    [row] = [line for line in table.splitlines() if line.startswith("TFLOP/s of each")]

    assert row.split()[-1] == str(TFLOPS)


def test_the_seconds_of_an_update_are_its_operations_by_the_rate_of_all_gpus(json_plan):
    operations = json_plan["flops"]["step"]

    assert json_plan["speed"]["step"] == pytest.approx(operations / (GPUS * TFLOPS * 1e12))


def test_hours_are_those_of_the_updates_in_all_epochs(json_plan):
    updates = 2.5 * UPDATES_AN_EPOCH
    speed = json_plan["speed"]

    assert speed["updates"] == updates
    assert speed["hours"] == pytest.approx(updates * speed["step"] / 3600)


def test_a_vocabulary_that_is_not_given_has_32000_entries(json_plan):
    assert json_plan["setting"]["vocab"] == [32000, 32000]  # of source and target


@pytest.mark.parametrize("model", ["deepnet_lm", "deepnet_masked_lm"])
def test_the_report_of_a_single_stack_shows_its_layers_once(model):
    first_line = output_of_plan("--arch", f"{model}_48").splitlines()[0]

    assert f"{model}_48, 48, deepnorm" in first_line  # of two stacks it would be 48-48


@pytest.mark.parametrize("model", ["deepnet_lm", "deepnet_masked_lm"])
def test_instead_of_a_time_without_a_rate_its_flag_is_named(model):
    without_rate = output_of_plan("--arch", f"{model}_48")
    with_rate = output_of_plan("--arch", f"{model}_48", "--flops", "100")

    assert "seconds" in with_rate
    assert "seconds" not in without_rate
    assert "--flops" in without_rate


# mistakes

TOO_MANY = "1" + 30 * "0"
MISTAKES = [  # flags, and what the refusal names
    # values
    ("--arch deepnet_transformer_100_10", ["--arch deepnet_transformer_100_10: "]),
    ("--method deep", ["--method deep: "]),
    (f"--max-tokens {TOO_MANY}", [f"--max-tokens {TOO_MANY}: ", "100,000,000"]),  # the largest that is accepted
    ("--gpu-memory nan", ["--gpu-memory nan: "]),
    ("--flops nan", ["--flops nan: "]),
    ("--flops 9 --epochs 1 --corpus-tokens 0", ["--corpus-tokens 0: "]),
    ("--rows none.txt --side-by-side 0", ["--side-by-side 0: "]),
    ("--vocab large", ["--vocab large: "]),
    ("--rows none.txt", ["--rows none.txt: "]),  # a file that is missing
    # flags that a plan does not need, or a model does not have
    ("--lr 5e-4", ["--lr 5e-4"]),
    ("--arch deepnet_lm --encoder-layers 6", ["--encoder-layers 6"]),
    ("--arch deepnet_lm --vocab 3,4", ["--vocab 3,4: ", "deepnet_lm"]),
    (
        "--arch deepnet_lm --criterion label_smoothed_cross_entropy",
        ["--criterion label_smoothed_cross_entropy: ", "chunked_cross_entropy"],
    ),
    # flags that contradict each other
    ("--length 5000", ["--length 5000: ", "--max-tokens"]),  # tokens of a sentence; the default batch has 4,096
    ("--share-all-embeddings --vocab 3,4", ["--share-all-embeddings: ", "--vocab 3,4"]),
    ("--fp16 --bf16", ["--fp16 and --bf16: "]),
    ("--memory-efficient-bf16 --optimizer deepnet_adam", ["--memory-efficient-bf16: ", "--optimizer deepnet_adam"]),
    ("--rows none.txt --arch deepnet_transformer", ["--rows: "]),
    ("--rows none.txt --updates 5", ["--updates: "]),
    ("--rows none.txt --json", ["--json: "]),
    # flags without others that they need
    ("--zero-sharding os", ["--zero-sharding os: ", "--gpus"]),
    ("--zero-sharding os --gpus 2", ["--zero-sharding os: ", "--optimizer deepnet_adam"]),
    ("--updates 10", ["--updates and --epochs: ", "--flops"]),
    ("--epochs 3 --flops 9", ["--epochs: ", "--corpus-tokens"]),
]


@pytest.mark.parametrize(("flags", "named"), MISTAKES)
def test_a_mistake_is_named_in_one_line(flags, named):
    line = refusal("plan", *flags.split())

    for name in named:
        assert name in line


@pytest.mark.parametrize(
    "flags",
    [
        "--max-epoch nan",
        "--kept -1",
        "--corpus-tokens -5",
        # values that fairseq-train refuses too
        "--epoch-weights last:x",
        "--epoch-weights last:0",
        "--epoch-weights 5",
        "--epoch-weights 5-3",
        f"--epoch-weights last:{'9' * 5000}",
        # no JSON object
        "--facts {",
        "--facts 3",
    ],
)
def test_a_mistake_in_a_row_is_named_with_the_row(flags, tmp_path):
    (tmp_path / "rows").write_text(f"first {flags}\n")
    flag = flags.split()[0]

    assert_refused(f"first: {flag}", "plan", "--rows", tmp_path / "rows")


def test_a_row_with_an_unclosed_quote_is_named(tmp_path):
    (tmp_path / "rows").write_text("first --free 'batch\n")

    assert_refused("first: ", "plan", "--rows", tmp_path / "rows")


# rows of an experiment

ROW = "--arch deepnet_transformer_6_6 --share-all-embeddings --vocab 40000 --fp16 --max-tokens 4096"
ROWS = [  # NAME FLAGS; all are trainings of 5,000 updates
    f"by-updates {ROW} --max-update 5000 --unknown-flag x --optimizer radam",
    f"by-epochs --kept 2 {ROW} --max-epoch 10 --corpus-tokens {4096 * 500} --epoch-weights 3-5",
    f"over --done {ROW} --max-update 5000",
]
SIDE_BY_SIDE = 2  # trainings that run at a time
HEADER = ["row", "size", "tokens", "recomputed", "GiB", "updates", "hours", "GB"]  # a word of each column's name


@pytest.fixture(scope="module")
def summary(tmp_path_factory) -> str:
    """Provide what is printed for ROWS: a table, and below it their sums."""
    file = tmp_path_factory.mktemp("rows") / "rows"
    file.write_text("".join(f"{row}\n" for row in ROWS))
    return output_of_plan("--rows", file, "--side-by-side", SIDE_BY_SIDE, "--flops", "100")


@pytest.fixture(scope="module")
def plan_of_both() -> dict:
    """Provide the plan of the two rows that are not done, as one training of 10,000 updates."""
    return json.loads(output_of_plan(*ROW.split(), "--json", "--flops", "100", "--updates", "10000"))


def cells_of(row: str, summary: str) -> dict[str, str]:
    """Return the cells of a row's line in the table, by the names in HEADER."""
    header, _, *lines = summary.split("\n\n")[0].splitlines()
    for name, column in zip(HEADER, re.split(" {2,}", header), strict=True):
        assert name in column
    (line,) = [line for line in lines if line.startswith(f"{row} ")]
    return dict(zip(HEADER, re.split(" {2,}", line), strict=True))


def test_a_row_has_its_parameters_batch_recomputation_memory_and_updates(summary):
    setting = parse_setting(ROW.split())

    cells = cells_of("by-updates", summary)

    assert cells["size"] == f"{count(setting).total / 1e6:.1f} M"
    assert cells["tokens"] == "4,096 x 1"
    assert cells["recomputed"] == "no"
    assert cells["GiB"] == f"{memory(setting).peak / GIB:.1f}"
    assert cells["updates"] == "5,000"


def test_the_updates_of_a_row_with_epochs_are_those_of_its_corpus(summary):
    """The row has ten epochs of 500 updates."""
    assert cells_of("by-epochs", summary)["updates"] == "5,000"


def test_a_row_that_is_done_says_so(summary):
    assert cells_of("over", summary)["hours"] == "done"
    assert re.search(r"^3 rows, 1 .*done", summary, re.MULTILINE)


def test_the_hours_of_rows_are_summed_up(summary, plan_of_both):
    """The sum has the rows that are not done, which run side by side."""
    hours = plan_of_both["speed"]["hours"] / SIDE_BY_SIDE

    assert f"{SIDE_BY_SIDE} at a time: {hours:.2g} hours" in summary
    assert "100 TFLOP/s" in summary


def test_one_row_takes_its_own_hours_however_many_could_be_trained_at_a_time(tmp_path):
    file = tmp_path / "row"
    file.write_text(f"{ROWS[0]}\n")

    printed = output_of_plan("--rows", file, "--side-by-side", SIDE_BY_SIDE, "--flops", "100")

    hours = cells_of("by-updates", printed)["hours"]
    assert f"1 row: {hours} hours" in printed
    assert "at a time" not in printed


def test_the_bytes_of_rows_are_summed_up(summary, plan_of_both):
    """In fp16 a parameter takes 2 bytes in a file of weights, and 14 in a whole checkpoint.

    The 14 bytes are the weight in fp16 and in float32, and Adam's two moments in float32: 2 + 4 + 8.
    """
    parameters = plan_of_both["parameters"]["total"]
    weights = 2 * parameters
    checkpoint = 14 * parameters
    in_the_end = (1 + 2 + 1) * weights  # files that stay: 1 of by-updates, 2 of by-epochs (--kept 2), 1 of "over"
    # a running training has its last two checkpoints, the one being written, and the averaged model
    while_one_trains = 3 * checkpoint + weights
    epoch_files = 3 * weights  # by-epochs keeps the weights of epochs 3, 4 and 5

    most = in_the_end + SIDE_BY_SIDE * while_one_trains + epoch_files

    (disk,) = [line for line in summary.splitlines() if line.startswith("disk: ")]
    assert re.findall(r"([\d.]+) GB", disk) == [f"{most / 1e9:.1f}", f"{in_the_end / 1e9:.2g}"]


class PlannedRow(NamedTuple):
    """What `deepnet plan --rows` finds for one row."""

    chosen: str  # the line that it writes, NAME tab FLAGS
    printed: str


@functools.cache
def planned_row(row: str) -> PlannedRow:
    """Plan a row, NAME FLAGS."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        chosen = Path(folder) / "chosen"
        rows.write_text(f"{row}\n")
        printed = output_of_plan("--rows", rows, "--chosen", chosen)
        return PlannedRow(chosen.read_text(), printed)


def test_a_batch_without_whole_fractions_stays():
    """A prime number of tokens, more than the largest batch that is tried, has no whole fraction to choose."""
    prime = 20011
    row = f"row --arch deepnet_transformer_tiny_6_6 --vocab 1000 --optimizer adam --max-tokens {prime} --free batch"

    planned = planned_row(row)

    assert planned.chosen == "row\t\n"  # no flags
    assert f"{prime:,} x 1" in planned.printed


class Choice(NamedTuple):
    """Flags that are chosen for a row of Table 1, on GPUs of a size. A tenth of a GPU stays free."""

    free: str  # what may be changed
    gib: int  # of a GPU
    flags: str  # chosen
    more: str = ""  # flags of the row beside TABLE1_ROW

    @property
    def row(self) -> str:
        return f"row --gpu-memory {self.gib} {TABLE1_ROW} --free '{self.free}' {self.more}"


TABLE1 = "--arch deepnet_transformer_100_100 --share-all-embeddings --vocab 40000 --fp16 --optimizer deepnet_adam"
TABLE1_ROW = f"{TABLE1} --distributed-world-size 8 --max-tokens 4096 --update-freq 16"  # 30.1 GiB
DOES_NOT_FIT = "!"
# In the order of preference: larger batches; layers recomputed, each or in groups of 4; the optimiser sharded. The
# comments have what `deepnet plan` says of the chosen flags, and of those that would be faster.
CHOICES = [
    # 44.7 GiB of 72; batches of 16,384 tokens take 73.9
    Choice("batch,recompute", 80, "--max-tokens 8192 --update-freq 8"),
    # 20.7 GiB of 21.6; batches of 16,384 tokens take 26.0
    Choice("batch,recompute", 24, "--checkpoint-activations --max-tokens 8192 --update-freq 8"),
    # 20.2 GiB; batches of less than 4,096 tokens are not tried while other memory can be saved
    Choice("batch", 24, "--zero-sharding os"),
    # 18.1 GiB
    Choice("recompute", 24, "--checkpoint-activations"),
    Choice("", 24, DOES_NOT_FIT),
    # 9.7 GiB of 10.8; batches of 16,384 tokens take 13.8
    Choice("batch,recompute", 12, "--checkpoint-every 4 --max-tokens 8192 --update-freq 8 --zero-sharding os"),
    # only deepnet_adam is sharded
    Choice("batch,recompute", 12, DOES_NOT_FIT, more="--optimizer radam"),
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_the_fastest_flags_that_fit_are_chosen(choice):
    planned = planned_row(choice.row)

    assert planned.chosen == f"row\t{choice.flags}\n"
    is_marked = "\n! " in planned.printed
    assert is_marked == (choice.flags == DOES_NOT_FIT)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_the_plan_of_rows_has_lines_of_at_most_100_characters(choice):
    lines = planned_row(choice.row).printed.splitlines()

    assert max(len(line) for line in lines) <= 100


@pytest.mark.parametrize("choice", [choice for choice in CHOICES if choice.flags != DOES_NOT_FIT], ids=str)
def test_chosen_flags_need_the_memory_that_is_printed(choice):
    """The printed memory is extrapolated from two small batches, by a line; here the batch itself is planned."""
    words = TABLE1_ROW.replace("--distributed-world-size", "--gpus").split()
    peak = memory(parse_setting([*words, *choice.flags.split()])).peak / GIB

    printed = planned_row(choice.row).printed

    shown = float(re.search(r"memory: at most ([\d.]+)", printed)[1])
    assert shown == pytest.approx(peak, abs=0.1)
    assert peak <= USABLE * choice.gib


# documented plans


class DocumentedPlan(NamedTuple):
    """A row of the table in docs/planning.md."""

    flags: str
    planned: int  # MiB
    measured: int  # MiB
    ratio: float  # planned by measured


def documented_plans() -> list[DocumentedPlan]:
    """Read the table of docs/planning.md."""
    page = (ROOT / "docs" / "planning.md").read_text()
    rows = re.findall(r"^\| `(--arch .*?)` \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|", page, re.MULTILINE)
    plans = []
    for flags, planned, measured, ratio in rows:
        plans.append(
            DocumentedPlan(
                flags=flags,
                planned=int(planned.replace(",", "")),
                measured=int(measured.replace(",", "")),
                ratio=float(ratio),
            )
        )
    return plans


def test_nine_plans_are_documented():
    """Were none found, the test of each would have no cases."""
    assert len(documented_plans()) == 9


@pytest.mark.parametrize("documented", documented_plans(), ids=lambda documented: documented.flags)
def test_a_documented_plan_is_todays_and_within_a_tenth_of_the_measured(documented):
    setting = parse_setting([*documented.flags.split(), "--share-all-embeddings", "--cpu"])

    assert memory(setting).peak / MIB == pytest.approx(documented.planned, rel=0.01)
    assert documented.ratio == pytest.approx(documented.planned / documented.measured, abs=0.005)
    assert 0.9 < documented.ratio < 1.1
