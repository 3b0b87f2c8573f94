"""deepnet score: BLEU of one test set, against known numbers, sacreBLEU's command and fairseq's own scorer."""

import json

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.scoring.bleu import BleuConfig, Scorer

from deepnet_fairseq.analysis.scoring import hypotheses, prepare, score
from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError

from .support.helpers import run
from .support.translated import noisy, sentences, write_corpus, write_generated

MOSES = {"pieces": "subword_nmt", "detokenise": True}
RAW = ['He said: "It\'s a well-known dog."', "No, (really) 3% of 5."]
TOKENISED = ["He said : &quot; It &apos;s a well @-@ known dog . &quot;", "No , ( really ) 3 % of 5 ."]


def test_bleu_by_hand(tmp_path):
    """5 of 6 words, 3 of 5 bigrams, 2 of 4 trigrams, 1 of 3 4-grams; the second time also one word of 7 too short."""
    path = write_generated(tmp_path / "o.txt", ["the cat sat on the mat"], ["the cat sat on a mat"])
    assert score(path)["bleu"] == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25, abs=0.005)
    path = write_generated(tmp_path / "o.txt", ["the cat sat on the mat"], ["the cat sat on a mat now"])
    result = score(path)
    assert result["bleu"] == pytest.approx(100 * 2.718282 ** (1 - 7 / 6) * (1 / 12) ** 0.25, abs=0.005)
    assert result["length_ratio"] == pytest.approx(6 / 7, abs=5e-5)


def test_identical_text_without_a_corpus(tmp_path):
    text = sentences(30)
    result = score(write_generated(tmp_path / "generated.txt", text, text, "de-en", seconds=2.5))
    assert (result["bleu"], result["kind"], result["reference"]) == (100, "sacrebleu", "generated")
    assert (result["tokenised"], result["spbleu"], result["sentences"], result["length_ratio"]) == (None, None, 30, 1)
    assert result["chrf"]["score"] == result["chrf"]["mean"] == 100 and result["sacrebleu"]["ci"] == 0
    assert result["generation"] == {"seconds": 2.5, "sentences_per_second": 12, "tokens_per_second": 120}
    assert result["signature"] == result["sacrebleu"]["signature"]
    assert "bs:1000|seed:12345|case:mixed|eff:no|tok:13a" in result["signature"]


def test_numbers_are_those_of_the_sacrebleu_command(tmp_path):
    text = sentences(80)
    bin = write_corpus(tmp_path / "corpus", {"test.de-en": text}, lowercase=True)
    wrong = noisy(text, 0.2)
    result = score(write_generated(tmp_path / "o.txt", [s.lower() for s in wrong], [s.lower() for s in text]), bin)
    (tmp_path / "ref").write_text("\n".join(text) + "\n")
    (tmp_path / "hyp").write_text("\n".join(wrong) + "\n")
    command = ("-m", "sacrebleu", tmp_path / "ref", "-i", tmp_path / "hyp", "-m", "bleu", "chrf")
    peers = json.loads(run(*command, "-lc", "--chrf-lowercase", "--confidence", "-w", "2").stdout)
    for ours, peer in zip((result["sacrebleu"], result["chrf"]), peers, strict=True):
        assert [ours["score"], ours["mean"], ours["ci"]] == [
            peer["score"], peer["confidence_mean"], peer["confidence_var"]]  # fmt: skip
        assert ours["signature"] == f"{peer['signature']}"
    assert 30 < result["bleu"] < 90 and "case:lc" in result["signature"]


def test_tokenised_bleu_is_fairseqs(tmp_path):
    """fairseq's scorer on the same words; an unknown word in the reference matches none in the translation."""
    references = sentences(60)
    translations = [s.replace("Hund", "<unk>") for s in noisy(references, 0.3)]
    references = [s.replace("Hund", "<<unk>>") for s in references]
    path = write_generated(tmp_path / "o.txt", translations, references, "de-en")
    dictionary = Dictionary()
    scorer = Scorer(BleuConfig(pad=dictionary.pad(), eos=dictionary.eos(), unk=dictionary.unk()))
    for translation, reference in zip(translations, references, strict=True):
        ids = [dictionary.encode_line(s, add_if_not_exist=True) for s in (reference, translation)]
        scorer.add(*(i.to(torch.int32) for i in ids))
    for flags in ({"paper": "tokenised"}, {"tokenize": "none"}, {"data": write_corpus(tmp_path / "c", **MOSES)}):
        result = score(path, **flags)
        assert result["tokenised"]["score"] == pytest.approx(scorer.score(), abs=1e-2)
        assert "tok:none" in result["tokenised"]["signature"]
    assert (result["kind"], score(path, tokenize="none")["kind"]) == ("sacrebleu", "tokenised")
    assert score(path, tokenize="none")["bleu"] == result["tokenised"]["score"]


