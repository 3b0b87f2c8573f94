"""Audit a model's initial weights and shortcut factors against the formulas of a method.

Two things are compared, for each residual branch f of each layer: the standard deviation of its weight matrices, and
the factor a of its shortcut in the merge a x + b f. The formulas are the methods' own (core/methods/,
core/initialisation.py). Training changes deviations and learned factors, so only those of a fresh model are judged.

reading.py reads files, sources.py finds branches in their names, merges.py measures factors of a live module,
evidence.py compares and explains, report.py prints. docs/verify.md says what is read and reported.
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
from . import evidence, merges
from .evidence import CLOSE, Kind, initial_scales, profile_draw
from .reading import read_weights
from .report import Audit, Row
from .sources import Factor, RecognisedModel, recognised

NOT_PRESCRIBED = "not the method's"  # verdict on another deviation where the method has no gain, so prescribes none


def verify(
    model: nn.Module | str | Path,
    method: str,
    inputs: tuple | None = None,
    options: dict[str, Any] | None = None,
    rename: Callable[[str], str] = str,
) -> Audit:
    """Return the audit of a module, or of a file or folder of weights, against a method by its registered name.

    inputs: what a live module is called with, once, in evaluation mode, to measure its shortcuts; if None, only the
    factors that the module stores are examined. options: name -> value of the method's options that are not the
    default; if None, a checkpoint of this package says them itself. rename: maps the name of a weight to the name that
    fairseq would give it; reading.read_names makes such a function from a file.
    Code in files is not run, and torch's generator is left as it was. UserError for a method, file or names that are
    unknown; whatever the module raises on its inputs.
    """
    get_method(method)  # a UserError for an unknown name, before anything is read
    with torch.random.fork_rng(devices=()):
        if isinstance(model, nn.Module):
            config = {"arch": getattr(model, "NAME", None)}
            recognised_model = recognised(model.state_dict(), config, updates=None, rename=rename)
            if inputs is not None:
                measured = merges.measured_factors(model, recognised_model, inputs)
                recognised_model.factors = measured + recognised_model.factors
            return audit(recognised_model, method, options)

        weights, config, updates = read_weights(Path(model))
        try:
            return audit(recognised(weights, config, updates=updates, rename=rename), method, options)
        except UserError as error:
            raise UserError(model, str(error)) from error


def audit(model: RecognisedModel, name: str, options: dict[str, Any] | None = None) -> Audit:
    """Return the audit of a recognised model against the method that is registered as `name`.

    options: as for verify(). UserError if weights were recognised as those of a branch that the stack does not have,
    such as cross-attention in an encoder.
    """
    method = _method(model, name, options or {})
    all_kinds = evidence.kinds(model)
    for kind in all_kinds:
        if kind.sublayer not in method.sublayers(kind.stack):
            raise UserError(
                f"{kind.matrices[0].name} was taken for {kind.sublayer} of a {kind.stack}; rename it by --names FILE"
            )

    profile = _profile(model, method, all_kinds)
    result = Audit(name, model.depths, profile, trained=evidence.signs_of_training(model))
    _judge_weights(result, model, method, all_kinds=all_kinds)
    config_method = model.config.get("method")
    if model.ours and config_method not in (None, name):
        result.findings.append(f"its config says --method {config_method}")
    judged = _judge_factors(result, model, method)
    _note_unexamined(result, model, method, judged=judged)
    if model.unknown and not model.ours:
        result.notes.append(f"not recognised: {', '.join(model.unknown)}; rename by --names FILE")
    return result


def _method(model: RecognisedModel, name: str, options: dict[str, Any]) -> Method:
    """Return the method `name` at the model's depth.

    Its options are `options`; if there are none, those that a model of this package was trained with, or the defaults.
    """
    method_class = METHODS[name]
    encoder_layers, decoder_layers = model.depths.values()
    trained_with_it = model.ours and model.config.get("method") in (name, None)
    if options or not trained_with_it:
        return method_class(encoder_layers, decoder_layers, **options)

    cfg = argparse.Namespace(**model.config)
    archs.fill(cfg)
    cfg.encoder_layers = encoder_layers
    cfg.decoder_layers = decoder_layers
    return method_class.from_config(cfg)


def _expected(kind: Kind, profile: str, method: Method) -> list[float]:
    """Return the method's standard deviation of each matrix of a kind; profile: a key of initialisation.PROFILES."""
    draw = profile_draw(profile)
    expected = []
    for matrix in kind.matrices:
        weight = matrix.weight
        expected.append(draw.std(weight) * method.gain(weight.site, weight.role))
    return expected


def _profile(model: RecognisedModel, method: Method, all_kinds: list[Kind]) -> str:
    """Return the key of initialisation.PROFILES to compare with.

    It is the one that a checkpoint of this package records, else the method's that most kinds of weight fit.
    """
    recorded = model.config.get("init_profile") if model.ours else None
    if recorded in method.init_profiles:
        return recorded

    def count_fitting(profile: str) -> int:
        return len([kind for kind in all_kinds if kind.fits(_expected(kind, profile, method))])

    return max(method.init_profiles, key=count_fitting)  # of equals the first


