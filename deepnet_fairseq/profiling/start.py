"""The moment before training: the first batch is known, the optimiser does not exist yet, and omega must be set."""

from __future__ import annotations

import copy
import hashlib
import logging

import numpy
import torch
from fairseq import utils
from fairseq.data import data_utils
from torch import Tensor, nn

from ..errors import UserError
from .omega import apply_omegas, profile_omegas
from .profile import Profile, dropouts, read_profile, shape

logger = logging.getLogger(__name__)
HELD_SENTENCES = 32  # of a batch that stays the same


def profile_before_training(model: nn.Module, task, source: str | None) -> None:
    """Fills the omegas of a fresh `model` when `task` is first asked for batches, from `source`: a file, or "auto".

    fairseq asks for batches before it builds the optimiser, and after it has loaded what it resumes or translates with:
    a model that was loaded has its omegas and is left alone. UserError then, if there is no source or it does not fit.
    """
    if not hasattr(task, "get_batch_iterator"):
        return  # a model outside training
    original, loaded = task.get_batch_iterator, []
    model.register_load_state_dict_post_hook(lambda *_: loaded.append(True))

    def get_batch_iterator(*args, **kwargs):
        task.get_batch_iterator = original
        iterator = original(*args, **kwargs)
        if not loaded:
            profile = _profile(model, iterator, source)
            model.omega_profile = profile  # type: ignore[assignment]  # a plain attribute
            apply_omegas(model, list(profile.omega.values()))
            logger.info(_summary(profile, str(source)))
        return iterator

    task.get_batch_iterator = get_batch_iterator


def check_source(source: str | None) -> Profile | None:
    """The profile in file `source`, None for "auto"; UserError, with the way to one, without a source or a profile."""
    if source is None:
        raise UserError(
            "--method admin: this model is not profiled; add --admin-profile auto, or run `deepnet profile DATA --out "
            "profile.json` with the flags of this run and add --admin-profile profile.json"
        )
    return None if source == "auto" else read_profile(source)


def _profile(model: nn.Module, iterator, source: str | None) -> Profile:
    profile = check_source(source)
    if profile is None:
        return take_profile(model, first_training_batch(iterator), iterator.seed)
    profile.check(model, str(source))
    return profile


def first_training_batch(iterator) -> dict:
    """net_input of the first batch that rank 0 trains on in epoch 1, the same on every rank.

    Under --curriculum, or --grouped-shuffling on several ranks, it is another batch of that epoch.
    """
    return _net_input(iterator, _first_epoch(iterator)[0])


def held_training_batch(iterator, device: torch.device) -> dict:
    """net_input on `device` of the batch that epoch 1 comes to last, or its first sentences; the same on every rank."""
    net_input = _net_input(iterator, _first_epoch(iterator)[-1][:HELD_SENTENCES])
    return utils.move_to_cuda(net_input, device) if device.type == "cuda" else net_input


def _first_epoch(iterator) -> list:
    batches = list(iterator.frozen_batches)
    with data_utils.numpy_seed(iterator.seed + 1):
        numpy.random.shuffle(batches)
    return batches


def _net_input(iterator, batch) -> dict:
    return iterator.collate_fn([iterator.dataset[i] for i in batch])["net_input"]


def take_profile(model: nn.Module, net_input: dict, seed: int) -> Profile:
    """The profile of `model` on one batch, measured in float32; rank 0's on every rank."""
    device = next(model.parameters()).device
    if device.type == "cuda":
        net_input = utils.move_to_cuda(net_input, device)
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    omegas = profile_omegas(copy.deepcopy(model).float() if half else model, net_input, seed)
    values = torch.tensor(list(omegas.values()), dtype=torch.float64, device=device)
    if torch.distributed.is_initialized():
        torch.distributed.broadcast(values, 0)
    return Profile(
        **shape(model),
        omega={str(site): value for site, value in zip(omegas, values.tolist(), strict=True)},
        seed=seed,
        dropout=dropouts(model),
        data=_fingerprint(net_input),
    )


def _fingerprint(net_input: dict) -> dict:
    source = net_input["src_tokens"]
    tokens = [net_input[name] for name in ("src_tokens", "prev_output_tokens") if name in net_input]
    return {"sha256": _sha256(*tokens), "sentences": len(source), "source_length": source.size(1)}


def _sha256(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr(tuple(tensor.shape)).encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


def _summary(profile: Profile, source: str) -> str:
    ends = {stack: profile.of(stack) for stack in ("encoder", "decoder")}
    ranges = ", ".join(f"{stack} {v[0]:.4g} to {v[-1]:.4g}" for stack, v in ends.items() if v)
    return f"admin profile {source}: omega of {ranges}"
