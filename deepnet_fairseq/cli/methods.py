"""`deepnet methods`: a table of all methods, a card of one, its weights in a built model, or the architectures.

A method is a way to keep deep Transformers stable (core/methods); a modifier (core/modifiers) goes with any method. A
method folds if a trained model of it can be exported as a plain Transformer (tools/export/fold.py). A method's
coefficients are the numbers of its formulas at a depth, as DeepNorm's alpha and beta. The command is a function of the
parsed flags, `args`; __init__.py prints the Shown that it returns: text, and data for --json.
"""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .. import text_table
from ..errors import UserError
from . import Shown, parse_integers

METHOD_HEADER = ["method", "a residual branch computes", "paper", "extra parameters", "last LN", "folds", "to train"]
MODIFIER_HEADER = ["in any method", "makes of it", "paper", "extra parameters", "folds"]
OPTION_HEADER = ["option", "values", "default", "meaning"]
NOTE = """extra parameters: at 6L-6L of width 512, more than post_ln has; of a modifier, more than deepnorm alone has
last LN: whether a LayerNorm follows the last layer; folds: whether `deepnet export` makes a plain Transformer of it
to train: flags that a training needs; `deepnet methods NAME` says more"""
DEPTHS = ([6, 6], [18, 18], [100, 100])  # layers of encoder and decoder for which a card shows coefficients by default
RESULTS = Path(__file__).resolve().parents[2] / "results"  # of a checkout; an installed package has none


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
        return compare_weights(args.weights, chosen, args.option)
    if args.method:
        depths: Sequence[list[int]] = [parse_integers("--layers", args.layers, "18,18")] if args.layers else DEPTHS
        return card(args.method, depths, args.option, args.user_dir)

    if args.option:
        raise UserError(f"--option {args.option[0]}", "belongs to one method; give its NAME too")
    if args.layers:
        raise UserError(f"--layers {args.layers}", "is for the numbers of one method; give its NAME too")
    method_table = [METHOD_HEADER]
    for name in sorted(METHODS):
        cells, _ = method_row(name)
        method_table.append(cells)
    tables = [method_table, [MODIFIER_HEADER, *modifier_rows()]]
    return show_tables(tables, NOTE)


def method_row(name: str, values: Mapping[str, Any] | None = None) -> tuple[list[str], str | None]:
    """Return (cells, reason): a method's cells under METHOD_HEADER, and why it does not fold, None if it does.

    "extra parameters" is how many more a built model of 6L-6L and width 512 has than a Post-LN one. name: of the
    method; UserError if no method has it. values: of the method's options by key, None for their defaults; UserError
    for a value that the method refuses.
    """
    from ..core.methods import get_method
    from ..tools.export.fold import why_not_foldable

    method = get_method(name)
    model = _small_model(name, **fields_of(method, values or {}))
    extra = _parameters(model) - _parameters(_small_model("post_ln"))
    reason = why_not_foldable(model)
    cells = [
        name,
        method.equation,
        method.paper,
        f"{extra:+,}" if extra else "0",
        "no" if model.encoder.layer_norm is None else "yes",
        "no" if reason else "yes",
        " ".join(method.train_flags),
    ]
    return cells, reason


