"""Write transformers' tokenizer of an exported model: text to the numbers of the run's dictionary, and back.

For a translation model it is a Speech2TextTokenizer, whose name does not matter: it segments text by the SentencePiece
model itself and looks the pieces up in a vocabulary, so that one which the dictionary lacks becomes <unk>, as in
fairseq. A mark such as </s> that stands in a text is text to it (split_special_tokens), as to fairseq.

For a language model it is a fast tokenizer, one of the library tokenizers, built from a SentencePiece model or from
GPT-2's BPE. The dictionary must have all of their pieces.
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
from ..translation.text import Text
from .hub_models import Port, misfit

SPACE = "\u2581"  # by which SentencePiece writes a blank
CHECKED = 1000  # sentences of the data for which a fast tokenizer is compared with fairseq


def write_translation_tokenizer(transformers, folder: Path, ported: Port, text: Text) -> None:
    """Write the tokenizer of a translation model into `folder`; transformers: the module.

    Tags of languages become special tokens, which are left out when a translation is decoded. UserError for data with
    two dictionaries, and for pieces that are not of a SentencePiece model.
    """
    source, target = text.dictionaries
    if source.symbols != target.symbols:
        way_out = "train on data of one dictionary (fairseq-preprocess --joined-dictionary), or give --to ctranslate2"
        raise misfit("a tokenizer there has one vocabulary, and the data have two", way_out)
    if text.described.pieces != "sentencepiece":
        has_merges = text.file is not None
        cut = "what Moses' tokenizer makes and subword-nmt cuts" if has_merges else "text that comes cut"
        raise misfit(f"no tokenizer there takes {cut}", "give --to ctranslate2, or a SentencePiece model as --subwords")

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
    """Return what segmented a language model's text.

    subwords: a SentencePiece model, None for what lies in the folder `data`; UserError if nothing does.
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

    transformers: the module; segmenter: what segmented the text for fairseq; dictionary: fairseq's; data: folder of
    binarised sentences, which the tokenizer must segment as fairseq does, else UserError.
    """
    tokenizer = _fast_tokenizer(transformers, ported, segmenter, dictionary)
    _check_segmentation(tokenizer, segmenter, dictionary, data)
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _check_segmentation(tokenizer, segmenter: Segmenter, dictionary, data: str) -> None:
    """Raise UserError, with the line, if a tokenizer gives other numbers than fairseq for sentences of the data.

    They are the first ones of the data's validation set, else of the test or training set. Lines that contain a mark
    such as <unk> are left out: tokenizers there read the mark, and fairseq segments it into pieces.
    """
    sentences: list[list[int]] = []
    for split in ("valid", "test", "train"):
        dataset = load_indexed_dataset(str(Path(data) / split), dictionary)
        if dataset:
            sentences = [dataset[place].tolist() for place in range(min(len(dataset), CHECKED))]
            break

    lines = []
    for sentence in sentences:
        pieces = [dictionary[number] for number in sentence if number >= SPECIALS]
        line = segmenter.decode(" ".join(pieces))
        if not any(mark in line for mark in tokenizer.all_special_tokens):
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

    ported: its config tells the first token of a text, its `longest` how many a text may have; dictionary: fairseq's.
    """
    from tokenizers import processors

    numbers = {symbol: number for number, symbol in enumerate(dictionary.symbols)}
    tokenizer = BUILDERS[segmenter.kind](*segmenter.files.values(), numbers)

    begin = "<s>" if ported.config["bos_token_id"] == BOS else "</s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[begin, "$A"], pair=[begin, "$A", "$B"], special_tokens=[(begin, numbers[begin])]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>", bos_token=begin,
        padding_side="left", model_max_length=ported.longest, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def _sentencepiece(path: Path, numbers: dict[str, int]):
    """Return a Tokenizer that segments as a SentencePiece model does.

    path: of the model; numbers: symbol of the dictionary -> its number. UserError for a model that Tokenizer cannot
    follow.
    """
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made at import
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    proto = ModelProto()
    proto.ParseFromString(path.read_bytes())
    kinds = ModelProto.SentencePiece
    scores = {}  # piece -> its score, for all that text is segmented into
    for piece in proto.pieces:
        if piece.type not in (kinds.UNKNOWN, kinds.CONTROL):
            scores[piece.piece] = piece.score

    trainer = proto.trainer_spec
    unsupported = (kinds.USER_DEFINED, kinds.UNUSED, kinds.BYTE)
    if trainer.treat_whitespace_as_suffix or any(piece.type in unsupported for piece in proto.pieces):
        raise misfit(f"{path.name} has pieces of its user's, of bytes, or blanks at the end of pieces")
    _all_there(scores, numbers, path)

    if trainer.model_type == trainer.BPE:
        tokenizer = Tokenizer(models.BPE(numbers, _merges(scores), unk_token="<unk>", fuse_unk=True))
    elif trainer.model_type == trainer.UNIGRAM:
        lowest = min(scores.values())  # for symbols of the dictionary that are no pieces
        scored = [(symbol, scores.get(symbol, lowest)) for symbol in numbers]
        tokenizer = Tokenizer(models.Unigram(scored, UNK))
    else:
        raise misfit(f"{path.name} is neither of BPE nor of unigrams")

    normalizer = proto.normalizer_spec
    steps: list = []
    if normalizer.precompiled_charsmap:
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
    """Return the merges, pairs of pieces, of a SentencePiece model of BPE; the model stores only pieces with scores.

    Every way to make a piece of two others is a merge; the merges of pieces with a higher score come first.
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
    """Return a Tokenizer of GPT-2's BPE that gives the numbers of fairseq's dictionary.

    encoder, merges: GPT-2's files encoder.json and vocab.bpe; numbers: symbol of the dictionary -> its number. As a
    symbol of a piece the dictionary has the piece's number in encoder.json, in digits.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    encoded = json.loads(encoder.read_text(encoding="utf-8"))
    symbols = {piece: str(number) for piece, number in encoded.items()}
    _all_there(symbols.values(), numbers, encoder)

    # symbols such as <s> under their own name, the others by their piece
    of_pieces = set(symbols.values())
    vocabulary = {symbol: number for symbol, number in numbers.items() if symbol not in of_pieces}
    for piece, symbol in symbols.items():
        vocabulary[piece] = numbers[symbol]

    pairs = []
    for line in merges.read_text(encoding="utf-8").splitlines()[1:]:  # the first line is a version
        pair = line.split(" ")
        if len(pair) == 2:
            pairs.append((pair[0], pair[1]))

    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


# kind of a Segmenter -> the function that builds a Tokenizer of its files, in their order, and the dictionary's numbers
BUILDERS: dict[str, Callable[..., Any]] = {"sentencepiece": _sentencepiece, "gpt2": _gpt2}


def _all_there(pieces: Iterable[str], numbers: dict[str, int], path: Path) -> None:
    """Raise UserError if the dictionary lacks one of the pieces of the file `path`.

    A fast tokenizer could not use that piece, and would segment text differently. numbers: of the dictionary's symbols.
    """
    missing = [piece for piece in pieces if piece not in numbers]
    if missing:
        raise misfit(f"{path.name} has {len(missing)} pieces that the dictionary lacks ({missing[0]!r})")
