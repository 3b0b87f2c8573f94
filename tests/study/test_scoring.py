"""Tests of `deepnet score`: BLEU against known numbers, sacreBLEU and fairseq's scorer; tokenizers; directions."""

import json
import re
import sys
from statistics import fmean

import pytest
import sentencepiece
import torch
from fairseq.data import Dictionary
from fairseq.scoring.bleu import BleuConfig, Scorer
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers import tokenizer_ja_mecab, tokenizer_ko_mecab, tokenizer_spm

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study.scoring.generated import Output, align_with_references, read_corpus
from deepnet_fairseq.study.scoring.scores import GROUPS, ChrF, group, kinds_of_bleu, score, score_with_interval
from deepnet_fairseq.study.scoring.words import TOKENISERS, base_language, bleu_of_language, tokeniser

from ..support.helpers import run
from ..support.translated import noisy, sentences, write_corpus, write_generated

MOSES = {"pieces": "subword_nmt", "detokenise": True}
RAW = ['He said: "It\'s a well-known dog."', "No, (really) 3% of 5."]
TOKENISED = ["He said : &quot; It &apos;s a well @-@ known dog . &quot;", "No , ( really ) 3 % of 5 ."]


def test_identical_text_without_a_corpus(tmp_path):
    text = sentences(30)
    result = score(write_generated(tmp_path / "generated.txt", text, text, "de-en", seconds=2.5))
    assert (result["bleu"], result["kind"], result["reference"]) == (100, "sacrebleu", "generated")
    assert (result["sentences"], result["length_ratio"], result["tokenised"]) == (30, 1, None)
    assert result["generation"] == {"seconds": 2.5, "sentences_per_second": 12, "tokens_per_second": 120}
    assert result["signature"] == result["sacrebleu"]["signature"]
    assert "bs:1000|seed:12345|case:mixed|eff:no|tok:13a" in result["signature"]


def sacrebleu(folder, translations, references, *flags):
    """Run sacreBLEU's command with 1,000 bootstrap samples; return score, mean, interval and signature by metric."""
    for name, lines in (("ref", references), ("hyp", translations)):
        (folder / name).write_text("\n".join(lines) + "\n")
    words = ("-m", "sacrebleu", folder / "ref", "-i", folder / "hyp", "--confidence", "-w", "2", *flags)
    scores = json.loads(run(*words).stdout)
    keys = ("score", "confidence_mean", "confidence_var", "signature")
    return [[one[key] for key in keys] for one in (scores if isinstance(scores, list) else [scores])]


def test_numbers_are_those_of_the_sacrebleu_command(tmp_path):
    """Scores equal those of sacreBLEU's command: BLEU and chrF in lower case, TER on tokens."""
    text = sentences(80)
    bin = write_corpus(tmp_path / "corpus", {"test.de-en": text}, lowercase=True)
    wrong = noisy(text, 0.2)
    path = write_generated(tmp_path / "o.txt", [s.lower() for s in wrong], [s.lower() for s in text])
    result, words = score(path, bin), score(path, paper="tokenised")
    peers = sacrebleu(tmp_path, wrong, text, "-m", "bleu", "chrf", "-lc", "--chrf-lowercase")
    peers += sacrebleu(tmp_path, [s.lower() for s in wrong], [s.lower() for s in text], "-m", "ter")
    for ours, peer in zip((result["sacrebleu"], result["chrf"], words["ter"]), peers, strict=True):
        assert [ours[key] for key in ("score", "mean", "ci", "signature")] == peer
    assert 30 < result["bleu"] < 90 and "case:lc" in result["signature"]
    mean = score_with_interval(ChrF(), ["abc d", "zz x"], ["abc d", "yy u"])["mean"]  # some samples have no match
    assert 0 < mean < 100


