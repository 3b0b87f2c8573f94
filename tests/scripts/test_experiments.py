"""Tests of the scripts of tables and experiments: the papers' hyper-parameters, batches and launchers.

Most tests read the commands that a dry run lists. A row is a training of the table; its commands are fairseq-train and
those that average and translate. Settings are environment variables of a script, as METHODS=deepnorm.
"""

import os
import re
import subprocess
from typing import NamedTuple

import pytest

from ..support.experiments import COMMANDS, dry_run, needs_venv, script, tokens_an_update, trainings, values
from ..support.helpers import ROOT

pytestmark = needs_venv

# Recipes of DeepNet's Tables 4 to 8 (appendix) and of Admin's authors. Batches are in tokens an update.
TABLE1_BATCH = 128 * 4096
EVERYWHERE = {
    "--criterion": "label_smoothed_cross_entropy", "--label-smoothing": "0.1", "--adam-betas": "(0.9, 0.98)",
    "--lr-scheduler": "inverse_sqrt", "--warmup-init-lr": "1e-7", "--fp16": "",
}  # fmt: skip
BASE = {"--encoder-embed-dim": "512", "--encoder-ffn-embed-dim": "2048", "--encoder-attention-heads": "8"}
LARGE = {"--encoder-embed-dim": "1024", "--encoder-ffn-embed-dim": "4096", "--encoder-attention-heads": "16"}
ADMIN = {  # flags shared by the recipes of Admin's authors
    "--optimizer": "radam", "--adam-eps": "1e-8", "--clip-norm": "0.0", "--attention-dropout": "0.1",
    "--activation-dropout": "0.1", "--fp16-scale-window": "256", "--threshold-loss-scale": "0.03125",
}  # fmt: skip


class Recipe(NamedTuple):
    """What a paper says of a script's rows: how many there are, the tokens of an update, flags of fairseq-train."""

    rows: int
    tokens: int
    flags: dict[str, str]


PAPER = {  # script -> recipe; a number of rows is that of methods x depths (x variants x seeds)
    "iwslt14_de_en": Recipe(10 * 10, 4000, BASE | {
        "--lr": "5e-4", "--warmup-updates": "4000", "--adam-eps": "1e-8", "--max-update": "8000", "--clip-norm": "0.0",
        "--dropout": "0.4", "--weight-decay": "1e-4", "--optimizer": "deepnet_adam",
    }),
    "table1_wmt17": Recipe(10 * 4, TABLE1_BATCH, BASE | {
        "--lr": "1.5e-3", "--warmup-updates": "4000", "--adam-eps": "1e-8", "--max-update": "100000",
        "--clip-norm": "0.0", "--dropout": "0.4", "--weight-decay": "1e-4", "--optimizer": "deepnet_adam",
    }),
    "opus100": Recipe(1 * 5, 128 * 4096, BASE | {
        "--lr": "5e-4", "--warmup-updates": "4000", "--adam-eps": "1e-8", "--max-epoch": "4", "--clip-norm": "0.0",
        "--dropout": "0.1", "--weight-decay": "0.0", "--optimizer": "deepnet_adam", "--encoder-langtok": "tgt",
        "--sampling-method": "temperature",
    }),
    "table3_m2m": Recipe(1, 256 * 4096, LARGE | {
        "--lr": "5e-4", "--warmup-updates": "6000", "--adam-eps": "1e-6", "--max-update": "260000",
        "--clip-norm": "1.0", "--dropout": "0.1", "--weight-decay": "0.0", "--encoder-layers": "100",
    }),
    "admin_wmt14": Recipe(3 * 4, 4 * 8192, BASE | ADMIN | {
        "--lr": "1e-3", "--warmup-updates": "8000", "--max-epoch": "100", "--max-update": "500000",
        "--dropout": "0.1", "--weight-decay": "0.0", "--seed": "1111",
    }),
    "admin_wmt14_en_fr": Recipe(7 + 2 * 2, 80 * 8000, BASE | ADMIN | {  # 7 depths of Admin, 2 of each baseline
        "--lr": "7e-4", "--warmup-updates": "8000", "--max-epoch": "50", "--dropout": "0.1", "--weight-decay": "0.0",
        "--seed": "1111",
    }),
    "admin_iwslt14": Recipe(3 * 2 * 5, 4096, ADMIN | {
        "--encoder-embed-dim": "512", "--encoder-ffn-embed-dim": "1024", "--encoder-attention-heads": "4",
        "--lr": "7e-4", "--warmup-updates": "6000", "--max-epoch": "90", "--max-update": "100000", "--dropout": "0.3",
        "--weight-decay": "1e-4",
    }),
}  # fmt: skip
ONE_ROW = {"METHODS": "deepnorm", "DEPTHS": 6}  # settings, environment variables of a script
NO_NORM = {"rezero", "r_fixup", "t_fixup"}  # methods without LayerNorm
NO_WARM_UP = {  # flags of Admin's variant on IWSLT-14
    "--lr": "3e-4", "--adam-betas": "(0.9, 0.995)", "--warmup-updates": "0", "--lr-scheduler": "polynomial_decay",
    "--warmup-init-lr": None, "--total-num-update": "100000",
}  # fmt: skip


