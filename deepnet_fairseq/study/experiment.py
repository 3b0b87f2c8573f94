"""What all experiments have in common: the keys of their file, the user's choices, and the list of their trainings.

An experiment is the trainings of a paper's table or figure. It is described by a TOML file experiments/NAME.toml; the
docstring of experiments.py lists the keys of such a file. A row is one of its trainings, as a row of the paper's table
is one. A miniature ("smoke" in keys and flags) is the experiment with small models on generated data, to try it.
The subclasses of Experiment in rows.py make the rows. `world` is the number of processes of a training, one a GPU.
A method is a way to stabilise deep models, known by its name in METHODS, as "deepnorm".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.methods import METHODS, get_method
from ..errors import UserError

Flags = dict[str, Any]  # of fairseq-train: name without dashes -> value; True for a switch
NOT_GIVEN = "not given"  # value by which a table of a file drops a flag that another table or `like` would set
SMOKE_STUCK = 200  # updates: value of --stop-stuck in a miniature
SMOKE_AVERAGE = 2  # checkpoints that a miniature averages
SMOKE_VOCABULARY = 500  # pieces
SMOKE_SAVES = 50  # updates between two saves of a miniature
LOG_INTERVAL = 25  # updates


@dataclass(frozen=True)
class Row:
    """One training of an experiment.

    name: of its folder. facts: what tables and figures find the run by, as {"method": "deepnorm", "encoder_layers": 18,
    "decoder_layers": 18}; they are written into run.json. flags: of fairseq-train. method: its name in METHODS.

    layers: the model's size. Of a model that translates it is the number of layers of width 512 that need as much
    memory as all layers of its encoder and decoder: without a plan, activations are recomputed from some size on, and
    the optimiser's state is sharded over the GPUs. Of a language model it is the number of its layers. paper_tokens:
    target tokens of an update in the paper, None if the file does not say. scored: whether the trained model translates
    the test sets, or its perplexity is computed, so that the folder gets a score.json.
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

    normformer+scale_residual+head_scale=none@1e-3 is NormFormer with two options and a learning rate of its own.

    options: each "NAME" or "NAME=VALUE". NAME is a flag of fairseq-train without its dashes: pre_ln+qk-norm stands for
    --method pre_ln --qk-norm. Flags of the method alone begin with its name, which NAME may leave out: head_scale of
    normformer is --normformer-head-scale. Underscores and hyphens mean the same. rate: the learning rate as written, or
    None, which leaves it to the experiment.
    """

    method: str
    options: tuple[str, ...] = ()
    rate: str | None = None

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Parse METHOD+OPTION+OPTION=VALUE@RATE; UserError for an unknown method or a malformed option.

        An option may have no slash, because it becomes a part of the name of the run's folder.
        """
        without_rate, _, rate = text.partition("@")
        method, *options = without_rate.split("+")
        get_method(method)  # raises the error for an unknown method
        for option in options:
            if not re.fullmatch(r"[A-Za-z0-9_-]+(=[^/]+)?", option):
                raise UserError(f"--methods {text}", "an option is NAME or NAME=VALUE, without a slash")
        return cls(method, tuple(options), rate or None)

    @property
    def options_text(self) -> str:
        """The options as one text, "scale_residual+head_scale=none"; "" for none."""
        return "+".join(self.options)

    @property
    def folder_prefix(self) -> str:
        """The beginning of the name of a run's folder, as "normformer-scale_residual-head_scale-none"."""
        return "-".join([self.method, *self.options]).replace("=", "-")

    @property
    def flags(self) -> Flags:
        """Flags of fairseq-train: --method, what the method requires (Method.train_flags), and the options."""
        method = get_method(self.method)
        flags = parse_flags(method.train_flags) | {"method": self.method}

        options_of_method = {option.replace("_", "-") for option in method.options}
        for option in self.options:
            name, _, value = option.partition("=")
            name = name.replace("_", "-")
            if name in options_of_method:  # its flag begins with the method's name
                name = f"{self.method}-{name}".replace("_", "-")
            flags[name] = value or True  # an option without a value is a switch
        return flags


