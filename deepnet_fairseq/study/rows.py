"""Make the rows of an experiment, each of which is one training, with the flags of fairseq-train.

An experiment is a TOML file, whose keys experiments.py lists. It names its rows in one of three ways.
ByMethod: each method at each depth, as for tables of translation. ByGroup: tables [[rows]] of the file, for figures.
BySize: each method at each size and learning rate, for language models.

self[key] and self.get(key) are values of the file; self.choice is what the user chose by flags. self.smoke_table is the
file's table [smoke] if the miniature is trained, a small version on generated data; else None. A MethodSpec is a method
with its options, a depth a text, "18" or "60-12", a variant a version of a row with flags of its own. An update of a
training is made of a number of batches. `world` is the number of processes of a training, one for each GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import UserError
from .experiment import Experiment, Flags, MethodSpec, Row, flags_of

SMOKE = {  # flags of a miniature that translates, on two CPU cores; the length is given in updates, without max-epoch
    "encoder-embed-dim": 64, "encoder-ffn-embed-dim": 128, "encoder-attention-heads": 2, "update-freq": 1,
    "dropout": 0.0, "attention-dropout": 0.0, "activation-dropout": 0.0, "max-epoch": 0, "num-workers": 0,
    "warmup-updates": 100,
}  # fmt: skip
SMOKE_TOKENS = 1000  # --max-tokens of such a miniature
SMOKE_LR = 1e-3


class ByLayers(Experiment):
    """An experiment whose rows differ in their number of layers."""

    def depths(self) -> list[str]:
        """Return the depths of its rows as texts, "18" or "60-12"; UserError for a text that is no depth."""
        depths = self._chosen_texts("depths")
        for depth in depths:
            self.layers(depth)  # raises the error for a text that is no depth
        return depths

    def layers(self, depth: str) -> dict[str, int]:
        """Return {"encoder_layers": N, "decoder_layers": M} for a depth; of a model with one stack only its entry.

        depth: "60-12" has 60 encoder and 12 decoder layers. "18" has 18 of each; 9 of each if the file has layers =
        "half"; 18 encoder layers if the file's table decoder_layers gives the decoder's for this depth. Raises a
        UserError for a text that is no depth, as an odd number of layers that are to be halved.
        """
        stacks = self.get("stacks", ("encoder", "decoder"))
        parts = depth.split("-")
        are_numbers = all(part.isdecimal() and int(part) > 0 for part in parts)
        if not are_numbers or len(parts) > len(stacks):
            most = "" if len(stacks) == 1 else ", or two with a hyphen"
            raise UserError("--depths", f"{depth} is no whole number above 0{most}")
        numbers = [int(part) for part in parts]
        if len(numbers) == len(stacks):
            return _by_stack(stacks, numbers)

        number = numbers[0]  # the only one, for two stacks
        if self.get("layers") == "half":
            if number % 2:
                raise UserError("--depths", f"{depth} is no even number of layers")
            return _by_stack(stacks, [number // 2, number // 2])
        decoder = self.get("decoder_layers", {}).get(depth, number)
        return _by_stack(stacks, [number, decoder])

    @property
    def update(self) -> int | None:
        """The update whose probes the figure shows; None for an experiment that has no such figure."""
        return self.choice.update or self.get("update")

    def _paper_batch(self, depth: str, row_table: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return (tokens of a batch, batches in an update) of the paper, counting the batches of all its GPUs.

        The result is None if the file has no "batch", because its flags have --max-tokens. row_table: the table of
        the row's variant or group in the file, whose own "batch" goes first.
        """
        if "batch" in row_table:
            tokens, count = row_table["batch"]
            return tokens, count
        batch = self.get("batch")
        if batch is None:
            return None
        if depth in batch.get("of_depth", {}) and self.smoke_table is None:  # the paper has another for this depth
            tokens, count = batch["of_depth"][depth]
            return tokens, count
        return batch["tokens"], batch["count"]

    def _memory_layers(self, layers: Mapping[str, int]) -> int:
        """Return Row.layers, the model's size as the number of layers of width 512 that need as much memory.

        layers: what `layers` returns. The file's corpus_size.layer tells how many of width 512 a layer is worth.
        """
        return sum(layers.values()) * self["corpus_size"].get("layer", 1)

    def _flags(self, spec: MethodSpec, depth: str, row_table: Mapping[str, Any], world: int) -> Flags:
        """Return a row's flags of fairseq-train; what comes later here overrides what came before.

        row_table: the table of the row's variant or group in the file, with "flags" of its own; {} if it has none.
        """
        # the paper's flags, and those that the paper leaves open
        flags: Flags = flags_of(self["training"]) | flags_of(self["open"])
        if not self.choice.shared:
            flags.pop("share-all-embeddings", None)
        if self.get("validation") == "for --stop-stuck" and not self.stuck:  # nothing else needs validation
            flags["disable-validation"] = True

        # method, depth and size
        flags |= spec.flags
        flags |= {name.replace("_", "-"): number for name, number in self.layers(depth).items()}
        if self.smoke_table is not None:
            flags |= self._miniature_flags()
        batch = self._paper_batch(depth, row_table)
        uses_batch_of_file = self.smoke_table is None or "batch" in row_table  # other miniatures have that of SMOKE
        if batch is not None and uses_batch_of_file:
            flags |= self._batch_flags(*batch, world)

        # length and checkpoints
        if self.update is not None:
            flags["max-update"] = self.update + 1  # probes record update N while update N + 1 is made
        if self.saves_checkpoints:
            flags |= self._save_flags()

        # flags of single methods and rows, in place of these
        methods_apart = self.get("methods_apart")  # a miniature trains all methods with the same flags
        if methods_apart and spec.method in methods_apart["methods"] and self.smoke_table is None:
            flags |= flags_of(methods_apart)
        flags |= flags_of(row_table.get("flags", {}))
        if self.smoke_table is not None:
            flags |= flags_of(row_table.get("smoke_flags", {}))
        return self._complete_flags(flags)

    @property
    def saves_checkpoints(self) -> bool:
        """Whether the rows save checkpoints; each subclass decides by a key of the file."""
        raise NotImplementedError

    def _miniature_flags(self) -> Flags:
        """Return the flags that make the row a miniature: SMOKE, and those of the file's table [smoke]."""
        assert self.smoke_table is not None
        flags = SMOKE | {
            "max-update": self.smoke_table["updates"],
            "max-tokens": self.choice.tokens or self.smoke_table.get("tokens", SMOKE_TOKENS),
            "lr": self.smoke_table.get("lr", SMOKE_LR),
        }
        return flags | flags_of(self.smoke_table.get("flags", {}))


