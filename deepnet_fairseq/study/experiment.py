"""What all experiments have in common: the keys of their file, the user's choices, and the list of their trainings.

An experiment is a file of experiments/, see experiments.py. A row is one of its trainings, as they are the rows of a
paper's table. A miniature ("smoke" in keys and flags) is the experiment with small models on generated data, to try it.
The subclasses of Experiment in rows.py make the rows. `world` is the number of processes of a training, one a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.methods import METHODS, get_method
from ..errors import UserError

Flags = dict[str, Any]  # of fairseq-train: name without dashes -> value; True for a switch
NOT_GIVEN = "not given"  # value of a flag or key that `like` has: this file takes it back
SMOKE_STUCK = 200  # updates: --stop-stuck of a miniature
SMOKE_AVERAGE = 2  # checkpoints that a miniature averages
SMOKE_VOCABULARY = 500  # pieces
SMOKE_SAVES = 50  # updates between two saves of a miniature
LOG_INTERVAL = 25  # updates


@dataclass(frozen=True)
class Row:
    """One training of an experiment: name of its folder, facts for run.json, flags of fairseq-train.

    method: its name in METHODS. layers: the number of layers of width 512 that need as much memory as those of its
    stacks together. paper_tokens: tokens of an update in the paper, None where there is no paper. scored: whether the
    trained model is translated with, or evaluated, and gets a score.json.
    """

    name: str
    facts: Mapping[str, Any]
    flags: Flags
    method: str
    seed: int
    layers: int
    paper_tokens: int | None
    scored: bool = True


@dataclass(frozen=True)
class MethodSpec:
    """A method with its options, as --methods and the files name it: METHOD+OPTION+OPTION=VALUE@RATE.

    normformer+scale_residual+head_scale=none@1e-3 is NormFormer with two options and a learning rate of its own. An
    option is a flag of fairseq-train without its dashes, as qk-norm in pre_ln+qk-norm. Of the method's own flags, which
    begin with its name (--normformer-head-scale), the option leaves out the name. rate: None if it has none of its own.
    """

    method: str
    options: tuple[str, ...] = ()
    rate: str | None = None

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Parse the text; UserError for an unknown method, or for what is no option."""
        without_rate, _, rate = text.partition("@")
        method, *options = without_rate.split("+")
        get_method(method)  # raises the error for an unknown method
        for option in options:
            if not re.fullmatch(r"[A-Za-z0-9_-]+(=[^/]+)?", option):
                raise UserError(f"--methods {text}", "an option is NAME or NAME=VALUE, without a slash")
        return cls(method, tuple(options), rate or None)

    @property
    def options_text(self) -> str:
        """The options as a text, "" for none."""
        return "+".join(self.options)

    @property
    def folder_prefix(self) -> str:
        """Method and options as they begin the name of a run's folder."""
        return "-".join([self.method, *self.options]).replace("=", "-")

    @property
    def flags(self) -> Flags:
        """Flags of fairseq-train: the method, those without which its training does not start, and the options."""
        method = get_method(self.method)
        flags = parse_flags(method.train_flags) | {"method": self.method}
        methods_own = {option.replace("_", "-") for option in method.options}
        for option in self.options:
            name, _, value = option.partition("=")
            name = name.replace("_", "-")
            if name in methods_own:
                name = f"{self.method}-{name}".replace("_", "-")
            flags[name] = value or True
        return flags


@dataclass(frozen=True)
class Choice:
    """What a user chooses by flags of `deepnet reproduce`; None where the experiment's file decides.

    methods: each as MethodSpec.parse reads it, or "*" for all; depths: see ByLayers.layers; sizes: names of sizes of
    language models; rates: their learning rates, as written; variants: names of the file's variants. average: "10" to
    average the last 10 epochs, "36-45" for these. stuck: --stop-stuck, updates. tokens: --max-tokens of one process;
    shared: whether the embeddings are shared; smoke: train the miniature. order: of the rows, see ByMethod._in_order.
    update: the update that a figure shows.
    """

    methods: Sequence[str] | None = None
    depths: Sequence[str] | None = None
    sizes: Sequence[str] | None = None
    rates: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    variants: Sequence[str] | None = None
    average: str | None = None
    stuck: int | None = None
    tokens: int | None = None
    shared: bool = True
    smoke: bool = False
    order: str | None = None
    update: int | None = None


