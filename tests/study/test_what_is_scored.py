"""Tests that `deepnet score` scores translations: not the references, pieces of words, or another test set.

The right number is known each time: from the same text in another file, or by hand.
"""

import json
import random

import pytest
import sentencepiece

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study.scoring.paired import significance
from deepnet_fairseq.study.scoring.pieces import join_bytes
from deepnet_fairseq.study.scoring.scores import score

from ..support.translated import noisy, sentences, write_corpus, write_generated

TEXT = sentences(40)
WRONG = noisy(TEXT, 0.3)


def test_references_under_forced_decoding_are_refused(tmp_path):
    path = write_generated(tmp_path / "o.txt", TEXT, TEXT, "de-en", score_reference=True)
    other = write_generated(tmp_path / "other.txt", WRONG, TEXT, "de-en")
    with pytest.raises(UserError, match=r"o\.txt: .*--score-reference"):
        score(path)
    with pytest.raises(UserError, match=r"o\.txt: .*--score-reference"):
        significance(other, [path])
    log = (tmp_path / "o.log").read_text()
    (tmp_path / "o.log").unlink()
    path.write_text(log + path.read_text())  # the log of --results-path is in the file itself
    with pytest.raises(UserError, match=r"o\.txt: .*--score-reference"):
        score(path)
    path.write_text(path.read_text().replace("'score_reference': True", "score_reference=True"))
    with pytest.raises(UserError, match=r"o\.txt: .*--score-reference"):
        score(path)


def test_the_last_run_of_a_log_counts(tmp_path):
    path = write_generated(tmp_path / "o.txt", WRONG, TEXT, "de-en", score_reference=True)
    log = (tmp_path / "o.log").read_text()
    write_generated(path, WRONG, TEXT, "de-en")
    (tmp_path / "o.log").write_text(log + (tmp_path / "o.log").read_text())
    assert score(path)["notes"] == []


