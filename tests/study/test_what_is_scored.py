"""Tests that `deepnet score` scores translations: not the references, pieces of words, or another test set.

The right number is known each time: from the same text in another file, or by hand.
"""

import json
import random

import pytest
import sentencepiece

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.scoring.paired import significance
from deepnet_fairseq.study.scoring.pieces import join_bytes
from deepnet_fairseq.study.scoring.scores import score

from ..support.errors import refused
from ..support.translated import as_lines, random_sentences, with_wrong_words, write_generated, write_prepared_corpus

TEXT = random_sentences(40)
WRONG = with_wrong_words(TEXT, 0.3)
CHINESE = ["我是一个学生，真的。", "今天天气很好。", "他们去了北京。"]
WRONG_CHINESE = ["我是学生，真的。", "今天的天气好。", "他去了北京吗？"]


def with_unknown_words(sentences):
    """Return references as fairseq-generate prints them of words that the dictionary lacks, so that none match."""
    return [f"{sentence} <<unk>>" for sentence in sentences]


# References that were forced into the search.


@pytest.fixture
def output_of_references(tmp_path):
    """Provide the output and log of fairseq-generate --score-reference."""
    return write_generated(tmp_path / "o.txt", TEXT, TEXT, direction="de-en", score_reference=True)


def move_log_into(output):
    """Put the log beside an output into the output itself, where fairseq-generate --results-path has it."""
    log = output.with_suffix(".log")
    output.write_text(log.read_text() + output.read_text())
    log.unlink()


def assert_refused_as_references(output):
    with refused(output) as caught:
        score(output)

    assert "--score-reference" in caught.value.way_out


def test_references_are_refused_by_the_log_beside(output_of_references):
    assert_refused_as_references(output_of_references)


def test_references_are_refused_by_the_log_in_the_output(output_of_references):
    move_log_into(output_of_references)

    assert_refused_as_references(output_of_references)


def test_references_are_refused_by_settings_printed_as_a_namespace(output_of_references):
    """Releases before 0.10 print their settings so."""
    move_log_into(output_of_references)
    as_namespace = output_of_references.read_text().replace("'score_reference': True", "score_reference=True")
    output_of_references.write_text(as_namespace)

    assert_refused_as_references(output_of_references)


def test_references_are_refused_as_a_system_to_compare(output_of_references, tmp_path):
    baseline = write_generated(tmp_path / "other.txt", WRONG, TEXT, direction="de-en")

    with refused(output_of_references) as caught:
        significance(baseline, [output_of_references])

    assert "--score-reference" in caught.value.way_out


def test_the_last_run_of_a_log_counts(output_of_references):
    log = output_of_references.with_suffix(".log")
    of_first_run = log.read_text()
    write_generated(output_of_references, WRONG, TEXT, direction="de-en")
    log.write_text(of_first_run + log.read_text())

    assert score(output_of_references)["notes"] == []


@pytest.fixture(params=[({"prefix_size": 3}, "--prefix-size 3"), ({"constraints": "ordered"}, "--constraints")])
def output_with_prescribed_words(request, tmp_path):
    """Provide an output whose search was given parts of the references, and the flag that did so."""
    settings, flag = request.param
    path = write_generated(tmp_path / "o.txt", WRONG, TEXT, direction="de-en", **settings)
    return path, flag


@pytest.fixture
def free_output(tmp_path):
    """Provide an output whose search was free."""
    return write_generated(tmp_path / "free.txt", WRONG, TEXT, direction="de-en")


def test_parts_of_the_references_in_the_search_are_noted(output_with_prescribed_words):
    path, flag = output_with_prescribed_words

    (note,) = score(path)["notes"]

    assert flag in note


def test_a_free_search_has_no_note(free_output):
    assert score(free_output)["notes"] == []


def test_notes_are_printed_below_scores(output_with_prescribed_words, capsys):
    path, _ = output_with_prescribed_words
    (note,) = score(path)["notes"]

    main(["score", str(path)])

    assert f"note: {note}" in capsys.readouterr().out


def test_notes_are_printed_below_comparisons(output_with_prescribed_words, free_output, capsys):
    path, _ = output_with_prescribed_words
    (note,) = score(path)["notes"]

    main(["score", str(free_output), str(path)])

    assert f"note: {note}" in capsys.readouterr().out


def test_notes_are_in_the_json_of_comparisons(output_with_prescribed_words, free_output, capsys):
    path, _ = output_with_prescribed_words
    (note,) = score(path)["notes"]

    main(["score", str(free_output), str(path), "--json"])

    assert json.loads(capsys.readouterr().out)[0]["notes"] == [note]


