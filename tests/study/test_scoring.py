"""Tests of `deepnet score` of one test set: known numbers, sacreBLEU and fairseq's scorer as peers, refusals."""

import json
import re

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.scoring.bleu import BleuConfig, Scorer

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.scoring.generated import Output, align_with_references, read_corpus
from deepnet_fairseq.study.scoring.scores import ChrF, kinds_of_bleu, score, score_with_interval

from ..support.errors import assert_refused, refused
from ..support.sacrebleu_command import entry, scores_of_sacrebleu
from ..support.translated import as_lines, random_sentences, with_wrong_words, write_generated, write_prepared_corpus

MOSES = {"pieces": "subword_nmt", "detokenise": True}  # in recipe.json of a corpus in Moses' tokens
RAW = ['He said: "It\'s a well-known dog."', "No, (really) 3% of 5."]
TOKENISED = ["He said : &quot; It &apos;s a well @-@ known dog . &quot;", "No , ( really ) 3 % of 5 ."]
FOUR_WORDS = ["a b c d"]  # the least that BLEU of 4-grams can score


def lower_case(sentences):
    return [sentence.lower() for sentence in sentences]


def test_identical_text_without_a_corpus_scores_100(tmp_path):
    text = random_sentences(30)
    path = write_generated(tmp_path / "generated.txt", text, text, direction="de-en", seconds=2.5)

    result = score(path)

    assert result["bleu"] == 100
    assert result["kind"] == "sacrebleu"
    assert result["reference"] == "generated"
    assert result["sentences"] == 30
    assert result["length_ratio"] == 1
    assert result["tokenised"] is None
    assert result["generation"] == {"seconds": 2.5, "sentences_per_second": 12, "tokens_per_second": 120}
    assert result["signature"] == result["sacrebleu"]["signature"]
    assert "bs:1000|seed:12345|case:mixed|eff:no|tok:13a" in result["signature"]


# Peers.


def test_bleu_and_chrf_in_lower_case_are_those_of_sacrebleus_command(tmp_path):
    text = random_sentences(80)
    wrong = with_wrong_words(text, 0.2)
    data = write_prepared_corpus(tmp_path / "corpus", {"test.de-en": text}, lowercase=True)
    path = write_generated(tmp_path / "o.txt", lower_case(wrong), lower_case(text))

    result = score(path, data)

    bleu, chrf = scores_of_sacrebleu(tmp_path, wrong, text, "-m", "bleu", "chrf", "-lc", "--chrf-lowercase")
    assert entry(result["sacrebleu"]) == bleu
    assert entry(result["chrf"]) == chrf
    assert 30 < result["bleu"] < 90
    assert "case:lc" in result["signature"]


def test_ter_of_tokens_is_that_of_sacrebleus_command(tmp_path):
    text = random_sentences(80)
    tokens = lower_case(text)
    wrong_tokens = lower_case(with_wrong_words(text, 0.2))
    path = write_generated(tmp_path / "o.txt", wrong_tokens, tokens)

    result = score(path, paper="tokenised")

    (ter,) = scores_of_sacrebleu(tmp_path, wrong_tokens, tokens, "-m", "ter")
    assert entry(result["ter"]) == ter


def test_chrf_has_a_mean_also_if_samples_have_no_match():
    mean = score_with_interval(ChrF(), ["abc d", "zz x"], ["abc d", "yy u"])["mean"]

    assert 0 < mean < 100


@pytest.fixture
def output_with_unknown_words(tmp_path):
    """Provide an output in which "Hund" is unknown to the model, so that it reads <unk>, and <<unk>> in references."""
    text = random_sentences(60)
    translations = [line.replace("Hund", "<unk>") for line in with_wrong_words(text, 0.3)]
    references = [line.replace("Hund", "<<unk>>") for line in text]
    path = write_generated(tmp_path / "o.txt", translations, references, direction="de-en")
    return path, translations, references


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
    path, _, _ = output_with_unknown_words
    data = write_prepared_corpus(tmp_path / "corpus", **MOSES)

    result = score(path, data)

    assert result["kind"] == "sacrebleu"
    assert result["bleu"] != score(path, paper="tokenised")["bleu"]


# Moses' tokens, and where raw references come from.


@pytest.fixture
def moses_output(tmp_path):
    """Provide the output of a model of Moses' tokens, without a log that names the languages."""
    return write_generated(tmp_path / "o.txt", TOKENISED, TOKENISED)