@dataclass(frozen=True)
class Choice:
    """What a user chooses by flags of `deepnet reproduce`; None where the experiment's file decides.

    The first fields say which rows are trained. methods: each METHOD+OPTION+OPTION=VALUE@RATE, or "*" for all methods.
    depths: "18" or "60-12" (encoder-decoder), see ByLayers.layers. sizes: names of sizes of language models, keys of
    the file's table [sizes]; rates: their learning rates, as "1e-3". seeds: one training each. variants: keys of the
    file's table [variants]. order: "deepest", "shallowest" or "given", see ByMethod._in_order.

    The other fields say how they are trained. average: "10" to average the weights after the last 10 epochs, "36-45"
    those after epochs 36 to 45. stuck: value of --stop-stuck, in updates. tokens: value of --max-tokens, of one
    process. shared: False if encoder and decoder shall not share their embeddings, although the file's flags say that
    they do. smoke: train the miniature. update: the update whose probes a figure shows.
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

    name: that of the file, without .toml. content: the file's keys and values, which experiments.py lists; it includes
    the keys that the file takes from another experiment (`like`) and those of the recipe that the user chose. A
    subclass makes the rows.
    """

    name: str
    content: Mapping[str, Any]
    choice: Choice = field(default_factory=Choice)

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key of the file; KeyError if the file does not have it."""
        return self.content[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, the default if the file does not have it."""
        return self.content.get(key, default)

    def rows(self, world: int) -> Iterator[Row]:
        """Yield the trainings in the order in which they are begun.

        Raises a UserError, perhaps only after some rows, for a choice that the experiment does not have or that cannot
        be trained with.
        """
        raise NotImplementedError

    def check_rows(self, world: int, only: str | None = None) -> None:
        """Raise a UserError for a row that cannot be trained, for two rows of one name, and if no row is named `only`.

        only: the name of the one row that is asked for, None if all are.
        """
        names: set[str] = set()
        for row in self.rows(world):  # raises the error for a row that cannot be trained
            if row.name in names:
                raise UserError(row.name, f"two rows of {self.name} have this name; choose one of each")
            names.add(row.name)
        if only is not None and only not in names:
            raise UserError(f"--row {only}", f"{self.name} has {', '.join(sorted(names)[:5])}, ...")

    @property
    def folder(self) -> str:
        """Name of the folder that holds the folders of its runs."""
        return self["folder"]

    @property
    def smoke_table(self) -> Mapping[str, Any] | None:
        """What the file says of the miniature, in its table [smoke], if the miniature is to be trained; else None.

        {} if the file has no such table.
        """
        return self.get("smoke", {}) if self.choice.smoke else None

    def method_specs(self) -> list[MethodSpec]:
        """Return the methods of its rows, in the order in which the user or the file names them.

        Raises a UserError for an unknown method, and for options or a learning rate that the experiment does not take.
        """
        specs = []
        for text in self._chosen_texts("methods"):
            if text == "*":
                specs += [MethodSpec(method) for method in METHODS]
            else:
                specs.append(MethodSpec.parse(text))

        takes_options = bool(self.get("options"))
        takes_rates = "sizes" in self.content  # language models
        for spec in specs:
            if spec.options and not takes_options:
                given = f"{spec.method}+{spec.options_text}"
                raise UserError(f"--methods {given}", f"{self.name} takes methods without options")
            if spec.rate and not takes_rates:
                raise UserError(f"--methods {spec.method}@{spec.rate}", f"{self.name} takes methods without a rate")
        return specs

    def seeds(self) -> list[int]:
        """Return the user's seeds, else those of the file; by default 1.

        A miniature takes those of [smoke] in place of the file's, or else the file's first alone.
        """
        seeds_of_file = self.get("seeds", [1])
        chosen = self.choice.seeds
        if chosen is None and self.smoke_table is not None:
            chosen = self.smoke_table.get("seeds", seeds_of_file[:1])
        return list(chosen or seeds_of_file)

    def _chosen_texts(self, key: str) -> list[str]:
        """Return the user's methods or depths as texts, else those of the miniature, else those of the file.

        key: "methods" or "depths".
        """
        chosen = getattr(self.choice, key)
        if chosen is None and self.smoke_table and key in self.smoke_table:
            chosen = self.smoke_table[key]
        return [str(value) for value in chosen or self[key]]

    @property
    def stuck(self) -> int:
        """Value of --stop-stuck: as many updates no better than the words' frequencies end a training; 0 for never."""
        if self.choice.stuck is not None:
            return self.choice.stuck
        return 0 if self.smoke_table is None else self.smoke_table.get("stop_stuck", SMOKE_STUCK)

    @property
    def vocabulary(self) -> int:
        """Number of pieces of the vocabulary, if the data are still to be prepared."""
        return SMOKE_VOCABULARY if self.choice.smoke else self["corpus_size"]["vocabulary"]

    @property
    def average(self) -> tuple[int, str]:
        """Pair (number, epochs): how many checkpoints are averaged, 1 for no averaging, and of which epochs.

        The epochs are a value of --epoch-weights: "36-45", or "last:10" for the last ten. Raises a UserError if the
        user's --average is neither a number nor such a range.
        """
        text = self.choice.average
        if text is None:
            number = self.get("translation", {}).get("average", 1)
            if self.choice.smoke and number > 1:
                number = SMOKE_AVERAGE
            text = str(number)

        first, hyphen, last = text.partition("-")  # epochs; without a hyphen `first` is the number of epochs instead
        valid = first.isdecimal() and int(first) > 0
        if hyphen:
            valid = valid and last.isdecimal() and int(first) <= int(last)
        if not valid:
            raise UserError(f"--average {text}", "how many of the last epochs, as 10, or which, as 36-45")

        if last:
            return int(last) - int(first) + 1, text
        return int(first), f"last:{first}"

    def _batch_flags(self, tokens: int, count: int, world: int) -> Flags:
        """Return --max-tokens and --update-freq, by which an update has as many tokens as the paper's.

        tokens: of one of the paper's batches; count: number of them in an update. A batch of one process has as many
        tokens as the paper's unless the user chooses --max-tokens. Raises a UserError if `world` such batches do not
        divide the update.
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
        """Return the flags of saving and logging.

        Of the checkpoints that are saved every so many updates the newest is kept, to resume from. If checkpoints are
        averaged, the weights after the epochs of `average` are kept too (--epoch-weights, a flag of this package).
        """
        every = SMOKE_SAVES if self.choice.smoke else self["saves"]["every"]  # updates
        flags: Flags = {"save-interval-updates": every, "keep-interval-updates": 1, "log-interval": LOG_INTERVAL}
        number, epochs = self.average
        if number > 1:
            flags["epoch-weights"] = epochs
        else:
            flags["no-epoch-checkpoints"] = True
        return flags

    def _complete_flags(self, flags: Flags) -> Flags:
        """Return a row's flags without those that are NOT_GIVEN, and with --stop-stuck if it has a value.

        A row that does not validate gets no --stop-stuck, which judges by the validation loss.
        """
        if self.stuck and not flags.get("disable-validation"):
            flags = flags | {"stop-stuck": self.stuck}
        return {name: value for name, value in flags.items() if value != NOT_GIVEN}


def flags_of(table: Mapping[str, Any]) -> Flags:
    """Return the flags of fairseq-train in a table of a file, which are all of its keys but "source" and "methods"."""
    return {name: value for name, value in table.items() if name not in ("source", "methods")}


def parse_flags(texts: Sequence[str]) -> Flags:
    """Return {"lr": "1e-3", "amp": True} for the texts ("--lr 1e-3", "--amp"): values are texts, of a switch True."""
    flags: Flags = {}
    for word in " ".join(texts).split():
        if word.startswith("--"):
            name = word[2:]
            flags[name] = True
        else:  # the value of the flag before it
            flags[name] = word
    return flags
