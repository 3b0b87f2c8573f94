"""What all recipes share: their options, their plan, and the frame around their steps."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from ...errors import UserError
from ..binarise import check_dest
from ..download import Fetch, RemoteFile, described, fetch_all, locked, need_space
from ..steps import Steps, read_json, write_json

LIKELY = "sacremoses and the Perl tokeniser differ in a few lines"
FLAGS = {"pairs": "--pairs", "text": "--from", "vocab": "--vocab", "shards": "--shards",
         "temperature": "--temperature", "spm": "--spm"}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What `deepnet prepare` was asked for; None where the recipe's own value holds.

    dest: the folder to fill; fetch: how the published files come, or who generates a miniature's (miniature.write);
    pairs: as "de-en"; vocab: BPE merges or SentencePiece pieces; temperature: of the sampling of languages, for the
    vocabulary.
    """

    dest: Path
    downloads: Path
    fetch: Fetch = fetch_all
    workers: int = 1
    pairs: tuple[str, ...] | None = None
    text: Path | None = None  # --from: a folder of text that is tokenised already
    vocab: int | None = None
    shards: int | None = None
    temperature: float | None = None
    spm: Path | None = None  # a SentencePiece model to take instead of training one

    @property
    def miniature(self) -> bool:
        """Are the files generated ones?"""
        return self.fetch is not fetch_all


class Recipe(ABC):
    """How one corpus is made: from which files, by which steps, with which outcome.

    A new one derives from BilingualRecipe or MultilingualRecipe and stands in RECIPES. It fills DEST/bin (binarised
    data) and DEST/reference (raw references of the test sets) and describes both in DEST/recipe.json; DEST/steps
    remembers what is done.
    """

    name: str
    title: str
    space: int = 0  # bytes that downloads and all steps need together
    takes: frozenset[str] = frozenset()  # the fields of Options that mean something here, of those in FLAGS
    expected: dict[str, int] = {}  # count -> what it is known to be
    vocab: int  # BPE merges or SentencePiece pieces
    miniature_vocab: int

    @abstractmethod
    def files(self, options: Options) -> tuple[RemoteFile, ...]:
        """What is downloaded, with sizes and checksums where they are published; none where --from gives the text."""

    @abstractmethod
    def outline(self, options: Options) -> str:
        """Say for the plan, in a line, what is done to the text."""

    @abstractmethod
    def tools(self, options: Options) -> dict[str, str]:
        """Name -> version of what changes the outcome; UserError if one is not there."""

    @abstractmethod
    def make(self, options: Options, steps: Steps, files: dict[str, Path]) -> dict:
        """Runs the steps that make DEST/bin and DEST/reference; returns what recipe.json says beside the common part.

        files: name -> what was downloaded. Returned are "pieces" (fairseq's name of the segmentation), "detokenise" (is
        the text in Moses tokens?), "lowercase", "counts" and more.
        """

    def vocabulary_size(self, options: Options) -> int:
        """Of --vocab, else of the miniature or the recipe."""
        return options.vocab or (self.miniature_vocab if options.miniature else self.vocab)

    def needs(self, options: Options) -> int:
        """Bytes that downloads and all steps need together; 0 where nobody knows beforehand."""
        return self.space

    def settings(self, options: Options) -> dict:
        """What the outcome depends on, as JSON can hold it; another value of it makes the corpus anew."""
        chosen = {field: getattr(options, field) for field in sorted(FLAGS)}
        chosen |= {field: os.fspath(value) for field, value in chosen.items() if isinstance(value, Path)}
        return chosen | {"pairs": list(options.pairs) if options.pairs else None, "tools": self.tools(options)}

    def build(self, options: Options) -> None:
        """Makes DEST, or what is missing of it; says so if nothing is.

        UserError for options or tools that do not do, a folder that holds something else, a full disk, files that
        cannot be had, and counts more than 1% off. Stopped anywhere, it goes on there when it is called again.
        """
        self.check(options)
        with claimed(options.dest, f"{self.name}{' (miniature)' if options.miniature else ''}"):
            settings, summary = self.settings(options), options.dest / "recipe.json"
            whole = read_json(summary)
            same = settings.items() <= whole.get("settings", {}).items()  # one made before had more of them
            if same and whole["outputs"] == outputs(options.dest):
                print(f"{options.dest}: whole")
                return
            summary.unlink(missing_ok=True)
            if not options.miniature:  # what DEST and the downloads hold already is not to be written
                folders = {options.dest.resolve(), options.downloads.resolve()}
                held = {file for folder in folders for file in folder.rglob("*") if file.is_file()}
                missing = self.needs(options) - sum(file.stat().st_size for file in held)
                need_space(options.dest, max(0, missing), f"the corpus {self.name}")
            steps = Steps(options.dest)
            fetched = self.fetch(options, steps) if self.files(options) else {}
            facts = self.make(options, steps, {name: options.downloads / name for name in fetched})
            common = {"recipe": self.name, "miniature": options.miniature, "tools": settings["tools"]}
            made = {"settings": settings, "outputs": outputs(options.dest)}
            write_json(summary, common | {"files": fetched} | facts | made)
            print(f"| wrote {options.dest}")

    def check(self, options: Options) -> None:
        """UserError for options that this recipe has no use for, and for tools that are not there."""
        check_dest(options.dest)
        for field, flag in FLAGS.items():
            if getattr(options, field) is not None and field not in self.takes:
                raise UserError(f"{flag}: means nothing to the recipe {self.name}; leave it out")
        for flag, number in (("--workers", options.workers), ("--vocab", options.vocab), ("--shards", options.shards)):
            if number is not None and number < 1:
                raise UserError(f"{flag} {number}: must be 1 or more")
        if options.text is not None and not options.text.is_dir():
            raise UserError(f"--from {options.text}: no such folder")
        self.tools(options)

    def fetch(self, options: Options, steps: Steps) -> dict[str, dict]:
        """Downloads what is missing; name -> {"sha256", "size" in bytes, "url"}.

        UserError if no address gives a file, or it is another than was published.
        """
        files = self.files(options)
        paths = [options.downloads / file.name for file in files]
        facts = {file.name: {"url": file.urls[0], "checksum": file.checksum} for file in files}

        settings = {"files": facts, "miniature": options.miniature}
        return steps.run(
            "download", paths, settings, lambda: described(files, options.downloads, options.fetch), keep=True
        )

    def check_count(self, options: Options, what: str, count: int, unit: str = "sentence pairs") -> None:
        """Prints a count beside what is expected; UserError if they are more than 1% apart."""
        known = None if options.miniature or options.text else self.expected.get(what)
        line = f"| {what}: {count:,} {unit}"
        if known in (None, count):
            print(f"{line}{' (as expected)' if known else ''}")
        elif abs(count - known) <= known / 100:
            print(f"{line}; WARNING: {known:,} are expected ({LIKELY})")
        else:
            raise UserError(
                f"{what}: {count:,} {unit}, but {known:,} are expected; remove the downloads in {options.downloads} "
                "and start again, or take --miniature if these are a miniature's"
            )

    def plan(self, options: Options) -> str:
        """Describe what build() would do, a line for each file, tool and count; nothing is downloaded or written."""
        self.check(options)
        size = f"about {tqdm.format_sizeof(n, 'B')} with all steps" if (n := self.needs(options)) else "size not known"
        lines = [f"{self.name}: {self.title}", f"into {options.dest}, {size}"]
        lines += ["files:"] * bool(files := self.files(options))
        for file in files:
            size = f"{file.size:,} bytes" if file.size else "size not known"
            checksum = f"{file.checksum} ({file.origin})" if file.checksum else "no checksum known, it is recorded"
            lines += [f"  {file.name}, {size}, {checksum}"]
            lines += [f"    {url}" for url in file.urls]
        lines += [f"text: {self.outline(options)}"]
        lines += ["tools:", *(f"  {tool} {number}" for tool, number in self.tools(options).items())]
        lines += ["expected:"] * bool(self.expected)
        lines += [f"  {what}: {count:,}" for what, count in self.expected.items()]
        return "\n".join(lines)


