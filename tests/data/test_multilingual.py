"""Tests of preparing many pairs with one vocabulary: the folder's content, mistakes, and fairseq's task on it."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from random import Random

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
    """Return binarised sentences as text, read with fairseq's own data and dictionary classes."""
    dictionary = Dictionary.load(str(folder / f"dict.{lang}.txt"))
    binarised = data_utils.load_indexed_dataset(str(folder / f"{stem}.{lang}"), dictionary)
    return [dictionary.string(ids, bpe_symbol="sentencepiece") for ids in binarised]


@pytest.mark.parametrize(
    ("temperature", "shares"),
    [(3, {"de": 2 / 3, "gd": 1 / 3}), (1, {"de": 8 / 9, "gd": 1 / 9})],  # 8**(1/3) = 2
)
def test_languages_are_sampled_in_the_shares_by_hand(temperature, shares):
    assert sampling_probabilities({"de": 8, "gd": 1}, temperature) == pytest.approx(shares)


def test_a_sample_holds_whole_copies_and_a_rest_without_replacement():
    drawn = Counter(sample(range(10), 10, 25, Random(1)))

    assert sum(drawn.values()) == 25
    assert {drawn[number] for number in range(10)} == {2, 3}


def numbered_pairs(source, target, count):
    """Return the text of a pair whose sentences are "LANG NUMBER"."""
    return PairText((source, target), {"train": lambda: ((f"{source} {i}", f"{target} {i}") for i in range(count))}, {})


@pytest.fixture(scope="module")
def drawn_for_the_vocabulary(tmp_path_factory):
    """Provide lang -> lines for the vocabulary, drawn at temperature 5 from 8,000 pairs de-en and 1,000 en-gd."""
    preparation = Multilingual(tmp_path_factory.mktemp("vocabulary"), 1, 100, 5.0)
    texts = [numbered_pairs("de", "en", 8000), numbered_pairs("en", "gd", 1000)]
    drawn = preparation.draw(texts, {"de-en": 8000, "en-gd": 1000})
    return {lang: list(lines) for lang, lines in drawn.items()}


def test_vocabulary_is_trained_on_languages_in_their_shares(drawn_for_the_vocabulary):
    total = sum(map(len, drawn_for_the_vocabulary.values()))
    weights = {"de": 8000**0.2, "en": 9000**0.2, "gd": 1000**0.2}  # sentences ** (1 / temperature)

    for lang, weight in weights.items():
        share = len(drawn_for_the_vocabulary[lang]) / total
        assert share == pytest.approx(weight / sum(weights.values()), abs=1e-3)
        assert all(line.startswith(lang) for line in drawn_for_the_vocabulary[lang])


def test_vocabulary_is_trained_on_a_language_s_text_of_all_its_pairs(drawn_for_the_vocabulary):
    assert len(set(drawn_for_the_vocabulary["en"])) > 4000


@pytest.mark.parametrize("pair", TRAINING_PAIRS)
@pytest.mark.parametrize("subset", ["train", "test"])
def test_data_decode_to_the_text_that_was_given(pair, subset, many_pairs_text, many_pairs):
    for lang in pair.split("-"):
        given = lines_of(many_pairs_text / pair / f"{subset}.{lang}")
        decoded = decoded_sentences(many_pairs / "bin", f"{subset}.{pair}", lang)

        same = [one == other for one, other in zip(given, decoded, strict=True)]
        assert sum(same) > 0.97 * len(same)  # a few hold characters that the vocabulary lacks


def test_a_training_pair_stands_in_for_a_missing_validation_set(many_pairs_text, many_pairs):
    first = lines_of(many_pairs_text / "en-fr" / "train.fr")[:1]

    assert decoded_sentences(many_pairs / "bin", "valid.en-fr", "fr") == first


def test_the_lists_for_fairseq_hold_languages_and_both_directions(many_pairs):
    assert lines_of(many_pairs / "bin" / "langs.txt") == ["de", "en", "fr"]
    assert lines_of(many_pairs / "bin" / "pairs.txt") == ["de-en", "en-de", "en-fr", "fr-en"]


def test_recipe_json_holds_counts_and_the_form_of_the_text(many_pairs):
    recipe = json.loads((many_pairs / "recipe.json").read_text())

    assert recipe["counts"]["train"] == sum(TRAINING_PAIRS.values())
    assert recipe["counts"]["pairs"]["de-en"] == {"train": 360, "valid": 20, "test": 20}
    assert recipe["pieces"] == "sentencepiece"
    assert recipe["detokenise"] is False
    assert recipe["lowercase"] is False


@pytest.mark.parametrize("direction", ["de-en", "en-de", "fr-en"])
def test_references_are_the_target_side_of_the_test_set(direction, many_pairs_text, many_pairs):
    source, target = direction.split("-")
    pair = "-".join(sorted([source, target]))

    given = (many_pairs_text / pair / f"test.{target}").read_text()
    assert (many_pairs / "reference" / f"test.{direction}.{target}").read_text() == given


