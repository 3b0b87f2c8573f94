"""`deepnet train --config FILE`: each mistake in a YAML is one line that names file and key; what is right trains."""

import os
import re

import pytest

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin import yaml_file
from deepnet_fairseq.plugin.building import from_checkpoint

from .support.helpers import ROOT, USER_DIR, assert_refused, run
from .test_bad_input import assert_one_line

PAGE = ROOT / "docs" / "yaml.md"
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
RIGHT = QUICKSTART.read_text(encoding="utf-8").replace("  data: ???", "  data: /text")
ALIASES = "a0: &a0 [1, 1, 1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))

# a line of the file, what stands there instead, lines from the first that differs to the mistake, what is said of it
MISTAKES = (
    # before hydra has read it
    ("  seed: 1", "\tseed: 1", 0, "a tab; indent with spaces"),
    ("  seed: 1", "  seed: 1\n  seed: 2", 0, "common.seed: is there twice; drop one"),
    ("  seed: 1", "  seed: [1", 1, "expected ',' or ']', but got ':'"),
    ("dataset:", f"{ALIASES}dataset:", 5, "a5: aliases unfold to 411,111 values"),
    ("dataset:", "a: &a [*a]\ndataset:", 0, "a: an alias stands for what it is in"),
    # what hydra says before it has the plug-in
    ("model:", "modle:", 0, "modle: no such section; did you mean model?"),
    ("common:", "common: 3\nema:", 0, "common: is a section; write its settings below it"),
    ("  seed: 1", "  sede: 1", 0, "common.sede: no such setting; did you mean seed?"),
    ("  log_interval: 25", "  log_interval: often", 0, "common.log_interval: Value 'often' of type 'str' could not"),
    ("  lr: [1e-3]", "  lr: 1e-3]", 0, "optimization.lr: Invalid value assigned: AnyNode is not a ListConfig"),
    ("  max_tokens: 1000", "  max_tokens: ${data.tokens}", 0, "dataset.max_tokens: Interpolation key 'data.tokens'"),
    ("  seed: 1", "  seed: !!python/object/apply:os.getpid []", 0, "could not determine a constructor for the tag"),
    # what fairseq says before it has the plug-in
    ("  source_lang: qaa", "  source_lnag: qaa", 0, "task.source_lnag: translation has no such setting; did you"),
    ("  adam_betas: (0.9, 0.98)", "  adam_beta: 1", 0, "optimizer.adam_beta: adam has no such setting; did you"),
    ("  warmup_updates: 200", "  warmup_updates: many", 0, "lr_scheduler.warmup_updates: Value 'many' of type 'str'"),
    # and what neither says, or not in words
    ("  data: /text", "  data: ???", 0, "task.data: is for you to give; task.data=VALUE"),
    ("  _name: translation", "  _name: trnaslation", 0, "task._name: trnaslation is unknown; did you mean trans"),
    ("  _name: adam", "  adam_eps: 1e-8", -1, "optimizer._name: is missing; say which"),
    ("  dropout: 0.0", "  dropout: ${oc.env:NOWHERE}", 0, "model.dropout: KeyError raised while resolving"),
    (
        "  method: deepnorm",
        "  metod: deepnorm",
        0,
        "model.metod: deepnet_transformer has no such setting; did you",
    ),
)


@pytest.fixture
def refused(tmp_path):
    """Asserts that a file with `text` is refused in one line: its name, then `said`."""
    file = tmp_path / "mine.yaml"

    def check(text, said, *settings):
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(UserError) as error:
            yaml_file.composed(file, [*settings])
        line = str(error.value)
        assert line.startswith(f"{file}{said}") and "\n" not in line, line

    return check


@pytest.mark.parametrize(("old", "new", "further", "said"), MISTAKES)
def test_a_mistake_is_one_line(old, new, further, said, refused):
    text = RIGHT.replace(f"\n{old}\n", f"\n{new}\n", 1)
    pairs = enumerate(zip(text.splitlines(), RIGHT.splitlines(), strict=False), 1)
    first = next(number for number, (line, right) in pairs if line != right)
    refused(text, f", line {first + further}: {said}")


def test_a_mistake_where_a_debugger_looks_on(refused, monkeypatch):
    """omegaconf's errors stand behind one another in a circle there."""
    monkeypatch.setenv("OC_CAUSE", "1")  # as omegaconf finds it by sys.gettrace
    refused(RIGHT.replace("  seed: 1", "  sede: 1"), ", line 12: common.sede: no such setting; did you mean seed?")


def test_files_that_are_none(refused, tmp_path):
    for text, said in (
        ("", ": has no sections"),
        ("- 1\n", ": has no sections"),
        (RIGHT.encode() + b"# \xe9\n", ": is no text in UTF-8"),
        (RIGHT + "# \x07\n", ": unacceptable character"),
        ("a: " + "[" * 5000 + "]" * 5000, ": is nested too deeply"),
        ("a: " + "[" * 60 + "]" * 60, ", line 1: is nested too deeply"),
        (RIGHT + "a: " + "{b: " * 60 + "1" + "}" * 60, f", line {len(RIGHT.splitlines()) + 1}: is nested too deeply"),
        (RIGHT + "#" * yaml_file.LARGEST, ": is larger than 1 MiB"),
        (f"defaults: [other]\n{RIGHT}", ": In 'mine': Could not load 'other'"),
        (f"defaults: 3\n{RIGHT}", ": Invalid defaults list"),
    ):
        refused(text, said)
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "common.yaml").write_text(RIGHT)
    (tmp_path / "mine.txt").write_text(RIGHT)
    for name, said in {
        "folder.yaml": "is a folder; name the YAML in it",
        "pipe.yaml": "is no ordinary file",
        "nothing.yaml": "no such file",
        "mine.txt": "rename it",
        "common.yaml": "rename it",
    }.items():
        assert_refused(said, "train", "--config", str(tmp_path / name))


