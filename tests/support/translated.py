"""Synthetic outputs of fairseq-generate, and the records of a prepared corpus."""

from __future__ import annotations

import json
import random

LOG = "2026-01-01 00:00:00 | INFO | {} | {}\n"
WORDS = "ein zwei drei der die das Hund Haus Baum geht steht ruft klein rot alt und oder nicht heute dort"
VOCABULARY = WORDS.split()


def sentences(count, seed=0):
    draw = random.Random(seed)
    return [" ".join(draw.choices(VOCABULARY, k=draw.randint(6, 14))) for _ in range(count)]


def noisy(text, rate, seed=1):
    """Replace each word by a random one with probability `rate`."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(VOCABULARY) if draw.random() < rate else w for w in s.split()) for s in text]


SETTINGS = {"beam": 5, "prefix_size": 0, "score_reference": False, "constraints": None}  # of fairseq-generate


def write_generated(path, translations, references=None, direction=None, seconds=None, joined=None, **settings):
    """Write the output of fairseq-generate, longest sentence first, and its log if a direction is given.

    joined: lines H-n if they differ from D-n; settings: those that differ from SETTINGS
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    order = sorted(range(len(translations)), key=lambda n: -len(translations[n]))
    lines = []
    for n in order:
        reference = [f"T-{n}\t{references[n]}"] if references else []
        hypothesis = (joined or translations)[n]
        lines += [f"S-{n}\tx y", *reference, f"H-{n}\t-0.25\t{hypothesis}", f"D-{n}\t-0.25\t{translations[n]}"]
        lines += [f"P-{n}\t-0.1 -0.4"]
    path.write_bytes("".join(line + "\n" for line in [*lines, "Generate test with beam=5: BLEU4 = 1.23"]).encode())
    count, log = len(translations), ""
    if direction:
        log += LOG.format("fairseq.tasks.translation", f"some-where/bin test {direction} {count} examples")
    if seconds:
        speed = f"{count / seconds:.2f} sentences/s, {10 * count / seconds:.2f} tokens/s"
        log += LOG.format(
            "fairseq_cli.generate", f"Translated {count:,} sentences (1,234 tokens) in {seconds}s ({speed})"
        )
    if log or settings:
        log = LOG.format("fairseq_cli.generate", {"_name": None, "generation": SETTINGS | settings}) + log
        path.with_name("generate.log" if path.name == "generated.txt" else f"{path.stem}.log").write_text(log)
    return path


def write_corpus(folder, references=None, pairs=(), **recipe):
    """Write a prepared corpus; return its bin folder.

    references: "test.de-en" -> sentences; recipe: fields that differ from those of plain text.
    """
    (folder / "bin").mkdir(parents=True)
    (folder / "reference").mkdir()
    plain = {"recipe": "made_up", "pieces": "sentencepiece", "detokenise": False, "lowercase": False}
    (folder / "recipe.json").write_text(json.dumps(plain | recipe))
    for name, text in (references or {}).items():
        path = folder / "reference" / f"{name}.{name.split('-')[-1]}"
        path.write_bytes("".join(line + "\n" for line in text).encode())
    if pairs:
        (folder / "bin" / "pairs.txt").write_text("".join(f"{pair}\n" for pair in pairs))
    return folder / "bin"
