"""What to try, from what was seen: each rule looks for one thing and says nothing where it does not see it."""

from __future__ import annotations

import statistics

from .. import archs
from ..transformer.slots import LearnedShortcut
from . import FLOOR

LARGEST_HALF = 65504.0
USUAL = (1e-4, 5e-3)  # peaks of the papers' learning rates, and twice the largest
PLAIN = ("post_ln", "post_ln_init")  # LN(x + f(x)), started from weights of one size at any depth
ODD_RATIO, ODD_LENGTH = 8, 32  # of the two sides of a sentence pair that stands out, and tokens of the longer


def advice(event: dict, trainer) -> list[str]:
    """One sentence a rule, the most specific first. event: of report.event; trainer: fairseq's."""
    return [words for rule in RULES if (words := rule(event, trainer))]


def _broken_weights(event, trainer):
    """No update can be made of them."""
    broken = event["parameters"]
    if not broken["count"]:
        return None
    if len(event["updates"]) == 0:
        return f"weights are not finite from the start ({broken['first'][0]}): resume from an older checkpoint"
    return f"weights were not finite before this update ({broken['first'][0]}): a lower --lr, and --clip-norm 1"


def _odd_sentence(event, trainer):
    """The sentence pair whose lengths differ most; eos counts."""
    if len(archs.STACKS.get(archs.model_of(trainer.cfg.model), ())) == 1:
        return None  # a language model's target is its source's
    pairs = zip(*(event["batch"][key] for key in ("ids", "source_lengths", "target_lengths")))
    odd = [pair for pair in pairs if max(pair[1:]) >= max(ODD_LENGTH, ODD_RATIO * min(pair[1:]))]
    if not odd:
        return None
    number, source, target = max(odd, key=lambda pair: max(pair[1:]) / max(min(pair[1:]), 1))
    return (
        f"sentence {number} of the training set has {source} source and {target} target tokens: clean the text, or a "
        "lower --max-source-positions and --max-target-positions"
    )


def _unscaled_depth(event, trainer):
    """Post-LN of more than 12 layers with nothing that follows the depth."""
    cfg = trainer.cfg.model
    layers = max(getattr(cfg, f"{stack}_layers", None) or 0 for stack in ("encoder", "decoder"))
    if getattr(cfg, "method", None) not in PLAIN or layers <= 12:
        return None
    return f"{cfg.method} is not made for {layers} layers: --method deepnorm, its own default --lr"


def _wild_shortcuts(event, trainer):
    """A trained omega ten times as large as the root of the number of branches that have one, with which it grows."""
    found = {n: m for n, m in trainer.get_model().named_modules() if isinstance(m, LearnedShortcut)}
    sizes = {name: float(module.omega.detach().abs().amax()) for name, module in found.items()}
    name = max(sizes, key=lambda name: sizes[name], default=None)
    if name is None or sizes[name] <= 10 * (len(sizes) + 1) ** 0.5:
        return None
    return f"omega of {name} is {sizes[name]:.3g}: a profile of this text (--admin-profile auto), a lower --lr"


def _half_precision(event, trainer):
    """fp16, whose numbers end at 65504 where bf16's do not."""
    common, largest = trainer.cfg.common, (event["first"] or {}).get("largest", 0.0)
    if not (common.fp16 or common.amp):
        return None
    near = f"values reached {largest:.4g} of fp16's {LARGEST_HALF:.0f}: " if largest > LARGEST_HALF / 10 else ""
    floor = " or a lower --min-loss-scale" if event["kind"] == FLOOR and not near else ""
    return f"{near}--bf16 instead of --{'fp16' if common.fp16 else 'amp'} where the GPU has it{floor}"


def _absurd_rate(event, trainer):
    given = max(event["setting"]["lr"])
    return given > USUAL[1] and f"--lr {given:g} is above all that is usual: {USUAL[0]:g} to {USUAL[1]:g} with Adam"


def _warm_up(event, trainer):
    """No warm-up, or a divergence within it."""
    warmup = event["setting"]["warmup_updates"]
    if not warmup:
        return "there is no warm-up: --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7"
    return event["update"] <= warmup and (
        f"update {event['update']} is within the warm-up of {warmup}, at a learning rate of {event['lr']:.3g}: a lower "
        "--lr or a longer --warmup-updates"
    )


def _growing_gradients(event, trainer):
    """A last gradient norm of four times the median, and no clipping."""
    norms = [row["gnorm"] for row in event["updates"] if row["gnorm"] is not None]
    if len(norms) < 4 or trainer.cfg.optimization.clip_norm > 0:
        return None
    usual, last = statistics.median(norms), norms[-1]
    clip = usual if usual < 10 else 1
    return last > 4 * usual and f"gradient norm {last:.3g} after {usual:.3g} in the median: --clip-norm {clip:.2g}"


def _risen_loss(event, trainer):
    """A loss that had risen by half before it was not finite."""
    losses = {row["loss"]: row["update"] for row in event["updates"] if row["loss"] is not None}
    if not losses:
        return None
    least, last = min(losses), event["updates"][-1]["loss"]
    return last > 1.5 * least and (
        f"the loss rose from {least:.4g} at update {losses[least]} to {last:.4g}: go on from a checkpoint before it did"
    )


def _lower_rate(event, trainer):
    """Half of the learning rate, unless it is absurd."""
    given = max(event["setting"]["lr"])
    again = "" if event["rollbacks"]["limit"] else ", or --rollbacks 3, which does so from a checkpoint by itself"
    return given <= USUAL[1] and f"--lr {given / 2:.3g}, half of what it was{again}"


RULES = (
    _broken_weights, _odd_sentence, _unscaled_depth, _wild_shortcuts, _half_precision, _absurd_rate, _warm_up,
    _growing_gradients, _risen_loss, _lower_rate,
)  # fmt: skip
