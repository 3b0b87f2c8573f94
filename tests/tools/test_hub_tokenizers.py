"""Tests of the tokenizers of an export: they give fairseq's token numbers, and decode to the text."""

from __future__ import annotations

import json

import pytest
import transformers
from fairseq.data import Dictionary

from deepnet_fairseq.data import lm_text
from deepnet_fairseq.data.language import make_corpus
from deepnet_fairseq.data.parallel_text import sentencepiece_model
from deepnet_fairseq.tools.export.hub_models import SPECIAL_TOKENS, Port
from deepnet_fairseq.tools.export.hub_tokenizers import segmenter_of, write_tokenizer, write_translation_tokenizer
from deepnet_fairseq.tools.translation.description import Description
from deepnet_fairseq.tools.translation.text import Text, find_chain, find_subwords

from ..support.errors import refused
from ..support.helpers import EOS, PAD, UNK
from ..support.plain_text import write_gpt2

BOS = 0
SPECIALS = 4  # <s>, <pad>, </s> and <unk> begin a dictionary
PIECES = 90  # of each SentencePiece model here
POSITIONS = 128  # of a language model: how many tokens its tokenizer lets through
# Of a translation model, a tokenizer looks only at how many tokens have a position; config and weights are left out.
TRANSLATOR = Port("FSMT", "ForConditionalGeneration", config={}, state={}, longest=1024, bounded=False)
HARD_LINES = [  # lines that tokenizers may cut in different ways
    "  two   blanks ",
    "a☃☃ ☃b",  # unknown letters, two of them side by side
    "ﬁ ½ Ａ é e\u0301",  # SentencePiece's normalisation (NFKC) changes these
    "tab\there",
    "x" * 30,
    "don't, \u2581 that",  # U+2581 stands for a blank in pieces
    "",
]


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """Provide generated sentences of two languages."""
    pairs = make_corpus({"train": 60, "valid": 1, "test": 1}, nouns=20)["train"]
    return [source for source, _ in pairs] + [target for _, target in pairs]


def dictionary_with(pieces: list[str]) -> Dictionary:
    """Return a fairseq dictionary with these pieces behind <s>, <pad>, </s> and <unk>."""
    dictionary = Dictionary()
    for piece in pieces:
        dictionary.add_symbol(piece)
    return dictionary


def dictionary_of_all_pieces(segmenter) -> Dictionary:
    """Return a fairseq dictionary of every piece, in the reverse of the model's order, so that the numbers differ.

    Last comes a filler, as fairseq adds them to make the size a multiple of 8.
    """
    return dictionary_with([*reversed(segmenter.symbols), "madeupword0000"])


def fairseq_numbers(segmenter, dictionary: Dictionary, line: str, append_eos: bool = False) -> list[int]:
    """Return the token numbers of a line as fairseq finds them: cut by the segmenter, looked up in the dictionary."""
    return dictionary.encode_line(segmenter.encode(line), add_if_not_exist=False, append_eos=append_eos).tolist()


@pytest.fixture
def hub(tmp_path):
    """Provide an empty folder for an export."""
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub"


# language models