# The same without a log, from the text alone.


def beginning_as_references(references, words):
    """Return wrong translations that begin with as many words of their references."""
    wrong = with_wrong_words(references, 1.0)
    forced = []
    for reference, line in zip(references, wrong, strict=True):
        forced.append(" ".join(reference.split()[:words] + line.split()[words:]))
    return forced


WITH_UNK = [line.replace("Hund", "<unk>") for line in TEXT]  # where an unknown word was forced into the translation
WITH_UNK_IN_REFERENCES = [line.replace("Hund", "<<unk>>") for line in TEXT]


@pytest.mark.parametrize(
    ("translations", "references", "flag"),
    [
        (TEXT, TEXT, "--score-reference"),
        (WITH_UNK, WITH_UNK_IN_REFERENCES, "--score-reference"),
        (beginning_as_references(TEXT, words=2), TEXT, "--prefix-size"),
    ],
    ids=["equal", "equal but for unk", "equal beginnings"],
)
def test_text_like_the_references_is_noted_without_a_log(translations, references, flag, tmp_path):
    path = write_generated(tmp_path / "o.txt", translations, references)

    (note,) = score(path)["notes"]

    assert flag in note


def test_text_equal_to_raw_references_is_noted_without_a_log(tmp_path):
    data = write_prepared_corpus(tmp_path / "c", {"test.de-en": TEXT})
    path = write_generated(tmp_path / "de-en.txt", TEXT)

    (note,) = score(path, data)["notes"]

    assert "--score-reference" in note


@pytest.mark.parametrize(
    "translations",
    [WRONG, beginning_as_references(TEXT[:9], words=2) + WRONG[9:]],
    ids=["other text", "some equal beginnings"],
)
def test_text_unlike_the_references_has_no_note(translations, tmp_path):
    path = write_generated(tmp_path / "o.txt", translations, TEXT)

    assert score(path)["notes"] == []


def test_equal_text_has_no_note_if_the_log_says_that_it_was_translated(tmp_path):
    path = write_generated(tmp_path / "o.txt", TEXT, TEXT, direction="de-en")

    assert score(path)["notes"] == []


# The test set that an output is of.


def write_text_data(folder, langs=("en", "zh"), subsets=("test",), text=CHINESE):
    """Write what scores read of data of `deepnet prepare text`: dictionaries, names of binarised files, raw text."""
    source, target = langs
    (folder / "raw").mkdir(parents=True)
    for lang in langs:
        (folder / f"dict.{lang}.txt").touch()
        for subset in subsets:
            (folder / f"{subset}.{source}-{target}.{lang}.idx").touch()
            (folder / "raw" / f"{subset}.{lang}").write_text(as_lines(text))
    return folder


@pytest.fixture
def chinese_data(tmp_path):
    """Provide data of en-zh with the test set CHINESE."""
    return write_text_data(tmp_path / "bin")


@pytest.fixture
def results_file(tmp_path):
    """Provide the file of fairseq-generate --results-path, alone in its folder but for its log and a stray text."""
    references = with_unknown_words(CHINESE)
    path = tmp_path / "out" / "generate-test.txt"
    write_generated(path, WRONG_CHINESE, references, direction="en-zh", seconds=2.5)
    (path.parent / "hypotheses.txt").write_text("cut -f 3 has written this\n")
    return path


@pytest.fixture
def file_named_by_languages(tmp_path):
    """Provide the same output in a file that is named by its languages."""
    references = with_unknown_words(CHINESE)
    return write_generated(tmp_path / "a" / "en-zh.txt", WRONG_CHINESE, references, direction="en-zh", seconds=2.5)


def test_a_folder_of_results_scores_as_its_file(results_file, file_named_by_languages, chinese_data):
    """It has the file's language, raw references and speed."""
    wanted = score(file_named_by_languages, chinese_data)
    assert "tok:zh" in wanted["signature"]
    assert wanted["reference"] == "raw"
    assert wanted["generation"]["seconds"] == 2.5

    assert score(results_file, chinese_data) == wanted
    assert score(results_file.parent, chinese_data) == wanted


def test_a_folder_of_results_without_its_log_lacks_only_the_speed(results_file, file_named_by_languages, chinese_data):
    wanted = score(file_named_by_languages, chinese_data) | {"generation": None}
    results_file.with_suffix(".log").unlink()

    assert score(results_file, chinese_data) == wanted
    assert score(results_file.parent, chinese_data) == wanted


