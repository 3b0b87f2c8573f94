"""Tests of experiments as data, and of what `deepnet reproduce` makes of them; test_dry_runs.py has every command."""

from __future__ import annotations

import re

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study import experiments
from deepnet_fairseq.study.experiment import MethodSpec
from deepnet_fairseq.study.run_folder import RunFolder
from deepnet_fairseq.tools.reproduce import run
from deepnet_fairseq.tools.reproduce.commands import Setting
from deepnet_fairseq.tools.reproduce.corpus import Step, corpus
from deepnet_fairseq.tools.reproduce.hardware import hardware
from deepnet_fairseq.tools.reproduce.slurm import job
from deepnet_fairseq.tools.reproduce.words import differing_flag, format_number

from ..support.errors import assert_refused


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_names_its_source(name):
    """Each has a title for --list, rows, and the place in the paper of its flags and of its batch."""
    experiment = experiments.read_experiment(name)
    assert experiment["title"] and experiment["training"]["source"]
    sized = [*experiment.get("sizes", {}).values(), *filter(None, [experiment.get("batch")])]
    assert all(one["source"] for one in sized) and (sized or experiment["machine"] == "cpu")
    rows = list(experiment.rows(world=1))
    assert rows and len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert row.flags["method"] == row.method
        for stack in ("encoder", "decoder"):
            layers = row.flags.get(f"{stack}-layers")
            assert layers is None or row.facts[f"{stack}_layers"] == layers


def test_a_word_is_a_method_with_options():
    """Options of a method go without its name; others are flags of fairseq-train; a rate stands behind @."""
    word = MethodSpec.parse("normformer+scale_residual+head_scale=none+qk-norm@1e-3")
    assert word.flags == {
        "method": "normformer", "normformer-scale-residual": True, "normformer-head-scale": "none", "qk-norm": True,
    }  # fmt: skip
    assert (word.rate, word.options_text) == ("1e-3", "scale_residual+head_scale=none+qk-norm")
    assert word.folder_prefix == "normformer-scale_residual-head_scale-none-qk-norm"


def test_language_models_are_chosen_by_size_and_rate():
    """A word with a rate of its own has no other; a sample has to fit into a batch."""
    experiment = experiments.with_choices(
        experiments.read_experiment("normformer_clm"),
        methods=["deepnorm", "post_ln@2e-4"],
        sizes=["355m"],
        rates=["1e-3", "2e-3"],
    )
    assert [row.name for row in experiment.rows(world=2)] == [
        "deepnorm-355m-lr1e-3-seed1", "deepnorm-355m-lr2e-3-seed1", "post_ln-355m-lr2e-4-seed1",
    ]  # fmt: skip
    with pytest.raises(UserError, match="a sample has 2048"):
        list(experiments.with_choices(experiment, tokens=1024).rows(world=2))


@pytest.mark.parametrize("name", experiments.names())
def test_every_key_is_explained(name):
    """The module's docstring, where somebody who writes an experiment looks, has each key of each file."""
    explained = set(re.findall(r"[a-z_]+", experiments.__doc__))
    assert set(experiments.read_experiment(name).content) <= explained


def test_a_file_that_is_like_another_has_its_values_but_for_its_own():
    base, like = experiments.read_experiment("iwslt14_de_en"), experiments.read_experiment("figure6")
    assert like["training"] == base["training"] and like["end"] != base["end"]
    deepnmt = experiments.read_experiment("admin_wmt14", "deepnmt")
    assert deepnmt["training"]["warmup-updates"] == 4000
    assert experiments.read_experiment("admin_wmt14")["training"]["warmup-updates"] == 8000


@pytest.mark.parametrize(("name", "row", "tokens"), [
    ("admin_wmt14_en_fr", "admin-60-12-seed1111", 5000 * 256), ("admin_wmt14_en_fr", "admin-6-6-seed1111", 8000 * 80),
    ("figure7", "batch-256", 4096 * 256), ("table1", "admin-6-seed1", 4096 * 128),
])  # fmt: skip
def test_an_update_has_the_papers_tokens(name, row, tokens):
    """On any number of GPUs, and also where one row of an experiment has a batch of its own."""
    for world in (1, 8):
        (found,) = [one for one in experiments.read_experiment(name).rows(world) if one.name == row]
        assert found.paper_tokens == tokens
        assert world * found.flags["max-tokens"] * found.flags["update-freq"] == tokens


