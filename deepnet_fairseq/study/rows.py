"""The ways in which an experiment names its rows: methods by depths, groups of a figure, sizes of language models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import UserError
from .experiment import Experiment, Flags, Row, Word, flags_of

SMOKE = {  # flags of a miniature that translates, on two CPU cores
    "encoder-embed-dim": 64, "encoder-ffn-embed-dim": 128, "encoder-attention-heads": 2, "update-freq": 1,
    "dropout": 0.0, "attention-dropout": 0.0, "activation-dropout": 0.0, "max-epoch": 0, "num-workers": 0,
    "warmup-updates": 100,
}  # fmt: skip
SMOKE_TOKENS, SMOKE_LR = 1000, 1e-3


class ByLayers(Experiment):
    """An experiment whose rows differ in their number of layers."""

    def depths(self) -> list[str]:
        """Return the depths of its rows as words, "18" or "60-12"; UserError for one that is none."""
        words = self._asked_for("depths")
        for word in words:
            self.layers(word)
        return words

    def layers(self, depth: str) -> dict[str, int]:
        """Return the layers of each stack at a depth, as encoder_layers; UserError for a word that is no depth."""
        stacks = self.get("stacks", ("encoder", "decoder"))
        parts = depth.split("-")
        if not all(part.isdecimal() and int(part) > 0 for part in parts) or len(parts) > len(stacks):
            most = "" if len(stacks) == 1 else ", or two with a hyphen"
            raise UserError(f"--depths: {depth} is no whole number above 0{most}")
        numbers = [int(part) for part in parts]
        if len(numbers) == len(stacks):
            return _by_stack(stacks, numbers)
        if self.get("layers") == "half":
            if numbers[0] % 2:
                raise UserError(f"--depths: {depth} is no even number of layers")
            return _by_stack(stacks, [numbers[0] // 2, numbers[0] // 2])
        decoder = self.get("decoder_layers", {}).get(depth, numbers[0])
        return _by_stack(stacks, [numbers[0], decoder])

    @property
    def update(self) -> int | None:
        """The update that a figure shows, None for an experiment that shows none."""
        return self.choice.update or self.get("update")

    def _papers_batch(self, depth: str, variant: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the tokens of a batch, and the batches of an update, in the paper or of a miniature.

        None if no paper has one, and the flags say it.
        """
        if "batch" in variant:
            tokens, count = variant["batch"]
            return tokens, count
        batch = self.get("batch")
        if batch is None:
            return None
        if depth in batch.get("of_depth", {}) and self.smoke is None:
            tokens, count = batch["of_depth"][depth]
            return tokens, count
        return batch["tokens"], batch["count"]

    def _memory(self, layers: Mapping[str, int]) -> int:
        """Return the layers of all stacks in units of one of width 512."""
        return sum(layers.values()) * self["corpus_size"].get("layer", 1)

    def _flags(self, word: Word, depth: str, variant: Mapping[str, Any], world: int) -> Flags:
        """Return a row's flags: later sources override earlier ones."""
        flags: Flags = flags_of(self["training"]) | flags_of(self["open"])
        if not self.choice.shared:
            flags.pop("share-all-embeddings", None)
        if self.get("validation") == "for --stop-stuck" and not self.stuck:
            flags["disable-validation"] = True
        flags |= word.flags
        flags |= {name.replace("_", "-"): number for name, number in self.layers(depth).items()}
        if self.smoke is not None:
            flags |= self._miniature()
        batch = self._papers_batch(depth, variant)
        if batch is not None and (self.smoke is None or "batch" in variant):
            flags |= self._batch(*batch, world)
        if self.update is not None:
            flags["max-update"] = self.update + 1
        if self.saves:
            flags |= self._saves()

        apart = self.get("methods_apart")
        if apart and word.method in apart["methods"] and self.smoke is None:
            flags |= flags_of(apart)
        flags |= flags_of(variant.get("flags", {}))
        if self.smoke is not None:
            flags |= flags_of(variant.get("smoke_flags", {}))
        return self._finished(flags)

    @property
    def saves(self) -> bool:
        """Whether the rows save checkpoints."""
        return True

    def _miniature(self) -> Flags:
        assert self.smoke is not None
        flags = SMOKE | {
            "max-update": self.smoke["updates"],
            "max-tokens": self.choice.tokens or self.smoke.get("tokens", SMOKE_TOKENS),
            "lr": self.smoke.get("lr", SMOKE_LR),
        }
        return flags | flags_of(self.smoke.get("flags", {}))