def test_tokenised_bleu_is_fairseqs(tmp_path):
    """Tokenised BLEU equals fairseq's scorer; an unknown word in the reference matches no word."""
    references = sentences(60)
    translations = [s.replace("Hund", "<unk>") for s in noisy(references, 0.3)]
    references = [s.replace("Hund", "<<unk>>") for s in references]
    path = write_generated(tmp_path / "o.txt", translations, references, "de-en")
    dictionary = Dictionary()
    scorer = Scorer(BleuConfig(pad=dictionary.pad(), eos=dictionary.eos(), unk=dictionary.unk()))
    for translation, reference in zip(translations, references, strict=True):
        ids = [dictionary.encode_line(s, add_if_not_exist=True) for s in (reference, translation)]
        scorer.add(*(i.to(torch.int32) for i in ids))
    asked, beside = score(path, paper="tokenised"), score(path, write_corpus(tmp_path / "c", **MOSES))
    assert asked["bleu"] == asked["tokenised"]["score"] == pytest.approx(scorer.score(), abs=1e-2)
    assert "tok:none" in asked["signature"] and (asked["kind"], beside["kind"]) == ("tokenised", "sacrebleu")
    assert asked["bleu"] != beside["bleu"]


def test_moses_tokens_are_undone(tmp_path):
    """Moses' tokens are undone, which gives 100 against raw references; log or data name the test set."""
    path = write_generated(tmp_path / "o.txt", TOKENISED, TOKENISED, "de-en")
    bin = write_corpus(tmp_path / "c", {"test.de-en": RAW, "test.en-de": ["x", "y"]}, **MOSES)
    (bin / "shard00").mkdir()
    (bin / "shard01").mkdir()
    for data in (bin, bin / "shard00", f"{bin / 'shard00'}:{bin / 'shard01'}"):
        prepared = align_with_references(Output(path), read_corpus(data))
        assert prepared.raw and prepared.hypotheses == prepared.references == RAW
        assert prepared.generated.translations == TOKENISED
    (tmp_path / "o.log").unlink()
    with pytest.raises(UserError, match="which languages"):
        align_with_references(Output(path), read_corpus(bin))
    (bin / "test.de-en.en.idx").touch()
    assert align_with_references(Output(path), read_corpus(bin)).references == RAW
    for file in (bin.parent / "reference").iterdir():
        file.unlink()
    (bin / "raw").mkdir()
    (bin / "raw" / "test.en").write_text("\n".join(RAW[::-1]) + "\n")  # the place where `prepare text` copies it
    assert align_with_references(Output(path), read_corpus(bin)).references == RAW[::-1]
    (bin / "raw" / "test.en").unlink()
    prepared = align_with_references(Output(path), read_corpus(bin))
    assert (prepared.references, prepared.raw) == (RAW, False)


def test_raw_references(tmp_path):
    """Raw references keep words that the dictionary lacks, and Unicode separators within a line."""
    text = [*sentences(40), "eins\u2028zwei drei vier fuenf", "eins\x85zwei\x0cdrei vier", "eins zwei drei\rvier", ""]
    path = write_generated(tmp_path / "o.txt", text, [s.replace("Hund", "<<unk>>") for s in text])
    assert score(path)["bleu"] < 95
    bin = write_corpus(tmp_path / "c", {"test.de-en": text})
    result, prepared = score(path, bin), align_with_references(Output(path), read_corpus(bin))
    assert (result["bleu"], result["reference"]) == (100, "raw")
    assert prepared.hypotheses == prepared.references == text


def test_pieces_of_words(tmp_path):
    """Translations that still hold pieces of words are refused; marks in a few lines count as text."""
    text = sentences(40)
    pieces = {
        "▁": [" ".join("▁" + word[:2] + " " * bool(word[2:]) + word[2:] for word in s.split()) for s in text],
        "@@": [" ".join(word[:2] + ("@@ " + word[2:] if word[2:] else "") for word in s.split()) for s in text],
    }
    wanted = score(write_generated(tmp_path / "plain.txt", noisy(text, 0.2), text))
    for mark, cut in pieces.items():
        with pytest.raises(UserError, match=rf"40 of 40 translations hold pieces of words \({mark}\); generate again"):
            score(write_generated(tmp_path / "o.txt", cut, cut))
        few = score(write_generated(tmp_path / "o.txt", [*noisy(text, 0.2)[:-1], cut[-1]], text))
        assert few["bleu"] < wanted["bleu"] and not few["notes"]


@pytest.mark.parametrize("place", ["beside", "in it"])
@pytest.mark.parametrize("logged", [{"direction": "de-en"}, {"seconds": 2.5}])
def test_a_file_with_fewer_sentences_than_its_log_says(logged, place, tmp_path):
    path = write_generated(tmp_path / "o.txt", sentences(120), sentences(120), **logged)
    log = (tmp_path / "o.log").read_text()
    path = write_generated(tmp_path / "o.txt", sentences(112), sentences(112))
    if place == "in it":
        path.write_text(path.read_text() + log)
        (tmp_path / "o.log").unlink()
    with pytest.raises(UserError, match=r"o\.txt: 112 translations, and its log says 120; generate again"):
        score(path)