@pytest.fixture(params=["bpe", "unigram", "gpt2"])
def segmenter(request, sentences, tmp_path):
    """Provide what cut a text for fairseq, of each kind that fast tokenizers support.

    SentencePiece's BPE and unigrams are given as a file (--subwords), GPT-2's BPE by the text.json of the data.
    """
    if request.param == "gpt2":
        data = tmp_path / "data"
        write_gpt2(data)
        content = {"bpe": "gpt2", "gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}
        (data / lm_text.NAME).write_text(json.dumps(content))
        return segmenter_of(str(data), subwords=None)

    model = sentencepiece_model(sentences, PIECES, model_type=request.param, hard_vocab_limit=False)
    (tmp_path / "spm.model").write_bytes(model)
    return segmenter_of("", subwords=str(tmp_path / "spm.model"))


@pytest.fixture
def dictionary(segmenter) -> Dictionary:
    """Provide a dictionary of all pieces of the segmenter."""
    return dictionary_of_all_pieces(segmenter)


def causal_port(first_token: int = BOS) -> Port:
    """Return the port of a language model without its weights, which a tokenizer does not look at."""
    config = SPECIAL_TOKENS | {"bos_token_id": first_token}
    return Port("OPT", "ForCausalLM", config=config, state={}, longest=POSITIONS, bounded=True)


@pytest.fixture(params=[EOS, BOS], ids=["</s>", "<s>"])
def first_token(request) -> int:
    """Provide the number of the symbol that begins a text: </s>, or <s> after a training with --add-bos-token."""
    return request.param


@pytest.fixture
def fast_tokenizer(first_token, segmenter, dictionary, hub, tmp_path):
    """Provide the tokenizer that is written for a language model, as transformers loads it."""
    no_data = str(tmp_path)  # without binarised sentences, with which it would be compared
    return write_tokenizer(transformers, hub, causal_port(first_token), segmenter, dictionary, no_data)


def test_a_fast_tokenizer_cuts_as_fairseq_does(fast_tokenizer, first_token, segmenter, dictionary, sentences):
    """The lines have repeated blanks, unknown letters and normalised signs. `deepnet prepare lm` strips lines, too."""
    lines = [*sentences, *(line.strip() for line in HARD_LINES)]
    expected = [[first_token, *fairseq_numbers(segmenter, dictionary, line)] for line in lines]

    numbers = fast_tokenizer(lines)["input_ids"]

    assert numbers == expected


def test_a_fast_tokenizer_joins_two_texts_behind_one_beginning(
    fast_tokenizer, first_token, segmenter, dictionary, sentences
):
    first, second = sentences[:2]
    first_numbers = fairseq_numbers(segmenter, dictionary, first)
    second_numbers = fairseq_numbers(segmenter, dictionary, second)

    numbers = fast_tokenizer(first, second)["input_ids"]

    assert numbers == [first_token, *first_numbers, *second_numbers]


def test_a_fast_tokenizer_decodes_to_the_text(fast_tokenizer, segmenter, dictionary, sentences):
    """Lines with an <unk> are left out, because its letter is lost."""
    known = [line for line in sentences if UNK not in fairseq_numbers(segmenter, dictionary, line)]
    assert len(known) > 20

    numbers = fast_tokenizer(known)["input_ids"]

    assert fast_tokenizer.batch_decode(numbers, skip_special_tokens=True) == known


def test_a_fast_tokenizer_has_fairseqs_special_symbols_and_size(fast_tokenizer, first_token, dictionary):
    """Padding is on the left, as generate() needs it, which goes on behind the last token."""
    assert fast_tokenizer.is_fast
    assert fast_tokenizer.bos_token_id == first_token
    assert fast_tokenizer.pad_token_id == PAD
    assert fast_tokenizer.eos_token_id == EOS
    assert fast_tokenizer.unk_token_id == UNK
    assert fast_tokenizer.padding_side == "left"
    assert fast_tokenizer.model_max_length == POSITIONS
    assert len(fast_tokenizer) == len(dictionary)


# translation models


def translation_text(pieces: str, file, source: Dictionary, target: Dictionary) -> Text:
    """Return how the text of a translation model is cut and numbered.

    pieces: their kind, "sentencepiece", "subword_nmt" or "none" for text that comes cut; file: by which text is cut,
    None if it comes cut; source, target: dictionaries.
    """
    described = Description(method="deepnorm", languages=("qaa", "qab"), pieces=pieces, positions=(1024, 1024))
    return Text(described, dictionaries=(source, target), file=file)


@pytest.fixture
def spm_segmenter(sentences, tmp_path):
    """Provide the segmenter of a SentencePiece model, which is spm.model in the test's folder."""
    (tmp_path / "spm.model").write_bytes(sentencepiece_model(sentences, PIECES))
    return segmenter_of(str(tmp_path), subwords=None)


@pytest.fixture
def incomplete_dictionary(spm_segmenter) -> Dictionary:
    """Provide a dictionary that lacks five pieces of the SentencePiece model."""
    complete = dictionary_of_all_pieces(spm_segmenter).symbols
    return dictionary_with(complete[SPECIALS:-6])  # the last of the six is the filler, and no piece


@pytest.fixture
def translation_tokenizer(spm_segmenter, incomplete_dictionary, hub, tmp_path):
    """Provide the tokenizer that is written for a translation model, as transformers loads it.

    The model has the incomplete dictionary.
    """
    transformers.FSMTConfig().save_pretrained(hub)  # an AutoTokenizer reads the model's config
    text = translation_text("sentencepiece", tmp_path / "spm.model", incomplete_dictionary, incomplete_dictionary)
    write_translation_tokenizer(transformers, hub, TRANSLATOR, text)
    return transformers.AutoTokenizer.from_pretrained(hub)


def test_a_translation_models_tokenizer_cuts_as_fairseq_does(
    translation_tokenizer, spm_segmenter, incomplete_dictionary, sentences
):
    """A piece missing in the dictionary is <unk>, and special symbols that occur in the text are treated as text."""
    with_symbols = [f">>fr<< {sentences[0]}", f"{sentences[1]} </s> <unk><pad>"]
    lines = [*sentences, *HARD_LINES, *with_symbols]
    expected = [fairseq_numbers(spm_segmenter, incomplete_dictionary, line, append_eos=True) for line in lines]
    assert any(UNK in row for row in expected[: len(sentences)])  # a missing piece occurs

    numbers = translation_tokenizer(lines)["input_ids"]

    assert numbers == expected


def test_a_translation_models_tokenizer_decodes_to_the_text(
    translation_tokenizer, spm_segmenter, incomplete_dictionary, sentences
):
    known = [line for line in sentences if UNK not in fairseq_numbers(spm_segmenter, incomplete_dictionary, line)]
    assert known

    numbers = translation_tokenizer(known)["input_ids"]

    assert translation_tokenizer.batch_decode(numbers, skip_special_tokens=True) == known


def test_a_translation_models_tokenizer_has_fairseqs_special_symbols(translation_tokenizer):
    assert translation_tokenizer.model_max_length == 1024
    assert translation_tokenizer.pad_token_id == PAD
    assert translation_tokenizer.eos_token_id == EOS


# refusals


@pytest.fixture
def dictionary_without_one(segmenter) -> Dictionary:
    """Provide a dictionary that lacks one piece of the segmenter, and the filler."""
    complete = dictionary_of_all_pieces(segmenter).symbols
    return dictionary_with(complete[SPECIALS:-2])


def test_a_piece_that_the_dictionary_lacks_is_refused(segmenter, dictionary, dictionary_without_one, tmp_path):
    """The refusal says how many are missing, and names the first one."""
    missing_piece = dictionary.symbols[-2]

    with refused("--to huggingface") as caught:
        write_tokenizer(transformers, tmp_path, causal_port(), segmenter, dictionary_without_one, str(tmp_path))
    assert "1 " in caught.value.way_out
    assert repr(missing_piece) in caught.value.way_out
    assert not list(tmp_path.glob("tokenizer*"))


def assert_text_refused(text: Text, folder, *named: str) -> None:
    """Check that no tokenizer is written for a translation model's text, and that the refusal names all of `named`."""
    with refused("--to huggingface") as caught:
        write_translation_tokenizer(transformers, folder, TRANSLATOR, text)
    for word in named:
        assert word in caught.value.way_out
    assert not (folder / "vocab.json").exists()


def test_two_dictionaries_are_refused_by_a_tokenizer_of_one(dictionary, dictionary_without_one, tmp_path):
    text = translation_text("sentencepiece", tmp_path / "spm.model", dictionary, dictionary_without_one)

    assert_text_refused(text, tmp_path, "--joined-dictionary", "--to ctranslate2")


def test_text_that_subword_nmt_cuts_is_refused(dictionary, tmp_path):
    text = translation_text("subword_nmt", tmp_path / "codes", dictionary, dictionary)

    assert_text_refused(text, tmp_path, "subword-nmt", "--to ctranslate2")


def test_text_that_comes_cut_is_refused(dictionary, tmp_path):
    """The refusal does not name subword-nmt, whose text is the other kind without a tokenizer."""
    text = translation_text("none", None, dictionary, dictionary)

    with refused("--to huggingface") as caught:
        write_translation_tokenizer(transformers, tmp_path, TRANSLATOR, text)
    assert "--to ctranslate2" in caught.value.way_out
    assert "subword-nmt" not in caught.value.way_out


# what cuts a text: find_subwords(value of --subwords, folder of the data) returns the kind of pieces and the file


def test_data_that_do_not_say_what_cut_their_text_are_refused(tmp_path):
    with refused(f"--data {tmp_path}") as caught:
        find_subwords(None, str(tmp_path))
    for way in ("spm.model", "codes", "--subwords none"):
        assert way in caught.value.way_out


def test_codes_beside_the_data_are_found(tmp_path):
    (tmp_path / "codes").write_text("a b\n")

    assert find_subwords(None, str(tmp_path)) == ("subword_nmt", tmp_path / "codes")


def test_codes_beside_the_recipe_of_shards_are_found(tmp_path):
    shard = tmp_path / "bin" / "shard00"
    shard.mkdir(parents=True)
    (tmp_path / "recipe.json").write_text(json.dumps({"recipe": "iwslt14_de_en"}))
    (tmp_path / "codes").write_text("a b\n")

    assert find_subwords(None, str(shard)) == ("subword_nmt", tmp_path / "codes")


def test_with_subwords_none_text_comes_cut(tmp_path):
    assert find_subwords("none", str(tmp_path)) == ("none", None)


def test_missing_subwords_of_a_translation_model_are_refused(tmp_path):
    missing = str(tmp_path / "missing")

    with refused(missing):
        find_subwords(missing, str(tmp_path))


def test_missing_subwords_of_a_language_model_are_refused(tmp_path):
    missing = str(tmp_path / "missing")

    with refused(missing):
        segmenter_of(str(tmp_path), subwords=missing)


def test_a_file_that_is_no_sentencepiece_model_is_refused(tmp_path):
    codes = tmp_path / "codes"
    codes.write_text("a b\n")

    with refused(codes) as caught:
        find_subwords(str(codes), str(tmp_path))
    assert "SentencePiece" in caught.value.way_out


# how Moses' tokens were made: find_chain(folders of the data, with colons between) returns the scripts' settings

PLAIN_TOKENS = {"normalise": False, "aggressive": False, "lowercase": False}


def test_moses_tokens_of_data_without_a_recipe_are_plain(tmp_path):
    (tmp_path / "bin").mkdir()

    assert find_chain(str(tmp_path / "bin")) == PLAIN_TOKENS


@pytest.mark.parametrize("data", ["{folder}/bin", "{folder}/bin/shard00:{folder}/bin/shard01"])
def test_a_recipe_beside_data_or_shards_says_how_moses_tokens_were_made(data, tmp_path):
    """The tokens of IWSLT'14 are of text in lower case."""
    (tmp_path / "bin" / "shard00").mkdir(parents=True)
    (tmp_path / "recipe.json").write_text(json.dumps({"recipe": "iwslt14_de_en"}))

    assert find_chain(data.format(folder=tmp_path)) == PLAIN_TOKENS | {"lowercase": True}
