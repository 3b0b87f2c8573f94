"""What all experiments have in common: their keys, what a user chooses of them, and a training of theirs, a row.

rows.py has the ways in which a file of experiments/ names its rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.methods import METHODS, get_method
from ..errors import UserError

Flags = dict[str, Any]  # of fairseq-train: name without dashes -> value; True for a switch
NONE = "not given"  # value of a flag that `like` has, and this file takes back
SMOKE_STUCK, SMOKE_AVERAGE, SMOKE_VOCABULARY, SMOKE_SAVES = 200, 2, 500, 50
LOG_INTERVAL = 25


@dataclass(frozen=True)
class Row:
    """One training of an experiment: name of its folder, facts for run.json, flags of fairseq-train.

    layers: of all stacks, in units of one of width 512, which its memory depends on; paper_tokens: of an update in the
    paper, None where there is no paper; scored: whether its output is scored.
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
class Word:
    """A method as a user names it: METHOD, with options after plus signs, and a learning rate of its own after @.

    normformer+scale_residual+head_scale=none@1e-3 has two options. An option of the method may leave out its name, as
    these do; others are flags of fairseq-train, as pre_ln+qk-norm. rate: None if there is none.
    """

    method: str
    options: tuple[str, ...] = ()
    rate: str | None = None

    @classmethod
    def parse(cls, text: str) -> Word:
        """Parse the text; UserError for an unknown method, or for what is no option."""
        words, _, rate = text.partition("@")
        method, *options = words.split("+")
        get_method(method)
        for option in options:
            if not re.fullmatch(r"[A-Za-z0-9_-]+(=[^/]+)?", option):
                raise UserError(f"--methods {text}: an option is NAME or NAME=VALUE, without a slash")
        return cls(method, tuple(options), rate or None)

    @property
    def variant(self) -> str:
        """The options as a text, "" for none."""
        return "+".join(self.options)

    @property
    def folder(self) -> str:
        """The part of a folder's name that stands for method and options."""
        return "-".join([self.method, *self.options]).replace("=", "-")

    @property
    def flags(self) -> Flags:
        """Flags of fairseq-train: method, its own flags of a training, and the options."""
        method = get_method(self.method)
        flags = parsed(method.train_flags) | {"method": self.method}
        own = {option.replace("_", "-") for option in method.options}
        for option in self.options:
            name, _, value = option.partition("=")
            name = name.replace("_", "-")
            if name in own:
                name = f"{self.method}-{name}".replace("_", "-")
            flags[name] = value or True
        return flags


