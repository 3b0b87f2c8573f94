"""Tests of BLEU by the target language: words by hand, sacreBLEU's command, spBLEU, libraries that are missing.

BLEU counts words, so that it depends on how text is split: by sacreBLEU's tokenizer for the language ("13a" for most),
by the tokenisers of M2M-100's paper (--paper m2m), or into pieces of Flores-101's SentencePiece model (--paper spbleu).
sacreBLEU has no tokenizer for Thai, which PyThaiNLP splits. The signature of a score names the tokenizer behind "tok:".
"""

import sys
from typing import NamedTuple

import pytest
import sentencepiece
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers import tokenizer_ja_mecab, tokenizer_ko_mecab, tokenizer_spm

from deepnet_fairseq.study.scoring.scores import score
from deepnet_fairseq.study.scoring.words import TOKENISERS, base_language, bleu_of_language, tokeniser

from ..support.errors import refused
from ..support.sacrebleu_command import entry_as_list, scores_of_sacrebleu
from ..support.translated import random_sentences, with_wrong_words, write_generated

SPBLEU_MODEL = "sacrebleu_tokenizer_spm.model"  # sacreBLEU's name of the file
CHINESE_REFERENCES = ["我是一个学生，真的。", "今天天气很好。", "他们去了北京。"]
CHINESE_TRANSLATIONS = ["我是学生，真的。", "今天的天气好。", "他去了北京吗？"]

# spBLEU.


@pytest.fixture
def spbleu_models(tmp_path, monkeypatch):
    """Provide the folder in which sacreBLEU looks for its models, which does not exist yet."""
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path / "home"))
    return tmp_path / "home" / "models"


def test_spbleu_is_bleu_of_sentencepiece_pieces(tmp_path, spbleu_models):
    """A small model takes the place of Flores-101's."""
    references = random_sentences(100)
    translations = with_wrong_words(references, rate=0.2)
    spbleu_models.mkdir(parents=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(references), model_prefix=str(tmp_path / "m"), vocab_size=40, minloglevel=2
    )
    (tmp_path / "m.model").rename(spbleu_models / SPBLEU_MODEL)

    result = score(write_generated(tmp_path / "o.txt", translations, references), paper="spbleu")

    model = sentencepiece.SentencePieceProcessor(model_file=str(spbleu_models / SPBLEU_MODEL))
    pieces_of_translations = [" ".join(model.encode(line, out_type=str)) for line in translations]
    pieces_of_references = [" ".join(model.encode(line, out_type=str)) for line in references]
    peer = BLEU(tokenize="none", force=True).corpus_score(pieces_of_translations, [pieces_of_references])
    assert result["kind"] == "spbleu"
    assert "tok:flores101" in result["signature"]
    assert result["spbleu"]["score"] == round(peer.score, 2)
    assert result["bleu"] == result["spbleu"]["score"]
    assert result["bleu"] != result["sacrebleu"]["score"]
    assert "tok:13a" in result["sacrebleu"]["signature"]


def test_spbleu_without_its_model_names_its_address_and_where_to_put_it(tmp_path, spbleu_models):
    path = write_generated(tmp_path / "o.txt", ["a"], ["a"])

    with refused("--paper spbleu") as caught:
        score(path, paper="spbleu")

    assert "http" in caught.value.way_out
    assert str(spbleu_models / SPBLEU_MODEL) in caught.value.way_out


# Words of the target language.


class Words(NamedTuple):
    """A line, and its words with blanks between them, by M2M-100's protocol and by sacreBLEU's tokenizer.

    Words by M2M-100's protocol are by hand, or by the library that its script examples/m2m_100/tok.sh calls. sacreBLEU
    has no tokenizer for Thai: its words in `of_sacrebleu` are by PyThaiNLP.
    """

    line: str
    of_m2m: str
    of_sacrebleu: str


GERMAN = Words(
    "Er sagt: „Hallo“, 3,5%.",
    of_m2m='Er sagt : " Hallo " , 3,5 % .',
    of_sacrebleu="Er sagt : „Hallo“ , 3,5 % .",
)
ROMANIAN = Words(
    "Știu, însă ţara «mare».",
    of_m2m='Stiu , insa tara " mare " .',
    of_sacrebleu="Știu , însă ţara «mare» .",
)
MANDARIN = Words(
    "我是1个 student，真的。",
    of_m2m="我 是 1 个 student , 真 的 .",
    of_sacrebleu="我 是 1 个 student ， 真 的 。",
)
BURMESE = Words(
    "မြန်မာစာ",
    of_m2m="မ ြ န ် မ ာ စ ာ",
    of_sacrebleu="မြန်မာစာ",
)
JAPANESE = Words(
    "私は 学生です。",
    of_m2m="私 は 学生 です .",
    of_sacrebleu="私 は 学生 です 。",
)
KOREAN = Words(
    "나는 학생입니다.",
    of_m2m="나 는 학생 입니다 .",
    of_sacrebleu="나 는 학생 입니다 .",
)
THAI = Words(
    "ฉันเป็นนักเรียนไทย",
    of_m2m="ฉัน เป็น นักเรียน ไทย",
    of_sacrebleu="ฉัน เป็น นักเรียน ไทย",
)
HINDI = Words(
    "मैं छात्र हूँ।",
    of_m2m="मैं छात्र हूँ ।",
    of_sacrebleu="मैं छात्र हूँ।",
)
WORDS = {
    "de": GERMAN,
    "ro": ROMANIAN,
    "zh_CN": MANDARIN,
    "my": BURMESE,
    "jpn_Jpan": JAPANESE,
    "ko": KOREAN,
    "tha": THAI,
    "hin": HINDI,
}
# Code of a language -> how the signature names the tokenizer that is not 13a; the version of its library follows.
OWN_TOKENIZERS = {"zh_CN": "zh", "jpn_Jpan": "ja-mecab-", "ko": "ko-mecab-", "tha": "pythainlp-"}
# Language -> the module without which it cannot be tokenised; other languages need none.
LIBRARIES = {"ja": "MeCab", "ko": "mecab_ko", "th": "pythainlp", "hi": "indicnlp.normalize.indic_normalize"}


