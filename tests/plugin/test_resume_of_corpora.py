"""Tests of exact resume for every kind of corpus: killed at three random updates, equal to the bit."""

import random

import pytest

from ..conftest import TRAIN_FLAGS
from ..data.test_multilingual import prepared, sharded, text  # noqa: F401  # fixtures
from ..support import lm_trainings
from ..support.lives import TINY, assert_ends_as_one_left_alone
from ..support.prepared import lines

SAVES = ("--save-interval-updates", "3", "--keep-interval-updates", "1", "--max-update", "30")
PAIRS = [flag for flag in TRAIN_FLAGS if flag != "--disable-validation"]
LANGUAGE = {  # flags of a language model
    **{mode: (*lm_trainings.CAUSAL, "--sample-break-mode", mode) for mode in ("none", "complete", "complete_doc")},
    "eos, half precision": (*lm_trainings.CAUSAL, "--fp16", "--fp16-init-scale", "16"),
    "masked": lm_trainings.MASKED,
    "masked, blocks": (*lm_trainings.MASKED, "--sample-break-mode", "complete", "--mask-prob", "0.3"),
}
MULTILINGUAL = ("temperature", "concat", "uniform")


def three(case: str) -> list[tuple[str, int]]:
    """Draw the numbers of updates after which three lives end, at most eight each."""
    chance = random.Random(case)
    return [("update", chance.randint(2, 9)) for _ in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("case", LANGUAGE)
def test_language_models(case, tmp_path):
    data = lm_trainings.make_text(tmp_path / "text")
    flags = (*lm_trainings.FLAGS, *SAVES, "--dropout", "0.1", *LANGUAGE[case])
    assert_ends_as_one_left_alone(tmp_path, (data, *flags), three(case))


@pytest.mark.slow
@pytest.mark.parametrize("method", MULTILINGUAL)
def test_many_pairs_in_epochs_cut_into_folders(method, sharded, tmp_path):  # noqa: F811
    """Several pairs in shards, a new folder each epoch and both directions, resume exactly."""
    folders = [sharded / "bin" / name for name in ("shard00", "shard01")]
    task = ("--task", "translation_multi_simple_epoch", "--lang-dict", folders[0] / "langs.txt", "--encoder-langtok",
            "tgt", "--lang-pairs", ",".join(lines(folders[0] / "pairs.txt")))  # fmt: skip
    sampling = ("--sampling-method", method, "--sampling-temperature", "5", "--max-tokens", "1500")
    flags = (*PAIRS, *TINY, "--dropout", "0.1", *SAVES, *task, *sampling)
    assert_ends_as_one_left_alone(tmp_path, (":".join(map(str, folders)), *flags), three(method))
