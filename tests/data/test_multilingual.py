"""Tests of preparing many pairs with one vocabulary: the folder's content, mistakes, and fairseq's task on it.

The text is that of support/many_pairs.py: de-en and en-fr, of which en-fr has no validation set.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from fairseq.data import Dictionary, data_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.data.multilingual import Multilingual, PairText
from deepnet_fairseq.data.vocabulary import sample, sampling_probabilities
from deepnet_fairseq.study.scoring.scores import score

from ..conftest import TRAIN_FLAGS
from ..support.errors import assert_refused
from ..support.experiments import dry_run
from ..support.helpers import USER_DIR, run, run_cold
from ..support.many_pairs import (
    HELD_OUT,
    TRAINING_PAIRS,
    make_many_pairs,  # noqa: F401
    make_many_pairs_text,  # noqa: F401
    make_sharded_pairs,  # noqa: F401
    prepare_many_pairs,
)
from ..support.prepared import lines_of

SMALL_MODEL = (
    "--arch", "deepnet_transformer", "--encoder-layers", "2", "--decoder-layers", "2", "--encoder-embed-dim", "32",
    "--decoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--decoder-ffn-embed-dim", "64",
    "--encoder-attention-heads", "2", "--decoder-attention-heads", "2",
)  # fmt: skip


def decoded_sentences(folder, stem, lang):
    """Return the sentences of one side as text, read with fairseq's own data and dictionary classes.

    folder: of binarised data; stem: subset and pair, as "train.de-en"
    """
    dictionary = Dictionary.load(str(folder / f"dict.{lang}.txt"))
    binarised = data_utils.load_indexed_dataset(str(folder / f"{stem}.{lang}"), dictionary)
    return [dictionary.string(ids, bpe_symbol="sentencepiece") for ids in binarised]


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (1, {"de": 8 / 9, "gd": 1 / 9}),  # in proportion to the sizes 8 and 1
        (3, {"de": 2 / 3, "gd": 1 / 3}),  # to their cube roots, 2 and 1
    ],
)
def test_languages_are_sampled_in_the_shares_computed_by_hand(temperature, expected):
    assert sampling_probabilities({"de": 8, "gd": 1}, temperature) == pytest.approx(expected)


def test_a_sample_holds_whole_copies_and_a_rest_without_replacement():
    """A sample of 25 from ten numbers has each of them twice, and five of them once more."""
    drawn = Counter(sample(range(10), count=10, wanted=25, rng=Random(1)))

    assert drawn.keys() == set(range(10))
    assert sorted(drawn.values()) == [2] * 5 + [3] * 5


def numbered_pairs(source, target, count):
    """Return the PairText of so many training pairs, whose sentences are as "de 0 of de-en", "de 1 of de-en", ..."""

    def train():
        for number in range(count):
            rest = f"{number} of {source}-{target}"
            yield f"{source} {rest}", f"{target} {rest}"

    return PairText((source, target), {"train": train}, state={})


NUMBERED = {"de-en": 8000, "en-gd": 1000}  # training pairs of numbered_pairs in the next fixture
# language -> its number of sentences to the power 1/T, here at temperature T = 5; English is in both pairs
WEIGHTS = {"de": 8000**0.2, "en": 9000**0.2, "gd": 1000**0.2}


@pytest.fixture(scope="module")
def drawn_for_the_vocabulary(tmp_path_factory):
    """Provide language -> the sentences that are drawn from numbered pairs, at temperature 5, to learn a vocabulary."""
    preparation = Multilingual(tmp_path_factory.mktemp("vocabulary"), shards=1, vocab=100, temperature=5.0)
    texts = [numbered_pairs(*pair.split("-"), count) for pair, count in NUMBERED.items()]
    drawn = preparation.draw(texts, NUMBERED)
    return {lang: list(sentences) for lang, sentences in drawn.items()}


@pytest.mark.parametrize("lang", WEIGHTS)
def test_the_vocabulary_is_learnt_on_languages_in_their_shares(lang, drawn_for_the_vocabulary):
    drawn = drawn_for_the_vocabulary[lang]
    total = sum(map(len, drawn_for_the_vocabulary.values()))

    assert len(drawn) / total == pytest.approx(WEIGHTS[lang] / sum(WEIGHTS.values()), abs=1e-3)
    assert {sentence.split()[0] for sentence in drawn} == {lang}


def test_the_vocabulary_is_learnt_on_a_language_s_text_of_all_its_pairs(drawn_for_the_vocabulary):
    """English sentences are drawn without replacement: 8 of de-en for each of en-gd."""
    drawn = drawn_for_the_vocabulary["en"]
    of_en_gd = [sentence for sentence in drawn if sentence.endswith("en-gd")]

    assert len(set(drawn)) == len(drawn)
    assert len(of_en_gd) / len(drawn) == pytest.approx(1 / 9, rel=0.1)


@pytest.mark.parametrize("pair", TRAINING_PAIRS)
@pytest.mark.parametrize("subset", ["train", "test"])
def test_data_decode_to_the_text_that_was_given(pair, subset, many_pairs_text, many_pairs):
    for lang in pair.split("-"):
        given = lines_of(many_pairs_text / pair / f"{subset}.{lang}")
        decoded = decoded_sentences(many_pairs / "bin", f"{subset}.{pair}", lang)

        assert len(decoded) == len(given)
        same = [number for number, sentence in enumerate(given) if decoded[number] == sentence]
        assert len(same) > 0.97 * len(given)  # a few hold characters that the vocabulary lacks


def test_a_training_pair_stands_in_for_a_missing_validation_set(many_pairs_text, many_pairs):
    """fairseq's task requires a validation set of every pair."""
    first = lines_of(many_pairs_text / "en-fr" / "train.fr")[:1]

    assert decoded_sentences(many_pairs / "bin", "valid.en-fr", "fr") == first


