"""Write the tokenizer of an exported model for transformers: text to the numbers of the run's dictionary, and back.

For a translation model it is a Speech2TextTokenizer, whose name does not matter: it segments text by the SentencePiece
model itself and looks the pieces up in a vocabulary, so that one which the dictionary lacks becomes <unk>, as in
fairseq. It treats a special token such as </s> that stands in a text as text (split_special_tokens), as fairseq does.

For a language model it is a fast tokenizer, one of the library tokenizers, built from a SentencePiece model or from
GPT-2's BPE. The dictionary must have all of their pieces.

`dictionary` in all functions is fairseq's Dictionary; `numbers` is symbol of the dictionary -> its number; `ported` is
the exported model (hub_models.Port); a Segmenter (data/lm_text.py) cut the text of a language model into pieces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fairseq.data.data_utils import load_indexed_dataset

from ...core.models import BOS, SPECIALS, UNK
from ...data import lm_text
from ...data.lm_text import Segmenter
from ...errors import UserError
from ...wording import counted
from ..translation.text import Text
from .hub_models import Port, misfit

SPACE = "\u2581"  # SentencePiece's character for a blank
CHECKED = 1000  # sentences of the data for which a fast tokenizer is compared with fairseq


def write_translation_tokenizer(transformers, folder: Path, ported: Port, text: Text) -> None:
    """Write the tokenizer of a translation model into `folder`.

    transformers: the module; text: the model's dictionaries, SentencePiece model and languages. Tags of languages
    become special tokens, which are left out when a translation is decoded. Raises a UserError for data with two
    dictionaries, and for pieces that are not of a SentencePiece model.
    """
    source, target = text.dictionaries
    if source.symbols != target.symbols:
        way_out = "train on data of one dictionary (fairseq-preprocess --joined-dictionary), or give --to ctranslate2"
        raise misfit("a tokenizer there has one vocabulary, and the data have two", way_out)
    if text.described.pieces != "sentencepiece":
        has_merges = text.file is not None  # subword-nmt's codes; without a file, the text came segmented
        pieces = "what Moses' tokenizer makes and subword-nmt cuts" if has_merges else "text that comes cut"
        way_out = "give --to ctranslate2, or a SentencePiece model as --subwords"
        raise misfit(f"no tokenizer there takes {pieces}", way_out)

    vocabulary = folder / "vocab.json"
    numbers = {symbol: number for number, symbol in enumerate(source.symbols)}
    vocabulary.write_text(json.dumps(numbers, ensure_ascii=False) + "\n", encoding="utf-8")
    tag_of_language = text.described.symbols or {}
    tags = list(tag_of_language.values())
    transformers.Speech2TextTokenizer(
        str(vocabulary), str(text.file), model_max_length=ported.longest, split_special_tokens=True,
        extra_special_tokens=tags,
    ).save_pretrained(folder)  # fmt: skip


def segmenter_of(data: str, subwords: str | None) -> Segmenter:
    """Return the Segmenter that cut a language model's text into pieces.

    subwords: file of a SentencePiece model, None for what lies in `data`, the folder of the binarised text: the
    text.json of `deepnet prepare lm`, else a SentencePiece model. Raises a UserError if neither is there.
    """
    if subwords is not None:
        return Segmenter("sentencepiece", {"sentencepiece_model": Path(subwords)})
    if (Path(data) / lm_text.NAME).is_file():
        return lm_text.read_segmenter(Path(data))

    file = Path(data) / "spm.model"
    if not file.is_file():
        raise UserError(f"--data {data}", f"neither {lm_text.NAME} nor {file.name} is there; give --subwords FILE")
    return Segmenter("sentencepiece", {"sentencepiece_model": file})


def write_tokenizer(transformers, folder: Path, ported: Port, segmenter: Segmenter, dictionary, data: str) -> Any:
    """Write a language model's tokenizer into `folder` and return it as AutoTokenizer loads it.

    transformers: the module; segmenter: what segmented the text for fairseq; data: folder of binarised sentences, which
    the tokenizer must segment as fairseq does. Raises a UserError if it does not, or if no fast tokenizer can be built.
    """
    tokenizer = _fast_tokenizer(transformers, ported, segmenter, dictionary)
    _check_segmentation(tokenizer, segmenter, dictionary, data)
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _check_segmentation(tokenizer, segmenter: Segmenter, dictionary, data: str) -> None:
    """Raise a UserError, with the line, if a tokenizer gives other numbers than fairseq for a sentence of the data.

    tokenizer: of transformers; data: folder of the binarised data, of which the first CHECKED sentences of the
    validation set, else of the test or training set, are compared. Sentences that contain a special token such as <unk>
    as text are left out: tokenizers of transformers read the token, and fairseq segments it into pieces.
    """
    sentences: list[list[int]] = []
    for split in ("valid", "test", "train"):
        dataset = load_indexed_dataset(str(Path(data) / split), dictionary)  # None if there is no such set
        if dataset:
            sentences = [dataset[place].tolist() for place in range(min(len(dataset), CHECKED))]
            break

    lines = []
    for sentence in sentences:
        pieces = [dictionary[number] for number in sentence if number >= SPECIALS]  # without eos and unk
        line = segmenter.decode(" ".join(pieces))
        if not any(token in line for token in tokenizer.all_special_tokens):
            lines.append(line)
    if not lines:
        return

    encoded = tokenizer(lines, add_special_tokens=False)["input_ids"]
    for line, numbers in zip(lines, encoded, strict=True):
        expected = dictionary.encode_line(segmenter.encode(line), add_if_not_exist=False, append_eos=False)
        if numbers != expected.tolist():
            raise misfit(f"a tokenizer there cuts otherwise than {segmenter.kind}: {line!r}")


def _fast_tokenizer(transformers, ported: Port, segmenter: Segmenter, dictionary):
    """Return a fast tokenizer, which begins a text as fairseq begins its blocks of text, and pads on the left.

    Padding on the left is what generate() needs of a causal model, which goes on behind the last token.
    ported: its config has the first token of a text as bos_token_id, BOS or EOS; its `longest` is how many tokens a
    text may have.
    """
    from tokenizers import processors

    numbers = {symbol: number for number, symbol in enumerate(dictionary.symbols)}
    build = BUILDERS[segmenter.kind]
    tokenizer = build(*segmenter.files.values(), numbers)

    begin = "<s>" if ported.config["bos_token_id"] == BOS else "</s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[begin, "$A"], pair=[begin, "$A", "$B"], special_tokens=[(begin, numbers[begin])]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>", bos_token=begin,
        padding_side="left", model_max_length=ported.longest, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def _sentencepiece(path: Path, numbers: dict[str, int]):
    """Return a Tokenizer (of the library tokenizers) that segments as a SentencePiece model does.

    path: of the model. Raises a UserError for a model with settings that Tokenizer cannot imitate, or with pieces that
    the dictionary lacks.
    """
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # protobuf makes it at import
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    proto = ModelProto()
    proto.ParseFromString(path.read_bytes())
    types = ModelProto.SentencePiece
    scores = {}  # piece -> its score, without <unk>, <s> and </s>, into which no text is segmented
    for piece in proto.pieces:
        if piece.type not in (types.UNKNOWN, types.CONTROL):
            scores[piece.piece] = piece.score

    trainer = proto.trainer_spec
    unsupported = (types.USER_DEFINED, types.UNUSED, types.BYTE)
    if trainer.treat_whitespace_as_suffix or any(piece.type in unsupported for piece in proto.pieces):
        raise misfit(f"{path.name} has pieces of its user's, of bytes, or blanks at the end of pieces")
    _check_in_dictionary(scores, numbers, path)

    # the model, with the numbers of the dictionary instead of its own
    if trainer.model_type == trainer.BPE:
        tokenizer = Tokenizer(models.BPE(numbers, _merges(scores), unk_token="<unk>", fuse_unk=True))
    elif trainer.model_type == trainer.UNIGRAM:
        lowest = min(scores.values())  # for symbols of the dictionary that are no pieces, such as <s>
        scored = [(symbol, scores.get(symbol, lowest)) for symbol in numbers]
        tokenizer = Tokenizer(models.Unigram(scored, UNK))
    else:
        raise misfit(f"{path.name} is neither of BPE nor of unigrams")

    # the changes of the text before it is segmented; the decoder undoes those of blanks alone
    normalizer = proto.normalizer_spec
    steps: list = []  # of tokenizers.normalizers
    if normalizer.precompiled_charsmap:  # replacements of characters, such as NFKC
        steps.append(normalizers.Precompiled(normalizer.precompiled_charsmap))
    if normalizer.remove_extra_whitespaces:
        steps.append(normalizers.Strip())
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if normalizer.add_dummy_prefix else "never"  # whether a blank is put in front of a text
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=trainer.split_by_whitespace)
    tokenizer.decoder = decoders.Metaspace(SPACE, scheme)
    return tokenizer


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Return the merges (left piece, right piece) of a SentencePiece model of BPE, the first to apply first.

    scores: piece -> its score, all that the model stores. Every way to join two pieces into a third is a merge, and
    SentencePiece applies those with the highest score of the joined piece first.
    """
    merges = []
    for piece in sorted(scores, key=scores.__getitem__, reverse=True):
        for place in range(1, len(piece)):
            left = piece[:place]
            right = piece[place:]
            if left in scores and right in scores:
                merges.append((left, right))
    return merges