class ByMethod(ByLayers):
    """An experiment that trains each method at each depth; the models translate if the file has [translation]."""

    def method_specs(self) -> list[MethodSpec]:
        """Return the methods of the rows, as Experiment.method_specs.

        If the user chooses depths and no methods, the file's methods_of_given_depths are taken, if it has these. The
        methods of a miniature go before them.
        """
        of_given_depths = self.get("methods_of_given_depths")
        depths_alone_chosen = self.choice.depths is not None and self.choice.methods is None
        miniature_has_own = bool(self.smoke_table) and "methods" in self.smoke_table
        if of_given_depths and depths_alone_chosen and not miniature_has_own:
            return [MethodSpec.parse(text) for text in of_given_depths]
        return super().method_specs()

    @property
    def saves_checkpoints(self) -> bool:
        """Whether the rows save checkpoints, with which to translate: if the file has [translation]."""
        return self.get("translation") is not None

    def rows(self, world: int) -> Iterator[Row]:
        """Yield the rows seed by seed: each method at each depth, in each variant; then the file's more_rows.

        more_rows are for the experiment as it is: not if the user chooses methods or depths, nor in a miniature.
        """
        for seed in self.seeds():
            for spec, depth in self._in_order(self.method_specs(), self.depths()):
                for variant in self.variants():
                    yield self._row(spec, depth, seed, variant, world)

        more = self.get("more_rows")
        nothing_chosen = self.choice.methods is None and self.choice.depths is None
        if more and nothing_chosen and not self.choice.smoke:
            specs = [MethodSpec.parse(text) for text in more["methods"]]
            for seed in self.seeds():
                for spec, depth in self._in_order(specs, more["depths"]):
                    yield self._row(spec, depth, seed, {}, world)

    def variants(self) -> list[Mapping[str, Any]]:
        """Return the variants in which each row is trained, those that the user chooses or all; [{}] for no variants.

        Each is a table of the file with the keys "name", which becomes a part of the row's name, "flags" of
        fairseq-train, and perhaps "batch" (see _paper_batch) and "smoke_flags", further flags in a miniature. Raises a
        UserError for a variant that the file does not have.
        """
        known = self.get("variants", {})
        names = self.choice.variants or list(known)
        for name in names:
            if name not in known:
                raise UserError(f"--variants {name}", f"{self.name} has {', '.join(known) or 'none'}")
        return [known[name] for name in names] or [{}]

    def _in_order(self, specs: Sequence[MethodSpec], depths: Sequence[str]) -> list[tuple[MethodSpec, str]]:
        """Return all pairs of method and depth, in the order that the user or the file names.

        "deepest", the default: method by method, the deepest first. "given": depth by depth, as they are given.
        "shallowest": depth by depth, the shallowest first.
        """

        def first_number(depth: str) -> int:
            """Return the only or first number of a depth, as 60 of "60-12"."""
            return int(depth.split("-")[0])

        order = self.choice.order or self.get("order", "deepest")
        if order == "deepest":
            ordered = sorted(depths, key=first_number, reverse=True)
            return [(spec, depth) for spec in specs for depth in ordered]
        ordered = list(depths) if order == "given" else sorted(depths, key=first_number)
        return [(spec, depth) for depth in ordered for spec in specs]

    def _row(self, spec: MethodSpec, depth: str, seed: int, variant: Mapping[str, Any], world: int) -> Row:
        """Return a row, whose name is METHOD-DEPTH-seedN, or METHOD-DEPTH-VARIANT-seedN.

        METHOD has the method's options, as MethodSpec.folder_prefix. variant: one of variants(); {} if the row has
        none.
        """
        layers = self.layers(depth)
        facts: dict[str, Any] = {"method": spec.method} | layers
        name = f"{spec.folder_prefix}-{depth}"
        if self.get("options"):  # the name has the options already, in folder_prefix
            facts["variant"] = spec.options_text
        if variant:
            facts["variant"] = variant["name"]
            if variant["name"]:  # "" for a usual version beside others
                name += f"-{variant['name']}"
        batch = self._paper_batch(depth, variant)
        return Row(
            name=f"{name}-seed{seed}",
            facts=facts,
            flags=self._flags(spec, depth, variant, world),
            method=spec.method,
            seed=seed,
            layers=self._memory_layers(layers),
            paper_tokens=None if batch is None else math.prod(batch),
            scored=self.get("translation") is not None,
        )


