"""Tests of experiments as data, and of what `deepnet reproduce` makes of them; test_dry_runs.py has every command.

An experiment is a file of study/experiments/, such as table1 for Table 1 of DeepNet; a row is one of its trainings.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.cli.reproduce import flags_of_variables
from deepnet_fairseq.study import experiments
from deepnet_fairseq.study.experiment import MethodSpec, Row
from deepnet_fairseq.study.run_folder import RunFolder
from deepnet_fairseq.tools.reproduce import run
from deepnet_fairseq.tools.reproduce.commands import Setting, first_host
from deepnet_fairseq.tools.reproduce.corpus import Step, corpus
from deepnet_fairseq.tools.reproduce.hardware import ASSUMED_MEMORY, hardware, smallest_memory
from deepnet_fairseq.tools.reproduce.slurm import job
from deepnet_fairseq.tools.reproduce.words import differing_flag, format_number

from ..support.errors import assert_refused, refused
from ..support.forked import fork

every_experiment = pytest.mark.parametrize("name", experiments.names())


# experiments as data


@every_experiment
def test_every_experiment_has_a_title_and_the_source_of_its_flags(name):
    """The title is for --list; the source is the place in the paper, as "DeepNet, Table 5"."""
    experiment = experiments.read_experiment(name)

    assert experiment["title"]
    assert experiment["training"]["source"]


@every_experiment
def test_every_batch_has_its_source(name):
    """Language models have a batch for each size; small experiments, made for a CPU, have none of a paper."""
    experiment = experiments.read_experiment(name)

    batches = list(experiment.get("sizes", {}).values())
    if experiment.get("batch"):
        batches.append(experiment["batch"])

    assert batches or experiment["machine"] == "cpu"
    for batch in batches:
        assert batch["source"]


@every_experiment
def test_every_experiment_has_rows_of_different_names(name):
    rows = list(experiments.read_experiment(name).rows(world=1))

    assert rows
    assert len({row.name for row in rows}) == len(rows)


@every_experiment
def test_the_facts_of_a_row_are_those_of_its_flags(name):
    """Facts are what reports know of a row; flags are fairseq-train's."""
    for row in experiments.read_experiment(name).rows(world=1):
        assert row.flags["method"] == row.method
        for stack in ("encoder", "decoder"):
            if f"{stack}-layers" in row.flags:  # otherwise the architecture has the number
                assert row.facts[f"{stack}_layers"] == row.flags[f"{stack}-layers"]


@every_experiment
def test_every_key_of_an_experiment_is_explained(name):
    """The module's docstring, where somebody who writes an experiment looks, has each key of each file."""
    explained = set(re.findall(r"[a-z_]+", experiments.__doc__))
    keys = set(experiments.read_experiment(name).content)

    assert keys
    assert keys <= explained


def test_a_method_is_written_with_its_options_and_a_rate():
    """Options of a method go without its name; others are flags of fairseq-train; a rate stands behind @."""
    spec = MethodSpec.parse("normformer+scale_residual+head_scale=none+qk-norm@1e-3")

    assert spec.flags == {
        "method": "normformer",
        "normformer-scale-residual": True,
        "normformer-head-scale": "none",
        "qk-norm": True,
    }
    assert spec.rate == "1e-3"
    assert spec.options_text == "scale_residual+head_scale=none+qk-norm"
    assert spec.folder_prefix == "normformer-scale_residual-head_scale-none-qk-norm"


@pytest.fixture
def chosen_language_models():
    """Provide an experiment of one size and two rates, and of two methods, of which post_ln has a rate of its own."""
    return experiments.with_choices(
        experiments.read_experiment("normformer_clm"),
        methods=["deepnorm", "post_ln@2e-4"],
        sizes=["355m"],
        rates=["1e-3", "2e-3"],
    )


def test_a_method_with_a_rate_of_its_own_has_no_other(chosen_language_models):
    names = [row.name for row in chosen_language_models.rows(world=2)]

    assert names == ["deepnorm-355m-lr1e-3-seed1", "deepnorm-355m-lr2e-3-seed1", "post_ln-355m-lr2e-4-seed1"]