def fields_of(method, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return {config field: value} of a method's options; values: key -> value."""
    return {f"{method.name}_{key}": value for key, value in values.items()}


def modifier_rows() -> list[list[str]]:
    """Return the cells of each modifier under MODIFIER_HEADER, a row each.

    "extra parameters" and "folds" are of a model with the method deepnorm, 6L-6L and width 512.
    """
    from ..core.modifiers import MODIFIERS
    from ..tools.export.fold import why_not_foldable

    rows = []
    plain = _parameters(_small_model("deepnorm"))
    for name, modifier in MODIFIERS.items():
        model = _small_model("deepnorm", **{name: True})
        extra = _parameters(model) - plain
        folds = "no" if why_not_foldable(model) else "yes"
        rows.append([modifier.flag(), modifier.equation, modifier.paper, f"{extra:+,}" if extra else "0", folds])
    return rows


def _parameters(model) -> int:
    """Count a model's parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


@cache
def _small_model(method: str, **fields: Any):
    """Return a model of 6L-6L and width 512; method: its name; fields: config field -> value, as {"pro_res": True}.

    The vocabulary does not matter, because only differences between such models' numbers of parameters are shown.
    """
    from ..core.models import blueprint

    return blueprint(method=method, encoder_layers=6, decoder_layers=6, vocab=10, **fields)


def option_rows(owner: Any) -> list[list[str]]:
    """Return the cells of each option under OPTION_HEADER, a row each; owner: the method or modifier that has them."""
    return [[owner.flag(key), option.values, str(option.default), option.help] for key, option in owner.options.items()]


def card(name: str, depths: Sequence[list[int]], options: list[str], user_dir: str | None = None) -> Shown:
    """Return the card of a method to show: facts, options, and its coefficients at several depths.

    depths: [N, M] each, layers of encoder and decoder, 0 for a stack that the model does not have; UserError for
    others. options: KEY=VALUE each, values of the method's options, which hold for the whole card.
    user_dir: folder that registers the user's methods, None without one.
    """
    from ..core.methods import get_method
    from ..core.methods.base import is_of_package

    method = get_method(name)
    values = options_of(method, options)
    cells, reason_not_to_fold = method_row(name, values)
    by_column = dict(zip(METHOD_HEADER, cells))

    coefficients: dict[str, dict[str, float]] = {}  # depth as "18L-18L" -> "encoder alpha" -> value
    for layers in depths:
        if len(layers) != 2 or min(layers) < 0 or not any(layers):
            given = ",".join(str(count) for count in layers)
            raise UserError(
                f"--layers {given}", "give the layers of encoder and decoder, as 18,18; 0 for one that the model lacks"
            )
        depth = "-".join(f"{count}L" for count in layers)
        coefficients[depth] = _coefficients(method(*layers, **values), layers)

    # facts
    words = ["fairseq-train ..."]
    if user_dir and not is_of_package(method):
        words += ["--user-dir", shlex.quote(user_dir)]
    words += ["--method", name, *method.train_flags, *flags_of(method, values)]
    trainings = count_trainings(name)
    counts = ", ".join(f"{experiment} {number}" for experiment, number in trainings.items())
    exports = "plain Transformer, CTranslate2, Hugging Face"
    if reason_not_to_fold:
        exports = f"no plain Transformer: {reason_not_to_fold}"
    facts = {
        "equation": method.equation,
        "paper": method.paper,
        "initialisation": ", or ".join(method.init_profiles) + " (--init-profile)",
        "last LayerNorm": by_column["last LN"],
        "parameters": f"{by_column['extra parameters']} in comparison with post_ln, at 6L-6L of width 512",
        "to train": " ".join(words),
        "export": exports,
        "evidence here": f"recorded trainings: {counts or 'none at hand'}; results/README.md of the repository",
    }  # fmt: skip

    # text
    lines = [name]
    for fact, text in facts.items():
        lines.append(textwrap.fill(f"  {fact:16}{text}", 100, subsequent_indent=" " * 18))
    parts = ["\n".join(lines)]
    if method.options:
        parts.append(text_table.render([OPTION_HEADER, *option_rows(method)]))

    rows = [["coefficient", *coefficients]]
    symbols = next(iter(coefficients.values()))  # those of the first depth; all depths have the same
    for symbol in symbols:
        rows.append([symbol, *(f"{at_depth[symbol]:.6f}" for at_depth in coefficients.values())])
    if len(rows) > 1:  # a method may have no coefficients
        parts.append(text_table.render(rows))

    data = {
        "method": name,
        **facts,
        "options": option_rows(method),
        "coefficients": coefficients,
        "evidence here": trainings,  # replaces the text that `facts` has under this key
    }
    return Shown("\n\n".join(parts), data)


def _coefficients(method, layers: list[int]) -> dict[str, float]:
    """Return {"STACK SYMBOL": value} of a method's coefficients, as {"encoder alpha": 1.999, ...}.

    method: an object of its class, made for these numbers of layers. layers: [N, M], of encoder and decoder; a stack
    without layers is left out.
    """
    found = {}
    for stack, count in zip(("encoder", "decoder"), layers):
        if count:
            for symbol, value in method.coefficients(stack).items():
                found[f"{stack} {symbol}"] = value
    return found


def count_trainings(name: str) -> dict[str, int]:
    """Return {experiment: number of recorded trainings of a method}, without miniatures (--smoke).

    The records are those in results/ of a checkout, runs/EXPERIMENT.jsonl and EXPERIMENT/records.jsonl: a line for each
    training, which is searched for what json.dumps writes. {} if there are none, as in an installed package.
    """
    counts: Counter[str] = Counter()
    for path in sorted([*RESULTS.glob("runs/*.jsonl"), *RESULTS.glob("*/records.jsonl")]):
        lines = path.read_text(encoding="utf-8").splitlines()
        experiment = path.stem if path.parent.name == "runs" else path.parent.name
        trainings = [line for line in lines if f'"method": "{name}"' in line and '"smoke": true' not in line]
        counts[experiment] += len(trainings)
    return dict(+counts)  # without zeros


def options_of(method, words: list[str]) -> dict[str, Any]:
    """Parse the values of --option, KEY=VALUE each; return {key: value}, with the type that the option has.

    method: the class whose options they are. UserError for a key that the method does not have, and for a value that
    the option does not take.
    """
    options: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        if key not in method.options:
            raise UserError(
                f"--option {word}", f"--method {method.name} has {', '.join(method.options) or 'no options'}"
            )
        try:
            options[key] = method.options[key].parse(text)
        except ValueError as error:
            raise UserError(f"--option {word}", f"{key} {error}") from error
    return options


def flags_of(method, values: Mapping[str, Any]) -> list[str]:
    """Return the flags of fairseq-train that set options of a method; values: key -> value."""
    words: list[str] = []
    for key, value in values.items():
        if not isinstance(value, bool):
            words += [method.flag(key), shlex.quote(str(value))]
        elif value != method.options[key].default:  # a flag without a value, which turns the default around
            words.append(method.flag(key))
    return words


def archs_table(vocab: int) -> Shown:
    """Return a table of the architectures to show: depth, widths, and number of parameters.

    vocab: symbols of the one embedding that encoder, decoder and output share.
    """
    from ..core import archs
    from ..core.models import parameter_count

    rows = [["architecture", "layers", "width", "ffn", "heads", "parameters"]]
    for name, preset in archs.PRESETS.items():
        stacks = archs.STACKS[archs.MODELS[name]]  # ("encoder", "decoder"), or the only one of a language model
        depth = "-".join(str(preset[f"{stack}_layers"]) for stack in stacks)
        fields = ("embed_dim", "ffn_embed_dim", "attention_heads")  # given for the first stack; the other has the same
        widths = [str(preset[f"{stacks[0]}_{field}"]) for field in fields]
        rows.append([name, depth, *widths, f"{parameter_count(name, vocab):,}"])
    notes = f"""layers: N-M of encoder and decoder; {archs.LM} is a decoder alone, {archs.MASKED_LM} an encoder alone
parameters: with one shared embedding of {vocab:,} symbols (--vocab), and with the method that the architecture sets"""
    return show_tables([rows], notes)


def compare_weights(arch: str, chosen: dict[str, Any], options: list[str]) -> Shown:
    """Build an architecture, and return a table of the standard deviation of its weights beside its method's formula.

    The table has a row for each kind of weight. arch: a name of archs.PRESETS; chosen: settings by name that replace
    the architecture's own, as {"method": "deepnorm"}; options: KEY=VALUE each, values of the method's options.
    """
    import torch

    from ..core import archs
    from ..core.config import namespace
    from ..core.initialisation import init_report, report_table
    from ..core.methods import get_method
    from ..core.models import build
    from ..core.modifiers import make_method

    if options:
        method_class = get_method(namespace(arch, **chosen).method)
        chosen = chosen | fields_of(method_class, options_of(method_class, options))
    torch.manual_seed(1)  # the same weights each time
    model = build(arch, **chosen)
    cfg = namespace(arch, **chosen)
    method = make_method(cfg)
    profile = method.init_profiles[0]  # the method's usual initialisation
    deviations = report_table(init_report(model, method, profile))
    depth = "-".join(f"{count}L" for count in archs.depths(cfg) if count)
    return show_tables([deviations], f"{arch}, {depth} {cfg.method}, {profile}")


def show_tables(tables: list[list[list[str]]], note: str) -> Shown:
    """Return tables to show, with a note below them; the data is a list with {head: cell} for each row of all tables.

    tables: each a list of rows of cells, the first of which is the header.
    """
    parts = []
    data = []
    for table in tables:
        header, *rows = table
        parts.append(text_table.render(table))
        data += [dict(zip(header, row)) for row in rows]
    return Shown("\n\n".join([*parts, note]), data)


def add(command) -> None:
    """Register `deepnet methods` and its flags.

    command: function (name, function) that makes a subcommand's parser and returns it, see __init__.
    """
    sub = command("methods", methods)
    sub.add_argument("method", nargs="?", metavar="NAME", help="the method to show (default: a table of all)")
    sub.add_argument("--layers", metavar="N,M", help="layers of encoder and decoder for which to show the method's "
                     "coefficients (default: 6,6, 18,18 and 100,100)")  # fmt: skip
    sub.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the method, as "
                     "base_depth=4; may be given again for others")  # fmt: skip
    sub.add_argument("--weights", metavar="ARCH", help="architecture to build, to compare its weights' deviations with "
                     "the method's formula")  # fmt: skip
    sub.add_argument("--archs", action="store_true", help="list architectures with their sizes and parameters instead")
    sub.add_argument(
        "--vocab",
        type=int,
        default=10_000,
        metavar="N",
        help="with --archs: symbols of the vocabulary (default 10,000)",
    )
