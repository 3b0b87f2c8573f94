"""The tokenizer of an exported model: text to the numbers of the run's dictionary, and back.

A translation model's is a Speech2TextTokenizer, whatever its name: it lets the SentencePiece model cut the text and
looks the pieces up in a vocabulary, so that one which the dictionary lacks is <unk>, as in fairseq. A language model's
is a fast one (of the library tokenizers), made of a SentencePiece model or of GPT-2's BPE, all of whose pieces the
dictionary must hold. Both need one dictionary, and no tokenizer there cuts Moses' words by subword-nmt's codes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
from fairseq.data import encoders
from fairseq.data.data_utils import load_indexed_dataset

from ...core.models import BOS, SPECIALS, UNK
from ...data import lm_text
from ...errors import UserError
from .hub_models import Port, misfit

NAMES = ("spm.model", "codes")  # as `deepnet prepare` and the recipes leave them beside the data
VERSION = "#version: 0.2"  # of codes, in which </w> is a part of a word's last piece
SPACE = "\u2581"  # SentencePiece's
HELD = 1000  # sentences of the data that a fast tokenizer has to cut alike


@dataclass(frozen=True)
class Subwords:
    """How text was cut: `kind` is "codes" of subword-nmt, or one of lm_text.KINDS, and `files` those that it needs."""

    kind: str
    files: tuple[Path, ...]

    def encoder(self):
        """Return fairseq's own, with encode(line) -> pieces with blanks between, and decode; not for codes."""
        settings = dict(zip(lm_text.KINDS[self.kind], map(str, self.files), strict=True))
        return encoders.build_bpe(argparse.Namespace(bpe=self.kind, **settings))


def find_subwords(path: str | None, data: str) -> Subwords:
    """Return what cut the text: the file `path`, or what lies with the data; UserError if there is none."""
    if path is None:
        if (Path(data) / lm_text.NAME).is_file():
            segmenter = lm_text.read(Path(data))
            return Subwords(segmenter.kind, tuple(segmenter.files.values()))
        found = next((Path(data) / name for name in NAMES if (Path(data) / name).is_file()), None)
        if found is None:
            raise UserError(
                f"--data {data}: neither {' nor '.join(NAMES)} is there; give what cut the text as --subwords FILE"
            )
    else:
        found = Path(path)
        if not found.is_file():
            raise UserError(f"--subwords {path}: no such file")
    with open(found, "rb") as file:
        first = file.readline(len(VERSION) + 2).decode(errors="replace")
    if first.startswith(VERSION):
        return Subwords("codes", (found,))
    try:
        sentencepiece.SentencePieceProcessor(model_file=str(found))
    except (RuntimeError, OSError) as error:
        raise UserError(f"--subwords {found}: neither a SentencePiece model nor subword-nmt's codes") from error
    return Subwords("sentencepiece", (found,))


def write_tokenizer(transformers, folder: Path, ported: Port, subwords: Subwords, dictionaries, data: str) -> Any:
    """Write the tokenizer's files into `folder` and return it as AutoTokenizer loads it.

    dictionaries: fairseq's, of source and target; data: folder of sentences that a fast tokenizer must cut as fairseq
    does. UserError for what no tokenizer cuts.
    """
    if dictionaries[0].symbols != dictionaries[1].symbols:
        way_out = "train on data of one dictionary (fairseq-preprocess --joined-dictionary), or give --to ctranslate2"
        raise misfit("a tokenizer there has one vocabulary, and the data have two", way_out)
    if subwords.kind == "codes":
        raise misfit("subword-nmt's codes cut what Moses' tokenizer makes, and no tokenizer there does both alike")
    if ported.head != "ForConditionalGeneration":
        tokenizer = _fast(transformers, ported, subwords, dictionaries[0])
        _cut_alike(tokenizer, subwords, dictionaries[0], data)
    elif subwords.kind != "sentencepiece":
        raise misfit(f"a translation model's text is cut by SentencePiece there, and this model's by {subwords.kind}")
    else:
        vocabulary = folder / "vocab.json"
        numbers = {symbol: number for number, symbol in enumerate(dictionaries[0].symbols)}
        vocabulary.write_text(json.dumps(numbers, ensure_ascii=False) + "\n", encoding="utf-8")
        tokenizer = transformers.Speech2TextTokenizer(
            str(vocabulary), str(subwords.files[0]), model_max_length=ported.longest
        )
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _cut_alike(tokenizer, subwords: Subwords, dictionary, data: str) -> None:
    """Raise UserError, with the line, if a tokenizer gives other numbers than fairseq for sentences of the data.

    They are of valid, else test, else train. Lines with a mark such as <unk> are left out: tokenizers there read the
    mark, as is meant for <mask>, and fairseq cuts it into pieces.
    """
    encoder, rows = subwords.encoder(), list[list[int]]()
    for split in ("valid", "test", "train"):
        if dataset := load_indexed_dataset(str(Path(data) / split), dictionary):
            rows = [dataset[number].tolist() for number in range(min(len(dataset), HELD))]
            break
    lines = [encoder.decode(" ".join(dictionary[i] for i in row if i >= SPECIALS)) for row in rows]
    lines = [line for line in lines if not any(mark in line for mark in tokenizer.all_special_tokens)]
    found = tokenizer(lines, add_special_tokens=False)["input_ids"] if lines else []
    for line, numbers in zip(lines, found, strict=True):
        if numbers != dictionary.encode_line(encoder.encode(line), add_if_not_exist=False, append_eos=False).tolist():
            raise misfit(f"a tokenizer there cuts otherwise than {subwords.files[0].name}: {line!r}")


def _fast(transformers, ported: Port, subwords: Subwords, dictionary):
    """Return a fast tokenizer; a causal model's begins a text as fairseq's blocks do, and pads on the left."""
    from tokenizers import processors

    symbols, causal = dictionary.symbols, ported.head == "ForCausalLM"
    tokenizer = CUTTERS[subwords.kind](*subwords.files, {symbol: number for number, symbol in enumerate(symbols)})
    begin = "<s>" if not causal or ported.config["bos_token_id"] == BOS else "</s>"
    end, middle = ([], []) if causal else (["</s>"], ["</s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[begin, "$A", *end], pair=[begin, "$A", *middle, "$B", *end],
        special_tokens=[(mark, symbols.index(mark)) for mark in {begin, *end}],
    )  # fmt: skip
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>", bos_token=begin,
        padding_side="left" if causal else "right", model_max_length=ported.longest,
        model_input_names=["input_ids", "attention_mask"], **({} if causal else {"mask_token": "<mask>"}),
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
    steps = [normalizers.Precompiled(rules.precompiled_charsmap)] if rules.precompiled_charsmap else []
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