def _gpt2(encoder: Path, merges: Path, numbers: dict[str, int]):
    """Return a Tokenizer (of the library tokenizers) of GPT-2's BPE that gives the numbers of fairseq's dictionary.

    encoder: GPT-2's file encoder.json, {piece: its number in GPT-2}; merges: its file vocab.bpe, two pieces on each
    line. The dictionary's symbol of a piece is the piece's number in GPT-2, in digits: "464" for "The".
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    gpt2_numbers = json.loads(encoder.read_text(encoding="utf-8"))
    symbols = {piece: str(number) for piece, number in gpt2_numbers.items()}
    _check_in_dictionary(symbols.values(), numbers, encoder)

    # what the Tokenizer knows -> number in the dictionary: symbols such as <s>, which are no pieces, and all pieces
    symbols_of_pieces = set(symbols.values())
    vocabulary = {symbol: number for symbol, number in numbers.items() if symbol not in symbols_of_pieces}
    for piece, symbol in symbols.items():
        vocabulary[piece] = numbers[symbol]

    pairs = []
    for line in merges.read_text(encoding="utf-8").splitlines()[1:]:  # the first line is a version
        pair = line.split(" ")
        if len(pair) == 2:  # an empty line at the end is no pair
            pairs.append((pair[0], pair[1]))

    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


# kind of a Segmenter -> function that builds a Tokenizer: it takes the paths of the Segmenter's files, and `numbers`
BUILDERS: dict[str, Callable[..., Any]] = {"sentencepiece": _sentencepiece, "gpt2": _gpt2}


def _check_in_dictionary(pieces: Iterable[str], numbers: dict[str, int], path: Path) -> None:
    """Raise a UserError if the dictionary lacks one of the pieces of the file `path`.

    A fast tokenizer could not use that piece, and would segment text differently.
    """
    missing = [piece for piece in pieces if piece not in numbers]
    if missing:
        raise misfit(f"{path.name} has {counted(len(missing), 'piece')} that the dictionary lacks ({missing[0]!r})")