@pytest.mark.parametrize(
    ("settings", "flag"), [({"prefix_size": 3}, "--prefix-size 3"), ({"constraints": "ordered"}, "--constraints")]
)
def test_parts_of_the_references_are_noted(settings, flag, tmp_path, capsys):
    path = write_generated(tmp_path / "o.txt", WRONG, TEXT, "de-en", **settings)
    free = write_generated(tmp_path / "free.txt", WRONG, TEXT, "de-en")
    (note,) = score(path)["notes"]
    assert flag in note and score(free)["notes"] == []
    main(["score", str(path)])
    assert f"note: {note}" in capsys.readouterr().out
    main(["score", str(free), str(path)])
    assert f"note: {note}" in capsys.readouterr().out
    main(["score", str(free), str(path), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["notes"] == [note]


def forced(lines, words):
    """Return wrong translations that begin with as many words of their references."""
    pairs = zip(lines, noisy(lines, 1.0), strict=True)
    return [" ".join(line.split()[:words] + wrong.split()[words:]) for line, wrong in pairs]


def test_without_a_log_the_text_tells(tmp_path):
    """Equal text is noted if no log is there, also where <unk> stands; so are the beginnings of all references."""
    unknown = [line.replace("Hund", "<<unk>>") for line in TEXT]
    for translations, references, flag in (
        (TEXT, TEXT, "--score-reference"),
        ([line.replace("Hund", "<unk>") for line in TEXT], unknown, "--score-reference"),
        (forced(TEXT, 2), TEXT, "--prefix-size"),
    ):
        (note,) = score(write_generated(tmp_path / "o.txt", translations, references))["notes"]
        assert flag in note
    bin = write_corpus(tmp_path / "c", {"test.de-en": TEXT})
    (note,) = score(write_generated(tmp_path / "de-en.txt", TEXT), bin)["notes"]
    assert "--score-reference" in note
    for translations in (WRONG, forced(TEXT[:9], 2) + WRONG[9:]):
        assert score(write_generated(tmp_path / "o.txt", translations, TEXT))["notes"] == []
    assert score(write_generated(tmp_path / "o.txt", TEXT, TEXT, "de-en"))["notes"] == []  # its log says no


def write_data(folder, langs=("en", "zh"), subsets=("test",), text=()):
    """Write what scores read of data of `deepnet prepare text`: dictionaries, names of binarised files, raw text."""
    (folder / "raw").mkdir(parents=True)
    for lang in langs:
        (folder / f"dict.{lang}.txt").touch()
        for subset in subsets:
            (folder / f"{subset}.{langs[0]}-{langs[1]}.{lang}.idx").touch()
            (folder / "raw" / f"{subset}.{lang}").write_text("".join(f"{line}\n" for line in text))
    return folder


CHINESE = ["我是一个学生，真的。", "今天天气很好。", "他们去了北京。"]
WRONG_CHINESE = ["我是学生，真的。", "今天的天气好。", "他去了北京吗？"]


def spoilt(text):
    return [f"{line} <<unk>>" for line in text]


def test_the_folder_of_results_scores_as_its_file(tmp_path):
    """A folder of --results-path gives the numbers of its file: language, raw references and speed."""
    bin = write_data(tmp_path / "bin", text=CHINESE)
    wanted = score(write_generated(tmp_path / "a" / "en-zh.txt", WRONG_CHINESE, spoilt(CHINESE), "en-zh", 2.5), bin)
    file = write_generated(tmp_path / "out" / "generate-test.txt", WRONG_CHINESE, spoilt(CHINESE), "en-zh", 2.5)
    (tmp_path / "out" / "hypotheses.txt").write_text("cut -f 3 has written this\n")
    assert score(tmp_path / "out", bin) == score(file, bin) == wanted
    assert "tok:zh" in wanted["signature"] and wanted["reference"] == "raw" and wanted["generation"]["seconds"] == 2.5
    (tmp_path / "out" / "generate-test.log").unlink()
    assert score(tmp_path / "out", bin) == score(file, bin) == wanted | {"generation": None}
    ours = significance(tmp_path / "out", [tmp_path / "a" / "en-zh.txt"], bin)[None]
    assert [result.score for result in ours.results["BLEU"]] == [pytest.approx(wanted["bleu"], abs=0.01)] * 2


def test_several_test_sets_of_results(tmp_path):
    """Each generate-SUBSET.txt is compared with the raw text of its own test set."""
    bin = write_data(tmp_path / "bin", subsets=("test", "valid"), text=CHINESE)
    (tmp_path / "bin" / "raw" / "valid.zh").write_text("".join(f"{line}\n" for line in CHINESE[::-1]))
    write_generated(tmp_path / "out" / "generate-test.txt", WRONG_CHINESE, spoilt(CHINESE))
    write_generated(tmp_path / "out" / "generate-valid.txt", WRONG_CHINESE[::-1], spoilt(CHINESE[::-1]))
    result = score(tmp_path / "out", bin)
    assert {name: list(one["directions"]) for name, one in result["sets"].items()} == {
        "test": ["en-zh"], "valid": ["en-zh"]}  # fmt: skip
    test, valid = (one["directions"]["en-zh"] for one in result["sets"].values())
    assert (test["bleu"], test["reference"]) == (valid["bleu"], valid["reference"]) and test["reference"] == "raw"
    assert result["from_english"] == test["bleu"] == score(tmp_path / "out" / "generate-test.txt", bin)["bleu"]
    assert score(tmp_path / "out" / "generate-valid.txt", bin)["bleu"] == valid["bleu"] > 20


def test_results_in_a_folder_a_direction(tmp_path):
    for direction, rate in (("de-en", 0.1), ("en-de", 0.3)):
        write_generated(tmp_path / "out" / direction / "generate-test.txt", noisy(TEXT, rate), TEXT)
        write_generated(tmp_path / "same" / f"{direction}.txt", noisy(TEXT, rate), TEXT)
    ours, same = score(tmp_path / "out"), score(tmp_path / "same")
    for result in (ours, same):
        for one in result["directions"].values():
            one.pop("notes")
    assert ours == same and list(ours["sets"]) == ["test"]


def test_two_translations_of_one_test_set_are_refused(tmp_path):
    for name in ("generate-test-checkpoint_best.txt", "generate-test-checkpoint_last.txt"):
        path = write_generated(tmp_path / "out" / name, WRONG, TEXT, "de-en")
    with pytest.raises(UserError, match=f"{path}: .*checkpoint_best"):
        score(tmp_path / "out")
    path.unlink()
    assert "directions" not in score(tmp_path / "out")


def test_names_of_other_languages_than_the_datas(tmp_path):
    """A file's name is read as languages only if they are the data's; in a folder another name is refused."""
    bin = write_data(tmp_path / "bin", text=CHINESE)
    file = write_generated(tmp_path / "out" / "run-out.txt", WRONG_CHINESE, spoilt(CHINESE))
    wanted = write_generated(tmp_path / "en-zh.txt", WRONG_CHINESE, spoilt(CHINESE))
    assert score(file, bin) == score(wanted, bin) and score(file, bin)["reference"] == "raw"
    with pytest.raises(UserError, match=rf"{file}: .*en, zh"):
        score(tmp_path / "out", bin)


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    """Provide a SentencePiece model with byte fallback, to which ö and 爿 are unknown."""
    prefix = tmp_path_factory.mktemp("spm") / "m"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 3), model_prefix=str(prefix), vocab_size=330, model_type="bpe",
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")


def removed(pieces):
    """Join pieces as fairseq's --remove-bpe sentencepiece does."""
    return " ".join(pieces).replace(" ", "").replace("▁", " ").strip()


def test_bytes_are_joined_as_sentencepiece_joins_them(spm):
    draw = random.Random(1)
    for line in ["der Höhle 爿", "爿爿ö", "a", *("".join(draw.choices("aö爿 🎉", k=9)).strip() for _ in range(50))]:
        pieces = spm.encode(line, out_type=str)
        del pieces[draw.randrange(len(pieces)) :]  # often in the middle of a character
        assert join_bytes(removed(pieces)) == spm.decode(pieces).strip()


def test_scores_of_pieces_of_bytes_are_those_of_the_text(spm, tmp_path):
    """Bytes count as what they spell, in T- lines too; raw references that are text about bytes leave them."""
    text = [f"{line} 爿 ö" for line in TEXT]
    wrong = [f"{line} 爿 ö" for line in WRONG]
    cut = {name: [removed(spm.encode(line, out_type=str)) for line in side]
           for name, side in {"text": text, "wrong": wrong}.items()}  # fmt: skip
    assert "<0x" in cut["wrong"][0]
    bin = write_corpus(tmp_path / "c", {"test.de-en": text})
    for data in (None, bin):
        wanted = score(write_generated(tmp_path / "o.txt", wrong, text, "de-en"), data)
        found = score(write_generated(tmp_path / "o.txt", cut["wrong"], cut["text"], "de-en"), data)
        assert "<0xE7>" in found["notes"][0] and found | {"notes": []} == wanted
    about = write_corpus(tmp_path / "about", {"test.de-en": cut["text"]})
    assert score(write_generated(tmp_path / "o.txt", cut["text"], direction="de-en"), about)["bleu"] == 100


def without_blanks(text):
    return [line.replace(" ", "") for line in text]


def test_text_that_was_joined_twice(tmp_path):
    """Lines D- that lost the blanks of H- are refused; without H- the long words are noted."""
    with pytest.raises(UserError, match=r"o\.txt: .*--bpe and --remove-bpe"):
        score(write_generated(tmp_path / "o.txt", without_blanks(WRONG), without_blanks(TEXT), "de-en", joined=WRONG))
    pieces = ["▁" + line.replace(" ", " ▁") for line in WRONG]
    assert score(write_generated(tmp_path / "o.txt", WRONG, TEXT, "de-en", joined=pieces))["notes"] == []
    (note,) = score(write_generated(tmp_path / "o.txt", without_blanks(WRONG), TEXT, "de-en"))["notes"]
    assert "joined twice" in note


def test_chinese_without_blanks_is_text(tmp_path):
    """Moses' detokeniser drops blanks between Chinese words, and fairseq's --bpe those between Chinese pieces."""
    for joined in ([" ".join(line) for line in WRONG_CHINESE], ["▁" + " ".join(line) for line in WRONG_CHINESE]):
        path = write_generated(tmp_path / "o.txt", WRONG_CHINESE, CHINESE, "en-zh", joined=joined)
        assert score(path)["notes"] == []
