"""Tests of scripts/figure3.sh to figure8.sh: their commands, and one run from corpus to picture."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from deepnet_fairseq.plugin.probe_record import read_record

from ..support.experiments import COMMANDS, dry_run, needs_venv, script, start, trainings, until, values
from ..support.marks import smoke_but

pytestmark = needs_venv


def figure(number, *flags, **setting):
    """Run scripts/figureNUMBER.sh. flags: of the script or fairseq-train; setting: environment variables."""
    return script(f"figure{number}", *flags, **setting)


def rows_of_figure(number, *flags, **setting) -> list[dict[str, str]]:
    """Return the flags of each training that --dry-run prints, flag -> its last value."""
    return [values(words) for words in trainings(f"figure{number}", *flags, **setting)]


FIGURES = {  # figure of DeepNet -> number of its trainings, flags of each by the paper's appendix
    3: (2 + 2 * 19, {"--lr": "5e-4", "--warmup-updates": "4000", "--max-tokens": "4000", "--dropout": "0.4"}),
    4: (3, {"--lr": "5e-4", "--max-update": "30", "--init-profile": "fairseq_head", "--weight-decay": "1e-4"}),
    5: (2 * 95, {"--encoder-embed-dim": "64", "--encoder-ffn-embed-dim": "128", "--encoder-attention-heads": "2"}),
    7: (9, {"--max-update": "30000", "--max-tokens": "4096", "--encoder-layers": "18", "--decoder-layers": "18"}),
}
OF_ALL_FIGURES = {"--adam-betas": "(0.9, 0.98)", "--label-smoothing": "0.1"}


@pytest.mark.parametrize("number", FIGURES)
def test_a_figure_has_the_trainings_and_hyper_parameters_of_the_paper(tmp_path, number):
    """A flag of the caller, --patience, goes to each training. A dry run writes nothing."""
    count, flags_of_paper = FIGURES[number]
    expected = OF_ALL_FIGURES | flags_of_paper | {"--patience": "7"}

    rows = rows_of_figure(number, "--patience", "7", OUT=str(tmp_path / "out"))

    assert len(rows) == count
    for flags in rows:
        assert {flag: flags.get(flag) for flag in expected} == expected
    assert not (tmp_path / "out").exists()


def test_figure_7_sweeps_rate_batch_and_width():
    """Three trainings differ in the rate, three in the batch, in multiples of 4,096 tokens, three in the width."""
    rows = rows_of_figure(7, GPUS=8)

    by_rate = rows[:3]
    by_batch = rows[3:6]
    by_width = rows[6:]
    assert [flags["--lr"] for flags in by_rate] == ["5e-4", "1e-3", "1.5e-3"]
    assert {flags["--lr"] for flags in by_batch} == {"1.5e-3"}
    assert {flags["--lr"] for flags in by_width} == {"5e-4"}
    assert [8 * int(flags["--update-freq"]) for flags in by_rate] == [128, 128, 128]
    assert [8 * int(flags["--update-freq"]) for flags in by_batch] == [64, 128, 256]
    assert [flags["--encoder-embed-dim"] for flags in by_width] == ["512", "768", "1024"]


CORPORA = {3: "iwslt14_de_en", 7: "wmt17_en_de", 8: "opus100"}  # figure -> recipe of its corpus


@pytest.mark.parametrize("number, recipe", CORPORA.items())
def test_a_figure_prepares_its_corpus_first(tmp_path, number, recipe):
    first, *_others = dry_run(f"figure{number}", OUT=tmp_path / "out")

    assert first == ["deepnet", "prepare", "corpus", recipe, f"{tmp_path}/out/data/{recipe}"]


@pytest.mark.parametrize("number", smoke_but((8,), CORPORA))
def test_a_figure_refuses_a_missing_folder_of_data(tmp_path, number):
    absent = tmp_path / "absent"

    done = figure(number, check=False, OUT=tmp_path / "out", DATA=absent)

    assert f"--data {absent}: " in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "vocabulary, pieces", [("ver@@ 3\nsuch 2\n", "subword_nmt"), ("▁ver 3\nsuch 2\n", "sentencepiece")]
)
def test_translations_undo_the_subwords_of_the_data(vocabulary, pieces, tmp_path):
    """vocabulary: text of the dictionary in DATA, whose pieces show what has made them: @@ at an end, ▁ at a start."""
    (tmp_path / "dict.de.txt").write_text(vocabulary, encoding="utf-8")

    commands = dry_run("figure6", DATA=tmp_path, DEPTHS="10", METHODS="deepnorm")

    translations = [values(words) for words in commands if words[0] == "fairseq-generate"]
    assert [flags["--remove-bpe"] for flags in translations] == [pieces]


@pytest.fixture(scope="module")
def path_with_four_gpus(tmp_path_factory):
    """Provide a PATH on which nvidia-smi lists four GPUs."""
    nvidia_smi = tmp_path_factory.mktemp("four GPUs") / "nvidia-smi"
    nvidia_smi.write_text("#!/bin/sh\nfor gpu in 0 1 2 3; do echo $gpu; done\n")
    nvidia_smi.chmod(0o755)
    return f"{nvidia_smi.parent}:{os.environ['PATH']}"


def test_figure_6_trains_rezero_alone_in_fp32(path_with_four_gpus):
    """The paper, too, trains ReZero in fp32. On a machine without GPUs no row would be in fp16."""
    rows = rows_of_figure(6, DEPTHS="10 20", METHODS="deepnorm rezero pre_ln", PATH=path_with_four_gpus)

    in_fp32 = [flags["--method"] for flags in rows if "--fp16" not in flags]
    assert in_fp32 == ["rezero", "rezero"]
    assert len(rows) == 6


@pytest.mark.parametrize("number", [4, 5])
def test_figures_of_updates_are_trained_in_fp32(number, path_with_four_gpus):
    """Figures 4 and 5 show the sizes of updates, which rounding to fp16 would disturb."""
    rows = rows_of_figure(number, DEPTHS="6", PATH=path_with_four_gpus)

    assert rows
    for flags in rows:
        assert "--fp16" not in flags


def test_a_figure_has_the_papers_batch_on_four_gpus(path_with_four_gpus):
    """DeepNet's Table 7 has 128 batches an update for OPUS-100: 32 on each of four GPUs."""
    rows = rows_of_figure(8, GPUS=4, PATH=path_with_four_gpus)

    assert rows
    for flags in rows:
        assert flags["--update-freq"] == "32"
        assert flags["--distributed-world-size"] == "4"


