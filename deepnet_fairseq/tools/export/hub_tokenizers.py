"""The tokenizer of an exported model: text to the numbers of the run's dictionary, and back.

A translation model's is a Speech2TextTokenizer, whatever its name: it lets the SentencePiece model segment the text and
looks the pieces up in a vocabulary, so that one which the dictionary lacks is <unk>, as in fairseq. Marks such as </s>
in a text are text to it (split_special_tokens), as to fairseq. A language model's is a fast one (of the library
tokenizers), made of a SentencePiece model or of GPT-2's BPE, all of whose pieces the dictionary must hold.
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

SPACE = "\u2581"  # SentencePiece's
HELD = 1000  # sentences of the data that a fast tokenizer has to segment alike


def write_translation_tokenizer(transformers, folder: Path, ported: Port, text: Text) -> None:
    """Write the tokenizer of a translation model into `folder`; UserError for what no tokenizer there can segment.

    Tags of languages become special tokens, which the text of a translation leaves out.
    """
    source, target = text.dictionaries
    if source.symbols != target.symbols:
        way_out = "train on data of one dictionary (fairseq-preprocess --joined-dictionary), or give --to ctranslate2"
        raise misfit("a tokenizer there has one vocabulary, and the data have two", way_out)
    if text.described.pieces != "sentencepiece":
        cut = "what Moses' tokenizer makes and subword-nmt cuts" if text.file else "text that comes cut"
        raise misfit(f"no tokenizer there takes {cut}", "give --to ctranslate2, or a SentencePiece model as --subwords")

    vocabulary = folder / "vocab.json"
    numbers = {symbol: number for number, symbol in enumerate(source.symbols)}
    vocabulary.write_text(json.dumps(numbers, ensure_ascii=False) + "\n", encoding="utf-8")
    tags = list((text.described.symbols or {}).values())
    transformers.Speech2TextTokenizer(
        str(vocabulary), str(text.file), model_max_length=ported.longest, split_special_tokens=True,
        extra_special_tokens=tags,
    ).save_pretrained(folder)  # fmt: skip


def segmenter_of(data: str, subwords: str | None) -> Segmenter:
    """Return what segmented a language model's text: the SentencePiece model `subwords`, or what lies with the data.

    UserError if nothing does.
    """
    if subwords is not None:
        return Segmenter("sentencepiece", {"sentencepiece_model": Path(subwords)})
    if (Path(data) / lm_text.NAME).is_file():
        return lm_text.read_segmenter(Path(data))
    file = Path(data) / "spm.model"
    if not file.is_file():
        raise UserError(f"--data {data}: neither {lm_text.NAME} nor {file.name} is there; give --subwords FILE")
    return Segmenter("sentencepiece", {"sentencepiece_model": file})


def write_tokenizer(transformers, folder: Path, ported: Port, segmenter: Segmenter, dictionary, data: str) -> Any:
    """Write a language model's tokenizer into `folder` and return it as AutoTokenizer loads it.

    data: folder of binarised sentences, which it must segment as fairseq does. UserError if it does not.
    """
    tokenizer = _fast(transformers, ported, segmenter, dictionary)
    _check_segmentation(tokenizer, segmenter, dictionary, data)
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _check_segmentation(tokenizer, segmenter: Segmenter, dictionary, data: str) -> None:
    """Raise UserError, with the line, if a tokenizer gives other numbers than fairseq for sentences of the data.

    They are of valid, else test, else train. Lines with a mark such as <unk> are left out: tokenizers there read the
    mark, and fairseq segments it into pieces.
    """
    rows: list[list[int]] = []
    for split in ("valid", "test", "train"):
        dataset = load_indexed_dataset(str(Path(data) / split), dictionary)
        if dataset:
            rows = [dataset[number].tolist() for number in range(min(len(dataset), HELD))]
            break

    lines = []
    for row in rows:
        line = segmenter.decode(" ".join(dictionary[i] for i in row if i >= SPECIALS))
        if not any(mark in line for mark in tokenizer.all_special_tokens):
            lines.append(line)
    if not lines:
        return

    encoded = tokenizer(lines, add_special_tokens=False)["input_ids"]
    for line, numbers in zip(lines, encoded, strict=True):
        pieces = segmenter.encode(line)
        if numbers != dictionary.encode_line(pieces, add_if_not_exist=False, append_eos=False).tolist():
            raise misfit(f"a tokenizer there cuts otherwise than {segmenter.kind}: {line!r}")


def _fast(transformers, ported: Port, segmenter: Segmenter, dictionary):
    """Return a fast tokenizer, which begins a text as fairseq's blocks do, and pads on the left.

    ported: says the first token of a text and the longest text; dictionary: fairseq's.
    """
    from tokenizers import processors

    numbers = {symbol: number for number, symbol in enumerate(dictionary.symbols)}
    tokenizer = CUTTERS[segmenter.kind](*segmenter.files.values(), numbers)

    begin = "<s>" if ported.config["bos_token_id"] == BOS else "</s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[begin, "$A"], pair=[begin, "$A", "$B"], special_tokens=[(begin, numbers[begin])]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>", bos_token=begin,
        padding_side="left", model_max_length=ported.longest, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def _sentencepiece(path: Path, numbers: dict[str, int]):
    """Return a Tokenizer that segments as the model does; numbers: symbol of the dictionary -> its number."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made at import
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    proto = ModelProto()
    proto.ParseFromString(path.read_bytes())
    kinds = ModelProto.SentencePiece
    scores = {}
    for piece in proto.pieces:
        if piece.type not in (kinds.UNKNOWN, kinds.CONTROL):
            scores[piece.piece] = piece.score

    trained = proto.trainer_spec
    unsupported = (kinds.USER_DEFINED, kinds.UNUSED, kinds.BYTE)
    if trained.treat_whitespace_as_suffix or any(piece.type in unsupported for piece in proto.pieces):
        raise misfit(f"{path.name} has pieces of its user's, of bytes, or blanks at the end of pieces")
    _all_there(scores, numbers, path)

    if trained.model_type == trained.BPE:
        tokenizer = Tokenizer(models.BPE(numbers, _merges(scores), unk_token="<unk>", fuse_unk=True))
    elif trained.model_type == trained.UNIGRAM:
        lowest = min(scores.values())  # of symbols that are no pieces
        tokenizer = Tokenizer(models.Unigram([(symbol, scores.get(symbol, lowest)) for symbol in numbers], UNK))
    else:
        raise misfit(f"{path.name} is neither of BPE nor of unigrams")

    rules = proto.normalizer_spec
    steps: list = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps.append(normalizers.Strip())
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if rules.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=trained.split_by_whitespace)
    tokenizer.decoder = decoders.Metaspace(SPACE, scheme)
    return tokenizer


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Return the merges of a SentencePiece model of BPE, which does not say them: the best pieces first.

    scores: of its pieces. Every way to make a piece of two others counts.
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
    """Return a Tokenizer of GPT-2's BPE, whose pieces are in the dictionary by their numbers in encoder.json.

    encoder, merges: GPT-2's encoder.json and vocab.bpe; numbers: symbol of the dictionary -> its number.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    encoded = json.loads(encoder.read_text(encoding="utf-8"))
    symbols = {piece: str(number) for piece, number in encoded.items()}
    _all_there(symbols.values(), numbers, encoder)
    of_pieces = set(symbols.values())
    vocabulary = {symbol: number for symbol, number in numbers.items() if symbol not in of_pieces}
    for piece, symbol in symbols.items():
        vocabulary[piece] = numbers[symbol]

    pairs = []
    for line in merges.read_text(encoding="utf-8").splitlines()[1:]:  # behind the version
        pair = line.split(" ")
        if len(pair) == 2:
            pairs.append((pair[0], pair[1]))

    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


CUTTERS: dict[str, Callable[..., Any]] = {"sentencepiece": _sentencepiece, "gpt2": _gpt2}


def _all_there(pieces: Iterable[str], numbers: dict[str, int], path: Path) -> None:
    """Raise UserError if the dictionary lacks a piece of the file `path`.

    A fast tokenizer could not use that piece, and would segment text differently.
    """
    missing = [piece for piece in pieces if piece not in numbers]
    if missing:
        raise misfit(f"{path.name} has {len(missing)} pieces that the dictionary lacks ({missing[0]!r})")