@dataclass(frozen=True)
class Choice:
    """What a user chooses of an experiment; None for the paper's.

    variants: names of the experiment's variants; sizes, rates: of language models, and their learning rates; average:
    last epochs, or A-B; stuck: of --stop-stuck; tokens: of a batch on a GPU; shared: whether embeddings are shared;
    update: that a figure shows.
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
    """An experiment of a file, with its recipe and the user's choice applied.

    content: the file's keys. A subclass says which rows they name.
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

        world: processes of each. Raises a UserError for a choice that the experiment does not have.
        """
        raise NotImplementedError

    def check_rows(self, world: int, only: str | None = None) -> None:
        """Raise a UserError for rows that cannot be trained, two of one name, and a name that none has.

        world: processes of each; only: the name, None if all rows are meant.
        """
        names: set[str] = set()
        for row in self.rows(world):
            if row.name in names:
                raise UserError(f"{row.name}: two rows of {self.name} have this name; choose one of each")
            names.add(row.name)
        if only is not None and only not in names:
            raise UserError(f"--row {only}: {self.name} has {', '.join(sorted(names)[:5])}, ...")

    @property
    def folder(self) -> str:
        """Name of the folder of its runs."""
        return self["folder"]

    @property
    def smoke(self) -> Mapping[str, Any] | None:
        """The keys of the miniature, None for the paper's size."""
        return self.get("smoke", {}) if self.choice.smoke else None

    def words(self) -> list[Word]:
        """Return the methods of its rows, in their order; UserError for an unknown one, or options without a use."""
        words = []
        for text in self._asked_for("methods"):
            words += [Word(method) for method in METHODS] if text == "*" else [Word.parse(text)]
        for word in words:
            if (word.options and not self.get("options")) or (word.rate and "sizes" not in self.content):
                raise UserError(f"--methods {word.folder}: {self.name} takes methods without options")
        return words

    def seeds(self) -> list[int]:
        """Return the seeds of its trainings; in a miniature the first alone, unless others are asked for."""
        chosen = self.choice.seeds
        if chosen is None and self.smoke and "seeds" in self.smoke:
            chosen = self.smoke["seeds"]
        if chosen is None and self.smoke is not None:
            chosen = self.get("seeds", [1])[:1]
        return list(chosen or self.get("seeds", [1]))

    def _asked_for(self, key: str) -> list[str]:
        """Return the words of a key: the user's, those of the miniature, or those of the file."""
        chosen = getattr(self.choice, key)
        if chosen is None and self.smoke and key in self.smoke:
            chosen = self.smoke[key]
        return [str(word) for word in chosen or self[key]]

    @property
    def stuck(self) -> int:
        """Updates after which a training that learns nothing ends, 0 for never."""
        if self.choice.stuck is not None:
            return self.choice.stuck
        return 0 if self.smoke is None else self.smoke.get("stop_stuck", SMOKE_STUCK)

    @property
    def vocabulary(self) -> int:
        """Pieces of the vocabulary, of data that are still to be prepared."""
        return SMOKE_VOCABULARY if self.choice.smoke else self["corpus_size"]["vocabulary"]

    @property
    def average(self) -> tuple[int, str]:
        """Number of checkpoints that are averaged, and their epochs as --epoch-weights names them."""
        word = self.choice.average
        if word is None:
            number = self.get("translation", {}).get("average", 1)
            word = str(SMOKE_AVERAGE if self.choice.smoke and number > 1 else number)

        first, _, last = word.partition("-")
        valid = first.isdecimal() and int(first) > 0
        if last:
            valid = valid and last.isdecimal() and int(first) <= int(last)
        if not valid:
            raise UserError(f"--average {word}: how many of the last epochs, as 10, or which, as 36-45")

        if last:
            return int(last) - int(first) + 1, word
        return int(first), f"last:{first}"

    def _batch(self, tokens: int, count: int, world: int) -> Flags:
        """Return the batch of each process, and how many of them make an update of `count` batches of `tokens`."""
        update = tokens * count  # tokens
        of_process = self.choice.tokens or tokens
        if update % (world * of_process):
            if self.choice.tokens is None:
                raise UserError(
                    f"--gpus: {world} GPUs must divide {count}, the batches of an update; or choose --max-tokens so "
                    f"that times {world} it divides {update}"
                )
            raise UserError(
                f"--max-tokens {of_process}: {world} x {of_process} tokens do not divide the paper's batch of {update}"
            )
        return {"max-tokens": of_process, "update-freq": update // (world * of_process)}

    def _saves(self) -> Flags:
        """Return the flags of saves: for a resume, and the weights of the epochs to average."""
        every = SMOKE_SAVES if self.choice.smoke else self["saves"]["every"]
        flags: Flags = {"save-interval-updates": every, "keep-interval-updates": 1, "log-interval": LOG_INTERVAL}
        number, epochs = self.average
        if number > 1:
            flags["epoch-weights"] = epochs
        else:
            flags["no-epoch-checkpoints"] = True
        return flags

    def _finished(self, flags: Flags) -> Flags:
        """Return the flags of a row without those that are taken back, and with --stop-stuck if it can be used."""
        if self.stuck and not flags.get("disable-validation"):
            flags = flags | {"stop-stuck": self.stuck}
        return {name: value for name, value in flags.items() if value != NONE}


def flags_of(table: Mapping[str, Any]) -> Flags:
    """Return the flags in a table, without the keys that are none: its source, and the methods that it is for."""
    return {name: value for name, value in table.items() if name not in ("source", "methods")}


def parsed(words: Sequence[str]) -> Flags:
    """Return the flags in words such as ("--lr 1e-3", "--amp")."""
    flags: Flags = {}
    for word in " ".join(words).split():
        if word.startswith("--"):
            name = word[2:]
            flags[name] = True
        else:
            flags[name] = word
    return flags
