"""The tokenizer of an exported model: text to the numbers of the run's dictionaries, and back.

A SentencePiece model, or GPT-2's BPE, becomes a fast tokenizer (of the library tokenizers) where the data have one
dictionary that holds every piece. Otherwise, for translation, a SentencePiece model becomes a MarianTokenizer, which
lets that model cut the text and looks the pieces up in a vocabulary a side, so that one which the dictionary lacks is
<unk>, as in fairseq; and subword-nmt's codes a FSMTTokenizer, which tokenises as Moses does, then merges.
"""

from __future__ import annotations

import argparse
import itertools
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
END = "</w>"
GOES_ON = "@@"
SPACE = "\u2581"  # SentencePiece's
HELD = 1000  # sentences of the data that a fast tokenizer has to cut alike
FRAMES = {  # what stands before and behind a text; a causal model's begins as fairseq's blocks do
    "ForConditionalGeneration": ((), ("</s>",)),
    "ForCausalLM": (("</s>",), ()),
    "ForMaskedLM": (("<s>",), ("</s>",)),
}


@dataclass(frozen=True)
class Subwords:
    """How text was cut: `kind` is "codes" of subword-nmt, or one of lm_text.KINDS, and `files` those that it needs."""

    kind: str
    files: tuple[Path, ...]

    def encoder(self):
        """fairseq's own, with encode(line) -> pieces with blanks between, and decode; not for codes."""
        settings = dict(zip(lm_text.KINDS[self.kind], map(str, self.files), strict=True))
        return encoders.build_bpe(argparse.Namespace(bpe=self.kind, **settings))


Held = list[tuple[str, list[int]]]  # sentences of the data: text, and the numbers of its pieces


class Unfit(Exception):
    """Why text cannot be cut by a fast tokenizer as it was, in words."""


def find_subwords(path: str | None, data: str) -> Subwords:
    """Of the file `path`, or of what lies with the data; UserError, with the way out, if there is none."""
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
    if first.startswith("#version"):
        if first.strip() != VERSION:
            raise UserError(f"--subwords {found}: is not {VERSION[1:]}; learn codes with subword-nmt 0.3")
        return Subwords("codes", (found,))
    try:
        sentencepiece.SentencePieceProcessor(model_file=str(found))
    except (RuntimeError, OSError) as error:
        raise UserError(f"--subwords {found}: neither a SentencePiece model nor subword-nmt's codes") from error
    return Subwords("sentencepiece", (found,))


def write_tokenizer(
    transformers, folder: Path, ported: Port, subwords: Subwords, dictionaries, langs: list[str], held: Held
) -> tuple[Any, str]:
    """Writes the tokenizer's files into `folder`; gives it as AutoTokenizer loads it, and why it is no fast one, or "".

    dictionaries: fairseq's, of source and target; langs: their names; held: what a fast one must cut as fairseq does,
    and of which it is said how much FSMT's does. UserError for two dictionaries where the model has one, and for what
    no tokenizer cuts.
    """
    reason = ""
    try:
        tokenizer = _fast(transformers, ported, subwords, dictionaries)
        _cut_alike(tokenizer, subwords, dictionaries[0], [line for line, _ in held])
    except Unfit as error:
        reason = str(error)
        if ported.head != "ForConditionalGeneration" or subwords.kind == "gpt2":
            raise misfit(f"{reason}, and no other tokenizer there fits") from error
        if dictionaries[0].symbols != dictionaries[1].symbols and ported.name == "M2M100":
            way_out = "train on data of one dictionary (fairseq-preprocess --joined-dictionary)"
            text = "a Pre-LN becomes an M2M100, which has one vocabulary, and the data have two"
            raise misfit(text, way_out) from error
        slow = _fsmt if subwords.kind == "codes" else _marian
        tokenizer = slow(transformers, folder, subwords.files[0], dictionaries, langs, ported.longest)
    tokenizer.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if subwords.kind == "codes" and held:
        found = tokenizer([line for line, _ in held], add_special_tokens=False)["input_ids"]
        alike = sum(mine == numbers for mine, (_, numbers) in zip(found, held, strict=True))
        reason += f"; it cuts {alike} of {len(held)} of the data's own sentences as they are there"
    return tokenizer, reason