@pytest.fixture(params=WORDS)
def language(request):
    """Provide each code of WORDS; the test is skipped if the language's library is missing."""
    library = LIBRARIES.get(base_language(request.param))
    if library is not None:
        pytest.importorskip(library)
    return request.param


@pytest.fixture
def output_in_language(language, tmp_path):
    """Provide an output of en-LANGUAGE in which either a translation or its reference is already split by M2M-100."""
    line = WORDS[language].line
    split = WORDS[language].of_m2m
    return write_generated(tmp_path / f"en-{language}.txt", translations=[split, line], references=[line, split])


def test_the_tokeniser_of_a_language_splits_as_m2m_100_does(language):
    split, _name = tokeniser(language)

    assert split(WORDS[language].line).split() == WORDS[language].of_m2m.split()


def test_bleu_of_m2m_100_counts_its_words(language, output_in_language):
    """A line has the same words whether it is split or not, so that BLEU is 100."""
    _split, name = tokeniser(language)

    result = score(output_in_language, paper="m2m")

    assert result["kind"] == "m2m"
    assert result["bleu"] == 100
    assert f"|tok:m2m.{name}|" in result["signature"]


def test_by_default_words_are_those_of_the_tokenizer_for_the_language(language):
    bleu = bleu_of_language(language, lowercase=False, tokenize=None)

    assert bleu.tokenizer(WORDS[language].line).split() == WORDS[language].of_sacrebleu.split()


def test_by_default_the_signature_names_the_tokenizer_of_the_language(language, output_in_language):
    result = score(output_in_language)

    tokenizer = OWN_TOKENIZERS.get(language, "13a")
    assert f"|tok:{tokenizer}" in result["signature"]


def test_a_language_without_blanks_and_tokenizer_is_noted(language, output_in_language):
    """Burmese (my) is written without blanks, and sacreBLEU has no tokenizer for it."""
    notes = score(output_in_language)["notes"]

    number_of_notes = 1 if language == "my" else 0
    assert len(notes) == number_of_notes


def test_a_tokenizer_that_is_asked_for_is_used(output_in_language):
    result = score(output_in_language, tokenize="char")

    assert "|tok:char|" in result["signature"]


def test_bleu_of_chinese_is_that_of_sacrebleus_command(tmp_path):
    path = write_generated(tmp_path / "en-zho_Hans.txt", CHINESE_TRANSLATIONS, CHINESE_REFERENCES)

    result = score(path)

    (peer,) = scores_of_sacrebleu(tmp_path, CHINESE_TRANSLATIONS, CHINESE_REFERENCES, "-l", "en-zh")
    *numbers, signature = entry_as_list(result["sacrebleu"])  # score, mean and half interval of samples
    *numbers_of_peer, _signature = peer  # the signature of the command names the languages, too
    assert numbers == numbers_of_peer
    assert "tok:zh" in signature


def test_chinese_without_a_language_code_is_refused(tmp_path):
    path = write_generated(tmp_path / "o.txt", CHINESE_TRANSLATIONS, CHINESE_REFERENCES)

    with refused(path) as caught:
        score(path)

    assert "--tokenize" in caught.value.way_out


def test_chinese_without_a_language_code_scores_by_the_tokenizer_asked_for(tmp_path):
    unnamed = write_generated(tmp_path / "o.txt", CHINESE_TRANSLATIONS, CHINESE_REFERENCES)
    named = write_generated(tmp_path / "en-zho_Hans.txt", CHINESE_TRANSLATIONS, CHINESE_REFERENCES)

    of_unnamed = score(unnamed, tokenize="zh")
    of_named = score(named)

    assert of_unnamed["bleu"] == of_named["bleu"]


# Codes and libraries.


@pytest.fixture
def without_libraries(monkeypatch):
    """Hide the libraries of the languages in LIBRARIES."""
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    monkeypatch.setattr(tokenizer_ko_mecab, "MeCab", None)
    for module in LIBRARIES.values():
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize("language", LIBRARIES)
def test_a_tokeniser_of_m2m_100_without_its_library_names_what_to_install(language, without_libraries):
    with refused("--paper m2m") as caught:
        tokeniser(language)

    assert language in caught.value.way_out.split()
    assert "'deepnet_fairseq[m2m]'" in caught.value.way_out


@pytest.mark.parametrize("language", ["ja", "ko", "th"])
def test_a_default_tokenizer_without_its_library_names_what_to_install(language, without_libraries):
    with refused("tokenizer") as caught:
        bleu_of_language(language, lowercase=False, tokenize=None)

    assert language in caught.value.way_out.split()
    assert "'deepnet_fairseq[m2m]'" in caught.value.way_out
    assert "--tokenize" in caught.value.way_out


def test_bleu_of_m2m_100_for_an_unknown_language_is_refused(tmp_path):
    path = write_generated(tmp_path / "o.txt", ["a"], ["a"])

    with refused(path) as caught:
        score(path, paper="m2m")

    assert "SRC-TGT.txt" in caught.value.way_out


@pytest.mark.parametrize(
    ("code", "language"), [("mya_Mymr", "my"), ("npi", "ne"), ("sin", "si"), ("ron-MD", "ro"), ("zh-Hans", "zh")]
)
def test_longer_codes_have_the_tokeniser_of_their_language(code, language):
    assert base_language(code) == language
    assert language in TOKENISERS
