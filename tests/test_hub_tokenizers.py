"""Tokenizers of an export: the numbers that fairseq gives the pieces, and the text again."""

from __future__ import annotations

import io
import json
from itertools import chain

import pytest
from fairseq.data import Dictionary
from sacremoses import MosesTokenizer
from sentencepiece import SentencePieceProcessor

from deepnet_fairseq.data import lm_text
from deepnet_fairseq.data.language import make_corpus
from deepnet_fairseq.data.parallel_text import sentencepiece_model
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools.export.hub_models import MARKS, Port
from deepnet_fairseq.tools.export.hub_tokenizers import find_subwords, write_tokenizer
from deepnet_fairseq.tools.export.huggingface import library

from .support.helpers import EOS, PAD, UNK
from .support.plain_text import write_gpt2

transformers = pytest.importorskip("transformers", reason="pip install -e '.[huggingface]'")
pytestmark = pytest.mark.peers

LANGS = ["qaa", "qab"]
FSMT, M2M100 = (Port(name, "ForConditionalGeneration", {}, {}, 1024, bounded=False) for name in ("FSMT", "M2M100"))
HARD = ["  two   blanks ", "a☃☃ ☃b", "ﬁ ½ Ａ é e\u0301", "tab\there", "x" * 30, "don't, \u2581 that", ""]


@pytest.fixture(scope="module", name="merged")
def a_merged(tmp_path_factory):
    """Codes learnt on made sentences; the sentences in pieces, and a dictionary of all but a few of them, a side."""
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    folder = tmp_path_factory.mktemp("codes")
    corpus = make_corpus({"train": 60, "valid": 1, "test": 1}, nouns=20)["train"]
    plain = [[pair[side] for pair in corpus] for side in (0, 1)]
    words = [
        [" ".join(MosesTokenizer(lang).tokenize(line, aggressive_dash_splits=True)) for line in lines]
        for lang, lines in zip(LANGS, plain, strict=True)
    ]
    with open(folder / "codes", "w", encoding="utf-8") as file:
        learn_bpe(chain(*words), file, 60)
    bpe = BPE(io.StringIO((folder / "codes").read_text(encoding="utf-8")))
    pieces = [[bpe.process_line(line) for line in lines] for lines in words]
    dictionaries = []
    for lines in pieces:
        dictionary = Dictionary()
        for piece in sorted({piece for line in lines for piece in line.split()})[:-3]:
            dictionary.add_symbol(piece)
        dictionaries.append(dictionary)
    return folder, plain, pieces, dictionaries


def test_subword_nmt_as_fsmt_tokenizer(merged, tmp_path):
    """The numbers that fairseq gives the pieces, those of what the dictionary lacks among them; and the text again."""
    folder, plain, pieces, dictionaries = merged
    transformers.FSMTConfig(langs=LANGS).save_pretrained(tmp_path)
    subwords = find_subwords(None, str(folder))
    ours = [dictionaries[0].encode_line(line, add_if_not_exist=False).tolist() for line in pieces[0]]
    held = [*((line, row[:-1]) for line, row in zip(plain[0], ours, strict=True)), ("A-b", [7])]
    tokenizer, slow = write_tokenizer(library(), tmp_path, FSMT, subwords, dictionaries, LANGS, held)
    assert slow == "the data have two dictionaries; it cuts 60 of 61 of the data's own sentences as they are there"
    assert tokenizer(plain[0])["input_ids"] == ours
    assert any(UNK in line for line in ours) and type(tokenizer).__name__ == "FSMTTokenizer"
    theirs = [dictionaries[1].encode_line(line, add_if_not_exist=False) for line in pieces[1]]
    known = [number for number, line in enumerate(theirs) if UNK not in line]
    said = tokenizer.batch_decode([theirs[number] for number in known], skip_special_tokens=True)
    wanted = [plain[1][number] for number in known]  # but for Moses' blanks at full stops and commas
    assert [line.replace(" ", "") for line in said] == [line.replace(" ", "") for line in wanted] and len(known) > 5
    assert tokenizer.model_max_length == 1024 and tokenizer.eos_token_id == EOS and tokenizer.pad_token_id == PAD