DAMAGE = {
    "translations are missing": lambda text: text.replace("D-1\t", "X-1\t"),
    "there twice": lambda text: text + "D-1\t-0.5\tanother\n",
    "4 translations for 3 references": lambda text: text.replace("T-3\t", "X-3\t"),
    "0 translations": lambda text: "",
    "middle of a line": lambda text: text[:-20],
    "not UTF-8": lambda text: text.encode("latin-1", "replace").replace(b"?", b"\xff"),
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
    with pytest.raises(UserError, match=r"o\.txt: the name 'o': is no pair of languages"):
        score(tmp_path)
    with pytest.raises(UserError, match=r"neither generated\.txt nor"):
        score(bin)
    with pytest.raises(UserError, match="--paper perplexity: is of logs; drop"):
        score(path, bin, paper="perplexity")
    with pytest.raises(UserError, match="no such file"):
        score(tmp_path / "absent.txt")


def test_command(tmp_path, capsys):
    path, out = write_generated(tmp_path / "o.txt", ["a b c d"], ["a b c d"]), tmp_path / "score.json"
    main(["score", str(path), "--json", "--paper", "tokenised", "--out", str(out)])
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text()) == score(path, paper="tokenised")
    write_generated(path, ["a b c d"], ["a b c d"], "de-en", seconds=0.5)
    main(["score", str(path)])
    head, _, row, _, *more = capsys.readouterr().out.splitlines()
    assert re.split("  +", head) == [
        "sentences", "BLEU", "95% interval", "chrF2", "95% interval", "length ratio", "sentences/s"]  # fmt: skip
    assert row.split() == ["1", *["100.00", "100.00", "to", "100.00"] * 2, "1.000", "2.00"]
    assert more[0].startswith("sacrebleu: nrefs:1") and "T-n" in more[-1]
    with pytest.raises(SystemExit, match="deepnet: error: --out"):
        main(["score", str(path), "--out", str(path)])


@pytest.fixture
def spbleu_home(tmp_path, monkeypatch):
    """Provide the folder in which sacreBLEU looks for its models, without a model."""
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path / "home"))
    return tmp_path / "home" / "models"


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
    result = score(write_generated(tmp_path / "o.txt", wrong, text), paper="spbleu")
    assert result["kind"] == "spbleu" and result["bleu"] == result["spbleu"]["score"] == round(peer.score, 2)
    assert "tok:flores101" in result["signature"] and "tok:13a" in result["sacrebleu"]["signature"]
    assert result["bleu"] != result["sacrebleu"]["score"]


def test_spbleu_without_its_model(tmp_path, spbleu_home):
    path, wanted = write_generated(tmp_path / "o.txt", ["a"], ["a"]), spbleu_home / "sacrebleu_tokenizer_spm.model"
    with pytest.raises(UserError, match=rf"spbleu: needs .* http\S+; download it and put it at {wanted}$"):
        score(path, paper="spbleu")


WORDS = {  # language -> a line, its words by hand or by the library that tok.sh calls, sacreBLEU's words if different
    "de": ("Er sagt: „Hallo“, 3,5%.", 'Er sagt : " Hallo " , 3,5 % .', "Er sagt : „Hallo“ , 3,5 % ."),
    "ro": ("Știu, însă ţara «mare».", 'Stiu , insa tara " mare " .', "Știu , însă ţara «mare» ."),
    "zh_CN": ("我是1个 student，真的。", "我 是 1 个 student , 真 的 .", "我 是 1 个 student ， 真 的 。"),
    "my": ("မြန်မာစာ", "မ ြ န ် မ ာ စ ာ", "မြန်မာစာ"),
    "jpn_Jpan": ("私は 学生です。", "私 は 学生 です .", "私 は 学生 です 。"),
    "ko": ("나는 학생입니다.", "나 는 학생 입니다 .", None),
    "tha": ("ฉันเป็นนักเรียนไทย", "ฉัน เป็น นักเรียน ไทย", None),
    "hin": ("मैं छात्र हूँ।", "मैं छात्र हूँ ।", "मैं छात्र हूँ।"),
}
SACREBLEU = {"zh_CN": "zh", "jpn_Jpan": "ja-mecab-", "ko": "ko-mecab-", "tha": "pythainlp-"}  # in signatures
LIBRARIES = {"ja": "MeCab", "ko": "mecab_ko", "th": "pythainlp", "hi": "indicnlp.normalize.indic_normalize"}