def first_call(commands: list[list[str]], program: str) -> list[str]:
    """Return the first command of this program."""
    return next(words for words in commands if words[0] == program)


def papers_flags(name: str, flags: dict[str, str]) -> dict[str, str | None]:
    """Return the paper's flags of the row of script `name` that has `flags`; None for a flag that it does not have."""
    expected = dict(EVERYWHERE | PAPER[name].flags)
    method = flags["--method"]
    if name == "table1_wmt17" and method in NO_NORM:  # the second column of the paper's Table 5
        expected["--lr"] = "5e-4"
    if name == "iwslt14_de_en" and method == "rezero":  # the paper trains it in fp32, in Figure 6 alone
        expected["--fp16"] = None
    if "no_warmup" in flags["--save-dir"]:
        expected |= NO_WARM_UP
    is_baseline_of_admin = "admin" in name and method in ("post_ln", "pre_ln")
    expected["--init-profile"] = "xavier_legacy" if is_baseline_of_admin else None
    return expected


def papers_batch(name: str, flags: dict[str, str]) -> int:
    """Return the paper's tokens of an update of the row of script `name` that has `flags`."""
    if name == "admin_wmt14_en_fr" and flags["--encoder-layers"] == "60":
        return 256 * 5000
    return PAPER[name].tokens


@pytest.mark.parametrize("name", PAPER)
def test_every_row_has_the_papers_hyper_parameters_and_batch(name, tmp_path):
    """The batch is the paper's on the default number of GPUs. A dry run writes nothing."""
    rows = [values(words) for words in trainings(name, OUT=tmp_path / "out")]

    assert len(rows) == PAPER[name].rows
    for flags in rows:
        expected = papers_flags(name, flags)
        assert {flag: flags.get(flag) for flag in expected} == expected
        assert tokens_an_update(flags) == papers_batch(name, flags)
        assert "--share-all-embeddings" in flags
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("gpus, nodes, tokens", [(1, 1, 4096), (8, 4, 4096), (8, 1, 2048)])
def test_an_update_has_the_papers_batch_on_any_number_of_gpus(gpus, nodes, tokens):
    """gpus: of each machine (node); tokens: of a batch on a GPU. Several machines train within a job of SLURM alone."""
    launch = {"LAUNCH": "torchrun", "SLURM_JOB_ID": 1} if nodes > 1 else {}

    (words,) = trainings("table1_wmt17", **ONE_ROW, GPUS=gpus, NODES=nodes, MAX_TOKENS=tokens, **launch)

    flags = values(words)
    assert tokens_an_update(flags) == TABLE1_BATCH
    assert flags["--distributed-world-size"] == str(gpus * nodes)


def test_admin_en_fr_trains_the_depths_of_its_papers():
    """A depth is ENCODER-DECODER, in layers (Liu et al. 2020, Very Deep Transformers)."""
    rows = [values(words) for words in trainings("admin_wmt14_en_fr")]

    trained = {"admin": set(), "post_ln": set(), "pre_ln": set()}
    for flags in rows:
        depth = f"{flags['--encoder-layers']}-{flags['--decoder-layers']}"
        trained[flags["--method"]].add(depth)
    assert trained == {
        "admin": {"6-6", "12-12", "24-12", "48-12", "60-12", "36-36", "12-60"},
        "post_ln": {"6-6", "60-12"},
        "pre_ln": {"6-6", "60-12"},
    }


