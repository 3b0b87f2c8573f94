"""Tests that `deepnet score` scores translations: not the references, pieces of words, or another test set.

The right number is known each time: from the same text in another file, or by hand. fairseq-generate prints of sentence
n the lines T-n (reference), H-n (translation, with pieces joined by --remove-bpe) and D-n (the same after --bpe), and
logs its settings and the test set; here the log is a file beside. Raw references are those of the data, before it was
tokenised. The entry "notes" of a score has a sentence for each reason to doubt it.
"""

import json
import random
from pathlib import Path
from typing import NamedTuple

import pytest
import sentencepiece

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.scoring.paired import significance
from deepnet_fairseq.study.scoring.pieces import join_bytes
from deepnet_fairseq.study.scoring.scores import score

from ..support.errors import refused
from ..support.translated import as_lines, random_sentences, with_wrong_words, write_generated, write_prepared_corpus

SENTENCES = 40
REFERENCES = random_sentences(SENTENCES)
TRANSLATIONS = with_wrong_words(REFERENCES, rate=0.3)
CHINESE_REFERENCES = ["我是一个学生，真的。", "今天天气很好。", "他们去了北京。"]
CHINESE_TRANSLATIONS = ["我是学生，真的。", "今天的天气好。", "他去了北京吗？"]


def with_unknown_last_words(sentences):
    """Return sentences with a further word that is not in the dictionary, which fairseq prints as <<unk>> in lines T-n.

    <<unk>> matches no word, so that scores against these lines are lower than against raw references.
    """
    return [f"{sentence} <<unk>>" for sentence in sentences]


# References that were forced into the search.


@pytest.fixture
def output_of_score_reference(tmp_path):
    """Provide the output of fairseq-generate --score-reference, whose translations are the references, and its log."""
    return write_generated(tmp_path / "o.txt", REFERENCES, REFERENCES, direction="de-en", score_reference=True)


def move_log_into(output):
    """Put the log beside an output into the output itself, where fairseq-generate --results-path has it."""
    log = output.with_suffix(".log")
    output.write_text(log.read_text() + output.read_text())
    log.unlink()


def assert_refused_for_score_reference(output):
    with refused(output) as caught:
        score(output)

    assert "--score-reference" in caught.value.way_out


def test_output_of_score_reference_is_refused_by_the_log_beside(output_of_score_reference):
    assert_refused_for_score_reference(output_of_score_reference)


def test_output_of_score_reference_is_refused_by_the_log_within(output_of_score_reference):
    move_log_into(output_of_score_reference)

    assert_refused_for_score_reference(output_of_score_reference)


def test_output_of_score_reference_is_refused_by_the_log_of_an_old_fairseq(output_of_score_reference):
    """Releases before 0.10 print their settings as a Namespace."""
    move_log_into(output_of_score_reference)
    as_dictionary = output_of_score_reference.read_text()
    assert "'score_reference': True" in as_dictionary
    as_namespace = as_dictionary.replace("'score_reference': True", "score_reference=True")
    output_of_score_reference.write_text(as_namespace)

    assert_refused_for_score_reference(output_of_score_reference)


def test_output_of_score_reference_is_refused_as_a_system_to_compare(output_of_score_reference, tmp_path):
    baseline = write_generated(tmp_path / "other.txt", TRANSLATIONS, REFERENCES, direction="de-en")

    with refused(output_of_score_reference) as caught:
        significance(baseline, [output_of_score_reference])

    assert "--score-reference" in caught.value.way_out


def test_settings_of_the_last_run_in_a_log_count(output_of_score_reference):
    """A run with --score-reference is followed by one without, which replaces the output."""
    log = output_of_score_reference.with_suffix(".log")
    log_of_first_run = log.read_text()
    write_generated(output_of_score_reference, TRANSLATIONS, REFERENCES, direction="de-en")
    log_of_second_run = log.read_text()
    log.write_text(log_of_first_run + log_of_second_run)

    assert score(output_of_score_reference)["notes"] == []


class Prescribed(NamedTuple):
    """An output whose search was given parts of the references, and the flag of fairseq-generate that did so."""

    output: Path
    flag: str


@pytest.fixture(params=[({"prefix_size": 3}, "--prefix-size 3"), ({"constraints": "ordered"}, "--constraints")])
def prescribed(request, tmp_path):
    """Provide a Prescribed of each such flag, whose log has the flag's setting."""
    settings, flag = request.param
    output = write_generated(tmp_path / "o.txt", TRANSLATIONS, REFERENCES, direction="de-en", **settings)
    return Prescribed(output, flag)


