"""Three programs that translate: CTranslate2, this package's own models under fairseq's search, and transformers.

An engine is a class, without a common base, that has
    name                        for messages
    cut(line)                   segments a line into the tokens that its encoder reads, without the end of sentence
    translate(sentences)        a translation for each sentence, as text
    nbest(sentences, count)     for each sentence its `count` best translations with their scores, best first
    unseen(line, tokens)        the pieces of a line that its model has no number for
    symbols                     of the model's source vocabulary
    threads                     how many it computes with
    lost                        whether a fork left its threads or its GPU behind (loading.py)
A sentence is a list of tokens, as `cut` returns it: pieces for the first two engines, numbers for transformers.
All search alike: no empty translation, no unknown symbol, a score of log-probabilities over length ** penalty.

A tag is the symbol of a language, with which a multilingual model's source or translation begins; models of two
languages have none. A cutter is an object of a class of pieces.py, which segments lines (`cut`) and joins translations.
B sentences, T source and U target tokens; eos is the end of sentence.
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

SHORTEST = 1  # tokens of a translation, its end of sentence not counted


class Hypothesis(NamedTuple):
    """One of several translations of a line.

    score: sum of the log-probabilities (natural) of its pieces and its end, over their number ** length penalty.
    """

    text: str
    score: float


@dataclass(frozen=True)
class Settings:
    """Settings of a search.

    beam: number of beams; lenpen: exponent of the length that divides a score; max_tokens: the most source tokens in a
    batch, padding included; threads: number to compute with, None for OMP_NUM_THREADS of the environment, and where
    that is not set for as many as suit the engine; int8: whether to compute with weights in 8 bits, which CTranslate2
    alone can.
    """

    beam: int = 5
    lenpen: float = 1.0
    max_tokens: int = 2000
    threads: int | None = None
    int8: bool = False

    def choose_threads(self, width: int | None = None) -> int:
        """Return the number of threads to compute with; for a model that torch computes, set torch's number too.

        width: of that model (C), from which the number follows where neither the settings nor the environment nor the
        program has set it (see TorchThreads.use); None for CTranslate2, which takes the settings' number, else
        OMP_NUM_THREADS, else all cores that the process may use.
        """
        if width is not None:
            return torch_threads.use(width, given=self.threads)

        # CTranslate2
        if self.threads:
            return self.threads
        number = os.environ.get("OMP_NUM_THREADS", "")
        if number.isdigit() and int(number) > 0:
            return int(number)
        return len(os.sched_getaffinity(0))


class CTranslate2:
    """CTranslate2 with the model of a folder.

    folder: in CTranslate2's format; described: the model's text; cutter: see above; tags: (those that begin a source
    sentence, those that begin its translation), as Description.tags returns them. UserError for a folder that
    CTranslate2 cannot load.
    """

    name = "CTranslate2"
    lost = False

    def __init__(self, folder: Path, described: Description, cutter, tags: tuple[list[str], list[str]], settings):
        import ctranslate2

        self.cutter = cutter
        self.settings = settings
        self.source_tags, self.target_tags = tags
        self.longest = described.positions[1] - 1  # tokens of a translation without its end, which has a position too
        self.threads = settings.choose_threads()
        device = "cuda" if ctranslate2.get_cuda_device_count() else "cpu"
        compute_type = "int8" if settings.int8 else "default"
        try:
            self.model = ctranslate2.Translator(
                str(folder), device=device, compute_type=compute_type, intra_threads=self.threads
            )
        except (RuntimeError, ValueError) as error:
            message = " ".join(str(error).split())  # on one line
            raise UserError(folder, f"CTranslate2 cannot load it ({message})") from error
        PROCESS.bind(self)  # its threads do not come along into a fork
        self.symbols = frozenset(_vocabulary(folder))

    @classmethod
    def of_folder(cls, folder: Path, described: Description, direction: tuple[str, str], settings: Settings):
        """Load what `deepnet export --to ctranslate2` has written.

        described: content of its translation.json; direction: (source, target), languages.
        """
        file_name = KINDS[described.pieces].file or ""  # "" for text that comes segmented, whose class opens no file
        cutter = described.cutter(folder / file_name, *direction)
        tags = described.tags(*direction)
        return cls(folder, described, cutter=cutter, tags=tags, settings=settings)

    def cut(self, line: str) -> list[str]:
        """Return the pieces of a line, after the tag if there is one; CTranslate2 adds eos itself."""
        return self.source_tags + self.cutter.cut(line)

    def unseen(self, line: str, tokens: list[str]) -> list[str]:
        """Return the pieces that the model has no number for."""
        return [token for token in tokens if token not in self.symbols]

    def translate(self, sentences: list[list[str]]) -> list[str]:
        """Return the best translation of each sentence, a list of pieces."""
        return [self._join(hypotheses[0]) for hypotheses in self._search(sentences, 1)]

    def nbest(self, sentences: list[list[str]], count: int) -> list[list[Hypothesis]]:
        """Return for each sentence, a list of pieces, its `count` best translations, best first.

        CTranslate2's search normalises its probabilities over the symbols that it allows, without <unk> and, at the
        beginning, without the end. The other engines normalise over all symbols. So that scores and choice are the same
        as theirs, the search returns all beams here, CTranslate2's score_batch scores them again, and the best of them
        are chosen.
        """
        found = self._search(sentences, self.settings.beam)

        # all pairs of a sentence and one of its translations, which are scored together
        sources = []
        targets = []
        for sentence, hypotheses in zip(sentences, found, strict=True):
            for pieces in hypotheses:
                sources.append(sentence)
                targets.append(pieces)
        scored = self.model.score_batch(
            sources, targets, max_batch_size=self.settings.max_tokens, batch_type="tokens", max_input_length=0
        )

        results = []
        next_scored = iter(scored)
        for hypotheses in found:
            candidates = []
            for pieces in hypotheses:
                log_probs = next(next_scored).log_probs[len(self.target_tags) :]  # a tag does not count
                candidates.append(Hypothesis(self._join(pieces), _score(log_probs, self.settings.lenpen)))
            results.append(_best_first(candidates)[:count])
        return results

    def _search(self, sentences: list[list[str]], count: int) -> list[list[list[str]]]:
        """Return for each sentence `count` translations: lists of pieces, which begin with the tag if there is one.

        count: at most the number of beams.
        """
        PROCESS.check_not_lost(self)
        target_prefix = [self.target_tags] * len(sentences) if self.target_tags else None  # where decoding starts
        results = self.model.translate_batch(
            sentences,
            target_prefix,
            max_batch_size=self.settings.max_tokens,
            batch_type="tokens",
            beam_size=self.settings.beam,
            length_penalty=self.settings.lenpen,
            disable_unk=True,
            max_input_length=0,  # no limit: Translator.cut refuses sentences that are too long
            min_decoding_length=SHORTEST,
            max_decoding_length=self.longest,
            num_hypotheses=count,
        )
        return [result.hypotheses for result in results]

    def _join(self, pieces: list[str]) -> str:
        """Return the text of a translation's pieces, without its tag."""
        return self.cutter.join(pieces[len(self.target_tags) :])


