"""Tests of `deepnet score` of one test set: known numbers, sacreBLEU and fairseq's scorer as peers, refusals."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.scoring.bleu import BleuConfig, Scorer

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.scoring.generated import Output, align_with_references, read_corpus
from deepnet_fairseq.study.scoring.scores import ChrF, kinds_of_bleu, score, score_with_interval

from ..support.errors import assert_refused, refused
from ..support.sacrebleu_command import entry_as_list, scores_of_sacrebleu
from ..support.translated import (
    TOKENS_A_SENTENCE,
    as_lines,
    random_sentences,
    with_wrong_words,
    write_generated,
    write_prepared_corpus,
)

MOSES = {"pieces": "subword_nmt", "detokenise": True}  # in recipe.json of a corpus in Moses' tokens
RAW = ['He said: "It\'s a well-known dog."', "No, (really) 3% of 5."]
# the same in Moses' tokens
TOKENISED = ["He said : &quot; It &apos;s a well @-@ known dog . &quot;", "No , ( really ) 3 % of 5 ."]
FOUR_WORDS = ["a b c d"]  # the least that BLEU of 4-grams can score


def lower_case(sentences):
    return [sentence.lower() for sentence in sentences]


@pytest.fixture(scope="module")
def score_of_identical_text(tmp_path_factory):
    """Provide the score of 30 translations that equal lines T-n, translated in 2.5 seconds."""
    text = random_sentences(30)
    path = tmp_path_factory.mktemp("identical") / "generated.txt"
    write_generated(path, text, text, direction="de-en", seconds=2.5)
    return score(path)


def test_identical_text_scores_100(score_of_identical_text):
    assert score_of_identical_text["bleu"] == 100
    assert score_of_identical_text["sentences"] == 30
    assert score_of_identical_text["length_ratio"] == 1


def test_without_data_and_paper_bleu_is_sacrebleus_of_fairseqs_references(score_of_identical_text):
    assert score_of_identical_text["kind"] == "sacrebleu"
    assert score_of_identical_text["tokenised"] is None
    assert score_of_identical_text["reference"] == "generated"


def test_the_signature_names_sacrebleus_samples_and_tokenizer(score_of_identical_text):
    signature = score_of_identical_text["signature"]

    assert signature == score_of_identical_text["sacrebleu"]["signature"]
    assert "bs:1000|seed:12345|case:mixed|eff:no|tok:13a" in signature  # sacreBLEU's defaults


def test_the_speed_is_that_of_the_log(score_of_identical_text):
    speed = {"seconds": 2.5, "sentences_per_second": 30 / 2.5, "tokens_per_second": 30 * TOKENS_A_SENTENCE / 2.5}

    assert score_of_identical_text["generation"] == speed


# Peers.


def test_bleu_and_chrf_in_lower_case_are_those_of_sacrebleus_command(tmp_path):
    """The data's text was lower-cased, but not its raw references."""
    text = random_sentences(80)
    wrong = with_wrong_words(text, rate=0.2)
    data = write_prepared_corpus(tmp_path / "corpus", {"test.de-en": text}, lowercase=True)
    path = write_generated(tmp_path / "o.txt", lower_case(wrong), lower_case(text))

    result = score(path, data)

    bleu, chrf = scores_of_sacrebleu(tmp_path, wrong, text, "-m", "bleu", "chrf", "-lc", "--chrf-lowercase")
    assert entry_as_list(result["sacrebleu"]) == bleu
    assert entry_as_list(result["chrf"]) == chrf
    assert "case:lc" in result["signature"]
    assert result["bleu"] == pytest.approx(63, abs=1)  # by sacreBLEU: neither 0 nor 100, where errors hide


def test_ter_of_tokens_is_that_of_sacrebleus_command(tmp_path):
    tokens = random_sentences(80)
    wrong_tokens = with_wrong_words(tokens, rate=0.2)
    path = write_generated(tmp_path / "o.txt", wrong_tokens, tokens)

    result = score(path, paper="tokenised")

    (ter,) = scores_of_sacrebleu(tmp_path, wrong_tokens, tokens, "-m", "ter")
    assert entry_as_list(result["ter"]) == ter


