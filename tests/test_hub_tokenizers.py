"""Tokenizers of an export: the numbers that fairseq gives the pieces, and the text again."""

from __future__ import annotations

import json

import pytest
from fairseq.data import Dictionary

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

FSMT, M2M100 = (Port(name, "ForConditionalGeneration", {}, {}, 1024, bounded=False) for name in ("FSMT", "M2M100"))
HARD = ["  two   blanks ", "a☃☃ ☃b", "ﬁ ½ Ａ é e\u0301", "tab\there", "x" * 30, "don't, \u2581 that", ""]


@pytest.fixture(scope="module", name="plain")
def some_plain():
    """Made sentences of two languages."""
    corpus = make_corpus({"train": 60, "valid": 1, "test": 1}, nouns=20)["train"]
    return [pair[side] for side in (0, 1) for pair in corpus]


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
def a_subwords(request, plain, tmp_path):
    """Of each kind that a fast tokenizer cuts by."""
    if request.param == "gpt2":
        write_gpt2(tmp_path / "data")
        content = {"bpe": "gpt2", "gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}
        (tmp_path / "data" / lm_text.NAME).write_text(json.dumps(content))
        return find_subwords(None, str(tmp_path / "data"))
    model = sentencepiece_model(plain, 90, model_type=request.param, hard_vocab_limit=False)
    (tmp_path / "spm.model").write_bytes(model)
    return find_subwords(str(tmp_path / "spm.model"), "")


FRAMED = {  # head, number that a text begins with -> what a text and a pair of texts are
    ("ForCausalLM", EOS): ([EOS], [], []),
    ("ForCausalLM", 0): ([0], [], []),
    ("ForMaskedLM", 0): ([0], [EOS], [EOS]),
}


def test_a_fast_tokenizer_cuts_as_fairseq_does(subwords, plain, tmp_path):
    """Sentences, and what they have not: blanks in a row, letters that no piece has, signs that are normalised."""
    dictionary, encoder = all_pieces(subwords), subwords.encoder()
    lines = [*plain, *HARD]
    cut = [dictionary.encode_line(encoder.encode(line), add_if_not_exist=False, append_eos=False) for line in lines]
    for (head, begin), (before, behind, between) in FRAMED.items():
        if head == "ForMaskedLM":
            dictionary.add_symbol("<mask>")
        folder = tmp_path / f"{head}{begin}"
        folder.mkdir()
        ported = Port("OPT", head, MARKS | {"bos_token_id": begin}, {}, 128, bounded=True)
        numbers = [row.tolist() for row in cut]
        tokenizer = write_tokenizer(library(), folder, ported, subwords, [dictionary] * 2, str(tmp_path))
        assert tokenizer.is_fast and tokenizer.model_max_length == 128
        assert tokenizer(lines)["input_ids"] == [[*before, *row, *behind] for row in numbers]
        pair = tokenizer(lines[0], lines[1])["input_ids"]
        assert pair == [*before, *numbers[0], *behind, *between, *numbers[1], *behind]
        known = [line for line, row in zip(lines, numbers, strict=True) if UNK not in row and line not in HARD]
        assert len(known) > 20
        assert tokenizer.batch_decode(tokenizer(known)["input_ids"], skip_special_tokens=True) == known
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (PAD, EOS, UNK)
        assert tokenizer.bos_token_id == begin and tokenizer.padding_side == ("left" if "Causal" in head else "right")
        assert len(tokenizer) == len(dictionary)


def test_a_translation_models_text_is_cut_by_its_sentencepiece_model(plain, tmp_path):
    """The numbers that fairseq gives; a piece that the dictionary lacks is <unk>, and nothing is dropped."""
    (tmp_path / "spm.model").write_bytes(sentencepiece_model(plain, 90))
    (tmp_path / "hub").mkdir()
    subwords = find_subwords(None, str(tmp_path))
    dictionary, lines = Dictionary(), [*plain, *HARD, f">>fr<< {plain[0]}"]
    for piece in all_pieces(subwords).symbols[4:-6]:
        dictionary.add_symbol(piece)
    for ported, config in ((FSMT, transformers.FSMTConfig), (M2M100, transformers.M2M100Config)):
        config().save_pretrained(tmp_path / "hub")
        tokenizer = write_tokenizer(library(), tmp_path / "hub", ported, subwords, [dictionary] * 2, str(tmp_path))
        encoder = subwords.encoder()
        ours = [dictionary.encode_line(encoder.encode(line), add_if_not_exist=False).tolist() for line in lines]
        assert tokenizer(lines)["input_ids"] == ours and any(UNK in row for row in ours[: len(plain)])
        known = [line for line, row in zip(plain, ours, strict=False) if UNK not in row]
        assert tokenizer.batch_decode(tokenizer(known)["input_ids"], skip_special_tokens=True) == known and known
        assert tokenizer.model_max_length == 1024 and (tokenizer.pad_token_id, tokenizer.eos_token_id) == (PAD, EOS)


def test_text_that_no_tokenizer_cuts_alike_is_refused(subwords, tmp_path):
    """In a line: pieces that the dictionary lacks, two dictionaries, subword-nmt's codes, GPT-2's for a translation."""
    full, less = all_pieces(subwords), Dictionary()
    for piece in full.symbols[4:-2]:
        less.add_symbol(piece)
    causal, codes = Port("OPT", "ForCausalLM", MARKS, {}, 64, bounded=True), tmp_path / "codes"
    codes.write_text("#version: 0.2\na b\n")
    cases = [
        (causal, subwords, [less, less], "has 1 pieces that the dictionary lacks"),
        (M2M100, subwords, [full, less], "the data have two; train on data of one dictionary"),
        (FSMT, find_subwords(str(codes), ""), [full, full], "subword-nmt's codes cut what Moses' tokenizer makes"),
    ]
    if subwords.kind == "gpt2":
        cases.append((FSMT, subwords, [full, full], "cut by SentencePiece there, and this model's by gpt2"))
    for ported, how, dictionaries, message in cases:
        with pytest.raises(UserError, match=message):
            write_tokenizer(library(), tmp_path, ported, how, dictionaries, str(tmp_path))


def test_what_cut_the_text_is_found_or_asked_for(tmp_path):
    with pytest.raises(UserError, match="neither spm.model nor codes is there; give what cut the text as --subwords"):
        find_subwords(None, str(tmp_path))
    with pytest.raises(UserError, match="--subwords .*no such file"):
        find_subwords(str(tmp_path / "missing"), str(tmp_path))
    (tmp_path / "codes").write_text("a b\n")
    with pytest.raises(UserError, match="neither a SentencePiece"):
        find_subwords(str(tmp_path / "codes"), str(tmp_path))