@pytest.mark.parametrize(
    "setting, seeds",
    [({}, [1111, 1111, 2222, 2222, 3333, 3333, 4444, 4444, 5555, 5555]), ({"SEEDS": 7}, [7, 7])],
    ids=["by default", "named"],
)
def test_admin_iwslt14_trains_its_authors_seeds_unless_others_are_named(setting, seeds):
    """Each seed is trained twice, with warm-up and without."""
    rows = [values(words) for words in trainings("admin_iwslt14", METHODS="admin", **setting)]

    assert [int(flags["--seed"]) for flags in rows] == seeds


@pytest.mark.parametrize(
    "average, arguments",
    [
        ("", ["{run}", "--last", "10"]),  # by default the last 10 checkpoints
        ("36-45", [f"{{run}}/weights{epoch}.pt" for epoch in range(36, 46)]),  # the checkpoints of these epochs
    ],
)
def test_average_sets_the_checkpoints_that_are_averaged_and_translated(average, arguments, tmp_path):
    """arguments: of `deepnet average`, before --out FILE."""
    run = tmp_path / "table1" / "deepnorm-6-seed1"

    commands = dry_run("table1_wmt17", **ONE_ROW, AVERAGE=average, OUT=tmp_path)

    (averaging,) = [words for words in commands if words[:2] == ["deepnet", "average"]]
    averaged = str(run / "averaged.pt")
    assert averaging[2:] == [*(word.format(run=run) for word in arguments), "--out", averaged]
    assert values(first_call(commands, "fairseq-generate"))["--path"] == averaged


def test_an_average_of_one_checkpoint_is_the_last_checkpoint(tmp_path):
    commands = dry_run("table1_wmt17", **ONE_ROW, AVERAGE="1", OUT=tmp_path)

    assert ["deepnet", "average"] not in [words[:2] for words in commands]
    translated = values(first_call(commands, "fairseq-generate"))["--path"]
    assert translated == str(tmp_path / "table1" / "deepnorm-6-seed1" / "checkpoint_last.pt")


@pytest.mark.parametrize("shared", [True, False])
def test_embeddings_are_shared_if_asked_for(shared, tmp_path):
    (words,) = trainings("table1_wmt17", **ONE_ROW, SHARE_EMBEDDINGS=int(shared), OUT=tmp_path)

    assert ("--share-all-embeddings" in words) == shared


FITTING = [  # for 100L-100L: settings (GPU_MEMORY in GiB), tokens of a GPU's batch, whether activations are recomputed
    ({"PLAN": 1, "GPU_MEMORY": 80}, "8192", False),  # the largest batch that fits without recomputation
    ({"PLAN": 1, "GPU_MEMORY": 80, "RECOMPUTE": 1}, "16384", True),  # recomputation makes room for twice as much
    ({"PLAN": 1, "GPU_MEMORY": 24, "MAX_TOKENS": 2048, "GPUS": 2}, "2048", True),  # recomputation makes it fit
    ({"PLAN": 0}, "4096", True),  # without a plan the paper's batch, and recomputation for a depth as this
    ({"PLAN": 0, "RECOMPUTE": 0}, "4096", False),
]


@pytest.mark.parametrize("setting, tokens, recomputes", FITTING)
def test_memory_decides_on_recomputation_and_a_gpu_s_share_of_the_batch(setting, tokens, recomputes):
    """The tokens are those of `deepnet plan`. An update keeps the paper's number of tokens."""
    (words,) = trainings("table1_wmt17", METHODS="deepnorm", DEPTHS="100", **setting)

    flags = values(words)
    assert flags["--max-tokens"] == tokens
    assert ("--checkpoint-activations" in flags) == recomputes
    assert tokens_an_update(flags) == TABLE1_BATCH


@pytest.mark.parametrize(
    "name, depths, tokens, train_flags, beam, length_penalty",
    [
        ("admin_wmt14_en_fr", "60-12", 3200 * 8 * 16, {"--lr": "1e-3", "--dropout": "0.2", "--warmup-updates": "8000"},
         "10", "1.0"),
        ("admin_wmt14", "60", 4 * 8192, {"--lr": "1e-3", "--dropout": "0.1", "--warmup-updates": "4000"}, "4", "0.6"),
    ],
    ids=["en-fr by its repository", "en-de by its paper"],
)  # fmt: skip
def test_recipe_deepnmt_is_microsoft_deepnmt_s_60_layers(name, depths, tokens, train_flags, beam, length_penalty):
    """tokens: of an update. Runs of a recipe have a folder of their own."""
    commands = dry_run(name, RECIPE="deepnmt", METHODS="admin", DEPTHS=depths)

    train = values(first_call(commands, "fairseq-train"))
    expected = train_flags | {"--max-epoch": "50", "--optimizer": "radam"}
    expected |= {"--encoder-layers": "60", "--decoder-layers": "12"}
    assert {flag: train[flag] for flag in expected} == expected
    assert tokens_an_update(train) == tokens
    assert f"{name}_deepnmt/" in train["--save-dir"]
    translate = values(first_call(commands, "fairseq-generate"))
    assert translate["--beam"] == beam
    assert translate["--lenpen"] == length_penalty


