"""The tokenizer of an exported model: text to the numbers of the run's dictionary, and back.

A translation model's is a Speech2TextTokenizer, whatever its name: it lets the SentencePiece model cut the text and
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
HELD = 1000  # sentences of the data that a fast tokenizer has to cut alike


def write_translation_tokenizer(transformers, folder: Path, ported: Port, text: Text) -> None:
    """Write the tokenizer of a translation model into `folder`; UserError for what no tokenizer there cuts.

    Tags of languages are marks that a translation's text leaves out.
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
    transformers.Speech2TextTokenizer(
        str(vocabulary), str(text.file), model_max_length=ported.longest, split_special_tokens=True,
        extra_special_tokens=list((text.described.symbols or {}).values()),
    ).save_pretrained(folder)  # fmt: skip


def segmenter_of(data: str, subwords: str | None) -> Segmenter:
    """Return what cut a language model's text: the SentencePiece model `subwords`, or what lies with the data."""
    if subwords is None and (Path(data) / lm_text.NAME).is_file():
        return lm_text.read(Path(data))
    file = Path(subwords) if subwords is not None else Path(data) / "spm.model"
    if subwords is None and not file.is_file():
        raise UserError(f"--data {data}: neither {lm_text.NAME} nor {file.name} is there; give --subwords FILE")
    return Segmenter("sentencepiece", {"sentencepiece_model": file})


def write_tokenizer(transformers, folder: Path, ported: Port, segmenter: Segmenter, dictionary, data: str) -> Any:
    """Write a language model's tokenizer into `folder` and return it as AutoTokenizer loads it.

    data: folder of sentences that it must cut as fairseq does, or a UserError says that it does not.
    """
    tokenizer = _fast(transformers, ported, segmenter, dictionary)
    _cut_alike(tokenizer, segmenter, dictionary, data)
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _cut_alike(tokenizer, segmenter: Segmenter, dictionary, data: str) -> None:
    """Raise UserError, with the line, if a tokenizer gives other numbers than fairseq for sentences of the data.

    They are of valid, else test, else train. Lines with a mark such as <unk> are left out: tokenizers there read the
    mark, and fairseq cuts it into pieces.
    """
    rows = list[list[int]]()
    for split in ("valid", "test", "train"):
        if dataset := load_indexed_dataset(str(Path(data) / split), dictionary):
            rows = [dataset[number].tolist() for number in range(min(len(dataset), HELD))]
            break
    lines = [segmenter.decode(" ".join(dictionary[i] for i in row if i >= SPECIALS)) for row in rows]
    lines = [line for line in lines if not any(mark in line for mark in tokenizer.all_special_tokens)]
    encoded = tokenizer(lines, add_special_tokens=False)["input_ids"] if lines else []
    for line, numbers in zip(lines, encoded, strict=True):
        cut = segmenter.encode(line)
        if numbers != dictionary.encode_line(cut, add_if_not_exist=False, append_eos=False).tolist():
            raise misfit(f"a tokenizer there cuts otherwise than {segmenter.kind}: {line!r}")


def _fast(transformers, ported: Port, segmenter: Segmenter, dictionary):
    """Return a fast tokenizer, which begins a text as fairseq's blocks do, and pads on the left."""
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
    """Return a Tokenizer that cuts as the model does; numbers: symbol of the dictionary -> its number."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made at import
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    proto = ModelProto()
    proto.ParseFromString(path.read_bytes())
    trained, rules, kinds = proto.trainer_spec, proto.normalizer_spec, ModelProto.SentencePiece
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type not in (kinds.UNKNOWN, kinds.CONTROL)}
    if trained.treat_whitespace_as_suffix or any(
        piece.type in (kinds.USER_DEFINED, kinds.UNUSED, kinds.BYTE) for piece in proto.pieces
    ):
        raise misfit(f"{path.name} has pieces of its user's, of bytes, or blanks at the end of pieces")
    _all_there(scores, numbers, path)
    if trained.model_type == trained.BPE:
        ranked = sorted(scores, key=scores.__getitem__, reverse=True)
        merges = [
            (piece[:cut], piece[cut:])
            for piece in ranked
            for cut in range(1, len(piece))
            if piece[:cut] in scores and piece[cut:] in scores
        ]
        tokenizer = Tokenizer(models.BPE(numbers, merges, unk_token="<unk>", fuse_unk=True))
    elif trained.model_type == trained.UNIGRAM:
        lowest = min(scores.values())
        tokenizer = Tokenizer(models.Unigram([(symbol, scores.get(symbol, lowest)) for symbol in numbers], UNK))
    else:
        raise misfit(f"{path.name} is neither of BPE nor of unigrams")
    steps: list = [normalizers.Precompiled(rules.precompiled_charsmap)] if rules.precompiled_charsmap else []
    if rules.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if rules.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=trained.split_by_whitespace)
    tokenizer.decoder = decoders.Metaspace(SPACE, scheme)
    return tokenizer


def _gpt2(encoder: Path, merges: Path, numbers: dict[str, int]):
    """Return the same of GPT-2's BPE, whose pieces stand in fairseq's dictionary by their numbers in encoder.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    symbols = {piece: str(number) for piece, number in json.loads(encoder.read_text(encoding="utf-8")).items()}
    _all_there(symbols.values(), numbers, encoder)
    taken = set(symbols.values())
    vocabulary = {symbol: number for symbol, number in numbers.items() if symbol not in taken}
    vocabulary |= {piece: numbers[symbol] for piece, symbol in symbols.items()}
    pairs = [line.split(" ") for line in merges.read_text(encoding="utf-8").splitlines()[1:]]
    tokenizer = Tokenizer(models.BPE(vocabulary, [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


CUTTERS: dict[str, Callable[..., Any]] = {"sentencepiece": _sentencepiece, "gpt2": _gpt2}


def _all_there(pieces: Iterable[str], numbers: dict[str, int], path: Path) -> None:
    """Raise UserError if the dictionary lacks one: a fast tokenizer cuts text by the pieces that it can give."""
    missing = [piece for piece in pieces if piece not in numbers]
    if missing:
        raise misfit(f"{path.name} has {len(missing)} pieces that the dictionary lacks ({missing[0]!r})")