def test_lists_for_fairseq_name_the_languages_and_both_directions(many_pairs):
    assert lines_of(many_pairs / "bin" / "langs.txt") == ["de", "en", "fr"]
    assert lines_of(many_pairs / "bin" / "pairs.txt") == ["de-en", "en-de", "en-fr", "fr-en"]


def test_recipe_json_holds_counts_and_the_form_of_the_text(many_pairs):
    recipe = json.loads((many_pairs / "recipe.json").read_text())

    assert recipe["counts"]["train"] == sum(TRAINING_PAIRS.values())
    assert recipe["counts"]["pairs"]["de-en"] == {
        "train": TRAINING_PAIRS["de-en"],
        "valid": HELD_OUT,
        "test": HELD_OUT,
    }
    assert recipe["pieces"] == "sentencepiece"
    assert recipe["detokenise"] is False
    assert recipe["lowercase"] is False


@pytest.mark.parametrize("direction", ["de-en", "en-de", "fr-en"])
def test_references_are_the_target_side_of_the_test_set(direction, many_pairs_text, many_pairs):
    source, target = direction.split("-")
    pair = "-".join(sorted([source, target]))  # folders of the text are named in alphabetical order

    given = (many_pairs_text / pair / f"test.{target}").read_text()
    assert (many_pairs / "reference" / f"test.{direction}.{target}").read_text() == given


def test_shards_have_the_given_vocabulary(many_pairs, sharded_pairs):
    assert (sharded_pairs / "spm.model").read_bytes() == (many_pairs / "spm.model").read_bytes()


@pytest.mark.parametrize("lang", ["de", "en"])
def test_shards_take_turns_in_the_sentences_of_the_data(lang, many_pairs, sharded_pairs):
    name = f"train.de-en.{lang}"
    whole = data_utils.load_indexed_dataset(str(many_pairs / "bin" / name))
    even = data_utils.load_indexed_dataset(str(sharded_pairs / "bin" / "shard00" / name))
    odd = data_utils.load_indexed_dataset(str(sharded_pairs / "bin" / "shard01" / name))

    assert len(even) == TRAINING_PAIRS["de-en"] / 2
    assert len(odd) == TRAINING_PAIRS["de-en"] / 2
    for number in range(len(even)):
        assert np.array_equal(even[number], whole[2 * number])
        assert np.array_equal(odd[number], whole[2 * number + 1])


