"""What to try, from what was seen: each rule looks for one thing and says nothing where it does not see it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ...core import archs
from ...core.methods import METHODS
from ...core.modifiers import from_config
from ...core.slots import LearnedShortcut, Site
from . import FLOOR

LARGEST_HALF = 65504.0
USUAL = (1e-4, 5e-3)  # peaks of the papers' learning rates, and twice the largest
ODD_RATIO, ODD_LENGTH = 8, 32  # of the two sides of a sentence pair that stands out, and tokens of the longer


def advice(event: dict, trainer) -> list[str]:
    """One sentence a rule, the most specific first. event: of report.event; trainer: fairseq's."""
    return [*_on_model_and_text(event, trainer), *_on_training(event, trainer.cfg.optimization.clip_norm)]


def is_plain(cfg) -> bool:
    """Has this model config a Post-LN that starts from a top layer of one size at any depth, with nothing beside it?"""
    if getattr(cfg, "method", None) not in METHODS:
        return False
    method = from_config(cfg)
    stack = "decoder" if method.depth("decoder") else "encoder"
    top = Site(stack, method.depth(stack), "ffn", 1, 1)
    alone = all(slot(top) is None for slot in (method.before, method.outer, method.bypass, method.residual))
    return method.norm_place(top) == "post" and alone and method.gain(top, "fc2") == 1.0


def _on_model_and_text(event: dict, trainer) -> Iterator[str]:
    cfg, broken = trainer.cfg.model, event["parameters"]
    if broken["count"] and not event["updates"]:
        yield f"weights are not finite from the start ({broken['first'][0]}): resume from an older checkpoint"
    elif broken["count"]:  # no update can be made of them
        yield f"weights were not finite before this update ({broken['first'][0]}): a lower --lr, and --clip-norm 1"
    pairs = zip(*(event["batch"][key] for key in ("ids", "source_lengths", "target_lengths")))  # eos counts
    ratio = {pair: max(pair[1:]) / max(min(pair[1:]), 1) for pair in pairs if max(pair[1:]) >= ODD_LENGTH}
    of_pairs = len(archs.STACKS.get(archs.model_of(cfg), ())) != 1  # a language model's target is its source's
    if of_pairs and max(ratio.values(), default=0) >= ODD_RATIO:
        number, source, target = max(ratio, key=lambda pair: ratio[pair])
        yield (
            f"sentence {number} of the training set has {source} source and {target} target tokens: clean the text, or "
            "a lower --max-source-positions and --max-target-positions"
        )
    layers = max(getattr(cfg, f"{stack}_layers", None) or 0 for stack in ("encoder", "decoder"))
    if layers > 12 and is_plain(cfg):
        yield f"{cfg.method} is not made for {layers} layers: --method deepnorm, its own default --lr"
    learned = {n: m for n, m in trainer.get_model().named_modules() if isinstance(m, LearnedShortcut)}
    size, name = max(((float(m.omega.detach().abs().amax()), n) for n, m in learned.items()), default=(0.0, ""))
    if size > 10 * (len(learned) + 1) ** 0.5:  # a trained omega grows with the root of the branches that have one
        yield f"omega of {name} is {size:.3g}: a profile of this text (--admin-profile auto), a lower --lr"
    common, largest = trainer.cfg.common, (event["first"] or {}).get("largest", 0.0)
    if common.fp16 or common.amp:
        near = f"values reached {largest:.4g} of fp16's {LARGEST_HALF:.0f}: " if largest > LARGEST_HALF / 10 else ""
        floor = " or a lower --min-loss-scale" if event["kind"] == FLOOR and not near else ""
        yield f"{near}--bf16 instead of --{'fp16' if common.fp16 else 'amp'} where the GPU has it{floor}"


def _on_training(event: dict, clip_norm: float) -> Iterator[str]:
    lr, warmup = max(event["setting"]["lr"]), event["setting"]["warmup_updates"]
    if lr > USUAL[1]:
        yield f"--lr {lr:g} is above all that is usual: {USUAL[0]:g} to {USUAL[1]:g} with Adam"
    if not warmup:
        yield "there is no warm-up: --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7"
    elif event["update"] <= warmup:
        within = f"update {event['update']} is within the warm-up of {warmup}, at a learning rate of {event['lr']:.3g}"
        yield f"{within}: a lower --lr or a longer --warmup-updates"
    norms = [row["gnorm"] for row in event["updates"] if row["gnorm"] is not None]
    usual = statistics.median(norms) if len(norms) >= 4 else float("inf")
    if clip_norm <= 0 and norms and norms[-1] > 4 * usual:
        clip = usual if usual < 10 else 1
        yield f"gradient norm {norms[-1]:.3g} after {usual:.3g} in the median: --clip-norm {clip:.2g}"
    losses = {row["loss"]: row["update"] for row in event["updates"] if row["loss"] is not None}
    last = event["updates"][-1]["loss"] if losses else 0.0
    if losses and last > 1.5 * (least := min(losses)):
        rose = f"the loss rose from {least:.4g} at update {losses[least]} to {last:.4g}"
        yield f"{rose}: go on from a checkpoint before it did"
    if lr <= USUAL[1]:
        again = "" if event["rollbacks"]["limit"] else ", or --rollbacks 3, which does so from a checkpoint by itself"
        yield f"--lr {lr / 2:.3g}, half of what it was{again}"
