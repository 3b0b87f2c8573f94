"""Tests of preparing many pairs with one vocabulary: the folder's content, mistakes, and fairseq's task on it."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from itertools import islice
from random import Random

import numpy as np
import pytest
from fairseq.data import Dictionary, data_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.data import multilingual
from deepnet_fairseq.data.miniature.text import translations
from deepnet_fairseq.data.multilingual import Multilingual, PairText
from deepnet_fairseq.data.vocabulary import sample, sampling_probabilities
from deepnet_fairseq.study.scoring.scores import score

from ..conftest import TRAIN_FLAGS
from ..support.experiments import dry_run
from ..support.helpers import USER_DIR, run, run_cold
from ..support.prepared import lines

LANGS = ("de", "en", "fr")
SIZES = {"de-en": 360, "en-fr": 90}
HELD_OUT = 20
NARROW = (
    "--arch", "deepnet_transformer", "--encoder-layers", "2", "--decoder-layers", "2", "--encoder-embed-dim", "32",
    "--decoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--decoder-ffn-embed-dim", "64",
    "--encoder-attention-heads", "2", "--decoder-attention-heads", "2",
)  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Provide texts FOLDER/PAIR/SUBSET.LANG; en-fr has no valid set."""
    folder, rows = tmp_path_factory.mktemp("text"), translations("many", LANGS)
    for pair, size in SIZES.items():
        (folder / pair).mkdir()
        for subset, count in {"train": size, "valid": HELD_OUT, "test": HELD_OUT}.items():
            chosen = list(islice(rows, count))
            for lang in pair.split("-") if (pair, subset) != ("en-fr", "valid") else ():
                sentences = "".join(f"{row[LANGS.index(lang)]}\n" for row in chosen)
                (folder / pair / f"{subset}.{lang}").write_text(sentences)
    return folder


def prepare(text, dest, *flags):
    main(["prepare", "corpus", "multilingual", str(dest), "--from", str(text), "--workers", "1", *flags])
    return dest


@pytest.fixture(scope="module")
def prepared(text, tmp_path_factory):
    return prepare(text, tmp_path_factory.mktemp("prepared") / "dest", "--vocab", "300")


@pytest.fixture(scope="module")
def sharded(text, prepared, tmp_path_factory):
    """Provide de-en in two shards and the small en-fr in one, with the vocabulary of `prepared`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multilingual, "LEAST", 100)
        dest = tmp_path_factory.mktemp("sharded") / "dest"
        return prepare(text, dest, "--shards", "2", "--spm", str(prepared / "spm.model"))


def sentences(folder, stem, lang):
    """Return binarised sentences as text, read with fairseq's own data and dictionary classes."""
    dictionary = Dictionary.load(str(folder / f"dict.{lang}.txt"))
    data = data_utils.load_indexed_dataset(str(folder / f"{stem}.{lang}"), dictionary)
    return [dictionary.string(ids, bpe_symbol="sentencepiece") for ids in data]


def test_sampling():
    """Sampling shares equal those by hand; a sample holds whole copies and a rest without replacement."""
    assert sampling_probabilities({"de": 8, "gd": 1}, 3) == pytest.approx({"de": 2 / 3, "gd": 1 / 3})
    assert sampling_probabilities({"de": 8, "gd": 1}, 1) == pytest.approx({"de": 8 / 9, "gd": 1 / 9})
    drawn = Counter(sample(range(10), 10, 25, Random(1)))
    assert sum(drawn.values()) == 25 and {drawn[number] for number in range(10)} == {2, 3}


def test_vocabulary_is_trained_on_languages_in_their_shares(tmp_path):
    def pair(langs, count):
        return PairText(langs, {"train": lambda: ((f"{langs[0]} {i}", f"{langs[1]} {i}") for i in range(count))}, {})

    texts = [pair(("de", "en"), 8000), pair(("en", "gd"), 1000)]
    drawn = Multilingual(tmp_path, 1, 100, 5.0).draw(texts, {"de-en": 8000, "en-gd": 1000})
    by_lang = {lang: list(lines) for lang, lines in drawn.items()}
    total = sum(map(len, by_lang.values()))
    weights = {"de": 8000**0.2, "en": 9000**0.2, "gd": 1000**0.2}
    for lang, weight in weights.items():
        assert len(by_lang[lang]) / total == pytest.approx(weight / sum(weights.values()), abs=1e-3)
        assert all(line.startswith(lang) for line in by_lang[lang])
    assert len(set(by_lang["en"])) > 4000  # the text of both pairs


