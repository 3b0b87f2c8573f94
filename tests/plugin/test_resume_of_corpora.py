"""Tests of exact resume for every kind of corpus: a training killed at three random updates ends equal to the bit."""

from __future__ import annotations

import random

import pytest

from ..conftest import TRAIN_FLAGS
from ..support import lm_trainings
from ..support.lives import TINY, assert_ends_as_undisturbed
from ..support.many_pairs import make_many_pairs, make_many_pairs_text, make_sharded_pairs  # noqa: F401
from ..support.prepared import lines_of

SAVES = ("--save-interval-updates", "3", "--keep-interval-updates", "1", "--max-update", "30")
VALIDATED = [flag for flag in TRAIN_FLAGS if flag != "--disable-validation"]
LANGUAGE_MODELS = {  # the first three are values of --sample-break-mode, which cuts the text into samples
    "none": (*lm_trainings.CAUSAL, "--sample-break-mode", "none"),
    "complete": (*lm_trainings.CAUSAL, "--sample-break-mode", "complete"),
    "complete_doc": (*lm_trainings.CAUSAL, "--sample-break-mode", "complete_doc"),
    "eos, half precision": (*lm_trainings.CAUSAL, "--fp16", "--fp16-init-scale", "16"),
    "masked": lm_trainings.MASKED,
    "masked, blocks": (*lm_trainings.MASKED, "--sample-break-mode", "complete", "--mask-prob", "0.3"),
}
SAMPLING_METHODS = ("temperature", "concat", "uniform")


def three_moments(seed: str) -> list[tuple[str, int]]:
    """Draw the moments at which a training is killed: each time in its second to ninth update since it was started.

    The moments are as status_of_training takes them, ("update", number).
    """
    chance = random.Random(seed)
    return [("update", chance.randint(2, 9)) for _ in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("case", LANGUAGE_MODELS)
def test_a_killed_training_of_a_language_model_ends_as_one_left_alone(case, tmp_path):
    data = lm_trainings.make_text(tmp_path / "text")
    command = (data, *lm_trainings.FLAGS, *SAVES, "--dropout", "0.1", *LANGUAGE_MODELS[case])

    assert_ends_as_undisturbed(tmp_path, command, three_moments(case))


@pytest.mark.slow
@pytest.mark.parametrize("method", SAMPLING_METHODS)
def test_a_killed_training_of_many_pairs_ends_as_one_left_alone(method, sharded_pairs, tmp_path):
    """The data are several pairs in both directions, in two folders (shards). Each epoch takes the next folder."""
    shards = [sharded_pairs / "bin" / name for name in ("shard00", "shard01")]
    pairs = lines_of(shards[0] / "pairs.txt")
    task = (
        "--task", "translation_multi_simple_epoch", "--lang-dict", shards[0] / "langs.txt", "--encoder-langtok", "tgt",
        "--lang-pairs", ",".join(pairs),
    )  # fmt: skip
    sampling = ("--sampling-method", method, "--sampling-temperature", "5", "--max-tokens", "1500")
    data = ":".join(str(shard) for shard in shards)
    command = (data, *VALIDATED, *TINY, "--dropout", "0.1", *SAVES, *task, *sampling)

    assert_ends_as_undisturbed(tmp_path, command, three_moments(method))
