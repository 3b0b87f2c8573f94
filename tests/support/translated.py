"""Synthetic outputs of fairseq-generate, and the files of a prepared corpus that scores depend on."""

from __future__ import annotations

import json
import random
from pathlib import Path

LOG_LINE = "2026-01-01 00:00:00 | INFO | {} | {}\n"  # for the module of fairseq that logs, and what it logs
WORDS = "ein zwei drei der die das Hund Haus Baum geht steht ruft klein rot alt und oder nicht heute dort"
VOCABULARY = WORDS.split()
SETTINGS = {"beam": 5, "prefix_size": 0, "score_reference": False, "constraints": None}  # logged by fairseq-generate
TOKENS_A_SENTENCE = 10  # according to the log's line on speed


def random_sentences(count: int, seed: int = 0) -> list[str]:
    """Draw so many sentences of 6 to 14 words each."""
    draw = random.Random(seed)
    sentences = []
    for _ in range(count):
        length = draw.randint(6, 14)
        words = draw.choices(VOCABULARY, k=length)
        sentences.append(" ".join(words))
    return sentences


def with_wrong_words(sentences: list[str], rate: float, seed: int = 1) -> list[str]:
    """Replace each word, with probability `rate`, by one of VOCABULARY; return the changed sentences."""
    draw = random.Random(seed)
    changed = []
    for sentence in sentences:
        words = sentence.split()
        for place in range(len(words)):
            if draw.random() < rate:
                words[place] = draw.choice(VOCABULARY)
        changed.append(" ".join(words))
    return changed


def as_lines(sentences: list[str]) -> str:
    """Return the text of a file with these lines."""
    return "".join(f"{sentence}\n" for sentence in sentences)


def write_generated(
    path: Path,
    translations: list[str],
    references: list[str] | None = None,
    direction: str | None = None,
    seconds: float | None = None,
    joined: list[str] | None = None,
    **settings,
) -> Path:
    """Write the output of fairseq-generate, longest sentence first, and its log beside it; return `path`.

    translations: lines D-n, detokenised hypotheses; references: lines T-n, None for none; direction: as "de-en" in the
    log's line on the test set, None for no such line; seconds: in the log's line on speed, None for no such line;
    joined: lines H-n, hypotheses in the model's tokens, None for those of D-n; settings: those that differ from
    SETTINGS. There is a log only if direction, seconds or settings are given.
    """
    hypotheses = joined or translations
    longest_first = sorted(range(len(translations)), key=lambda n: -len(translations[n]))
    lines = []
    for n in longest_first:
        lines.append(f"S-{n}\tx y")
        if references:
            lines.append(f"T-{n}\t{references[n]}")
        lines.append(f"H-{n}\t-0.25\t{hypotheses[n]}")
        lines.append(f"D-{n}\t-0.25\t{translations[n]}")
        lines.append(f"P-{n}\t-0.1 -0.4")
    lines.append("Generate test with beam=5: BLEU4 = 1.23")

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_lines(lines).encode())

    if direction or seconds or settings:
        log_name = "generate.log" if path.name == "generated.txt" else f"{path.stem}.log"
        log = _log_of_generate(len(translations), direction, seconds, SETTINGS | settings)
        path.with_name(log_name).write_text(log)
    return path


def _log_of_generate(count: int, direction: str | None, seconds: float | None, settings: dict) -> str:
    """Return what fairseq-generate logs of translating `count` sentences; see write_generated."""
    log = LOG_LINE.format("fairseq_cli.generate", {"_name": None, "generation": settings})
    if direction:
        log += LOG_LINE.format("fairseq.tasks.translation", f"some-where/bin test {direction} {count} examples")
    if seconds:
        speed = f"{count / seconds:.2f} sentences/s, {TOKENS_A_SENTENCE * count / seconds:.2f} tokens/s"
        said = f"Translated {count:,} sentences (1,234 tokens) in {seconds}s ({speed})"
        log += LOG_LINE.format("fairseq_cli.generate", said)
    return log


def write_prepared_corpus(folder: Path, references: dict | None = None, pairs: tuple = (), **recipe) -> Path:
    """Write what `deepnet score` reads of a prepared corpus; return its folder of binarised data, FOLDER/bin.

    references: name of a test set, as "test.de-en" -> its sentences as they were published; pairs: directions of a
    multilingual corpus, for bin/pairs.txt; recipe: fields of recipe.json that differ from `plain` below.
    """
    binarised = folder / "bin"
    binarised.mkdir(parents=True)
    (folder / "reference").mkdir()

    plain = {"recipe": "made_up", "pieces": "sentencepiece", "detokenise": False, "lowercase": False}
    (folder / "recipe.json").write_text(json.dumps(plain | recipe))
    for name, sentences in (references or {}).items():
        target = name.split("-")[-1]
        file = folder / "reference" / f"{name}.{target}"
        file.write_bytes(as_lines(sentences).encode())
    if pairs:
        (binarised / "pairs.txt").write_text(as_lines(pairs))
    return binarised