@pytest.mark.parametrize(
    ("value", "printed"),
    [(0.0, "0.0"), (0.4, "0.4"), (5e-4, "5e-4"), (1.5e-3, "1.5e-3"), (1e-8, "1e-8"), (0.03125, "0.03125")],
)
def test_numbers_are_printed_as_papers_do(value, printed):
    assert format_number(value) == printed and float(printed) == value


@pytest.mark.parametrize(
    ("more", "other"),
    [
        ("--lr 2e-3", "--lr"),
        ("--lr 0.001", None),
        ("--update-freq 1 --distributed-world-size 8", None),
        ("--update-freq 4", "--update-freq"),
        ("--fp16", "--fp16"),
        ("--user-dir elsewhere/mine", None),
        ("--optimizer deepnet_adam", None),
        ("--optimizer radam", "--optimizer"),
        ("--share-all-embeddings", "--share-all-embeddings"),
    ],
)
def test_what_makes_a_training_another(more, other):
    """Devices, the split of a batch and memory do not; the last value of a flag counts."""
    words = ["data", "--lr", "1e-3", "--optimizer", "adam", "--cpu", "--update-freq", "8", "--user-dir", "mine"]
    assert differing_flag(words, words + more.split()) == other


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ("tabel1", "tabel1"),
        ("--recipe mine", "admin_wmt14 --recipe mine"),
        ("--variants cold", "admin_iwslt14 --variants cold --no-plan"),
        ("--row nobody", "table1 --row nobody --no-plan"),
        ("--data /nowhere", "table1 --data /nowhere"),
        ("--nodes 2", "table1 --nodes 2"),
        ("--pairs", "table3"),
        ("--sizes", "table1 --sizes 125m"),
        ("--depths", "normformer_clm --depths 12 --smoke"),
        ("--methods", "table1 --methods pre_ln+qk-norm"),
        ("--data", "normformer_clm --data ."),
        ("--text", "table1 --text a b c"),
        ("--launch slurm", "later_methods --launch slurm"),
        ("--launch slurm", "table1 --smoke --launch slurm"),
        ("--methods ,", "table1 --methods ,"),
        ("--methods", "figure5 --methods admin"),
        ("--methods pre_ln+", "later_methods --methods pre_ln+"),
        ("--methods pre_ln+../../x", "later_methods --methods pre_ln+../../x"),
        ("--seeds", "figure4 --seeds 1,2"),
        ("deepnorm-6-seed1", "table1 --methods deepnorm,deepnorm --depths 6"),
        ("lr-5e-4", "figure7 --depths 6,12"),
        ("--update", "table1 --update 4"),
        ("--average", "normformer_clm --average 5 --smoke"),
        ("--precision bf16", "figure4 --precision bf16"),
        ("--pairs", "table1 --pairs de-en"),
        ("--lrs inf", "normformer_clm --lrs inf --smoke"),
        ("--generate '", "table1 --generate '"),
    ],
)
def test_mistakes_are_one_line(subject, words, tmp_path):
    dry = [] if subject == "--pairs" else ["--dry-run=commands"]
    assert_refused(subject, "reproduce", *words.split(), *dry, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_row_that_does_not_fit_says_what_would(tmp_path):
    """With the memory that it names, the same row fits."""

    def planned(gib):
        experiment = experiments.with_choices(experiments.read_experiment("opus100"), depths=["1000"])
        gets = hardware(papers_gpus=8, gpus=1, memory=gib, only_printed=True)
        setting = Setting(experiment, gets, corpus(experiment, tmp_path), tmp_path)
        return run.plan(setting, tokens=None, rate=None)[0]

    with pytest.raises(UserError, match=r"--gpu-memory: .*deepnorm-1000-seed1 does not fit into 24 GiB") as refused:
        run.refuse_what_does_not_fit(planned(24))
    (enough,) = re.findall(r"GPUs of (\d+) GiB", str(refused.value))
    assert int(enough) > 24
    run.refuse_what_does_not_fit(planned(int(enough)))


@pytest.mark.parametrize(
    "flag", ["--gpus -1", "--nodes 0", "--jobs 0", "--tflops -1", "--max-tokens 0", "--gpu-memory x"]
)
def test_numbers_are_above_zero(flag, capsys):
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "table1", "--dry-run", *flag.split()])
    assert end.value.code == 2 and flag.split()[0] in capsys.readouterr().err


