"""`python -m tests.hostile.opening WHAT PATH`: opens a file as fairseq does, without its second of command line."""

from __future__ import annotations

import argparse
import sys

from fairseq import checkpoint_utils, utils
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from deepnet_fairseq.compat.command_line import explain_mistakes

from ..support.helpers import USER_DIR


def checkpoint() -> None:
    """PATH"""
    utils.import_user_module(argparse.Namespace(user_dir=USER_DIR))
    checkpoint_utils.load_checkpoint_to_cpu(sys.argv[1])


def data() -> None:
    """FOLDER: dictionaries, training data and their batches."""
    utils.import_user_module(argparse.Namespace(user_dir=USER_DIR))
    cfg = TranslationConfig(data=sys.argv[1], source_lang="qaa", target_lang="qab", left_pad_source=True)
    cfg.dataset_impl, cfg.num_batch_buckets, cfg.required_seq_len_multiple = None, 0, 1
    cfg.train_subset = "train"
    task = TranslationTask.setup_task(cfg)
    task.load_dataset("train")
    dataset = task.dataset("train")
    iterator = task.get_batch_iterator(dataset, max_tokens=600, max_positions=(600, 600), ignore_invalid_inputs=True)
    print(next(iterator.next_epoch_itr())["ntokens"], "tokens")


def profile() -> None:
    """PATH of an Admin profile."""
    utils.import_user_module(argparse.Namespace(user_dir=USER_DIR))
    from deepnet_fairseq.profiling.profile import read_profile

    read_profile(sys.argv[1])


if __name__ == "__main__":
    what = sys.argv.pop(1)
    sys.argv[0] = f"fairseq-{what}"
    explain_mistakes()  # as it does in programs of fairseq's, by their names
    {"checkpoint": checkpoint, "data": data, "profile": profile}[what]()
