"""The command that shows methods: a table of all, a card of one, its weights in a built model, the architectures."""

from __future__ import annotations

import textwrap
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from .. import text_table
from ..errors import UserError
from . import Shown, numbers

HEADER = ["method", "a residual branch computes", "paper", "extra parameters", "last LN", "folds", "to train"]
OF_MODIFIERS = ["in any method", "makes of it", "paper", "extra parameters", "folds"]
OPTIONS = ["option", "values", "default", "meaning"]
DEPTHS = ([6, 6], [18, 18], [100, 100])  # of a card
RESULTS = Path(__file__).resolve().parents[2] / "results"  # of a checkout


def methods(args) -> Shown | None:
    """List the methods, or show one with its numbers at a depth.

    The card of a method has its equation, paper, options, coefficients, whether it exports, and the evidence here.
    Behind the table of all methods stand the modifiers, which go with any. With --weights ARCH the command builds that
    architecture and compares the deviation of each kind of weight with the method's formula.

    examples:
      deepnet methods
      deepnet methods deepnorm --layers 100,100
      deepnet methods complete_p --layers 0,24 --option base_depth=6
      deepnet methods deepnorm --weights deepnet_transformer_tiny_18_18
      deepnet methods --archs
    """
    from ..core.methods import METHODS

    if args.archs:
        return archs_table(args.vocab)
    if args.weights:
        chosen = {"method": args.method} if args.method else {}
        return weights(args.weights, chosen)
    if args.method:
        depths = [numbers("--layers", args.layers, "18,18")] if args.layers else DEPTHS
        return card(args.method, depths, args.option)

    of_methods = [HEADER]
    for name in sorted(METHODS):
        cells, _ = row_of(name)
        of_methods.append(cells)
    tables = [of_methods, [OF_MODIFIERS, *rows_of_modifiers()]]
    return in_tables(tables, "extra parameters: beside post_ln, 6L-6L of width 512; `deepnet methods NAME` says more")


def row_of(name: str) -> tuple[list[str], str | None]:
    """Return a method's line under HEADER, measured on built models where it can be, and why it does not fold, if so.

    Extra parameters are those beside Post-LN at 6L-6L of width 512. UserError for a name that none has.
    """
    from ..core.methods import get_method
    from ..tools.export.fold import why_not_foldable

    method = get_method(name)
    model = _example(name)
    extra = _parameters(model) - _parameters(_example("post_ln"))
    why = why_not_foldable(model)
    cells = [
        name,
        method.equation,
        method.paper,
        f"{extra:+,}" if extra else "0",
        "no" if model.encoder.layer_norm is None else "yes",
        "no" if why else "yes",
        " ".join(method.train_flags),
    ]
    return cells, why


def rows_of_modifiers() -> list[list[str]]:
    """Return a line for each modifier under OF_MODIFIERS, measured around deepnorm."""
    from ..core.modifiers import MODIFIERS
    from ..tools.export.fold import why_not_foldable

    rows = []
    plain = _parameters(_example("deepnorm"))
    for name, modifier in MODIFIERS.items():
        model = _example("deepnorm", name)
        extra = _parameters(model) - plain
        folds = "no" if why_not_foldable(model) else "yes"
        rows.append([modifier.flag(), modifier.equation, modifier.paper, f"{extra:+,}" if extra else "0", folds])
    return rows


def _parameters(model) -> int:
    """Count a model's parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


@cache
def _example(method: str, *modifiers: str):
    """Return the method's model with 6L-6L and width 512, with these modifiers turned on."""
    from ..core.models import blueprint

    turned_on: dict[str, Any] = dict.fromkeys(modifiers, True)
    return blueprint(method=method, encoder_layers=6, decoder_layers=6, vocab=10, **turned_on)


def option_rows(owner: Any) -> list[list[str]]:
    """Return a line for each option of a method or modifier, under OPTIONS."""
    return [[owner.flag(key), option.values, str(option.default), option.help] for key, option in owner.options.items()]


def card(name: str, depths: Any, options: list[str]) -> Shown:
    """Show a method with its numbers at these depths, [N, M] each, with these options, KEY=VALUE."""
    from ..core.methods import get_method

    method = get_method(name)
    cells, why = row_of(name)
    values = options_of(method, options)

    coefficients: dict[str, dict[str, float]] = {}  # depth as "18L-18L" -> "encoder alpha" -> value
    for layers in depths:
        if len(layers) != 2 or min(layers) < 0 or not any(layers):
            given = ",".join(str(count) for count in layers)
            raise UserError(f"--layers {given}: give two, as 18,18; 0 for a stack that is not there")
        coefficients["-".join(f"{count}L" for count in layers)] = _coefficients(method(*layers, **values), layers)

    trained = evidence(name)
    shown = ", ".join(f"{experiment} {number}" for experiment, number in trained.items())
    facts = {
        "equation": method.equation,
        "paper": method.paper,
        "initialisation": ", or ".join(method.init_profiles) + " (--init-profile)",
        "last LayerNorm": cells[4],
        "parameters": f"{cells[3]} beside post_ln, at 6L-6L of width 512",
        "to train": f"fairseq-train ... --method {name} {cells[-1]}".strip(),
        "export": f"no plain Transformer: {why}" if why else "plain Transformer, CTranslate2, Hugging Face",
        "evidence here": f"recorded trainings: {shown or 'none at hand'}; results/README.md of the repository",
    }  # fmt: skip

    lines = [name]
    for fact, text in facts.items():
        lines.append(textwrap.fill(f"  {fact:16}{text}", 100, subsequent_indent=" " * 18))
    parts = ["\n".join(lines)]
    if method.options:
        parts.append(text_table.render([OPTIONS, *option_rows(method)]))
    rows = [["coefficient", *coefficients]]
    for symbol in next(iter(coefficients.values())):
        rows.append([symbol, *(f"{at_depth[symbol]:.6f}" for at_depth in coefficients.values())])
    if len(rows) > 1:
        parts.append(text_table.render(rows))

    data = {
        "method": name,
        **facts,
        "options": option_rows(method),
        "coefficients": coefficients,
        "evidence here": trained,
    }
    return Shown("\n\n".join(parts), data)


