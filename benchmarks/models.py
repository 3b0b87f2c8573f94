"""The models that are compared, by the flags of fairseq-train, and an update of fairseq's Trainer in its parts."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterator

from fairseq.logging import metrics
from fairseq.trainer import Trainer

from deepnet_fairseq.core.archs import MODEL_NAME, WIDTHS
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags

from . import corpus
from .timing import STOCK, TORCHSCALE_ARCH

OURS, TORCHSCALE = "ours", "torchscale"
# name of a candidate -> flags of its model and optimiser
MODELS = {
    OURS: (f"--arch={MODEL_NAME}", "--method=post_ln", "--optimizer=deepnet_adam"),
    STOCK: ("--arch=transformer", "--optimizer=adam"),
    TORCHSCALE: (f"--arch={TORCHSCALE_ARCH}", "--optimizer=adam"),
}
# words of fairseq-train for every training; the folder of data, ".", is not read by the task
TRAINING = (
    ".", f"--task={corpus.NAME}", "--share-all-embeddings", "--dropout=0.1", "--clip-norm=1.0", "--num-workers=0",
    "--criterion=label_smoothed_cross_entropy", "--label-smoothing=0.1", "--adam-betas=(0.9, 0.98)", "--lr=5e-4",
    "--lr-scheduler=inverse_sqrt", "--warmup-updates=4000", "--warmup-init-lr=1e-7", "--seed=1", "--no-save",
    "--required-batch-size-multiple=8", "--disable-validation",
)  # fmt: skip


def size(depth: str, width: str) -> list[str]:
    """Return the flags of fairseq-train for the size of a model; UserError for a size that cannot be.

    depth: ENCODER-DECODER layers, as "18-18"; width: a key of WIDTHS, such as "base".
    """
    layers = depth.split("-")
    all_positive = all(number.isdecimal() and int(number) > 0 for number in layers)
    if len(layers) != 2 or not all_positive:
        raise UserError(f"depth {depth}", "give ENCODER-DECODER layers, as 18-18")
    if width not in WIDTHS:
        raise UserError(f"width {width}", f"unknown; choose of {', '.join(WIDTHS)}")

    flags = []
    for stack, number in zip(("encoder", "decoder"), layers):
        flags.append(f"--{stack}-layers={number}")
        for name, value in vars(WIDTHS[width]).items():  # embed_dim and so on
            flags.append(f"--{stack}-{name.replace('_', '-')}={value}")
    return flags


def chosen(names: str, variants: list[str]) -> dict[str, tuple[str, ...]]:
    """Return {name of a candidate: its flags of fairseq-train}; UserError for an unknown name or a malformed variant.

    names: keys of MODELS with commas between them; variants: candidates that are our model with further flags, each as
    "NAME=FLAGS". torchscale is left out, with a line that says so, where it is not installed.
    """
    unknown = [name for name in names.split(",") if name not in MODELS]
    if unknown:
        raise UserError(f"--candidates {','.join(unknown)}: unknown; choose of {', '.join(MODELS)}")

    models = {name: MODELS[name] for name in names.split(",")}
    for variant in variants:
        name, equals, flags = variant.partition("=")
        if not equals or not name or name in MODELS:
            raise UserError(f'--variant {variant}: give NAME=FLAGS, a new name, as adam="--optimizer adam"')
        models[name] = (*MODELS[OURS], *shlex.split(flags))

    if TORCHSCALE in models:
        try:
            from . import torchscale  # noqa: F401 - which registers the architecture
        except ImportError as error:
            print(f"torchscale is left out: {error}; pip install --no-deps torchscale==0.3.0")
            del models[TORCHSCALE]
    return models


def trainer_of(flags: list[str]) -> Trainer:
    """Return fairseq's Trainer, which has the model and the optimiser. flags: of fairseq-train, beside TRAINING."""
    return build_trainer(parse_training_flags([*TRAINING, *flags]))


def batches(trainer: Trainer, count: int) -> list[dict]:
    """Begin epoch 1, and return its first `count` batches, which are the same for every model."""
    iterator = trainer.get_train_iterator(epoch=1)
    trainer.begin_epoch(1)
    return list(itertools.islice(iterator.next_epoch_itr(shuffle=True), count))


def update(trainer: Trainer, batch: dict) -> dict | None:
    """Make an update as fairseq-train does; return what it logs, None where half precision overflowed.

    batch: of the trainer's iterator. An error for lack of memory is raised, where fairseq-train would skip the batch.
    """
    with metrics.aggregate("train_inner"):
        return trainer.train_step([batch], raise_oom=True)


def parts(trainer: Trainer) -> Iterator[tuple[object, str, str]]:
    """Yield the functions that an update calls, as (object that has it, name of the method, part of the update)."""
    yield trainer, "_prepare_sample", "input"
    yield trainer.criterion, "forward", "forward"
    yield trainer.optimizer, "backward", "backward"
    yield trainer.optimizer, "multiply_grads", "clip"
    yield trainer, "clip_grad_norm", "clip"
    yield trainer.task, "optimizer_step", "optimizer"
    yield trainer.optimizer, "zero_grad", "optimizer"
    yield trainer, "_reduce_and_log_stats", "log"


def watch(trainer: Trainer, watched: Callable[[Callable, str], Callable]) -> None:
    """Replace each function of an update (see `parts`) by what watched(function, part) returns.

    watched: returns a function with the same arguments and result, which may time it or count what it does.
    """
    for owner, attribute, part in list(parts(trainer)):
        function = getattr(owner, attribute)
        setattr(owner, attribute, watched(function, part))