@pytest.fixture
def unconstrained_output(tmp_path):
    """Provide an output whose log says that the search was given nothing of the references."""
    return write_generated(tmp_path / "free.txt", TRANSLATIONS, REFERENCES, direction="de-en")


def test_a_flag_that_gives_parts_of_references_to_the_search_is_noted(prescribed):
    (note,) = score(prescribed.output)["notes"]

    assert prescribed.flag in note


def test_an_unconstrained_search_has_no_note(unconstrained_output):
    assert score(unconstrained_output)["notes"] == []


def test_notes_are_printed_with_scores(prescribed, capsys):
    (note,) = score(prescribed.output)["notes"]

    main(["score", str(prescribed.output)])

    assert note in capsys.readouterr().out


def test_notes_are_printed_with_comparisons(prescribed, unconstrained_output, capsys):
    (note,) = score(prescribed.output)["notes"]

    main(["score", str(unconstrained_output), str(prescribed.output)])

    assert note in capsys.readouterr().out


def test_notes_are_in_the_json_of_comparisons(prescribed, unconstrained_output, capsys):
    (note,) = score(prescribed.output)["notes"]

    main(["score", str(unconstrained_output), str(prescribed.output), "--json"])

    (comparison,) = json.loads(capsys.readouterr().out)  # of the only test set
    assert comparison["notes"] == [note]


# References that were forced into the search, noticed without a log, from the text alone.


def with_beginnings_of_references(references, words):
    """Return lines whose first `words` words are those of their references, and all others are random."""
    random_lines = with_wrong_words(references, rate=1.0)
    lines = []
    for reference, random_line in zip(references, random_lines, strict=True):
        beginning = reference.split()[:words]
        rest = random_line.split()[words:]
        lines.append(" ".join(beginning + rest))
    return lines


# "Hund" is not in the dictionary: fairseq prints it as <<unk>> in references, and as <unk> where it was forced into a
# translation.
REFERENCES_WITH_UNK = [line.replace("Hund", "<<unk>>") for line in REFERENCES]
FORCED_WITH_UNK = [line.replace("Hund", "<unk>") for line in REFERENCES]


@pytest.mark.parametrize(
    ("translations", "references", "flag"),
    [
        (REFERENCES, REFERENCES, "--score-reference"),
        (FORCED_WITH_UNK, REFERENCES_WITH_UNK, "--score-reference"),
        (with_beginnings_of_references(REFERENCES, words=2), REFERENCES, "--prefix-size"),
    ],
    ids=["equal", "equal but for unk", "equal beginnings"],
)
def test_a_likeness_to_the_references_is_noted_without_a_log(translations, references, flag, tmp_path):
    """The note names the flag that gives such translations."""
    path = write_generated(tmp_path / "o.txt", translations, references)

    (note,) = score(path)["notes"]

    assert flag in note


def test_translations_equal_to_raw_references_are_noted_without_a_log(tmp_path):
    data = write_prepared_corpus(tmp_path / "c", {"test.de-en": REFERENCES})
    path = write_generated(tmp_path / "de-en.txt", REFERENCES)

    (note,) = score(path, data)["notes"]

    assert "--score-reference" in note


@pytest.mark.parametrize(
    "translations",
    [TRANSLATIONS, with_beginnings_of_references(REFERENCES[:9], words=2) + TRANSLATIONS[9:]],
    ids=["free", "9 of 40 with equal beginnings"],
)
def test_translations_unlike_the_references_have_no_note_without_a_log(translations, tmp_path):
    path = write_generated(tmp_path / "o.txt", translations, REFERENCES)

    assert score(path)["notes"] == []


def test_translations_equal_to_references_have_no_note_if_logged_as_free(tmp_path):
    path = write_generated(tmp_path / "o.txt", REFERENCES, REFERENCES, direction="de-en")

    assert score(path)["notes"] == []


# The test set that an output is of.


def write_en_zh_data(folder, subsets):
    """Write what scores read of data of `deepnet prepare text`: dictionaries, names of binarised files, raw text.

    The raw text of each of the subsets is CHINESE_REFERENCES, in both languages.
    """
    (folder / "raw").mkdir(parents=True)
    for lang in ("en", "zh"):
        (folder / f"dict.{lang}.txt").touch()
        for subset in subsets:
            (folder / f"{subset}.en-zh.{lang}.idx").touch()
            (folder / "raw" / f"{subset}.{lang}").write_text(as_lines(CHINESE_REFERENCES))
    return folder


