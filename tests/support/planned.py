"""Settings to plan for in tests, and what torch says of the same model."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from fairseq import utils
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from torch.profiler import ProfilerActivity, profile

from deepnet_fairseq.building import blank_task
from deepnet_fairseq.config import namespace
from deepnet_fairseq.models import DeepTransformer
from deepnet_fairseq.plan.setting import Setting
from deepnet_fairseq.plan.tape import DEVICES

from .helpers import FIRST, PAD

SIZES = {  # widths, depths, sentences x tokens
    "narrow": ({"encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64, "encoder_attention_heads": 2}, (3, 2), (8, 20)),
    "wider": ({"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 192, "encoder_attention_heads": 4}, (4, 5), (4, 33)),
}
MODEL = {"share_all_embeddings": True, "encoder_layers": 2, "decoder_layers": 3} | SIZES["narrow"][0]


def planned(vocab=(60, 60), cpu=True, **settings) -> Setting:
    """A setting for a small model, or for other fields of its config (`cfg`)."""
    cfg = namespace("deepnet_transformer", **(MODEL | settings.pop("cfg", {})))
    settings = {"max_tokens": 160, "length": 20} | settings
    return Setting(cfg, *vocab, device=DEVICES["cpu" if cpu else "cuda"], **settings)


def built(setting: Setting, device: str = "meta") -> DeepTransformer:
    """The setting's model; on the meta device without storage."""
    with torch.device(device):
        return DeepTransformer.build_model(setting.cfg, blank_task(setting.source_vocab, setting.target_vocab))


@contextmanager
def storages_saved(but):
    """Address -> bytes of what autograd keeps of what is computed inside: storages, once each, not those of `but`."""
    own = {tensor.untyped_storage().data_ptr() for tensor in but}
    found, alive = {}, []  # an address names a storage only as long as it lives

    def pack(tensor):
        storage = tensor.untyped_storage()
        alive.append(storage)
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def saved_bytes(setting: Setting) -> int:
    """What autograd keeps of a forward pass with fairseq's loss: storages, once each, that are no parameters."""
    model = built(setting, "cpu").to(setting.precision.dtype).train()
    sentences, vocab = setting.max_tokens // setting.length, setting.target_vocab
    src, prev, target = torch.randint(FIRST, vocab, (3, sentences, setting.length))
    src[0, :3] = PAD
    with storages_saved((*model.parameters(), *model.buffers())) as found:
        lprobs = utils.log_softmax(model(src, None, prev)[0], dim=-1)
        label_smoothed_nll_loss(lprobs.view(-1, vocab), target.view(-1), 0.1, ignore_index=PAD)
    return sum(found.values())


def allocated(function) -> int:
    """Most bytes that torch's CPU allocator handed out while the function ran, beside what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        function()
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
