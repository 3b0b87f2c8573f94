"""Tests of the bilingual recipes, on miniatures of the published archives and on tokenised text."""

import html
import json
import re
import shutil
import tarfile
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from fairseq.data import Dictionary, data_utils

from deepnet_fairseq.data import bilingual
from deepnet_fairseq.data.archive import stream_lines
from deepnet_fairseq.data.language import make_corpus
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
# of IWSLT-14's miniature
TALKS = 6060  # lines of its training text
FIT_PAIRS = 6000  # of them are fit for training
SUBSETS = {"train": 5740, "valid": 260, "test": 300}  # sentence pairs: every 23rd of the fit ones is for validation


def copy_text(langs, texts, dest, workers, dictionary=None):
    """Copy text in place of binarising it, for tests that do not need binarised data."""
    for subset, prefix in texts.items():
        for lang in langs:
            shutil.copy(f"{prefix}.{lang}", dest / f"{subset}.{lang}")
    (dest / f"dict.{langs[0]}.txt").write_text("word 1\n")
    count = {"sentences": 1, "pieces": 1, "unknown": 0.0}
    return {"types": 8, "text": {subset: dict.fromkeys(langs, count) for subset in texts}}


def build_without_binarising(recipe, options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bilingual, "binarise", copy_text)
        RECIPES[recipe].build(options)


def paired_lines(folder, subset, langs=("en", "de")):
    """Return the sentence pairs of a subset."""
    return list(zip(*(lines_of(folder / f"{subset}.{lang}") for lang in langs), strict=True))


def without_bpe(pieces):
    return [line.replace("@@ ", "") for line in pieces]


@pytest.fixture(scope="module")
def iwslt_options(tmp_path_factory):
    """Provide the options of an uninterrupted build."""
    dest = tmp_path_factory.mktemp("with blank") / "iwslt, 14"  # with a comma too, which ends a prefix in fairseq
    return Options(dest, dest / "downloads", fetch=write, workers=2)


@pytest.fixture(scope="module")
def iwslt(iwslt_options):
    """Provide the folder of an uninterrupted build of IWSLT-14's miniature."""
    IWSLT.build(iwslt_options)
    return iwslt_options.dest


@pytest.fixture(scope="module")
def published_files(iwslt):
    """Provide member -> text of the archive."""
    with tarfile.open(iwslt / "downloads" / "de-en.tgz") as tar:
        return {member.name: tar.extractfile(member).read().decode() for member in tar if member.isfile()}


@pytest.fixture(params=["de", "en"])
def lang(request):
    return request.param


@pytest.fixture
def iwslt_references(iwslt, lang):
    """Provide the references of the direction into the language."""
    direction = {"de": "en-de", "en": "de-en"}[lang]
    return lines_of(iwslt / "reference" / f"test.{direction}.{lang}")


@smoke
def test_iwslt14_tokenises_the_talks_without_their_tags(iwslt, published_files, lang):
    moses = line_function(lang, Chain(lowercase=True))
    published = published_files[f"de-en/train.tags.de-en.{lang}"].split("\n")[:-1]
    talks = [line for line in published if not re.match("<(url|keywords|talkid)>", line)]

    tokenised = lines_of(iwslt / "text" / "tokenised" / f"train.{lang}")

    assert len(talks) == TALKS
    assert len(tokenised) == TALKS
    assert tokenised[:60] == [moses(re.sub("</?(title|description)>", "", line)) for line in talks[:60]]


@smoke
def test_iwslt14_trains_on_the_pairs_that_are_fit_but_every_23rd(iwslt, lang):
    fit = lines_of(iwslt / "text" / "clean" / f"train.{lang}")

    assert len(fit) == FIT_PAIRS
    assert lines_of(iwslt / "text" / "split" / f"valid.{lang}") == fit[22::23]
    expected = [line for number, line in enumerate(fit, 1) if number % 23]
    assert lines_of(iwslt / "text" / "split" / f"train.{lang}") == expected


@smoke
def test_iwslt14_tests_on_the_segments_of_five_published_sets(published_files, iwslt_references, lang):
    expected = []
    for name in TEST_SETS:
        root = ElementTree.fromstring(published_files[f"de-en/IWSLT14.{name}.de-en.{lang}.xml"].encode())
        expected += [" ".join(segment.text.split()) for segment in root.iter("seg")]

    assert len(expected) == SUBSETS["test"]
    assert [html.unescape(line) for line in iwslt_references] == expected
    assert any("’" in line for line in iwslt_references)