@pytest.fixture
def en_zh_data(tmp_path):
    """Provide data of en-zh with CHINESE_REFERENCES as the raw references of "test"."""
    return write_en_zh_data(tmp_path / "bin", subsets=["test"])


def write_en_zh_output(path):
    """Write CHINESE_TRANSLATIONS as an output of en-zh, and its log with a speed."""
    references = with_unknown_last_words(CHINESE_REFERENCES)
    return write_generated(path, CHINESE_TRANSLATIONS, references, direction="en-zh", seconds=2.5)


@pytest.fixture
def results_file(tmp_path):
    """Provide the output as fairseq-generate --results-path names it, in a folder with its log and a stray text."""
    path = write_en_zh_output(tmp_path / "out" / "generate-test.txt")
    (path.parent / "hypotheses.txt").write_text("cut -f 3 has written this\n")
    return path


@pytest.fixture
def file_named_by_languages(tmp_path):
    """Provide the same output in a file that is named by its languages."""
    return write_en_zh_output(tmp_path / "a" / "en-zh.txt")


def test_a_score_has_the_language_raw_references_and_speed(file_named_by_languages, en_zh_data):
    result = score(file_named_by_languages, en_zh_data)

    assert "tok:zh" in result["signature"]
    assert result["reference"] == "raw"
    assert result["generation"]["seconds"] == 2.5


def test_a_folder_of_results_scores_as_a_file_named_by_languages(results_file, file_named_by_languages, en_zh_data):
    wanted = score(file_named_by_languages, en_zh_data)

    of_file = score(results_file, en_zh_data)
    of_folder = score(results_file.parent, en_zh_data)

    assert of_file == wanted
    assert of_folder == wanted


def test_a_folder_of_results_without_its_log_lacks_only_the_speed(results_file, file_named_by_languages, en_zh_data):
    without_speed = score(file_named_by_languages, en_zh_data) | {"generation": None}
    results_file.with_suffix(".log").unlink()

    of_file = score(results_file, en_zh_data)
    of_folder = score(results_file.parent, en_zh_data)

    assert of_file == without_speed
    assert of_folder == without_speed


def test_a_folder_of_results_compares_as_a_file_named_by_languages(results_file, file_named_by_languages, en_zh_data):
    rounded_bleu = score(file_named_by_languages, en_zh_data)["bleu"]  # to two decimals

    comparisons = significance(results_file.parent, [file_named_by_languages], en_zh_data)

    only = comparisons[None]  # the test set of bilingual runs has no name
    of_folder, of_file = only.results["BLEU"]
    assert of_folder.score == pytest.approx(rounded_bleu, abs=0.01)
    assert of_file.score == pytest.approx(rounded_bleu, abs=0.01)


@pytest.fixture
def data_of_two_sets(tmp_path):
    """Provide data of en-zh with the raw references CHINESE_REFERENCES, and for "valid" the same in reverse order."""
    data = write_en_zh_data(tmp_path / "bin", subsets=["test", "valid"])
    (data / "raw" / "valid.zh").write_text(as_lines(CHINESE_REFERENCES[::-1]))
    return data


@pytest.fixture
def results_of_two_sets(tmp_path):
    """Provide a folder with the results of both sets, those of "valid" in reverse order, without logs."""
    folder = tmp_path / "out"
    references = with_unknown_last_words(CHINESE_REFERENCES)
    write_generated(folder / "generate-test.txt", CHINESE_TRANSLATIONS, references)
    write_generated(folder / "generate-valid.txt", CHINESE_TRANSLATIONS[::-1], references[::-1])
    return folder


def test_each_file_of_results_is_compared_with_its_own_test_set(results_of_two_sets, data_of_two_sets):
    result = score(results_of_two_sets, data_of_two_sets)

    assert result["sets"].keys() == {"test", "valid"}
    for subset in ("test", "valid"):
        assert list(result["sets"][subset]["directions"]) == ["en-zh"]
        scores = result["sets"][subset]["directions"]["en-zh"]
        assert scores["reference"] == "raw"
        assert scores["bleu"] == pytest.approx(45.7, abs=0.1)  # by sacreBLEU; 6.8 against the other set's references
        assert result["from_english"] == scores["bleu"]