@pytest.fixture
def moses_data(tmp_path):
    """Provide binarised data of two directions, in two shards."""
    data = write_prepared_corpus(tmp_path / "c", {"test.de-en": RAW, "test.en-de": ["x", "y"]}, **MOSES)
    (data / "shard00").mkdir()
    (data / "shard01").mkdir()
    return data


def remove_raw_references(data):
    for file in (data.parent / "reference").iterdir():
        file.unlink()


@pytest.mark.parametrize("place", ["{0}", "{0}/shard00", "{0}/shard00:{0}/shard01"], ids=["data", "shard", "shards"])
def test_moses_tokens_are_undone_before_raw_references(place, moses_data, tmp_path):
    path = write_generated(tmp_path / "o.txt", TOKENISED, TOKENISED, direction="de-en")

    aligned = align_with_references(Output(path), read_corpus(place.format(moses_data)))

    assert aligned.raw
    assert aligned.references == RAW
    assert aligned.hypotheses == RAW
    assert aligned.generated.translations == TOKENISED


def test_moses_tokens_of_unknown_languages_are_refused(moses_output, moses_data):
    with refused(moses_output) as caught:
        align_with_references(Output(moses_output), read_corpus(moses_data))

    assert "SRC-TGT.txt" in caught.value.way_out


def test_data_of_one_direction_tell_the_languages(moses_output, moses_data):
    (moses_data / "test.de-en.en.idx").touch()

    aligned = align_with_references(Output(moses_output), read_corpus(moses_data))

    assert aligned.references == RAW


def test_raw_references_may_lie_where_prepare_text_copies_them(moses_output, moses_data):
    (moses_data / "test.de-en.en.idx").touch()
    remove_raw_references(moses_data)
    (moses_data / "raw").mkdir()
    (moses_data / "raw" / "test.en").write_text(as_lines(RAW[::-1]))

    aligned = align_with_references(Output(moses_output), read_corpus(moses_data))

    assert aligned.references == RAW[::-1]


def test_without_raw_references_those_of_fairseq_are_detokenised(moses_output, moses_data):
    (moses_data / "test.de-en.en.idx").touch()
    remove_raw_references(moses_data)

    aligned = align_with_references(Output(moses_output), read_corpus(moses_data))

    assert aligned.references == RAW
    assert not aligned.raw


@pytest.fixture
def text_of_odd_lines():
    """Provide sentences with words that a dictionary may lack, with Unicode separators, and an empty one."""
    return [
        *random_sentences(40),
        "eins\u2028zwei drei vier fuenf",
        "eins\x85zwei\x0cdrei vier",
        "eins zwei drei\rvier",
        "",
    ]


@pytest.fixture
def output_of_odd_lines(text_of_odd_lines, tmp_path):
    """Provide translations that equal their text, beside references in which "Hund" is unknown."""
    references = [line.replace("Hund", "<<unk>>") for line in text_of_odd_lines]
    return write_generated(tmp_path / "o.txt", text_of_odd_lines, references)


def test_words_that_the_dictionary_lacks_match_nothing(output_of_odd_lines):
    assert score(output_of_odd_lines)["bleu"] < 95


def test_raw_references_keep_unknown_words_and_unicode_separators(output_of_odd_lines, text_of_odd_lines, tmp_path):
    data = write_prepared_corpus(tmp_path / "c", {"test.de-en": text_of_odd_lines})

    result = score(output_of_odd_lines, data)
    aligned = align_with_references(Output(output_of_odd_lines), read_corpus(data))

    assert result["bleu"] == 100
    assert result["reference"] == "raw"
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


PIECES = pytest.mark.parametrize(("mark", "cut"), [("▁", sentencepiece_pieces), ("@@", bpe_pieces)])


@PIECES
def test_translations_that_are_pieces_of_words_are_refused(mark, cut, tmp_path):
    pieces = [cut(line) for line in random_sentences(40)]
    path = write_generated(tmp_path / "o.txt", pieces, pieces)

    with refused(path) as caught:
        score(path)

    assert "40 of 40" in caught.value.way_out
    assert f"({mark})" in caught.value.way_out


@PIECES
def test_marks_of_pieces_in_one_line_are_text(mark, cut, tmp_path):
    text = random_sentences(40)
    wrong = with_wrong_words(text, 0.2)
    with_one_cut = [*wrong[:-1], cut(text[-1])]
    plain = score(write_generated(tmp_path / "plain.txt", wrong, text))

    result = score(write_generated(tmp_path / "o.txt", with_one_cut, text))

    assert result["bleu"] < plain["bleu"]
    assert not result["notes"]


