"""Tests of the bilingual recipes, on miniatures of the published archives and on a user's own tokenised text.

A recipe keeps the text of each of its stages in DEST/text/STAGE: tokenised (by Moses), clean, split (validation pairs
held out), pieces (of BPE). Tests marked `smoke` build whole miniatures.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from fairseq.data import Dictionary, data_utils

from deepnet_fairseq.data import bilingual
from deepnet_fairseq.data.archive import stream_lines
from deepnet_fairseq.data.language import make_corpus
from deepnet_fairseq.data.lines import write_columns
from deepnet_fairseq.data.miniature import bilingual as miniature
from deepnet_fairseq.data.miniature import write
from deepnet_fairseq.data.moses import Chain, Limits, clean, line_function
from deepnet_fairseq.data.recipes import RECIPES, Options
from deepnet_fairseq.data.recipes.bilingual import published_segments
from deepnet_fairseq.data.recipes.wmt import FRENCH, GERMAN
from deepnet_fairseq.tools.translation.pieces import MosesPieces
from deepnet_fairseq.tools.translation.text import find_chain

from ..support.errors import assert_refused, refused
from ..support.prepared import corpus_files, kill_at_step, lines_of

smoke = pytest.mark.smoke
IWSLT = RECIPES["iwslt14_de_en"]
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
VALID_EVERY = 23  # IWSLT-14 holds every 23rd clean pair out for validation
# Sentence pairs of IWSLT-14's miniature. Training text has a title and a description for each talk, and three pairs in
# some talks that cleaning has to drop; test sets have sentences alone.
CLEAN = miniature.TALKS * (2 + miniature.TALK_SENTENCES)  # 6,000
UNCLEANED = CLEAN + 3 * miniature.SPOILT_TALKS  # 6,060
HELD_OUT = CLEAN // VALID_EVERY  # 260
TESTED = len(TEST_SETS) * miniature.TEST_TALKS * miniature.TEST_SENTENCES  # 300
SUBSETS = {"train": CLEAN - HELD_OUT, "valid": HELD_OUT, "test": TESTED}
# Limits of cleaning: ratio of lengths, shortest and longest sentence
WMT17_LIMITS = Limits(1.5, 1, 250)  # pieces, of fairseq's prepare-wmt14en2de.sh
WMT14_LIMITS = Limits(9, 1, 80)  # words, of the authors of Admin (Liu et al. 2020)
WMT_CHAIN = Chain(normalise=True, aggressive=True)  # Moses' scripts that both apply to training and validation text


def copy_text(langs, texts, dest, workers, dictionary=None):
    """Copy text in pieces to `dest` in place of binarising it; return made-up counts in the form of binarise's."""
    for subset, prefix in texts.items():
        for lang in langs:
            shutil.copy(f"{prefix}.{lang}", dest / f"{subset}.{lang}")
    (dest / f"dict.{langs[0]}.txt").write_text("word 1\n")
    count = {"sentences": 1, "pieces": 1, "unknown": 0.0}
    return {"types": 8, "text": {subset: dict.fromkeys(langs, count) for subset in texts}}


def build_without_binarising(recipe, options):
    """Build a corpus whose bin/ holds the text in pieces, for tests that do not need binarised data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bilingual, "binarise", copy_text)
        RECIPES[recipe].build(options)


def paired_lines(folder, subset, langs=("en", "de")):
    """Return the sentence pairs of a subset."""
    source, target = langs
    return list(zip(lines_of(folder / f"{subset}.{source}"), lines_of(folder / f"{subset}.{target}"), strict=True))


def without_bpe(pieces):
    """Return lines in which the pieces of subword-nmt are joined to words again."""
    return [line.replace("@@ ", "") for line in pieces]


@pytest.fixture(scope="module")
def iwslt_options(tmp_path_factory):
    """Provide the options of a build of IWSLT-14's miniature.

    The name of its folder has a blank, and a comma, at which fairseq's flags split prefixes.
    """
    dest = tmp_path_factory.mktemp("with blank") / "iwslt, 14"
    return Options(dest, dest / "downloads", fetch=write, workers=2)


@pytest.fixture(scope="module")
def iwslt(iwslt_options):
    """Provide the folder of an uninterrupted build of IWSLT-14's miniature."""
    IWSLT.build(iwslt_options)
    return iwslt_options.dest