def test_a_batch_smaller_than_a_sample_is_refused(chosen_language_models):
    small_batch = experiments.with_choices(chosen_language_models, tokens=1024)

    with refused("--max-tokens 1024") as caught:
        list(small_batch.rows(world=2))
    assert "2048" in caught.value.way_out  # tokens of a sample, as NormFormer has them


def test_an_experiment_like_another_differs_in_its_own_values_alone():
    """figure6.toml is like iwslt14_de_en.toml, whose rows it trains, but is reported otherwise."""
    base = experiments.read_experiment("iwslt14_de_en")
    figure = experiments.read_experiment("figure6")

    keys = base.content.keys() | figure.content.keys()
    differing = {key for key in keys if figure.get(key) != base.get(key)}

    assert differing == {"title", "end", "table"}


def test_a_recipe_has_values_of_its_own():
    """DeepNMT's recipe for WMT-14 warms up for 4,000 updates, Admin's for 8,000."""
    usual = experiments.read_experiment("admin_wmt14")
    recipe = experiments.read_experiment("admin_wmt14", recipe="deepnmt")

    assert usual["training"]["warmup-updates"] == 8000
    assert recipe["training"]["warmup-updates"] == 4000


@pytest.mark.parametrize("world", [1, 8])
@pytest.mark.parametrize(
    ("name", "row_name", "tokens"),
    [
        ("admin_wmt14_en_fr", "admin-60-12-seed1111", 5000 * 256),  # Admin's repository
        ("admin_wmt14_en_fr", "admin-6-6-seed1111", 8000 * 80),  # Admin's repository
        ("figure7", "batch-256", 4096 * 256),  # DeepNet, Figure 7
        ("table1", "admin-6-seed1", 4096 * 128),  # DeepNet, Table 5
    ],
)
def test_an_update_has_the_papers_tokens_on_any_number_of_gpus(name, row_name, tokens, world):
    """tokens: those of a GPU's batch in the paper, times the number of such batches."""
    (row,) = [row for row in experiments.read_experiment(name).rows(world) if row.name == row_name]

    assert row.paper_tokens == tokens
    assert world * row.flags["max-tokens"] * row.flags["update-freq"] == tokens


# words of a command


@pytest.mark.parametrize(
    ("value", "printed"),
    [(0.0, "0.0"), (0.4, "0.4"), (5e-4, "5e-4"), (1.5e-3, "1.5e-3"), (1e-8, "1e-8"), (0.03125, "0.03125")],
)
def test_numbers_are_printed_as_papers_print_them(value, printed):
    assert format_number(value) == printed
    assert float(printed) == value


@pytest.mark.parametrize(
    ("more", "differing"),
    [
        ("--lr 2e-3", "--lr"),
        ("--lr 0.001", None),  # the number is the same
        ("--update-freq 1 --distributed-world-size 8", None),  # 8 batches an update are the same as 1 on 8 processes
        ("--update-freq 4", "--update-freq"),
        ("--fp16", "--fp16"),
        ("--user-dir elsewhere/mine", None),  # it may have moved
        ("--optimizer deepnet_adam", None),  # computes what adam does
        ("--optimizer radam", "--optimizer"),
        ("--share-all-embeddings", "--share-all-embeddings"),
        ("--cuda-graphs 0", None),  # the way out of graphs
    ],
)
def test_a_command_is_another_training_by_the_flag_that_changes_its_results(more, differing):
    """more: flags added to a command, which replace its own; differing: the flag that makes it another training."""
    words = ["data", "--lr", "1e-3", "--optimizer", "adam", "--cpu", "--update-freq", "8", "--user-dir", "mine"]

    assert differing_flag(words, words + more.split()) == differing


