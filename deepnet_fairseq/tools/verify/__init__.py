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
from typing import Any

import torch
from torch import nn

from ...core import archs
from ...core.methods import METHODS, Method, get_method
from ...core.slots import Site
from ...errors import UserError
from . import evidence, merges
from .evidence import CLOSE, Kind, profile_base, scales
from .reading import read
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

    inputs: what a live module is called with, once, in evaluation mode, to measure its shortcuts; without, they are
    not examined. options: the method's that are not the default, of our own checkpoints those they were trained with.
    rename: see sources.recognised; reading.read_names makes one of a file. Files run no code, and torch's generator is
    left as it was. UserError for a method, file or names that are unknown; whatever the module raises on its inputs.
    """
    get_method(method)
    with torch.random.fork_rng(devices=()):
        if isinstance(model, nn.Module):
            recognised_model = recognised(model.state_dict(), {"arch": getattr(model, "NAME", None)}, None, rename)
            if inputs is not None:
                recognised_model.factors = merges.merges(model, recognised_model, inputs) + recognised_model.factors
            return audit(recognised_model, method, options)
        weights, config, updates = read(Path(model))
        try:
            return audit(recognised(weights, config, updates, rename), method, options)
        except UserError as error:
            raise UserError(f"{model}: {error}") from error


def audit(model: RecognisedModel, name: str, options: dict[str, Any] | None = None) -> Audit:
    """Return the audit of a model as it was found, against a registered method with these options."""
    method = _method(model, name, options or {})
    all_kinds = evidence.kinds(model)
    for kind in all_kinds:
        for matrix in kind.matrices:
            if kind.sublayer not in method.sublayers(kind.stack):
                raise UserError(
                    f"{matrix.name} was taken for {kind.sublayer} of a {kind.stack}; rename it by --names FILE"
                )
    profile = _profile(model, method, all_kinds)
    result = Audit(name, model.depths, profile, evidence.trained(model))
    _judge_weights(result, model, method, all_kinds)
    if model.ours and (config := model.config.get("method")) not in (None, name):
        result.findings.append(f"its config says --method {config}")
    _note_unexamined(result, model, method, _judge_factors(result, model, method))
    if model.unknown and not model.ours:
        result.notes.append(f"not recognised: {', '.join(model.unknown)}; rename by --names FILE")
    return result


def _method(model: RecognisedModel, name: str, options: dict[str, Any]) -> Method:
    """Return the method at the model's depth, with these options or those that the model was trained with."""
    kind = METHODS[name]
    if options or not model.ours or model.config.get("method") not in (name, None):
        return kind(*model.depths.values(), **options)
    cfg = argparse.Namespace(**model.config)
    archs.fill(cfg)
    cfg.encoder_layers, cfg.decoder_layers = model.depths.values()
    return kind.from_config(cfg)


def _expected(kind: Kind, profile: str, method: Method) -> list[float]:
    std = profile_base(profile).std
    return [std(m.weight) * method.gain(m.weight.site, m.weight.role) for m in kind.matrices]


def _profile(model: RecognisedModel, method: Method, all_kinds: list[Kind]) -> str:
    """Return the initialisation of the run, or that of the method's which most kinds of weight fit."""
    recorded = model.config.get("init_profile") if model.ours else None
    if recorded in method.init_profiles:
        return recorded

    def fitting(profile: str) -> int:
        return sum(kind.fits(_expected(kind, profile, method)) for kind in all_kinds)

    return max(method.init_profiles, key=fitting)  # of equals the first


def _judge_weights(result: Audit, model: RecognisedModel, method: Method, all_kinds: list[Kind]) -> None:
    """Judge each kind of weight, and say of those that do not fit what they are instead."""
    matrices = [matrix.weight for kind in all_kinds for matrix in kind.matrices]
    silent = not model.ours and all(method.gain(weight.site, weight.role) == 1 for weight in matrices)
    misfits = [kind for kind in all_kinds if _misfits(result, kind, method, SILENT if silent else "does not fit")]
    if result.trained:
        result.notes.append("of a trained model deviations of weights and learned factors are not judged")
    candidates = list(evidence.explanations(model, method, result.profile)) if misfits else []
    explained: dict[tuple[str, str], list[Kind]] = {}
    for kind in misfits:
        explained.setdefault((kind.stack, evidence.explain(kind, candidates)), []).append(kind)
    place = result.notes if silent else result.findings
    whose = f"{result.profile} gives, {result.method} has none" if silent else f"{result.method} gives"
    for (stack, text), kinds in explained.items():
        ratios = sorted(kind.ratio(_expected(kind, result.profile, method)) for kind in kinds)
        low, high = (f"{ratio:.3g}" for ratio in (ratios[0], ratios[-1]))
        places = ", ".join(f"{kind.sublayer}.{kind.role}" for kind in kinds)
        place.append(f"{stack} {places}: {low if low == high else f'{low} to {high}'} times what {whose}; {text}")