def test_shards_have_the_given_vocabulary(many_pairs, sharded_pairs):
    assert (sharded_pairs / "spm.model").read_bytes() == (many_pairs / "spm.model").read_bytes()


@pytest.mark.parametrize("lang", ["de", "en"])
def test_shards_take_turns_in_the_sentences_of_the_data(lang, many_pairs, sharded_pairs):
    name = f"train.de-en.{lang}"
    whole = data_utils.load_indexed_dataset(str(many_pairs / "bin" / name))
    shards = [
        data_utils.load_indexed_dataset(str(sharded_pairs / "bin" / shard / name)) for shard in ("shard00", "shard01")
    ]

    assert [len(shard) for shard in shards] == [180, 180]
    for number in range(len(whole)):
        assert np.array_equal(whole[number], shards[number % 2][number // 2])


def test_the_second_shard_holds_training_text_of_the_large_pair_alone(sharded_pairs):
    files = list((sharded_pairs / "bin" / "shard01").iterdir())

    assert {file.name.split(".")[0] for file in files} == {"train"}
    assert not [file.name for file in files if "fr" in file.name]


@pytest.fixture
def own_text(many_pairs_text, tmp_path):
    """Provide a copy of the text that a test may change."""
    return shutil.copytree(many_pairs_text, tmp_path / "text")


def test_a_pair_that_comes_later_leaves_the_others_untouched(own_text, tmp_path):
    flags = ("--vocab", "200", "--pairs")
    dest = prepare_many_pairs(own_text, tmp_path / "dest", *flags, "de-en")
    files = [dest / "spm.model", *(dest / "bin").glob("*.de-en.*")]
    written = {path: path.stat().st_mtime_ns for path in files}
    assert len(written) == 1 + 3 * 4  # the model; three subsets, of two sides, in .bin and .idx

    prepare_many_pairs(own_text, dest, *flags, "en-fr")

    assert {path: path.stat().st_mtime_ns for path in files} == written
    assert lines_of(dest / "bin" / "pairs.txt") == ["de-en", "en-de", "en-fr", "fr-en"]


def test_a_lost_vocabulary_is_trained_again_as_it_was_before_a_pair_came(own_text, tmp_path):
    """On the pairs of then, and on as many of their sentences as then."""
    flags = ("--vocab", "200", "--pairs")
    dest = prepare_many_pairs(own_text, tmp_path / "dest", *flags, "de-en")
    model = (dest / "spm.model").read_bytes()

    (dest / "spm.model").unlink()
    prepare_many_pairs(own_text, dest, *flags, "en-fr")

    assert (dest / "spm.model").read_bytes() == model


def test_only_the_pair_whose_text_changed_is_prepared_again(own_text, tmp_path, capsys):
    flags = ("--vocab", "200", "--pairs")
    dest = prepare_many_pairs(own_text, tmp_path / "dest", *flags, "de-en")
    prepare_many_pairs(own_text, dest, *flags, "en-fr")  # --pairs adds to the pairs of dest
    capsys.readouterr()
    prepare_many_pairs(own_text, dest, *flags, "en-fr")
    assert capsys.readouterr().out == f"{dest}: whole\n"

    (own_text / "en-fr" / "test.en").write_text("short\n")
    (own_text / "en-fr" / "test.fr").write_text("court\n")
    prepare_many_pairs(own_text, dest, *flags, "en-fr")

    steps = capsys.readouterr().out.split("\n")
    assert "== pair.en-fr" in steps
    assert "== pair.de-en: done before" in steps
    assert "== vocabulary: done before" in steps
    assert lines_of(dest / "reference" / "test.en-fr.fr") == ["court"]


WRONG_FLAGS = {  # flags -> what the refusal is about
    ("--pairs", "de-es"): "text/de-es",
    ("--vocab", "100000"): "--vocab 100000",
    ("--temperature", "0"): "--temperature 0.0",
    ("--shards", "0"): "--shards 0",
    ("--spm", __file__): __file__,
    ("--spm", __file__, "--vocab", "9"): "--spm",
}


@pytest.mark.parametrize("flags", WRONG_FLAGS, ids=lambda flags: flags[-2])
def test_flags_that_cannot_be_are_refused(flags, own_text, tmp_path):
    dest = tmp_path / "dest"

    assert_refused(WRONG_FLAGS[flags], "prepare", "corpus", "multilingual", dest, "--from", own_text, *flags)


def test_a_pair_that_is_named_twice_is_prepared_once(own_text, tmp_path):
    dest = prepare_many_pairs(own_text, tmp_path / "dest", "--pairs", "de-en,de-en", "--vocab", "200")

    assert lines_of(dest / "bin" / "pairs.txt") == ["de-en", "en-de"]


def test_both_orders_of_a_pair_are_refused(own_text, tmp_path):
    shutil.copytree(own_text / "de-en", own_text / "en-de")

    assert_refused("de-en and en-de", "prepare", "corpus", "multilingual", tmp_path / "dest", "--from", own_text)


def test_the_other_order_of_a_pair_is_refused_in_a_later_call_too(own_text, tmp_path):
    shutil.copytree(own_text / "de-en", own_text / "en-de")
    dest = prepare_many_pairs(own_text, tmp_path / "dest", "--pairs", "de-en", "--vocab", "200")

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
    assert_refused("de-en: no sentence", "prepare", "corpus", "multilingual", tmp_path / "dest", *flags)


@pytest.fixture(scope="module")
def long_test_set(many_pairs_text, many_pairs, tmp_path_factory):
    """Provide data whose test set de-en ends with a sentence of 750 words, in more than 700 pieces a side."""
    folder = tmp_path_factory.mktemp("long")
    shutil.copytree(many_pairs_text, folder / "text")
    for lang in ("de", "en"):
        with open(folder / "text" / "de-en" / f"test.{lang}", "a") as file:
            print(*[lang] * 750, file=file)
    return prepare_many_pairs(folder / "text", folder / "dest", "--spm", str(many_pairs / "spm.model")) / "bin"


@pytest.fixture(scope="module")
def translated_directions(long_test_set, tmp_path_factory):
    """Provide (folder of outputs, words): `deepnet WORDS` has translated de-en and en-fr.

    The words are those of the script of opus100, with flags of the user behind them, for a model of one update.
    """
    out = tmp_path_factory.mktemp("translated")
    chosen = {"DEPTHS": 12, "PRECISION": "fp32", "GENERATE": "--max-len-b 4 --beam 1"}
    commands = dry_run("opus100", DATA=long_test_set, OUT=out, **chosen)
    (generate,) = [words[1:] for words in commands if words[:2] == ["deepnet", "generate"]]

    task = generate[generate.index("--task") : generate.index("--directions")]
    save = ("--max-update", "1", "--save-dir", out)
    run("fairseq-train", long_test_set, *TRAIN_FLAGS, *SMALL_MODEL, *task, *save)

    generate += ["--user-dir", USER_DIR, "--path", str(out / "checkpoint_last.pt")]
    main([*generate, "--directions", "de-en,en-fr", "--out", str(out)])
    return out, generate


def test_a_direction_is_translated_whole_even_its_long_sentence(translated_directions):
    out, _ = translated_directions
    text = (out / "de-en.txt").read_text()
    source = dict(re.findall(r"^S-(\d+)\t(.*)$", text, re.M))
    output = dict(re.findall(r"^D-(\d+)\t(.*)$", text, re.M))

    assert len(source) == HELD_OUT + 1
    assert len(output) == HELD_OUT + 1
    assert len(source[str(HELD_OUT)].split()) > 700


def test_the_score_of_a_direction_counts_its_long_sentence(translated_directions, long_test_set):
    out, _ = translated_directions

    scores = score(out, long_test_set, partial=True)

    assert scores["directions"]["de-en"]["sentences"] == HELD_OUT + 1


def test_the_longest_source_is_the_model_s_unless_a_flag_is_given(translated_directions, tmp_path):
    _, generate = translated_directions
    without_limits = generate[: generate.index("--max-source-positions")] + generate[generate.index("--max-len-b") :]

    with pytest.raises(SystemExit, match="max_positions="):
        main([*without_limits, "--directions", "de-en", "--out", str(tmp_path / "again")])


def test_a_direction_is_translated_as_fairseq_generate_does(translated_directions):
    out, generate = translated_directions
    of_fairseq = generate[1:]
    for flag in ("--directions", "--out"):  # flags of `deepnet generate`, in the script and behind it
        while flag in of_fairseq:
            place = of_fairseq.index(flag)
            del of_fairseq[place : place + 2]
    printed = run("fairseq-generate", *of_fairseq, "-s", "en", "-t", "fr").stdout.splitlines()

    saved = (out / "en-fr.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in printed if line in saved] == saved  # fairseq may log in between
    sources = [line for line in saved if line.startswith("S-")]
    assert len(sources) == HELD_OUT
    assert all("\t__fr__ " in line for line in sources)


@pytest.fixture
def hydra_training(many_pairs, tmp_path):
    """Provide the words of a training of two updates by OPUS-100's YAML, whose checkpoints go to tmp_path/run."""
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
    """The task, which fairseq knows by flags alone, takes its settings from the YAML."""
    run_cold(*hydra_training, "optimization.update_freq=[1]", "common.log_interval=1")

    assert (tmp_path / "run" / "checkpoint_last.pt").exists()


@pytest.mark.smoke
def test_hydra_refuses_a_setting_that_the_task_does_not_have(hydra_training):
    done = run_cold(*hydra_training, "+task.colour=red", check=False)

    assert done.returncode != 0
    assert "task.colour" in done.stderr
    assert "translation_multi_simple_epoch" in done.stderr
