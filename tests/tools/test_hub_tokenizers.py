"""Tests of the tokenizers of an export: they give fairseq's token numbers, and decode to the text."""

from __future__ import annotations

import json

import pytest
import transformers
from fairseq.data import Dictionary

from deepnet_fairseq.data import lm_text
from deepnet_fairseq.data.language import make_corpus
from deepnet_fairseq.data.parallel_text import sentencepiece_model
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools.export.hub_models import MARKS, Port
from deepnet_fairseq.tools.export.hub_tokenizers import segmenter_of, write_tokenizer, write_translation_tokenizer
from deepnet_fairseq.tools.translation.description import Description
from deepnet_fairseq.tools.translation.text import Text, find_chain, find_subwords

from ..support.helpers import EOS, PAD, UNK
from ..support.plain_text import write_gpt2

FSMT = Port("FSMT", "ForConditionalGeneration", {}, {}, 1024, bounded=False)
HARD = ["  two   blanks ", "a☃☃ ☃b", "ﬁ ½ Ａ é e\u0301", "tab\there", "x" * 30, "don't, \u2581 that", ""]


@pytest.fixture(scope="module", name="plain")
def some_plain():
    """Provide generated sentences of two languages."""
    corpus = make_corpus({"train": 60, "valid": 1, "test": 1}, nouns=20)["train"]
    return [pair[side] for side in (0, 1) for pair in corpus]


def all_pieces(segmenter) -> Dictionary:
    """Build a fairseq dictionary of every piece in another order than the model's, padded with a filler."""
    dictionary = Dictionary()
    for piece in reversed(segmenter.symbols):
        dictionary.add_symbol(piece)
    dictionary.add_symbol("madeupword0000")
    return dictionary