def test_chrf_has_a_mean_over_samples_some_without_a_match():
    """In samples of the second sentence alone nothing matches. For these sacreBLEU 2.6.0 raises a TypeError."""
    chrf = score_with_interval(ChrF(), translations=["abc d", "zz x"], references=["abc d", "yy u"])

    assert 0 < chrf["mean"] < 100


class WithUnknownWords(NamedTuple):
    """An output, and what it holds: in lines D-n an unknown word reads <unk>, in lines T-n <<unk>>."""

    path: Path
    translations: list[str]
    references: list[str]


@pytest.fixture
def output_with_unknown_words(tmp_path):
    """Provide a WithUnknownWords, in which "Hund" is unknown."""
    text = random_sentences(60)
    wrong = with_wrong_words(text, rate=0.3)
    translations = [line.replace("Hund", "<unk>") for line in wrong]
    references = [line.replace("Hund", "<<unk>>") for line in text]
    path = write_generated(tmp_path / "o.txt", translations, references, direction="de-en")
    return WithUnknownWords(path, translations, references)


def test_tokenised_bleu_is_that_of_fairseqs_scorer(output_with_unknown_words):
    """An unknown word in the reference matches no word."""
    path, translations, references = output_with_unknown_words
    dictionary = Dictionary()
    scorer = Scorer(BleuConfig(pad=dictionary.pad(), eos=dictionary.eos(), unk=dictionary.unk()))
    for translation, reference in zip(translations, references, strict=True):
        ids_of_reference = dictionary.encode_line(reference, add_if_not_exist=True)
        ids_of_translation = dictionary.encode_line(translation, add_if_not_exist=True)
        scorer.add(ids_of_reference.to(torch.int32), ids_of_translation.to(torch.int32))

    result = score(path, paper="tokenised")

    assert result["tokenised"]["score"] == pytest.approx(scorer.score(), abs=1e-2)
    assert result["bleu"] == result["tokenised"]["score"]
    assert result["kind"] == "tokenised"
    assert "tok:none" in result["signature"]


def test_bleu_of_tokenised_text_is_sacrebleus_unless_asked_otherwise(output_with_unknown_words, tmp_path):
    path = output_with_unknown_words.path
    data = write_prepared_corpus(tmp_path / "corpus", **MOSES)

    by_default = score(path, data)
    of_tokens = score(path, paper="tokenised")

    assert by_default["kind"] == "sacrebleu"
    assert by_default["bleu"] != of_tokens["bleu"]


# Moses' tokens, and where raw references come from.


@pytest.fixture
def moses_output(tmp_path):
    """Provide the output of a model of Moses' tokens, without a log that names the languages."""
    return write_generated(tmp_path / "o.txt", TOKENISED, TOKENISED)


@pytest.fixture
def moses_data(tmp_path):
    """Provide data in Moses' tokens, in two shards, with raw references of two directions."""
    data = write_prepared_corpus(tmp_path / "c", {"test.de-en": RAW, "test.en-de": ["x", "y"]}, **MOSES)
    (data / "shard00").mkdir()
    (data / "shard01").mkdir()
    return data


@pytest.fixture
def moses_data_of_one_direction(moses_data):
    """Provide moses_data with a binarised test set of de-en alone."""
    (moses_data / "test.de-en.en.idx").touch()
    return moses_data


def remove_raw_references(data):
    for file in (data.parent / "reference").iterdir():
        file.unlink()


@pytest.mark.parametrize("folders", [["."], ["shard00"], ["shard00", "shard01"]], ids=["data", "shard", "shards"])
def test_moses_tokens_are_detokenised_beside_raw_references(folders, moses_data, tmp_path):
    path = write_generated(tmp_path / "o.txt", TOKENISED, TOKENISED, direction="de-en")
    data = ":".join(str(moses_data / folder) for folder in folders)

    aligned = align_with_references(Output(path), read_corpus(data))

    assert aligned.raw
    assert aligned.references == RAW
    assert aligned.hypotheses == RAW
    assert aligned.generated.translations == TOKENISED