def test_a_file_that_another_one_names(tmp_path):
    """By hydra's `defaults`: it is looked at before hydra reads it, which would fill the memory."""
    mine, other = tmp_path / "mine.yaml", tmp_path / "other.yaml"
    mine.write_text(f"defaults: [other, _self_]\n{RIGHT}")
    other.write_text(ALIASES)
    with pytest.raises(UserError, match=f"^{other}, line 6: a5: aliases unfold"):
        yaml_file.composed(mine, [])
    other.write_text("# nothing\n")
    assert yaml_file.composed(mine, []).task.data == "/text"


def test_a_mistake_in_a_word_of_the_command(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(RIGHT)
    for word, said in {
        "optimization.max_updates=3": "optimization.max_updates: no such setting; did you mean max_update?",
        "model.encoder_layers=3": "model.encoder_layers: is not in the file; a + in front adds it",
        "+modle.encoder_layers=3": "modle: no such section; did you mean model?",
        "+optimization.max_updates=3": "optimization.max_updates: no such setting; did you mean max_update?",
        "common.seed=many": "common.seed: Value 'many'",
        "+model.encoder_layers=many": "model.encoder_layers: Value 'many'",
        "common.seed=[": "no viable alternative",
    }.items():
        with pytest.raises(UserError) as error:
            yaml_file.composed(file, [word])
        assert str(error.value).startswith(f"{word}: {said}"), error.value


def test_the_pages_table_is_what_is_said():
    rows = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    told = [words[0] for row in rows if (words := re.findall("`([^`]+)`", row[2]))]
    assert len(told) == len(MISTAKES)
    for line in told:
        assert any(said in line or line in said for *_, said in MISTAKES), line


@pytest.mark.smoke
def test_a_right_file_trains(data, tmp_path):
    """To the weights of fairseq-hydra-train."""
    words = ("model._name=deepnet_transformer_tiny_6_6", "optimization.max_update=2", f"task.data={data}")
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    done = run("deepnet", "train", "--config", QUICKSTART, *words, f"checkpoint.save_dir={mine}")
    assert '"train_wall"' in done.stdout
    flags = ("--config-dir", QUICKSTART.parent, "--config-name", "quickstart", f"hydra.run.dir={tmp_path}/hydra")
    run("fairseq-hydra-train", *flags, *words, f"common.user_dir={USER_DIR}", f"checkpoint.save_dir={theirs}")
    ours, stock = (from_checkpoint(str(one / "checkpoint_last.pt"))[0].state_dict() for one in (mine, theirs))
    assert all(ours[name].equal(stock[name]) for name in stock)


def test_a_training_outlives_its_file(tmp_path):
    """What it ends with is told as it is, behind the line that the file had."""
    file = tmp_path / "mine.yaml"
    for said, line in (("--max-tokens 5: too many", ", line "), ("process 0 of 2: another one is gone", None)):
        file.write_text(RIGHT)
        with pytest.raises(UserError, match=said) as error, yaml_file._in_one_line(file, []):
            file.unlink()
            raise UserError(said)
        assert str(error.value).startswith(f"{file}{line}" if line else said)


@pytest.mark.smoke
def test_names_that_a_folder_of_the_users_brings(data, tmp_path):
    """common.user_dir may register them, beside this package."""
    plug = tmp_path / "plug"
    plug.mkdir()
    (plug / "__init__.py").write_text(
        "from fairseq.criterions import register_criterion\n"
        "from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig\n"
        "import deepnet_fairseq\n"
        "@register_criterion('mine', dataclass=CrossEntropyCriterionConfig)\n"
        "class Mine(CrossEntropyCriterion):\n    pass\n"
    )
    words = (f"common.user_dir={plug}", "criterion._name=mine", "~criterion.label_smoothing", f"task.data={data}")
    words += (
        "model._name=deepnet_transformer_tiny_6_6",
        "optimization.max_update=1",
        f"checkpoint.save_dir={tmp_path}/r",
    )
    assert '"train_wall"' in run("deepnet", "train", "--config", QUICKSTART, *words).stdout
    done = run("deepnet", "train", "--config", QUICKSTART, words[0], "criterion._name=mein", *words[3:], check=False)
    assert_one_line(done, "criterion._name=mein: criterion._name: mein is unknown; did you mean mine?")


def test_a_mistake_that_the_training_finds(data, tmp_path):
    """The plug-in's own words, behind the line of the file; a missing folder of data by its name."""
    words = (f"checkpoint.save_dir={tmp_path}/run", "model.method=deepnrom")
    done = run("deepnet", "train", "--config", QUICKSTART, f"task.data={data}", *words, check=False)
    assert_one_line(done, "deepnet: error: model.method=deepnrom: --method deepnrom: unknown")