# Damaged and incomplete outputs.


@pytest.mark.parametrize("place", ["beside", "in it"])
@pytest.mark.parametrize("logged", [{"direction": "de-en"}, {"seconds": 2.5}])
def test_fewer_sentences_than_the_log_says_are_refused(logged, place, tmp_path):
    write_generated(tmp_path / "o.txt", random_sentences(120), random_sentences(120), **logged)
    log = (tmp_path / "o.log").read_text()
    path = write_generated(tmp_path / "o.txt", random_sentences(112), random_sentences(112))
    if place == "in it":
        path.write_text(path.read_text() + log)
        (tmp_path / "o.log").unlink()

    with refused(path) as caught:
        score(path)

    assert "112" in caught.value.way_out
    assert "120" in caught.value.way_out


def as_latin1(text):
    """Encode in Latin-1, in which a euro sign becomes a byte that UTF-8 does not have."""
    return text.encode("latin-1", "replace").replace(b"?", b"\xff")


DAMAGE = {  # case -> (function from the whole text to the damaged one, words of the message that tell the reason)
    "a translation is missing": (lambda text: text.replace("D-1\t", "X-1\t"), ["sentence 1"]),
    "a translation is there twice": (lambda text: text + "D-1\t-0.5\tanother\n", ["sentence 1", "--nbest"]),
    "a reference is missing": (lambda text: text.replace("T-3\t", "X-3\t"), ["4 translations", "3 references"]),
    "empty": (lambda text: "", ["0 translations"]),
    "cut off in a line": (lambda text: text[:-20], ["middle"]),
    "not UTF-8": (as_latin1, ["UTF-8"]),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_output_is_refused(case, tmp_path):
    damage, reasons = DAMAGE[case]
    path = write_generated(tmp_path / "o.txt", ["a", "b", "c", "d €"], ["a", "b", "c", "d"])
    damaged = damage(path.read_text(encoding="utf-8"))
    path.write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())

    with refused(path) as caught:
        score(path)

    for reason in reasons:
        assert reason in str(caught.value)


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
    with refused(output_without_references, "'o'"):
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


def test_json_and_out_of_the_command_are_the_scores(tmp_path, capsys):
    path = write_generated(tmp_path / "o.txt", FOUR_WORDS, FOUR_WORDS)
    out = tmp_path / "score.json"

    main(["score", str(path), "--json", "--paper", "tokenised", "--out", str(out)])

    wanted = score(path, paper="tokenised")
    assert json.loads(capsys.readouterr().out) == wanted
    assert json.loads(out.read_text()) == wanted


def test_the_printed_table_has_the_columns_that_are_not_empty(tmp_path, capsys):
    path = write_generated(tmp_path / "o.txt", FOUR_WORDS, FOUR_WORDS, direction="de-en", seconds=0.5)

    main(["score", str(path)])

    header, _, row, _, *below = capsys.readouterr().out.splitlines()
    assert re.split("  +", header) == [
        "sentences", "BLEU", "95% interval", "chrF2", "95% interval", "length ratio", "sentences/s"]  # fmt: skip
    bleu = ["100.00", "100.00", "to", "100.00"]
    chrf = ["100.00", "100.00", "to", "100.00"]
    assert row.split() == ["1", *bleu, *chrf, "1.000", "2.00"]
    assert below[0].startswith("sacrebleu: nrefs:1")
    assert "T-n" in below[-1]


def test_scores_do_not_overwrite_what_they_are_of(tmp_path):
    path = write_generated(tmp_path / "o.txt", FOUR_WORDS, FOUR_WORDS)

    assert_refused("--out", "score", path, "--out", path)


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (None, {None: "sacrebleu"}),
        ("tokenised", {None: "tokenised"}),
        ("sacrebleu,flores=spbleu", {None: "sacrebleu", "flores": "spbleu"}),
    ],
)
def test_the_papers_kind_of_bleu_may_differ_by_test_set(words, kinds):
    assert kinds_of_bleu(words) == kinds


def test_an_unknown_kind_of_bleu_is_refused():
    with refused("--paper tokenised,flores=bleu") as caught:
        kinds_of_bleu("tokenised,flores=bleu")

    assert caught.value.way_out.startswith("bleu ")
    for kind in ("tokenised", "sacrebleu", "spbleu"):
        assert kind in caught.value.way_out
