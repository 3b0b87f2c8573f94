"""What fairseq-generate printed: S- source, T- reference, H- and D- translation, P- scores; sentences in any order.

A bilingual run has one file of it, a multilingual one a file a direction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError

SENTENCE = {
    "translations": re.compile(r"^D-(\d+)\t[^\t\n]*\t(.*)$", re.MULTILINE),
    "references": re.compile(r"^T-(\d+)\t(.*)$", re.MULTILINE),
}
SPEED = re.compile(r"Translated .* in ([\d.]+)s \(([\d.]+) sentences/s, ([\d.]+) tokens/s\)$")
TEST_SET = re.compile(r" (\S+) ([^\s-]+-[^\s-]+) \d+ examples$")
OF_SENTENCE = re.compile(r"[A-Z]-\d+\t")
NAME = re.compile(r"[A-Za-z]{2,3}(_[A-Za-z]+)*-[A-Za-z]{2,3}(_[A-Za-z]+)*\.txt")


@dataclass(frozen=True)
class Output:
    """subset and direction ("test", "de-en") where the file's place tells; direction None: a bilingual run's."""

    file: Path
    subset: str | None = None
    direction: str | None = None


def find_outputs(path: Path) -> list[Output]:
    """path: a file, a run's folder, or a folder of SRC-TGT.txt (subset "test") or SUBSET/SRC-TGT.txt.

    UserError for a folder that holds neither; a file is not looked for yet.
    """
    if not path.is_dir():
        return [Output(path, None, path.stem if NAME.fullmatch(path.name) else None)]
    if (path / "generated.txt").is_file():
        return [Output(path / "generated.txt")]
    if (path / "generated").is_dir():
        return find_outputs(path / "generated")
    files = sorted(file for file in [*path.glob("*.txt"), *path.glob("*/*.txt")] if NAME.fullmatch(file.name))
    if not files:
        raise UserError(
            f"{path}: has neither generated.txt nor files SRC-TGT.txt; name a run, or what fairseq-generate printed"
        )
    return [Output(file, "test" if file.parent == path else file.parent.name, file.stem) for file in files]


def is_multilingual(outputs: list[Output]) -> bool:
    """Are they of directions, each with scores of its own? A bilingual run has one output."""
    return len(outputs) > 1 or outputs[0].subset is not None


@dataclass(frozen=True)
class Generated:
    """Translations and references, one a sentence, in the order of the test set.

    `references` is what the model's dictionary leaves of them: a word that it lacks reads <<unk>>, so that no
    translation matches it; None where fairseq knew no references.
    """

    path: Path
    translations: list[str]
    references: list[str] | None


def read_generated(path: Path) -> Generated:
    """UserError if a sentence is missing or there twice, or if there are translations without their references."""
    text = read_text(path)
    if text and not text.endswith("\n"):
        raise UserError(f"{path}: ends in the middle of a line; generate again")
    found = {what: _sentences(pattern, text, what, path) for what, pattern in SENTENCE.items()}
    translations, references = found["translations"], found["references"]
    if not translations or (references and len(references) != len(translations)):
        raise UserError(f"{path}: {len(translations)} translations for {len(references)} references; generate again")
    return Generated(path, translations, references or None)


def generation_speed(generated: Path) -> dict[str, float] | None:
    """Seconds of translating, sentences and tokens a second, as fairseq printed them; None if it did not."""
    match = _last(SPEED, generated)
    return match and dict(
        zip(("seconds", "sentences_per_second", "tokens_per_second"), map(float, match.groups()), strict=True)
    )


def logged_test_set(generated: Path) -> tuple[str, str] | None:
    """Subset and direction, as ("test", "de-en"), that fairseq's log names; None without a log."""
    match = _last(TEST_SET, generated)
    return match and (match.group(1), match.group(2))


def read_text(path: Path) -> str:
    """The file as it is: a carriage return ends no line. UserError if there is none, or it is no UTF-8."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no UTF-8 text ({error.reason} at byte {error.start})") from None


def _sentences(pattern: re.Pattern, text: str, what: str, path: Path) -> list[str]:
    found: dict[int, str] = {}
    for number, sentence in pattern.findall(text):
        if int(number) in found:
            raise UserError(f"{path}: {what} of sentence {number} are there twice; generate once, with --nbest 1")
        found[int(number)] = sentence
    if lost := [number for number in range(max(found, default=-1) + 1) if number not in found]:
        raise UserError(
            f"{path}: {what} are missing ({len(lost)}, the first is sentence {lost[0]}); generate again, "
            "without --skip-invalid-size-inputs-valid-test"
        )
    return [found[number] for number in sorted(found)]


def _last(pattern: re.Pattern, generated: Path) -> re.Match | None:
    """The last match in fairseq's log, which stands in the output itself or in a file beside it."""
    log = generated.with_name("generate.log" if generated.name == "generated.txt" else f"{generated.stem}.log")
    for path in (log, generated):
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            matches = [match for line in lines if not OF_SENTENCE.match(line) and (match := pattern.search(line))]
            if matches:
                return matches[-1]
    return None