class Fairseq:
    """This package's models, of any method, or fairseq's Transformer, under fairseq's beam search.

    model: an encoder and decoder in evaluation mode; dictionaries: fairseq's, of source and target; described: the
    model's text; cutter, tags: as for CTranslate2.
    """

    name = "the package's own decoder"
    lost = False

    def __init__(self, model, dictionaries, described: Description, cutter, tags, settings: Settings):
        import torch
        from fairseq.sequence_generator import SequenceGenerator

        if settings.int8:
            raise UserError("--int8", "only with CTranslate2, which this model does not go through; leave it out")
        self.cutter = cutter
        self.settings = settings
        self.source_tags, self.target_tags = tags
        self.source_dictionary, self.target_dictionary = dictionaries
        self.symbols = frozenset(self.source_dictionary.symbols)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

        width = model.encoder.embed_tokens.embedding_dim
        # 1 in a fork of a process that used torch
        self.threads = PROCESS.use_torch(lambda: settings.choose_threads(width))
        self.model = model.to(self.device)
        if self.device.type == "cuda":  # CUDA does not work in a forked process
            PROCESS.bind(self)

        self.search = SequenceGenerator(
            [self.model],
            self.target_dictionary,
            beam_size=settings.beam,
            max_len_b=described.positions[1] - 1,  # tokens of a translation without its end, which has a position too
            min_len=SHORTEST + len(self.target_tags),  # fairseq counts the tag
            len_penalty=settings.lenpen,
            unk_penalty=float("inf"),  # no <unk> in a translation
            symbols_to_strip_from_output={self.target_dictionary.index(tag) for tag in self.target_tags},
        )

    def cut(self, line: str) -> list[str]:
        """Return the pieces of a line, after the tag if there is one; `nbest` adds eos."""
        return self.source_tags + self.cutter.cut(line)

    def unseen(self, line: str, tokens: list[str]) -> list[str]:
        """Return the pieces that the model has no number for."""
        return [token for token in tokens if token not in self.symbols]

    def translate(self, sentences: list[list[str]]) -> list[str]:
        """Return the best translation of each sentence, a list of pieces."""
        return [hypotheses[0].text for hypotheses in self.nbest(sentences, 1)]

    def nbest(self, sentences: list[list[str]], count: int) -> list[list[Hypothesis]]:
        """Return for each sentence, a list of pieces, its `count` best translations, best first."""
        PROCESS.check_not_lost(self)
        dictionary = self.source_dictionary
        numbered = []
        for pieces in sentences:
            numbers = [dictionary.index(piece) for piece in pieces]
            numbered.append([*numbers, dictionary.eos()])

        def translate_batch(batch: list[list[int]]) -> list[list[Hypothesis]]:
            return self._translate_batch(batch, count)

        return _by_length(numbered, self.settings.max_tokens, translate_batch)

    def _translate_batch(self, sentences: list[list[int]], count: int) -> list[list[Hypothesis]]:
        """Return for each sentence its `count` best translations, best first; all sentences are one batch.

        sentences: the numbers of their pieces in the source dictionary, and eos.
        """
        padding = self.source_dictionary.pad()
        source = _padded(sentences, padding, self.device)
        sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(padding).sum(1)}}
        prefix_tokens = None  # (B, 1), with which decoding starts
        if self.target_tags:
            tag_numbers = [self.target_dictionary.index(tag) for tag in self.target_tags]
            prefix_tokens = source.new_tensor([tag_numbers] * len(sentences))

        results = []
        # [] stands for the models, which the search has already
        for hypotheses in self.search.generate([], sample, prefix_tokens=prefix_tokens):
            candidates = [self._as_text(hypothesis) for hypothesis in hypotheses[:count]]
            results.append(_best_first(candidates))
        return results

    def _as_text(self, found: dict[str, Any]) -> Hypothesis:
        """Return a translation as text with its score; the tag belongs neither to the text nor to the score.

        found: one of the hypotheses that fairseq's SequenceGenerator returns for a sentence, a dictionary of which
        "tokens" and "positional_scores" (log-probabilities), (U,) each, are read.
        """
        dictionary = self.target_dictionary
        ignored = {dictionary.pad(), *self.search.symbols_to_strip_from_output}  # fairseq has added eos to the latter
        pieces = [dictionary[number] for number in found["tokens"].tolist() if number not in ignored]
        log_probs = found["positional_scores"].tolist()[len(self.target_tags) :]
        return Hypothesis(self.cutter.join(pieces), _score(log_probs, self.settings.lenpen))