def test_more_gpus_than_the_machine_has_are_refused(path_with_four_gpus):
    done = figure(8, COMMANDS, check=False, GPUS=8, PATH=path_with_four_gpus)

    assert re.search(r"--gpus 8: .*\b4\b", done.stderr)


@pytest.mark.smoke
def test_ctrl_c_ends_all_parallel_trainings_of_a_script(data, tmp_path):
    """Two trainings run at a time. No file says that one is over or has failed, so that the next call resumes both.

    130 is the status of a program that Ctrl-C has ended.
    """
    setting = {"SMOKE": 1, "DATA": data, "OUT": tmp_path, "DEPTHS": "4 6", "JOBS": 2}
    process = start("figure8", "--max-update", "100000", **setting)
    runs = [tmp_path / "opus100" / f"deepnorm-{layers}-seed1" for layers in (4, 6)]
    logs = [run / "train.log" for run in runs]

    try:
        until(lambda: all(log.exists() and "train_inner" in log.read_text() for log in logs), 120)
        os.kill(process.pid, signal.SIGINT)
        status = process.wait(timeout=60)
    finally:
        process.terminate()

    assert status == 130
    found = subprocess.run(["pgrep", "-f", f"fairseq-train.*{tmp_path}"], stdout=subprocess.DEVNULL)
    assert found.returncode == 1  # none
    assert not (tmp_path / "opus100" / "failed").exists()
    assert not (runs[0] / "trained").exists()


SHALLOW = ("--encoder-layers", "4", "--decoder-layers", "4")


class DrawnFigure(NamedTuple):
    """Folder OUT of a figure's script, which has trained and drawn it, and what the script printed."""

    out: Path
    printed: str

    @property
    def picture(self) -> Path:
        return self.out / "figure4.png"


@pytest.fixture(scope="module")
def figure_4(data, tmp_path_factory) -> DrawnFigure:
    """Provide Figure 4 in miniature: 4L-4L models on generated data."""
    out = tmp_path_factory.mktemp("figure 4")
    return DrawnFigure(out, figure(4, *SHALLOW, SMOKE=1, DATA=data, OUT=out).stdout)


@pytest.mark.smoke
def test_a_training_that_fails_ends_its_figure_without_a_picture(data, tmp_path):
    """fairseq-train refuses a missing file to start from. The message names the log of the training."""
    done = figure(4, "--restore-file", "missing.pt", check=False, SMOKE=1, DATA=data, OUT=tmp_path / "failed")

    assert done.returncode == 1
    assert "log:" in done.stderr
    assert "figure4.png" not in os.listdir(tmp_path / "failed")


@pytest.mark.smoke
def test_figure_4_trains_three_runs_and_draws_the_picture(figure_4):
    assert figure_4.printed.count("training ") == 3
    assert "Figure 4" in figure_4.printed
    assert figure_4.picture.stat().st_size > 0


@pytest.mark.smoke
@pytest.mark.parametrize("series", ["post_ln_no_warmup", "post_ln_warmup", "post_ln_init_warmup"])
def test_figure_4_records_the_probes_of_30_updates(series, figure_4):
    run = figure_4.out / "figure4" / series

    assert json.loads((run / "run.json").read_text())["series"] == series
    assert read_record(run / "probes.jsonl").updates() == list(range(30))


@pytest.mark.smoke
def test_a_second_call_of_figure_4_trains_nothing(data, figure_4):
    picture = figure_4.picture.read_bytes()

    again = figure(4, *SHALLOW, SMOKE=1, DATA=data, OUT=figure_4.out).stdout

    assert "training " not in again
    assert figure_4.picture.read_bytes() == picture


@pytest.mark.smoke
def test_another_rate_than_that_of_the_trained_runs_is_refused(data, figure_4):
    """Runs of two rates would be mixed in one picture. The picture of the trained runs stays."""
    picture = figure_4.picture.read_bytes()

    done = figure(4, "--lr", "1", check=False, SMOKE=1, DATA=data, OUT=figure_4.out)

    assert done.returncode == 1
    assert "--lr " in done.stderr
    assert figure_4.picture.read_bytes() == picture