@pytest.mark.parametrize("order, rows", [
    ({}, [("deepnorm", "18"), ("deepnorm", "6"), ("admin", "18"), ("admin", "6")]),
    ({"ORDER": "shallowest"}, [("deepnorm", "6"), ("admin", "6"), ("deepnorm", "18"), ("admin", "18")]),
    ({"ORDER": "given"}, [("deepnorm", "18"), ("admin", "18"), ("deepnorm", "6"), ("admin", "6")]),
])  # fmt: skip
def test_rows_run_in_the_order_asked_for(order, rows):
    """Rows run seed by seed. By default they run method by method, and a method's deepest row comes first.

    rows: method and depth of each row of a seed, in their order.
    """
    commands = trainings("table1_wmt17", METHODS="deepnorm admin", DEPTHS="18 6", SEEDS="1 7", **order)

    trained = []
    for flags in map(values, commands):
        trained.append((flags["--seed"], flags["--method"], flags["--encoder-layers"]))
    of_seed_1 = [("1", *row) for row in rows]
    of_seed_7 = [("7", *row) for row in rows]
    assert trained == of_seed_1 + of_seed_7


@pytest.fixture(scope="module")
def folder_with_a_done_row(tmp_path_factory):
    """Provide a folder of runs in which DeepNorm's row of 6 layers is over."""
    out = tmp_path_factory.mktemp("planned")
    done = out / "table1" / "deepnorm-6-seed1"
    done.mkdir(parents=True)
    (done / "trained").touch()
    return out


@pytest.fixture(scope="module")
def plan_of_four_rows(folder_with_a_done_row):
    """Provide the plan of four rows of Table 1, one of them done, on GPUs of 40 GiB that compute 50 TFLOP/s."""
    asked = {"METHODS": "deepnorm post_ln", "DEPTHS": "6 100", "GPU_MEMORY": 40, "TFLOPS": 50}
    return script("table1_wmt17", "--dry-run", PLAN=1, OUT=folder_with_a_done_row, **asked).stdout


def test_a_dry_run_prints_a_line_of_each_row(plan_of_four_rows):
    """The lines fit into 100 columns. Commands are printed by --dry-run=commands alone."""
    lines = plan_of_four_rows.splitlines()

    names = [line.split()[0] for line in lines if re.match(r"\S+-seed\d ", line)]
    assert names == ["deepnorm-100-seed1", "deepnorm-6-seed1", "post_ln-100-seed1", "post_ln-6-seed1"]
    assert max(len(line) for line in lines) <= 100
    assert "fairseq-train" not in plan_of_four_rows


def test_a_dry_run_sums_up_hours_disk_and_memory(plan_of_four_rows):
    """The sums are those that `deepnet plan` gives for these rows.

    Hours are of 100,000 updates, or 11,000 of a row that diverged in the paper, on 8 GPUs. On the disk are 3
    checkpoints of 14 bytes a parameter, and 11 + 1 files of weights of 2 bytes a parameter.
    """
    assert re.search(r"\b200 hours\b.*\b8\.3 days\b.*\b50 TFLOP/s", plan_of_four_rows)
    assert re.search(r"disk: .*\b56 GB.*\b6\.6 GB", plan_of_four_rows)  # at most, and in the end
    assert re.search(r"memory: .*\b30\.1 GiB.*\b40\b", plan_of_four_rows)


def test_a_row_that_diverged_in_the_paper_is_planned_with_fewer_updates(plan_of_four_rows):
    """Post-LN with 100 layers diverged. The row ends after 11,000 updates at most; other rows have 100,000."""
    (line,) = [line for line in plan_of_four_rows.splitlines() if line.startswith("post_ln-100-seed1 ")]

    assert "11,000*" in line.split()


def test_a_dry_run_writes_nothing(plan_of_four_rows, folder_with_a_done_row):
    """The folder has only the files that were there before."""
    files = [path.name for path in folder_with_a_done_row.rglob("*")]

    assert plan_of_four_rows
    assert sorted(files) == ["deepnorm-6-seed1", "table1", "trained"]