def test_moses_tokens_of_unknown_languages_are_refused(moses_output, moses_data):
    """Detokenising depends on the language, and the data has two directions."""
    with refused(moses_output) as caught:
        align_with_references(Output(moses_output), read_corpus(moses_data))

    assert "SRC-TGT.txt" in caught.value.way_out


def test_data_of_one_direction_tells_the_languages(moses_output, moses_data_of_one_direction):
    aligned = align_with_references(Output(moses_output), read_corpus(moses_data_of_one_direction))

    assert aligned.target == "en"
    assert aligned.references == RAW


def test_raw_references_may_lie_where_prepare_text_copies_them(moses_output, moses_data_of_one_direction):
    data = moses_data_of_one_direction
    remove_raw_references(data)
    in_other_order = RAW[::-1]
    (data / "raw").mkdir()
    (data / "raw" / "test.en").write_text(as_lines(in_other_order))

    aligned = align_with_references(Output(moses_output), read_corpus(data))

    assert aligned.raw
    assert aligned.references == in_other_order


def test_without_raw_references_those_of_fairseq_are_detokenised(moses_output, moses_data_of_one_direction):
    remove_raw_references(moses_data_of_one_direction)

    aligned = align_with_references(Output(moses_output), read_corpus(moses_data_of_one_direction))

    assert not aligned.raw
    assert aligned.references == RAW


@pytest.fixture
def text_of_odd_lines():
    """Provide 40 sentences (14 have the word "Hund"), three lines with Unicode separators, and an empty line."""
    return [
        *random_sentences(40),
        "eins\u2028zwei drei vier fuenf",
        "eins\x85zwei\x0cdrei vier",
        "eins zwei drei\rvier",
        "",
    ]


@pytest.fixture
def output_of_odd_lines(text_of_odd_lines, tmp_path):
    """Provide translations that equal their text, with lines T-n in which "Hund" is unknown to the dictionary."""
    references = [line.replace("Hund", "<<unk>>") for line in text_of_odd_lines]
    return write_generated(tmp_path / "o.txt", text_of_odd_lines, references)


def test_an_unknown_word_in_a_reference_matches_no_word(output_of_odd_lines):
    assert score(output_of_odd_lines)["bleu"] == pytest.approx(74.8, abs=0.1)  # by sacreBLEU


def test_unknown_words_match_in_raw_references(output_of_odd_lines, text_of_odd_lines, tmp_path):
    data = write_prepared_corpus(tmp_path / "c", {"test.de-en": text_of_odd_lines})

    result = score(output_of_odd_lines, data)

    assert result["reference"] == "raw"
    assert result["bleu"] == 100


def test_unicode_separators_end_no_line(output_of_odd_lines, text_of_odd_lines, tmp_path):
    data = write_prepared_corpus(tmp_path / "c", {"test.de-en": text_of_odd_lines})

    aligned = align_with_references(Output(output_of_odd_lines), read_corpus(data))

    assert aligned.references == text_of_odd_lines
    assert aligned.hypotheses == text_of_odd_lines


# Pieces of words.


def sentencepiece_pieces(sentence):
    """Cut each word behind its second letter, with SentencePiece's mark before the first piece of a word."""
    pieces = []
    for word in sentence.split():
        pieces.append(f"▁{word[:2]}")
        if len(word) > 2:
            pieces.append(word[2:])
    return " ".join(pieces)


def bpe_pieces(sentence):
    """Cut each word behind its second letter, with BPE's mark behind a piece that the word goes on after."""
    pieces = []
    for word in sentence.split():
        if len(word) > 2:
            pieces += [f"{word[:2]}@@", word[2:]]
        else:
            pieces.append(word)
    return " ".join(pieces)


each_mark = pytest.mark.parametrize(("mark", "cut"), [("▁", sentencepiece_pieces), ("@@", bpe_pieces)])


@each_mark
def test_translations_that_are_pieces_of_words_are_refused(mark, cut, tmp_path):
    pieces = [cut(line) for line in random_sentences(40)]
    path = write_generated(tmp_path / "o.txt", pieces, pieces)

    with refused(path) as caught:
        score(path)

    assert "40 of 40" in caught.value.way_out
    assert mark in caught.value.way_out