@dataclass(frozen=True)
class Experiment:
    """An experiment: the content of its file, and the user's choice.

    content: keys and values, see experiments.py; those of `like` and of the recipe are merged in. A subclass makes the
    rows.
    """

    name: str
    content: Mapping[str, Any]
    choice: Choice = field(default_factory=Choice)

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, the default if the file does not have it."""
        return self.content.get(key, default)

    def rows(self, world: int) -> Iterator[Row]:
        """Yield the trainings in the order in which they are begun.

        Raises a UserError for a choice that the experiment does not have.
        """
        raise NotImplementedError

    def check_rows(self, world: int, only: str | None = None) -> None:
        """Raise a UserError for a row that cannot be trained, for two of one name, and if none is named `only`.

        only: the name of the row that is asked for, None if all are.
        """
        names: set[str] = set()
        for row in self.rows(world):
            if row.name in names:
                raise UserError(row.name, f"two rows of {self.name} have this name; choose one of each")
            names.add(row.name)
        if only is not None and only not in names:
            raise UserError(f"--row {only}", f"{self.name} has {', '.join(sorted(names)[:5])}, ...")

    @property
    def folder(self) -> str:
        """Name of the folder in which its runs lie."""
        return self["folder"]

    @property
    def smoke(self) -> Mapping[str, Any] | None:
        """The file's table [smoke], {} if it has none, for a miniature; None for the paper's size."""
        return self.get("smoke", {}) if self.choice.smoke else None

    def method_specs(self) -> list[MethodSpec]:
        """Return the methods of its rows, in their order.

        Raises a UserError for an unknown method, and for options or a learning rate that the experiment does not take.
        """
        specs = []
        for text in self._asked_for("methods"):
            if text == "*":
                specs += [MethodSpec(method) for method in METHODS]
            else:
                specs.append(MethodSpec.parse(text))

        takes_options = bool(self.get("options"))
        takes_rates = "sizes" in self.content  # language models
        for spec in specs:
            if spec.options and not takes_options:
                raise UserError(f"--methods {spec.folder_prefix}", f"{self.name} takes methods without options")
            if spec.rate and not takes_rates:
                raise UserError(f"--methods {spec.method}@{spec.rate}", f"{self.name} takes methods without a rate")
        return specs

    def seeds(self) -> list[int]:
        """Return the seeds: the user's, else the file's; of a miniature those of [smoke], else the file's first."""
        chosen = self.choice.seeds
        if chosen is None and self.smoke and "seeds" in self.smoke:
            chosen = self.smoke["seeds"]
        if chosen is None and self.smoke is not None:
            chosen = self.get("seeds", [1])[:1]
        return list(chosen or self.get("seeds", [1]))

    def _asked_for(self, key: str) -> list[str]:
        """Return the values of "methods" or "depths" as text: the user's, else those of the miniature or the file."""
        chosen = getattr(self.choice, key)
        if chosen is None and self.smoke and key in self.smoke:
            chosen = self.smoke[key]
        return [str(word) for word in chosen or self[key]]

    @property
    def stuck(self) -> int:
        """--stop-stuck: updates after which a training that learns nothing is ended; 0 for never."""
        if self.choice.stuck is not None:
            return self.choice.stuck
        return 0 if self.smoke is None else self.smoke.get("stop_stuck", SMOKE_STUCK)

    @property
    def vocabulary(self) -> int:
        """Number of pieces of the vocabulary, if the data are still to be prepared."""
        return SMOKE_VOCABULARY if self.choice.smoke else self["corpus_size"]["vocabulary"]

    @property
    def average(self) -> tuple[int, str]:
        """Number of checkpoints that are averaged, 1 for none; their epochs in the words of --epoch-weights.

        The epochs are "36-45", or "last:10" for the last ten.
        """
        word = self.choice.average
        if word is None:
            number = self.get("translation", {}).get("average", 1)
            if self.choice.smoke and number > 1:
                number = SMOKE_AVERAGE
            word = str(number)

        first, _, last = word.partition("-")
        valid = first.isdecimal() and int(first) > 0
        if last:
            valid = valid and last.isdecimal() and int(first) <= int(last)
        if not valid:
            raise UserError(f"--average {word}", "how many of the last epochs, as 10, or which, as 36-45")

        if last:
            return int(last) - int(first) + 1, word
        return int(first), f"last:{first}"

    def _batch_flags(self, tokens: int, count: int, world: int) -> Flags:
        """Return --max-tokens and --update-freq, by which an update has the paper's `count` batches of `tokens`.

        Raises a UserError if the processes cannot share these tokens equally.
        """
        update_tokens = tokens * count
        max_tokens = self.choice.tokens or tokens  # of a batch of one process
        step_tokens = world * max_tokens  # of one batch in every process
        if update_tokens % step_tokens:
            if self.choice.tokens is None:
                raise UserError(
                    "--gpus",
                    f"{world} GPUs must divide {count}, the batches of an update; or choose --max-tokens so "
                    f"that times {world} it divides {update_tokens}",
                )
            raise UserError(
                f"--max-tokens {max_tokens}",
                f"{world} x {max_tokens} tokens do not divide the paper's batch of {update_tokens}",
            )
        return {"max-tokens": max_tokens, "update-freq": update_tokens // step_tokens}

    def _save_flags(self) -> Flags:
        """Return the flags of saving checkpoints: the newest to resume from, and weights of the epochs to average."""
        every = SMOKE_SAVES if self.choice.smoke else self["saves"]["every"]
        flags: Flags = {"save-interval-updates": every, "keep-interval-updates": 1, "log-interval": LOG_INTERVAL}
        number, epochs = self.average
        if number > 1:
            flags["epoch-weights"] = epochs
        else:
            flags["no-epoch-checkpoints"] = True
        return flags

    def _complete_flags(self, flags: Flags) -> Flags:
        """Return a row's flags with --stop-stuck, which needs validation, and without those that are NOT_GIVEN."""
        if self.stuck and not flags.get("disable-validation"):
            flags = flags | {"stop-stuck": self.stuck}
        return {name: value for name, value in flags.items() if value != NOT_GIVEN}


def flags_of(table: Mapping[str, Any]) -> Flags:
    """Return the flags in a table of a file, without its keys that are no flags: "source" and "methods"."""
    return {name: value for name, value in table.items() if name not in ("source", "methods")}


def parse_flags(texts: Sequence[str]) -> Flags:
    """Return the flags in texts such as ("--lr 1e-3", "--amp")."""
    flags: Flags = {}
    for word in " ".join(texts).split():
        if word.startswith("--"):
            name = word[2:]
            flags[name] = True
        else:
            flags[name] = word
    return flags