def sentences_held(subwords: Subwords, task, data: str) -> Held:
    """Of valid, else test, else train: the source text, as it was before it was cut, and its numbers.

    Moses' tokens are joined as sacremoses does, which brings back most sentences as they were.
    """
    source, target = (getattr(task.cfg, f"{side}_lang", None) for side in ("source", "target"))
    suffixes = [f".{pair}.{source}" for pair in (f"{source}-{target}", f"{target}-{source}")] if source else [""]
    dictionary, join = task.source_dictionary, _joiner(subwords, source)
    for split, suffix in itertools.product(("valid", "test", "train"), suffixes):
        dataset = load_indexed_dataset(str(Path(data) / f"{split}{suffix}"), dictionary)
        if dataset is not None:
            rows = (dataset[number].tolist() for number in range(min(len(dataset), HELD)))
            known = ([i for i in row if i >= SPECIALS] for row in rows)
            return [(join(" ".join(dictionary[i] for i in row)), row) for row in known]
    return []


def _joiner(subwords: Subwords, language: str | None) -> Callable[[str], str]:
    """Pieces with blanks between -> text."""
    if subwords.kind != "codes":
        return subwords.encoder().decode
    from sacremoses import MosesDetokenizer

    moses = MosesDetokenizer(language or "en")
    return lambda pieces: moses.detokenize(pieces.replace(f"{GOES_ON} ", "").split())


def has_mark(tokenizer, line: str) -> bool:
    """Does the text hold <unk> or the like? Tokenizers there read the mark, as is meant for <mask>; fairseq cuts it."""
    return any(mark in line for mark in tokenizer.all_special_tokens)


def _cut_alike(tokenizer, subwords: Subwords, dictionary, lines: list[str]) -> None:
    """Unfit, with the line, if a tokenizer gives other numbers than fairseq; lines with a mark are left out."""
    encoder = subwords.encoder()
    lines = [line for line in lines if not has_mark(tokenizer, line)]
    found = tokenizer(lines, add_special_tokens=False)["input_ids"] if lines else []
    for line, numbers in zip(lines, found, strict=True):
        if numbers != dictionary.encode_line(encoder.encode(line), add_if_not_exist=False, append_eos=False).tolist():
            raise Unfit(f"a fast tokenizer cuts otherwise than {subwords.files[0].name}: {line!r}")


def _fast(transformers, ported: Port, subwords: Subwords, dictionaries):
    """Unfit if there is none."""
    from tokenizers import processors

    if dictionaries[0].symbols != dictionaries[1].symbols:
        raise Unfit("the data have two dictionaries")
    if subwords.kind not in CUTTERS:
        raise Unfit("subword-nmt's codes merge what Moses' tokenizer gives")
    symbols = dictionaries[0].symbols
    tokenizer = CUTTERS[subwords.kind](*subwords.files, {symbol: number for number, symbol in enumerate(symbols)})
    before, behind = FRAMES[ported.head]
    causal, masked = ported.head == "ForCausalLM", ported.head == "ForMaskedLM"
    if causal and ported.config["bos_token_id"] == BOS:
        before = ("<s>",)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *behind],
        pair=[*before, "$A", *behind, *(behind if masked else ()), "$B", *behind],
        special_tokens=[(mark, symbols.index(mark)) for mark in {*before, *behind}],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>",
        bos_token=before[0] if causal else "<s>", padding_side="left" if causal else "right",
        model_max_length=ported.longest, model_input_names=["input_ids", "attention_mask"],
        **({"mask_token": "<mask>"} if masked else {}),
    )  # fmt: skip