def test_a_folder_of_results_compares_as_its_file(results_file, file_named_by_languages, chinese_data):
    bleu = score(file_named_by_languages, chinese_data)["bleu"]

    comparison = significance(results_file.parent, [file_named_by_languages], chinese_data)[None]

    of_folder, of_file = comparison.results["BLEU"]
    assert of_folder.score == pytest.approx(bleu, abs=0.01)
    assert of_file.score == pytest.approx(bleu, abs=0.01)


@pytest.fixture
def data_of_two_sets(tmp_path):
    """Provide data of en-zh with the test sets CHINESE and, as "valid", the same sentences in reverse order."""
    data = write_text_data(tmp_path / "bin", subsets=("test", "valid"))
    (data / "raw" / "valid.zh").write_text(as_lines(CHINESE[::-1]))
    return data


@pytest.fixture
def results_of_two_sets(tmp_path):
    """Provide a folder with the results of both sets."""
    folder = tmp_path / "out"
    write_generated(folder / "generate-test.txt", WRONG_CHINESE, with_unknown_words(CHINESE))
    write_generated(folder / "generate-valid.txt", WRONG_CHINESE[::-1], with_unknown_words(CHINESE[::-1]))
    return folder


def test_each_file_of_results_is_compared_with_its_own_test_set(results_of_two_sets, data_of_two_sets):
    result = score(results_of_two_sets, data_of_two_sets)

    assert result["sets"].keys() == {"test", "valid"}
    for subset in ("test", "valid"):
        assert list(result["sets"][subset]["directions"]) == ["en-zh"]
    test = result["sets"]["test"]["directions"]["en-zh"]
    valid = result["sets"]["valid"]["directions"]["en-zh"]
    assert test["reference"] == "raw"
    assert valid["reference"] == "raw"
    assert test["bleu"] == valid["bleu"]
    assert test["bleu"] > 20
    assert result["from_english"] == test["bleu"]


@pytest.mark.parametrize("subset", ["test", "valid"])
def test_a_file_of_results_scores_alone_as_among_others(subset, results_of_two_sets, data_of_two_sets):
    together = score(results_of_two_sets, data_of_two_sets)

    alone = score(results_of_two_sets / f"generate-{subset}.txt", data_of_two_sets)

    assert alone["bleu"] == together["sets"][subset]["directions"]["en-zh"]["bleu"]


def test_a_folder_of_results_for_each_direction_scores_as_named_files(tmp_path):
    for direction, rate in (("de-en", 0.1), ("en-de", 0.3)):
        wrong = with_wrong_words(TEXT, rate)
        write_generated(tmp_path / "results" / direction / "generate-test.txt", wrong, TEXT)
        write_generated(tmp_path / "named" / f"{direction}.txt", wrong, TEXT)

    of_results = score(tmp_path / "results")
    of_named = score(tmp_path / "named")

    for scores in (*of_results["directions"].values(), *of_named["directions"].values()):
        scores.pop("notes")  # they name the file
    assert of_results == of_named
    assert list(of_results["sets"]) == ["test"]


@pytest.fixture
def results_of_two_checkpoints(tmp_path):
    """Provide a folder with two translations of one test set."""
    for checkpoint in ("checkpoint_best", "checkpoint_last"):
        path = tmp_path / "out" / f"generate-test-{checkpoint}.txt"
        write_generated(path, WRONG, TEXT, direction="de-en")
    return tmp_path / "out"


def test_two_translations_of_one_test_set_are_refused(results_of_two_checkpoints):
    with refused(results_of_two_checkpoints / "generate-test-checkpoint_last.txt") as caught:
        score(results_of_two_checkpoints)

    assert "generate-test-checkpoint_best.txt" in caught.value.way_out


def test_a_name_with_a_checkpoint_is_one_of_results(results_of_two_checkpoints):
    (results_of_two_checkpoints / "generate-test-checkpoint_last.txt").unlink()

    result = score(results_of_two_checkpoints)

    assert "directions" not in result


def test_a_name_of_other_languages_than_the_datas_is_only_a_name(chinese_data, tmp_path):
    """run-out would be Rundi to a language "out"; the data's only direction counts."""
    odd = write_generated(tmp_path / "out" / "run-out.txt", WRONG_CHINESE, with_unknown_words(CHINESE))
    named = write_generated(tmp_path / "en-zh.txt", WRONG_CHINESE, with_unknown_words(CHINESE))

    result = score(odd, chinese_data)

    assert result == score(named, chinese_data)
    assert result["reference"] == "raw"