@pytest.mark.parametrize("subset", ["test", "valid"])
def test_a_file_of_results_scores_alone_as_among_others(subset, results_of_two_sets, data_of_two_sets):
    together = score(results_of_two_sets, data_of_two_sets)

    alone = score(results_of_two_sets / f"generate-{subset}.txt", data_of_two_sets)

    assert alone["bleu"] == together["sets"][subset]["directions"]["en-zh"]["bleu"]


def test_results_in_a_folder_for_each_direction_score_as_named_files(tmp_path):
    for direction, rate in (("de-en", 0.1), ("en-de", 0.3)):
        translations = with_wrong_words(REFERENCES, rate)
        write_generated(tmp_path / "results" / direction / "generate-test.txt", translations, REFERENCES)
        write_generated(tmp_path / "named" / f"{direction}.txt", translations, REFERENCES)

    of_results = score(tmp_path / "results")
    of_named = score(tmp_path / "named")

    assert of_results == of_named
    assert list(of_results["sets"]) == ["test"]
    assert list(of_results["directions"]) == ["de-en", "en-de"]


@pytest.fixture
def results_of_two_checkpoints(tmp_path):
    """Provide a folder with two translations of one test set, named by their checkpoints."""
    for checkpoint in ("checkpoint_best", "checkpoint_last"):
        path = tmp_path / "out" / f"generate-test-{checkpoint}.txt"
        write_generated(path, TRANSLATIONS, REFERENCES, direction="de-en")
    return tmp_path / "out"


def test_two_translations_of_one_test_set_are_refused(results_of_two_checkpoints):
    with refused(results_of_two_checkpoints / "generate-test-checkpoint_last.txt") as caught:
        score(results_of_two_checkpoints)

    assert "generate-test-checkpoint_best.txt" in caught.value.way_out


def test_a_checkpoint_in_the_name_of_results_is_no_direction(results_of_two_checkpoints):
    """A folder with one file of results scores as the file does."""
    (results_of_two_checkpoints / "generate-test-checkpoint_last.txt").unlink()

    of_folder = score(results_of_two_checkpoints)

    assert "directions" not in of_folder
    assert of_folder == score(results_of_two_checkpoints / "generate-test-checkpoint_best.txt")


@pytest.fixture
def file_named_run_out(tmp_path):
    """Provide an output of en-zh named run-out.txt, as if of Rundi to a language "out"; the data has neither."""
    references = with_unknown_last_words(CHINESE_REFERENCES)
    return write_generated(tmp_path / "out" / "run-out.txt", CHINESE_TRANSLATIONS, references)


def test_a_file_name_of_languages_that_the_data_lacks_is_no_direction(file_named_run_out, en_zh_data, tmp_path):
    """The only direction of the data counts."""
    references = with_unknown_last_words(CHINESE_REFERENCES)
    named = write_generated(tmp_path / "en-zh.txt", CHINESE_TRANSLATIONS, references)

    result = score(file_named_run_out, en_zh_data)

    assert result == score(named, en_zh_data)
    assert result["reference"] == "raw"


def test_a_file_name_of_languages_that_the_data_lacks_is_refused_in_a_folder(file_named_run_out, en_zh_data):
    with refused(file_named_run_out) as caught:
        score(file_named_run_out.parent, en_zh_data)

    assert "en, zh" in caught.value.way_out  # the languages of the data


# Pieces of bytes.


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory):
    """Provide a SentencePiece model that spells ö and 爿, which its training text lacks, in bytes, as <0xE7>."""
    prefix = tmp_path_factory.mktemp("spm") / "m"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(REFERENCES * 3), model_prefix=str(prefix), vocab_size=330, model_type="bpe",
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")


def joined_by_fairseq(pieces):
    """Join pieces as fairseq's --remove-bpe sentencepiece does."""
    return " ".join(pieces).replace(" ", "").replace("▁", " ").strip()


def test_bytes_are_joined_as_sentencepiece_joins_them(byte_model):
    draw = random.Random(1)
    lines = ["der Höhle 爿", "爿爿ö", "a"]
    for _ in range(50):
        letters = draw.choices("aö爿 🎉", k=9)
        lines.append("".join(letters).strip())

    for line in lines:
        pieces = byte_model.encode(line, out_type=str)
        cut = draw.randrange(len(pieces))  # often in the middle of a character
        del pieces[cut:]

        joined = join_bytes(joined_by_fairseq(pieces))

        assert joined == byte_model.decode(pieces).strip()


