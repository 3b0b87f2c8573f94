"""deepnet score: many directions, their means, and which are missing."""

import json
from statistics import fmean

import pytest

from deepnet_fairseq.analysis.scoring import score
from deepnet_fairseq.analysis.scoring.kinds import PaperKinds
from deepnet_fairseq.analysis.scoring.multilingual import group
from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError

from .support.translated import noisy, sentences, write_corpus, write_generated

NOISE = {"de-en": 0.1, "fr-en": 0.2, "en-de": 0.3, "en-fr": 0.4, "de-fr": 0.5}
TEXT = {direction: sentences(40, seed) for seed, direction in enumerate(NOISE)}


def translate(folder, directions=NOISE, seconds=1.5):
    for direction in directions:
        wrong = noisy(TEXT[direction], NOISE[direction])
        write_generated(folder / f"{direction}.txt", wrong, TEXT[direction], seconds=seconds)
    return folder


def test_means_are_those_of_directions_scored_alone(tmp_path):
    result = score(translate(tmp_path / "run" / "generated").parent)
    alone = {d: score(tmp_path / "run" / "generated" / f"{d}.txt") for d in NOISE}
    assert result["directions"] == alone == result["sets"]["test"]["directions"]
    bleu = {direction: scores["bleu"] for direction, scores in alone.items()}
    assert len(set(bleu.values())) == 5
    assert result["bleu"] == pytest.approx(fmean(bleu.values()), abs=0.011)
    assert result["to_english"] == pytest.approx((bleu["de-en"] + bleu["fr-en"]) / 2, abs=0.011)
    assert result["from_english"] == pytest.approx((bleu["en-de"] + bleu["en-fr"]) / 2, abs=0.011)
    assert result["between_others"] == bleu["de-fr"]
    assert (result["kind"], result["generation"], result["missing"]) == ("sacrebleu", {"seconds": 7.5}, {})


@pytest.mark.parametrize(
    ("direction", "expected"),
    [("de-eng", "to_english"), ("eng_Latn-ces_Latn", "from_english"), ("es-de", "between_others")],
)
def test_english_by_its_codes(direction, expected):
    assert group(direction) == expected


def test_a_direction_is_scored_in_its_own_language(tmp_path):
    write_generated(tmp_path / "g" / "en-zh.txt", ["\u6211\u7231\u4f60\u4eec"], ["\u6211\u7231\u4f60\u4eec\u5417"])
    write_generated(tmp_path / "g" / "zh-en.txt", ["I love you all"], ["I love you all"])
    result = score(tmp_path / "g", write_corpus(tmp_path / "c", tokenize="language"))
    assert "tok:zh|" in result["directions"]["en-zh"]["signature"]
    assert "tok:13a|" in result["directions"]["zh-en"]["signature"]
    assert "tok:13a|" in result["signature"] and "tok:zh|" in result["signature"]
    assert result["between_others"] is None and result["generation"] is None


def test_sets(tmp_path):
    """The subset "test" is what the top level repeats; without it, the mean of the sets."""
    translate(tmp_path / "flores", ["de-en", "en-de"])
    translate(tmp_path / "ted", ["de-fr"])
    result = score(tmp_path)
    flores, ted = result["sets"]["flores"], result["sets"]["ted"]
    assert list(flores["directions"]) == ["de-en", "en-de"] and list(ted["directions"]) == ["de-fr"]
    assert flores["to_english"] > flores["bleu"] > flores["from_english"] > ted["bleu"]
    assert result["bleu"] == pytest.approx((flores["bleu"] + ted["bleu"]) / 2, abs=0.011)
    assert result["to_english"] == flores["to_english"] and result["between_others"] == ted["between_others"]
    assert result["directions"] == {}
    translate(tmp_path / "test", ["fr-en"])
    result = score(tmp_path)
    assert result["bleu"] == result["sets"]["test"]["bleu"] == result["directions"]["fr-en"]["bleu"]
    assert set(result["sets"]) == {"flores", "ted", "test"} and result["generation"] == {"seconds": 6}


def test_missing_directions(tmp_path, capsys):
    """xx-en was trained on, but has no test set; the other five are to be translated."""
    references = {f"test.{direction}": text for direction, text in TEXT.items()}
    bin = write_corpus(tmp_path / "c", references, pairs=[*NOISE, "xx-en"])
    folder = translate(tmp_path / "generated", ["de-en", "en-fr", "fr-en"])
    with pytest.raises(UserError, match=r"2 directions .* missing in test \(de-fr, en-de\).*--partial"):
        score(folder, bin)
    main(["score", str(folder), "--data", str(bin), "--partial"])
    result = json.loads(capsys.readouterr().out)
    assert result["missing"] == {"test": ["de-fr", "en-de"]} and len(result["directions"]) == 3
    assert {scores["reference"] for scores in result["directions"].values()} == {"raw"}
    translate(tmp_path / "generated")
    assert score(folder, bin)["missing"] == {}
    (bin / "shard00").mkdir()
    (folder / "fr-en.txt").unlink()
    with pytest.raises(UserError, match=r"1 directions .*\(fr-en\)"):
        score(folder, f"{bin}/shard00:{bin}/shard01")


def test_no_directions(tmp_path):
    (tmp_path / "generate-test.txt").write_text("what --results-path writes")
    with pytest.raises(UserError, match=r"neither generated\.txt nor"):
        score(tmp_path)


def test_the_papers_kind_may_differ_by_test_set():
    kinds = PaperKinds("sacrebleu,flores=spbleu")
    assert [kinds.of(subset) for subset in ("wmt", "flores", "test")] == ["sacrebleu", "spbleu", "sacrebleu"]
    assert PaperKinds(None, "flores200").of("test") == "spbleu" and PaperKinds("tokenised").of("test") == "tokenised"
    with pytest.raises(UserError, match="--paper bleu: bleu is none of tokenised, sacrebleu, spbleu"):
        PaperKinds("bleu")
