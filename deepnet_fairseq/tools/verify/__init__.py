"""Audit a model's initial weights and shortcut factors against the formulas of a method.

The formulas are the methods' own (core/methods/, core/initialisation.py). Deviations of weights and learned factors,
which training changes, are judged of fresh models alone. docs/verify.md says what is read and reported.
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
from .evidence import CLOSE, Kind, profile_base, scales
from .reading import read_weights
from .report import Audit, Row
from .sources import Factor, RecognisedModel, recognised

SILENT = "not the method's"  # verdict on weights that others draw otherwise where a method gives no gain


def verify(
    model: nn.Module | str | Path,
    method: str,
    inputs: tuple | None = None,
    options: dict[str, Any] | None = None,
    rename: Callable[[str], str] = str,
) -> Audit:
    """Return the audit of a module, or of a file or folder of weights, against a method by its registered name.

    inputs: what a live module is called with, once, in evaluation mode, to measure its shortcuts; if None, they are not
    examined. options: those of the method's that are not the default; if None, our own checkpoints say theirs. rename:
    see sources.recognised; reading.read_names makes one of a file. Files run no code, and torch's generator is left as
    it was. UserError for a method, file or names that are unknown; whatever the module raises on its inputs.
    """
    get_method(method)
    with torch.random.fork_rng(devices=()):
        if isinstance(model, nn.Module):
            recognised_model = recognised(
                model.state_dict(), {"arch": getattr(model, "NAME", None)}, updates=None, rename=rename
            )
            if inputs is not None:
                recognised_model.factors = (
                    merges.measured_factors(model, recognised_model, inputs) + recognised_model.factors
                )
            return audit(recognised_model, method, options)

        weights, config, updates = read_weights(Path(model))
        try:
            return audit(recognised(weights, config, updates=updates, rename=rename), method, options)
        except UserError as error:
            raise UserError(f"{model}: {error}") from error


def audit(model: RecognisedModel, name: str, options: dict[str, Any] | None = None) -> Audit:
    """Return the audit of a model as it was found, against a registered method; options: as for verify().

    UserError for weights that were taken for a branch that the stack does not have.
    """
    method = _method(model, name, options or {})
    all_kinds = evidence.kinds(model)
    for kind in all_kinds:
        for matrix in kind.matrices:
            if kind.sublayer not in method.sublayers(kind.stack):
                raise UserError(
                    f"{matrix.name} was taken for {kind.sublayer} of a {kind.stack}; rename it by --names FILE"
                )

    profile = _profile(model, method, all_kinds)
    result = Audit(name, model.depths, profile, trained=evidence.trained(model))
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
    """Return the method at the model's depth, with these options or those that the model was trained with."""
    kind = METHODS[name]
    encoder_layers, decoder_layers = model.depths.values()
    if options or not model.ours or model.config.get("method") not in (name, None):
        return kind(encoder_layers, decoder_layers, **options)

    cfg = argparse.Namespace(**model.config)
    archs.fill(cfg)
    cfg.encoder_layers = encoder_layers
    cfg.decoder_layers = decoder_layers
    return kind.from_config(cfg)


def _expected(kind: Kind, profile: str, method: Method) -> list[float]:
    """Return the method's standard deviation of each matrix of a kind, under an initialisation of PROFILES."""
    base = profile_base(profile)
    expected = []
    for matrix in kind.matrices:
        weight = matrix.weight
        expected.append(base.std(weight) * method.gain(weight.site, weight.role))
    return expected


def _profile(model: RecognisedModel, method: Method, all_kinds: list[Kind]) -> str:
    """Return the initialisation of the run, or that of the method's which most kinds of weight fit."""
    recorded = model.config.get("init_profile") if model.ours else None
    if recorded in method.init_profiles:
        return recorded

    def count_fitting(profile: str) -> int:
        return len([kind for kind in all_kinds if kind.fits(_expected(kind, profile, method))])

    return max(method.init_profiles, key=count_fitting)  # of equals the first