def _coefficients(method, layers: list[int]) -> dict[str, float]:
    """Return the coefficients of a method as "encoder alpha", of the stacks that have layers: [N, M]."""
    found = {}
    for stack, count in zip(("encoder", "decoder"), layers):
        if count:
            for symbol, value in method.coefficients(stack).items():
                found[f"{stack} {symbol}"] = value
    return found


def evidence(name: str) -> dict[str, int]:
    """Count the recorded trainings of a method in a checkout's results, by experiment, without miniatures."""
    counts: Counter[str] = Counter()
    for path in sorted([*RESULTS.glob("runs/*.jsonl"), *RESULTS.glob("*/records.jsonl")]):
        lines = path.read_text(encoding="utf-8").splitlines()
        experiment = path.stem if path.parent.name == "runs" else path.parent.name
        trainings = [line for line in lines if f'"method": "{name}"' in line and '"smoke": true' not in line]
        counts[experiment] += len(trainings)
    return dict(+counts)  # without zeros


def options_of(method, words: list[str]) -> dict[str, Any]:
    """Return the options KEY=VALUE of a method by key; UserError for one that it does not have."""
    options: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        if key not in method.options:
            raise UserError(f"--option {word}: --method {method.name} has {', '.join(method.options) or 'no options'}")
        try:
            options[key] = method.options[key].parse(text)
        except ValueError as error:
            raise UserError(f"--option {word}: {key} {error}") from error
    return options


def archs_table(vocab: int) -> Shown:
    """List the architectures: depths, widths and parameters with one shared embedding of `vocab` symbols."""
    from ..core import archs
    from ..core.models import parameter_count

    rows = [["architecture", "layers", "width", "ffn", "heads", "parameters"]]
    for name, preset in archs.PRESETS.items():
        stacks = archs.STACKS[archs.MODELS[name]]
        depth = "-".join(str(preset[f"{stack}_layers"]) for stack in stacks)
        widths = [str(preset[f"{stacks[0]}_{field}"]) for field in ("embed_dim", "ffn_embed_dim", "attention_heads")]
        rows.append([name, depth, *widths, f"{parameter_count(name, vocab):,}"])
    notes = f"""layers: N-M of encoder and decoder; {archs.LM} is a decoder alone, {archs.MASKED_LM} an encoder alone
parameters with one shared embedding of {vocab:,} symbols (--vocab), the architecture's own method"""
    return in_tables([rows], notes)


def weights(arch: str, chosen: dict[str, Any]) -> Shown:
    """Build an architecture, and compare the deviation of each kind of weight with the formula of its method.

    chosen: settings that are not the architecture's own.
    """
    import torch

    from ..core import archs
    from ..core.config import namespace
    from ..core.initialisation import as_table, init_report
    from ..core.models import build
    from ..core.modifiers import make_method

    torch.manual_seed(1)
    model = build(arch, **chosen)
    cfg = namespace(arch, **chosen)
    method = make_method(cfg)
    profile = method.init_profiles[0]
    deviations = as_table(init_report(model, method, profile))
    depth = "-".join(f"{count}L" for count in archs.depths(cfg) if count)
    return in_tables([deviations], f"{arch}, {depth} {cfg.method}, {profile}")


def in_tables(tables: list[list[list[str]]], note: str) -> Shown:
    """Show tables, of which each begins with its header, and a note below."""
    parts = []
    data = []
    for table in tables:
        header, *rows = table
        parts.append(text_table.render(table))
        data += [dict(zip(header, row)) for row in rows]
    return Shown("\n\n".join([*parts, note]), data)


def add(command) -> None:
    """Register `deepnet methods` and its flags; command: as parser() gives it."""
    sub = command("methods", methods)
    sub.add_argument("method", nargs="?", metavar="NAME", help="the method to show; all without it")
    sub.add_argument("--layers", metavar="N,M", help="depths for its numbers (default: 6,6, 18,18 and 100,100)")
    sub.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="an option, as base_depth=4")
    sub.add_argument("--weights", metavar="ARCH", help="architecture to build and to measure weights of")
    sub.add_argument("--archs", action="store_true", help="list architectures, their sizes and parameters instead")
    sub.add_argument("--vocab", type=int, default=10_000, metavar="N", help="symbols for --archs (default 10,000)")