@pytest.fixture(scope="module")
def published_files(iwslt):
    """Provide path -> text of the files in the miniature of IWSLT-14's archive."""
    with tarfile.open(iwslt / "downloads" / "de-en.tgz") as tar:
        return {member.name: tar.extractfile(member).read().decode() for member in tar if member.isfile()}


@pytest.fixture(params=["de", "en"])
def lang(request):
    """Provide German, then English, so that a test is run for the text in each."""
    return request.param


@pytest.fixture
def iwslt_references(iwslt, lang):
    """Provide IWSLT-14's references in the language, the published sentences of the test set."""
    direction = {"de": "en-de", "en": "de-en"}[lang]
    return lines_of(iwslt / "reference" / f"test.{direction}.{lang}")


@smoke
def test_iwslt14_tokenises_the_talks_without_their_tags(iwslt, published_files, lang):
    moses = line_function(lang, Chain(lowercase=True))
    published = published_files[f"de-en/train.tags.de-en.{lang}"].split("\n")[:-1]
    tagged = [line for line in published if not re.match("<(url|keywords|talkid)>", line)]
    text = [re.sub("</?(title|description)>", "", line) for line in tagged]

    tokenised = lines_of(iwslt / "text" / "tokenised" / f"train.{lang}")

    assert len(text) == UNCLEANED
    assert len(tokenised) == UNCLEANED
    assert tokenised[:60] == [moses(line) for line in text[:60]]  # the first talk and more, for speed


@smoke
def test_iwslt14_trains_on_the_pairs_that_are_fit_but_every_23rd(iwslt, lang):
    fit = lines_of(iwslt / "text" / "clean" / f"train.{lang}")

    assert len(fit) == CLEAN
    assert lines_of(iwslt / "text" / "split" / f"valid.{lang}") == fit[22::23]  # the 23rd, the 46th, ...
    others = [line for number, line in enumerate(fit, 1) if number % VALID_EVERY != 0]
    assert lines_of(iwslt / "text" / "split" / f"train.{lang}") == others


@smoke
def test_iwslt14_tests_on_the_segments_of_five_published_sets(published_files, iwslt_references, lang):
    expected = []
    for name in TEST_SETS:
        root = ElementTree.fromstring(published_files[f"de-en/IWSLT14.{name}.de-en.{lang}.xml"].encode())
        expected += [" ".join(segment.text.split()) for segment in root.iter("seg")]

    assert len(expected) == TESTED
    assert [html.unescape(line) for line in iwslt_references] == expected  # XML's entities stay in references
    assert any("’" in line for line in iwslt_references)  # ’ stays too, although tokenising replaces it


@smoke
def test_iwslt14_tokenises_the_test_set_with_plain_apostrophes(iwslt, iwslt_references, lang):
    """fairseq's prepare-iwslt14.sh replaces ’ in test sets alone."""
    moses = line_function(lang, Chain(lowercase=True))

    expected = [moses(line.replace("’", "'")) for line in iwslt_references]
    assert lines_of(iwslt / "text" / "tokenised" / f"test.{lang}") == expected


@smoke
@pytest.mark.parametrize(("subset", "stage"), [("train", "split"), ("valid", "split"), ("test", "tokenised")])
def test_iwslt14_pieces_join_to_the_tokenised_text(iwslt, lang, subset, stage):
    pieces = lines_of(iwslt / "text" / "pieces" / f"{subset}.{lang}")

    assert any("@@ " in line for line in pieces)
    assert without_bpe(pieces) == lines_of(iwslt / "text" / stage / f"{subset}.{lang}")


@smoke
def test_deepnet_translate_cuts_text_as_iwslt14_cuts_it(iwslt, iwslt_references, lang):
    chain = find_chain(str(iwslt / "bin"))  # Moses' scripts of the recipe
    translate = MosesPieces(iwslt / "bin" / "codes", source=lang, target=lang, chain=chain)  # the target is not used

    # the recipe replaces ’ in its test set, and deepnet translate does not
    cut = [" ".join(translate.cut(line.replace("’", "'"))) for line in iwslt_references]

    assert cut == lines_of(iwslt / "text" / "pieces" / f"test.{lang}")


@smoke
def test_recipe_json_says_how_the_text_was_prepared(iwslt):
    recipe = json.loads((iwslt / "recipe.json").read_text())

    assert recipe["recipe"] == "iwslt14_de_en"
    assert recipe["miniature"] is True
    assert recipe["pieces"] == "subword_nmt"
    assert recipe["detokenise"] is True
    assert recipe["lowercase"] is True


