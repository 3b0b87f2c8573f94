"""Small causal language models of fairseq's and of ours, trained in process, as checkpoints of fairseq-train."""

from __future__ import annotations

import random
from collections import Counter

import torch
from fairseq import options, tasks
from fairseq.data import data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from deepnet_fairseq.data.monolingual.prepare import complete_dictionary
from deepnet_fairseq.data.monolingual.segmenter import Segmenter
from deepnet_fairseq.export.transformer import NO_TRAINING

from .plain_text import write_gpt2

SIZES = (
    "--decoder-layers", "2", "--decoder-embed-dim", "32", "--decoder-ffn-embed-dim", "64",
    "--decoder-attention-heads", "2", "--dropout", "0", "--share-decoder-input-output-embed",
)  # fmt: skip
POSITIONS = 128


def data_folder(folder):
    """dict.txt and text.json of the small GPT-2 BPE: all that scoring needs of the data."""
    encoder, merges = write_gpt2(folder / "files")
    segmenter = Segmenter("gpt2", {"gpt2_encoder_json": encoder, "gpt2_vocab_bpe": merges})
    segmenter.write(folder)
    complete_dictionary(Counter(), segmenter.symbols).save(str(folder / "dict.txt"))
    return folder


def configured(data, arch: str, *flags):
    """cfg and task of fairseq-train's flags."""
    words = [str(data), "--task", "language_modeling", "--arch", arch, "--tokens-per-sample", str(POSITIONS), *SIZES]
    args = options.parse_args_and_arch(options.get_training_parser(), [*words, *flags])
    cfg = convert_namespace_to_omegaconf(args)
    return cfg, tasks.setup_task(cfg.task)


def train(model, rows: list[list[int]], dictionary, start: int, steps: int) -> None:
    """On batches of 16 texts that follow `start`, drawn at random."""
    draw = random.Random(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model.train()
    for _ in range(steps):
        batch = [torch.tensor([start, *row][:POSITIONS]) for row in draw.sample(rows, 16)]
        tokens = data_utils.collate_tokens(batch, dictionary.pad())
        scores = model(tokens[:, :-1])[0].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(scores, tokens[:, 1:].flatten(), ignore_index=dictionary.pad())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def save(path, cfg, model):
    plain = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    torch.save({"args": None, "cfg": plain, "model": model.state_dict()} | NO_TRAINING, path)
    return path
