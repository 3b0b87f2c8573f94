"""Tests of scripts/figure3.sh to figure8.sh: their commands, and one run from corpus to picture."""

import json
import os
import signal
import subprocess

import pytest

from deepnet_fairseq.plugin.probe_record import read_record

from ..support.experiments import COMMANDS, dry_run, needs_venv, script, start, trainings, until, values

pytestmark = needs_venv


def figure(number, *flags, **setting):
    """Run a figure's script."""
    return script(f"figure{number}", *flags, **setting)


def commands(number, *flags, **setting):
    """Return the flags of each training that --dry-run prints, flag -> its last value."""
    return [values(words) for words in trainings(f"figure{number}", *flags, **setting)]


@pytest.mark.parametrize(
    "number, count, paper",
    [
        (3, 2 + 2 * 19, {"--lr": "5e-4", "--warmup-updates": "4000", "--max-tokens": "4000", "--dropout": "0.4"}),
        (4, 3, {"--lr": "5e-4", "--max-update": "30", "--init-profile": "fairseq_head", "--weight-decay": "1e-4"}),
        (5, 2 * 95, {"--encoder-embed-dim": "64", "--encoder-ffn-embed-dim": "128", "--encoder-attention-heads": "2"}),
        (7, 9, {"--max-update": "30000", "--max-tokens": "4096", "--encoder-layers": "18", "--decoder-layers": "18"}),
    ],
)
def test_the_papers_setting(tmp_path, number, count, paper):
    """Figure scripts have the number of trainings and the hyper-parameters of the paper's appendix."""
    runs = commands(number, "--patience", "7", OUT=str(tmp_path / "out"))
    assert len(runs) == count
    always = {"--adam-betas": "(0.9, 0.98)", "--label-smoothing": "0.1", "--patience": "7"}
    assert all((paper | always).items() <= flags.items() for flags in runs)
    assert not (tmp_path / "out").exists()


def test_sweeps_of_figure_7():
    runs = commands(7, GPUS=8)
    batches = [int(flags["--update-freq"]) * 8 for flags in runs]
    assert [flags["--lr"] for flags in runs] == ["5e-4", "1e-3", "1.5e-3", *["1.5e-3"] * 3, *["5e-4"] * 3]
    assert batches[:6] == [128] * 3 + [64, 128, 256]
    assert [flags["--encoder-embed-dim"] for flags in runs[6:]] == ["512", "768", "1024"]


@pytest.mark.parametrize("number, recipe", [(3, "iwslt14_de_en"), (7, "wmt17_en_de"), (8, "opus100")])
def test_data(tmp_path, number, recipe):
    """A figure's script prepares its corpus first unless DATA is given, and refuses a missing folder."""
    first = figure(number, COMMANDS, OUT=tmp_path / "out").stdout.splitlines()[0]
    assert first == f"deepnet prepare corpus {recipe} {tmp_path}/out/data/{recipe}"
    done = figure(number, check=False, OUT=tmp_path / "out", DATA=tmp_path / "absent")
    assert f"--data {tmp_path / 'absent'}: no such folder" in done.stderr.splitlines()[-1]


def test_pieces_of_the_data(tmp_path):
    """Translations undo the subwords of the data: subword-nmt's of IWSLT-14, or sentencepiece's."""
    for text, pieces in (("ver@@ 3\nsuch 2\n", "subword_nmt"), ("▁ver 3\nsuch 2\n", "sentencepiece")):
        (tmp_path / "dict.de.txt").write_text(text, encoding="utf-8")
        calls = dry_run("figure6", DATA=tmp_path, DEPTHS="10", METHODS="deepnorm")
        assert [values(words)["--remove-bpe"] for words in calls if words[0] == "fairseq-generate"] == [pieces]


def test_precision_and_gpus(tmp_path):
    """Trainings use fp16, except Figures 4 and 5 and ReZero in Figure 6.

    An update has the paper's batch on any number of GPUs.
    """
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nfor gpu in 0 1 2 3; do echo $gpu; done\n")
    fake.chmod(0o755)
    path = f"{fake.parent}:{os.environ['PATH']}"
    six = commands(6, DEPTHS="10 20", METHODS="deepnorm rezero pre_ln", PATH=path)
    assert [flags["--method"] for flags in six if "--fp16" not in flags] == ["rezero", "rezero"]
    for number in (4, 5):
        assert not any("--fp16" in flags for flags in commands(number, DEPTHS="6", PATH=path))
    eight = commands(8, GPUS=4, PATH=path)
    assert {(flags["--update-freq"], flags["--distributed-world-size"]) for flags in eight} == {("32", "4")}
    assert "--gpus 8: this machine has 4" in figure(8, COMMANDS, check=False, GPUS=8, PATH=path).stderr


@pytest.mark.smoke
def test_ctrl_c_leaves_nothing_running(data, tmp_path):
    """Ctrl-C ends the script with all its parallel trainings, and the next call resumes them."""
    setting = {"SMOKE": 1, "DATA": data, "OUT": tmp_path, "DEPTHS": "4 6", "JOBS": 2}
    process = start("figure8", "--max-update", "100000", **setting)
    logs = [tmp_path / "opus100" / f"deepnorm-{layers}-seed1" / "train.log" for layers in (4, 6)]
    try:
        until(lambda: all(log.exists() and "train_inner" in log.read_text() for log in logs), 120)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.terminate()
    assert subprocess.run(["pgrep", "-f", f"fairseq-train.*{tmp_path}"], stdout=subprocess.DEVNULL).returncode == 1
    assert not (tmp_path / "opus100" / "failed").exists() and not (logs[0].parent / "trained").exists()


@pytest.mark.smoke
def test_figure_4_from_data_to_picture(data, tmp_path):
    """figure4.sh trains three runs and draws the picture; a failed training ends it, a second call trains nothing."""
    done = figure(4, "--criterion", "nonsense", check=False, SMOKE=1, DATA=data, OUT=tmp_path / "failed")
    assert done.returncode == 1 and "whole log:" in done.stderr
    assert "figure4.png" not in os.listdir(tmp_path / "failed")
    shallow = ("--encoder-layers", "4", "--decoder-layers", "4")
    first = figure(4, *shallow, SMOKE=1, DATA=data, OUT=tmp_path).stdout
    assert first.count("training ") == 3 and "Figure 4" in first
    picture = (tmp_path / "figure4.png").read_bytes()
    for series in ("post_ln_no_warmup", "post_ln_warmup", "post_ln_init_warmup"):
        run = tmp_path / "figure4" / series
        assert json.loads((run / "run.json").read_text())["series"] == series
        assert read_record(run / "probes.jsonl").updates() == list(range(30))
    again = figure(4, *shallow, SMOKE=1, DATA=data, OUT=tmp_path).stdout
    other = figure(4, "--lr", "1", check=False, SMOKE=1, DATA=data, OUT=tmp_path)
    assert other.returncode == 1 and "was trained with another --lr (its file command)" in other.stderr
    assert "training " not in again and (tmp_path / "figure4.png").read_bytes() == picture