def test_text_counts_and_lists(text, prepared):
    folder = prepared / "bin"
    for pair in SIZES:
        for subset in ("train", "test"):
            for lang in pair.split("-"):
                given, decoded = lines(text / pair / f"{subset}.{lang}"), sentences(folder, f"{subset}.{pair}", lang)
                same = [one == other for one, other in zip(given, decoded, strict=True)]
                assert sum(same) > 0.97 * len(same)  # a few hold characters that the vocabulary lacks
    assert sentences(folder, "valid.en-fr", "fr") == lines(text / "en-fr" / "train.fr")[:1]  # in place of a valid set
    assert lines(folder / "langs.txt") == ["de", "en", "fr"]
    assert lines(folder / "pairs.txt") == ["de-en", "en-de", "en-fr", "fr-en"]
    summary = json.loads((prepared / "recipe.json").read_text())
    assert summary["counts"]["train"] == sum(SIZES.values())
    assert summary["counts"]["pairs"]["de-en"] == {"train": 360, "valid": 20, "test": 20}
    assert (summary["pieces"], summary["detokenise"], summary["lowercase"]) == ("sentencepiece", False, False)
    for pair, target in (("de-en", "en"), ("en-de", "de"), ("fr-en", "en")):
        given = text / "-".join(sorted(pair.split("-"))) / f"test.{target}"
        assert (prepared / "reference" / f"test.{pair}.{target}").read_text() == given.read_text()


