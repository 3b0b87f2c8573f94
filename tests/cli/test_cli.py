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


def commands_of(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of every command that runs something, by its words."""
    inner = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        return {top.prog: top}
    commands = {}
    for sub in inner[0].choices.values():
        commands |= commands_of(sub)
    return commands


COMMANDS = commands_of(parser())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_a_command_by_a_sentence(name):
    sentence, _, _ = COMMANDS[name].description.partition("\n")

    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert len(sentence) < 80


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_an_example_of_a_command(name):
    _, _, rest = COMMANDS[name].description.partition("\n")
    _, example, examples = rest.partition("example")

    assert example
    assert name in examples or name == "deepnet path"  # whose example uses it within another command


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_argument(name):
    for action in COMMANDS[name]._actions:
        assert action.help, action
    assert COMMANDS[name].format_help()


def test_help_lists_every_command_in_a_group(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out

    listed = {line.split()[0] for line in printed.splitlines() if line.startswith("  ") and "-h" not in line}
    known = {name.split()[1] for name in COMMANDS}
    assert listed - {"--version"} == known
    assert known <= set(itertools.chain.from_iterable(GROUPS.values()))


@pytest.mark.parametrize("name", MOVED)
def test_a_former_name_of_a_command_exits_with_the_new_one(name):
    """Whatever follows it."""
    assert_refused(f"`deepnet {MOVED[name]}`", name, "18", "--method", "deepnorm")


@pytest.mark.parametrize("name", MOVED)
def test_the_new_name_of_a_command_exists(name):
    first_word = MOVED[name].split()[0]

    assert any(known.startswith(f"deepnet {first_word}") for known in COMMANDS)


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
    with_files = [name for name, sub in COMMANDS.items() if sub._get_positional_actions()]

    assert {name.removeprefix("deepnet ") for name in with_files} == ORDERS.keys()


def words_in_order(files, flags, places):
    """Put each flag, with its value, in front of the file of its number in `places`; the last number is behind all."""
    parts = [[file] for file in files]
    for flag, place in sorted(zip(flags, places, strict=True), key=lambda pair: -pair[1]):
        parts.insert(place, flag)
    return list(itertools.chain.from_iterable(parts))


@pytest.mark.parametrize("name", ORDERS)
def test_files_mean_the_same_before_between_and_behind_flags(name):
    files, flags = ORDERS[name]
    command = name.split()
    expected, unknown = parser().parse_known_args([*command, *files, *itertools.chain.from_iterable(flags)])
    assert unknown == []

    for places in itertools.product(range(len(files) + 1), repeat=len(flags)):
        words = words_in_order(files, flags, places)
        assert parser().parse_known_args([*command, *words]) == (expected, []), words


def test_a_file_behind_two_hyphens_is_no_flag():
    words = ["model", "--beam", "2", "--", "-odd.txt"]

    args, unknown = COMMANDS["deepnet translate"].parse_known_args(words)

    assert unknown == []
    assert args.model == "model"
    assert args.file == "./-odd.txt"
    assert args.beam == 2


@pytest.mark.parametrize("data_first", [True, False])
def test_compare_tells_its_data_from_the_values_of_other_flags(data_first, tmp_path):
    """The others are flags of fairseq-train, which it does not know."""
    (tmp_path / "dict.de.txt").touch()
    flags = ["--dropout", "0.2"]
    words = [str(tmp_path), *flags] if data_first else [*flags, str(tmp_path)]

    assert data_and_flags(words) == (tmp_path, flags)


def test_compare_takes_the_first_word_for_its_data_if_no_folder_has_data():
    data, _ = data_and_flags(["nowhere", "--dropout", "0.2"])

    assert data == Path("nowhere")


def test_compare_needs_data():
    assert_refused("DATA", "compare", "--methods", "deepnorm", "--updates", "3")


def test_report_reads_the_runs_of_the_folder_behind_its_flag(tmp_path):
    assert_refused(tmp_path, "report", "--figures", tmp_path)


def test_report_needs_a_folder_of_runs():
    assert_refused("RUNS", "report", "--figures")


def printed_card(capsys, name: str, *flags: str) -> dict:
    """Return what `deepnet methods NAME --json` prints."""
    main(["methods", name, "--json", *flags])
    return json.loads(capsys.readouterr().out)


def test_the_card_of_deepnorm_has_the_coefficients_of_deepnet_s_figure_2(capsys):
    card = printed_card(capsys, "deepnorm", "--layers", "18,18")

    # For N encoder layers and M decoder layers: 0.81 (N^4 M)^(1/16), 0.87 (N^4 M)^(-1/16), (3M)^(1/4), (12M)^(-1/4)
    by_formula = {
        "encoder alpha": 1.998746,
        "encoder beta": 0.352571,
        "decoder alpha": 2.710806,
        "decoder beta": 0.260847,
    }
    assert card["coefficients"]["18L-18L"] == pytest.approx(by_formula, abs=1e-6)


def test_the_card_of_a_decoder_alone_has_its_coefficients(capsys):
    card = printed_card(capsys, "sub_ln", "--layers", "0,12")

    assert card["coefficients"]["0L-12L"].keys() == {"decoder gamma"}


def test_the_card_of_a_method_that_folds_exports_as_a_plain_transformer(capsys):
    assert printed_card(capsys, "deepnorm")["export"].startswith("plain ")


def test_the_card_of_a_method_that_does_not_fold_names_the_reason(capsys):
    export = printed_card(capsys, "sub_ln")["export"]

    assert export.startswith("no plain ")
    assert "LayerNorm" in export


def test_the_card_counts_the_evidence_in_the_repository_s_records(capsys):
    assert printed_card(capsys, "deepnorm")["evidence here"]["later_methods"] == 6


@pytest.mark.parametrize("name", METHODS)
def test_the_card_shows_the_method_s_equation(name, capsys):
    assert printed_card(capsys, name)["equation"] == METHODS[name].equation


def test_json_gives_the_folder_for_user_dir(capsys):
    main(["path", "--json"])

    assert json.loads(capsys.readouterr().out) == {"path": USER_DIR}


def test_json_is_all_that_goes_to_stdout_and_progress_goes_to_stderr(capsys, tmp_path):
    text = tmp_path / "text"
    main(["prepare", "language", str(text), "--json"])
    assert json.loads(capsys.readouterr().out)["wrote"] == str(text)

    prefixes = [str(text / split) for split in ("train", "valid", "test")]
    main(["prepare", "text", "qaa", "qab", *prefixes, str(tmp_path / "bin"), "--vocab", "500", "--json"])

    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"wrote": str(tmp_path / "bin")}
    assert "binarising" in printed.err