def test_a_dry_run_makes_no_environment(tmp_path):
    """The function `environment` of entry.sh would set up a checkout without .venv; before a dry run it refuses."""
    words = f"source scripts/lib/entry.sh; checkout={tmp_path}; PATH=/usr/bin:/bin; environment --dry-run"

    done = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 1
    assert "--dry-run" in done.stderr
    assert "scripts/setup.sh" in done.stderr
    assert not any(tmp_path.iterdir())


def test_admin_is_profiled_before_it_is_trained():
    """The first command prepares the corpus, the second profiles the model, the third trains it by the profile."""
    _prepare, profile, train, *_ = dry_run("admin_wmt14", METHODS="admin", DEPTHS=18)

    assert profile[:2] == ["deepnet", "profile"]
    assert train[0] == "fairseq-train"
    assert values(profile)["--out"] == values(train)["--admin-profile"]
    assert values(profile)["--encoder-layers"] == "18"
    assert "--admin-profile" not in profile


def test_translations_have_fairseq_s_default_lengths_but_for_the_longest_sentence():
    """--max-len-a is not given, as in the authors' evaluation. Source and target may be as long as a batch."""
    flags = values(first_call(dry_run("table1_wmt17", **ONE_ROW), "fairseq-generate"))

    assert "--max-len-a" not in flags
    assert flags["--beam"] == "4"
    assert flags["--max-source-positions"] == flags["--max-tokens"]
    assert flags["--max-target-positions"] == flags["--max-tokens"]


def test_torchrun_starts_the_processes_of_one_training():
    commands = dry_run("table1_wmt17", **ONE_ROW, GPUS=4, LAUNCH="torchrun")

    train = next(words for words in commands if "fairseq-train" in words)
    assert train[:5] == ["torchrun", "--nproc-per-node", "4", "--no-python", "fairseq-train"]
    assert values(train)["--distributed-world-size"] == "4"  # otherwise each process would train on its own


METHODS_OF_JOBS = ("deepnorm", "post_ln")


class Submission(NamedTuple):
    """What LAUNCH=slurm submits: method -> text of the job of its row; and what the script prints."""

    jobs: dict[str, str]
    printed: str


@pytest.fixture(scope="module")
def submission(tmp_path_factory) -> Submission:
    """Provide the submission of two rows, of METHODS_OF_JOBS, each on 2 machines of 8 GPUs.

    A stand-in for sbatch keeps each job and answers that its number is 42.
    """
    folder = tmp_path_factory.mktemp("slurm")
    sbatch = folder / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f'#!/bin/sh\ncat >"{folder}/job-$$"\necho 42\n')
    sbatch.chmod(0o755)
    (folder / "data").mkdir()
    rows = {"METHODS": " ".join(METHODS_OF_JOBS), "DEPTHS": "6", "AVERAGE": "36-45"}
    places = {"DATA": folder / "data", "OUT": folder / "out", "PATH": f"{sbatch.parent}:{os.environ['PATH']}"}
    printed = script("table1_wmt17", "--patience", "3", LAUNCH="slurm", GPUS=8, NODES=2, **rows, **places).stdout

    jobs = {}
    for file in folder.glob("job-*"):
        job = file.read_text()
        (method,) = [method for method in METHODS_OF_JOBS if f"--row {method}-" in job]
        jobs[method] = job
    return Submission(jobs, printed)


@pytest.mark.smoke
def test_slurm_gets_each_row_as_a_job(submission):
    assert submission.jobs.keys() == set(METHODS_OF_JOBS)
    assert submission.printed.count("job 42") == 2


@pytest.mark.smoke
@pytest.mark.parametrize("method", METHODS_OF_JOBS)
def test_a_slurm_job_asks_for_its_nodes_and_can_be_requeued(method, submission):
    job = submission.jobs[method]

    assert "#SBATCH --requeue" in job
    assert "scontrol requeue" in job
    assert "#SBATCH --nodes=2" in job
    assert "#SBATCH --gpus-per-node=8" in job
    assert f"--job-name=table1-{method}-6-seed1" in job