def test_the_second_shard_holds_training_text_of_the_large_pair_alone(sharded_pairs):
    """Held-out text and pairs that are too small for two shards are in the first shard."""
    names = [file.name for file in (sharded_pairs / "bin" / "shard01").iterdir()]

    assert {tuple(name.split(".")[:2]) for name in names} == {("train", "de-en")}


VOCAB = ("--vocab", "200")  # pieces of corpora that a test prepares of its own text


@pytest.fixture
def own_text(many_pairs_text, tmp_path):
    """Provide a copy of the text of both pairs, which the test may change."""
    return shutil.copytree(many_pairs_text, tmp_path / "text")


def test_a_pair_that_comes_later_leaves_the_others_untouched(own_text, tmp_path):
    dest = prepare_many_pairs(own_text, tmp_path / "dest", *VOCAB, "--pairs", "de-en")
    files = [dest / "spm.model", *(dest / "bin").glob("*.de-en.*")]
    assert len(files) == 1 + 3 * 2 * 2  # the model; three subsets, of two sides, in .bin and .idx
    times_of_change = [path.stat().st_mtime_ns for path in files]

    prepare_many_pairs(own_text, dest, *VOCAB, "--pairs", "en-fr")

    assert [path.stat().st_mtime_ns for path in files] == times_of_change
    assert lines_of(dest / "bin" / "pairs.txt") == ["de-en", "en-de", "en-fr", "fr-en"]


def test_a_lost_vocabulary_is_learnt_again_from_the_pairs_that_it_came_from(own_text, tmp_path):
    """A pair that has come since has no part in the vocabulary: with that pair's text the pieces would be others."""
    dest = prepare_many_pairs(own_text, tmp_path / "dest", *VOCAB, "--pairs", "de-en")
    model = (dest / "spm.model").read_bytes()

    (dest / "spm.model").unlink()
    prepare_many_pairs(own_text, dest, *VOCAB, "--pairs", "en-fr")

    assert (dest / "spm.model").read_bytes() == model


@pytest.fixture
def prepared_in_two_calls(own_text, tmp_path):
    """Provide the folder of both pairs, de-en prepared first; the vocabulary is learnt from de-en alone.

    --pairs adds to the pairs that are there.
    """
    dest = prepare_many_pairs(own_text, tmp_path / "dest", *VOCAB, "--pairs", "de-en")
    return prepare_many_pairs(own_text, dest, *VOCAB, "--pairs", "en-fr")


def test_a_corpus_that_is_complete_is_not_prepared_again(own_text, prepared_in_two_calls, capsys):
    prepare_many_pairs(own_text, prepared_in_two_calls, *VOCAB, "--pairs", "en-fr")

    assert "==" not in capsys.readouterr().out  # "==" announces a step


def test_only_the_pair_whose_text_changed_is_prepared_again(own_text, prepared_in_two_calls, capsys):
    (own_text / "en-fr" / "test.en").write_text("short\n")
    (own_text / "en-fr" / "test.fr").write_text("court\n")

    prepare_many_pairs(own_text, prepared_in_two_calls, *VOCAB, "--pairs", "en-fr")

    steps = capsys.readouterr().out.split("\n")  # a step that was done before is announced with a remark
    assert "== pair.en-fr" in steps
    assert "== pair.de-en" not in steps
    assert "== vocabulary" not in steps
    assert lines_of(prepared_in_two_calls / "reference" / "test.en-fr.fr") == ["court"]


class WrongFlags(NamedTuple):
    """Flags of `deepnet prepare corpus multilingual` that cannot be, and what the refusal is about."""

    flags: tuple[str, ...]
    subject: str


NO_MODEL = __file__  # a file that is no SentencePiece model
WRONG_FLAGS = [
    WrongFlags(("--pairs", "de-es"), "text/de-es"),  # the text has no such pair
    WrongFlags(("--vocab", "100000"), "--vocab 100000"),  # more pieces than the text allows
    WrongFlags(("--temperature", "0"), "--temperature 0"),
    WrongFlags(("--shards", "0"), "--shards 0"),
    WrongFlags(("--spm", NO_MODEL), NO_MODEL),
    WrongFlags(("--spm", NO_MODEL, "--vocab", "9"), "--spm"),  # a model has its own number of pieces
]