def test_shards_together_are_the_data(prepared, sharded):
    assert (sharded / "spm.model").read_bytes() == (prepared / "spm.model").read_bytes()
    folders = [sharded / "bin" / name for name in ("shard00", "shard01")]
    for lang in ("de", "en"):
        whole, *parts = (
            data_utils.load_indexed_dataset(str(folder / f"train.de-en.{lang}"))
            for folder in (prepared / "bin", *folders)
        )
        assert [len(part) for part in parts] == [180, 180]
        for number in range(len(whole)):
            assert np.array_equal(whole[number], parts[number % 2][number // 2])
    held = {path.name.split(".")[0] for path in folders[1].iterdir()}
    assert held == {"train"} and not list(folders[1].glob("*fr*"))


def test_a_pair_that_comes_later_and_text_that_changes_leave_the_others(text, tmp_path, capsys):
    copy, flags = shutil.copytree(text, tmp_path / "text"), ("--vocab", "200", "--pairs")
    dest = prepare(copy, tmp_path / "dest", *flags, "de-en")
    before = {path: path.stat().st_mtime_ns for path in [dest / "spm.model", *(dest / "bin").glob("*.de-en.*")]}
    assert len(before) == 1 + 3 * 4
    prepare(copy, dest, *flags, "en-fr")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert lines(dest / "bin" / "pairs.txt") == ["de-en", "en-de", "en-fr", "fr-en"]
    capsys.readouterr()
    prepare(copy, dest, *flags, "en-fr")
    assert capsys.readouterr().out == f"{dest}: whole\n"
    for lang, line in (("en", "short"), ("fr", "court")):
        (copy / "en-fr" / f"test.{lang}").write_text(f"{line}\n")
    prepare(copy, dest, *flags, "en-fr")
    out = capsys.readouterr().out
    assert "== pair.en-fr\n" in out and "== pair.de-en: done before" in out and "== vocabulary: done before" in out
    assert lines(dest / "reference" / "test.en-fr.fr") == ["court"]


WRONG_FLAGS = {
    ("--pairs", "de-es"): "de-es: no such folder",
    ("--vocab", "100000"): r"--vocab 100000: this text supports at most \d+",
    ("--temperature", "0"): r"--temperature 0\.0: must be above 0",
    ("--shards", "0"): "--shards 0: must be 1 or more",
    ("--spm", __file__): "no SentencePiece model",
    ("--spm", __file__, "--vocab", "9"): "leave out --vocab",
}


@pytest.mark.parametrize("flags", WRONG_FLAGS, ids=lambda flags: flags[-2])
def test_flags_that_cannot_be(flags, text, tmp_path):
    with pytest.raises(SystemExit, match=WRONG_FLAGS[flags]):
        prepare(text, tmp_path / "dest", *flags)


def test_both_orders_of_a_pair_and_a_side_without_text_are_refused(text, tmp_path):
    """Two orders of one pair, at once or in later calls, and a side without text are refused."""
    for pair in ("de-en", "en-de", "zh-Hans-en"):
        shutil.copytree(text / "de-en", tmp_path / "text" / pair)
    prepare(tmp_path / "text", tmp_path / "dest", "--pairs", "de-en,de-en", "--vocab", "200")
    for lang in ("de", "en"):
        (tmp_path / "text" / "de-en" / f"train.{lang}").write_text("")
    for dest, flags, message in (
        ("dest", ("--pairs", "en-de"), "de-en and en-de: a pair gives both directions; put all .* into de-en"),
        ("other", (), "de-en and en-de: a pair gives both directions"),
        ("other", ("--pairs", "zh-Hans-en"), "splits it at each hyphen; write _ within a code"),
        ("other", ("--pairs", "de-en"), "de-en: no sentence pair in train"),
    ):
        with pytest.raises(SystemExit, match=message):
            prepare(tmp_path / "text", tmp_path / dest, *flags)


def test_directions_are_translated_as_fairseq_does_and_no_sentence_is_too_long(text, prepared, tmp_path):
    """Directions are translated as by fairseq-generate, a line for each sentence, even with 1,500 pieces.

    The user's flags come after the script's.
    """
    shutil.copytree(text, tmp_path / "text")
    for lang in ("de", "en"):
        with open(tmp_path / "text" / "de-en" / f"test.{lang}", "a") as file:
            print(*[lang] * 750, file=file)
    folder, out = prepare(tmp_path / "text", tmp_path / "long", "--spm", str(prepared / "spm.model")) / "bin", tmp_path
    chosen = {"DEPTHS": 12, "PRECISION": "fp32", "GENERATE": "--max-len-b 4 --beam 1"}
    commands = dry_run("opus100", DATA=folder, OUT=tmp_path, **chosen)
    (words,) = [words for words in commands if words[:2] == ["deepnet", "generate"]]
    task = [folder, *TRAIN_FLAGS, *NARROW, *words[words.index("--task") : words.index("--directions")]]
    run("fairseq-train", *task, "--max-update", "1", "--save-dir", out)
    words += ["--user-dir", USER_DIR, "--path", str(out / "checkpoint_last.pt")]
    main([*words[1:], "--directions", "de-en,en-fr", "--out", str(out)])
    source, output = (dict(re.findall(rf"^{tag}-(\d+)\t(.*)$", (out / "de-en.txt").read_text(), re.M)) for tag in "SD")
    assert len(source) == len(output) == HELD_OUT + 1 and len(source[str(HELD_OUT)].split()) > 700
    assert score(out, folder, partial=True)["directions"]["de-en"]["sentences"] == HELD_OUT + 1
    short = words[: words.index("--max-source-positions")] + words[words.index("--max-len-b") :]
    with pytest.raises(SystemExit, match="since max_positions="):  # the model's, unless a flag is given
        main([*short[1:], "--directions", "de-en", "--out", str(tmp_path / "again")])
    ours = {"--directions", "--out"}
    words = [word for word, before in zip(words[2:], words[1:], strict=False) if not ours & {word, before}]
    printed = run("fairseq-generate", *words, "-s", "en", "-t", "fr").stdout.splitlines()
    saved = (out / "en-fr.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in printed if line in saved] == saved  # fairseq may log in between
    asked = [line for line in saved if line.startswith("S-")]
    assert len(asked) == HELD_OUT and all("\t__fr__ " in line for line in asked)


def test_the_task_under_hydra(prepared, tmp_path):
    """fairseq-hydra-train trains OPUS-100's YAML: the task, which fairseq knows by flags alone, takes its settings."""
    folder = prepared / "bin"
    small = (
        "model._name=deepnet_transformer_tiny_6_6", "common.cpu=true", "common.fp16=false", "dataset.num_workers=0",
        "optimization.max_update=2", "distributed_training.distributed_world_size=1", f"task.data={folder}",
    )  # fmt: skip
    pairs = ",".join(lines(folder / "pairs.txt"))
    config = ("--config-dir", f"{USER_DIR}/../configs", "--config-name", "opus100", f"hydra.run.dir={tmp_path}/hydra")
    settings = (f"common.user_dir={USER_DIR}", f"task.lang_pairs='{pairs}'", f"checkpoint.save_dir={tmp_path}/run")
    run_cold("fairseq-hydra-train", *config, *small, *settings, "optimization.update_freq=[1]", "common.log_interval=1")
    assert (tmp_path / "run" / "checkpoint_last.pt").exists()
    wrong = run_cold("fairseq-hydra-train", *config, *small, *settings, "+task.colour=red", check=False)
    assert wrong.returncode != 0 and "task.colour: translation_multi_simple_epoch has no such setting" in wrong.stderr