class ByMethod(ByLayers):
    """An experiment that trains each method at each depth, and scores it."""

    def words(self) -> list[Word]:
        """Return the methods; those for given depths if a user chooses the depths alone."""
        of_given_depths = self.get("methods_of_given_depths")
        depths_alone = self.choice.depths is not None and self.choice.methods is None
        miniature_has_own = bool(self.smoke) and "methods" in self.smoke
        if of_given_depths and depths_alone and not miniature_has_own:
            return [Word.parse(text) for text in of_given_depths]
        return super().words()

    @property
    def saves(self) -> bool:
        """Whether the rows save checkpoints: those that are scored."""
        return self.get("translation") is not None

    def rows(self, world: int) -> Iterator[Row]:
        """Yield the rows seed by seed: methods by depths, each in all its variants; then the further ones."""
        for seed in self.seeds():
            for word, depth in self._in_order(self.words(), self.depths()):
                for variant in self.variants():
                    yield self._row(word, depth, seed, variant, world)

        more = self.get("more_rows")
        nothing_chosen = self.choice.methods is None and self.choice.depths is None
        if more and nothing_chosen and not self.choice.smoke:
            words = [Word.parse(text) for text in more["methods"]]
            for seed in self.seeds():
                for word, depth in self._in_order(words, more["depths"]):
                    yield self._row(word, depth, seed, {}, world)

    def variants(self) -> list[Mapping[str, Any]]:
        """Return the versions of each row: their part of the name, and flags."""
        known = self.get("variants", {})
        names = self.choice.variants or list(known)
        for name in names:
            if name not in known:
                raise UserError(f"--variants {name}: {self.name} has {', '.join(known) or 'none'}")
        return [known[name] for name in names] or [{}]

    def _in_order(self, words: Sequence[Word], depths: Sequence[str]) -> list[tuple[Word, str]]:
        """Pair methods and depths: method by method the deepest first, or depth by depth."""

        def first_number(depth: str) -> int:
            return int(depth.split("-")[0])

        order = self.choice.order or self.get("order", "deepest")
        if order == "deepest":
            ordered = sorted(depths, key=first_number, reverse=True)
            return [(word, depth) for word in words for depth in ordered]
        ordered = list(depths) if order == "given" else sorted(depths, key=first_number)
        return [(word, depth) for depth in ordered for word in words]

    def _row(self, word: Word, depth: str, seed: int, variant: Mapping[str, Any], world: int) -> Row:
        layers = self.layers(depth)
        facts: dict[str, Any] = {"method": word.method} | layers
        name = f"{word.folder}-{depth}"
        if self.get("options"):
            facts["variant"] = word.variant
        if variant:
            facts["variant"] = variant["name"]
            if variant["name"]:
                name += f"-{variant['name']}"
        batch = self._papers_batch(depth, variant)
        return Row(
            name=f"{name}-seed{seed}",
            facts=facts,
            flags=self._flags(word, depth, variant, world),
            method=word.method,
            seed=seed,
            layers=self._memory(layers),
            paper_tokens=None if batch is None else math.prod(batch),
            scored=self.get("translation") is not None,
        )


class ByGroup(ByLayers):
    """An experiment whose file names its rows one by one, or by groups of methods and depths; none is scored."""

    @property
    def saves(self) -> bool:
        """Whether the rows save checkpoints."""
        return bool(self.get("rows_save"))

    def rows(self, world: int) -> Iterator[Row]:
        """Yield the rows of each group in turn, for each seed if their names tell seeds apart, else for the first."""
        groups = self["rows"] if self.smoke is None else self.smoke.get("rows", self["rows"])
        for group in groups:
            words = [Word.parse(text) for text in group["methods"]] if "methods" in group else self.words()
            seeds = self.seeds() if "{seed}" in group["name"] else self.seeds()[:1]
            for seed in seeds:
                for word in words:
                    for depth in map(str, group.get("depths", self.depths())):
                        yield self._row(group, word, depth, seed, world)

    def _row(self, group: Mapping[str, Any], word: Word, depth: str, seed: int, world: int) -> Row:
        layers = self.layers(depth)
        facts: dict[str, Any] = {"method": word.method} | layers | group.get("facts", {})
        if self.update is not None:
            facts["update"] = self.update
        flags = self._flags(word, depth, group, world)
        if seed == self.seeds()[0]:
            flags |= flags_of(group.get("first_seed", {}))
        batch = self._papers_batch(depth, group)
        return Row(
            name=group["name"].format(method=word.method, depth=depth, seed=seed),
            facts=facts,
            flags=flags,
            method=flags["method"],
            seed=seed,
            layers=self._memory(layers),
            paper_tokens=None if batch is None else math.prod(batch),
            scored=False,
        )


