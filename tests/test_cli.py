"""Tests of the `deepnet` command: help for every argument, names that moved, JSON output."""

from __future__ import annotations

import argparse
import json

import pytest

from deepnet_fairseq.cli import GROUPS, MOVED, main, parser
from deepnet_fairseq.core.methods import METHODS

from .support.helpers import USER_DIR, assert_refused


def commands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of every command that runs something, by its words."""
    (inner,) = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)] or [None]
    if inner is None:
        return {top.prog: top}
    return {name: sub for one in inner.choices.values() for name, sub in commands(one).items()}


COMMANDS = commands(parser())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_argument_by_a_sentence_and_an_example(name):
    sub = COMMANDS[name]
    sentence, _, rest = sub.description.partition("\n")
    assert sentence[0].isupper() and sentence.endswith(".") and len(sentence) < 80
    assert name in rest.split("example", 1)[1] or name == "deepnet path"
    assert all(action.help for action in sub._actions) and sub.format_help()


def test_help_lists_every_command_in_a_group(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    listed = [line.split()[0] for line in printed.splitlines() if line.startswith("  ") and "-h" not in line]
    known = {name.split()[1] for name in COMMANDS}
    assert known == set(listed) - {"--version"} <= {name for names in GROUPS.values() for name in names}


@pytest.mark.parametrize("name", MOVED)
def test_a_name_of_the_release_before_says_the_new_one(name):
    """Former names of commands exit with one line that gives the new name, whatever follows; the new name exists."""
    assert_refused(f"`deepnet {name}` is now `deepnet {MOVED[name]}`", name, "18", "--method", "deepnorm")
    words = MOVED[name].split()
    assert any(known.startswith(f"deepnet {words[0]}") for known in COMMANDS)


def card(name: str, capsys, *words: str) -> dict:
    main(["methods", name, "--json", *words])
    return json.loads(capsys.readouterr().out)


def test_cards(capsys):
    """A method's card shows the numbers of DeepNet's Figure 2, and counts evidence in the repository's records."""
    facts = card("deepnorm", capsys, "--layers", "18,18")
    numbers = {"encoder alpha": 1.998746, "encoder beta": 0.352571, "decoder alpha": 2.710806, "decoder beta": 0.260847}
    assert facts["coefficients"]["18L-18L"] == pytest.approx(numbers, abs=1e-6)
    assert facts["export"].startswith("plain Transformer") and facts["evidence here"]["later_methods"] == 6
    assert card("sub_ln", capsys)["export"].startswith("no plain Transformer: a LayerNorm stands in front of")
    assert set(card("sub_ln", capsys, "--layers", "0,12")["coefficients"]["0L-12L"]) == {"decoder gamma"}
    for name in METHODS:
        assert card(name, capsys)["equation"] == METHODS[name].equation


def test_json_is_all_that_is_printed(capsys, tmp_path):
    """JSON is all that goes to stdout with --json; progress goes to stderr."""
    main(["path", "--json"])
    assert json.loads(capsys.readouterr().out) == {"path": USER_DIR}
    main(["prepare", "language", str(tmp_path / "text"), "--json"])
    assert json.loads(capsys.readouterr().out)["wrote"] == str(tmp_path / "text")
    words = [str(tmp_path / "text" / split) for split in ("train", "valid", "test")]
    main(["prepare", "text", "qaa", "qab", *words, str(tmp_path / "bin"), "--vocab", "500", "--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"wrote": str(tmp_path / "bin")} and "binarising" in printed.err
