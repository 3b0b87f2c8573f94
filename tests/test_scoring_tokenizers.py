"""Which tokenizer scores which language, and spBLEU against BLEU of text that is segmented before."""

import urllib.error

import pytest
import sentencepiece
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers import tokenizer_spm

from deepnet_fairseq.analysis.scoring import score, tokenizers
from deepnet_fairseq.analysis.scoring.tokenizers import tokenizer_for
from deepnet_fairseq.errors import UserError

from .support.translated import noisy, sentences, write_corpus, write_generated


@pytest.fixture
def spbleu_home(tmp_path, monkeypatch):
    """Where sacreBLEU looks for its models, and one that is not there."""
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path / "home"))
    tokenizers._check_model.cache_clear()
    yield tmp_path / "home" / "models"
    tokenizers._check_model.cache_clear()


def test_spbleu_is_bleu_of_pieces(tmp_path, spbleu_home):
    text = sentences(100)
    spbleu_home.mkdir(parents=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_prefix=str(tmp_path / "m"), vocab_size=40, minloglevel=2
    )
    (tmp_path / "m.model").rename(spbleu_home / "sacrebleu_tokenizer_spm.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(spbleu_home / "sacrebleu_tokenizer_spm.model"))
    wrong = noisy(text, 0.2)
    segmented = [[" ".join(pieces.encode(s, out_type=str)) for s in side] for side in (wrong, text)]
    peer = BLEU(tokenize="none", force=True).corpus_score(segmented[0], segmented[1:])
    path = write_generated(tmp_path / "o.txt", wrong, text)
    for flags in ({"paper": "spbleu"}, {"tokenize": "flores101"}):
        result = score(path, **flags)
        assert result["kind"] == "spbleu" and result["bleu"] == result["spbleu"]["score"] == round(peer.score, 2)
        assert "tok:flores101" in result["signature"] and "tok:13a" in result["sacrebleu"]["signature"]
        assert result["bleu"] != result["sacrebleu"]["score"]


def test_spbleu_without_its_model(tmp_path, spbleu_home, monkeypatch):
    def breaks_off(url, path):
        spbleu_home.mkdir(parents=True)
        open(path, "w").close()
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(tokenizer_spm, "download_file", breaks_off)
    path = write_generated(tmp_path / "o.txt", ["a"], ["a"])
    with pytest.raises(UserError, match="flores200: no SentencePiece model .*no route.* download http") as e:
        score(path, tokenize="flores200")
    wanted = spbleu_home / "flores200sacrebleuspm"
    assert str(e.value).endswith(str(wanted)) and not wanted.exists()


def test_tokenizer_goes_by_recipe_and_language(tmp_path, monkeypatch):
    path = write_generated(tmp_path / "en-zh.txt", ["\u6211 \u7231\u4f60"], ["\u6211\u7231 \u4f60"])
    used = {"13a": {}, "zh": {"tokenize": {"*": "13a", "zh": "zh"}}, "char": {"tokenize": "char"}}
    for expected, recipe in used.items():
        result = score(path, write_corpus(tmp_path / expected, **recipe))
        assert f"tok:{expected}|" in result["signature"]
    assert "tok:zh|" in score(path, write_corpus(tmp_path / "auto", tokenize="language"))["signature"]
    assert "tok:intl|" in score(path, tmp_path / "char" / "bin", "intl")["signature"]
    monkeypatch.setattr(tokenizers, "PACKAGES", {"ja-mecab": "not_installed", "ko-mecab": "json"})
    codes = ("de", "zh_cn", "cmn", "jpn_Jpan", "ko", "th", "khm")
    assert [tokenizer_for("language", c) for c in codes] == ["13a", "zh", "zh", "char", "ko-mecab", "char", "char"]
    with pytest.raises(UserError, match=r"sacrebleu\[ja\]"):
        score(path, tokenize="ja-mecab")
