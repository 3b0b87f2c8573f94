"""Format the plan of one training as text and as JSON.

An option is the training's setting with changes by which it may need less memory (fit.py).
"""

from __future__ import annotations

from types import SimpleNamespace

from ...text_table import render
from .fit import USABLE, recommend
from .needs import TERA, count, flops, memory
from .setting import GIB, Setting, recomputation_flags

MEMORY_ROWS = {  # attribute of what needs.memory returns -> label in the table
    "weights": "weights",
    "gradients": "gradients",
    "optimiser": "optimiser's state",
    "buckets": "gradients' copy to send",
    "activations": "activations",
    "recomputed": "recomputed at a time",
    "loss": "logits and loss",
    "step": "update's temporaries",
    "graphs": "CUDA graphs",
    "objects": "Python's objects",
    "peak": "peak",
}
PHASES = {  # `phase` of what needs.memory returns -> its name in the text
    "forward": "forward pass",
    "backward": "backward pass",
    "optimiser": "optimiser's update",
}


def as_dict(setting: Setting, speed: SimpleNamespace | None) -> dict:
    """Return the plan for JSON: a dictionary for each part, and a list for the last but one.

    - "setting": the fields of Setting, with arch, method and numbers of layers in place of `cfg`
    - "parameters", "flops", "memory": numbers of parameters, of operations and of bytes, as needs.py counts them
    - "options": what needs less memory, each as Option.as_dict gives it
    - "speed": the parameter `speed`, which is what needs.speed returns, or None if no FLOP/s are given
    """
    fields = {name: value for name, value in vars(setting).items() if name != "cfg"}
    for name in ("arch", "method", *setting.layer_fields):
        fields[name] = getattr(setting.cfg, name)
    return {
        "setting": fields,
        "parameters": vars(count(setting)),
        "flops": vars(flops(setting)),
        "memory": vars(memory(setting)),
        "options": [option.as_dict() for option in recommend(setting)],
        "speed": None if speed is None else vars(speed),
    }


def as_text(setting: Setting, speed: SimpleNamespace | None) -> str:
    """Return the plan as tables of memory (GiB), options to need less of it, operations (GFLOP), launches and time.

    speed: as for `as_dict`.
    """
    cfg = setting.cfg
    vocab = " and ".join(f"{size:,}" for size in dict.fromkeys(setting.vocab))
    layers = "-".join(str(getattr(cfg, name)) for name in setting.layer_fields)
    unit = "GPU" if setting.device == "cuda" else "process"
    batch = f"{setting.max_tokens:,} tokens a {unit} x {setting.update_freq} x {setting.gpus}"
    title = (
        f"{cfg.arch}, {layers}, {cfg.method}, vocabulary {vocab}: {count(setting).total:,} parameters\n"
        f"{setting.precision}, {setting.optimizer}, {batch} = {setting.tokens_per_update:,} an update"
    )
    return "\n\n".join([title, _memory(setting, unit), _options(setting), _work(setting, speed)])


def _memory(setting: Setting, unit: str) -> str:
    """Format the table of memory, without the rows of what takes none.

    A line below the table names the part of an update in which the peak lies, and the flags of recomputation. unit:
    "GPU" or "process", whose memory it is.
    """
    usage = memory(setting)
    rows = [[f"memory of a {unit}", "GiB"]]
    for name, label in MEMORY_ROWS.items():
        used = getattr(usage, name)
        if used:
            rows.append([label, f"{used / GIB:.2f}"])

    note = f"not all at a time: the peak lies in the {PHASES[usage.phase]}"
    recomputation = recomputation_flags(setting.checkpoint_every)
    if recomputation:
        note += f"; {recomputation}"
    return f"{render(rows)}\n{note}"


def _options(setting: Setting) -> str:
    """Format the table of options that need less and less memory, and say which is recommended, or that none fits."""
    options = recommend(setting)
    rows = [["to fit", "peak GiB", "operations"]]
    for option in options:
        rows.append([option.name, f"{option.memory.peak / GIB:.2f}", f"{option.cost:.2f}"])

    chosen = options[-1]
    limit = f"{setting.gpu_memory / GIB:g} GiB with {1 - USABLE:.0%} to spare"
    if not chosen.fits:
        verdict = f"nothing of this fits into {limit}: take a smaller model, --memory-efficient-fp16 or larger GPUs"
    elif len(options) == 1:
        verdict = f"fits into {limit} as it is"
    else:
        gpus = f" on {chosen.setting.gpus} GPUs" if chosen.setting.gpus > setting.gpus else ""
        verdict = f"fits into {limit}{gpus} by {chosen.flags}"
    return f"{render(rows)}\n{verdict}"


def _work(setting: Setting, speed: SimpleNamespace | None) -> str:
    """Format the table of operations, kernel launches and, if the speed is known, time.

    speed: as for `as_dict`; without it a line below the table says which flag gives it.
    """
    work = flops(setting)
    rows = [
        ["work", "value"],
        ["GFLOP a token, forward", f"{work.forward / 1e9:.3f}"],
        ["forward and backward", f"{work.train / 1e9:.3f}"],
        ["recomputed", f"{work.recomputed / 1e9:.3f}"],
        ["kernel launches an update", f"{work.launches:,}"],
    ]
    if speed is None:
        return render(rows) + "\ntime: give --flops, the TFLOP/s that one GPU achieves in training"

    rows.append(["TFLOP/s of each", f"{speed.rate / TERA:.4g}"])
    rows.append(["seconds an update", f"{speed.step:.4g}"])
    rows.append(["tokens a second", f"{speed.tokens_per_second:,.0f}"])
    if speed.updates is not None:
        rows.append(["updates", f"{speed.updates:,}"])
        rows.append(["hours", f"{speed.hours:,.2f}"])
    return render(rows)
