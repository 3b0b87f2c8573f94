"""Experiments as data: experiments/NAME.toml has the trainings of a table or a figure of a paper, and its numbers.

A file holds values that somebody can lay beside the paper. A row is one of its trainings; experiment.py and rows.py
make the rows. The keys of a file:

    title, folder           a line for `deepnet reproduce --list`; the folder of its runs
    like                    another experiment, whose keys but for [[table]] hold where this file has none; tables are
                            merged
    corpus, corpus_size     a recipe of `deepnet prepare corpus`, or "text" for the user's lines, or "language" and
                            "language_pair" for generated ones; pieces of its vocabulary, target tokens of an epoch, and
                            how many layers of width 512 need as much memory as a layer of this width (layer)
    paper_corpus            name of the paper's corpus, where it is no recipe
    machine                 "cpu" for a small experiment, which needs no plan and is no miniature
    gpus, precision         GPUs of one training in the paper; the precision, if it has to be this one
    full_precision          methods that are trained in fp32 whatever the precision is
    half_precision          "memory-efficient" for weights without a copy in fp32
    methods, depths, seeds  of its rows; layers = "half" if a depth counts both stacks; decoder_layers where they differ
    options                 true if a method may have options, as normformer+scale_residual (experiment.MethodSpec); "*"
                            stands for all methods
    stacks, stack           those whose layers a depth counts, by default both; the one of language models
    methods_of_given_depths the methods if a user chooses depths and no methods
    more_rows               methods and depths of further rows, if a user chooses neither
    order                   of the rows, if users do not choose it: "deepest", "shallowest" or "given"
    rows                    for a figure instead: groups of rows with names, facts and flags of their own, which are not
                            scored; a name with {seed} has a row for each seed, of which the first may have more flags
                            (first_seed); rows_save if they save checkpoints; update: the one whose probes the figure
                            shows
    sizes                   for language models instead: methods, learning rates and flags of each size
    probed                  flags of probes, and the size and rate of the rows that have them
    batch                   tokens and count of the batches of an update; of_depth: the same for single depths
    training, open          flags of fairseq-train: the paper's, with their source, and those that it leaves open
    task                    flags of a language model's training and evaluation
    methods_apart           methods for which the paper has other flags, and these
    variants                versions of each row, by name, with flags of their own
    translation             beam search, metric, number of checkpoints averaged
    perplexity              subsets of which language models are scored
    subsets                 test sets, of which those are taken that the data have
    validation              "for --stop-stuck" if nothing else needs it
    needs                   "pairs" if a user has to name language pairs, or a folder of the checkout
    saves, smoke            updates between two saves; what differs in a miniature
    recipe                  another version of the whole experiment, by name
    end                     what is reported in the end: "table 1", "figure 6", "figure 10 if flores" for a test set or
                            a file that has to be there
    table, papers           the paper's table with its numbers (the class Table in tables.py explains its keys), and the
                            papers that it names, if they are not in paper.toml
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from ..errors import UserError
from .experiment import Experiment
from .rows import ByGroup, ByMethod, BySize


@cache
def names() -> tuple[str, ...]:
    """List the names of all experiments, sorted: a file experiments/NAME.toml has the name NAME."""
    folder = resources.files(__package__) / "experiments"
    files = [file.name for file in folder.iterdir() if file.name.endswith(".toml")]
    return tuple(sorted(name.removesuffix(".toml") for name in files))


def read_experiment(name: str, recipe: str | None = None) -> Experiment:
    """Read an experiment; UserError if there is none of this name, or it has no such recipe.

    recipe: a name in the file's table [recipe], whose keys then go before the file's (see merged); None for the file as
    it is.
    """
    if name not in names():  # the message has the name on one line, whatever was given
        raise UserError(" ".join(name.split()), f"no such experiment; choose one of {', '.join(names())}")
    content = _content(name)
    recipes = content.pop("recipe", {})
    if recipe is not None:
        if recipe not in recipes:
            known = ", ".join(recipes) or "none"
            raise UserError(f"--recipe {recipe}", f"{name} has {known}; leave it out for the usual one")
        content = merged(content, recipes[recipe])
    return _class_of(content)(name, content)


def _class_of(content: Mapping[str, Any]) -> type[Experiment]:
    """Return the subclass of Experiment that makes the rows of a file with these keys."""
    if "sizes" in content:  # language models
        return BySize
    return ByGroup if "rows" in content else ByMethod


def _content(name: str) -> dict[str, Any]:
    """Return the content of an experiment's file, merged with that of the experiment that its key `like` names.

    The other experiment's [[table]] is left out.
    """
    file = resources.files(__package__) / "experiments" / f"{name}.toml"
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    name_of_base = content.pop("like", None)
    if name_of_base is None:
        return content
    base = _content(name_of_base)
    base.pop("table", None)  # the paper's table belongs to the other experiment alone
    return merged(base, content)


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of both; a key of `more` goes first, but two tables of one key are merged in the same way.

    An empty table in `more` replaces the base's, so that a file can take a table back.
    """
    result = dict(base)
    for key, value in more.items():
        both_are_tables = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        if both_are_tables and value:
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def with_choices(experiment: Experiment, **choices: Any) -> Experiment:
    """Return the experiment with the user's choices; UserError for a choice that it does not offer.

    choices: fields of Choice and their values; None, or a field that is left out, chooses nothing.
    """
    by_size = isinstance(experiment, BySize)
    if choices.get("depths") and by_size:
        raise UserError("--depths", f"{experiment.name} has sizes; give --sizes")

    offers = {  # flag, named as the field of Choice but for --lrs -> whether the experiment leaves something to choose
        "--methods": not _fixed_by_groups(experiment, "methods"),
        "--depths": not _fixed_by_groups(experiment, "depths"),
        "--sizes": by_size,
        "--lrs": by_size,
        "--variants": "variants" in experiment.content,
        "--order": isinstance(experiment, ByMethod),
        "--update": "update" in experiment.content,
        "--average": "translation" in experiment.content,
    }
    for flag, can_be_chosen in offers.items():
        key = "rates" if flag == "--lrs" else flag.removeprefix("--")
        if choices.get(key) is not None and not can_be_chosen:
            raise UserError(flag, f"{experiment.name} has none to choose")
    flags = experiment["training"] | experiment["open"]
    if choices.get("shared") is False and not flags.get("share-all-embeddings"):
        raise UserError("--separate-embeddings", f"{experiment.name} does not share source, target and output")

    # A group of rows without {seed} in its name is trained with the first seed alone, see ByGroup.rows.
    several_seeds = len(choices.get("seeds") or ()) > 1
    names_tell_seeds_apart = all("{seed}" in group["name"] for group in experiment.get("rows", ()))
    if several_seeds and not names_tell_seeds_apart:
        raise UserError("--seeds", f"{experiment.name} shows one seed")
    return replace(experiment, choice=replace(experiment.choice, **choices))


def _fixed_by_groups(experiment: Experiment, key: str) -> bool:
    """Tell whether the file leaves no "methods" or "depths" to choose: each of its groups of rows has its own.

    key: one of these two. False for a file without groups of rows.
    """
    groups = experiment.get("rows", ())
    return bool(groups) and all(key in group for group in groups)