@smoke
@pytest.mark.parametrize("subset", SUBSETS)
def test_recipe_json_counts_the_binarised_sentences(iwslt, subset, lang):
    """The last binarised sentence is the last line of the text in pieces."""
    recipe = json.loads((iwslt / "recipe.json").read_text())
    dictionary = Dictionary.load(str(iwslt / "bin" / "dict.de.txt"))
    binarised = data_utils.load_indexed_dataset(str(iwslt / "bin" / f"{subset}.de-en.{lang}"), dictionary)
    pieces = lines_of(iwslt / "text" / "pieces" / f"{subset}.{lang}")

    assert recipe["counts"][subset] == SUBSETS[subset]
    assert len(binarised) == SUBSETS[subset]
    last_sentence = dictionary.string(binarised[SUBSETS[subset] - 1])
    assert last_sentence == pieces[-1]


@smoke
def test_recipe_json_counts_the_distinct_pieces_of_both_languages(iwslt):
    recipe = json.loads((iwslt / "recipe.json").read_text())
    pieces = set()
    for lang in ("de", "en"):
        for line in lines_of(iwslt / "text" / "pieces" / f"train.{lang}"):
            pieces.update(line.split())

    assert recipe["counts"]["types joined"] == len(pieces)


@smoke
def test_a_miniature_has_the_bpe_merges_of_its_recipe(iwslt):
    header, *merges = (iwslt / "bin" / "codes").read_text().splitlines()

    assert header.startswith("#version")
    assert len(merges) == IWSLT.miniature_vocab


@pytest.fixture(scope="module")
def iwslt_after_kills(iwslt_options, tmp_path_factory):
    """Provide the folder of a build that was killed at four successive steps, and then went to its end."""
    dest = tmp_path_factory.mktemp("killed") / "dest"
    options = replace(iwslt_options, dest=dest, downloads=dest / "downloads", workers=1)
    for step in ("download", "tokenise.train", "learn-bpe", "binarise"):
        kill_at_step(step, lambda: IWSLT.build(options))
        assert not (dest / "recipe.json").exists()
    IWSLT.build(options)
    return dest


@smoke
def test_a_build_that_was_killed_gives_the_corpus_of_an_uninterrupted_one(iwslt, iwslt_after_kills):
    assert corpus_files(iwslt_after_kills) == corpus_files(iwslt)
    assert not list(iwslt_after_kills.rglob("*.part"))


@smoke
def test_a_corpus_is_complete_without_its_text_and_downloads(iwslt, iwslt_options, tmp_path, capsys):
    """A further build of such a corpus does nothing."""
    copy = tmp_path / "copy"
    shutil.copytree(iwslt, copy, ignore=shutil.ignore_patterns("text", "downloads"))

    IWSLT.build(replace(iwslt_options, dest=copy, downloads=copy / "downloads"))

    assert "==" not in capsys.readouterr().out  # "==" announces a step
    assert not (copy / "text").exists()
    assert not (copy / "downloads").exists()
    assert corpus_files(copy) == corpus_files(iwslt)


def assert_tokenised_as_published(tokenised, lang, folder, members):
    """Check that lines are those of published archives, one after another, normalised and tokenised by Moses' rules.

    folder: of the downloaded archives
    members: archive, a RemoteFile -> path of the text in it, with {} in the place of the language
    """
    published = []
    for archive, member in members.items():
        published += stream_lines(folder / archive.name, member.format(lang))
    moses = line_function(lang, WMT_CHAIN)

    assert len(tokenised) == len(published)
    assert tokenised[::50] == [moses(line) for line in published[::50]]  # one line in 50, for speed


@pytest.fixture(scope="module")
def wmt_german(tmp_path_factory):
    """Provide a folder of WMT's archives, with the corpora made of them in wmt17_en_de/ and wmt14_en_de/."""
    folder = tmp_path_factory.mktemp("wmt")
    for name in ("wmt17_en_de", "wmt14_en_de"):
        build_without_binarising(name, Options(folder / name, folder, fetch=write, workers=2))
    return folder


@smoke
def test_wmt17_holds_the_text_of_its_archives_in_order(wmt_german, lang):
    tokenised = lines_of(wmt_german / "wmt17_en_de" / "text" / "tokenised" / f"train.{lang}")

    assert_tokenised_as_published(tokenised, lang, wmt_german, GERMAN)


@smoke
def test_wmt17_validates_on_every_100th_pair(wmt_german, lang):
    text = wmt_german / "wmt17_en_de" / "text"

    tokenised = lines_of(text / "tokenised" / f"train.{lang}")
    assert lines_of(text / "split" / f"valid.{lang}") == tokenised[99::100]