@each_mark
def test_marks_of_pieces_in_a_single_line_are_scored_as_text(mark, cut, tmp_path):
    text = random_sentences(40)
    wrong = with_wrong_words(text, rate=0.2)
    uncut = [*wrong[:-1], text[-1]]
    with_last_line_cut = [*wrong[:-1], cut(text[-1])]
    assert mark in with_last_line_cut[-1]

    of_uncut = score(write_generated(tmp_path / "uncut.txt", uncut, text))
    of_cut = score(write_generated(tmp_path / "cut.txt", with_last_line_cut, text))

    assert of_cut["bleu"] < of_uncut["bleu"]
    assert not of_cut["notes"]


# Damaged and incomplete outputs.


@pytest.mark.parametrize("place", ["beside", "within"])
@pytest.mark.parametrize("logged", [{"direction": "de-en"}, {"seconds": 2.5}], ids=["test set", "speed"])
def test_fewer_sentences_than_the_log_says_are_refused(logged, place, tmp_path):
    """The log has a line on the test set and a line on speed. Each of them has the number of sentences."""
    path = tmp_path / "o.txt"
    log = tmp_path / "o.log"
    write_generated(path, random_sentences(120), random_sentences(120), **logged)
    write_generated(path, random_sentences(112), random_sentences(112))  # replaces the output, but not its log
    if place == "within":
        path.write_text(path.read_text() + log.read_text())
        log.unlink()

    with refused(path) as caught:
        score(path)

    assert "112" in caught.value.way_out
    assert "120" in caught.value.way_out


class Damage(NamedTuple):
    """A function from the whole output to the damaged one, and the facts that the refusal tells."""

    damaged: Callable[[bytes], bytes]
    facts: list[str]