@pytest.fixture(name="segmenter", params=["bpe", "unigram", "gpt2"])
def a_segmenter(request, plain, tmp_path):
    """Provide a segmenter of each kind that fast tokenizers support."""
    if request.param == "gpt2":
        write_gpt2(tmp_path / "data")
        content = {"bpe": "gpt2", "gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}
        (tmp_path / "data" / lm_text.NAME).write_text(json.dumps(content))
        return segmenter_of(str(tmp_path / "data"), None)
    model = sentencepiece_model(plain, 90, model_type=request.param, hard_vocab_limit=False)
    (tmp_path / "spm.model").write_bytes(model)
    return segmenter_of("", str(tmp_path / "spm.model"))


@pytest.mark.parametrize("begin", (EOS, 0))
def test_a_fast_tokenizer_cuts_as_fairseq_does(begin, segmenter, plain, tmp_path):
    """A fast tokenizer cuts text as fairseq does: repeated blanks, unknown letters, normalised signs included."""
    dictionary, lines = all_pieces(segmenter), [*plain, *map(str.strip, HARD)]
    cut = [dictionary.encode_line(segmenter.encode(line), add_if_not_exist=False, append_eos=False) for line in lines]
    ported = Port("OPT", "ForCausalLM", MARKS | {"bos_token_id": begin}, {}, 128, bounded=True)
    numbers = [row.tolist() for row in cut]
    (tmp_path / "hub").mkdir()
    tokenizer = write_tokenizer(transformers, tmp_path / "hub", ported, segmenter, dictionary, str(tmp_path))
    assert tokenizer.is_fast and tokenizer.model_max_length == 128
    assert tokenizer(lines)["input_ids"] == [[begin, *row] for row in numbers]
    assert tokenizer(lines[0], lines[1])["input_ids"] == [begin, *numbers[0], *numbers[1]]
    known = [line for line, row in zip(lines, numbers, strict=True) if UNK not in row and line in plain]
    assert len(known) > 20
    assert tokenizer.batch_decode(tokenizer(known)["input_ids"], skip_special_tokens=True) == known
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (PAD, EOS, UNK)
    assert tokenizer.bos_token_id == begin and tokenizer.padding_side == "left" and len(tokenizer) == len(dictionary)


def text(kind: str, file, *dictionaries) -> Text:
    return Text(Description("deepnorm", ("qaa", "qab"), kind, (1024, 1024)), dictionaries, file)


def test_a_translation_models_text_is_cut_by_its_sentencepiece_model(plain, tmp_path):
    """A translation model's tokenizer gives fairseq's numbers; a piece missing in the dictionary is <unk>.

    Special symbols that occur in the text are treated as text.
    """
    (tmp_path / "spm.model").write_bytes(sentencepiece_model(plain, 90))
    (tmp_path / "hub").mkdir()
    segmenter = segmenter_of(str(tmp_path), None)
    dictionary, lines = Dictionary(), [*plain, *HARD, f">>fr<< {plain[0]}", f"{plain[1]} </s> <unk><pad>"]
    for piece in all_pieces(segmenter).symbols[4:-6]:
        dictionary.add_symbol(piece)
    transformers.FSMTConfig().save_pretrained(tmp_path / "hub")
    given = text("sentencepiece", tmp_path / "spm.model", dictionary, dictionary)
    write_translation_tokenizer(transformers, tmp_path / "hub", FSMT, given)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    ours = [dictionary.encode_line(segmenter.encode(line), add_if_not_exist=False).tolist() for line in lines]
    assert tokenizer(lines)["input_ids"] == ours and any(UNK in row for row in ours[: len(plain)])
    known = [line for line, row in zip(plain, ours, strict=False) if UNK not in row]
    assert tokenizer.batch_decode(tokenizer(known)["input_ids"], skip_special_tokens=True) == known and known
    assert tokenizer.model_max_length == 1024 and (tokenizer.pad_token_id, tokenizer.eos_token_id) == (PAD, EOS)


def test_text_that_no_tokenizer_cuts_alike_is_refused(segmenter, tmp_path):
    """Refuses text that no tokenizer would cut alike: missing pieces, two dictionaries, subword-nmt, cut text."""
    full, less = all_pieces(segmenter), Dictionary()
    for piece in full.symbols[4:-2]:
        less.add_symbol(piece)
    causal = Port("OPT", "ForCausalLM", MARKS, {}, 64, bounded=True)
    with pytest.raises(UserError, match="has 1 pieces that the dictionary lacks"):
        write_tokenizer(transformers, tmp_path, causal, segmenter, less, str(tmp_path))
    for given, message in (
        (text("sentencepiece", tmp_path, full, less), "the data have two; train on data of one dictionary"),
        (text("subword_nmt", tmp_path, full, full), "what Moses' tokenizer makes and subword-nmt cuts; give --to"),
        (text("none", None, full, full), "text that comes cut; give --to ctranslate2"),
    ):
        with pytest.raises(UserError, match=message):
            write_translation_tokenizer(transformers, tmp_path, FSMT, given)


def test_what_cut_the_text_is_found_or_asked_for(tmp_path):
    with pytest.raises(UserError, match=r"nothing there says.*spm.model \(sentencepiece\), codes .*--subwords none"):
        find_subwords(None, str(tmp_path))
    for function in (find_subwords, lambda path, data: segmenter_of(data, path)):
        with pytest.raises(UserError, match="missing: no such file"):
            function(str(tmp_path / "missing"), str(tmp_path))
    (tmp_path / "codes").write_text("a b\n")
    with pytest.raises(UserError, match="codes: no SentencePiece model"):
        find_subwords(str(tmp_path / "codes"), str(tmp_path))
    assert find_subwords(None, str(tmp_path)) == ("subword_nmt", tmp_path / "codes")
    assert find_subwords("none", str(tmp_path)) == ("none", None)


def test_a_recipe_says_how_its_text_became_moses_tokens(tmp_path):
    """Moses' settings come from the recipe beside the data, also for shards; other data have plain tokens."""
    (tmp_path / "bin" / "shard00").mkdir(parents=True)
    plain = {"normalise": False, "aggressive": False, "lowercase": False}
    assert find_chain(str(tmp_path / "bin")) == plain
    (tmp_path / "recipe.json").write_text(json.dumps({"recipe": "iwslt14_de_en"}))
    for folder in ("bin", f"bin/shard00:{tmp_path}/bin/shard01"):
        assert find_chain(str(tmp_path / folder)) == plain | {"lowercase": True}
    (tmp_path / "codes").write_text("a b\n")
    assert find_subwords(None, str(tmp_path / "bin" / "shard00")) == ("subword_nmt", tmp_path / "codes")
