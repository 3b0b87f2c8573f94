"""What a training step asks of its GPU. An answer waits for all that is queued, and then the GPU waits for more.

fairseq asks nine to twelve times an update, our models would ask three times a forward pass. Here the host looks at a
batch before it is moved, and losses and gradient norm come over in one copy, behind the backward pass, where the norm
is needed. What fairseq then does with them (clipping, loss scale, log) and our watch over the losses read tensors of
the CPU. Without a GPU all of this is as it was, but that padding is looked for once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from fairseq.distributed import utils as distributed_utils
from torch import Tensor

from ..core.models import DeepModel
from ..core.stack import Padding

LOGGED = "deepnet_logged"  # attribute of a task: what the batches of this update have logged


def know_batch(prepare, trainer, sample, *args, **kwargs):
    """A batch says on the host whether it is padded, to our models, and how many targets it has, to a loss that asks.

    A model gets a further input of its forward pass, `padding`.
    """
    model, count = trainer.get_model(), getattr(trainer.get_criterion(), "count_targets", None)
    net_input = sample.get("net_input") if isinstance(sample, dict) else None
    if isinstance(model, DeepModel) and net_input:
        read = model.tokens(**net_input)
        if all(tokens.is_cpu for tokens in read.values()):  # else it has been here before
            sample = sample | {"net_input": net_input | {"padding": Padding.of(model, read)}}
            sample |= count(sample) if count is not None else {}
    return prepare(trainer, sample, *args, **kwargs)


def note_step(train_step, trainer, *args, **kwargs):
    """One update, of which `note_logged` notes the batches."""
    vars(trainer.task)[LOGGED] = []
    try:
        return train_step(trainer, *args, **kwargs)
    finally:
        vars(trainer.task).pop(LOGGED, None)


def note_logged(train_step, task, *args, **kwargs):
    """Of each batch what it logs, for `clip_on_host`; a sample size that fairseq would ask the device for at once."""
    loss, size, logged = train_step(task, *args, **kwargs)
    if torch.is_tensor(size):
        (size,) = fetch([size], [logged])
    if LOGGED in vars(task):
        vars(task)[LOGGED].append(logged)
    return loss, size, logged


def sums_on_host(aggregate, trainer, logged, *sums, **kwargs):
    """What all ranks have logged, and their sample size, by one message and one copy.

    fairseq sends what is no tensor in a second one, and copies it to the device, which waits.
    """

    def there(value):
        number = isinstance(value, int | float)
        return torch.full((), value, dtype=torch.float64, device=trainer.device) if number else value

    if trainer.task.logging_outputs_can_be_summed(trainer.get_criterion()):
        logged = [{key: there(value) for key, value in one.items()} for one in logged]
        sums = tuple(map(there, sums))
    logged, found = aggregate(trainer, logged, *sums, **kwargs)
    vars(trainer.task).pop(LOGGED, None)
    return logged, fetch(found, logged)


def clip_on_host(original, trainer, clip_norm):
    """Copy the norm to the host together with what the update's batches have logged."""
    logged = vars(trainer.task).pop(LOGGED, [])

    def on_host(norm: Tensor) -> Tensor:
        return fetch([norm], logged)[0]

    norm = trainer.optimizer.clip_grad_norm(clip_norm, aggregate_norm_fn=on_host)
    return fetch([norm])[0]  # of no gradients at all fairseq's clipping asks nobody


def clip_by_number(original, optimizer, max_norm, aggregate_norm_fn=None):
    """fairseq's factor is a tensor beside the gradients, where the norm no longer is."""
    if aggregate_norm_fn is None:
        return original(optimizer, max_norm)
    norm = original(optimizer, 0, aggregate_norm_fn)
    if max_norm > 0:
        optimizer.multiply_grads((float(max_norm) / (norm + 1e-6)).clamp_(max=1))
    return norm


def multiply_by_number(original, optimizer, c):
    """A factor of the CPU as a number for a GPU: fairseq copies it there, which waits."""
    if torch.is_tensor(c) and c.is_cpu and not all(parameter.is_cpu for parameter in optimizer.params):
        c = c.item()
    return original(optimizer, c)


def compare_norms(original, trainer, grad_norm):
    """Is the norm the same on all GPUs? One question in place of fairseq's three, whose words it has if not.

    FloatingPointError on all of them if one is not finite, which to fairseq would be another.
    """
    norms = trainer._grad_norm_buf
    if norms is None:
        return
    norms.zero_()[trainer.data_parallel_rank].fill_(float(grad_norm))
    distributed_utils.all_reduce(norms, group=trainer.data_parallel_process_group)
    (found,) = fetch([norms])
    if not torch.isfinite(found).all():
        if trainer.cfg.common.amp:  # which leaves the update out
            return
        raise FloatingPointError("gradients are Nan/Inf")
    if (found - found[0]).abs().max() / (found[0] + 1e-6) >= 1e-6:
        original(trainer, grad_norm)


def log_on_host(original, trainer, logging_outputs, sample_size, grad_norm=None):
    """What nobody has fetched before: of a validation, of a task with a train_step of its own."""
    fetch([], logging_outputs or [])
    return original(trainer, logging_outputs, sample_size, grad_norm)


def fetch(values: Iterable, logged: Iterable = ()) -> list:
    """The values, their tensors on the CPU; those in dictionaries are replaced there. All tensors by one copy."""
    found = list(values)
    places = [*_tensors(found), *(place for one in logged for place in _tensors(one))]
    tensors = [holder[key].detach() for holder, key in places]
    if tensors:
        kinds = {tensor.dtype for tensor in tensors}
        common = kinds.pop() if len(kinds) == 1 else torch.float64  # which holds what float32 and counts are
        whole = torch.cat([tensor.reshape(-1).to(tensors[0].device, common) for tensor in tensors]).cpu()
        parts = whole.split([tensor.numel() for tensor in tensors])
        for (holder, key), part, tensor in zip(places, parts, tensors, strict=True):
            holder[key] = part.view(tensor.shape).to(tensor.dtype)
    return found


def _tensors(holder) -> Iterator[tuple]:
    """Each tensor of a GPU in a list or dictionary, and in dictionaries in it, as what holds it and its key there."""
    pairs = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
    for key, value in pairs:
        if isinstance(value, dict):
            yield from _tensors(value)
        elif torch.is_tensor(value) and elsewhere(value):
            yield holder, key


def elsewhere(tensor: Tensor) -> bool:
    """Does reading it wait for a device?"""
    return not tensor.is_cpu
