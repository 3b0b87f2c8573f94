"""Three programs that translate: CTranslate2, this package's own models under fairseq's search, and transformers.

An engine has
    cut(line)               the tokens that its encoder reads of a line
    translate(rows)         the translations of rows of tokens, as text
    nbest(rows, count)      the best translations of each row with their scores, best first
    unseen(line, tokens)    the pieces of a line that its model has no number for
    symbols                 those of the model's source vocabulary
    lost                    whether a fork left behind what it works with
All search alike: no empty translation, no unknown symbol, a score of log-probabilities over length ** penalty.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import UserError
from ...threads import torch_threads
from .description import Description
from .loading import PROCESS
from .pieces import KINDS

SHORTEST = 1  # tokens of a translation but for its end


class Hypothesis(NamedTuple):
    """One of several translations of a line.

    score: sum of the log-probabilities (natural) of its pieces and its end, over their number ** length penalty.
    """

    text: str
    score: float


@dataclass(frozen=True)
class Settings:
    """Settings of a search.

    beam: beams; lenpen: length penalty; max_tokens: of a batch of source sentences, padding included; threads: None for
    OMP_NUM_THREADS of the environment, else for as many as suit the engine; int8: weights and products in 8 bits.
    """

    beam: int = 5
    lenpen: float = 1.0
    max_tokens: int = 2000
    threads: int | None = None
    int8: bool = False

    def cores(self, width: int | None = None) -> int:
        """Return the number of threads; set torch's to it, if torch computes the model.

        width: the model's, by which torch's number is chosen where neither the settings nor OMP_NUM_THREADS name one;
        None for CTranslate2, which then takes all cores.
        """
        if width is not None:
            return torch_threads.use(width, given=self.threads)
        if self.threads:
            return self.threads
        usual = os.environ.get("OMP_NUM_THREADS", "")
        if usual.isdigit() and int(usual) > 0:
            return int(usual)
        return len(os.sched_getaffinity(0))


class CTranslate2:
    """CTranslate2 with the model of a folder.

    pieces: of a class of pieces.py, segments lines and joins translations; tags: those that begin a source sentence,
    and those that begin its translation.
    """

    name = "CTranslate2"
    lost = False

    def __init__(self, folder: Path, described: Description, pieces, tags: tuple[list[str], list[str]], settings):
        import ctranslate2

        self.pieces = pieces
        self.settings = settings
        self.before, self.prefix = tags
        self.longest = described.positions[1] - 1
        self.threads = settings.cores()
        device = "cuda" if ctranslate2.get_cuda_device_count() else "cpu"
        compute = "int8" if settings.int8 else "default"
        try:
            self.model = ctranslate2.Translator(
                str(folder), device=device, compute_type=compute, intra_threads=self.threads
            )
        except (RuntimeError, ValueError) as error:
            message = " ".join(str(error).split())
            raise UserError(f"{folder}: CTranslate2 cannot load it ({message})") from error
        PROCESS.bind(self)
        self.symbols = frozenset(_vocabulary(folder))

    @classmethod
    def of_folder(cls, folder: Path, described: Description, direction: tuple[str, str], settings: Settings):
        """Load what `deepnet export --to ctranslate2` has written."""
        file = folder / (KINDS[described.pieces].file or "")
        pieces = described.cutter(file, *direction)
        tags = described.tags(*direction)
        return cls(folder, described, pieces=pieces, tags=tags, settings=settings)

    def cut(self, line: str) -> list[str]:
        """Return the tag and the pieces; CTranslate2 adds the end."""
        return self.before + self.pieces.cut(line)

    def unseen(self, line: str, tokens: list[str]) -> list[str]:
        """Return the pieces that the model has no number for."""
        return [token for token in tokens if token not in self.symbols]

    def translate(self, rows: list[list[str]]) -> list[str]:
        """Translate rows of pieces."""
        return [self._join(hypotheses[0]) for hypotheses in self._search(rows, 1)]

    def nbest(self, rows: list[list[str]], count: int) -> list[list[Hypothesis]]:
        """Translate rows of pieces, each in `count` ways.

        The search's own scores are of the symbols that it allows: without <unk>, and without an end at the beginning.
        So CTranslate2 scores what all beams found again, by which the other engines choose.
        """
        found = self._search(rows, self.settings.beam)
        sources = []
        targets = []
        for row, hypotheses in zip(rows, found, strict=True):
            for pieces in hypotheses:
                sources.append(row)
                targets.append(pieces)
        scored = self.model.score_batch(
            sources, targets, max_batch_size=self.settings.max_tokens, batch_type="tokens", max_input_length=0
        )

        results = []
        remaining = iter(scored)
        for hypotheses in found:
            candidates = []
            for pieces in hypotheses:
                log_probs = next(remaining).log_probs[len(self.prefix) :]
                candidates.append(Hypothesis(self._join(pieces), _score(log_probs, self.settings.lenpen)))
            results.append(_best_first(candidates)[:count])
        return results

    def _search(self, rows: list[list[str]], count: int) -> list[list[list[str]]]:
        """Return `count` translations of each row, as pieces with the tag."""
        PROCESS.check(self)
        target_prefix = [self.prefix] * len(rows) if self.prefix else None
        results = self.model.translate_batch(
            rows,
            target_prefix,
            max_batch_size=self.settings.max_tokens,
            batch_type="tokens",
            beam_size=self.settings.beam,
            length_penalty=self.settings.lenpen,
            disable_unk=True,
            max_input_length=0,
            min_decoding_length=SHORTEST,
            max_decoding_length=self.longest,
            num_hypotheses=count,
        )
        return [result.hypotheses for result in results]

    def _join(self, pieces: list[str]) -> str:
        return self.pieces.join(pieces[len(self.prefix) :])


class Fairseq:
    """Decoder of this package's models, of any method, under fairseq's beam search.

    dictionaries: fairseq's, of source and target; pieces, tags: as for CTranslate2.
    """

    name = "the package's own decoder"
    lost = False

    def __init__(self, model, dictionaries, described: Description, pieces, tags, settings: Settings):
        import torch
        from fairseq.sequence_generator import SequenceGenerator

        if settings.int8:
            raise UserError("--int8: only with CTranslate2, which this model does not go through; leave it out")
        self.pieces = pieces
        self.settings = settings
        self.before, self.prefix = tags
        self.source, self.target = dictionaries
        self.symbols = frozenset(self.source.symbols)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

        width = model.encoder.embed_tokens.embedding_dim
        self.threads = PROCESS.use_torch(lambda: settings.cores(width))
        self.model = model.to(self.device)
        if self.device.type == "cuda":
            PROCESS.bind(self)

        self.search = SequenceGenerator(
            [self.model],
            self.target,
            beam_size=settings.beam,
            max_len_b=described.positions[1] - 1,
            min_len=SHORTEST + len(self.prefix),
            len_penalty=settings.lenpen,
            unk_penalty=float("inf"),
            symbols_to_strip_from_output={self.target.index(tag) for tag in self.prefix},
        )

    def cut(self, line: str) -> list[str]:
        """Return the tag and the pieces."""
        return self.before + self.pieces.cut(line)

    def unseen(self, line: str, tokens: list[str]) -> list[str]:
        """Return the pieces that the model has no number for."""
        return [token for token in tokens if token not in self.symbols]

    def translate(self, rows: list[list[str]]) -> list[str]:
        """Translate rows of pieces, those of about one length together."""
        return [hypotheses[0].text for hypotheses in self.nbest(rows, 1)]

    def nbest(self, rows: list[list[str]], count: int) -> list[list[Hypothesis]]:
        """Translate rows of pieces, each in `count` ways."""
        PROCESS.check(self)
        numbers = [[*map(self.source.index, row), self.source.eos()] for row in rows]
        return _by_length(numbers, self.settings.max_tokens, lambda batch: self._batch(batch, count))

    def _batch(self, rows: list[list[int]], count: int) -> list[list[Hypothesis]]:
        """Translate rows of numbers that fit into one batch, each in `count` ways."""
        source = _padded(rows, self.source.pad(), self.device)
        sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(self.source.pad()).sum(1)}}
        prefix_tokens = None
        if self.prefix:
            prefix_tokens = source.new_tensor([[self.target.index(tag) for tag in self.prefix]] * len(rows))

        results = []
        for found in self.search.generate([], sample, prefix_tokens=prefix_tokens):
            candidates = [self._hypothesis(hypothesis) for hypothesis in found[:count]]
            results.append(_best_first(candidates))
        return results

    def _hypothesis(self, found: dict[str, Any]) -> Hypothesis:
        """Return a translation that the search found; its tag belongs neither to the text nor to the score."""
        ignored = {self.target.pad(), *self.search.symbols_to_strip_from_output}  # eos is one of these
        pieces = [self.target[number] for number in found["tokens"].tolist() if number not in ignored]
        log_probs = found["positional_scores"].tolist()[len(self.prefix) :]
        return Hypothesis(self.pieces.join(pieces), _score(log_probs, self.settings.lenpen))


class HuggingFace:
    """transformers with the model and the tokenizer of a folder, by its Auto classes."""

    name = "transformers"
    lost = False

    def __init__(self, folder: Path, described: Description, tags: tuple[list[str], list[str]], settings: Settings):
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        if settings.int8:
            raise UserError("--int8: only with CTranslate2; export the checkpoint with --to ctranslate2")
        self.settings = settings
        self.longest = described.positions[1] - 1
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with quiet():
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self.model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).to(device)
        self.threads = PROCESS.use_torch(lambda: settings.cores(self.model.config.hidden_size))

        self.tokenizer.model_max_length = int(1e9)  # longer text is refused before; it would warn of it as well
        source_tags, target_tags = tags
        self.tokenizer.prefix_tokens = self.tokenizer.convert_tokens_to_ids(source_tags)
        self.prefix = self.tokenizer.convert_tokens_to_ids(target_tags)
        self.first = {"forced_bos_token_id": self.prefix[0]} if self.prefix else {}
        self.symbols = frozenset(self.tokenizer.get_vocab())
        if device.type == "cuda":
            PROCESS.bind(self)

        # The first generate() imports more of transformers, which would break in several threads at once.
        self._search(torch.tensor([[self.tokenizer.eos_token_id]], device=device), 1, longest=3)

    @classmethod
    def of_folder(cls, folder: Path, described: Description, direction: tuple[str, str], settings: Settings):
        """Load what `deepnet export --to huggingface` has written."""
        return cls(folder, described, described.tags(*direction), settings)

    def cut(self, line: str) -> list[int]:
        """Return the tokenizer's numbers, but for the end."""
        return self.tokenizer(line)["input_ids"][:-1]

    def unseen(self, line: str, tokens: list[int]) -> list[str]:
        """Return the pieces that the model has no number for."""
        if self.tokenizer.unk_token_id not in tokens:
            return []
        return [piece for piece in self.tokenizer.tokenize(line) if piece not in self.symbols]

    def translate(self, rows: list[list[int]]) -> list[str]:
        """Translate rows of numbers, those of about one length together."""
        return self._by_length(rows, lambda source: self._decode(self._search(source, 1)))

    def nbest(self, rows: list[list[int]], count: int) -> list[list[Hypothesis]]:
        """Translate rows of numbers, each in `count` ways.

        generate() gives a translation that it had to end no score for its end, so the model scores all of them again.
        """

        def translate_batch(source: Any) -> list[list[Hypothesis]]:
            found = self._search(source, count).unflatten(0, (len(source), count))
            results = []
            for row, targets in zip(source, found, strict=True):
                texts = self._decode(targets)
                scores = self._scores(row, targets)
                candidates = [Hypothesis(text, score) for text, score in zip(texts, scores, strict=True)]
                results.append(_best_first(candidates))
            return results

        return self._by_length(rows, translate_batch)

    def _by_length(self, rows: list[list[int]], translate_batch: Callable) -> list:
        """Call `translate_batch` with tensors (B, T) of rows of about one length, with eos and padding."""
        PROCESS.check(self)
        with_eos = [[*row, self.tokenizer.eos_token_id] for row in rows]
        padding = self.tokenizer.pad_token_id
        device = self.model.device
        return _by_length(
            with_eos, self.settings.max_tokens, lambda batch: translate_batch(_padded(batch, padding, device))
        )

    def _search(self, source: Any, count: int, longest: int | None = None) -> Any:
        """Return `count` translations of each row of (B, T), as numbers (B * count, U).

        longest: tokens of a translation, eos at its start and at its end counted; None for all that have a position.
        """
        beam_options = {}
        if self.settings.beam > 1:
            beam_options = {"length_penalty": self.settings.lenpen, "early_stopping": True}
        return self.model.generate(
            source,
            attention_mask=source.ne(self.tokenizer.pad_token_id).long(),
            num_beams=self.settings.beam,
            num_return_sequences=count,
            max_length=longest or self.longest + 2,
            **beam_options,
            **self.first,
        )

    def _decode(self, tokens: Any) -> list[str]:
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=True)

    def _scores(self, source: Any, tokens: Any) -> list[float]:
        """Return the scores of translations (N, U) of a source sentence (T,)."""
        import torch

        padding = self.tokenizer.pad_token_id
        sources = source.expand(len(tokens), -1)
        targets = tokens[:, 1:]
        with torch.no_grad():
            logits = self.model(
                input_ids=sources,
                attention_mask=sources.ne(padding).long(),
                decoder_input_ids=tokens[:, :-1],
                use_cache=False,  # with a cache FSMT has no causal mask, and would see later tokens
            ).logits
        log_probs = logits.float().log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)

        scores = []
        first = len(self.prefix)  # a tag of the target does not count
        for row, target in zip(log_probs, targets, strict=True):
            counted = row[first:][target[first:].ne(padding)]
            scores.append(_score(counted.tolist(), self.settings.lenpen))
        return scores


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from drawing bars and from giving advice to developers."""
    import warnings

    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
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


def _score(log_probs: list[float], lenpen: float) -> float:
    """Return the score of a translation from the log-probabilities of its pieces and its end."""
    return sum(log_probs) / len(log_probs) ** lenpen


def _best_first(found: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(found, key=lambda hypothesis: hypothesis.score, reverse=True)


def _vocabulary(folder: Path) -> list[str]:
    """Read the source vocabulary of a folder for CTranslate2."""
    own = folder / "source_vocabulary.json"
    path = own if own.is_file() else folder / "shared_vocabulary.json"
    return json.loads(path.read_text(encoding="utf-8"))


def _by_length(rows: list[list[int]], max_tokens: int, translate_batch: Callable) -> list:
    """Translate rows in batches of about one length; return the results in the order of `rows`.

    translate_batch: called with rows, the longest first, that together have at most max_tokens numbers, padding
    included; returns a result for each of them.
    """
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]), reverse=True)
    results: list = [None] * len(rows)

    while order:
        longest = len(rows[order[0]])
        size = max(1, max_tokens // longest)
        places = order[:size]
        order = order[size:]

        batch = [rows[place] for place in places]
        for place, result in zip(places, translate_batch(batch), strict=True):
            results[place] = result
    return results


def _padded(rows: list[list[int]], padding: int, device) -> Any:
    """Return rows of numbers as a tensor (B, T), padded on the right."""
    from torch import tensor
    from torch.nn.utils.rnn import pad_sequence

    return pad_sequence([tensor(row) for row in rows], batch_first=True, padding_value=padding).to(device)