def test_a_name_of_other_languages_than_the_datas_is_refused_in_a_folder(chinese_data, tmp_path):
    odd = write_generated(tmp_path / "out" / "run-out.txt", WRONG_CHINESE, with_unknown_words(CHINESE))

    with refused(odd) as caught:
        score(tmp_path / "out", chinese_data)

    assert "en, zh" in caught.value.way_out


# Pieces of bytes.


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory):
    """Provide a SentencePiece model with byte fallback, to which ö and 爿 are unknown."""
    prefix = tmp_path_factory.mktemp("spm") / "m"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 3), model_prefix=str(prefix), vocab_size=330, model_type="bpe",
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
        del pieces[draw.randrange(len(pieces)) :]  # often in the middle of a character
        assert join_bytes(joined_by_fairseq(pieces)) == byte_model.decode(pieces).strip()


@pytest.fixture
def text_of_bytes(byte_model):
    """Provide references and wrong translations with characters that the model lacks, plain and in pieces of bytes."""

    def in_bytes(lines):
        return [joined_by_fairseq(byte_model.encode(line, out_type=str)) for line in lines]

    references = [f"{line} 爿 ö" for line in TEXT]
    translations = [f"{line} 爿 ö" for line in WRONG]
    return {
        "references": references,
        "translations": translations,
        "references in bytes": in_bytes(references),
        "translations in bytes": in_bytes(translations),
    }


@pytest.mark.parametrize("with_raw_references", [False, True])
def test_pieces_of_bytes_score_as_the_text_they_spell(with_raw_references, text_of_bytes, tmp_path):
    """This holds in lines T-n, too."""
    data = None
    if with_raw_references:
        data = write_prepared_corpus(tmp_path / "c", {"test.de-en": text_of_bytes["references"]})
    path = tmp_path / "o.txt"
    write_generated(path, text_of_bytes["translations"], text_of_bytes["references"], direction="de-en")
    of_text = score(path, data)
    assert "<0x" in text_of_bytes["translations in bytes"][0]
    write_generated(path, text_of_bytes["translations in bytes"], text_of_bytes["references in bytes"], "de-en")

    of_bytes = score(path, data)

    assert "<0xE7>" in of_bytes["notes"][0]
    assert of_bytes | {"notes": []} == of_text


def test_raw_references_about_bytes_leave_them_as_they_are(text_of_bytes, tmp_path):
    text_about_bytes = text_of_bytes["references in bytes"]
    data = write_prepared_corpus(tmp_path / "about", {"test.de-en": text_about_bytes})
    path = write_generated(tmp_path / "o.txt", text_about_bytes, direction="de-en")

    assert score(path, data)["bleu"] == 100


# Pieces that were joined twice.


def without_blanks(sentences):
    return [sentence.replace(" ", "") for sentence in sentences]


def test_translations_that_lost_their_blanks_are_refused(tmp_path):
    """Lines H-n have blanks, and lines D-n have not: --bpe and --remove-bpe both joined the pieces."""
    path = tmp_path / "o.txt"
    write_generated(path, without_blanks(WRONG), without_blanks(TEXT), direction="de-en", joined=WRONG)

    with refused(path) as caught:
        score(path)

    assert "--bpe" in caught.value.way_out
    assert "--remove-bpe" in caught.value.way_out


def test_translations_whose_pieces_were_joined_once_have_no_note(tmp_path):
    pieces = ["▁" + line.replace(" ", " ▁") for line in WRONG]
    path = write_generated(tmp_path / "o.txt", WRONG, TEXT, direction="de-en", joined=pieces)

    assert score(path)["notes"] == []


def test_long_words_are_noted_where_no_line_tells_whether_blanks_were_lost(tmp_path):
    path = write_generated(tmp_path / "o.txt", without_blanks(WRONG), TEXT, direction="de-en")

    (note,) = score(path)["notes"]

    assert "40 of 40" in note


@pytest.mark.parametrize("mark", ["", "▁"], ids=["words of Moses", "pieces of SentencePiece"])
def test_chinese_that_lost_its_blanks_is_text(mark, tmp_path):
    """Moses' detokeniser drops blanks between Chinese words, and fairseq's --bpe those between Chinese pieces."""
    joined = [mark + " ".join(line) for line in WRONG_CHINESE]
    path = write_generated(tmp_path / "o.txt", WRONG_CHINESE, CHINESE, direction="en-zh", joined=joined)

    assert score(path)["notes"] == []