def versions(*packages: str) -> dict[str, str]:
    """Python packages -> the versions that are installed."""
    return {package: version(package) for package in packages}


@contextmanager
def claimed(dest: Path, what: str) -> Iterator[None]:
    """DEST is ours while this runs, once no other process works in it; UserError if it holds something else."""
    mark = dest / "steps" / "recipe"
    if not mark.exists():
        if dest.exists() and not dest.is_dir():
            raise UserError(f"{dest}: is there and no folder; name another")
        others = {path.name for path in dest.iterdir()} - {"downloads", "steps"} if dest.is_dir() else set()
        if others:
            raise UserError(f"{dest}: is there and holds other things ({sorted(others)[0]}); name a new folder")
        mark.parent.mkdir(parents=True, exist_ok=True)
    with locked(dest / "steps" / "lock"):
        held = (mark.read_text().strip() if mark.exists() else "") or what  # a kill may leave it empty
        if held != what:
            raise UserError(f"{dest}: holds {held}, not {what}; name another folder")
        mark.write_text(f"{what}\n")
        yield


def outputs(dest: Path) -> dict[str, int]:
    """Path -> bytes of all that makes up a prepared corpus: copying it, or removing what led to it, changes nothing."""
    files = [file for name in ("bin", "reference") for file in sorted((dest / name).rglob("*")) if file.is_file()]
    return {os.fspath(file.relative_to(dest)): file.stat().st_size for file in files}