class ByGroup(ByLayers):
    """An experiment whose file has tables [[rows]], each for a group of rows; none of them gets a score.json.

    Keys of a group: "name" of its rows, with blanks to fill, as "{method}-{depth}-seed{seed}"; "methods" and "depths",
    or else the file's are taken; "facts" for run.json; "flags" of fairseq-train; "batch", see _paper_batch;
    "first_seed", further flags of the rows with the first seed; "smoke_flags", further flags in a miniature.
    """

    @property
    def saves_checkpoints(self) -> bool:
        """Whether the rows save checkpoints: the file's key rows_save, by default no."""
        return bool(self.get("rows_save"))

    def rows(self, world: int) -> Iterator[Row]:
        """Yield the rows of each group in turn: for each seed if the group's name has {seed}, else for the first.

        A miniature has the groups of [smoke] in place of the file's, if that table has any.
        """
        groups = self["rows"] if self.smoke_table is None else self.smoke_table.get("rows", self["rows"])
        for group in groups:
            own_methods = group.get("methods")
            specs = self.method_specs() if own_methods is None else [MethodSpec.parse(text) for text in own_methods]
            seeds = self.seeds() if "{seed}" in group["name"] else self.seeds()[:1]
            for seed in seeds:
                for spec in specs:
                    for depth in map(str, group.get("depths", self.depths())):
                        yield self._row(group, spec, depth, seed, world)

    def _row(self, group: Mapping[str, Any], spec: MethodSpec, depth: str, seed: int, world: int) -> Row:
        """Return the row of a group with this method, depth and seed.

        group: a table of the file with the keys that the docstring of the class lists.
        """
        layers = self.layers(depth)
        facts: dict[str, Any] = {"method": spec.method} | layers | group.get("facts", {})
        if self.update is not None:
            facts["update"] = self.update  # whose probes the figure shows
        flags = self._flags(spec, depth, group, world)
        if seed == self.seeds()[0]:
            flags |= flags_of(group.get("first_seed", {}))
        batch = self._paper_batch(depth, group)
        return Row(
            name=group["name"].format(method=spec.method, depth=depth, seed=seed),
            facts=facts,
            flags=flags,
            method=flags["method"],  # which the group's flags may replace
            seed=seed,
            layers=self._memory_layers(layers),
            paper_tokens=None if batch is None else math.prod(batch),
            scored=False,
        )