class BySize(Experiment):
    """An experiment that trains language models: methods by sizes and learning rates, each scored by its perplexity."""

    def sizes(self) -> list[str]:
        """Return the names of the sizes; UserError for an unknown one."""
        known = self["sizes"]
        chosen = self.choice.sizes
        if chosen is None and self.smoke and "sizes" in self.smoke:
            chosen = self.smoke["sizes"]
        for name in chosen or known:
            if name not in known:
                raise UserError(f"--sizes {name}: {self.name} has {', '.join(known)}")
        return list(chosen or known)

    def words(self, size: str | None = None) -> list[Word]:
        """Return the methods: the user's, those of the miniature, or those of a size, by default of all."""
        if self.choice.methods is not None or (self.smoke and "methods" in self.smoke):
            return super().words()
        sizes = self.sizes() if size is None else [size]
        return [Word.parse(text) for name in sizes for text in self["sizes"][name]["methods"]]

    def rows(self, world: int) -> Iterator[Row]:
        """Yield the rows seed by seed and size by size: each method at each learning rate."""
        for seed in self.seeds():
            for size in self.sizes():
                for word in self.words(size):
                    for rate in self._rates(word, size):
                        yield self._row(word, size, rate, seed, world)

    def _rates(self, word: Word, size: str) -> list[str]:
        """Return the learning rates at which a method is trained, as they are written; UserError for no number."""
        if word.rate is not None:
            rates = [word.rate]
        elif self.choice.rates is not None:
            rates = list(self.choice.rates)
        elif self.smoke and "rates" in self.smoke:
            rates = list(self.smoke["rates"])
        else:
            rates = list(self["sizes"][size]["rates"])
        for rate in rates:
            if not _is_number(rate):
                raise UserError(f"--lrs {rate}: is no learning rate, as 1e-3")
        return rates

    def _row(self, word: Word, name: str, rate: str, seed: int, world: int) -> Row:
        size = self["sizes"][name]
        layers = size["layers"] if self.smoke is None else self.smoke["layers"]
        batch = size["batch"]
        facts = {
            "method": word.method,
            f"{self['stack']}_layers": layers,
            "variant": word.variant,
            "size": size["label"],
            "lr": rate,
        }
        flags: Flags = flags_of(self["task"]) | flags_of(self["training"]) | flags_of(self["open"])
        flags |= flags_of(size["flags"]) | word.flags
        if self.smoke is None:
            flags |= self._batch(batch[0], batch[1], world)
        else:
            flags |= flags_of(self.smoke["flags"])
            flags["max-tokens"] = self.choice.tokens or flags["max-tokens"]
        if flags["max-tokens"] < flags["tokens-per-sample"]:
            raise UserError(f"--max-tokens {flags['max-tokens']}: a sample has {flags['tokens-per-sample']}")
        flags |= self._saves() | {"lr": rate} | self._probes(word, name, rate)
        return Row(
            name=f"{word.folder}-{name}-lr{rate}-seed{seed}",
            facts=facts,
            flags=self._finished(flags),
            method=word.method,
            seed=seed,
            layers=layers,
            paper_tokens=math.prod(batch),
        )

    def _probes(self, word: Word, size: str, rate: str) -> Flags:
        """Return the flags of the rows that figures show: methods without options at one size and learning rate."""
        probed = self.get("probed")
        if probed is None or word.options or (size, rate) != (probed["size"], probed["rate"]):
            return {}
        flags = flags_of(probed["flags"])
        if self.smoke is not None:
            flags |= flags_of(probed["smoke_flags"])
        return flags


def _by_stack(stacks: Sequence[str], layers: Sequence[int]) -> dict[str, int]:
    return {f"{stack}_layers": number for stack, number in zip(stacks, layers, strict=True)}


def _is_number(word: str) -> bool:
    try:
        return 0 < float(word) < math.inf
    except ValueError:
        return False
