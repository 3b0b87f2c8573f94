"""What to try, from what was seen: each rule looks for one thing and says nothing where it does not see it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from .. import archs
from ..methods import METHODS, Method
from ..transformer.slots import LearnedShortcut, Site
from .batch import odd_one
from .event import FLOOR

LARGEST_HALF = 65504.0
USUAL = (1e-4, 5e-3)  # peaks of the papers' learning rates, and twice the largest
BOTH = archs.STACKS[archs.MODEL_NAME]
Rule = Callable[[dict, object], str | None]  # (event, trainer) -> a sentence, nothing where it does not apply
RULES: list[Rule] = []


def advice(event: dict, trainer) -> list[str]:
    """One sentence a rule, the most specific first. event: of report.event; trainer: fairseq's."""
    return [words for rule in RULES if (words := rule(event, trainer))]


def rule(function: Rule) -> Rule:
    """Decorator: adds a rule behind those there are."""
    RULES.append(function)
    return function


@rule
def broken_weights(event, trainer):
    """Weights that are not finite: no update can be made of them."""
    broken = event["parameters"]
    if not broken["count"]:
        return None
    if len(event["updates"]) == 0:
        return f"weights are not finite from the start ({broken['first'][0]}): resume from an older checkpoint"
    return f"weights were not finite before this update ({broken['first'][0]}): a lower --lr, and --clip-norm 1"


@rule
def odd_sentence(event, trainer):
    """A sentence pair of very different lengths in the batch."""
    stacks = archs.STACKS.get(archs.model_of(trainer.cfg.model), BOTH)
    pairs = len(stacks) > 1  # a language model's target is its source's
    odd = pairs and odd_one(event["batch"])
    return odd and (
        f"sentence {odd[0]} of the training set has {odd[1]} source and {odd[2]} target tokens: clean the text, or a "
        "lower --max-source-positions and --max-target-positions"
    )


@rule
def unscaled_depth(event, trainer):
    """Post-LN of more than 12 layers with nothing that follows the depth."""
    method = _method(trainer)
    if method is None or not _plain_post_norm(method):
        return None
    layers = max(method.num_encoder_layers, method.num_decoder_layers)
    return layers > 12 and f"{method.name} is not made for {layers} layers: --method deepnorm, its own default --lr"


@rule
def wild_shortcuts(event, trainer):
    """A trained omega ten times as large as the root of the number of branches that have one."""
    found = {n: m for n, m in trainer.get_model().named_modules() if isinstance(m, LearnedShortcut)}
    sizes = {name: float(module.omega.detach().abs().amax()) for name, module in found.items()}
    name = max(sizes, key=lambda name: sizes[name], default=None)
    if name is None or sizes[name] <= 10 * (len(sizes) + 1) ** 0.5:
        return None  # omega grows with the root of the branches below it
    return f"omega of {name} is {sizes[name]:.3g}: a profile of this text (--admin-profile auto), a lower --lr"


@rule
def half_precision(event, trainer):
    """fp16, whose numbers end at 65504 where bf16's do not."""
    common, largest = trainer.cfg.common, (event["first"] or {}).get("largest", 0.0)
    if not (common.fp16 or common.amp):
        return None
    near = f"values reached {largest:.4g} of fp16's {LARGEST_HALF:.0f}: " if largest > LARGEST_HALF / 10 else ""
    floor = " or a lower --min-loss-scale" if event["kind"] == FLOOR and not near else ""
    return f"{near}--bf16 instead of --{'fp16' if common.fp16 else 'amp'} where the GPU has it{floor}"


@rule
def absurd_rate(event, trainer):
    """A peak of the learning rate of more than 5e-3, twice the largest of the papers."""
    given = max(event["setting"]["lr"])
    return given > USUAL[1] and f"--lr {given:g} is above all that is usual: {USUAL[0]:g} to {USUAL[1]:g} with Adam"


@rule
def warm_up(event, trainer):
    """No warm-up, or a divergence within it."""
    warmup = event["setting"]["warmup_updates"]
    if not warmup:
        return "there is no warm-up: --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7"
    return event["update"] <= warmup and (
        f"update {event['update']} is within the warm-up of {warmup}, at a learning rate of {event['lr']:.3g}: a lower "
        "--lr or a longer --warmup-updates"
    )


@rule
def growing_gradients(event, trainer):
    """A last gradient norm of four times the median, and no clipping."""
    norms = [row["gnorm"] for row in event["updates"] if row["gnorm"] is not None]
    if len(norms) < 4 or trainer.cfg.optimization.clip_norm > 0:
        return None
    usual, last = statistics.median(norms), norms[-1]
    clip = usual if usual < 10 else 1
    return last > 4 * usual and f"gradient norm {last:.3g} after {usual:.3g} in the median: --clip-norm {clip:.2g}"


@rule
def risen_loss(event, trainer):
    """A loss that had risen by half before it was not finite."""
    losses = {row["loss"]: row["update"] for row in event["updates"] if row["loss"] is not None}
    if not losses:
        return None
    least, last = min(losses), event["updates"][-1]["loss"]
    return last > 1.5 * least and (
        f"the loss rose from {least:.4g} at update {losses[least]} to {last:.4g}: go on from a checkpoint before it did"
    )


@rule
def lower_rate(event, trainer):
    """Half of the learning rate, unless it is absurd."""
    if max(event["setting"]["lr"]) > USUAL[1]:
        return None
    again = "" if event["rollbacks"]["limit"] else ", or --rollbacks 3, which does so from a checkpoint by itself"
    return f"--lr {max(event['setting']['lr']) / 2:.3g}, half of what it was{again}"


def _method(trainer) -> Method | None:
    """None for a model that is not ours."""
    name = getattr(trainer.cfg.model, "method", None)
    return METHODS[name].from_config(trainer.cfg.model) if name in METHODS else None


def _sites(method: Method) -> Iterator[Site]:
    for stack in ("encoder", "decoder"):
        if method.depth(stack):
            yield from (Site(stack, method.depth(stack), sublayer, 64, 2) for sublayer in method.sublayers(stack))


def _plain_post_norm(method: Method) -> bool:
    """LN(x + f(x)), started from weights of one size at any depth."""
    slots = (method.residual, method.outer, method.before)
    return method.norm == "post" and all(
        method.gain(site, role) == 1.0 and not any(slot(site) for slot in slots)
        for site in _sites(method)
        for role in ("v", "fc1")
    )
