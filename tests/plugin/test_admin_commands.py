"""Tests of Admin in fairseq's programs: it is profiled once, before the optimiser is built, and never again."""

import json
import random

import numpy
import pytest
import torch

from deepnet_fairseq.plugin.batches import first_training_batch
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags

from ..conftest import TRAIN_FLAGS
from ..support.errors import assert_one_line
from ..support.helpers import USER_DIR, run
from .test_fairseq_programs import losses

ADMIN = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "3", "--decoder-layers", "2", "--method", "admin")
PROFILED = "admin profile auto: omega of encoder 1 to"


@pytest.fixture(scope="module")
def profile(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    printed = run("deepnet", "profile", data, *TRAIN_FLAGS, *ADMIN, "--out", path).stdout
    assert "wrote 12 omegas" in printed and "INFO | fairseq." not in printed
    return path


@pytest.fixture(scope="module")
def auto(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("auto")
    train = ("fairseq-train", data, *TRAIN_FLAGS, *ADMIN, "--admin-profile", "auto", "--save-dir", folder)
    return folder, run(*train, "--max-update", "3").stdout


def test_file_and_auto_are_the_same_training(data, profile, auto):
    """A profile from a file and --admin-profile auto give the same losses; one changed omega gives others."""
    train = ("fairseq-train", data, *TRAIN_FLAGS, *ADMIN, "--max-update", "3", "--no-save", "--admin-profile")
    assert PROFILED in auto[1]
    assert losses(run(*train, profile).stdout) == losses(auto[1])
    values = json.loads(profile.read_text())
    values["omega"]["decoder.2.ffn"] *= 2
    other = profile.with_name("other.json")
    other.write_text(json.dumps(values))
    assert losses(run(*train, other).stdout) != losses(auto[1])


def test_neither_resuming_nor_translating_profiles(data, auto):
    folder, _ = auto
    resume = ("fairseq-train", data, *TRAIN_FLAGS, *ADMIN, "--max-update", "4", "--no-save")
    resume += ("--restore-file", folder / "checkpoint_last.pt")
    for flags in (("--admin-profile", "no-longer-there.json"), ()):
        printed = run(*resume, *flags).stdout
        assert sorted(losses(printed)) == [4] and "admin profile" not in printed
    flags = ("--user-dir", USER_DIR, "--cpu", "--beam", "1", "--max-len-a", "0", "--max-len-b", "3")
    printed = run("fairseq-generate", data, "--path", folder / "checkpoint_last.pt", *flags).stdout
    assert "Translated 20 sentences" in printed and "admin profile" not in printed


def test_training_without_a_profile_is_refused(data, profile, tmp_path):
    train = ("fairseq-train", data, *TRAIN_FLAGS, *ADMIN, "--save-dir", tmp_path / "save")
    assert_one_line(run(*train, check=False), "not profiled", "deepnet profile", "--admin-profile auto")
    assert not (tmp_path / "save").exists()
    done = run(*train, "--admin-profile", profile, "--encoder-layers", "4", check=False)
    assert_one_line(done, "taken with encoder layers 3, this model has 4")


def test_the_profiled_batch_is_the_first_one_trained_on(data):
    """The profiled batch is the first training batch of fairseq's own trainer and iterator."""
    trainer = build_trainer(
        parse_training_flags([str(data), *TRAIN_FLAGS, *ADMIN, "--admin-profile", "auto", "--seed", "7"])
    )
    epoch = trainer.get_train_iterator(epoch=1)
    states = random.getstate(), numpy.random.get_state()[1].tolist()
    profiled = first_training_batch(epoch)
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == states
    trained = next(epoch.next_epoch_itr(shuffle=True))["net_input"]
    assert torch.equal(profiled["src_tokens"], trained["src_tokens"])