class HuggingFace:
    """transformers with the model and the tokenizer of a folder, by its Auto classes.

    folder: that `deepnet export --to huggingface` has written; described: the model's text; tags: as for CTranslate2.
    """

    name = "transformers"
    lost = False

    def __init__(self, folder: Path, described: Description, tags: tuple[list[str], list[str]], settings: Settings):
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        if settings.int8:
            raise UserError("--int8", "only with CTranslate2; export the checkpoint with --to ctranslate2")
        self.settings = settings
        self.longest = described.positions[1] - 1  # tokens of a translation without its end, which has a position too
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with quiet():
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self.model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).to(device)
        self.threads = PROCESS.use_torch(lambda: settings.choose_threads(self.model.config.hidden_size))

        self.tokenizer.model_max_length = int(1e9)  # no warning of long text, which Translator.cut refuses
        source_tags, target_tags = tags
        self.tokenizer.prefix_tokens = self.tokenizer.convert_tokens_to_ids(source_tags)  # put before each sentence
        self.target_tag_numbers = self.tokenizer.convert_tokens_to_ids(target_tags)
        self.symbols = frozenset(self.tokenizer.get_vocab())
        if device.type == "cuda":  # CUDA does not work in a forked process
            PROCESS.bind(self)

        # The first generate() imports more of transformers, which would break in several threads at once. So it is
        # called here, where one thread loads at a time, with a sentence of eos alone.
        only_eos = torch.tensor([[self.tokenizer.eos_token_id]], device=device)
        self._search(only_eos, 1, longest=3)

    @classmethod
    def of_folder(cls, folder: Path, described: Description, direction: tuple[str, str], settings: Settings):
        """Load what `deepnet export --to huggingface` has written.

        described: content of its translation.json; direction: (source, target), languages.
        """
        return cls(folder, described, described.tags(*direction), settings)

    def cut(self, line: str) -> list[int]:
        """Return the tokenizer's numbers for a line, among them the tag's, without eos, which `_by_length` adds."""
        return self.tokenizer(line)["input_ids"][:-1]

    def unseen(self, line: str, tokens: list[int]) -> list[str]:
        """Return the pieces that the model has no number for."""
        if self.tokenizer.unk_token_id not in tokens:  # as in most lines, which need not be tokenised again
            return []
        return [piece for piece in self.tokenizer.tokenize(line) if piece not in self.symbols]

    def translate(self, sentences: list[list[int]]) -> list[str]:
        """Return the best translation of each sentence, a list of numbers."""
        return self._by_length(sentences, lambda source: self._decode(self._search(source, 1)))

    def nbest(self, sentences: list[list[int]], count: int) -> list[list[Hypothesis]]:
        """Return for each sentence, a list of numbers, its `count` best translations, best first.

        The scores are computed anew: those of generate() leave out the eos that it forces at the greatest length.
        """

        def translate_batch(source: Any) -> list[list[Hypothesis]]:
            """Return the translations of the sentences of source (B, T)."""
            found = self._search(source, count).unflatten(0, (len(source), count))  # (B, count, U)
            results = []
            for sentence, translations in zip(source, found, strict=True):
                texts = self._decode(translations)
                scores = self._scores(sentence, translations)
                candidates = [Hypothesis(text, score) for text, score in zip(texts, scores, strict=True)]
                results.append(_best_first(candidates))
            return results

        return self._by_length(sentences, translate_batch)

    def _by_length(self, sentences: list[list[int]], translate_batch: Callable) -> list:
        """Call `translate_batch` with batches of sentences of about one length; return the results in order.

        sentences: as `cut` returns them; translate_batch: takes a tensor of sentences with eos and padding (B, T), and
        returns a result for each of them.
        """
        PROCESS.check_not_lost(self)
        with_eos = [[*sentence, self.tokenizer.eos_token_id] for sentence in sentences]

        def translate_lists(batch: list[list[int]]) -> list:
            return translate_batch(_padded(batch, self.tokenizer.pad_token_id, self.model.device))

        return _by_length(with_eos, self.settings.max_tokens, translate_lists)

    def _search(self, source: Any, count: int, longest: int | None = None) -> Any:
        """Return `count` translations of each sentence of source (B, T), as numbers (B * count, U).

        longest: the most tokens of a translation, with the eos at its start and the one at its end; None for as many as
        the decoder has positions for. The settings of generate() that are not given here are in the folder; they make
        its search like fairseq's (export/huggingface.py, _generation).
        """
        if longest is None:
            longest = self.longest + 2  # the two eos
        options: dict[str, Any] = {}
        if self.settings.beam > 1:  # without beams transformers warns of these
            options |= {"length_penalty": self.settings.lenpen, "early_stopping": True}
        if self.target_tag_numbers:  # the tag is the first token after eos
            options["forced_bos_token_id"] = self.target_tag_numbers[0]
        return self.model.generate(
            source,
            attention_mask=source.ne(self.tokenizer.pad_token_id).long(),
            num_beams=self.settings.beam,
            num_return_sequences=count,
            max_length=longest,
            **options,
        )

    def _decode(self, translations: Any) -> list[str]:
        """Return the texts of translations (N, U), without eos and other special tokens."""
        return self.tokenizer.batch_decode(translations, skip_special_tokens=True)

    def _scores(self, source: Any, translations: Any) -> list[float]:
        """Return the scores, see Hypothesis, of translations (N, U) of one source sentence (T,).

        The translations begin with eos, as generate() returns them.
        """
        import torch

        padding = self.tokenizer.pad_token_id
        sources = source.expand(len(translations), -1)
        decoder_inputs = translations[:, :-1]
        targets = translations[:, 1:]  # the token after each of the decoder's inputs
        with torch.no_grad():
            logits = self.model(
                input_ids=sources,
                attention_mask=sources.ne(padding).long(),
                decoder_input_ids=decoder_inputs,
                use_cache=False,  # with a cache FSMT has no causal mask, and would see later tokens
            ).logits
        log_probs = logits.float().log_softmax(-1)  # (N, U - 1, V)
        log_probs = log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)  # of the targets, (N, U - 1)

        scores = []
        first = len(self.target_tag_numbers)  # a tag does not count
        for of_target, target in zip(log_probs, targets, strict=True):
            counted = of_target[first:][target[first:].ne(padding)]
            scores.append(_score(counted.tolist(), self.settings.lenpen))
        return scores


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers, inside the context, from drawing progress bars and from printing warnings."""
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
    """Return the score of a translation from the log-probabilities of its pieces and its end; see Hypothesis."""
    return sum(log_probs) / len(log_probs) ** lenpen


def _best_first(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """Sort translations of a line by their scores, the highest first."""
    return sorted(hypotheses, key=lambda hypothesis: hypothesis.score, reverse=True)


def _vocabulary(folder: Path) -> list[str]:
    """Return the symbols of the source vocabulary of a folder for CTranslate2."""
    path = folder / "source_vocabulary.json"
    if not path.is_file():  # a model of one vocabulary
        path = folder / "shared_vocabulary.json"
    return json.loads(path.read_text(encoding="utf-8"))


def _by_length(sentences: list[list[int]], max_tokens: int, translate_batch: Callable) -> list:
    """Translate sentences in batches of about one length; return the results in the order of `sentences`.

    max_tokens: of a batch, padding included, unless a single sentence has more; translate_batch: called with some of
    the sentences, the longest first; returns a result for each of them.
    """
    remaining = sorted(range(len(sentences)), key=lambda place: len(sentences[place]), reverse=True)
    results: list = [None] * len(sentences)

    while remaining:
        longest = len(sentences[remaining[0]])  # to which the others of the batch are padded
        size = max(1, max_tokens // longest)
        places = remaining[:size]
        remaining = remaining[size:]

        batch = [sentences[place] for place in places]
        for place, result in zip(places, translate_batch(batch), strict=True):
            results[place] = result
    return results


def _padded(sentences: list[list[int]], padding: int, device) -> Any:
    """Return sentences of numbers as a tensor (B, T), padded on the right with the number `padding`."""
    from torch import tensor
    from torch.nn.utils.rnn import pad_sequence

    tensors = [tensor(sentence) for sentence in sentences]
    return pad_sequence(tensors, batch_first=True, padding_value=padding).to(device)