@smoke
def test_wmt17_cleans_text_in_pieces_as_fairseq_s_script_does(wmt_german):
    corpus = wmt_german / "wmt17_en_de"
    in_pieces = paired_lines(corpus / "text" / "pieces", "train")

    fit = list(clean(in_pieces, WMT17_LIMITS))
    assert len(fit) < len(in_pieces)
    assert paired_lines(corpus / "bin", "train") == fit


@smoke
def test_wmt14_cleans_tokenised_text_as_the_authors_of_admin_do(wmt_german):
    tokenised = paired_lines(wmt_german / "wmt14_en_de" / "text" / "tokenised", "train")

    fit = list(clean(tokenised, WMT14_LIMITS))
    assert len(fit) < len(tokenised)
    assert paired_lines(wmt_german / "wmt14_en_de" / "text" / "clean", "train") == fit


@smoke
def test_wmt14_validates_on_newstest2013(wmt_german):
    moses = line_function("de", WMT_CHAIN)
    published = stream_lines(wmt_german / "dev.tgz", "dev/newstest2013.de")

    pieces = lines_of(wmt_german / "wmt14_en_de" / "bin" / "valid.de")
    assert without_bpe(pieces) == [moses(line) for line in published]


@pytest.fixture(scope="module")
def wmt_french(tmp_path_factory):
    """Provide a folder of WMT's archives, with the corpus made of them in wmt14_en_fr/."""
    folder = tmp_path_factory.mktemp("wmt")
    build_without_binarising("wmt14_en_fr", Options(folder / "wmt14_en_fr", folder, fetch=write, workers=2))
    return folder


@smoke
def test_wmt14_english_french_holds_its_five_corpora_in_order(wmt_french):
    """The last corpus, giga-fren, is a tar of gzipped files."""
    tokenised = lines_of(wmt_french / "wmt14_en_fr" / "text" / "tokenised" / "train.fr")

    assert_tokenised_as_published(tokenised, "fr", wmt_french, FRENCH)


@smoke
def test_wmt14_english_french_validates_on_every_1333rd_pair(wmt_french):
    text = wmt_french / "wmt14_en_fr" / "text"

    tokenised = lines_of(text / "tokenised" / "train.fr")
    assert lines_of(text / "split" / "valid.fr") == tokenised[1332::1333]


@smoke
def test_wmt14_english_french_tests_on_the_published_newstest2014(wmt_french):
    sgml = stream_lines(wmt_french / "test-full.tgz", "test-full/newstest2014-fren-ref.fr.sgm")
    published = list(published_segments(sgml))

    assert len(published) == miniature.HELD_OUT
    assert lines_of(wmt_french / "wmt14_en_fr" / "reference" / "test.en-fr.fr") == published


TEXT_PAIRS = {"train": 800, "valid": 40, "test": 30, "test.old": 30}  # of the user's text in the next fixture


@pytest.fixture
def tokenised_text(tmp_path):
    """Provide a folder of a user's tokenised text: train, valid, and two test sets, test and test.old, of equal text.

    Behind the 800 training pairs stands one that is not fit for training: one side is six times as long as the other.
    """
    folder = tmp_path / "my text"
    corpus = make_corpus({"train": TEXT_PAIRS["train"], "valid": TEXT_PAIRS["valid"], "test": TEXT_PAIRS["test"]})
    corpus["train"].append(("a b c d e f", "a"))
    for name, pairs in (corpus | {"test.old": corpus["test"]}).items():
        write_columns([folder / f"{name}.de", folder / f"{name}.en"], pairs)
    return folder


def options_for(text, dest, vocab=60, workers=1):
    """Return the options of a corpus in `dest` of a user's tokenised text.

    vocab: number of BPE merges to learn, None if the text comes with merges
    """
    return Options(dest, dest / "downloads", text=text, vocab=vocab, workers=workers)


@pytest.fixture
def corpus_of_tokenised_text(tokenised_text, tmp_path):
    """Provide the folder of a corpus of the user's text, by the recipe of IWSLT-14; bin/ has the text in pieces."""
    dest = tmp_path / "corpus"
    build_without_binarising("iwslt14_de_en", options_for(tokenised_text, dest))
    return dest


