"""What a model has beside its numbers: matrices, LayerNorms and their place, slots, config; and what cannot be told."""

from __future__ import annotations

import itertools
import re
from collections import Counter

from torch import Tensor, nn

from ...core import archs
from ...core.methods import Method
from ...core.models import SPECIALS, blueprint
from ...core.modifiers import MODIFIERS
from ...core.slots import Site
from . import evidence
from .report import Audit
from .sources import Found

INSIDE = re.compile(r"(encoder|decoder)\.(?!embed_|layernorm_embedding|output_projection|layer_norm\.|version)")
BY_HEAD = re.compile(r".*attn\.(inner|heads)\..*")  # whose shapes depend on the number of heads
MATRICES = {"attention": ("q", "k", "v", "out"), "ffn": ("fc1", "fc2")}


def judge(result: Audit, found: Found, method: Method, judged: set[Site]) -> None:
    """Findings, notes and what was not examined, into the audit; judged: branches whose shortcut was."""
    result.findings += [f"{place}: not there" for place in found.missing]  # layers
    for stack in (stack for stack, depth in found.depths.items() if depth):
        if not found.ours:
            _judge_matrices(result, found, method, stack)
            _judge_norms(result, found, method, stack)
        _judge_closing(result, found, method, stack)
        _judge_places(result, found, method, stack)
        _say_unexamined(result, found, method, stack, judged)
    _judge_config(result, found, method)
    if found.ours:
        _judge_slots(result, found, method)
    if evidence.trained(found) is None:
        result.unexamined.append("is it fresh or trained? It was taken for fresh; without LayerNorms nothing tells")


def _sites(found: Found, method: Method, stack: str) -> list[Site]:
    layers = range(1, found.depths[stack] + 1)
    return [Site(stack, l, sublayer, found.widths[stack], 1) for l in layers for sublayer in method.sublayers(stack)]


def _judge_matrices(result: Audit, found: Found, method: Method, stack: str) -> None:
    """Has every branch all its matrices?"""
    weights = [matrix.weight for matrix in found.matrices if matrix.weight.site.stack == stack]
    held = {(weight.site.layer, weight.site.sublayer, weight.role) for weight in weights}
    layers, unknown = {layer for layer, _, _ in held}, []
    for sublayer in method.sublayers(stack):
        for role in MATRICES["ffn" if sublayer == "ffn" else "attention"]:
            lost = sorted(layer for layer in layers if (layer, sublayer, role) not in held)
            if len(lost) == len(layers):
                unknown.append(f"{sublayer}.{role}")
            elif lost:
                some = ", ".join(map(str, lost[:9]))
                result.findings.append(f"{stack} {sublayer}.{role}: not there in layers {some}")
    if unknown:
        result.unexamined.append(f"{stack} {', '.join(unknown)}: in no layer was a matrix known for it")


def _judge_norms(result: Audit, found: Found, method: Method, stack: str) -> None:
    """LayerNorms of a layer by number."""
    odd: Counter[tuple[int, int]] = Counter()
    for layer, sites in itertools.groupby(_sites(found, method, stack), lambda site: site.layer):
        wanted = sum((method.norm_place(site) != "none") + _slot_norms(method, site) for site in sites)
        names = [name for name, _ in found.norms.get((stack, layer), [])]
        has = sum(not re.search(r"[qk](uery|ey)?_?(layer)?norm|heads", name) for name in names)  # go with any method
        if not has and wanted and found.vectors:
            some = ", ".join(found.vectors[:3])
            result.unexamined.append(f"LayerNorms of the {stack}: none is known, but {some} may be some")
            return
        if has != wanted:
            odd[has, wanted] += 1
    for (has, wanted), layers in odd.items():
        more = "; another method's, or unused" if has > wanted else ""
        result.findings.append(f"{stack}: {has} LayerNorms in {layers} layers, {result.method} has {wanted}{more}")


def _slot_norms(method: Method, site: Site) -> int:
    """LayerNorms that the method puts into a branch besides."""
    dim = site.dim
    slots = [method.before(site), method.inner(site, dim), method.outer(site), method.residual(site)]
    slots.append(method.bypass(site))
    return sum(isinstance(part, nn.LayerNorm) for slot in slots if slot is not None for part in slot.modules())


def _judge_closing(result: Audit, found: Found, method: Method, stack: str) -> None:
    closing, wanted = found.closing.get(stack), method.closing_norm(stack)
    if wanted and not closing:
        result.findings.append(f"{stack}: no LayerNorm at its end, {result.method} has one")
    elif closing and not wanted:
        said = f"{stack}: a LayerNorm at its end ({closing}), {result.method} has none"
        if method.norm_places(stack) == {"post"} and not found.ours and not found.measured:
            result.notes.append(f"{said}: behind a Post-LN layer it changes little, but Pre-LN models have one")
        else:
            result.findings.append(said)