def test_a_dictionary_without_capitals_is_one_of_text_that_had_none(merged, tmp_path):
    """As IWSLT-14's recipe prepares it."""
    from subword_nmt.apply_bpe import BPE

    folder, plain, _, _ = merged
    bpe, dictionary = BPE(io.StringIO((folder / "codes").read_text(encoding="utf-8"))), Dictionary()
    tokenize = MosesTokenizer(LANGS[0]).tokenize
    cut = [bpe.process_line(" ".join(tokenize(line.lower(), aggressive_dash_splits=True))) for line in plain[0]]
    ours = [dictionary.encode_line(line).tolist() for line in cut]
    transformers.FSMTConfig(langs=LANGS).save_pretrained(tmp_path)
    subwords = find_subwords(None, str(folder))
    tokenizer, _ = write_tokenizer(library(), tmp_path, FSMT, subwords, [dictionary] * 2, LANGS, [])
    assert tokenizer(plain[0])["input_ids"] == ours and any(line != line.lower() for line in plain[0])


def test_a_sentencepiece_model_with_two_dictionaries(merged, tmp_path):
    """The source's numbers for what is read, the target's for what is written."""
    _, plain, _, _ = merged
    (tmp_path / "spm.model").write_bytes(sentencepiece_model(chain(*plain), 80))
    processor, dictionaries, numbers = SentencePieceProcessor(model_file=str(tmp_path / "spm.model")), [], []
    for lines in plain:
        cut, dictionary = [" ".join(processor.encode(line, out_type=str)) for line in lines], Dictionary()
        for piece in sorted({piece for line in cut for piece in line.split()}):
            dictionary.add_symbol(piece)
        dictionaries.append(dictionary)
        numbers.append([dictionary.encode_line(line, add_if_not_exist=False).tolist() for line in cut])
    (tmp_path / "hub").mkdir()
    transformers.FSMTConfig(langs=LANGS).save_pretrained(tmp_path / "hub")
    subwords = find_subwords(None, str(tmp_path))
    held = list(zip(plain[0], numbers[0], strict=True))
    tokenizer, slow = write_tokenizer(library(), tmp_path / "hub", FSMT, subwords, dictionaries, LANGS, held)
    assert slow == "the data have two dictionaries"
    assert tokenizer(plain[0])["input_ids"] == numbers[0] and dictionaries[0].symbols != dictionaries[1].symbols
    assert tokenizer.batch_decode(numbers[1], skip_special_tokens=True) == plain[1]
    assert tokenizer(text_target=plain[1])["input_ids"] == numbers[1]


def all_pieces(subwords) -> Dictionary:
    """fairseq's, of every piece, in another order than the model's; with a filler, as padded vocabularies have."""
    dictionary = Dictionary()
    for piece in reversed(lm_text.Segmenter(subwords.kind, files_of(subwords)).symbols):
        dictionary.add_symbol(piece)
    dictionary.add_symbol("madeupword0000")
    return dictionary


def files_of(subwords) -> dict:
    return dict(zip(lm_text.KINDS[subwords.kind], subwords.files, strict=True))