@smoke
def test_iwslt14_tokenises_the_test_set_with_plain_apostrophes(iwslt, iwslt_references, lang):
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
    ours = MosesPieces(iwslt / "bin" / "codes", lang, lang, find_chain(str(iwslt / "bin")))

    cut = [" ".join(ours.cut(line.replace("’", "'"))) for line in iwslt_references]
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
def test_the_data_are_the_text_in_pieces_as_recipe_json_counts_it(iwslt, subset, lang):
    recipe = json.loads((iwslt / "recipe.json").read_text())
    dictionary = Dictionary.load(str(iwslt / "bin" / "dict.de.txt"))
    binarised = data_utils.load_indexed_dataset(str(iwslt / "bin" / f"{subset}.de-en.{lang}"), dictionary)
    pieces = lines_of(iwslt / "text" / "pieces" / f"{subset}.{lang}")

    assert recipe["counts"][subset] == SUBSETS[subset]
    assert len(binarised) == SUBSETS[subset]
    assert dictionary.string(binarised[len(binarised) - 1]) == pieces[-1]


@smoke
def test_the_vocabulary_is_that_of_both_sides_joined(iwslt):
    recipe = json.loads((iwslt / "recipe.json").read_text())
    types = set()
    for lang in ("de", "en"):
        types.update(" ".join(lines_of(iwslt / "text" / "pieces" / f"train.{lang}")).split())

    assert recipe["counts"]["types joined"] == len(types)
    assert len((iwslt / "bin" / "codes").read_text().splitlines()) == 1 + 500  # a header and the miniature's merges


@pytest.fixture(scope="module")
def iwslt_after_kills(iwslt_options, tmp_path_factory):
    """Provide the options of a build that was killed at four successive steps, and then went to its end."""
    dest = tmp_path_factory.mktemp("killed") / "dest"
    options = replace(iwslt_options, dest=dest, downloads=dest / "downloads", workers=1)
    for step in ("download", "tokenise.train", "learn-bpe", "binarise"):
        kill_at_step(step, lambda: IWSLT.build(options))
        assert not (dest / "recipe.json").exists()
    IWSLT.build(options)
    return options


@smoke
def test_a_build_that_was_killed_gives_the_corpus_of_an_uninterrupted_one(iwslt, iwslt_after_kills):
    dest = iwslt_after_kills.dest

    assert corpus_files(dest) == corpus_files(iwslt)
    assert not list(dest.rglob("*.part"))


@smoke
def test_a_corpus_is_whole_without_its_text_and_downloads(iwslt, iwslt_after_kills, capsys):
    dest = iwslt_after_kills.dest
    shutil.rmtree(dest / "text")
    shutil.rmtree(dest / "downloads")

    IWSLT.build(iwslt_after_kills)

    assert capsys.readouterr().out == f"{dest}: whole\n"
    assert corpus_files(dest) == corpus_files(iwslt)


def assert_tokenised_as_published(tokenised, lang, folder, members):
    """Check that lines are those of the archives' members in order, normalised and tokenised by Moses' rules.

    members: file -> member of the archive, with {} for the language
    """
    published = []
    for file, member in members.items():
        published += stream_lines(folder / file.name, member.format(lang))
    moses = line_function(lang, Chain(normalise=True, aggressive=True))

    assert len(tokenised) == len(published)
    assert tokenised[::50] == [moses(line) for line in published[::50]]


@pytest.fixture(scope="module")
def wmt_german(tmp_path_factory):
    """Provide the folder of downloads, with the corpora in wmt17_en_de and wmt14_en_de."""
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
def test_wmt17_drops_unfit_pairs_after_bpe_as_fairseq_does(wmt_german):
    corpus = wmt_german / "wmt17_en_de"
    in_pieces = paired_lines(corpus / "text" / "pieces", "train")

    fit = list(clean(in_pieces, Limits(1.5, 1, 250)))
    assert paired_lines(corpus / "bin", "train") == fit
    assert len(fit) < len(in_pieces)


@smoke
def test_wmt14_drops_unfit_pairs_before_bpe_as_admin_s_authors_do(wmt_german):
    tokenised = paired_lines(wmt_german / "wmt17_en_de" / "text" / "tokenised", "train")

    fit = list(clean(tokenised, Limits(9, 1, 80)))
    assert paired_lines(wmt_german / "wmt14_en_de" / "text" / "clean", "train") == fit


@smoke
def test_wmt14_validates_on_newstest2013(wmt_german):
    moses = line_function("de", Chain(normalise=True, aggressive=True))
    published = stream_lines(wmt_german / "dev.tgz", "dev/newstest2013.de")

    pieces = lines_of(wmt_german / "wmt14_en_de" / "bin" / "valid.de")
    assert without_bpe(pieces) == [moses(line) for line in published]


