"""Experiments as data: a table or a figure of a paper in experiments/NAME.toml, and the trainings that it has.

A file holds values that somebody can lay beside the paper. Its keys:

    title, folder           a line for `deepnet reproduce --list`; the folder of its runs
    like                    another experiment, whose keys hold where this file has none; tables are merged
    corpus, corpus_size     a recipe of `deepnet prepare corpus`; pieces of its vocabulary, target tokens of an epoch
    gpus, precision         GPUs of one training in the paper; the precision, if it has to be this one
    full_precision          methods that are trained in fp32 whatever the precision is
    methods, depths, seeds  of its rows; layers = "half" if a depth counts both stacks; decoder_layers where they differ
    methods_of_given_depths the methods if a user chooses the depths
    more_rows               methods and depths of further rows, if a user chooses neither
    rows                    for a figure instead: groups of rows with names, facts and flags of their own, which are not
                            scored; rows_save if they save checkpoints; update: the one that the figure shows
    batch                   tokens and count of the batches of an update
    training, open          flags of fairseq-train: the paper's, with their source, and those that it leaves open
    methods_apart           methods for which the paper has other flags, and these
    variants                further versions of each row, by name
    translation             beam search, metric, number of checkpoints averaged
    subsets                 test sets, of which those are taken that the data have
    validation              "for --stop-stuck" if nothing else needs it
    needs                   "pairs" if a user has to name language pairs
    saves, smoke            updates between two saves; what differs in a miniature
    recipe                  another version of the whole experiment, by name
    end                     what is reported in the end: "table 1", "figure 6"
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from ..core.methods import get_method
from ..errors import UserError

Flags = dict[str, Any]  # of fairseq-train: name without dashes -> value; True for a switch
NONE = "none"  # value of a flag that is not given, where `like` has one
SMOKE = {  # flags of every miniature, on two CPU cores
    "encoder-embed-dim": 64, "encoder-ffn-embed-dim": 128, "encoder-attention-heads": 2, "update-freq": 1,
    "dropout": 0.0, "attention-dropout": 0.0, "activation-dropout": 0.0, "max-epoch": 0, "num-workers": 0,
    "warmup-updates": 100,
}  # fmt: skip
SMOKE_TOKENS, SMOKE_LR, SMOKE_STUCK, SMOKE_AVERAGE = 1000, 1e-3, 200, 2
SMOKE_VOCABULARY, SMOKE_SAVES = 500, 50
LOG_INTERVAL = 25


@dataclass(frozen=True)
class Row:
    """One training of an experiment: name of its folder, facts for run.json, flags of fairseq-train.

    layers: of all stacks, in units of one of width 512, which its memory depends on; paper_tokens: of an update in the
    paper; scored: whether its translations are scored.
    """

    name: str
    facts: Mapping[str, Any]
    flags: Flags
    method: str
    seed: int
    layers: int
    paper_tokens: int
    scored: bool = True


@dataclass(frozen=True)
class Choice:
    """What a user chooses of an experiment; None for the paper's.

    variants: names of the experiment's variants; average: last epochs, or A-B; stuck: of --stop-stuck; tokens: of a
    batch on a GPU; shared: whether embeddings are shared; update: that a figure shows.
    """

    methods: Sequence[str] | None = None
    depths: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    variants: Sequence[str] | None = None
    average: str | None = None
    stuck: int | None = None
    tokens: int | None = None
    shared: bool = True
    smoke: bool = False
    order: str = "deepest"
    update: int | None = None


@dataclass(frozen=True)
class Experiment:
    """An experiment of a file, with its recipe and the user's choice applied.

    content: the file's keys; world: processes of a training, over which an update's batches are spread.
    """

    name: str
    content: Mapping[str, Any]
    choice: Choice = field(default_factory=Choice)

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    @property
    def folder(self) -> str:
        """Name of the folder of its runs."""
        return self["folder"]

    @property
    def smoke(self) -> Mapping[str, Any] | None:
        """The keys of the miniature, None for the paper's size."""
        return self.content.get("smoke", {}) if self.choice.smoke else None

    def methods(self) -> list[str]:
        """Return the methods of its rows, in their order; UserError for an unknown one."""
        chosen = self.choice.methods
        if chosen is None and self.smoke and "methods" in self.smoke:
            chosen = self.smoke["methods"]
        if chosen is None and self.choice.depths is not None:
            chosen = self.content.get("methods_of_given_depths")
        chosen = list(chosen or self["methods"])
        for method in chosen:
            get_method(method)
        return chosen

    def depths(self) -> list[str]:
        """Return the depths of its rows as words, "18" or "60-12"; UserError for one that is none."""
        chosen = self.choice.depths
        if chosen is None and self.smoke and "depths" in self.smoke:
            chosen = self.smoke["depths"]
        words = [str(depth) for depth in chosen or self["depths"]]
        for word in words:
            self.layers(word)
        return words

    def seeds(self) -> list[int]:
        """Return the seeds of its trainings."""
        chosen = self.choice.seeds
        if chosen is None and self.smoke and "seeds" in self.smoke:
            chosen = self.smoke["seeds"]
        if chosen is None and self.smoke is not None:
            chosen = self.content.get("seeds", [1])[:1]
        return list(chosen or self.content.get("seeds", [1]))

    def layers(self, depth: str) -> tuple[int, int]:
        """Return the layers of the encoder and of the decoder at a depth; UserError for a word that is no depth."""
        parts = depth.split("-")
        if not all(part.isdecimal() and int(part) > 0 for part in parts) or len(parts) > 2:
            raise UserError(f"--depths: {depth} is no whole number above 0")
        numbers = [int(part) for part in parts]
        if len(numbers) == 2:
            return numbers[0], numbers[1]
        if self.content.get("layers") == "half":
            if numbers[0] % 2:
                raise UserError(f"--depths: {depth} is no even number of layers")
            return numbers[0] // 2, numbers[0] // 2
        decoder = self.content.get("decoder_layers", {}).get(depth, numbers[0])
        return numbers[0], decoder

    @property
    def stuck(self) -> int:
        """Updates after which a training that learns nothing ends, 0 for never."""
        if self.choice.stuck is not None:
            return self.choice.stuck
        return 0 if self.smoke is None else self.smoke.get("stop_stuck", SMOKE_STUCK)

    @property
    def update(self) -> int | None:
        """The update that a figure shows, None for an experiment that shows none."""
        return self.choice.update or self.content.get("update")

    @property
    def vocabulary(self) -> int:
        """Pieces of the vocabulary, of data that are still to be prepared."""
        return SMOKE_VOCABULARY if self.choice.smoke else self["corpus_size"]["vocabulary"]

    @property
    def average(self) -> tuple[int, str]:
        """Number of checkpoints that are averaged, and their epochs as --epoch-weights names them."""
        word = self.choice.average
        if word is None:
            number = self["translation"]["average"]
            word = str(SMOKE_AVERAGE if self.choice.smoke and number > 1 else number)
        first, _, last = word.partition("-")
        valid = first.isdecimal() and int(first) > 0 and (not last or (last.isdecimal() and int(first) <= int(last)))
        if not valid:
            raise UserError(f"--average {word}: how many of the last epochs, as 10, or which, as 36-45")
        return (int(last) - int(first) + 1, word) if last else (int(word), f"last:{word}")

    def variants(self) -> list[Mapping[str, Any]]:
        """Return the versions of each row: their part of the name, and flags."""
        known = self.content.get("variants", {})
        names = self.choice.variants or list(known)
        for name in names:
            if name not in known:
                raise UserError(f"--variants {name}: {self.name} has {', '.join(known) or 'none'}")
        return [known[name] for name in names] or [{}]

    def rows(self, world: int) -> Iterator[Row]:
        """Yield the trainings in the order in which they are begun. world: processes of each."""
        groups = self.content.get("rows")
        if groups:
            if self.smoke is not None:
                groups = self.smoke.get("rows", groups)
            for group in groups:
                yield from self._rows_of(group, world)
            return

        for seed in self.seeds():
            for method, depth in self._in_order(self.methods(), self.depths()):
                for variant in self.variants():
                    yield self._row(method, depth, seed, variant, world)
        more = self.content.get("more_rows")
        if more and not self.choice.smoke and self.choice.methods is None and self.choice.depths is None:
            for seed in self.seeds():
                for method, depth in self._in_order(more["methods"], more["depths"]):
                    yield self._row(method, depth, seed, {}, world)

    def _rows_of(self, group: Mapping[str, Any], world: int) -> Iterator[Row]:
        """Yield the rows of a group that a figure names: methods by depths, of the first seed."""
        for method in group.get("methods", self.methods()):
            for depth in map(str, group.get("depths", self.depths())):
                encoder, decoder = self.layers(depth)
                facts: dict[str, Any] = {"method": method, "encoder_layers": encoder, "decoder_layers": decoder}
                facts |= group.get("facts", {})
                if self.update is not None:
                    facts["update"] = self.update
                yield Row(
                    name=group["name"].format(method=method, depth=depth),
                    facts=facts,
                    flags=self._flags(method, depth, group, world),
                    method=method,
                    seed=self.seeds()[0],
                    layers=(encoder + decoder) * self["corpus_size"].get("layer", 1),
                    paper_tokens=math.prod(self._papers_batch(depth, group)),
                    scored=False,
                )

    def _in_order(self, methods: Sequence[str], depths: Sequence[str]) -> list[tuple[str, str]]:
        """Pair methods and depths: method by method the deepest first, or depth by depth."""

        def first_number(depth: str) -> int:
            return int(depth.split("-")[0])

        if self.choice.order == "deepest":
            ordered = sorted(depths, key=first_number, reverse=True)
            return [(method, depth) for method in methods for depth in ordered]
        ordered = list(depths) if self.choice.order == "given" else sorted(depths, key=first_number)
        return [(method, depth) for depth in ordered for method in methods]

    def _row(self, method: str, depth: str, seed: int, variant: Mapping[str, Any], world: int) -> Row:
        encoder, decoder = self.layers(depth)
        facts: dict[str, Any] = {"method": method, "encoder_layers": encoder, "decoder_layers": decoder}
        name = f"{method}-{depth}"
        if variant:
            facts["variant"] = variant["name"]
            if variant["name"]:
                name += f"-{variant['name']}"
        return Row(
            name=f"{name}-seed{seed}",
            facts=facts,
            flags=self._flags(method, depth, variant, world),
            method=method,
            seed=seed,
            layers=(encoder + decoder) * self["corpus_size"].get("layer", 1),
            paper_tokens=math.prod(self._papers_batch(depth, variant)),
        )

    def _flags(self, method: str, depth: str, variant: Mapping[str, Any], world: int) -> Flags:
        """Return a row's flags: later sources override earlier ones."""
        encoder, decoder = self.layers(depth)
        flags: Flags = flags_of(self["training"]) | flags_of(self["open"])
        if not self.choice.shared:
            flags.pop("share-all-embeddings", None)
        if self.content.get("validation") == "for --stop-stuck" and not self.stuck:
            flags["disable-validation"] = True
        flags |= parsed(get_method(method).train_flags) | {"method": method}
        flags |= {"encoder-layers": encoder, "decoder-layers": decoder}
        flags |= self._batch(depth, variant, world)
        if self.smoke is not None:
            flags |= SMOKE | {
                "max-update": self.smoke["updates"],
                "max-tokens": self.smoke.get("tokens", SMOKE_TOKENS),
                "lr": self.smoke.get("lr", SMOKE_LR),
            }
            flags |= flags_of(self.smoke.get("flags", {}))
            if "batch" in variant:
                flags |= self._batch(depth, variant, world)
        if self.update is not None:
            flags["max-update"] = self.update + 1
        if "rows" not in self.content or self.content.get("rows_save"):
            flags |= self._saves() | {"log-interval": LOG_INTERVAL}

        apart = self.content.get("methods_apart")
        if apart and method in apart["methods"] and self.smoke is None:
            flags |= flags_of(apart)
        flags |= flags_of(variant.get("flags", {}))
        if self.smoke is not None:
            flags |= flags_of(variant.get("smoke_flags", {}))
        if self.stuck and not flags.get("disable-validation"):
            flags["stop-stuck"] = self.stuck
        return {name: value for name, value in flags.items() if value != NONE}

    def _batch(self, depth: str, variant: Mapping[str, Any], world: int) -> Flags:
        """Return the batch of each process, and how many of them make an update of the paper's size."""
        tokens, count = self._papers_batch(depth, variant)
        mine = self.choice.tokens or tokens
        if tokens * count % (world * mine):
            if self.choice.tokens is None:
                raise UserError(
                    f"--gpus: {world} GPUs must divide {count}, the batches of an update; or choose --max-tokens so "
                    f"that times {world} it divides {tokens * count}"
                )
            problem = f"{world} x {mine} tokens do not divide the paper's batch of {tokens * count}"
            raise UserError(f"--max-tokens {mine}: {problem}")
        return {"max-tokens": mine, "update-freq": tokens * count // (world * mine)}

    def _papers_batch(self, depth: str, variant: Mapping[str, Any]) -> tuple[int, int]:
        """Return the tokens of a batch, and the batches of an update, in the paper or of a miniature."""
        batch = self["batch"]
        if "batch" in variant:
            tokens, count = variant["batch"]
            return tokens, count
        if depth in batch.get("of_depth", {}) and self.smoke is None:
            tokens, count = batch["of_depth"][depth]
            return tokens, count
        return batch["tokens"], batch["count"]

    def _saves(self) -> Flags:
        """Return the flags of saves: for a resume, and the weights of the epochs to average."""
        every = SMOKE_SAVES if self.choice.smoke else self["saves"]["every"]
        flags: Flags = {"save-interval-updates": every, "keep-interval-updates": 1}
        number, epochs = self.average
        if number > 1:
            flags["epoch-weights"] = epochs
        else:
            flags["no-epoch-checkpoints"] = True
        return flags


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


@cache
def names() -> tuple[str, ...]:
    """List the experiments."""
    folder = resources.files(__package__) / "experiments"
    return tuple(sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")))


def read(name: str, recipe: str | None = None) -> Experiment:
    """Read an experiment, in one of its recipes if a name is given; UserError for one that does not exist."""
    if name not in names():
        raise UserError(f"{' '.join(name.split())}: no such experiment; choose one of {', '.join(names())}")
    content = _content(name)
    recipes = content.pop("recipe", {})
    if recipe is not None:
        if recipe not in recipes:
            known = ", ".join(recipes) or "none"
            raise UserError(f"--recipe {recipe}: {name} has {known}; leave it out for the usual one")
        content = merged(content, recipes[recipe])
    return Experiment(name, content)


def _content(name: str) -> dict[str, Any]:
    file = resources.files(__package__) / "experiments" / f"{name}.toml"
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    base = content.pop("like", None)
    return content if base is None else merged(_content(base), content)


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base with the keys of `more`; a table is merged with the base's, but for an empty one."""
    result = dict(base)
    for key, value in more.items():
        if isinstance(value, Mapping) and value and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def chosen(experiment: Experiment, **choices: Any) -> Experiment:
    """Return the experiment with the user's choices, fields of Choice."""
    return replace(experiment, choice=replace(experiment.choice, **choices))