# mistakes


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        # nothing of this name
        ("tabel1", "tabel1"),
        ("--recipe mine", "admin_wmt14 --recipe mine"),
        ("--variants cold", "admin_iwslt14 --variants cold --no-plan"),
        ("--row nobody", "table1 --row nobody --no-plan"),
        ("--data /nowhere", "table1 --data /nowhere"),
        # a choice that the experiment does not offer
        ("--sizes", "table1 --sizes 125m"),  # it has depths
        ("--depths", "normformer_clm --depths 12 --smoke"),  # it has sizes
        ("--methods pre_ln+qk-norm", "table1 --methods pre_ln+qk-norm"),  # its methods have no options
        ("--methods", "figure5 --methods admin"),  # its rows have their methods
        ("--seeds", "figure4 --seeds 1,2"),  # it shows one seed
        ("--order", "figure5 --order shallowest"),  # its rows have an order of their own
        ("--separate-embeddings", "normformer_clm --separate-embeddings --smoke"),  # it has one embedding
        ("--update", "table1 --update 4"),  # it is no figure of an update
        ("--average", "normformer_clm --average 5 --smoke"),  # it translates nothing
        ("--precision bf16", "figure4 --precision bf16"),  # it is trained in fp32
        ("--pairs", "table1 --pairs de-en"),  # it is bilingual
        ("--text", "table1 --text a b c"),  # it is trained on a paper's corpus
        ("--data", "normformer_clm --data ."),  # a folder without binarised text
        # machines
        ("--nodes 2", "table1 --nodes 2"),  # nothing would start the second machine
        ("--launch slurm", "later_methods --launch slurm"),  # a small experiment
        ("--launch slurm", "table1 --smoke --launch slurm"),  # a miniature
        # malformed values
        ("--methods ,", "table1 --methods ,"),
        ("--methods pre_ln+", "later_methods --methods pre_ln+"),
        ("--methods pre_ln+../../x", "later_methods --methods pre_ln+../../x"),
        ("--lrs inf", "normformer_clm --lrs inf --smoke"),
        ("--generate '", "table1 --generate '"),
        # two rows of one name
        ("deepnorm-6-seed1", "table1 --methods deepnorm,deepnorm --depths 6"),
        ("lr-5e-4", "figure7 --depths 6,12"),
    ],
)
def test_a_mistake_is_named_in_one_line_and_nothing_is_written(subject, words, tmp_path):
    assert_refused(subject, "reproduce", *words.split(), "--dry-run=commands", "--out", tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_a_multilingual_experiment_needs_its_language_pairs(tmp_path):
    """A dry run needs no --pairs, and shows all directions."""
    assert_refused("--pairs", "reproduce", "table3", "--out", tmp_path / "out")

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flag", ["--gpus -1", "--nodes 0", "--jobs 0", "--tflops -1", "--max-tokens 0", "--gpu-memory x"]
)
def test_a_number_out_of_its_range_is_refused(flag, capsys):
    name, value = flag.split()

    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "table1", "--dry-run", name, value])

    assert ended.value.code == 2  # argparse's
    assert name in capsys.readouterr().err


def test_scripts_take_their_settings_from_variables_and_not_from_flags():
    """scripts/*.sh call `deepnet reproduce NAME --variables`, which reads SMOKE=1; flags are then fairseq-train's."""
    assert_refused("--smoke", "reproduce", "table1", "--variables", "--smoke")


# hardware


