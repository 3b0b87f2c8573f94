"""A plan as text and as JSON."""

from __future__ import annotations

from types import SimpleNamespace

from ...text_table import render
from .fit import recommend
from .needs import TERA, count, flops, memory
from .setting import GIB, SHARDED, Setting, recomputation

MEMORY_ROWS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimiser": "optimiser's state",
    "buckets": "gradients' copy to send",
    "activations": "activations",
    "recomputed": "recomputed at a time",
    "loss": "logits and loss",
    "step": "update's temporaries",
    "objects": "Python's objects",
}
PHASES = {"forward": "forward pass", "backward": "backward pass", "optimiser": "optimiser's update"}


def as_dict(setting: Setting, speed: SimpleNamespace | None) -> dict:
    """Return the plan for JSON, one object a part; bytes, operations, seconds."""
    model = {name: getattr(setting.cfg, name) for name in ("arch", "method", *setting.layer_fields)}
    own = ("max_tokens", "update_freq", "length", "precision", "optimizer", "criterion", "checkpoint_every")
    words = {name: getattr(setting, name) for name in (*own, "device", "gpus", "gpu_memory")}
    return {
        "setting": model | {"vocab": list(setting.vocab)} | words | {"sharding": SHARDED * setting.zero},
        "parameters": vars(count(setting)),
        "flops": vars(flops(setting)),
        "memory": vars(memory(setting)),
        "options": [option.as_dict() for option in recommend(setting)],
        "speed": speed and vars(speed),
    }


def as_text(setting: Setting, speed: SimpleNamespace | None) -> str:
    """Return the plan in tables of parameters, memory (GiB), options, operations (GFLOP) and time."""
    parts = [_title(setting), _parameters(setting), _memory(setting), _options(setting), _work(setting), _time(speed)]
    return "\n\n".join(parts)


def _title(setting: Setting) -> str:
    cfg, vocab = setting.cfg, " and ".join(f"{size:,}" for size in dict.fromkeys(setting.vocab))
    layers = "-".join(str(getattr(cfg, name)) for name in setting.layer_fields)
    unit = "GPU" if setting.device == "cuda" else "process"
    batch = f"{setting.max_tokens:,} tokens a {unit} x {setting.update_freq} x {setting.gpus}"
    return (
        f"{cfg.arch}, {layers}, {cfg.method}, vocabulary {vocab}\n"
        f"{setting.precision}, {setting.optimizer}, {batch} = {setting.batch:,} an update"
    )


def _parameters(setting: Setting) -> str:
    found = count(setting)
    rows = {name: getattr(found, name) for name in ("embeddings", *setting.stacks, "output", "total")}
    if found.trainable != found.total:
        rows["trained"] = found.trainable
    return render([["parameters", "number"], *([name, f"{number:,}"] for name, number in rows.items())])


def _memory(setting: Setting) -> str:
    found, place = memory(setting), "a GPU" if setting.device == "cuda" else "the process"
    rows = [(label, getattr(found, name)) for name, label in MEMORY_ROWS.items() if getattr(found, name)]
    table = [[label, f"{number / GIB:.2f}"] for label, number in [*rows, ("peak", found.peak)]]
    note = f"not all at a time: the peak lies in the {PHASES[found.phase]}"
    flags = recomputation(setting.checkpoint_every)
    return "\n".join([render([[f"memory of {place}", "GiB"], *table]), "; ".join([note, *filter(None, [flags])])])


def _options(setting: Setting) -> str:
    options = recommend(setting)
    rows = [[option.name, f"{option.memory.peak / GIB:.2f}", f"{option.cost:.2f}"] for option in options]
    chosen, limit = options[-1], f"{setting.gpu_memory / GIB:g} GiB"
    if not chosen.fits:
        verdict = f"nothing of this fits into {limit}: take a smaller model, --memory-efficient-fp16 or larger GPUs"
    elif len(options) == 1:
        verdict = f"fits into {limit} as it is"
    else:
        gpus = chosen.setting.gpus
        place = f" on {gpus} GPUs" if gpus > setting.gpus else ""
        verdict = f"fits into {limit}{place} with {chosen.flags}"
    return render([["to fit", "peak GiB", "operations"], *rows]) + f"\n{verdict}"


def _work(setting: Setting) -> str:
    found = flops(setting)
    rows = {"forward": found.forward, "of these, attention": found.attention, "forward and backward": found.train}
    if found.recomputed:
        rows["recomputed"] = found.recomputed
    return render([["operations a token", "GFLOP"], *([name, f"{number / 1e9:.3f}"] for name, number in rows.items())])


def _time(found: SimpleNamespace | None) -> str:
    if found is None:
        return "time: give --flops, the TFLOP/s that one GPU achieves in training"
    rows = [["time", "value"], ["TFLOP/s of each", f"{found.rate / TERA:.4g}"]]
    rows += [["seconds an update", f"{found.step:.4g}"], ["tokens a second", f"{found.tokens_per_second:,.0f}"]]
    if found.updates is not None:
        rows += [["updates", f"{found.updates:,}"], ["hours", f"{found.hours:,.2f}"]]
    return render(rows)