def test_tokenised_text_is_cleaned_as_iwslt14_is(tokenised_text, corpus_of_tokenised_text):
    """A pair is kept if neither side has more than 1.5 times the words of the other.

    The other limit is 175 words a sentence, which no sentence exceeds.
    """
    fit = 0
    for source, target in paired_lines(tokenised_text, "train", langs=("de", "en")):
        shorter, longer = sorted((len(source.split()), len(target.split())))
        if longer <= 1.5 * shorter:
            fit += 1

    assert TEXT_PAIRS["train"] - 100 < fit <= TEXT_PAIRS["train"]  # most pairs, and not the last one
    for lang in ("de", "en"):
        assert len(lines_of(corpus_of_tokenised_text / "bin" / f"train.{lang}")) == fit


def test_recipe_json_names_the_test_sets_of_tokenised_text(corpus_of_tokenised_text):
    recipe = json.loads((corpus_of_tokenised_text / "recipe.json").read_text())

    assert recipe["subsets"] == {"train": "train", "valid": "valid", "test": "test", "test1": "test.old"}
    assert recipe["files"] == {}


def test_tokenised_text_has_no_references(corpus_of_tokenised_text):
    """References are text that is not tokenised. How the user's text was before it was tokenised is unknown."""
    assert (corpus_of_tokenised_text / "bin" / "test.de").exists()
    assert not (corpus_of_tokenised_text / "reference").exists()


def test_references_of_an_earlier_corpus_in_the_folder_are_removed(tokenised_text, corpus_of_tokenised_text):
    dest = corpus_of_tokenised_text
    (dest / "reference").mkdir()

    build_without_binarising("iwslt14_de_en", options_for(tokenised_text, dest, vocab=50))

    assert not (dest / "reference").exists()


@pytest.fixture
def text_with_merges_and_dictionary(tokenised_text):
    """Provide the user's text with BPE merges of his own, and with a dictionary.

    The only merge never occurs, so pieces are letters. The dictionary has the letters of the training text. Each line
    of the test set is "ж ж", of a letter that the dictionary lacks. Each line of test.old has words that look like
    fairseq's special symbols.
    """
    (tokenised_text / "codes").write_text("#version: 0.2\nq q\n")
    training = lines_of(tokenised_text / "train.de") + lines_of(tokenised_text / "train.en")
    letters = sorted(set("".join(training)) - {" "})
    entries = [f"{letter} 1\n{letter}@@ 1\n" for letter in letters]  # at the end of a word, and within one
    (tokenised_text / "dict.txt").write_text("".join(entries))

    for lang in ("de", "en"):
        (tokenised_text / f"test.{lang}").write_text("ж ж\n" * TEXT_PAIRS["test"])
        (tokenised_text / f"test.old.{lang}").write_text("<unk> </s> <unk>\n" * TEXT_PAIRS["test.old"])
    return tokenised_text


def test_a_plan_for_tokenised_text_names_its_files_and_no_number_of_the_corpus(text_with_merges_and_dictionary):
    """The recipe of IWSLT-14 expects 160,239 training pairs, holds out one in 23, and learns 10,000 merges."""
    options = options_for(text_with_merges_and_dictionary, text_with_merges_and_dictionary / "d", vocab=None)

    plan = IWSLT.plan(options)

    assert str(text_with_merges_and_dictionary / "codes") in plan
    for number in ("160,239", " 23 ", "10,000"):
        assert number not in plan
        assert number in IWSLT.plan(replace(options, text=None))


def test_a_given_dictionary_is_used_for_all_text(text_with_merges_and_dictionary, tmp_path):
    IWSLT.build(options_for(text_with_merges_and_dictionary, tmp_path / "d", vocab=None))  # there are merges already

    given = (text_with_merges_and_dictionary / "dict.txt").read_text()
    assert (tmp_path / "d" / "bin" / "dict.de.txt").read_text() == given
    assert (tmp_path / "d" / "bin" / "test1.de-en.en.bin").exists()  # of test.old


def test_pieces_that_a_given_dictionary_lacks_are_counted(text_with_merges_and_dictionary, tmp_path, capsys):
    IWSLT.build(options_for(text_with_merges_and_dictionary, tmp_path / "d", vocab=None))

    recipe = json.loads((tmp_path / "d" / "recipe.json").read_text())
    # a line has three symbols: ж twice, which is unknown, and the end of the sentence
    expected = {"sentences": 30, "pieces": 2 * 30, "unknown": pytest.approx(100 * 2 / 3, abs=0.05)}
    assert recipe["counts"]["text"]["test"]["de"] == expected
    assert "66.7%" in capsys.readouterr().out