@pytest.mark.parametrize("language", WORDS)
def test_words_of_the_target_language(language, tmp_path):
    """BLEU splits words by M2M-100's protocol if asked, else by sacreBLEU's tokenizer of the language."""
    pytest.importorskip(LIBRARIES.get(base_language(language), "sacrebleu"))
    line, wanted, by_default = WORDS[language]
    split, name = tokeniser(language)
    assert split(line).split() == wanted.split()
    path = write_generated(tmp_path / f"en-{language}.txt", [wanted, line], [line, wanted])
    result = score(path, paper="m2m")
    assert (result["kind"], result["bleu"]) == ("m2m", 100) and f"|tok:m2m.{name}|" in result["signature"]
    assert bleu_of_language(language, False, None).tokenizer(line).split() == (by_default or wanted).split()
    assert f"|tok:{SACREBLEU.get(language, '13a')}" in score(path)["signature"]
    assert [bool(note) for note in score(path)["notes"]] == [True] * (language == "my")
    assert "|tok:char|" in score(path, tokenize="char")["signature"]


def test_numbers_of_a_language_are_those_of_the_sacrebleu_command(tmp_path):
    """Scores of a language equal those of sacreBLEU's command; Chinese without a language code is refused."""
    text = ["我是一个学生，真的。", "今天天气很好。", "他们去了北京。"]
    wrong = ["我是学生，真的。", "今天的天气好。", "他去了北京吗？"]
    result = score(write_generated(tmp_path / "en-zho_Hans.txt", wrong, text))
    ours = [result["sacrebleu"][key] for key in ("score", "mean", "ci", "signature")]
    assert ours == sacrebleu(tmp_path, wrong, text, "-l", "en-zh")[0][:3] + [ours[3]] and "tok:zh" in ours[3]
    with pytest.raises(UserError, match=r"o\.txt: which languages\? BLEU depends on it; .* or --tokenize"):
        score(write_generated(tmp_path / "o.txt", wrong, text))
    assert score(tmp_path / "o.txt", tokenize="zh")["bleu"] == result["bleu"]


def test_a_language_whose_library_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    monkeypatch.setattr(tokenizer_ko_mecab, "MeCab", None)
    for language, module in LIBRARIES.items():
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UserError, match=rf"{language} needs a library; pip install 'deepnet_fairseq\[m2m\]'$"):
            tokeniser(language)
        if language != "hi":
            with pytest.raises(UserError, match=rf"BLEU of {language} needs .*\[m2m\]', or .* --tokenize, as char$"):
                bleu_of_language(language, False, None)
    with pytest.raises(UserError, match=r"o\.txt: which languages\?"):
        score(write_generated(tmp_path / "o.txt", ["a"], ["a"]), paper="m2m")
    assert {base_language(code) for code in ("mya_Mymr", "npi", "sin", "ron-MD", "zh-Hans")} < set(TOKENISERS)


NOISE = {"de-en": 0.1, "zh-Hans-en": 0.2, "en-de": 0.3, "en-sr-Latn-RS": 0.4, "de-fr": 0.5}
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
    assert result["to_english"] == pytest.approx((bleu["de-en"] + bleu["zh-Hans-en"]) / 2, abs=0.011)
    assert result["from_english"] == pytest.approx((bleu["en-de"] + bleu["en-sr-Latn-RS"]) / 2, abs=0.011)
    assert result["between_others"] == bleu["de-fr"]
    assert (result["kind"], result["generation"], result["missing"]) == ("sacrebleu", {"seconds": 7.5}, {})
    assert [group(*pair) for pair in (("de", "eng"), ("eng_Latn", "ces_Latn"), ("es", "de"))] == list(GROUPS)