class BySize(Experiment):
    """An experiment that trains language models: each method at each size and learning rate, scored by perplexity.

    A size is a table of the file, [sizes.NAME]: "label" for tables, "layers", "batch" (tokens, and the number of
    batches in an update), "methods" and learning "rates" of its rows, "flags" of fairseq-train.
    """

    def sizes(self) -> list[str]:
        """Return the names of the sizes: the user's, else the miniature's, else all; UserError for an unknown one."""
        known = self["sizes"]
        chosen = self.choice.sizes
        if chosen is None and self.smoke_table and "sizes" in self.smoke_table:
            chosen = self.smoke_table["sizes"]
        for name in chosen or known:
            if name not in known:
                raise UserError(f"--sizes {name}", f"{self.name} has {', '.join(known)}")
        return list(chosen or known)

    def method_specs(self, size: str | None = None) -> list[MethodSpec]:
        """Return the methods: the user's, else those of the miniature, else those of the size.

        size: its name; None for the methods of all sizes that are trained, one size after the other.
        """
        if self.choice.methods is not None or (self.smoke_table and "methods" in self.smoke_table):
            return super().method_specs()
        specs = []
        for name in self.sizes() if size is None else [size]:
            specs += [MethodSpec.parse(text) for text in self["sizes"][name]["methods"]]
        return specs

    def rows(self, world: int) -> Iterator[Row]:
        """Yield the rows seed by seed and size by size: each method at each learning rate."""
        for seed in self.seeds():
            for size in self.sizes():
                for spec in self.method_specs(size):
                    for rate in self._rates(spec, size):
                        yield self._row(spec, size, rate, seed, world)

    def _rates(self, spec: MethodSpec, size: str) -> list[str]:
        """Return the learning rates with which a method is trained, as texts: "1e-3".

        The rates are the method's own (METHOD@RATE), else the user's, else the miniature's, else those of the size.
        Raises a UserError for what is no positive number.
        """
        if spec.rate is not None:
            rates = [spec.rate]
        elif self.choice.rates is not None:
            rates = list(self.choice.rates)
        elif self.smoke_table and "rates" in self.smoke_table:
            rates = list(self.smoke_table["rates"])
        else:
            rates = list(self["sizes"][size]["rates"])
        for rate in rates:
            if not _is_positive_number(rate):
                raise UserError(f"--lrs {rate}", "is no learning rate, as 1e-3")
        return rates

    def _row(self, spec: MethodSpec, size_name: str, rate: str, seed: int, world: int) -> Row:
        """Return the row METHOD-SIZE-lrRATE-seedN; UserError if a sample is longer than a batch.

        size_name: a key of the file's [sizes]; rate: the learning rate, as written.
        """
        size = self["sizes"][size_name]
        layers = size["layers"] if self.smoke_table is None else self.smoke_table["layers"]
        tokens, count = size["batch"]  # tokens of a batch, and number of batches in an update
        facts = {
            "method": spec.method,
            f"{self['stack']}_layers": layers,
            "variant": spec.options_text,
            "size": size["label"],
            "lr": rate,
        }

        # what comes later overrides what came before
        flags: Flags = flags_of(self["task"]) | flags_of(self["training"]) | flags_of(self["open"])
        flags |= flags_of(size["flags"]) | spec.flags
        if self.smoke_table is None:
            flags |= self._batch_flags(tokens, count, world)
        else:
            flags |= flags_of(self.smoke_table["flags"])
            flags["max-tokens"] = self.choice.tokens or flags["max-tokens"]
        if flags["max-tokens"] < flags["tokens-per-sample"]:  # no sample would fit into a batch
            raise UserError(f"--max-tokens {flags['max-tokens']}", f"a sample has {flags['tokens-per-sample']}")
        flags |= self._save_flags() | {"lr": rate} | self._probe_flags(spec, size_name, rate)

        return Row(
            name=f"{spec.folder_prefix}-{size_name}-lr{rate}-seed{seed}",
            facts=facts,
            flags=self._complete_flags(flags),
            method=spec.method,
            seed=seed,
            layers=layers,
            paper_tokens=tokens * count,
        )

    def _probe_flags(self, spec: MethodSpec, size_name: str, rate: str) -> Flags:
        """Return the flags of probes for the rows that figures show; {} for other rows.

        Figures show methods without options, at the size and learning rate of the file's table [probed].
        """
        probed = self.get("probed")
        if probed is None or spec.options or (size_name, rate) != (probed["size"], probed["rate"]):
            return {}
        flags = flags_of(probed["flags"])
        if self.smoke_table is not None:
            flags |= flags_of(probed["smoke_flags"])
        return flags


def _by_stack(stacks: Sequence[str], layers: Sequence[int]) -> dict[str, int]:
    """Return {"encoder_layers": N, ...} for the names of stacks and their numbers of layers."""
    return {f"{stack}_layers": number for stack, number in zip(stacks, layers, strict=True)}


def _is_positive_number(text: str) -> bool:
    """Tell whether a text is a finite number above 0."""
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False