@pytest.mark.parametrize(
    ("sizes", "status", "gib"),
    [
        pytest.param("81559 24576", 0, 24.0, id="the smaller of two"),
        pytest.param("[N/A] 24576", 0, 24.0, id="a GPU that does not tell"),
        pytest.param("0 24576", 0, 24.0, id="a GPU that says 0"),
        pytest.param("24576", 9, ASSUMED_MEMORY, id="a driver that fails"),
    ],
)
def test_the_memory_is_that_of_the_smallest_gpu(sizes, status, gib, tmp_path, monkeypatch):
    """sizes: in MiB, as nvidia-smi prints them."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(sizes)} | tr ' ' '\\n'\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    assert smallest_memory() == gib


def put_scontrol(folder, monkeypatch, text: str, status: int) -> None:
    """Let this process be in a job of SLURM whose scontrol prints `text` and exits with `status`."""
    program = folder / "scontrol"
    program.write_text(f"#!/bin/sh\nprintf {shlex.quote(text)}\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[3-5]")


def test_the_first_machine_of_a_job_is_the_one_that_scontrol_names_first(tmp_path, monkeypatch):
    put_scontrol(tmp_path, monkeypatch, "n3\nn4\nn5\n", 0)

    assert first_host() == "n3"


@pytest.mark.parametrize(
    ("text", "status"), [("", 1), ("n3\n", 1), ("", 0)], ids=["it fails", "it prints, then fails", "it names none"]
)
def test_a_job_whose_scontrol_names_no_machine_is_refused_and_printed_in_a_dry_run(text, status, tmp_path, monkeypatch):
    put_scontrol(tmp_path, monkeypatch, text, status)

    with refused("scontrol", "n[3-5]"):
        first_host()

    assert first_host(only_printed=True) == ""


def test_a_job_without_scontrol_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[3-5]")
    monkeypatch.setenv("PATH", str(tmp_path))

    with refused("scontrol"):
        first_host()


def test_a_job_that_does_not_name_its_machines_is_refused(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)

    with refused("scontrol"):
        first_host()


def test_a_batch_of_another_size_than_the_papers_is_told(tmp_path, capsys):
    """A batch with as many tokens as the paper's is not told."""
    experiment = experiments.with_choices(experiments.read_experiment("table1"), methods=["deepnorm"], depths=["6"])
    machine = hardware(papers_gpus=8, only_printed=True)
    setting = Setting(experiment, machine, corpus(experiment, tmp_path), tmp_path)
    run.warn_of_other_batches(setting)
    told_of_the_papers = capsys.readouterr().err

    run.warn_of_other_batches(replace(setting, extra=["--update-freq", "1000"]))

    (line,) = capsys.readouterr().err.splitlines()
    assert told_of_the_papers == ""
    assert "deepnorm-6-seed1" in line


# memory


def planned_on_one_gpu(gib: int, folder) -> Setting:
    """Return the planned setting of OPUS-100's 1,000 layers on one GPU of `gib` GiB, in place of the paper's eight."""
    experiment = experiments.with_choices(experiments.read_experiment("opus100"), depths=["1000"])
    machine = hardware(papers_gpus=8, gpus=1, memory=gib, only_printed=True)
    setting = Setting(experiment, machine, corpus(experiment, folder), folder)
    planned, _text = run.plan(setting, tokens=None, rate=None)
    return planned


def test_a_row_that_does_not_fit_is_refused_with_the_memory_that_suffices(tmp_path):
    with refused("--gpu-memory") as caught:
        run.refuse_what_does_not_fit(planned_on_one_gpu(gib=24, folder=tmp_path))

    assert "deepnorm-1000-seed1" in caught.value.way_out
    there_is, suffices = [int(gib) for gib in re.findall(r"(\d+) GiB", caught.value.way_out)]
    assert there_is == 24
    assert suffices > 24
    run.refuse_what_does_not_fit(planned_on_one_gpu(gib=suffices, folder=tmp_path))  # does not raise


# data and folders


@pytest.fixture
def miniature_data(tmp_path):
    """Provide tmp_path/data/iwslt14_de_en, where tmp_path as --out has its data, marked as a miniature."""
    folder = tmp_path / "data/iwslt14_de_en"
    (folder / "bin").mkdir(parents=True)
    (folder / "recipe.json").write_text('{"miniature": true}')
    return folder


def test_a_miniature_is_not_trained_on_as_the_corpus(miniature_data, tmp_path):
    with refused(miniature_data) as caught:
        corpus(experiments.read_experiment("iwslt14_de_en"), tmp_path)
    assert "miniature" in caught.value.way_out


def test_the_data_of_a_language_model_may_be_several_folders(tmp_path):
    folders = [tmp_path / "shard0", tmp_path / "shard1"]
    for folder in folders:
        folder.mkdir()
        (folder / "dict.txt").touch()
        (folder / "train.idx").touch()

    found = corpus(experiments.read_experiment("normformer_clm"), tmp_path, data=":".join(map(str, folders)))

    assert found.folder == folders[0]
    assert found.shards == 2


@pytest.fixture
def smoke_experiment():
    """Provide an experiment that is trained on a miniature."""
    return experiments.with_choices(experiments.read_experiment("iwslt14_de_en"), smoke=True)


def test_a_miniature_that_is_there_is_taken(smoke_experiment, miniature_data, tmp_path):
    found = corpus(smoke_experiment, tmp_path)

    assert found.folder == miniature_data / "bin"
    assert found.steps == ()  # nothing has to be made