def test_sets(tmp_path):
    """The top-level score is that of subset "test", or else the mean of the subsets."""
    translate(tmp_path / "flores", ["de-en", "en-de"])
    translate(tmp_path / "ted", ["de-fr"])
    result = score(tmp_path)
    assert {name: list(one["directions"]) for name, one in result["sets"].items()} == {
        "flores": ["de-en", "en-de"], "ted": ["de-fr"]}  # fmt: skip
    assert result["bleu"] == pytest.approx(fmean(one["bleu"] for one in result["sets"].values()), abs=0.011)
    translate(tmp_path / "test", ["zh-Hans-en"])
    assert (result := score(tmp_path))["bleu"] == result["directions"]["zh-Hans-en"]["bleu"]


def test_missing_directions(tmp_path, capsys):
    """Directions without a translation are named; xx-en, which has no test set, is not missed."""
    references = {f"test.{direction}": text for direction, text in TEXT.items()}
    bin = write_corpus(tmp_path / "c", references, pairs=[*NOISE, "xx-en"])
    folder = translate(tmp_path / "generated", ["de-en", "en-sr-Latn-RS", "zh-Hans-en"])
    with pytest.raises(UserError, match=r"2 directions .* missing in test \(de-fr, en-de\).*--partial"):
        score(folder, bin)
    main(["score", str(folder), "--data", str(bin), "--partial"])
    assert re.search(r"test +mean +\d+\.\d\d\n", table := capsys.readouterr().out) and "without de-fr, en-de" in table
    result = score(folder, bin, partial=True)
    assert result["missing"] == {"test": ["de-fr", "en-de"]} and len(result["directions"]) == 3
    translate(tmp_path / "generated")
    assert score(folder, bin)["missing"] == {}


def test_the_papers_kind_may_differ_by_test_set():
    assert kinds_of_bleu("sacrebleu,flores=spbleu") == {None: "sacrebleu", "flores": "spbleu"}
    assert (kinds_of_bleu(None), kinds_of_bleu("tokenised")) == ({None: "sacrebleu"}, {None: "tokenised"})
    with pytest.raises(UserError, match="--paper tokenised,flores=bleu: bleu is none of tokenised, sacrebleu, spbleu"):
        kinds_of_bleu("tokenised,flores=bleu")


STAMP = "2026-11-21 21:41:29 | INFO |"
CAUSAL = f"""{STAMP} fairseq_cli.eval_lm | {{'_name': None}}
{STAMP} fairseq_cli.eval_lm | Evaluated 12,131 tokens in 3.4s (3592.84 tokens/s)
{STAMP} fairseq_cli.eval_lm | Loss (base 2): 4.3301, Perplexity: 20.11
"""
MASKED = f"""{STAMP} fairseq_cli.validate | {{'_name': None}}
2026-11-21 21:49:22 | WARNING | fairseq.tasks.fairseq_task | 19 samples have invalid sizes and will be skipped
{STAMP} valid | {{"valid_loss": "1.727", "valid_ppl": "3.31", "valid_wps": "0"}}
"""


def test_published_perplexities(tmp_path, capsys):
    """Perplexities equal fairseq's to two decimals, from the last evaluation in each log of a folder."""
    with pytest.raises(UserError, match="holds no log of an evaluation, SUBSET.txt"):
        score(tmp_path, paper="perplexity")
    for text, message in (
        (MASKED.replace('"valid_loss"', "valid_loss"), "no loss of"),
        (CAUSAL.replace("4.3301", "nan"), "nan"),
    ):
        (tmp_path / "valid.txt").write_text(text)
        with pytest.raises(UserError, match=f"valid.txt: (has|a) .*{message}"):
            score(tmp_path / "valid.txt", paper="perplexity")
    for name, text in (("valid", CAUSAL), ("test", CAUSAL + CAUSAL.replace("4.3301", "5.0")), ("masked", MASKED)):
        (tmp_path / f"{name}.txt").write_text(text)
    main(["score", str(tmp_path), "--paper", "perplexity"])
    assert re.search(r"valid +20\.11 +4\.33\n", capsys.readouterr().out)
    main(["score", str(tmp_path), "--paper", "perplexity", "--json"])
    sets = json.loads(capsys.readouterr().out)["sets"]
    assert {name: one["perplexity"] for name, one in sets.items()} == {"valid": 20.11, "test": 32.0, "masked": 3.31}
    assert sets["valid"] == {"perplexity": 20.11, "loss": 4.3301}