def test_special_symbols_of_fairseq_among_the_words_give_a_warning(text_with_merges_and_dictionary, tmp_path, capsys):
    IWSLT.build(options_for(text_with_merges_and_dictionary, tmp_path / "d", vocab=None))

    (warning,) = [line for line in capsys.readouterr().out.split("\n") if "WARNING" in line]
    assert "'<unk>': 120" in warning  # twice in each of 30 lines of two languages
    assert "'</s>': 60" in warning


def remover_of(*names):
    """Return a function that removes files of a folder."""

    def remove(folder):
        for name in names:
            (folder / name).unlink()

    return remove


def writer_of(name, content):
    """Return a function that writes a file of a folder."""
    return lambda folder: (folder / name).write_bytes(content)


class Spoilt(NamedTuple):
    """User's text that cannot be used.

    spoil: function that spoils its folder. subject: what the refusal is about. facts: what it names besides. vocab: of
    the command, None where the folder has BPE merges
    """

    spoil: Callable[[Path], object]
    subject: str
    facts: tuple[str, ...] = ()
    vocab: int | None = 60


SPOILT = {
    "one side is missing": Spoilt(remover_of("train.en"), "train.en"),
    "both sides are missing": Spoilt(remover_of("valid.de", "valid.en"), "--from", ("valid.de", "valid.en")),
    "unequal sides": Spoilt(writer_of("test.old.de", b"a\nb\n"), "test.old.de", (" 2 ", "test.old.en", " 30 ")),
    "text in pieces": Spoilt(writer_of("test.de", b"a@@ b\n" * 30), "test.de, line 1"),
    "merges that are not UTF-8": Spoilt(writer_of("codes", b"#version: 0.2\na \xff\n"), "codes, line 2", vocab=None),
    "a dictionary without merges": Spoilt(writer_of("dict.txt", b"a 1\n"), "dict.txt", ("codes",)),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_spoilt_text_is_refused_before_data_are_made(kind, tokenised_text, tmp_path):
    spoilt = SPOILT[kind]
    spoilt.spoil(tokenised_text)

    with refused(tokenised_text, spoilt.subject) as caught:
        IWSLT.build(options_for(tokenised_text, tmp_path / "d", vocab=spoilt.vocab))

    for fact in spoilt.facts:
        assert fact in str(caught.value)
    assert not (tmp_path / "d" / "bin").exists()


class Mistake(NamedTuple):
    """Recipe and flags of `deepnet prepare corpus` that are refused, and what the refusal names."""

    recipe: str
    flags: tuple[str, ...]
    named: str


MISTAKES = [
    Mistake("nope", (), named="recipe nope"),
    Mistake("iwslt14_de_en", ("--from", "nowhere"), named="--from nowhere"),
    Mistake("iwslt14_de_en", ("--pairs", "de-en"), named="--pairs"),  # the recipe has one pair
    Mistake("multilingual", (), named="--from"),  # the text is the user's, in a folder that --from names
    Mistake("opus100", ("--pairs", "de-xx"), named="--pairs de-xx"),
    Mistake("m2m102", ("--plan",), named="--pairs"),  # --pairs is required: all pairs are too many
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: " ".join([mistake.recipe, *mistake.flags]))
def test_a_mistaken_recipe_or_flag_is_named(mistake, tmp_path):
    assert_refused(mistake.named, "prepare", "corpus", mistake.recipe, tmp_path / "d", *mistake.flags)


PUBLISHED = 160_239  # training pairs of IWSLT-14, which fairseq's prepare-iwslt14.sh gives


def test_the_published_number_of_pairs_gives_no_warning(tmp_path, capsys):
    IWSLT.check_count(Options(tmp_path, tmp_path), "train", PUBLISHED)

    printed = capsys.readouterr().out
    assert "160,239" in printed
    assert "WARNING" not in printed


def test_a_number_of_pairs_less_than_1_percent_off_gives_a_warning(tmp_path, capsys):
    IWSLT.check_count(Options(tmp_path, tmp_path), "train", PUBLISHED + 1602)  # 1% are 1602.39

    printed = capsys.readouterr().out
    assert "WARNING" in printed
    assert "160,239" in printed


def test_a_number_of_pairs_more_than_1_percent_off_is_refused(tmp_path):
    with refused("train") as caught:
        IWSLT.check_count(Options(tmp_path, tmp_path), "train", PUBLISHED + 1603)  # 1% are 1602.39

    assert "161,842" in caught.value.way_out
    assert "160,239" in caught.value.way_out
