"""Tests of the `deepnet` command: help for every argument, names that moved, JSON output."""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import pytest

from deepnet_fairseq.cli import GROUPS, MOVED, main, parser
from deepnet_fairseq.cli.start import data_and_flags
from deepnet_fairseq.core.methods import METHODS

from ..support.errors import assert_refused
from ..support.helpers import USER_DIR


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


ORDERS = {  # command -> its files, and flags with their values
    "translate": (["model", "text"], [["--beam", "2"], ["--int8"]]),
    "score": (["one", "two", "three"], [["--tokenize", "13a"], ["--json"]]),
    "average": (["one.pt", "two.pt"], [["--out", "mean.pt"], ["--json"]]),
    "methods": (["deepnorm"], [["--layers", "6,6"], ["--option", "a=1"]]),
    "verify": (["model.pt"], [["--method", "deepnorm"], ["--option", "a=1"]]),
    "export": (["model.pt"], [["--to", "ctranslate2"], ["--out", "served"]]),
    "reproduce": (["table1"], [["--depths", "6,18"], ["--gpus", "8"]]),
    "report": (["runs"], [["--table", "1"], ["--out", "table.md"]]),
    "prepare language": (["text"], [["--seed", "2"]]),
    "prepare text": (["de", "en", "train", "valid", "test", "bin"], [["--vocab", "100"], ["--drop-empty"]]),
    "prepare lm": (["train", "valid", "test", "bin"], [["--vocab", "100"], ["--workers", "2"]]),
    "prepare corpus": (["opus100", "folder"], [["--pairs", "de-en"], ["--plan"]]),
}


def test_every_command_with_files_has_orders_to_try():
    with_files = {name.removeprefix("deepnet ") for name, sub in COMMANDS.items() if sub._get_positional_actions()}
    assert with_files == ORDERS.keys()


@pytest.mark.parametrize("name", ORDERS)
def test_files_stand_before_between_and_behind_flags(name):
    """Files and flags mean the same in every order."""
    files, flags = ORDERS[name]
    expected, rest = parser().parse_known_args([*name.split(), *files, *itertools.chain.from_iterable(flags)])
    assert rest == []

    for places in itertools.product(range(len(files) + 1), repeat=len(flags)):
        parts = [[file] for file in files]
        for flag, place in sorted(zip(flags, places, strict=True), key=lambda one: -one[1]):
            parts.insert(place, flag)
        words = [*name.split(), *itertools.chain.from_iterable(parts)]
        assert parser().parse_known_args(words) == (expected, []), words


def test_a_file_behind_two_hyphens_is_no_flag():
    args, rest = COMMANDS["deepnet translate"].parse_known_args(["model", "--beam", "2", "--", "-odd.txt"])
    assert (args.model, args.file, args.beam, rest) == ("model", "./-odd.txt", 2, [])


def test_values_of_flags_that_are_passed_on_are_no_data(tmp_path):
    """compare finds DATA behind flags of fairseq-train; a folder without data is named as DATA."""
    (tmp_path / "dict.de.txt").touch()
    for words in (["--dropout", "0.2", tmp_path], [tmp_path, "--dropout", "0.2"]):
        data, flags = data_and_flags([str(word) for word in words])
        assert (data, flags) == (tmp_path, ["--dropout", "0.2"])
    assert data_and_flags(["nowhere", "--dropout", "0.2"])[0] == Path("nowhere")
    assert_refused("DATA", "compare", "--methods", "deepnorm", "--updates", "3")


def test_figures_of_a_folder_behind_the_flag(tmp_path):
    assert_refused(str(tmp_path), "report", "--figures", str(tmp_path))
    assert_refused("RUNS", "report", "--figures")


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