def _judge_weights(result: Audit, model: RecognisedModel, method: Method, all_kinds: list[Kind]) -> None:
    """Add to `result` a row for each kind of weight, and a line for those that do not fit: how they may be drawn.

    The lines are findings. They are mere notes where the method has no gain at all and the code is not this package's:
    such a method does not prescribe how weights are drawn, so another initialisation is no mistake.
    """
    weights = [matrix.weight for kind in all_kinds for matrix in kind.matrices]
    has_no_gain = all(method.gain(weight.site, weight.role) == 1 for weight in weights)
    prescribes_none = has_no_gain and not model.ours

    misfits = []
    for kind in all_kinds:
        fits = _judge_kind(result, kind, method, misfit=NOT_PRESCRIBED if prescribes_none else "does not fit")
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
        times = low if low == high else f"{low} to {high}"
        places = ", ".join(f"{kind.sublayer}.{kind.role}" for kind in kinds)
        lines.append(f"{stack} {places}: {times} times what {compared_with}; {explanation}")


def _judge_kind(result: Audit, kind: Kind, method: Method, misfit: str) -> bool:
    """Add the row of a kind of weight to `result`; return whether it fits.

    misfit: the verdict if it does not, unless the model is trained.
    """
    expected = _expected(kind, result.profile, method)
    fits = kind.fits(expected)
    if fits:
        verdict = "fits"
    elif result.trained:
        verdict = "trained, not judged"
    else:
        verdict = misfit

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
    """Yield the branches of a stack, none if the model lacks it; only those of `layer` (from 1) or `sublayer` if given.

    Their num_heads are made up: no factor depends on them.
    """
    dim = model.widths.get(stack, 1)  # without the stack there are no layers either, and 1 is not used
    for number in range(1, model.depths.get(stack, 0) + 1):
        for name in method.sublayers(stack):
            if layer in (None, number) and sublayer in (None, name):
                yield Site(stack, number, name, dim, num_heads=1)


class _Group(NamedTuple):
    """What shortcuts of several layers have in common to share a row of the report.

    sublayer: None for all; wanted: the method's factor; source: where the model's was found, in words; has: the model's
    factor, rounded to the digits in which those of one group agree.
    """

    stack: str
    sublayer: str | None
    wanted: float
    source: str
    has: str


def _judge_factors(result: Audit, model: RecognisedModel, method: Method) -> set[Site]:
    """Judge the factors of shortcuts; return the branches whose factor was judged.

    A factor measured in a forward pass hides those that are stored for the same branch.
    """
    groups: dict[_Group, list[float]] = {}  # -> the factors, unrounded, one for each that was found
    measured: set[Site] = set()
    judged: set[Site] = set()
    for factor in model.factors:  # those that were measured come first
        of_factor = _sites(model, method, factor.stack, factor.layer, factor.sublayer)
        sites = [site for site in of_factor if site not in measured]
        if factor.b is not None:
            measured.update(sites)

        wanted = _wanted(result, model, method, factor=factor, sites=sites)
        if wanted is None:
            continue
        judged.update(sites)
        has = factor.a if factor.b is None else factor.a / factor.b  # LayerNorm removes a common factor
        group = _Group(factor.stack, factor.sublayer, wanted, source=_source(factor), has=f"{has:.3g}")
        groups.setdefault(group, []).append(has)

    for group, values in groups.items():
        _judge_group(result, model, method, group=group, values=values)
    return judged


def _source(factor: Factor) -> str:
    """Return where a factor was found, in words."""
    if factor.b is not None:
        return "measured"
    if factor.layer is not None:
        return "in its weights"
    return factor.source


def _judge_group(result: Audit, model: RecognisedModel, method: Method, group: _Group, values: list[float]) -> None:
    """Add the row of a group of factors to `result`, and a finding if they are not the method's.

    values: the group's factors, equal but for rounding, of which the first is shown.
    """
    stack, sublayer, wanted, source, _ = group
    place = sublayer or "all"
    has = values[0]
    fits = math.isclose(has, wanted, rel_tol=CLOSE)
    verdict = "fits" if fits else "does not fit"
    layers = f", {len(values)} layers" if sublayer else ""
    result.factors.append([stack, place, f"{wanted:.4f}", f"{has:.4f} ({source}{layers})", verdict])
    if fits:
        return

    last = Site(stack, model.depths[stack], sublayer or "ffn", dim=1, num_heads=1)
    explanation = evidence.explain_factor(has, wanted, method, model=model, site=last)
    finding = f"{stack} {place}: factor of the shortcut {has:.4g}, {result.method} has {wanted:.4g}"
    result.findings.append(f"{finding}; {explanation}")


def _wanted(result: Audit, model: RecognisedModel, method: Method, factor: Factor, sites: list[Site]) -> float | None:
    """Return the value that a factor has by the method, None if nothing can be said of it.

    It is a / b of the method's merge a x + b f for a measured factor, and a for a stored one. Nothing is said where the
    method has no such number, where training has changed it, or where a profiling run sets it.
    sites: the branches that the factor belongs to.
    """
    modules = [method.residual(site) for site in sites]
    learned = result.trained and any(module is not None and module.state_dict() for module in modules)
    if learned or not sites or method.profiled:
        return None

    if model.ours and factor.layer is None:  # a constant that our checkpoints hold as STACK.NAME, NAME the method's
        constants = method.constants(factor.stack) or {}
        value = constants.get(factor.source.rsplit(".", 1)[-1])
        return None if value is None else float(value)

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
    """List in `result` what no row judges: the shortcuts of all branches but the `judged` ones, and LayerNorms."""
    for stack, depth in model.depths.items():
        missing = Counter(site.sublayer for site in _sites(model, method, stack) if site not in judged)
        if missing:
            layers = ", ".join(f"{sublayer} in {count} of {depth} layers" for sublayer, count in missing.items())
            result.unexamined.append(f"shortcut of the {stack}'s {layers}; docs/verify.md measures it in Python")
    result.unexamined.append("LayerNorms, and what the method has in its slots")