def _misfits(result: Audit, kind: Kind, method: Method, misfit: str) -> bool:
    """Add the row of a kind of weight; return whether it contradicts the method."""
    expected = _expected(kind, result.profile, method)
    fits = kind.fits(expected)
    verdict = "fits" if fits else "trained, not judged" if result.trained else misfit
    has, place = [m.std for m in kind.measured], f"{kind.sublayer}.{kind.role}"
    row = Row(kind.stack, place, expected, has, kind.ratio(expected), kind.tolerance(kind.elements), verdict)
    result.rows.append(row)
    return not fits and not result.trained


def _sites(model: RecognisedModel, method: Method, factor: Factor) -> Iterator[Site]:
    """Yield the branches that a factor belongs to."""
    dim = model.widths.get(factor.stack, 1)
    for layer in range(1, model.depths.get(factor.stack, 0) + 1):
        for sublayer in method.sublayers(factor.stack):
            if factor.layer in (None, layer) and factor.sublayer in (None, sublayer):
                yield Site(factor.stack, layer, sublayer, dim, 1)


def _judge_factors(result: Audit, model: RecognisedModel, method: Method) -> set[Site]:
    """Judge the factors, measured ones before stored ones; return the branches that were judged."""
    groups: dict[tuple, list[float]] = {}
    measured: set[Site] = set()
    judged: set[Site] = set()
    for factor in model.factors:
        sites = [site for site in _sites(model, method, factor) if site not in measured]
        measured |= set(sites if factor.b is not None else ())
        modules = [module for site in sites if (module := method.residual(site)) is not None]
        learned = result.trained and any(module.state_dict() for module in modules)
        wanted = None if learned or not sites or method.profiled else _wanted(model, method, factor, sites)
        if wanted is not None and factor.a is not None:
            judged |= set(sites)
            has = factor.a if factor.b is None else factor.a / factor.b
            source = "measured" if factor.b is not None else "in its weights" if factor.layer else factor.source
            groups.setdefault((factor.stack, factor.sublayer, wanted, source, f"{has:.3g}"), []).append(has)
    for (stack, sublayer, wanted, source, _), values in groups.items():
        has, layers = values[0], f", {len(values)} layers" if sublayer else ""
        fits = math.isclose(has, wanted, rel_tol=CLOSE)
        verdict = "fits" if fits else "does not fit"
        result.factors.append([stack, sublayer or "all", f"{wanted:.4f}", f"{has:.4f} ({source}{layers})", verdict])
        if not fits:
            finding = f"{stack} {sublayer or 'all'}: factor of the shortcut {has:.4g}, {result.method} has {wanted:.4g}"
            last = Site(stack, model.depths[stack], sublayer or "ffn", 1, 1)
            result.findings.append(f"{finding}; {evidence.explain_factor(has, wanted, method, model, last)}")
    return judged


def _wanted(model: RecognisedModel, method: Method, factor: Factor, sites: list[Site]) -> float | None:
    """Return the method's value of a factor, shortcut over branch; None if it has no such number."""
    if model.ours and factor.layer is None:  # a constant of the stack, under its own name
        value = (method.constants(factor.stack) or {}).get(factor.source.rsplit(".", 1)[-1])
        return None if value is None else float(value)
    pairs = Counter(pair for site in sites if (pair := scales(method, site)))
    if not pairs:
        return None
    a, b = pairs.most_common(1)[0][0]
    return a if factor.b is None else a / b if b else None


def _note_unexamined(result: Audit, model: RecognisedModel, method: Method, judged: set[Site]) -> None:
    """List shortcuts that could not be judged."""
    for stack, depth in model.depths.items():
        every = _sites(model, method, Factor(stack, None, None, None, None, ""))
        if where := Counter(site.sublayer for site in every if site not in judged):
            layers = ", ".join(f"{sublayer} in {n} of {depth} layers" for sublayer, n in where.items())
            result.unexamined.append(f"shortcut of the {stack}'s {layers}; docs/verify.md measures it in Python")
    result.unexamined.append("LayerNorms, and what the method has in its slots")