def test_moses_tokens_are_undone(tmp_path):
    """The same file: 100 against the raw references; the log names the test set, or else the binarised data."""
    path = write_generated(tmp_path / "o.txt", TOKENISED, TOKENISED, "de-en")
    bin = write_corpus(tmp_path / "c", {"test.de-en": RAW, "test.en-de": ["x", "y"]}, **MOSES)
    (bin / "shard00").mkdir()
    (bin / "shard01").mkdir()
    for data in (bin, bin / "shard00", f"{bin / 'shard00'}:{bin / 'shard01'}"):
        prepared = prepare(path, data)
        assert (prepared.direction, prepared.reference) == ("de-en", "raw")
        assert prepared.hypotheses == prepared.references == RAW
        assert prepared.tokenised_hypotheses == TOKENISED
    (tmp_path / "o.log").unlink()
    with pytest.raises(UserError, match="which languages"):
        prepare(path, bin)
    (bin / "test.de-en.en.idx").touch()
    assert prepare(path, bin).references == RAW
    for file in (bin.parent / "reference").iterdir():
        file.unlink()
    prepared = prepare(path, bin)
    assert (prepared.references, prepared.reference) == (RAW, "generated")


def test_an_unknown_word_spoils_generated_references(tmp_path):
    text = sentences(40)
    spoilt = [s.replace("Hund", "<<unk>>") for s in text]
    path = write_generated(tmp_path / "o.txt", text, spoilt)
    assert score(path)["bleu"] < 95
    result = score(path, write_corpus(tmp_path / "c", {"test.de-en": text}))
    assert (result["bleu"], result["reference"]) == (100, "raw")


def test_separators_within_a_sentence_end_no_line(tmp_path):
    text = ["eins\u2028zwei drei vier fuenf", "eins\x85zwei\x0cdrei vier", "eins zwei drei\rvier", ""]
    bin = write_corpus(tmp_path / "c", {"test.de-en": text})
    path = write_generated(tmp_path / "o.txt", text)
    assert hypotheses(path) == prepare(path, bin).references == text


DAMAGE = {
    "translations are missing": lambda text: text.replace("D-1\t", "X-1\t"),
    "references are missing": lambda text: text.replace("T-2\t", "X-2\t"),
    "there twice": lambda text: text + "D-1\t-0.5\tanother\n",
    "4 translations for 3 references": lambda text: text.replace("T-3\t", "X-3\t"),
    "0 translations": lambda text: "",
    "middle of a line": lambda text: text[:-20],
    "no UTF-8": lambda text: text.encode("latin-1", "replace").replace(b"?", b"\xff"),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damaged_output(message, tmp_path):
    path = write_generated(tmp_path / "o.txt", ["a", "b", "c", "d €"], ["a", "b", "c", "d"])
    text = DAMAGE[message](path.read_text(encoding="utf-8"))
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=message) as error:
        score(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_what_cannot_be_scored(tmp_path):
    path = write_generated(tmp_path / "o.txt", ["a", "b"])
    bin = write_corpus(tmp_path / "c", {"test.de-en": ["a", "b", "c"]})
    with pytest.raises(UserError, match=r"2 translations for 3 lines of .*test\.de-en\.en"):
        score(path, bin)
    with pytest.raises(UserError, match="no references"):
        score(path)
    with pytest.raises(UserError, match="no such folder"):
        score(path, tmp_path / "elsewhere" / "bin")
    (bin.parent / "reference" / "test.de-en.en").write_text("a\nb\n")
    with pytest.raises(UserError, match="--paper tokenised"):
        score(path, bin, paper="tokenised")
    with pytest.raises(UserError, match="tokenizer klingon"):
        score(path, write_corpus(tmp_path / "k", {"test.de-en": ["a", "b"]}, tokenize="klingon"))
    with pytest.raises(UserError, match="which languages"):
        score(write_generated(path, ["a"], ["a"]), write_corpus(tmp_path / "m", **MOSES))
    (bin.parent / "recipe.json").write_text("{")
    with pytest.raises(UserError, match=r"recipe\.json: is damaged"):
        score(path, bin)


def test_command(tmp_path, capsys):
    path, out = write_generated(tmp_path / "o.txt", ["a b c d"], ["a b c d"]), tmp_path / "score.json"
    main(["score", str(path), "--tokenize", "none", "--out", str(out)])
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text()) == score(path, tokenize="none")
    with pytest.raises(SystemExit, match="deepnet: error: --out"):
        main(["score", str(path), "--out", str(path)])
    with pytest.raises(SystemExit, match=r"deepnet: error: .*absent\.txt: no such file"):
        main(["score", str(tmp_path / "absent.txt"), "--out", str(tmp_path / "none.json")])
    assert not (tmp_path / "none.json").exists()