@pytest.mark.parametrize(("here", "there"), [("one", "other"), ("one ü", "other"), ("one", "other ü")])
def test_data_may_be_moved_after_they_were_made(here, there, smoke_experiment, miniature_data, tmp_path):
    """A note beside the data has the command that made them, whose folder is then another one."""
    for name in (here, there):
        (tmp_path / name).mkdir()
    made = tmp_path / here / "data"
    (tmp_path / "data").rename(made)
    folder = made / miniature_data.name
    command = ["deepnet", "prepare", "corpus", "iwslt14_de_en", str(folder), "--miniature"]
    Step(folder, command).write_note()
    made.rename(tmp_path / there / "data")

    found = corpus(smoke_experiment, tmp_path / there)

    assert found.steps == ()  # nothing has to be made


def test_data_that_another_command_made_are_refused(smoke_experiment, miniature_data, tmp_path):
    """The refusal has the command that made the data, from the note beside them."""
    command = "deepnet prepare corpus other"
    Step(miniature_data, command.split()).write_note()

    with refused(miniature_data) as caught:
        corpus(smoke_experiment, tmp_path)
    assert command in caught.value.way_out


def test_a_row_that_another_process_works_on_is_left_as_it_is(tmp_path):
    experiment = experiments.with_choices(experiments.read_experiment("table1"), methods=["pre_ln"], depths=["6"])
    machine = hardware(papers_gpus=8, only_printed=True)
    setting = Setting(experiment, machine, corpus(experiment, tmp_path), tmp_path)
    (row,) = setting.rows()
    folder = setting.folder(row)

    with RunFolder(folder).locked() as is_locked:  # as the other process has it
        assert is_locked
        with refused(row.name) as caught:
            run.Work(setting).run()

    assert "another process" in caught.value.way_out
    assert [path.name for path in folder.iterdir()] == ["lock"]


@pytest.fixture
def row_begun_with_another_flag(tmp_path) -> tuple[Setting, Row]:
    """Provide a setting of one row, whose file `command` has another --clip-norm than the setting."""
    experiment = experiments.with_choices(experiments.read_experiment("table1"), methods=["pre_ln"], depths=["6"])
    machine = hardware(papers_gpus=8, only_printed=True)
    setting = Setting(experiment, machine, corpus(experiment, tmp_path), tmp_path)
    (row,) = setting.rows()
    folder = setting.folder(row)
    folder.mkdir(parents=True)
    words = ["fairseq-train", *setting.training(row), "--clip-norm", "7"]
    (folder / "command").write_text(shlex.join(words), encoding="utf-8")
    return setting, row


def test_a_row_that_was_begun_with_another_flag_is_refused_before_anything_runs(row_begun_with_another_flag):
    setting, row = row_begun_with_another_flag
    folder = setting.folder(row)
    (folder / "checkpoint_last.pt").touch()

    with refused(folder) as caught:
        run.Work(setting).run()

    assert "--clip-norm" in caught.value.way_out
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint_last.pt", "command"]


def test_a_row_without_a_checkpoint_begins_with_the_flags_it_has_now(row_begun_with_another_flag):
    """An example is a row that fairseq-train has refused for a misspelt flag."""
    setting, row = row_begun_with_another_flag

    run.Work(setting)._check_flags(row)


# what is printed


def test_one_row_is_trained_alone_with_flags_of_the_user(capsys, tmp_path):
    """--row chooses one of the rows; flags behind -- are added to those of fairseq-train."""
    words = ["--dry-run=commands", "--no-plan", "--gpus", "8", "--out", str(tmp_path)]

    main(["reproduce", "table1", "--row", "admin-18-seed1", *words, "--", "--lr", "1e-3"])

    printed = capsys.readouterr().out
    assert printed.count("fairseq-train") == 1
    assert f"{tmp_path}/table1/admin-18-seed1" in printed
    assert "--lr 1e-3" in printed