class Spelled(NamedTuple):
    """Translations and references as text, and the same with ö and 爿 spelled in pieces of bytes."""

    translations: list[str]
    references: list[str]
    translations_in_bytes: list[str]
    references_in_bytes: list[str]


@pytest.fixture
def spelled(byte_model):
    def in_bytes(lines):
        return [joined_by_fairseq(byte_model.encode(line, out_type=str)) for line in lines]

    translations = [f"{line} 爿 ö" for line in TRANSLATIONS]
    references = [f"{line} 爿 ö" for line in REFERENCES]
    spelled = Spelled(
        translations=translations,
        references=references,
        translations_in_bytes=in_bytes(translations),
        references_in_bytes=in_bytes(references),
    )
    assert "<0xE7>" in spelled.translations_in_bytes[0]  # the first byte of 爿 in UTF-8
    return spelled


@pytest.mark.parametrize("with_raw_references", [False, True], ids=["lines T-n", "raw references"])
def test_pieces_of_bytes_score_as_the_text_they_spell(with_raw_references, spelled, tmp_path):
    """Lines T-n may have such pieces too; raw references are text."""
    data = None
    if with_raw_references:
        data = write_prepared_corpus(tmp_path / "c", {"test.de-en": spelled.references})
    path = tmp_path / "o.txt"
    write_generated(path, spelled.translations, spelled.references, direction="de-en")
    of_text = score(path, data)
    write_generated(path, spelled.translations_in_bytes, spelled.references_in_bytes, direction="de-en")

    of_bytes = score(path, data)

    (note,) = of_bytes["notes"]
    assert "<0xE7>" in note
    assert of_bytes | {"notes": []} == of_text


def test_pieces_of_bytes_are_text_if_raw_references_have_them(spelled, tmp_path):
    """The text is about such pieces."""
    data = write_prepared_corpus(tmp_path / "about", {"test.de-en": spelled.references_in_bytes})
    path = write_generated(tmp_path / "o.txt", spelled.references_in_bytes, direction="de-en")

    assert score(path, data)["bleu"] == 100


# Pieces that were joined twice.


def without_blanks(sentences):
    return [sentence.replace(" ", "") for sentence in sentences]


def test_translations_that_lost_their_blanks_are_refused(tmp_path):
    """Lines H-n have blanks, and lines D-n have not: --bpe and --remove-bpe both joined the pieces."""
    path = tmp_path / "o.txt"
    lines_d = without_blanks(TRANSLATIONS)
    lines_t = without_blanks(REFERENCES)
    write_generated(path, lines_d, lines_t, direction="de-en", joined=TRANSLATIONS)

    with refused(path) as caught:
        score(path)

    assert "--bpe" in caught.value.way_out
    assert "--remove-bpe" in caught.value.way_out


def test_translations_whose_pieces_were_joined_once_have_no_note(tmp_path):
    """Lines H-n have pieces, each of them a word, and lines D-n the words."""
    pieces = ["▁" + line.replace(" ", " ▁") for line in TRANSLATIONS]
    path = write_generated(tmp_path / "o.txt", TRANSLATIONS, REFERENCES, direction="de-en", joined=pieces)

    assert score(path)["notes"] == []


def test_translations_of_one_long_word_are_noted_where_no_line_had_blanks(tmp_path):
    """Lines H-n and D-n are alike, so that nothing shows whether blanks were lost."""
    path = write_generated(tmp_path / "o.txt", without_blanks(TRANSLATIONS), REFERENCES, direction="de-en")

    (note,) = score(path)["notes"]

    assert f"{SENTENCES} of {SENTENCES}" in note


@pytest.mark.parametrize("mark", ["", "▁"], ids=["words of Moses", "pieces of SentencePiece"])
def test_chinese_that_lost_its_blanks_has_no_note(mark, tmp_path):
    """Moses' detokeniser drops blanks between Chinese words, and fairseq's --bpe those between Chinese pieces."""
    lines_h = [mark + " ".join(line) for line in CHINESE_TRANSLATIONS]  # a blank between any two characters
    path = tmp_path / "o.txt"
    write_generated(path, CHINESE_TRANSLATIONS, CHINESE_REFERENCES, direction="en-zh", joined=lines_h)

    assert score(path)["notes"] == []
