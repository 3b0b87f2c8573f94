"""Tests of the `deepnet` command: help for every argument, names that moved, JSON output."""

from __future__ import annotations

import argparse
import itertools
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from deepnet_fairseq.cli import GROUPS, MOVED, main, parser
from deepnet_fairseq.cli.start import data_and_flags
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.data.language import make_corpus, write_corpus

from ..support.errors import assert_refused
from ..support.helpers import ROOT, USER_DIR


def commands_of(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return {"deepnet prepare text": its parser} and so on, for every command that runs something.

    `deepnet prepare` runs nothing: it has commands of its own.
    """
    subparsers = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    if not subparsers:
        return {top.prog: top}
    commands = {}
    for sub in subparsers[0].choices.values():
        commands |= commands_of(sub)
    return commands


COMMANDS = commands_of(parser())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_a_command_by_one_short_sentence(name):
    sentence, _, _ = COMMANDS[name].description.partition("\n")

    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert len(sentence) < 80


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_an_example_of_a_command(name):
    _before, _heading, examples = COMMANDS[name].description.partition("example")

    assert name in examples


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_argument(name):
    for action in COMMANDS[name]._actions:
        assert action.help, action
    assert COMMANDS[name].format_help()


def test_help_lists_every_command_in_a_group(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])

    listed = re.findall(r"^  ([a-z]+) ", capsys.readouterr().out, re.MULTILINE)
    known = {name.split()[1] for name in COMMANDS}  # of `deepnet prepare text` "prepare"
    in_groups = set(itertools.chain.from_iterable(GROUPS.values()))
    assert set(listed) == known
    assert known <= in_groups


# MOVED: names of release 0.1 -> what to call instead.


@pytest.mark.parametrize("name", MOVED)
def test_a_former_name_of_a_command_is_refused_with_the_new_one(name):
    """Flags behind the former name change nothing."""
    assert_refused(f"`deepnet {MOVED[name]}`", name, "18", "--method", "deepnorm")


@pytest.mark.parametrize("name", MOVED)
def test_the_new_name_of_a_command_exists(name):
    first_word = MOVED[name].split()[0]

    assert any(known.startswith(f"deepnet {first_word}") for known in COMMANDS)


class CommandLine(NamedTuple):
    """Words for a command: its files, and some flags, each with its value if it has one."""

    files: list[str]
    flags: list[list[str]]


COMMAND_LINES = {
    "translate": CommandLine(["model", "text"], [["--beam", "2"], ["--int8"]]),
    "score": CommandLine(["one", "two", "three"], [["--tokenize", "13a"], ["--json"]]),
    "average": CommandLine(["one.pt", "two.pt"], [["--out", "mean.pt"], ["--json"]]),
    "methods": CommandLine(["deepnorm"], [["--layers", "6,6"], ["--option", "a=1"]]),
    "verify": CommandLine(["model.pt"], [["--method", "deepnorm"], ["--option", "a=1"]]),
    "export": CommandLine(["model.pt"], [["--to", "ctranslate2"], ["--out", "served"]]),
    "reproduce": CommandLine(["table1"], [["--depths", "6,18"], ["--gpus", "8"]]),
    "report": CommandLine(["runs"], [["--table", "1"], ["--out", "table.md"]]),
    "prepare language": CommandLine(["text"], [["--seed", "2"]]),
    "prepare text": CommandLine(["de", "en", "train", "valid", "test", "bin"], [["--vocab", "100"], ["--drop-empty"]]),
    "prepare lm": CommandLine(["train", "valid", "test", "bin"], [["--vocab", "100"], ["--workers", "2"]]),
    "prepare corpus": CommandLine(["opus100", "folder"], [["--pairs", "de-en"], ["--plan"]]),
}


def test_every_command_with_files_has_a_command_line_to_try():
    with_files = [name for name, sub in COMMANDS.items() if sub._get_positional_actions()]

    assert {name.removeprefix("deepnet ") for name in with_files} == COMMAND_LINES.keys()


def with_flags_at(files: list[str], flags: list[list[str]], places: tuple[int, ...]) -> list[str]:
    """Return the words of a command line in which flag number i stands in front of file number places[i].

    Files count from 0; the place len(files) is behind the last.
    """
    words = []
    for place in range(len(files) + 1):
        for flag, place_of_flag in zip(flags, places, strict=True):
            if place_of_flag == place:
                words += flag
        words += files[place : place + 1]  # none behind the last
    return words


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_files_mean_the_same_before_between_and_behind_flags(name):
    files, flags = COMMAND_LINES[name]
    command = name.split()
    behind_all = (len(files),) * len(flags)
    expected, unknown = parser().parse_known_args([*command, *with_flags_at(files, flags, behind_all)])
    assert unknown == []

    for places in itertools.product(range(len(files) + 1), repeat=len(flags)):
        words = with_flags_at(files, flags, places)

        parsed = parser().parse_known_args([*command, *words])

        assert parsed == (expected, []), words


def test_a_file_behind_two_hyphens_is_no_flag():
    words = ["model", "--beam", "2", "--", "-odd.txt"]

    args, unknown = COMMANDS["deepnet translate"].parse_known_args(words)

    assert unknown == []
    assert args.model == "model"
    assert args.file == "./-odd.txt"  # the same file, which no later parser takes for a flag
    assert args.beam == 2


@pytest.mark.parametrize("data_first", [True, False])
def test_compare_tells_its_data_from_the_values_of_other_flags(data_first, tmp_path):
    """`deepnet compare` does not know the other flags, which are those of fairseq-train."""
    (tmp_path / "dict.de.txt").touch()  # by which a folder of binarised data is known
    flags = ["--dropout", "0.2"]
    words = [str(tmp_path), *flags] if data_first else [*flags, str(tmp_path)]

    assert data_and_flags(words) == (tmp_path, flags)


def test_compare_takes_the_first_word_for_data_if_no_folder_has_data():
    data, _flags = data_and_flags(["nowhere", "--dropout", "0.2"])

    assert data == Path("nowhere")


def test_compare_needs_data():
    assert_refused("DATA", "compare", "--methods", "deepnorm", "--updates", "3")


def test_report_takes_a_folder_behind_figures_for_that_of_the_runs(tmp_path):
    """--figures may have a value, and has none here. The refusal names the folder because it has no runs."""
    assert_refused(tmp_path, "report", "--figures", tmp_path)


def test_report_needs_a_folder_of_runs():
    assert_refused("RUNS", "report", "--figures")


def printed_card(capsys, name: str, *flags: str) -> dict:
    """Return what `deepnet methods NAME --json` prints."""
    main(["methods", name, "--json", *flags])
    return json.loads(capsys.readouterr().out)


def test_the_card_of_deepnorm_has_the_coefficients_of_deepnet_s_figure_2(capsys):
    card = printed_card(capsys, "deepnorm", "--layers", "18,18")

    encoder = 18
    decoder = 18
    by_formula = {
        "encoder alpha": 0.81 * (encoder**4 * decoder) ** (1 / 16),
        "encoder beta": 0.87 * (encoder**4 * decoder) ** (-1 / 16),
        "decoder alpha": (3 * decoder) ** (1 / 4),
        "decoder beta": (12 * decoder) ** (-1 / 4),
    }
    assert card["coefficients"]["18L-18L"] == pytest.approx(by_formula, abs=1e-6)


def test_the_card_of_a_decoder_alone_has_no_coefficients_of_an_encoder(capsys):
    card = printed_card(capsys, "sub_ln", "--layers", "0,12")

    assert card["coefficients"]["0L-12L"].keys() == {"decoder gamma"}


def test_the_card_of_deepnorm_says_that_it_exports_as_a_plain_transformer(capsys):
    """The exported weights take over alpha. Beta is in the initialisation alone."""
    assert printed_card(capsys, "deepnorm")["export"].startswith("plain ")


def test_the_card_of_sub_ln_says_why_it_does_not_export_as_a_plain_transformer(capsys):
    """Sub-LN has a LayerNorm in front of the last matrix of a branch."""
    export = printed_card(capsys, "sub_ln")["export"]

    assert export.startswith("no plain ")
    assert "LayerNorm" in export


def test_the_card_counts_a_method_s_trainings_in_the_repository_s_records(capsys):
    lines = (ROOT / "results/runs/later_methods.jsonl").read_text().splitlines()
    methods = [json.loads(line)["run"]["method"] for line in lines]

    card = printed_card(capsys, "deepnorm")

    assert methods.count("deepnorm") > 0
    assert card["evidence here"]["later_methods"] == methods.count("deepnorm")


@pytest.mark.parametrize("name", METHODS)
def test_the_card_shows_the_method_s_equation(name, capsys):
    assert printed_card(capsys, name)["equation"] == METHODS[name].equation


def test_the_card_counts_parameters_with_the_options_that_are_given(capsys):
    """The option adds a LayerNorm on the embedding of each stack: 512 weights and 512 biases at width 512."""
    without = printed_card(capsys, "dlcl")["parameters"]

    with_option = printed_card(capsys, "dlcl", "--option", "normalize_embedding=true")["parameters"]

    assert first_number(with_option) - first_number(without) == 2 * 2 * 512


def first_number(text: str) -> int:
    """Return the number at the beginning of a text, as 1234 of "+1,234 beside"."""
    return int(text.split()[0].replace(",", ""))


@pytest.mark.parametrize(
    ("option", "flags"),
    [
        ("window=2", "--method dlcl --dlcl-window 2"),
        ("plain=true", "--method dlcl --dlcl-plain"),
        ("plain=false", "--method dlcl"),
    ],
)
def test_the_card_trains_with_the_options_that_are_given(option, flags, capsys):
    assert printed_card(capsys, "dlcl", "--option", option)["to train"].endswith(flags)


def test_measured_weights_are_those_of_a_model_with_the_options(capsys):
    """The gain of DS-Init in layer l is l^-exponent: with an exponent of 0 all layers are alike."""
    words = ["methods", "ds_init", "--weights", "deepnet_transformer_tiny_6_6", "--json"]

    main(words)
    default = json.loads(capsys.readouterr().out)
    main([*words, "--option", "exponent=0"])
    without_depth = json.loads(capsys.readouterr().out)

    assert without_depth != default


def test_an_option_without_a_method_is_refused():
    assert_refused("--option window=2", "methods", "--option", "window=2")


def test_layers_without_a_method_are_refused():
    assert_refused("--layers 6,6", "methods", "--layers", "6,6")


def test_a_file_for_flags_of_many_trainings_is_refused_for_one(tmp_path):
    assert_refused("--chosen", "plan", "--arch", "deepnet_transformer_6_6", "--chosen", tmp_path / "flags")


def test_path_prints_the_folder_for_user_dir_as_json(capsys):
    main(["path", "--json"])

    assert json.loads(capsys.readouterr().out) == {"path": USER_DIR}


def test_prepare_language_prints_what_it_wrote_as_json(capsys, tmp_path):
    text = tmp_path / "text"

    main(["prepare", "language", str(text), "--json"])

    printed = json.loads(capsys.readouterr().out)
    test_set = (text / "test.qaa").read_text().splitlines()
    assert printed["wrote"] == str(text)
    assert printed["pairs"]["test"] == len(test_set)


def test_with_json_progress_goes_to_stderr(capsys, tmp_path):
    text = tmp_path / "text"
    write_corpus(make_corpus({"train": 400, "valid": 20, "test": 20}, nouns=20, verbs=10), text)
    prefixes = [str(text / split) for split in ("train", "valid", "test")]

    main(["prepare", "text", "qaa", "qab", *prefixes, str(tmp_path / "bin"), "--vocab", "150", "--json"])

    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"wrote": str(tmp_path / "bin")}
    assert "binarising" in printed.err
