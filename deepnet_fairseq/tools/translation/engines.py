"""Three programs that translate: CTranslate2, this package's own models under fairseq's search, and transformers.

An engine has cut(line) -> tokens that its encoder reads of a line, and translate(rows of tokens) -> lines. All search
alike: no empty translation, no unknown symbol, a score of log-probabilities over length ** penalty.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...threads import torch_threads
from .description import Description
from .pieces import KINDS

SHORTEST = 1  # tokens of a translation but for its end


@dataclass(frozen=True)
class Settings:
    """Settings of a search; max_tokens: of a batch of source sentences, padding included.

    threads: None for OMP_NUM_THREADS of the environment, else for as many as suit the engine.
    """

    beam: int = 5
    lenpen: float = 1.0
    max_tokens: int = 2000
    threads: int | None = None
    int8: bool = False

    def cores(self, width: int | None = None) -> int:
        """Return how many threads work.

        width: of a model that torch computes, whose threads are set to the number; None for CTranslate2, which takes
        all cores.
        """
        if width is not None:
            return torch_threads.use(width, given=self.threads)
        usual = os.environ.get("OMP_NUM_THREADS", "")
        return self.threads or (int(usual) if usual.isdigit() else 0) or len(os.sched_getaffinity(0))


class CTranslate2:
    """CTranslate2 with the model of a folder; `pieces` cut lines and join translations.

    tags: those that begin a source sentence, and its translation.
    """

    name = "CTranslate2"

    def __init__(self, folder: Path, described: Description, pieces, tags: tuple[list[str], list[str]], settings):
        import ctranslate2

        self.pieces, self.settings, (self.before, self.prefix) = pieces, settings, tags
        self.longest, self.threads = described.positions[1] - 1, settings.cores()
        device = "cuda" if ctranslate2.get_cuda_device_count() else "cpu"
        compute = "int8" if settings.int8 else "default"
        try:
            self.model = ctranslate2.Translator(
                str(folder), device=device, compute_type=compute, intra_threads=self.threads
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{folder}: CTranslate2 cannot load it ({' '.join(str(error).split())})") from error

    @classmethod
    def of_folder(cls, folder: Path, described: Description, direction: tuple[str, str], settings: Settings):
        """Load what `deepnet export --to ctranslate2` has written."""
        file = folder / (KINDS[described.pieces].file or "")
        return cls(folder, described, described.cutter(file, *direction), described.tags(*direction), settings)

    def cut(self, line: str) -> list[str]:
        """Return the tag and the pieces; CTranslate2 adds the end."""
        return self.before + self.pieces.cut(line)

    def translate(self, rows: list[list[str]]) -> list[str]:
        """Translate rows of pieces."""
        results = self.model.translate_batch(
            rows, [self.prefix] * len(rows) if self.prefix else None, max_batch_size=self.settings.max_tokens,
            batch_type="tokens", beam_size=self.settings.beam, length_penalty=self.settings.lenpen, disable_unk=True,
            max_input_length=0, min_decoding_length=SHORTEST, max_decoding_length=self.longest,
        )  # fmt: skip
        return [self.pieces.join(one.hypotheses[0][len(self.prefix) :]) for one in results]


class Fairseq:
    """Decoder of this package's models, of any method, under fairseq's beam search.

    dictionaries: fairseq's, of source and target.
    """

    name = "the package's own decoder"

    def __init__(self, model, dictionaries, described: Description, pieces, tags, settings: Settings):
        import torch
        from fairseq.sequence_generator import SequenceGenerator

        if settings.int8:
            raise UserError("--int8: only with CTranslate2, which this model does not go through; leave it out")
        self.pieces, self.settings, (self.before, self.prefix) = pieces, settings, tags
        self.source, self.target = dictionaries
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.threads = settings.cores(model.encoder.embed_tokens.embedding_dim)
        self.search = SequenceGenerator(
            [model.to(self.device)], self.target, beam_size=settings.beam, max_len_b=described.positions[1] - 1,
            min_len=SHORTEST + len(self.prefix), len_penalty=settings.lenpen, unk_penalty=float("inf"),
            symbols_to_strip_from_output={self.target.index(tag) for tag in self.prefix},
        )  # fmt: skip

    def cut(self, line: str) -> list[str]:
        """Return the tag and the pieces."""
        return self.before + self.pieces.cut(line)

    def translate(self, rows: list[list[str]]) -> list[str]:
        """Translate rows of pieces, those of about one length together."""
        numbers = [[*map(self.source.index, row), self.source.eos()] for row in rows]
        return _by_length(numbers, self.settings.max_tokens, self._batch)

    def _batch(self, rows: list[list[int]]) -> list[str]:
        source = _padded(rows, self.source.pad(), self.device)
        sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(self.source.pad()).sum(1)}}
        prefix = source.new_tensor([[self.target.index(tag) for tag in self.prefix]] * len(rows))
        hypotheses = self.search.generate([], sample, prefix_tokens=prefix if self.prefix else None)
        return [self.pieces.join(self._pieces_of(one[0]["tokens"].tolist())) for one in hypotheses]

    def _pieces_of(self, numbers: list[int]) -> list[str]:
        ignored = {self.target.pad(), *self.search.symbols_to_strip_from_output}  # the end among them
        return [self.target[number] for number in numbers if number not in ignored]


class HuggingFace:
    """transformers with the model and the tokenizer of a folder, by its Auto classes."""

    name = "transformers"

    def __init__(self, folder: Path, described: Description, tags: tuple[list[str], list[str]], settings: Settings):
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        if settings.int8:
            raise UserError("--int8: only with CTranslate2; export the checkpoint with --to ctranslate2")
        self.settings, self.longest = settings, described.positions[1] - 1
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with quiet():
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self.model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).to(device)
        self.threads = settings.cores(self.model.config.hidden_size)
        self.tokenizer.model_max_length = int(1e9)  # longer text is refused before; it would warn of it as well
        before, prefix = (self.tokenizer.convert_tokens_to_ids(tag) for tag in tags)
        self.tokenizer.prefix_tokens = before
        self.first = {"forced_bos_token_id": prefix[0]} if prefix else {}

    @classmethod
    def of_folder(cls, folder: Path, described: Description, direction: tuple[str, str], settings: Settings):
        """Load what `deepnet export --to huggingface` has written."""
        return cls(folder, described, described.tags(*direction), settings)

    def cut(self, line: str) -> list[int]:
        """Return the tokenizer's numbers, but for the end."""
        return self.tokenizer(line)["input_ids"][:-1]

    def translate(self, rows: list[list[int]]) -> list[str]:
        """Translate rows of numbers, those of about one length together."""
        ended = [[*row, self.tokenizer.eos_token_id] for row in rows]
        return _by_length(ended, self.settings.max_tokens, self._batch)

    def _batch(self, rows: list[list[int]]) -> list[str]:
        padding = self.tokenizer.pad_token_id
        source = _padded(rows, padding, self.model.device)
        beams = {"length_penalty": self.settings.lenpen, "early_stopping": True} if self.settings.beam > 1 else {}
        tokens = self.model.generate(
            source, attention_mask=source.ne(padding).long(), num_beams=self.settings.beam,
            max_length=self.longest + 2, **beams, **self.first,
        )  # fmt: skip  # both ends are counted
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from drawing bars and from giving advice to developers."""
    import warnings

    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _by_length(rows: list[list[int]], max_tokens: int, batch: Any) -> list[str]:
    """Call `batch` with rows that together have at most max_tokens numbers, padding included; keep the order."""
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]), reverse=True)
    lines = [""] * len(rows)
    while order:
        size = max(1, max_tokens // len(rows[order[0]]))
        places, order = order[:size], order[size:]
        for place, line in zip(places, batch([rows[place] for place in places]), strict=True):
            lines[place] = line
    return lines


def _padded(rows: list[list[int]], padding: int, device) -> Any:
    """Return rows of numbers as a tensor (B, T), padded on the right."""
    from torch import tensor
    from torch.nn.utils.rnn import pad_sequence

    return pad_sequence([tensor(row) for row in rows], batch_first=True, padding_value=padding).to(device)
