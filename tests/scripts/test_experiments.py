"""Tests of the scripts of tables and experiments: the papers' hyper-parameters, batches and launchers."""

import os
import subprocess

import pytest

from ..support.experiments import COMMANDS, batch, dry_run, needs_venv, script, trainings, values
from ..support.helpers import ROOT

pytestmark = needs_venv

# Recipes of DeepNet's Tables 4 to 8 (appendix) and of Admin's authors. Batches are in tokens an update.
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
PAPER = {  # script: number of rows, tokens an update, flags
    "iwslt14_de_en": (10 * 10, 4000, BASE | {
        "--lr": "5e-4", "--warmup-updates": "4000", "--adam-eps": "1e-8", "--max-update": "8000", "--clip-norm": "0.0",
        "--dropout": "0.4", "--weight-decay": "1e-4", "--optimizer": "deepnet_adam",
    }),
    "table1_wmt17": (10 * 4, 128 * 4096, BASE | {
        "--lr": "1.5e-3", "--warmup-updates": "4000", "--adam-eps": "1e-8", "--max-update": "100000",
        "--clip-norm": "0.0", "--dropout": "0.4", "--weight-decay": "1e-4", "--optimizer": "deepnet_adam",
    }),
    "opus100": (5, 128 * 4096, BASE | {
        "--lr": "5e-4", "--warmup-updates": "4000", "--adam-eps": "1e-8", "--max-epoch": "4", "--clip-norm": "0.0",
        "--dropout": "0.1", "--weight-decay": "0.0", "--optimizer": "deepnet_adam", "--encoder-langtok": "tgt",
        "--sampling-method": "temperature",
    }),
    "table3_m2m": (1, 256 * 4096, LARGE | {
        "--lr": "5e-4", "--warmup-updates": "6000", "--adam-eps": "1e-6", "--max-update": "260000",
        "--clip-norm": "1.0", "--dropout": "0.1", "--weight-decay": "0.0", "--encoder-layers": "100",
    }),
    "admin_wmt14": (3 * 4, 4 * 8192, BASE | ADMIN | {
        "--lr": "1e-3", "--warmup-updates": "8000", "--max-epoch": "100", "--max-update": "500000",
        "--dropout": "0.1", "--weight-decay": "0.0", "--seed": "1111",
    }),
    "admin_wmt14_en_fr": (11, 80 * 8000, BASE | ADMIN | {
        "--lr": "7e-4", "--warmup-updates": "8000", "--max-epoch": "50", "--dropout": "0.1", "--weight-decay": "0.0",
        "--seed": "1111",
    }),
    "admin_iwslt14": (3 * 2 * 5, 4096, ADMIN | {
        "--encoder-embed-dim": "512", "--encoder-ffn-embed-dim": "1024", "--encoder-attention-heads": "4",
        "--lr": "7e-4", "--warmup-updates": "6000", "--max-epoch": "90", "--max-update": "100000", "--dropout": "0.3",
        "--weight-decay": "1e-4",
    }),
}  # fmt: skip
ROW = {"METHODS": "deepnorm", "DEPTHS": 6}
NO_NORM = {"rezero", "r_fixup", "t_fixup"}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_hyper_parameters(name, tmp_path):
    """Every row has the paper's hyper-parameters, and the paper's batch on the default number of GPUs."""
    rows, tokens, paper = PAPER[name]
    commands = [values(words) for words in trainings(name, OUT=tmp_path / "out")]
    assert len(commands) == rows
    for flags in commands:
        expected = dict(EVERYWHERE | paper)
        if name == "table1_wmt17" and flags["--method"] in NO_NORM:  # the second column of the paper's Table 5
            expected["--lr"] = "5e-4"
        if name == "iwslt14_de_en" and flags["--method"] == "rezero":  # the paper trains it in fp32, in Figure 6 alone
            assert "--fp16" not in flags
            del expected["--fp16"]
        if "no_warmup" in flags["--save-dir"]:
            expected |= {"--lr": "3e-4", "--adam-betas": "(0.9, 0.995)", "--warmup-updates": "0"}
            expected |= {"--lr-scheduler": "polynomial_decay", "--warmup-init-lr": None, "--total-num-update": "100000"}
        assert {flag: flags.get(flag) for flag in expected} == expected
        assert batch(flags) == (256 * 5000 if flags["--encoder-layers"] == "60" and tokens == 640000 else tokens)
        assert ("--share-all-embeddings" in flags) and flags.get("--init-profile") == (
            "xavier_legacy" if "admin" in name and flags["--method"] in ("post_ln", "pre_ln") else None
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("gpus, nodes, tokens", [(1, 1, 4096), (8, 4, 4096), (8, 1, 2048)])
def test_an_update_is_the_papers_on_any_number_of_gpus(gpus, nodes, tokens):
    launch = {"LAUNCH": "torchrun", "SLURM_JOB_ID": 1} if nodes > 1 else {}
    (words,) = trainings("table1_wmt17", **ROW, GPUS=gpus, NODES=nodes, MAX_TOKENS=tokens, **launch)
    assert batch(values(words)) == 128 * 4096
    assert values(words)["--distributed-world-size"] == str(gpus * nodes)


def test_admins_depths_and_seeds():
    """Admin's scripts train the depths of the papers and the seeds of its authors, unless others are named."""
    commands = [values(words) for words in trainings("admin_wmt14_en_fr")]
    depths = [(flags["--method"], f"{flags['--encoder-layers']}-{flags['--decoder-layers']}") for flags in commands]
    assert sorted(depths) == sorted(
        [("admin", pair) for pair in ("6-6", "12-12", "24-12", "48-12", "60-12", "36-36", "12-60")]
        + [(method, pair) for method in ("post_ln", "pre_ln") for pair in ("6-6", "60-12")]
    )
    for seeds, of_rows in ({}, [1111, 1111, 2222, 2222, 3333, 3333, 4444, 4444, 5555, 5555]), ({"SEEDS": 7}, [7, 7]):
        commands = [values(words) for words in trainings("admin_iwslt14", METHODS="admin", **seeds)]
        assert [int(flags["--seed"]) for flags in commands] == of_rows


@pytest.mark.parametrize("average, of", [("", ["--last", "10"]), ("36-45", range(36, 46)), ("1", [])])
def test_what_the_paper_leaves_open_is_a_setting(average, of, tmp_path):
    chosen = {"AVERAGE": average, "SHARE_EMBEDDINGS": int(average == ""), "OUT": tmp_path}
    lines, run = dry_run("table1_wmt17", **ROW, **chosen), tmp_path / "table1" / "deepnorm-6-seed1"
    files = [str(run / f"weights{epoch}.pt") for epoch in of] if isinstance(of, range) else [str(run), *of]
    assert [words[2:-2] for words in lines if words[:2] == ["deepnet", "average"]] == ([files] if of else [])
    train, translate = (
        next(words for words in lines if words[0] == f"fairseq-{name}") for name in ("train", "generate")
    )
    assert ("--share-all-embeddings" in train) == (average == "")
    assert values(translate)["--path"] == str(run / ("averaged.pt" if of else "checkpoint_last.pt"))


DEEP = {"DEPTHS": "100", "METHODS": "deepnorm"}
FITTING = [  # settings -> tokens of a GPU's batch, recomputation; without a plan the depth decides
    ({"PLAN": 1, "GPU_MEMORY": 80}, ("8192", False)),
    ({"PLAN": 1, "GPU_MEMORY": 80, "RECOMPUTE": 1}, ("16384", True)),
    ({"PLAN": 1, "GPU_MEMORY": 24, "MAX_TOKENS": 2048, "GPUS": 2}, ("2048", True)),
    ({"PLAN": 0}, ("4096", True)),
    ({"PLAN": 0, "RECOMPUTE": 0}, ("4096", False)),
]


@pytest.mark.parametrize("setting, expected", FITTING)
def test_memory_decides_on_batch_and_recomputation(setting, expected):
    """GPU memory decides on the batch and on recomputation; an update keeps the paper's number of tokens."""
    (flags,) = map(values, trainings("table1_wmt17", **DEEP, **setting))
    assert (flags["--max-tokens"], "--checkpoint-activations" in flags) == expected and batch(flags) == 128 * 4096


def test_recipes_of_60_layers():
    """RECIPE=deepnmt trains microsoft/deepnmt's 60 layers: En-Fr by its repository, En-De by its paper's text."""
    for name, tokens, expected, beam in (
        ("admin_wmt14_en_fr", 3200 * 8 * 16, ("1e-3", "0.2", "8000", "50"), ("10", "1.0")),
        ("admin_wmt14", 4 * 8192, ("1e-3", "0.1", "4000", "50"), ("4", "0.6")),
    ):
        lines = dry_run(name, RECIPE="deepnmt", METHODS="admin", DEPTHS="60-12" if "fr" in name else "60")
        train, translate = (
            values(next(words for words in lines if words[0] == f"fairseq-{it}")) for it in ("train", "generate")
        )
        flags = ("--lr", "--dropout", "--warmup-updates", "--max-epoch")
        assert tuple(train[flag] for flag in flags) == expected and batch(train) == tokens
        assert (translate["--beam"], translate["--lenpen"]) == beam and f"{name}_deepnmt/" in train["--save-dir"]
        assert (train["--optimizer"], train["--encoder-layers"], train["--decoder-layers"]) == ("radam", "60", "12")


@pytest.mark.parametrize("order, rows", [
    ({}, [("deepnorm", "18"), ("deepnorm", "6"), ("admin", "18"), ("admin", "6")]),
    ({"ORDER": "shallowest"}, [("deepnorm", "6"), ("admin", "6"), ("deepnorm", "18"), ("admin", "18")]),
    ({"ORDER": "given"}, [("deepnorm", "18"), ("admin", "18"), ("deepnorm", "6"), ("admin", "6")]),
])  # fmt: skip
def test_rows_come_in_the_order_asked_for(order, rows):
    """Rows run in the order asked for: seed by seed, the first method first, the deepest first by default."""
    words = trainings("table1_wmt17", METHODS="deepnorm admin", DEPTHS="18 6", SEEDS="1 7", **order)
    actual = [(flags["--seed"], flags["--method"], flags["--encoder-layers"]) for flags in map(values, words)]
    assert actual == [(seed, *row) for seed in "17" for row in rows]


def test_a_dry_run_is_a_table(tmp_path):
    """A dry run prints a table of the remaining rows with hours, memory and disk, and writes nothing.

    A cell that diverged in the paper is planned with fewer updates.
    """
    done = tmp_path / "table1" / "deepnorm-6-seed1"
    done.mkdir(parents=True)
    (done / "trained").touch()
    asked = {"METHODS": "deepnorm post_ln", "DEPTHS": "6 100", "OUT": tmp_path, "GPU_MEMORY": 40, "TFLOPS": 50}
    plan = script("table1_wmt17", "--dry-run", PLAN=1, **asked).stdout
    assert [line.split()[0] for line in plan.splitlines()[3:7]] == [
        f"{method}-{depth}-seed1" for method in ("deepnorm", "post_ln") for depth in (100, 6)
    ]
    assert max(map(len, plan.splitlines())) <= 100 and " 11,000* " in plan and "fairseq-train" not in plan
    # 100,000 and 11,000 updates at 50 TFLOP/s of each of 8 GPUs; 3 checkpoints of 14 bytes a parameter, 11 + 1 of
    # weights of 2
    assert "4 rows, 1 of them done: 200 hours (8.3 days) at 50 TFLOP/s of each GPU, as given" in plan
    assert "disk: at most 56 GB, in the end 6.6 GB" in plan and "memory: at most 30.1 GiB of 40" in plan
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table1"]


def test_a_dry_run_makes_no_environment(tmp_path):
    words = f"source scripts/lib/entry.sh; checkout={tmp_path}; PATH=/usr/bin:/bin; environment --dry-run"
    done = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "activate an environment with deepnet_fairseq" in done.stderr
    assert not any(tmp_path.iterdir())


def test_admin_is_profiled_before_it_is_trained():
    profile, train = dry_run("admin_wmt14", METHODS="admin", DEPTHS=18)[1:3]
    assert profile[:2] == ["deepnet", "profile"] and train[0] == "fairseq-train"
    assert values(profile)["--out"] == values(train)["--admin-profile"]
    assert values(profile)["--encoder-layers"] == "18" and "--admin-profile" not in profile


def test_lengths_of_translations():
    """Translations have fairseq's default lengths, as in the authors' evaluation, but for the longest sentence."""
    flags = values(next(words for words in dry_run("table1_wmt17", **ROW) if words[0] == "fairseq-generate"))
    assert "--max-len-a" not in flags and flags["--beam"] == "4"
    assert flags["--max-source-positions"] == flags["--max-target-positions"] == flags["--max-tokens"]


def test_torchrun():
    lines = dry_run("table1_wmt17", **ROW, GPUS=4, LAUNCH="torchrun")
    train = next(words for words in lines if "fairseq-train" in words)
    assert train[:5] == ["torchrun", "--nproc-per-node", "4", "--no-python", "fairseq-train"]
    assert values(train)["--distributed-world-size"] == "4"  # otherwise each process would train on its own


@pytest.mark.smoke
def test_slurm_runs_each_row_as_a_job(tmp_path):
    """LAUNCH=slurm submits each row as a job that runs the experiment narrowed to the row."""
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\ncat >"{tmp_path}/job-$$"\necho 42\n')
    fake.chmod(0o755)
    (tmp_path / "data").mkdir()
    setting = {"METHODS": "deepnorm post_ln", "DEPTHS": "6", "DATA": tmp_path / "data", "OUT": tmp_path / "out"}
    setting["AVERAGE"] = "36-45"
    path = f"{fake.parent}:{os.environ['PATH']}"
    done = script("table1_wmt17", "--patience", "3", LAUNCH="slurm", GPUS=8, NODES=2, PATH=path, **setting)
    assert done.stdout.count("job 42") == 2 and "submitted" in done.stdout
    jobs = sorted(tmp_path.glob("job-*"), key=lambda job: "--row post_ln" in job.read_text())
    for job, method in zip(jobs, ("deepnorm", "post_ln"), strict=True):
        text = job.read_text()
        assert "#SBATCH --requeue" in text and "#SBATCH --nodes=2" in text and "#SBATCH --gpus-per-node=8" in text
        assert "scontrol requeue" in text and f"--job-name=table1-{method}-6-seed1" in text
        assert "--average=36-45" in text
        dry = text.replace(" -- ", f" {COMMANDS} -- ").replace("SBATCH_", "")
        env = os.environ | {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]"}
        ran = subprocess.run(["bash"], input=dry, capture_output=True, text=True, env=env)
        train = next(line for line in ran.stdout.splitlines() if "fairseq-train" in line).split()
        assert train[0] == "srun" and "--nnodes" in train and values(train)["--method"] == method
        assert values(train)["--distributed-world-size"] == "16" and values(train)["--patience"] == "3"


WRONG = {  # script and settings -> words of the refusal
    ("table1_wmt17", "GPUS", 3): "--gpus: 3 GPUs must divide 128",
    ("table1_wmt17", "MAX_TOKENS", 3000): "do not divide the paper's batch of 524288",
    ("table1_wmt17", "LAUNCH", "mpirun"): "--launch: invalid choice: 'mpirun'",
    ("table1_wmt17", "PRECISION", "fp8"): "--precision: invalid choice: 'fp8'",
    ("table1_wmt17", "RECOMPUTE", 2): "RECOMPUTE=2: choose 1 or 0",
    ("admin_wmt14", "RECIPE", "mine"): "--recipe mine: ",
    ("table1_wmt17", "DEPTHS", "6 0"): "--depths: 0 is no whole number above 0",
    ("table1_wmt17", "AVERAGE", "45-36"): "--average 45-36: ",
    ("table1_wmt17", "METHODS", "deepnrom"): "--method deepnrom: unknown",
    ("table1_wmt17", "DATA", "/nowhere"): "--data /nowhere: no such folder",
    ("opus100", "DEPTHS", 7): "--depths: 7 is no even number of layers",
    ("normformer_lm", "PARTS", "clm glue"): "PARTS: glue is none of clm, ablation, mlm",
    ("normformer_lm", "SEEDS", 1): "the paper's text is not public: --data DIR of deepnet prepare lm",
    ("normformer_lm", "TEXT", "train valid"): "--text: expected 3 arguments",
    ("normformer_lm", "LRS", "1e-3 fast"): "--lrs fast: ",
    ("normformer_lm", "SIZES", "13b"): "--sizes 13b: normformer_clm has 125m, 355m, 1.3b, 2.7b",
    ("later_methods", "METHODS", "nothing+qk-norm"): "--method nothing: unknown",
}


@pytest.mark.parametrize("name, setting, value", WRONG)
def test_wrong_settings(name, setting, value):
    done = script(name, COMMANDS, check=False, **{setting: value})
    assert done.returncode in (1, 2) and WRONG[name, setting, value] in done.stderr.splitlines()[-1]


STOPPED = [  # script, settings, updates after which a stuck training is ended
    ("table1_wmt17", {}, None),
    ("table1_wmt17", {"PLAN": 1, "METHODS": "post_ln", "DEPTHS": 18}, "10000"),  # diverged in the paper
    ("table1_wmt17", {"PLAN": 1, "METHODS": "post_ln", "DEPTHS": 18, "STOP_STUCK": 0}, None),
    ("table1_wmt17", {"STOP_STUCK": 5000}, "5000"),
    ("table1_wmt17", {"SMOKE": 1}, "200"),
    ("table1_wmt17", {"SMOKE": 1, "STOP_STUCK": 0}, None),
    ("opus100", {"STOP_STUCK": 5000}, None),  # it validates nothing
]


@pytest.mark.parametrize("name, setting, updates", STOPPED)
def test_hopeless_trainings_are_ended_if_asked_for(name, setting, updates, tmp_path):
    commands = [values(words) for words in trainings(name, OUT=tmp_path, DATA=tmp_path, **setting)]
    assert commands and {flags.get("--stop-stuck") for flags in commands} == {updates}