@pytest.mark.smoke
@pytest.mark.parametrize("method", METHODS_OF_JOBS)
def test_a_slurm_job_runs_the_experiment_narrowed_to_its_row(method, submission):
    """The job, run by bash with --dry-run=commands added, lists the commands of one row with the user's settings."""
    job = submission.jobs[method]
    dry = job.replace(" -- ", f" {COMMANDS} -- ")  # behind -- are flags of fairseq-train
    environment = os.environ | {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]"}

    ran = subprocess.run(["bash"], input=dry, capture_output=True, text=True, env=environment)

    assert "--average=36-45" in job
    (train,) = [line.split() for line in ran.stdout.splitlines() if "fairseq-train" in line]
    assert train[0] == "srun"
    assert "--nnodes" in train
    flags = values(train)
    assert flags["--method"] == method
    assert flags["--distributed-world-size"] == "16"  # 2 machines of 8 GPUs
    assert flags["--patience"] == "3"


WRONG = {  # script, setting, its value -> what the refusal's line names
    ("table1_wmt17", "GPUS", 3): ("--gpus: ", "3", "128"),  # 3 GPUs cannot share the paper's 128 batches
    ("table1_wmt17", "MAX_TOKENS", 3000): ("--max-tokens 3000: ", "524288"),  # the paper's tokens of an update
    ("table1_wmt17", "LAUNCH", "mpirun"): ("--launch: ", "'mpirun'"),
    ("table1_wmt17", "PRECISION", "fp8"): ("--precision: ", "'fp8'"),
    ("table1_wmt17", "RECOMPUTE", 2): ("RECOMPUTE=2: ", "1 or 0"),
    ("admin_wmt14", "RECIPE", "mine"): ("--recipe mine: ",),
    ("table1_wmt17", "DEPTHS", "6 0"): ("--depths: 0 ",),
    ("table1_wmt17", "AVERAGE", "45-36"): ("--average 45-36: ",),
    ("table1_wmt17", "AVERAGE", "10-"): ("--average 10-: ",),
    ("table1_wmt17", "METHODS", "deepnrom"): ("--method deepnrom: ",),
    ("table1_wmt17", "DATA", "/nowhere"): ("--data /nowhere: ",),
    ("opus100", "DEPTHS", 7): ("--depths: 7 ",),
    ("normformer_lm", "PARTS", "clm glue"): ("PARTS: glue ", "clm, ablation, mlm"),
    ("normformer_lm", "SEEDS", 1): ("normformer_clm: ", "--data", "deepnet prepare lm"),
    ("normformer_lm", "TEXT", "train valid"): ("--text: ", "3"),
    ("normformer_lm", "LRS", "1e-3 fast"): ("--lrs fast: ",),
    ("normformer_lm", "SIZES", "13b"): ("--sizes 13b: ", "125m, 355m, 1.3b, 2.7b"),
    ("later_methods", "METHODS", "nothing+qk-norm"): ("--method nothing: ",),
}


@pytest.mark.parametrize("name, setting, value", WRONG)
def test_a_wrong_setting_is_refused_by_its_flag(name, setting, value):
    """The script itself refuses with status 1, argparse with 2."""
    done = script(name, COMMANDS, check=False, **{setting: value})

    assert done.returncode in (1, 2)
    refusal = done.stderr.splitlines()[-1]
    for fact in WRONG[name, setting, value]:
        assert fact in refusal


HOPELESS_ROW = {"PLAN": 1, "METHODS": "post_ln", "DEPTHS": 18}  # diverged in the paper
STOPPED = [  # script, settings, --stop-stuck: updates after which a training that has learnt nothing is ended
    ("table1_wmt17", {}, None),
    ("table1_wmt17", HOPELESS_ROW, "10000"),  # a plan asks for it by default
    ("table1_wmt17", HOPELESS_ROW | {"STOP_STUCK": 0}, None),
    ("table1_wmt17", {"STOP_STUCK": 5000}, "5000"),
    ("table1_wmt17", {"SMOKE": 1}, "200"),  # the default of a miniature
    ("table1_wmt17", {"SMOKE": 1, "STOP_STUCK": 0}, None),
    ("opus100", {"STOP_STUCK": 5000}, None),  # opus100 never validates, so that nothing is noticed
]


@pytest.mark.parametrize("name, setting, updates", STOPPED)
def test_trainings_that_learn_nothing_are_ended_as_the_settings_ask(name, setting, updates, tmp_path):
    rows = [values(words) for words in trainings(name, OUT=tmp_path, DATA=tmp_path, **setting)]

    assert rows
    assert {flags.get("--stop-stuck") for flags in rows} == {updates}
