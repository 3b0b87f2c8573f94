"""Audit a model's initial weights and shortcut factors against the formulas of a method.

Two things are compared, for each residual branch f of each layer: the standard deviation of its weight matrices, and
the factor a / b of its shortcut in the merge a x + b f. The formulas are the methods' own (core/methods/,
core/initialisation.py). Training changes deviations and learned factors, so only those of a fresh model are judged.

A stack is the encoder or the decoder, a branch (or sublayer) self-attention, cross-attention or feed-forward of a
layer, a site one branch of one layer (slots.Site). A kind of weight is one role ("q", "fc1", ...) in one branch of all
layers of a stack. A profile, a key of initialisation.PROFILES, says how weights are drawn; a method multiplies the
profile's standard deviation by its gain.

reading.py reads files, sources.py recognises branches by the names of weights, merges.py measures factors of a live
module, evidence.py compares and explains, report.py prints. docs/verify.md says what is read and reported.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ...core import archs
from ...core.methods import METHODS, Method, get_method
from ...core.slots import Site
from ...errors import UserError
from ...wording import counted
from . import evidence, merges
from .evidence import CLOSE, Kind, initial_scales, profile_draw
from .reading import read_weights
from .report import Audit, Row
from .sources import Factor, RecognisedModel, recognise

# verdict on a deviation that does not fit, of code elsewhere, where the method has no gain and so prescribes none
NOT_PRESCRIBED = "not the method's"


def verify(
    model: nn.Module | str | Path,
    method: str,
    inputs: tuple | None = None,
    options: dict[str, Any] | None = None,
    rename: Callable[[str], str] = str,
) -> Audit:
    """Audit a module, or a file or folder of weights, against a method.

    model: the module, or the path; method: by its registered name; inputs: arguments with which a module is called,
    once, in evaluation mode, to measure its shortcuts; if None, only the factors that the module stores are examined;
    options: name -> value of the method's options that are not the default; if None, a checkpoint of this package says
    them itself; rename: maps the name of a weight to the name that fairseq would give it, by default (str) the same;
    reading.read_names makes such a function from a file.

    Code in files is not run, and torch's generator is left as it was. UserError for an unknown method, a file that
    cannot be read, weights whose names are not recognised, and what `recognise` and `audit` refuse. What the module
    raises on its inputs is not caught.
    """
    get_method(method)  # a UserError for an unknown name, before anything is read
    with torch.random.fork_rng(devices=()):  # a method's modules may draw numbers when they are made
        if isinstance(model, nn.Module):
            config = {"arch": getattr(model, "NAME", None)}  # by which a model of this package is known
            recognised = recognise(model.state_dict(), config, updates=None, rename=rename)
            if inputs is not None:
                measured = merges.measure_factors(model, recognised, inputs)
                recognised.factors = measured + recognised.factors  # measured ones first, see _judge_factors
            return audit(recognised, method, options)

        weights, config, updates = read_weights(Path(model))
        try:
            recognised = recognise(weights, config, updates=updates, rename=rename)
            return audit(recognised, method, options)
        except UserError as error:
            raise UserError(model, str(error)) from error


def audit(model: RecognisedModel, name: str, options: dict[str, Any] | None = None) -> Audit:
    """Audit a recognised model against the method that is registered as `name`.

    options: as for verify(). UserError if weights were recognised as those of a branch that the stack does not have,
    such as cross-attention in an encoder, and for weights that are not finite.
    """
    method = _method(model, name, options or {})
    all_kinds = evidence.kinds(model)  # kinds of weight
    for kind in all_kinds:
        if kind.sublayer not in method.sublayers(kind.stack):
            raise UserError(
                kind.matrices[0].name, f"was taken for {kind.sublayer} of a {kind.stack}; rename it by --names FILE"
            )

    profile = _profile(model, method, all_kinds)
    result = Audit(name, model.depths, profile, trained=evidence.signs_of_training(model))
    _judge_weights(result, model, method, all_kinds=all_kinds)

    config_method = model.config.get("method")
    if model.ours and config_method not in (None, name):
        result.findings.append(f"its config says --method {config_method}")

    judged = _judge_factors(result, model, method)
    _note_unexamined(result, model, method, judged=judged)
    if model.unknown and not model.ours:  # those of ours are in slots, which are listed as unexamined
        result.notes.append(f"not recognised: {', '.join(model.unknown)}; rename by --names FILE")
    return result


def _method(model: RecognisedModel, name: str, options: dict[str, Any]) -> Method:
    """Return the method `name` at the model's depth.

    options: name -> value of its options; if empty, they are those in the config of a model of this package, unless it
    names another method, else the defaults.
    """
    method_class = METHODS[name]
    encoder_layers, decoder_layers = model.depths.values()
    config_has_options = model.ours and model.config.get("method") in (name, None)
    if options or not config_has_options:
        return method_class(encoder_layers, decoder_layers, **options)

    cfg = argparse.Namespace(**model.config)
    archs.fill(cfg)  # values that the config leaves open, by its architecture
    cfg.encoder_layers = encoder_layers
    cfg.decoder_layers = decoder_layers
    return method_class.from_config(cfg)


def _expected(kind: Kind, profile: str, method: Method) -> list[float]:
    """Return the standard deviation that profile and method give to each matrix of a kind of weight, layer by layer."""
    draw = profile_draw(profile)
    expected = []
    for matrix in kind.matrices:
        weight = matrix.weight
        expected.append(draw.std(weight) * method.gain(weight.site, weight.role))
    return expected


def _profile(model: RecognisedModel, method: Method, all_kinds: list[Kind]) -> str:
    """Return the profile to compare with, one of those that the method may have.

    It is the one that a checkpoint of this package records, if the method may have that, else the one that most kinds
    of weight fit.
    """
    recorded = model.config.get("init_profile") if model.ours else None
    if recorded in method.init_profiles:
        return recorded

    def count_fitting(profile: str) -> int:
        """Return how many kinds of weight fit the profile."""
        return len([kind for kind in all_kinds if kind.fits(_expected(kind, profile, method))])

    return max(method.init_profiles, key=count_fitting)  # the first if several fit equally many


def _judge_weights(result: Audit, model: RecognisedModel, method: Method, all_kinds: list[Kind]) -> None:
    """Add to `result` a row for each kind of weight, and lines on how the kinds that do not fit may have been drawn.

    The lines are findings. They are mere notes where the method has no gain at all and the code is not this package's:
    such a method does not prescribe how weights are drawn, so another initialisation is no mistake. A trained model has
    no such lines, but a note that its weights are not judged.
    """
    weights = [matrix.weight for kind in all_kinds for matrix in kind.matrices]
    has_no_gain = all(method.gain(weight.site, weight.role) == 1 for weight in weights)
    prescribes_none = has_no_gain and not model.ours

    misfits = []
    misfit_verdict = NOT_PRESCRIBED if prescribes_none else "does not fit"
    for kind in all_kinds:
        fits = _judge_kind(result, kind, method, misfit_verdict=misfit_verdict)
        if not fits and not result.trained:
            misfits.append(kind)
    if result.trained:
        result.notes.append("of a trained model deviations of weights and learned factors are not judged")
    if not misfits:
        return

    # kinds of one stack with the same explanation share a line
    candidates = list(evidence.explanations(model, method, result.profile))
    explained: dict[tuple[str, str], list[Kind]] = {}  # (stack, explanation) -> kinds
    for kind in misfits:
        explanation = evidence.explain(kind, candidates)
        explained.setdefault((kind.stack, explanation), []).append(kind)

    if prescribes_none:
        lines = result.notes
        compared_with = f"{result.profile} gives, {result.method} has none"
    else:
        lines = result.findings
        compared_with = f"{result.method} gives"
    for (stack, explanation), kinds in explained.items():
        ratios = [kind.ratio(_expected(kind, result.profile, method)) for kind in kinds]
        low = f"{min(ratios):.3g}"
        high = f"{max(ratios):.3g}"
        ratio_range = low if low == high else f"{low} to {high}"
        places = ", ".join(f"{kind.sublayer}.{kind.role}" for kind in kinds)
        lines.append(f"{stack} {places}: {ratio_range} times what {compared_with}; {explanation}")


def _judge_kind(result: Audit, kind: Kind, method: Method, misfit_verdict: str) -> bool:
    """Add the row of a kind of weight to `result`; return whether it fits.

    misfit_verdict: the verdict of the row if it does not fit, unless the model is trained.
    """
    expected = _expected(kind, result.profile, method)
    fits = kind.fits(expected)
    if fits:
        verdict = "fits"
    elif result.trained:
        verdict = "trained, not judged"
    else:
        verdict = misfit_verdict

    row = Row(
        stack=kind.stack,
        kind=f"{kind.sublayer}.{kind.role}",
        expected=expected,
        has=[measured.std for measured in kind.measured],
        ratio=kind.ratio(expected),
        tolerance=kind.tolerance(kind.elements),
        verdict=verdict,
    )
    result.rows.append(row)
    return fits


def _sites(
    model: RecognisedModel, method: Method, stack: str, layer: int | None = None, sublayer: str | None = None
) -> Iterator[Site]:
    """Yield the branches of a stack in forward order, none if the model lacks the stack.

    layer: from 1, to yield those of one layer alone; sublayer: to yield those of one sort alone; None for all. Their
    num_heads are made up, because no factor depends on them.
    """
    dim = model.widths.get(stack, 1)  # without the stack there are no layers either, and 1 is not used
    for number in range(1, model.depths[stack] + 1):
        for name in method.sublayers(stack):
            if layer in (None, number) and sublayer in (None, name):
                yield Site(stack, number, name, dim, num_heads=1)


class _Group(NamedTuple):
    """Shortcut factors of several layers that share a row of the report, because they agree in all of these fields.

    sublayer: that of the factors' branches, None for all of a layer; expected: the method's factor; source: where the
    model's factor was found, in words; has: the model's factor, rounded to three digits.
    """

    stack: str
    sublayer: str | None
    expected: float
    source: str
    has: str


def _judge_factors(result: Audit, model: RecognisedModel, method: Method) -> set[Site]:
    """Judge the factors of shortcuts, adding rows and findings to `result`; return the branches that were judged.

    A factor that was measured in a forward pass is judged instead of those that are stored for the same branch.
    """
    groups: dict[_Group, list[float]] = {}  # group -> the model's factors in it, unrounded
    measured: set[Site] = set()
    judged: set[Site] = set()
    for factor in model.factors:  # those that were measured come first
        branches = _sites(model, method, factor.stack, factor.layer, factor.sublayer)  # to which the factor belongs
        sites = [site for site in branches if site not in measured]  # those without a measured factor so far
        if factor.b is not None:  # a measured one
            measured.update(sites)

        expected = _expected_factor(result, model, method, factor=factor, sites=sites)
        if expected is None:
            continue
        judged.update(sites)
        # of a measured a x + b f the ratio a / b counts, because a LayerNorm removes a common factor
        has = factor.a if factor.b is None else factor.a / factor.b
        group = _Group(factor.stack, factor.sublayer, expected, source=_source(factor), has=f"{has:.3g}")
        groups.setdefault(group, []).append(has)

    for group, values in groups.items():
        _judge_group(result, model, method, group=group, values=values)
    return judged


def _source(factor: Factor) -> str:
    """Return where a factor was found, in words: for one of all layers the name under which it is stored."""
    if factor.b is not None:
        return "measured"
    if factor.layer is not None:
        return "in its weights"
    return factor.source


def _judge_group(result: Audit, model: RecognisedModel, method: Method, group: _Group, values: list[float]) -> None:
    """Add the row of a group of factors to `result`, and a finding if they are not the method's.

    values: the group's factors, equal but for rounding, of which the first is shown.
    """
    stack, sublayer, expected, source, _ = group
    place = sublayer or "all"
    has = values[0]
    fits = math.isclose(has, expected, rel_tol=CLOSE)
    verdict = "fits" if fits else "does not fit"
    layers = f", {counted(len(values), 'layer')}" if sublayer else ""
    result.factors.append([stack, place, f"{expected:.4f}", f"{has:.4f} ({source}{layers})", verdict])
    if fits:
        return

    # where a method's factors depend on the layer, those of the last one are tried as explanations
    last = Site(stack, model.depths[stack], sublayer or "ffn", dim=1, num_heads=1)
    explanation = evidence.explain_factor(has, expected, method, model=model, site=last)
    finding = f"{stack} {place}: factor of the shortcut {has:.4g}, {result.method} has {expected:.4g}"
    result.findings.append(f"{finding}; {explanation}")


def _expected_factor(
    result: Audit, model: RecognisedModel, method: Method, factor: Factor, sites: list[Site]
) -> float | None:
    """Return the value that a factor has by the method, None if nothing can be said of it.

    It is a / b of the method's merge a x + b f for a measured factor, and a for a stored one. Nothing can be said where
    the method has no such number, where training has changed it, or where a profiling run before the training sets it,
    nor without `sites`: the branches that the factor belongs to and that no measured factor has judged.
    """
    modules = [method.residual(site) for site in sites]  # the method's merges; None stands for x + f
    changed = result.trained and any(module is not None and module.state_dict() for module in modules)
    if changed or not sites or method.profiled:
        return None

    # a number of a whole stack, which checkpoints of this package hold as STACK.NAME, by the method's name for it
    if model.ours and factor.layer is None:
        constants = method.constants(factor.stack) or {}
        value = constants.get(factor.source.rsplit(".", 1)[-1])
        return None if value is None else float(value)

    # where the method's numbers differ between the branches, those of most branches count
    pairs: Counter[tuple[float, float]] = Counter()  # (a, b) of the method -> in how many of the branches
    for site in sites:
        pair = initial_scales(method, site)
        if pair is not None:
            pairs[pair] += 1
    if not pairs:
        return None
    a, b = pairs.most_common(1)[0][0]
    if factor.b is None:
        return a
    return a / b if b else None


def _note_unexamined(result: Audit, model: RecognisedModel, method: Method, judged: set[Site]) -> None:
    """List in `result` what no row judges: shortcuts whose branch is not in `judged`, LayerNorms, modules in slots."""
    for stack, depth in model.depths.items():
        missing = Counter(site.sublayer for site in _sites(model, method, stack) if site not in judged)
        if missing:  # sublayer -> in how many layers
            layers = ", ".join(f"{sublayer} in {count} of {depth} layers" for sublayer, count in missing.items())
            result.unexamined.append(f"shortcut of the {stack}'s {layers}; docs/verify.md measures it in Python")
    result.unexamined.append("LayerNorms, and what the method has in its slots")