def _judge_places(result: Audit, found: Found, method: Method, stack: str) -> None:
    """Where a LayerNorm stands in each branch of a live module; a config may say it too."""
    odd: Counter[tuple[str, str]] = Counter()
    places = {(f.layer, f.sublayer): f.place for f in found.factors if f.stack == stack and f.place}
    for site in _sites(found, method, stack):
        has, wanted = places.get((site.layer, site.sublayer)), method.norm_place(site)
        if has and has != wanted and method.before(site) is None:
            odd[has, wanted] += 1
    for (has, wanted), n in odd.items():
        result.findings.append(f"{stack}: LayerNorm {has} in {n} branches, {result.method} has it {wanted}")
    said = any(isinstance(found.config.get(key), bool) for key in _config_keys(stack))
    if not places and not said and not found.ours and method.norm_places(stack) != {"none"}:
        result.unexamined.append(f"place of the LayerNorms in the {stack}")


def _config_keys(stack: str) -> tuple[str, ...]:
    return f"{stack}_normalize_before", "normalize_before", "do_layer_norm_before"


def _judge_config(result: Audit, found: Found, method: Method) -> None:
    if found.ours and (said := found.config.get("method")) not in (None, result.method):
        result.findings.append(f"its config says --method {said}")
    if found.ours or found.config.get("deepnorm"):  # torchscale sets the keys then
        return
    for stack in (stack for stack, depth in found.depths.items() if depth):
        for key in _config_keys(stack):
            said, places = found.config.get(key), method.norm_places(stack)
            if isinstance(said, bool) and said != ("pre" in places) and places & {"pre", "post"}:
                result.findings.append(f"{stack}: its config says {key}: {said}, {result.method} is {method.norm}")


def _judge_slots(result: Audit, found: Found, method: Method) -> None:
    """Names and shapes of a model of ours beside the method's own, with the modifiers that bring it nearest."""
    stacks = tuple(stack for stack, depth in found.depths.items() if depth)
    fields = {f"{method.name}_{key}": getattr(method, key) for key in method.options} | {"method": method.name}
    for stack in stacks:
        inner = [len(m.weight.linear.weight) for m in found.matrices if m.weight.role == "fc1" and stack in m.name]
        width = archs.Width(found.widths[stack], inner[0] if inner else 1, 1)
        fields |= width.fields(stack) | {f"{stack}_layers": found.depths[stack]}
    arch = next(arch for arch, held in archs.STACKS.items() if held == stacks)

    def shapes(tensors: dict[str, Tensor]) -> set[tuple]:
        return {(n, () if BY_HEAD.match(n) else tuple(t.shape)) for n, t in tensors.items() if INSIDE.match(n)}

    def odd(on: tuple[str, ...]) -> set[tuple]:
        return has ^ shapes(blueprint(arch, SPECIALS, **fields, **dict.fromkeys(on, True)).state_dict())

    has = shapes(found.weights)
    off: set[tuple] = odd(())
    if off:
        several = [on for n in range(1, len(MODIFIERS) + 1) for on in itertools.combinations(MODIFIERS, n)]
        least, with_it = min(((odd(on), on) for on in several), key=lambda pair: len(pair[0]))
        if len(least) < len(off):
            off = least
            result.notes += [f"with --{modifier.replace('_', '-')}" for modifier in with_it]
    held, own = {name for name, _ in has & off}, {name for name, _ in off - has}
    said = f"{result.method} has no", f"not there, {result.method} has", f"of another shape than {result.method}'s:"
    for text, names in zip(said, (held - own, own - held, held & own)):
        general = sorted({re.sub(r"\.\d+\.", ".N.", name) for name in names})
        more = f" and {len(general) - 3} more" if len(general) > 3 else ""
        result.findings += [f"{text} {', '.join(general[:3])}{more}"] if general else []


def _say_unexamined(result: Audit, found: Found, method: Method, stack: str, judged: set[Site]) -> None:
    """What the method has beside gains, factors and LayerNorms is in somebody's code, if at all."""
    sites, dim = _sites(found, method, stack), found.widths[stack]
    if left := [site for site in sites if site not in judged] if found.measured or not found.ours else []:
        plain = all(method.residual(site) is None for site in left)
        where = Counter(site.sublayer for site in left)
        layers = ", ".join(f"{sublayer} in {n} of {found.depths[stack]} layers" for sublayer, n in where.items())
        said = f"is the shortcut plain, x + f, as {result.method}'s?" if plain else "shortcut"
        live = "" if found.measured else "; live modules are measured, docs/verify.md"
        result.unexamined.append(f"{said} {stack} {layers}{live}")
    slots = [(name, getattr(method, name)(stack, dim)) for name in ("beginning", "mixer", "ending")]
    for site in sites[-len(method.sublayers(stack)) :]:
        slots += [(name, getattr(method, name)(site)) for name in ("before", "outer", "bypass")]
        slots += [(name, getattr(method, name)(site, dim)) for name in ("hidden", "inner", "heads")]
    filled = sorted({name for name, slot in slots if slot is not None and not isinstance(slot, nn.LayerNorm)})
    if filled and not found.ours:
        result.unexamined.append(f"what {result.method} has in its slots {', '.join(filled)} of the {stack}")
