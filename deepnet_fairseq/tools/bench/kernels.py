"""What a training step asks of a GPU, counted by torch's profiler, beside what was predicted without one.

Predictions are of tests/support/fake_gpu, which runs the same step on tensors without memory: it counts launches and
models their time (3.6 TB/s, 400 TFLOP/s, 2.2 us at least). Where the two differ that model was wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from .contender import PARTS, SPAN

NAME = "kernels"  # of the measure
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel", "cudaMemsetAsync")  # and their -Ex
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
COPIES = {"copies to the host": "Memcpy DtoH", "copies to the device": "Memcpy HtoD"}


class Prediction(NamedTuple):
    """Of one step: launches of each of PARTS, synchronisations, and the time of all kernels in seconds."""

    forward: int
    backward: int
    clip: int
    optimizer: int
    synchronisations: int
    busy: float


# (candidate, depth): at width base, fp16, batches of 4,096 tokens, dropout 0.1; adam is ours with fairseq's optimiser
PREDICTED = {
    ("ours", "18-18"): Prediction(568, 1229, 20, 11, 1, 0.0130),
    ("adam", "18-18"): Prediction(676, 1283, 760, 772, 1, 0.0190),
    ("stock", "18-18"): Prediction(1019, 1985, 760, 772, 20, 0.0224),
    ("ours", "100-100"): Prediction(2946, 6641, 68, 76, 1, 0.0680),
    ("adam", "100-100"): Prediction(3546, 6941, 4204, 4245, 1, 0.0998),
    ("stock", "100-100"): Prediction(5365, 10841, 4204, 4245, 102, 0.1187),
}
CONDITIONS = {"precision": "fp16", "max_tokens": 4096, "checkpoint_activations": False}


def counted(events: Iterable[Any]) -> dict[str, float]:
    """Quantities of one step in torch.profiler's events, which have a name, a time_range and a device_type.

    Launches of PARTS and of all, which are the host's calls, by the part of the step in which they are made;
    synchronisations; copies; seconds of all kernels, copies among them ("busy"). Times of events are in microseconds.
    """
    events = list(events)
    spans = {name: [e.time_range for e in events if e.name == SPAN + name and _on_host(e)] for name in (*PARTS, "step")}
    launches = [event.time_range.start for event in events if event.name.startswith(LAUNCHES)]
    found: dict[str, float] = {part: _within(launches, spans[part]) for part in PARTS}
    found["launches"] = _within(launches, spans["step"])
    waits = [event.time_range.start for event in events if event.name in WAITS]
    found["synchronisations"] = _within(waits, spans["step"])
    device = [event for event in events if not _on_host(event) and not event.name.startswith(SPAN)]
    found |= {name: sum(event.name.startswith(kind) for event in device) for name, kind in COPIES.items()}
    busy = sum(event.time_range.end - event.time_range.start for event in device)
    return found | {"busy": busy / 1e6}


def _on_host(event: Any) -> bool:
    return event.device_type == torch.autograd.DeviceType.CPU


def _within(times: list[float], spans: list[Any]) -> int:
    return sum(any(span.start <= time <= span.end for span in spans) for time in times)


def beside_predictions(measurements: dict) -> str:
    """The table of what was predicted and what was measured, a line a quantity; "" where nothing was predicted."""
    settings = measurements["settings"]
    if any(settings[name] != value for name, value in CONDITIONS.items()):
        return ""
    rows = []
    for cell in measurements["cells"]:
        predicted = PREDICTED.get((cell["candidate"], cell["depth"]))
        if cell["measure"] != NAME or cell["width"] != "base" or predicted is None:
            continue
        for quantity, number in predicted._asdict().items():
            if quantity in cell["summary"]:
                rows.append((cell["depth"], cell["candidate"], quantity, number, cell["summary"][quantity]["median"]))
    if not rows:
        return ""
    lines = ["| depth | candidate | | predicted | measured | measured / predicted |", f"|{' --- |' * 6}"]
    for depth, candidate, quantity, number, median in rows:
        said = [f"{1000 * one:.1f} ms" if quantity == "busy" else f"{one:,.0f}" for one in (number, median)]
        ratio = f"{median / number:.2f}" if number else ""
        lines.append(f"| {' | '.join((depth, candidate, quantity, *said, ratio))} |")
    return "### A training step, predicted without a GPU and measured\n\n" + "\n".join(lines)