DAMAGES = {
    "a translation is missing": Damage(lambda output: output.replace(b"D-1\t", b"X-1\t"), ["sentence 1"]),
    "a translation is there twice": Damage(lambda output: output + b"D-1\t-0.5\tanother\n", ["sentence 1", "--nbest"]),
    "the last reference is missing": Damage(
        lambda output: output.replace(b"T-3\t", b"X-3\t"), ["4 translations", "3 references"]
    ),
    "empty": Damage(lambda output: b"", ["0 translations"]),
    "cut off in a line": Damage(lambda output: output[:-20], ["middle"]),
    "not UTF-8": Damage(lambda output: output.replace("€".encode(), b"\xff"), ["UTF-8"]),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_output_is_refused(case, tmp_path):
    damaged, facts = DAMAGES[case]
    path = write_generated(tmp_path / "o.txt", ["a", "b", "c", "d €"], ["a", "b", "c", "d"])
    path.write_bytes(damaged(path.read_bytes()))

    with refused(path) as caught:
        score(path)

    for fact in facts:
        assert fact in str(caught.value)


@pytest.fixture
def output_without_references(tmp_path):
    """Provide two translations without lines T-n."""
    return write_generated(tmp_path / "o.txt", ["a", "b"])


def test_another_number_of_raw_references_is_refused(output_without_references, tmp_path):
    data = write_prepared_corpus(tmp_path / "c", {"test.de-en": ["a", "b", "c"]})

    with refused(output_without_references) as caught:
        score(output_without_references, data)

    assert "2 translations" in caught.value.way_out
    assert "3 lines" in caught.value.way_out
    assert "test.de-en.en" in caught.value.way_out


def test_an_output_without_references_needs_data(output_without_references):
    with refused(output_without_references) as caught:
        score(output_without_references)

    assert "--data" in caught.value.way_out


def test_data_that_are_not_there_are_refused(output_without_references, tmp_path):
    absent = tmp_path / "elsewhere" / "bin"

    with refused(f"--data {absent}"):
        score(output_without_references, absent)


def test_tokenised_bleu_needs_the_references_of_fairseq(output_without_references, tmp_path):
    data = write_prepared_corpus(tmp_path / "c", {"test.de-en": ["a", "b"]})

    with refused("--paper tokenised") as caught:
        score(output_without_references, data, paper="tokenised")

    assert str(output_without_references) in caught.value.way_out


def test_a_name_in_a_folder_that_is_no_direction_is_refused(output_without_references):
    with refused(output_without_references, "'o'"):  # the name without .txt
        score(output_without_references.parent)


def test_a_folder_without_outputs_is_refused(tmp_path):
    with refused(tmp_path) as caught:
        score(tmp_path)

    assert "generated.txt" in caught.value.way_out


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with refused(tmp_path / "absent.txt"):
        score(tmp_path / "absent.txt")


def test_perplexity_takes_no_data(output_without_references, tmp_path):
    data = write_prepared_corpus(tmp_path / "c")

    with refused("--paper perplexity") as caught:
        score(output_without_references, data, paper="perplexity")

    assert "--data" in caught.value.way_out


# The command.


def test_the_command_prints_and_writes_scores_as_json(tmp_path, capsys):
    path = write_generated(tmp_path / "o.txt", FOUR_WORDS, FOUR_WORDS)
    out = tmp_path / "score.json"

    main(["score", str(path), "--json", "--paper", "tokenised", "--out", str(out)])

    expected = score(path, paper="tokenised")
    assert json.loads(capsys.readouterr().out) == expected
    assert json.loads(out.read_text()) == expected


def test_the_printed_table_leaves_out_columns_that_are_empty(tmp_path, capsys):
    """Columns for the test set, the direction and the kind of BLEU are empty for one output."""
    path = write_generated(tmp_path / "o.txt", FOUR_WORDS, FOUR_WORDS, direction="de-en", seconds=0.5)

    main(["score", str(path)])

    header, _dashes, row, _blank, signature, *_, references = capsys.readouterr().out.splitlines()
    assert re.split("  +", header) == [
        "sentences", "BLEU", "95% interval", "chrF2", "95% interval", "length ratio", "sentences/s"]  # fmt: skip
    perfect = ["100.00", "100.00", "to", "100.00"]  # a score and its interval
    sentences_per_second = "2.00"  # 1 sentence in 0.5 s
    assert row.split() == ["1", *perfect, *perfect, "1.000", sentences_per_second]
    assert signature.startswith("sacrebleu: nrefs:1")
    assert "T-n" in references


def test_of_two_bleus_the_table_says_what_each_is(tmp_path, capsys):
    """Below the table is a line for each of the two columns that names its kind of BLEU."""
    path = write_generated(tmp_path / "o.txt", FOUR_WORDS, FOUR_WORDS, direction="de-en")

    main(["score", str(path), "--paper", "tokenised"])

    header, _dashes, _row, _blank, *lines = capsys.readouterr().out.splitlines()
    assert re.split("  +", header)[1:4] == ["kind", "BLEU", "sacreBLEU"]
    (of_bleu,) = [line for line in lines if line.startswith("column BLEU")]
    (of_sacrebleu,) = [line for line in lines if line.startswith("column sacreBLEU")]
    assert "tokenised" in of_bleu
    assert "sacrebleu" in of_sacrebleu


@pytest.mark.parametrize("overwritten", ["baseline.txt", "system.txt"])
def test_scores_do_not_overwrite_an_output_that_is_scored(overwritten, tmp_path):
    paths = [write_generated(tmp_path / name, FOUR_WORDS, FOUR_WORDS) for name in ("baseline.txt", "system.txt")]
    output = paths[0].read_bytes()

    assert_refused("--out", "score", *paths, "--out", tmp_path / overwritten)

    assert (tmp_path / overwritten).read_bytes() == output


@pytest.mark.parametrize(
    ("words", "kinds"),  # kinds: test set -> kind of BLEU, None for all other test sets
    [
        (None, {None: "sacrebleu"}),
        ("tokenised", {None: "tokenised"}),
        ("sacrebleu,flores=spbleu", {None: "sacrebleu", "flores": "spbleu"}),
    ],
)
def test_the_papers_kind_of_bleu_may_differ_by_test_set(words, kinds):
    assert kinds_of_bleu(words) == kinds


def test_an_unknown_kind_of_bleu_is_refused_with_those_there_are():
    with refused("--paper tokenised,flores=bleu") as caught:
        kinds_of_bleu("tokenised,flores=bleu")

    assert "bleu" in caught.value.way_out.split()
    for kind in ("tokenised", "sacrebleu", "spbleu"):
        assert kind in caught.value.way_out
