"""Tests of scripts/figure3.sh to figure8.sh: their commands, and one run from corpus to picture."""

import json
import os
import re
import signal
import subprocess

import pytest

from deepnet_fairseq.plugin.probe_record import read_record

from ..support.experiments import COMMANDS, dry_run, needs_venv, script, start, trainings, until, values

pytestmark = needs_venv


def figure(number, *flags, **setting):
    """Run a figure's script."""
    return script(f"figure{number}", *flags, **setting)


def rows_of_figure(number, *flags, **setting) -> list[dict[str, str]]:
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
def test_a_figure_has_the_trainings_and_hyper_parameters_of_the_paper(tmp_path, number, count, paper):
    """They are those of the paper's appendix; flags of the caller go to each training."""
    rows = rows_of_figure(number, "--patience", "7", OUT=str(tmp_path / "out"))

    expected = paper | {"--adam-betas": "(0.9, 0.98)", "--label-smoothing": "0.1", "--patience": "7"}
    assert len(rows) == count
    for flags in rows:
        assert {flag: flags.get(flag) for flag in expected} == expected
    assert not (tmp_path / "out").exists()


def test_figure_7_sweeps_rate_batch_and_width():
    """Three trainings differ in the rate, three in the batch, three in the width."""
    rows = rows_of_figure(7, GPUS=8)

    rates = [flags["--lr"] for flags in rows]
    assert rates == ["5e-4", "1e-3", "1.5e-3", *["1.5e-3"] * 3, *["5e-4"] * 3]
    batches = [int(flags["--update-freq"]) * 8 for flags in rows]
    assert batches[:6] == [128, 128, 128, 64, 128, 256]
    widths = [flags["--encoder-embed-dim"] for flags in rows]
    assert widths[6:] == ["512", "768", "1024"]


FIGURES_AND_CORPORA = [(3, "iwslt14_de_en"), (7, "wmt17_en_de"), (8, "opus100")]


@pytest.mark.parametrize("number, recipe", FIGURES_AND_CORPORA)
def test_a_figure_prepares_its_corpus_first(tmp_path, number, recipe):
    commands = figure(number, COMMANDS, OUT=tmp_path / "out").stdout.splitlines()

    assert commands[0] == f"deepnet prepare corpus {recipe} {tmp_path}/out/data/{recipe}"


@pytest.mark.parametrize("number, _recipe", FIGURES_AND_CORPORA)
def test_a_figure_refuses_a_missing_folder_of_data(tmp_path, number, _recipe):
    done = figure(number, check=False, OUT=tmp_path / "out", DATA=tmp_path / "absent")

    assert f"--data {tmp_path / 'absent'}: " in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "vocabulary, pieces", [("ver@@ 3\nsuch 2\n", "subword_nmt"), ("▁ver 3\nsuch 2\n", "sentencepiece")]
)
def test_translations_undo_the_subwords_of_the_data(vocabulary, pieces, tmp_path):
    """They are subword-nmt's, as of IWSLT-14, or sentencepiece's."""
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
    rows = rows_of_figure(6, DEPTHS="10 20", METHODS="deepnorm rezero pre_ln", PATH=path_with_four_gpus)

    in_fp32 = [flags["--method"] for flags in rows if "--fp16" not in flags]
    assert in_fp32 == ["rezero", "rezero"]
    assert len(rows) == 6


@pytest.mark.parametrize("number", [4, 5])
def test_figures_of_updates_are_trained_in_fp32(number, path_with_four_gpus):
    rows = rows_of_figure(number, DEPTHS="6", PATH=path_with_four_gpus)

    assert rows
    for flags in rows:
        assert "--fp16" not in flags


def test_a_figure_has_the_papers_batch_on_four_gpus(path_with_four_gpus):
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
    """Nothing says that a training is over or has failed, so the next call resumes them."""
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


@pytest.fixture(scope="module")
def figure_4(data, tmp_path_factory):
    """Provide the folder of a miniature of Figure 4, and what its script prints."""
    out = tmp_path_factory.mktemp("figure 4")
    return out, figure(4, *SHALLOW, SMOKE=1, DATA=data, OUT=out).stdout


@pytest.mark.smoke
def test_a_training_that_fails_ends_its_figure_without_a_picture(data, tmp_path):
    done = figure(4, "--criterion", "nonsense", check=False, SMOKE=1, DATA=data, OUT=tmp_path / "failed")

    assert done.returncode == 1
    assert "log:" in done.stderr
    assert "figure4.png" not in os.listdir(tmp_path / "failed")


@pytest.mark.smoke
def test_figure_4_trains_three_runs_and_draws_the_picture(figure_4):
    out, printed = figure_4

    assert printed.count("training ") == 3
    assert "Figure 4" in printed
    assert (out / "figure4.png").stat().st_size > 0


@pytest.mark.smoke
@pytest.mark.parametrize("series", ["post_ln_no_warmup", "post_ln_warmup", "post_ln_init_warmup"])
def test_figure_4_records_the_probes_of_30_updates(series, figure_4):
    run = figure_4[0] / "figure4" / series

    assert json.loads((run / "run.json").read_text())["series"] == series
    assert read_record(run / "probes.jsonl").updates() == list(range(30))


@pytest.mark.smoke
def test_a_second_call_of_figure_4_trains_nothing(data, figure_4):
    out, _ = figure_4
    picture = (out / "figure4.png").read_bytes()

    again = figure(4, *SHALLOW, SMOKE=1, DATA=data, OUT=out).stdout

    assert "training " not in again
    assert (out / "figure4.png").read_bytes() == picture


@pytest.mark.smoke
def test_another_rate_than_that_of_the_trained_runs_is_refused(data, figure_4):
    out, _ = figure_4
    picture = (out / "figure4.png").read_bytes()

    done = figure(4, "--lr", "1", check=False, SMOKE=1, DATA=data, OUT=out)

    assert done.returncode == 1
    assert "--lr " in done.stderr
    assert (out / "figure4.png").read_bytes() == picture