@pytest.fixture(scope="module")
def wmt_french(tmp_path_factory):
    """Provide the folder of downloads, with the corpus in wmt14_en_fr."""
    folder = tmp_path_factory.mktemp("wmt")
    build_without_binarising("wmt14_en_fr", Options(folder / "wmt14_en_fr", folder, fetch=write, workers=2))
    return folder


@smoke
def test_wmt14_english_french_holds_its_five_corpora_in_order(wmt_french):
    """The last of them is packed twice."""
    tokenised = lines_of(wmt_french / "wmt14_en_fr" / "text" / "tokenised" / "train.fr")

    assert_tokenised_as_published(tokenised, "fr", wmt_french, FRENCH)


@smoke
def test_wmt14_english_french_validates_on_every_1333rd_pair(wmt_french):
    text = wmt_french / "wmt14_en_fr" / "text"

    tokenised = lines_of(text / "tokenised" / "train.fr")
    assert lines_of(text / "split" / "valid.fr") == tokenised[1332::1333]


@smoke
def test_wmt14_english_french_tests_on_the_published_newstest2014(wmt_french):
    published = stream_lines(wmt_french / "test-full.tgz", "test-full/newstest2014-fren-ref.fr.sgm")

    references = lines_of(wmt_french / "wmt14_en_fr" / "reference" / "test.en-fr.fr")
    assert references == list(published_segments(published))


@pytest.fixture
def tokenised_text(tmp_path):
    """Provide a user's tokenised text: train, valid, and the test sets test and test.old, of 30 pairs each.

    The last of its 801 training pairs is not fit for training, for one side is much longer.
    """
    folder = tmp_path / "my text"
    folder.mkdir()
    for split, pairs in make_corpus({"train": 800, "valid": 40, "test": 30}).items():
        for lang, sentences in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
            (folder / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in sentences))

    for lang, unfit in (("de", "a b c d e f\n"), ("en", "a\n")):
        shutil.copy(folder / f"test.{lang}", folder / f"test.old.{lang}")
        with open(folder / f"train.{lang}", "a") as file:
            file.write(unfit)
    return folder


def options_for(text, dest, **changed):
    return Options(dest, dest / "downloads", text=text, **({"vocab": 60} | changed))


def build_from(text, dest, **changed):
    """Make IWSLT-14's corpus of a user's text; return its recipe.json."""
    IWSLT.build(options_for(text, dest, **changed))
    return json.loads((dest / "recipe.json").read_text())


@pytest.fixture
def corpus_of_tokenised_text(tokenised_text, tmp_path):
    """Provide a corpus of the user's text, not binarised."""
    dest = tmp_path / "corpus"
    build_without_binarising("iwslt14_de_en", options_for(tokenised_text, dest, workers=1))
    return dest


def test_tokenised_text_is_cleaned_as_iwslt14_is(tokenised_text, corpus_of_tokenised_text):
    """No side has more than 1.5 times the words of the other."""
    fit = 0
    for pair in paired_lines(tokenised_text, "train", ("de", "en")):
        shorter, longer = sorted(len(line.split()) for line in pair)
        fit += longer <= 1.5 * shorter

    assert 700 < fit < 801
    for lang in ("de", "en"):
        assert len(lines_of(corpus_of_tokenised_text / "bin" / f"train.{lang}")) == fit


def test_recipe_json_names_the_test_sets_of_tokenised_text(corpus_of_tokenised_text):
    recipe = json.loads((corpus_of_tokenised_text / "recipe.json").read_text())

    assert recipe["subsets"] == {"train": "train", "valid": "valid", "test": "test", "test1": "test.old"}
    assert recipe["files"] == {}


def test_tokenised_text_has_no_references_because_its_raw_text_is_unknown(tokenised_text, corpus_of_tokenised_text):
    """References that an earlier corpus left in the folder are removed."""
    dest = corpus_of_tokenised_text
    assert not (dest / "reference").exists()

    (dest / "reference").mkdir()
    build_without_binarising("iwslt14_de_en", options_for(tokenised_text, dest, workers=1, vocab=50))

    assert not (dest / "reference").exists()


@pytest.fixture
def text_with_merges_and_dictionary(tokenised_text):
    """Provide the text with a merge that never occurs, and a dictionary of the letters of the training text.

    The German test set has other letters, test.old is of fairseq's own marks.
    """
    (tokenised_text / "codes").write_text("#version: 0.2\nq q\n")
    training = lines_of(tokenised_text / "train.de") + lines_of(tokenised_text / "train.en")
    letters = sorted(set("".join(training)) - {" "})
    (tokenised_text / "dict.txt").write_text("".join(f"{letter} 1\n{letter}@@ 1\n" for letter in letters))
    for lang in ("de", "en"):
        (tokenised_text / f"test.{lang}").write_text("ж ж\n" * 30)
        (tokenised_text / f"test.old.{lang}").write_text("<unk> </s> <unk>\n" * 30)
    return tokenised_text


