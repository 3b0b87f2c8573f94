"""Prepared text of many languages in fairseq's task translation_multi_simple_epoch: tags, shards, both directions."""

from __future__ import annotations

import re

import pytest
from fairseq import options, tasks
from fairseq.data import Dictionary

from .conftest import TRAIN_FLAGS
from .support.helpers import USER_DIR, run
from .support.many_languages import HELD_OUT, SIZES, lines, prepare, prepare_shards, write_text

NARROW = (
    "--arch", "deepnet_transformer", "--encoder-layers", "2", "--decoder-layers", "2", "--encoder-embed-dim", "32",
    "--decoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--decoder-ffn-embed-dim", "64",
    "--encoder-attention-heads", "2", "--decoder-attention-heads", "2",
)  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def prepared(text, tmp_path_factory):
    return prepare(text, tmp_path_factory.mktemp("prepared") / "dest", "--vocab", "300")


@pytest.fixture(scope="module")
def sharded(text, prepared, tmp_path_factory):
    return prepare_shards(text, prepared, tmp_path_factory.mktemp("sharded") / "dest")


def task_of(data, folder, pairs, *flags):
    """fairseq's task as fairseq-train sets it up."""
    words = [str(data), "--task", "translation_multi_simple_epoch", "--arch", "transformer", "--lang-pairs", pairs]
    words += ["--lang-dict", str(folder / "langs.txt"), "--encoder-langtok", "tgt", *flags]
    args = options.parse_args_and_arch(options.get_training_parser("translation_multi_simple_epoch"), words)
    args.max_source_positions = args.max_target_positions = 256
    return tasks.setup_task(args)


def first_words(task, key):
    """The first symbols of source and target of the first training pair of a direction."""
    dataset = task.datasets["train"]
    pair = dataset.datasets[dataset.keys.index(key)][0]
    return tuple(task.source_dictionary[pair[side][0]] for side in ("source", "target"))


def test_an_epoch_reads_a_shard_and_a_small_pair_every_time(sharded):
    folders = [sharded / "bin" / name for name in ("shard00", "shard01")]
    pairs = "de-en,en-de,en-fr,fr-en"
    task = task_of(":".join(map(str, folders)), folders[0], pairs, "--sampling-method", "temperature")
    seen = []
    for epoch in (1, 2, 3):
        task.load_dataset("train", epoch=epoch)
        dataset = dict(zip(task.datasets["train"].keys, task.datasets["train"].datasets, strict=True))
        seen.append({key: [tuple(pair["target"].tolist()) for pair in data] for key, data in dataset.items()})
    assert seen[0] == seen[2] and seen[0]["main:de-en"] != seen[1]["main:de-en"]
    assert seen[0]["main:en-fr"] == seen[1]["main:en-fr"] and len(seen[0]["main:en-fr"]) == SIZES["en-fr"]
    assert len(seen[0]["main:de-en"] + seen[1]["main:de-en"]) == SIZES["de-en"]


def test_the_tag_of_the_target_stands_first_in_the_source(prepared):
    folder = prepared / "bin"
    task = task_of(folder, folder, "de-en,en-de,en-fr,fr-en")
    task.load_dataset("train")
    tags = {"main:de-en": "__en__", "main:en-de": "__de__", "main:en-fr": "__fr__", "main:fr-en": "__en__"}
    assert {key: first_words(task, key)[0] for key in tags} == tags
    assert not any(first_words(task, key)[1].startswith("__") for key in tags)
    assert len(task.source_dictionary) % 8 == 0
    assert len(task.source_dictionary) - len(Dictionary.load(str(folder / "dict.de.txt"))) == 3


def test_why_both_directions_must_not_share_their_data(prepared):
    """fairseq then takes the tagged source of one direction for the target of the other, whose source has no tag."""
    folder = prepared / "bin"
    task = task_of(folder, folder, "de-en,en-de", "--enable-reservsed-directions-shared-datasets")
    task.load_dataset("train")
    assert first_words(task, "main:de-en")[0] == "__en__"
    source, target = first_words(task, "main:en-de")
    assert not source.startswith("__") and target == "__en__"


@pytest.mark.smoke
def test_training_and_translation_in_two_directions(prepared, tmp_path):
    folder = prepared / "bin"
    task = ("--task", "translation_multi_simple_epoch", "--lang-dict", folder / "langs.txt", "--encoder-langtok", "tgt",
            "--lang-pairs", ",".join(lines(folder / "pairs.txt")))  # fmt: skip
    sampling = ("--sampling-method", "temperature", "--sampling-temperature", "5")
    out = run("fairseq-train", folder, *TRAIN_FLAGS, *NARROW, *task, *sampling, "--max-update", "3", "--save-dir",
              tmp_path).stdout  # fmt: skip
    losses = [float(loss) for loss in re.findall(r'"train_loss": "([\d.]+)"', out)]
    assert losses and all(0 < loss < 12 for loss in losses)
    flags = (folder, "--user-dir", TRAIN_FLAGS[1], "--path", tmp_path / "checkpoint_last.pt", *task, "--gen-subset",
             "test", "--remove-bpe", "sentencepiece", "--cpu", "--max-len-b", "5", "--beam", "2")  # fmt: skip
    run("deepnet", "generate", *flags, "--directions", "en-de,en-fr", "--out", tmp_path / "all")
    for source, target in (("en", "de"), ("en", "fr")):
        out = run("fairseq-generate", *flags, "-s", source, "-t", target).stdout
        found = (tmp_path / "all" / f"{source}-{target}.txt").read_text(encoding="utf-8").splitlines()
        assert [line for line in out.splitlines() if line in found] == found  # fairseq may log in between
        asked = dict(re.findall(r"^S-(\d+)\t(.*)$", out, re.MULTILINE))
        assert len(asked) == HELD_OUT and all(line.startswith(f"__{target}__ ") for line in asked.values())
        wanted = dict(re.findall(r"^T-(\d+)\t(.*)$", out, re.MULTILINE))
        reference = lines(prepared / "reference" / f"test.{source}-{target}.{target}")
        assert [wanted[str(number)] for number in range(HELD_OUT)] == reference


def test_the_task_under_hydra(prepared, tmp_path):
    """The YAML of OPUS-100, narrowed: a task that fairseq knows by flags alone takes its settings from there."""
    folder = prepared / "bin"
    small = (
        "model._name=deepnet_transformer_tiny_6_6",
        "common.cpu=true",
        "common.fp16=false",
        "dataset.num_workers=0",
    )
    small += ("optimization.max_update=2", "distributed_training.distributed_world_size=1", f"task.data={folder}")
    pairs = ",".join(lines(folder / "pairs.txt"))
    config = ("--config-dir", f"{USER_DIR}/../configs", "--config-name", "opus100", f"hydra.run.dir={tmp_path}/hydra")
    settings = (f"common.user_dir={USER_DIR}", f"task.lang_pairs='{pairs}'", f"checkpoint.save_dir={tmp_path}/run")
    run("fairseq-hydra-train", *config, *small, *settings, "optimization.update_freq=[1]", "common.log_interval=1")
    assert (tmp_path / "run" / "checkpoint_last.pt").exists()
    wrong = run("fairseq-hydra-train", *config, *small, *settings, "+task.colour=red", check=False)
    assert wrong.returncode != 0 and "task.colour: translation_multi_simple_epoch has no such setting" in wrong.stderr