def test_a_slurm_job_runs_one_row_with_the_users_flags():
    """The job calls the user's command with the row, and with flags of fairseq-train behind --."""
    experiment = experiments.read_experiment("table1")
    machine = SimpleNamespace(nodes=2, gpus=8)
    setting = SimpleNamespace(experiment=experiment, hardware=machine, extra=("--patience", "3"))
    row = next(experiment.rows(world=16))

    text = job(setting, row, ["deepnet", "reproduce", "table1", "--gpus", "8"])

    (command,) = [line for line in text.splitlines() if line.startswith("deepnet")]
    of_the_row = f"--row {row.name} --launch torchrun --jobs 1"
    of_fairseq_train = "-- --patience 3"
    assert command == f"deepnet reproduce table1 --gpus 8 {of_the_row} {of_fairseq_train} &"
    assert "#SBATCH --nodes=2" in text
    assert "#SBATCH --gpus-per-node=8" in text
    assert "#SBATCH --cpus-per-task=32" in text  # 4 for each GPU


def test_list_names_every_experiment(capsys):
    main(["reproduce", "--list"])

    listed = capsys.readouterr().out
    for name in experiments.names():
        assert name in listed


# the user's flags


def test_a_misspelt_flag_is_refused_before_the_data_are_made(tmp_path):
    out = tmp_path / "out"

    miniature = ["reproduce", "iwslt14_de_en", "--smoke", "--out", out]
    assert_refused("--warm-up-updates", *miniature, "--", "--warm-up-updates=9")

    assert not out.exists()


def test_a_dry_run_refuses_a_misspelt_flag_too(tmp_path):
    assert_refused("--lrr", "reproduce", "table1", "--dry-run", "--out", tmp_path, "--", "--lrr", "1e-3")


# a file of a user's, with a method that has an option
OWN_METHOD = """
import deepnet_fairseq

deepnet_fairseq.register()

from deepnet_fairseq.core.methods import METHODS, Option, register


@register("shared")
class Shared(METHODS["pre_ln"]):
    options = {"part": Option(0.5, "a factor")}
"""


@pytest.mark.parametrize(("flag", "is_known"), [("--shared-part", True), ("--shared-parts", False)])
def test_flags_of_a_method_in_the_users_folder_are_known(flag, is_known, tmp_path):
    """The command runs in a process of its own, because the folder's methods stay registered."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "shared.py").write_text(OWN_METHOD)
    row = ["--methods", "deepnorm", "--depths", "18", "--out", "out"]
    extra = ["--user-dir", str(folder), "--method", "shared", flag, "0.1"]

    done = fork(["deepnet", "reproduce", "table1", "--dry-run", *row, "--", *extra], tmp_path)

    assert (done.returncode == 0) == is_known, done.stderr
    assert (flag in done.stderr) != is_known


# rows that the machine is not made for


@pytest.fixture
def table1_on_a_cpu(tmp_path):
    """Provide the setting of a row of Table 1 on this machine's CPU."""
    experiment = experiments.with_choices(experiments.read_experiment("table1"), methods=["deepnorm"], depths=["6"])
    machine = replace(hardware(papers_gpus=8, only_printed=True), gpus=0, visible=[], precision="fp32")
    return Setting(experiment, machine, corpus(experiment, tmp_path), tmp_path)


def test_a_row_that_takes_years_on_the_cpu_is_refused(table1_on_a_cpu):
    planned, _text = run.plan(table1_on_a_cpu, tokens=None, rate=None)

    with refused("--gpus") as caught:
        run.refuse_what_does_not_fit(planned)

    assert "deepnorm-6-seed1" in caught.value.way_out


def test_a_few_updates_on_the_cpu_are_not_refused(table1_on_a_cpu):
    short = replace(table1_on_a_cpu, extra=["--max-update", "10"])
    planned, _text = run.plan(short, tokens=None, rate=None)

    run.refuse_what_does_not_fit(planned)  # does not raise


def test_a_disk_that_is_too_small_for_the_plan_is_told(table1_on_a_cpu, capsys):
    planned, _text = run.plan(table1_on_a_cpu, tokens=None, rate=None)
    free = shutil.disk_usage(planned.out).free
    run.warn_of_full_disk(replace(planned, disk=free / 2))
    told_of_enough = capsys.readouterr().err

    run.warn_of_full_disk(replace(planned, out=planned.out / "to come", disk=free * 2))

    (line,) = capsys.readouterr().err.splitlines()
    assert told_of_enough == ""
    assert "to come" in line


