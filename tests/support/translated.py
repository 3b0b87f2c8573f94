"""Synthetic outputs of fairseq-generate, and the records of a prepared corpus."""

from __future__ import annotations

import json
import random
from pathlib import Path

LOG_LINE = "2026-01-01 00:00:00 | INFO | {} | {}\n"  # of a module of fairseq and what it says
WORDS = "ein zwei drei der die das Hund Haus Baum geht steht ruft klein rot alt und oder nicht heute dort"
VOCABULARY = WORDS.split()
SETTINGS = {"beam": 5, "prefix_size": 0, "score_reference": False, "constraints": None}  # of fairseq-generate
TOKENS_A_SENTENCE = 10  # in the log's line on speed


def random_sentences(count: int, seed: int = 0) -> list[str]:
    """Draw sentences of 6 to 14 words."""
    draw = random.Random(seed)
    sentences = []
    for _ in range(count):
        length = draw.randint(6, 14)
        words = draw.choices(VOCABULARY, k=length)
        sentences.append(" ".join(words))
    return sentences


def with_wrong_words(sentences: list[str], rate: float, seed: int = 1) -> list[str]:
    """Replace each word, with probability `rate`, by one drawn at random."""
    draw = random.Random(seed)

    def perhaps_replaced(word: str) -> str:
        return draw.choice(VOCABULARY) if draw.random() < rate else word

    changed = []
    for sentence in sentences:
        words = [perhaps_replaced(word) for word in sentence.split()]
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
    """Write the output of fairseq-generate, longest sentence first, and its log if there is anything to log.

    direction, seconds: of the log's lines on the test set and on speed, which are there only if these are given.
    joined: lines H-n if they differ from D-n; settings: those that differ from SETTINGS.
    """
    longest_first = sorted(range(len(translations)), key=lambda n: -len(translations[n]))
    lines = []
    for n in longest_first:
        hypothesis = (joined or translations)[n]
        lines.append(f"S-{n}\tx y")
        if references:
            lines.append(f"T-{n}\t{references[n]}")
        lines.append(f"H-{n}\t-0.25\t{hypothesis}")
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
    """Return what fairseq-generate logs of translating `count` sentences."""
    log = LOG_LINE.format("fairseq_cli.generate", {"_name": None, "generation": settings})
    if direction:
        log += LOG_LINE.format("fairseq.tasks.translation", f"some-where/bin test {direction} {count} examples")
    if seconds:
        speed = f"{count / seconds:.2f} sentences/s, {TOKENS_A_SENTENCE * count / seconds:.2f} tokens/s"
        said = f"Translated {count:,} sentences (1,234 tokens) in {seconds}s ({speed})"
        log += LOG_LINE.format("fairseq_cli.generate", said)
    return log


def write_prepared_corpus(folder: Path, references: dict | None = None, pairs: tuple = (), **recipe) -> Path:
    """Write what scores read of a prepared corpus; return its folder of binarised data, which is empty.

    references: test set, as "test.de-en" -> raw sentences; pairs: directions in pairs.txt, of multilingual corpora.
    recipe: fields of recipe.json that differ from those of plain text.
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