@pytest.mark.parametrize(("flags", "subject"), WRONG_FLAGS)
def test_flags_that_cannot_be_are_refused(flags, subject, own_text, tmp_path):
    command = ("prepare", "corpus", "multilingual", tmp_path / "dest", "--from", own_text)

    assert_refused(subject, *command, *flags)


def test_a_pair_that_is_named_twice_is_prepared_once(own_text, tmp_path):
    dest = prepare_many_pairs(own_text, tmp_path / "dest", *VOCAB, "--pairs", "de-en,de-en")

    assert lines_of(dest / "bin" / "pairs.txt") == ["de-en", "en-de"]


def test_both_orders_of_a_pair_are_refused(own_text, tmp_path):
    shutil.copytree(own_text / "de-en", own_text / "en-de")

    assert_refused("de-en and en-de", "prepare", "corpus", "multilingual", tmp_path / "dest", "--from", own_text)


def test_the_other_order_of_a_pair_is_refused_in_a_later_call_too(own_text, tmp_path):
    shutil.copytree(own_text / "de-en", own_text / "en-de")
    dest = prepare_many_pairs(own_text, tmp_path / "dest", *VOCAB, "--pairs", "de-en")

    flags = ("--from", own_text, "--pairs", "en-de")
    assert_refused("de-en and en-de", "prepare", "corpus", "multilingual", dest, *flags)


def test_a_code_with_a_hyphen_which_fairseq_would_split_is_refused(own_text, tmp_path):
    shutil.copytree(own_text / "de-en", own_text / "zh-Hans-en")

    flags = ("--from", own_text, "--pairs", "zh-Hans-en")
    assert_refused("pair zh-Hans-en", "prepare", "corpus", "multilingual", tmp_path / "dest", *flags)


def test_a_training_set_without_a_sentence_is_refused(own_text, tmp_path):
    for lang in ("de", "en"):
        (own_text / "de-en" / f"train.{lang}").write_text("")

    flags = ("--from", own_text, "--pairs", "de-en")
    assert_refused("error: de-en: ", "prepare", "corpus", "multilingual", tmp_path / "dest", *flags)


LONG_SENTENCE = 750  # words, more than the model has positions for by itself


@pytest.fixture(scope="module")
def long_test_set(many_pairs_text, many_pairs, tmp_path_factory):
    """Provide the folder of binarised data whose test set de-en ends with a sentence of 750 words on each side."""
    folder = tmp_path_factory.mktemp("long")
    shutil.copytree(many_pairs_text, folder / "text")
    for lang in ("de", "en"):
        with open(folder / "text" / "de-en" / f"test.{lang}", "a") as file:
            file.write(" ".join([lang] * LONG_SENTENCE) + "\n")
    dest = prepare_many_pairs(folder / "text", folder / "dest", "--spm", str(many_pairs / "spm.model"))
    return dest / "bin"


class Translated(NamedTuple):
    """Outputs of a translation in files DIRECTION.txt of `folder`, and the words after `deepnet` that made them.

    The words lack --directions and --out.
    """

    folder: Path
    words: list[str]


@pytest.fixture(scope="module")
def translated_directions(long_test_set, tmp_path_factory):
    """Provide the Translated of de-en and en-fr by a model of one update.

    The words are those of scripts/opus100.sh, with flags of the user (GENERATE) behind them.
    """
    out = tmp_path_factory.mktemp("translated")
    chosen = {"DEPTHS": 12, "PRECISION": "fp32", "GENERATE": "--max-len-b 4 --beam 1"}
    commands = dry_run("opus100", DATA=long_test_set, OUT=out, **chosen)
    (generate,) = [words[1:] for words in commands if words[:2] == ["deepnet", "generate"]]

    task = generate[generate.index("--task") : generate.index("--directions")]  # flags that a training needs too
    run("fairseq-train", long_test_set, *TRAIN_FLAGS, *SMALL_MODEL, *task, "--max-update", "1", "--save-dir", out)

    words = without_flags(generate, "--directions", "--out")
    words += ["--user-dir", USER_DIR, "--path", str(out / "checkpoint_last.pt")]
    main([*words, "--directions", "de-en,en-fr", "--out", str(out)])
    return Translated(out, words)