def _judge_weights(result: Audit, model: RecognisedModel, method: Method, all_kinds: list[Kind]) -> None:
    """Add a row for each kind of weight, and say of those that do not fit what they are instead.

    Where a method has no gain, and the model is not ours, another draw is no mistake but a remark.
    """
    weights = [matrix.weight for kind in all_kinds for matrix in kind.matrices]
    silent = not model.ours and all(method.gain(weight.site, weight.role) == 1 for weight in weights)

    misfits = []
    for kind in all_kinds:
        fits = _judge_kind(result, kind, method, misfit=SILENT if silent else "does not fit")
        if not fits and not result.trained:
            misfits.append(kind)
    if result.trained:
        result.notes.append("of a trained model deviations of weights and learned factors are not judged")
    if not misfits:
        return

    # kinds of one stack with the same explanation share a line
    candidates = list(evidence.explanations(model, method, result.profile))
    explained: dict[tuple[str, str], list[Kind]] = {}
    for kind in misfits:
        explanation = evidence.explain(kind, candidates)
        explained.setdefault((kind.stack, explanation), []).append(kind)

    if silent:
        lines = result.notes
        whose = f"{result.profile} gives, {result.method} has none"
    else:
        lines = result.findings
        whose = f"{result.method} gives"
    for (stack, explanation), kinds in explained.items():
        ratios = [kind.ratio(_expected(kind, result.profile, method)) for kind in kinds]
        low = f"{min(ratios):.3g}"
        high = f"{max(ratios):.3g}"
        times = low if low == high else f"{low} to {high}"
        places = ", ".join(f"{kind.sublayer}.{kind.role}" for kind in kinds)
        lines.append(f"{stack} {places}: {times} times what {whose}; {explanation}")


def _judge_kind(result: Audit, kind: Kind, method: Method, misfit: str) -> bool:
    """Add the row of a kind of weight; return whether it fits. misfit: the verdict on a fresh one that does not."""
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


def _sites(model: RecognisedModel, method: Method, factor: Factor) -> Iterator[Site]:
    """Yield the branches that a factor belongs to."""
    dim = model.widths.get(factor.stack, 1)
    for layer in range(1, model.depths.get(factor.stack, 0) + 1):
        for sublayer in method.sublayers(factor.stack):
            if factor.layer in (None, layer) and factor.sublayer in (None, sublayer):
                yield Site(factor.stack, layer, sublayer, dim, num_heads=1)


class _Group(NamedTuple):
    """Equal factors of the shortcuts in several layers, a row of the report.

    sublayer: None for all; wanted: the method's factor; source: where the model's was found; has: the model's factor
    with the digits that make factors equal.
    """

    stack: str
    sublayer: str | None
    wanted: float
    source: str
    has: str


def _judge_factors(result: Audit, model: RecognisedModel, method: Method) -> set[Site]:
    """Judge the factors, measured ones before stored ones; return the branches that were judged."""
    groups: dict[_Group, list[float]] = {}
    measured: set[Site] = set()
    judged: set[Site] = set()
    for factor in model.factors:  # those that were measured come first
        sites = [site for site in _sites(model, method, factor) if site not in measured]
        if factor.b is not None:
            measured.update(sites)

        wanted = _wanted(result, model, method, factor=factor, sites=sites)
        if wanted is None or factor.a is None:
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
    if factor.layer:
        return "in its weights"
    return factor.source


def _judge_group(result: Audit, model: RecognisedModel, method: Method, group: _Group, values: list[float]) -> None:
    """Add the row of equal factors, and a finding if they are not the method's; values: a factor for each layer."""
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
    """Return the method's value of a factor, shortcut over branch; None if it has no such number, or training sets it.

    sites: the branches that the factor belongs to.
    """
    modules = [method.residual(site) for site in sites]
    learned = result.trained and any(module is not None and module.state_dict() for module in modules)
    if learned or not sites or method.profiled:
        return None

    if model.ours and factor.layer is None:  # a constant of the stack, under its own name
        constants = method.constants(factor.stack) or {}
        value = constants.get(factor.source.rsplit(".", 1)[-1])
        return None if value is None else float(value)

    pairs: Counter[tuple[float, float]] = Counter()
    for site in sites:
        pair = scales(method, site)
        if pair is not None:
            pairs[pair] += 1
    if not pairs:
        return None
    a, b = pairs.most_common(1)[0][0]
    if factor.b is None:
        return a
    return a / b if b else None


def _note_unexamined(result: Audit, model: RecognisedModel, method: Method, judged: set[Site]) -> None:
    """List shortcuts that could not be judged."""
    for stack, depth in model.depths.items():
        every = _sites(model, method, Factor(stack, layer=None, sublayer=None, a=None, b=None, source=""))
        missing = Counter(site.sublayer for site in every if site not in judged)
        if missing:
            layers = ", ".join(f"{sublayer} in {count} of {depth} layers" for sublayer, count in missing.items())
            result.unexamined.append(f"shortcut of the {stack}'s {layers}; docs/verify.md measures it in Python")
    result.unexamined.append("LayerNorms, and what the method has in its slots")