def test_a_script_does_not_take_flags_for_variables():
    assert_refused("--smoke", "reproduce", "table1", "--variables", "--smoke")


def test_data_are_taken_for_what_they_are(tmp_path):
    """A miniature's are not trained on as the corpus, nor data that another command has made."""
    folder = tmp_path / "data/iwslt14_de_en"
    (folder / "bin").mkdir(parents=True)
    (folder / "recipe.json").write_text('{"miniature": true}')
    experiment = experiments.read_experiment("iwslt14_de_en")
    with pytest.raises(UserError, match="a miniature's"):
        corpus(experiment, tmp_path)
    small = experiments.with_choices(experiment, smoke=True)
    assert corpus(small, tmp_path).steps == ()

    Step(folder, ["deepnet", "prepare", "corpus", "iwslt14_de_en", str(folder), "--miniature"]).write_note()
    (tmp_path / "data").rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "moved").rename(tmp_path / "elsewhere/data")
    assert corpus(small, tmp_path / "elsewhere").steps == ()

    folder = tmp_path / "elsewhere/data/iwslt14_de_en"
    Step(folder, ["deepnet", "prepare", "corpus", "other"]).write_note()
    with pytest.raises(UserError, match="was made by"):
        corpus(small, tmp_path / "elsewhere")


def test_two_runners_on_one_row(tmp_path):
    """The second one says so, and leaves the row as it is."""
    experiment = experiments.with_choices(experiments.read_experiment("table1"), methods=["pre_ln"], depths=["6"])
    gets = hardware(papers_gpus=8, only_printed=True)
    setting = Setting(experiment, gets, corpus(experiment, tmp_path), tmp_path)
    (row,) = setting.rows()
    with RunFolder(setting.folder(row)).locked() as held:
        assert held
        with pytest.raises(UserError, match=f"{row.name}: another process works on it"):
            run.Work(setting).run()
    assert [path.name for path in setting.folder(row).iterdir()] == ["lock"]


def test_one_row_alone(capsys, tmp_path):
    words = ["--dry-run=commands", "--no-plan", "--gpus", "8", "--out", str(tmp_path)]
    main(["reproduce", "table1", "--row", "admin-18-seed1", *words, "--", "--lr", "1e-3"])
    printed = capsys.readouterr().out
    assert printed.count("fairseq-train") == 1
    assert f"{tmp_path}/table1/admin-18-seed1" in printed and "--lr 1e-3" in printed


def test_a_job_is_its_row_alone():
    """A job runs one row with the user's flags, those of fairseq-train at the end."""

    class Chosen:
        experiment = experiments.read_experiment("table1")
        hardware = type("Hardware", (), {"nodes": 2, "gpus": 8})
        extra = ("--patience", "3")

    row = next(experiments.read_experiment("table1").rows(world=16))
    text = job(Chosen, row, ["deepnet", "reproduce", "table1", "--gpus", "8"])
    (command,) = [line for line in text.splitlines() if line.startswith("deepnet")]
    assert command == (
        f"deepnet reproduce table1 --gpus 8 --row {row.name} --launch torchrun --jobs 1 -- --patience 3 &"
    )
    assert "#SBATCH --nodes=2" in text and "#SBATCH --cpus-per-task=32" in text


def test_the_list(capsys):
    main(["reproduce", "--list"])
    listed = capsys.readouterr().out
    assert all(name in listed for name in experiments.names())