def without_flags(words, *flags):
    """Return the words of a command without some flags and their values, a word each."""
    kept = list(words)
    for flag in flags:
        while flag in kept:
            place = kept.index(flag)
            del kept[place : place + 2]
    return kept


def test_a_direction_is_translated_whole_even_its_long_sentence(translated_directions):
    text = (translated_directions.folder / "de-en.txt").read_text()
    sources = dict(re.findall(r"^S-(\d+)\t(.*)$", text, re.M))  # number of the sentence -> its pieces
    outputs = dict(re.findall(r"^D-(\d+)\t(.*)$", text, re.M))

    assert len(sources) == HELD_OUT + 1
    assert len(outputs) == HELD_OUT + 1
    assert len(sources[str(HELD_OUT)].split()) > LONG_SENTENCE  # numbers count from 0: this is the last one


def test_the_score_of_a_direction_counts_its_long_sentence(translated_directions, long_test_set):
    scores = score(translated_directions.folder, long_test_set, partial=True)

    assert scores["directions"]["de-en"]["sentences"] == HELD_OUT + 1


def test_the_longest_source_is_the_model_s_unless_a_flag_is_given(translated_directions, tmp_path):
    """Without the script's --max-source-positions and --max-target-positions fairseq refuses the long sentence."""
    words = without_flags(translated_directions.words, "--max-source-positions", "--max-target-positions")
    assert len(words) == len(translated_directions.words) - 4

    with pytest.raises(SystemExit, match="max_positions"):
        main([*words, "--directions", "de-en", "--out", str(tmp_path / "again")])


def test_a_direction_is_translated_as_fairseq_generate_does(translated_directions):
    _, *words = translated_directions.words  # without "generate"
    printed = run("fairseq-generate", *words, "-s", "en", "-t", "fr").stdout.splitlines()

    saved = (translated_directions.folder / "en-fr.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in printed if line in saved] == saved  # fairseq may log in between
    sources = [line for line in saved if line.startswith("S-")]
    assert len(sources) == HELD_OUT
    assert all("\t__fr__ " in line for line in sources)  # the tag of the target language


@pytest.fixture
def hydra_training(many_pairs, tmp_path):
    """Provide the command of a training of two updates by configs/opus100.yaml, whose checkpoints go to tmp_path/run.

    The model is small, on a CPU, and the data are those of both pairs.
    """
    data = many_pairs / "bin"
    pairs = ",".join(lines_of(data / "pairs.txt"))
    return (
        "fairseq-hydra-train", "--config-dir", f"{USER_DIR}/../configs", "--config-name", "opus100",
        f"hydra.run.dir={tmp_path}/hydra", "model._name=deepnet_transformer_tiny_6_6", "common.cpu=true",
        "common.fp16=false", "dataset.num_workers=0", "optimization.max_update=2",
        "distributed_training.distributed_world_size=1", f"task.data={data}", f"common.user_dir={USER_DIR}",
        f"task.lang_pairs='{pairs}'", f"checkpoint.save_dir={tmp_path}/run",
    )  # fmt: skip


@pytest.mark.smoke
def test_hydra_trains_the_task_of_many_pairs(hydra_training, tmp_path):
    """In fairseq alone the task of many pairs takes flags, and nothing from a YAML file."""
    run_cold(*hydra_training, "optimization.update_freq=[1]", "common.log_interval=1")

    assert (tmp_path / "run" / "checkpoint_last.pt").exists()


@pytest.mark.smoke
def test_hydra_refuses_a_setting_that_the_task_does_not_have(hydra_training):
    done = run_cold(*hydra_training, "+task.colour=red", check=False)

    assert done.returncode != 0
    assert "task.colour" in done.stderr
    assert "translation_multi_simple_epoch" in done.stderr