@pytest.fixture(name="subwords", params=["bpe", "unigram", "gpt2"])
def a_subwords(request, merged, tmp_path):
    """Of each kind that a fast tokenizer cuts by."""
    if request.param == "gpt2":
        write_gpt2(tmp_path / "data")
        content = {"bpe": "gpt2", "gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}
        (tmp_path / "data" / lm_text.NAME).write_text(json.dumps(content))
        return find_subwords(None, str(tmp_path / "data"))
    model = sentencepiece_model(chain(*merged[1]), 90, model_type=request.param, hard_vocab_limit=False)
    (tmp_path / "spm.model").write_bytes(model)
    return find_subwords(str(tmp_path / "spm.model"), "")


FRAMED = {  # head, number that a text begins with -> what a text and a pair of texts are
    ("ForConditionalGeneration", 0): ([], [EOS], []),
    ("ForCausalLM", EOS): ([EOS], [], []),
    ("ForCausalLM", 0): ([0], [], []),
    ("ForMaskedLM", 0): ([0], [EOS], [EOS]),
}


def test_a_fast_tokenizer_cuts_as_fairseq_does(subwords, merged, tmp_path):
    """Sentences, and what they have not: blanks in a row, letters that no piece has, signs that are normalised."""
    dictionary, encoder = all_pieces(subwords), subwords.encoder()
    lines = [*chain(*merged[1]), *HARD]
    marked = ["a <unk> b", "a </s>"]  # which is cut into pieces by fairseq, and is the mark there
    cut = [dictionary.encode_line(encoder.encode(line), add_if_not_exist=False, append_eos=False) for line in lines]
    if subwords.kind == "gpt2":
        dictionary.add_symbol("<mask>")
    for (head, begin), (before, behind, between) in FRAMED.items():
        if head == "ForMaskedLM" and subwords.kind != "gpt2":
            continue
        folder = tmp_path / f"{head}{begin}"
        folder.mkdir()
        ported = Port("OPT", head, MARKS | {"bos_token_id": begin}, {}, 128, bounded=True)
        numbers = [row.tolist() for row in cut]
        held = [*zip(lines, numbers, strict=True), *((line, []) for line in marked)]
        tokenizer, slow = write_tokenizer(library(), folder, ported, subwords, [dictionary] * 2, LANGS, held)
        assert not slow and tokenizer.is_fast and tokenizer.model_max_length == 128
        assert tokenizer(lines)["input_ids"] == [[*before, *row, *behind] for row in numbers]
        pair = tokenizer(lines[0], lines[1])["input_ids"]
        assert pair == [*before, *numbers[0], *behind, *between, *numbers[1], *behind]
        plain = [line for line, row in zip(lines, numbers, strict=True) if UNK not in row and line not in HARD]
        assert len(plain) > 20
        assert tokenizer.batch_decode(tokenizer(plain)["input_ids"], skip_special_tokens=True) == plain
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (PAD, EOS, UNK)
        assert tokenizer.bos_token_id == begin and tokenizer.padding_side == ("left" if "Causal" in head else "right")
        assert len(tokenizer) == len(dictionary)


def test_pieces_that_the_dictionary_lacks_are_left_to_the_model(subwords, tmp_path):
    """A slow tokenizer for a translation of SentencePiece, or one line."""
    (tmp_path / "hub").mkdir()
    dictionary = Dictionary()
    for piece in all_pieces(subwords).symbols[4:-2]:
        dictionary.add_symbol(piece)
    causal = Port("OPT", "ForCausalLM", MARKS, {}, 64, bounded=True)
    with pytest.raises(UserError, match="has 1 pieces that the dictionary lacks .*; give --to transformer"):
        write_tokenizer(library(), tmp_path / "hub", causal, subwords, [dictionary] * 2, LANGS, [])
    if subwords.kind == "gpt2":
        with pytest.raises(UserError, match="has 1 pieces that the dictionary lacks"):
            write_tokenizer(library(), tmp_path / "hub", FSMT, subwords, [dictionary] * 2, LANGS, [])
        return
    transformers.M2M100Config().save_pretrained(tmp_path / "hub")
    found, slow = write_tokenizer(library(), tmp_path / "hub", M2M100, subwords, [dictionary] * 2, LANGS, [])
    assert "has 1 pieces that the dictionary lacks" in slow and type(found).__name__ == "MarianTokenizer"


def test_two_dictionaries_are_no_m2m100(merged, tmp_path):
    folder, _, _, dictionaries = merged
    with pytest.raises(UserError, match="the data have two; train on data of one dictionary"):
        write_tokenizer(library(), tmp_path, M2M100, find_subwords(None, str(folder)), dictionaries, LANGS, [])


def test_what_cut_the_text_is_found_or_asked_for(tmp_path):
    with pytest.raises(UserError, match="neither spm.model nor codes is there; give what cut the text as --subwords"):
        find_subwords(None, str(tmp_path))
    with pytest.raises(UserError, match="--subwords .*no such file"):
        find_subwords(str(tmp_path / "missing"), str(tmp_path))
    for content, message in (("#version: 0.1\na b\n", "is not version: 0.2"), ("a b\n", "neither a SentencePiece")):
        (tmp_path / "codes").write_text(content)
        with pytest.raises(UserError, match=message):
            find_subwords(str(tmp_path / "codes"), str(tmp_path))