def test_the_plans_disk_space_is_that_of_the_trainings_and_of_what_they_leave(table1_on_a_cpu):
    """The most are 3 checkpoints with Adam's moments, the weights of 11 epochs, their average and 2 files that stay."""
    planned, text = run.plan(table1_on_a_cpu, tokens=None, rate=None)
    parameters = 64_600_000  # of the row

    gigabytes = planned.disk / 1e9

    weights = parameters * 4 / 1e9
    left = 2 * weights
    assert gigabytes == pytest.approx(left + 3 * 3 * weights + 11 * weights + weights, rel=0.01)
    assert f"at most {gigabytes:.2g} GB" in text


# variables of the scripts


def test_a_variable_without_its_s_is_told_and_not_read(monkeypatch, capsys):
    monkeypatch.setenv("METHOD", "pre_ln")
    monkeypatch.delenv("METHODS", raising=False)

    flags = flags_of_variables()

    (line,) = capsys.readouterr().err.splitlines()
    assert "METHODS" in line
    assert "--methods=pre_ln" not in flags


def test_a_variable_without_its_s_beside_the_right_one_is_not_told(monkeypatch, capsys):
    """Another program may read METHOD."""
    monkeypatch.setenv("METHOD", "pre_ln")
    monkeypatch.setenv("METHODS", "deepnorm")

    flags = flags_of_variables()

    assert "--methods=deepnorm" in flags
    assert capsys.readouterr().err == ""


# submissions


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Provide a file with the words and the job that each call of sbatch was given, by a stand-in.

    The stand-in answers that the job's number is 42.
    """
    program = tmp_path / "bin" / "sbatch"
    calls = tmp_path / "calls"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{calls}\ncat >>{calls}\necho 42\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    (tmp_path / "data").mkdir()
    return calls


def submission(folder) -> list[str]:
    """Return the words that submit a row of Table 1; folder: with the data, for the runs."""
    row = ["--methods", "deepnorm", "--depths", "18", "--gpus", "8"]
    places = ["--data", str(folder / "data"), "--out", str(folder / "out")]
    return ["reproduce", "table1", *row, "--launch", "slurm", *places]


def test_a_printed_job_is_the_one_that_is_submitted(sbatch, tmp_path, capsys):
    main(submission(tmp_path))
    submitted = sbatch.read_text()
    sbatch.unlink()
    capsys.readouterr()

    main([*submission(tmp_path), "--dry-run"])
    subprocess.run(["bash", "-e"], input=capsys.readouterr().out, text=True, check=True)

    assert "--row" in submitted
    assert sbatch.read_text() == submitted


def test_a_submission_ends_with_the_commands_of_its_reports(sbatch, tmp_path, capsys):
    """The commands are those of Table 3, and of Figure 10 if the data have Flores, its test set."""
    words = ("--launch", "slurm", "--gpus", "8", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"))
    main(["reproduce", "table3", *words])

    table, figure = [line for line in capsys.readouterr().out.splitlines() if "deepnet report" in line]
    assert table.endswith("--table 3")
    assert "flores" not in table
    assert figure.endswith("--figures 10")
    assert "flores" in figure


# printed commands


def without_speed(score: Path) -> dict:
    """Return the content of a score.json but for its times."""
    content = json.loads(score.read_text())
    content.pop("generation", None)
    return content


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["iwslt14_de_en", "normformer_clm"])
def test_printed_commands_can_be_pasted_into_a_shell(name, tmp_path, capsys):
    """The commands leave the files of a run. The scores are those of `deepnet reproduce` with the same trainings."""
    words = ["reproduce", name, "--smoke", "--methods", "post_ln", "--jobs", "1"]
    updates = ["--", "--max-update", "4", "--save-interval-updates", "4"]
    main([*words, "--out", str(tmp_path / "printed"), "--dry-run", "commands", *updates])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-e"], input=capsys.readouterr().out, text=True, check=True, env=os.environ | {"PATH": path}
    )

    main([*words, "--out", str(tmp_path / "run"), *updates])

    scores = sorted((tmp_path / "run").glob("*/*/score.json"))
    assert scores
    for file in scores:
        printed = tmp_path / "printed" / file.relative_to(tmp_path / "run")
        assert without_speed(printed) == without_speed(file)