def _sentencepiece(path: Path, numbers: dict[str, int]):
    """A Tokenizer that cuts as the model does; numbers: of all of the dictionary's symbols. Unfit if it cannot."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made at import
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    proto = ModelProto()
    proto.ParseFromString(path.read_bytes())
    trained, rules, kinds = proto.trainer_spec, proto.normalizer_spec, ModelProto.SentencePiece
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type not in (kinds.UNKNOWN, kinds.CONTROL)}
    if trained.treat_whitespace_as_suffix or any(
        piece.type in (kinds.USER_DEFINED, kinds.UNUSED, kinds.BYTE) for piece in proto.pieces
    ):
        raise Unfit(f"{path.name} has pieces of its user's, of bytes, or blanks at the end of pieces")
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
        raise Unfit(f"{path.name} is neither of BPE nor of unigrams")
    steps = [normalizers.Precompiled(rules.precompiled_charsmap)] if rules.precompiled_charsmap else []
    if rules.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if rules.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=trained.split_by_whitespace)
    tokenizer.decoder = decoders.Metaspace(SPACE, scheme)
    return tokenizer


def _gpt2(encoder: Path, merges: Path, numbers: dict[str, int]):
    """The same of GPT-2's BPE, whose pieces stand in fairseq's dictionary by their numbers in encoder.json."""
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
    """Unfit if the dictionary lacks one: a fast tokenizer cuts text by the pieces that it can give."""
    missing = [piece for piece in pieces if piece not in numbers]
    if missing:
        raise Unfit(f"{path.name} has {len(missing)} pieces that the dictionary lacks ({missing[0]!r})")


def _fsmt(transformers, folder: Path, codes: Path, dictionaries, langs: list[str], longest: int):
    merges = codes.read_text(encoding="utf-8").splitlines()[1:]
    lower = all(symbol == symbol.lower() for symbol in dictionaries[0].symbols[SPECIALS:])  # so was the text
    (folder / "merges.txt").write_text("".join(f"{merge}\n" for merge in merges), encoding="utf-8")
    sides = [
        _write(folder / f"vocab-{side}.json", [_as_fsmt(*numbered) for numbered in enumerate(dictionary.symbols)])
        for side, dictionary in zip(("src", "tgt"), dictionaries, strict=True)
    ]
    files = dict(zip(("src_vocab_file", "tgt_vocab_file"), sides, strict=True))
    return transformers.FSMTTokenizer(
        langs=langs, merges_file=str(folder / "merges.txt"), **files, eos_token="</s>", model_max_length=longest,
        do_lower_case=lower,
    )  # fmt: skip


def _marian(transformers, folder: Path, model: Path, dictionaries, langs: list[str], longest: int):
    separate = dictionaries[0].symbols != dictionaries[1].symbols
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(model.read_bytes())
    files = {f"{side}_spm": str(folder / f"{side}.spm") for side in ("source", "target")}
    files["vocab"] = _write(folder / "vocab.json", dictionaries[0].symbols)
    if separate:
        files["target_vocab_file"] = _write(folder / "target_vocab.json", dictionaries[1].symbols)
    names = dict(zip(("source_lang", "target_lang"), langs, strict=True))
    return transformers.MarianTokenizer(**files, **names, separate_vocabs=separate, model_max_length=longest)


def _as_fsmt(number: int, symbol: str) -> str:
    """subword-nmt marks a piece that goes on, FSMT one that ends a word."""
    if number < SPECIALS:
        return symbol
    return symbol.removesuffix(GOES_ON) if symbol.endswith(GOES_ON) else symbol + END


def _write(path: Path, symbols: list[str]) -> str:
    numbers = {symbol: number for number, symbol in enumerate(symbols)}
    path.write_text(json.dumps(numbers, ensure_ascii=False) + "\n", encoding="utf-8")
    return str(path)