def test_a_given_dictionary_is_used_for_all_text(text_with_merges_and_dictionary, tmp_path):
    build_from(text_with_merges_and_dictionary, tmp_path / "d", workers=1, vocab=None)

    given = (text_with_merges_and_dictionary / "dict.txt").read_text()
    assert (tmp_path / "d" / "bin" / "dict.de.txt").read_text() == given
    assert (tmp_path / "d" / "bin" / "test1.de-en.en.bin").exists()


def test_pieces_that_a_given_dictionary_lacks_are_counted(text_with_merges_and_dictionary, tmp_path, capsys):
    recipe = build_from(text_with_merges_and_dictionary, tmp_path / "d", workers=1, vocab=None)

    # Three symbols a line: two unknown letters, and the end of the sentence.
    expected = {"sentences": 30, "pieces": 60, "unknown": pytest.approx(66.7)}
    assert recipe["counts"]["text"]["test"]["de"] == expected
    told = [line for line in capsys.readouterr().out.split("\n") if line.startswith("| test: ")]
    assert any("66.7% of de" in line for line in told), told


def test_fairseq_s_marks_among_the_words_give_a_warning(text_with_merges_and_dictionary, tmp_path, capsys):
    build_from(text_with_merges_and_dictionary, tmp_path / "d", workers=1, vocab=None)

    warnings = [line for line in capsys.readouterr().out.split("\n") if "WARNING" in line]
    assert any("{'<unk>': 120, '</s>': 60}" in line for line in warnings), warnings


def remove(*names):
    """Return a function that removes files of a folder."""

    def spoil(folder):
        for name in names:
            (folder / name).unlink()

    return spoil


def writer_of(name, content):
    """Return a function that writes a file of a folder."""
    return lambda folder: (folder / name).write_bytes(content)


SPOILED = {  # what is wrong -> how to spoil the text, what the refusal is about, what else it names
    "one side is missing": (remove("train.en"), "train.en", []),
    "both sides are missing": (remove("valid.de", "valid.en"), "--from", ["valid.de", "valid.en"]),
    "unequal sides": (writer_of("test.old.de", b"a\nb\n"), "test.old.de has 2 ", ["test.old.en has 30 "]),
    "text in pieces": (writer_of("test.de", b"a@@ b\n" * 30), "test.de, line 1", []),
    "codes of other bytes": (writer_of("codes", b"#version: 0.2\na \xff\n"), "codes, line 2", []),
    "a dictionary without codes": (writer_of("dict.txt", b"a 1\n"), "dict.txt", ["codes"]),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_spoiled_text_is_refused_before_data_are_made(kind, tokenised_text, tmp_path):
    spoil, subject, facts = SPOILED[kind]
    spoil(tokenised_text)

    with refused(tokenised_text, subject) as caught:
        build_from(tokenised_text, tmp_path / "d", vocab=None if kind == "codes of other bytes" else 60)

    for fact in facts:
        assert fact in str(caught.value)
    assert not (tmp_path / "d" / "bin").exists()


MISTAKES = {  # recipe and flags -> what the refusal names
    ("nope",): "recipe nope",
    ("iwslt14_de_en", "--from", "nowhere"): "--from nowhere",
    ("iwslt14_de_en", "--pairs", "de-en"): "--pairs",
    ("multilingual",): "--from",
    ("opus100", "--pairs", "de-xx"): "--pairs de-xx",
    ("m2m102", "--plan"): "12 billion",  # sentence pairs, which are too many without --pairs
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistaken_recipe_or_flag_is_named(words, tmp_path):
    recipe, *flags = words

    assert_refused(MISTAKES[words], "prepare", "corpus", recipe, tmp_path / "d", *flags)


EXPECTED_PAIRS = 160_239  # of IWSLT-14's training text, as the plan states


def test_the_expected_number_of_pairs_gives_no_warning(tmp_path, capsys):
    IWSLT.check_count(Options(tmp_path, tmp_path), "train", EXPECTED_PAIRS)

    out = capsys.readouterr().out
    assert "160,239" in out
    assert "expected" in out
    assert "WARNING" not in out


def test_almost_the_expected_number_of_pairs_gives_a_warning(tmp_path, capsys):
    IWSLT.check_count(Options(tmp_path, tmp_path), "train", 160_300)

    out = capsys.readouterr().out
    assert "WARNING" in out
    assert "160,239" in out


def test_another_number_of_pairs_than_expected_is_refused(tmp_path):
    with refused("train") as caught:
        IWSLT.check_count(Options(tmp_path, tmp_path), "train", 150_000)

    assert "150,000" in caught.value.way_out
    assert "160,239" in caught.value.way_out
