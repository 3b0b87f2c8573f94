"""A plan as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..text_table import render
from .fit import Option
from .needs import TERA, Flops, Memory, Parameters, Speed
from .setting import GIB, SHARDING_FLAGS, Setting, recomputation
from .trial import Checked

MEMORY_ROWS = (
    ("weights", "weights"),
    ("gradients", "gradients"),
    ("optimiser", "optimiser's state"),
    ("buckets", "gradients' copy to send"),
    ("activations", "activations"),
    ("recomputed", "recomputed at a time"),
    ("loss", "logits and loss"),
    ("step", "update's temporaries"),
    ("objects", "Python's objects"),
)


@dataclass(frozen=True)
class Report:
    """All that is known of a setting; speed is None without a rate."""

    setting: Setting
    parameters: Parameters
    flops: Flops
    memory: Memory
    options: list[Option]
    speed: Speed | None

    def as_dict(self) -> dict:
        """For JSON, one object a part; bytes, operations, seconds."""
        return {
            "setting": describe(self.setting),
            **{name: asdict(getattr(self, name)) for name in ("parameters", "flops", "memory")},
            "options": [option.as_dict() for option in self.options],
            "speed": self.speed and asdict(self.speed),
        }

    def as_text(self) -> str:
        """Tables of parameters, memory (GiB), options, operations (GFLOP) and time."""
        parts = [_title(self.setting), _parameters(self.setting, self.parameters), _memory(self.setting, self.memory)]
        parts += [_options(self.options), _work(self.flops), _time(self.setting, self.speed)]
        return "\n\n".join(parts)


def describe(setting: Setting) -> dict:
    """What a plan was made for, in the words of the flags."""
    model = {name: getattr(setting.cfg, name) for name in ("arch", "method", *setting.layer_fields)}
    own = ("max_tokens", "update_freq", "length", "precision", "optimizer", "criterion", "checkpoint_every", "sharding")
    words = {name: getattr(setting, name) for name in (*own, "device", "gpus", "gpu_memory")}
    words |= {"precision": setting.precision.name, "sharding": SHARDING_FLAGS[setting.sharding]}
    return model | {"vocab": list(setting.vocabularies)} | words


def gib(number: float) -> str:
    """Bytes as GiB with two decimals."""
    return f"{number / GIB:.2f}"


def _title(setting: Setting) -> str:
    cfg, vocab = setting.cfg, f"{setting.source_vocab:,}"
    if setting.target_vocab != setting.source_vocab:
        vocab += f" and {setting.target_vocab:,}"
    layers = "-".join(str(getattr(cfg, name)) for name in setting.layer_fields)
    model = f"{cfg.arch}, {layers}, {cfg.method}, vocabulary {vocab}"
    unit = "GPU" if setting.device == "cuda" else "process"
    batch = f"{setting.max_tokens:,} tokens a {unit} x {setting.update_freq} x {setting.gpus}"
    return f"{model}\n{setting.precision.name}, {setting.optimizer}, {batch} = {setting.batch:,} an update"


def _parameters(setting: Setting, found: Parameters) -> str:
    rows = [["parameters", "number"]]
    rows += [[name, f"{getattr(found, name):,}"] for name in ("embeddings", *setting.stacks, "output", "total")]
    if found.trainable != found.total:
        rows.append(["trained", f"{found.trainable:,}"])
    return render(rows)


def _memory(setting: Setting, found: Memory) -> str:
    place = "a GPU" if setting.device == "cuda" else "the process"
    rows = [[f"memory of {place}", "GiB"]]
    rows += [[label, gib(getattr(found, name))] for name, label in MEMORY_ROWS if getattr(found, name)]
    rows.append(["peak", gib(found.peak)])
    where = {"forward": "forward pass", "backward": "backward pass", "optimiser": "optimiser's update"}[found.phase]
    note = f"not all at a time: the peak lies in the {where}"
    every = setting.checkpoint_every
    return render(rows) + f"\n{note}" + (f"; {recomputation(every)}" if every else "")


def _options(options: list[Option]) -> str:
    rows = [["to fit", "peak GiB", "operations"]]
    rows += [[option.name, gib(option.memory.peak), f"{option.cost:.2f}"] for option in options]
    chosen = options[-1]
    limit = f"{chosen.setting.gpu_memory / GIB:g} GiB"
    if not chosen.fits:
        verdict = f"nothing of this fits into {limit}: take a smaller model, --memory-efficient-fp16 or larger GPUs"
    elif len(options) == 1:
        verdict = f"fits into {limit} as it is"
    else:
        count = chosen.setting.gpus
        place = f" on {count} GPUs" if count > options[0].setting.gpus else ""
        verdict = f"fits into {limit}{place} with {chosen.flags}"
    return render(rows) + f"\n{verdict}"


def _work(found: Flops) -> str:
    rows = [["operations a token", "GFLOP"]]
    rows += [["forward", f"{found.forward / 1e9:.3f}"], ["of these, attention", f"{found.attention / 1e9:.3f}"]]
    rows.append(["forward and backward", f"{found.train / 1e9:.3f}"])
    if found.recomputed:
        rows.append(["recomputed", f"{found.recomputed / 1e9:.3f}"])
    return render(rows)


def _time(setting: Setting, found: Speed | None) -> str:
    if found is None:
        return "time: give --flops, the TFLOP/s that one GPU achieves in training, or --measure"
    rows = [["time", "value"], ["TFLOP/s of each", f"{found.rate / TERA:.4g}"]]
    rows += [["seconds an update", f"{found.step:.4g}"], ["tokens a second", f"{found.tokens_per_second:,.0f}"]]
    if found.updates is not None:
        rows += [["updates", f"{found.updates:,}"], ["hours", f"{found.hours:,.2f}"]]
    return render(rows)


def check_table(checked: list[Checked]) -> str:
    """Planned and measured peaks, in MiB."""

    def mib(number: int | None) -> str:
        return "" if number is None else f"{number / 2**20:,.0f}"

    rows = [["training, MiB", "planned", "measured", "planned/measured", "glibc by default"]]
    for one in checked:
        words = [word for word in one.flags if word != "--share-all-embeddings"]
        rows.append([" ".join(words), mib(one.planned), mib(one.measured), f"{one.ratio:.3f}", mib(one.by_default)])
    return render(rows)
