"""Base class of recipes. A recipe gets the text of one published corpus and binarises it for fairseq.

DEST is the folder that a recipe fills. A recipe downloads published files, or takes the user's text (--from FOLDER).
A miniature is a recipe's corpus made of small generated files in the place of the downloads.

The work is divided into steps (steps.Steps). steps.run(NAME, outputs, settings, make) calls make(), which writes the
files `outputs`, and records its result. If outputs, settings and earlier steps are as recorded, it only returns this.
"""

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
from ..binarise import refuse_pathsep
from ..download import Fetch, RemoteFile, fetch_all, fetch_described, locked
from ..folder import say_space
from ..steps import Steps, read_json, write_json

LIKELY = "sacremoses and the Perl tokeniser differ in a few lines"  # usual reason of counts that are slightly off
# field of Options that only some recipes use -> its flag in `deepnet prepare corpus`
FLAGS = {"pairs": "--pairs", "text": "--from", "vocab": "--vocab", "vocab_sample": "--vocab-sample",
         "shards": "--shards", "temperature": "--temperature", "spm": "--spm"}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Options of `deepnet prepare corpus`. Where nothing else is said, None stands for the recipe's own value.

    dest: DEST, the folder to fill
    downloads: folder of the downloaded files
    fetch: function (files, folder) -> {name: path} that downloads the published files (download.fetch_all), or
        generates those of a miniature (miniature.write)
    workers: number of processes
    pairs: language pairs, as "de-en"
    text: the folder of --from, with the user's own text, which bilingual recipes expect tokenised; None to download
    vocab: number of BPE merges or SentencePiece pieces
    vocab_sample: number of sentences that SentencePiece learns from
    shards: number of parts of the training data, of which fairseq reads one an epoch
    temperature: T of vocabulary.sampling_probabilities, by which languages share the sample for SentencePiece
    spm: file of a SentencePiece model to use; None to train one
    """

    dest: Path
    downloads: Path
    fetch: Fetch = fetch_all
    workers: int = 1
    pairs: tuple[str, ...] | None = None
    text: Path | None = None
    vocab: int | None = None
    vocab_sample: int | None = None
    shards: int | None = None
    temperature: float | None = None
    spm: Path | None = None

    @property
    def miniature(self) -> bool:
        """Whether the files are generated in the place of downloads."""
        return self.fetch is not fetch_all


class Recipe(ABC):
    """Recipe of one corpus.

    It fills DEST/bin (binarised data) and DEST/reference (raw references of the test sets), describes both in
    DEST/recipe.json, and records its steps in DEST/steps. A new recipe derives from BilingualRecipe or
    MultilingualRecipe, and is added to RECIPES in recipes/__init__.py.

    name: of the recipe on the command line, as "iwslt14_de_en"
    title: of the corpus, for messages
    space: bytes on disk that downloads and all steps need together
    takes: names of the fields in FLAGS that this recipe uses; it refuses the others
    expected: number of sentence pairs, or of distinct pieces, that the corpus is known to have, by what is counted, as
        "train" or "types de". The plan shows it, and recipes that call check_count compare with it.
    vocab, miniature_vocab: number of BPE merges or SentencePiece pieces, of the corpus and of its miniature
    """

    name: str
    title: str
    space: int = 0
    takes: frozenset[str] = frozenset()
    expected: dict[str, int] = {}
    vocab: int
    miniature_vocab: int

    @abstractmethod
    def files(self, options: Options) -> tuple[RemoteFile, ...]:
        """Return the files to download, with sizes and checksums if published; none if --from gives the text."""

    @abstractmethod
    def outline(self, options: Options) -> str:
        """Return one line for the plan that describes how the text is processed."""

    @abstractmethod
    def tools(self, options: Options) -> dict[str, str]:
        """Return name -> version of the Python packages that the result depends on.

        Raises a ModuleNotFoundError if one is missing.
        """

    @abstractmethod
    def make(self, options: Options, steps: Steps, files: dict[str, Path]) -> dict:
        """Run the steps that make DEST/bin and DEST/reference; return the recipe's own entries of recipe.json.

        steps: object that runs and records them
        files: file name -> path of the downloaded file

        The entries are:
        "pieces": fairseq's --bpe that joins the pieces to words again
        "detokenise": whether the text consists of Moses' tokens
        "lowercase": whether it is lower-cased
        "counts": subset ("train", "valid", "test", ...) -> number of sentence pairs, and other counts of the recipe
        A recipe may add others.
        """

    def vocabulary_size(self, options: Options) -> int:
        """Return the number of BPE merges or SentencePiece pieces: --vocab, or the miniature's or recipe's own."""
        if options.vocab:
            return options.vocab
        return self.miniature_vocab if options.miniature else self.vocab

    def needs(self, options: Options) -> int:
        """Return the bytes on disk that downloads and all steps need together; 0 if unknown beforehand."""
        return self.space

    def settings(self, options: Options) -> dict:
        """Return the settings that the result depends on: the fields in FLAGS, and "tools", what tools() returns.

        build() compares them with those in recipe.json, and runs the steps of DEST if they differ. So the values have
        types that JSON keeps: a path is given as text, a tuple as a list.
        """
        chosen = {}
        for field in sorted(FLAGS):
            value = getattr(options, field)
            chosen[field] = os.fspath(value) if isinstance(value, Path) else value
        chosen["pairs"] = list(options.pairs) if options.pairs else None
        if options.vocab_sample is None:  # a DEST of a release that did not have this option yet must compare equal
            del chosen["vocab_sample"]
        chosen["tools"] = self.tools(options)
        return chosen

    def build(self, options: Options) -> None:
        """Make DEST, or only those parts of it that are missing or outdated.

        If DEST is complete and made with the same settings, nothing is done but to print so. A call continues what an
        interrupted one has begun.

        Raises a UserError for unusable options, a folder that holds something else, a full disk, files that cannot be
        downloaded, and counts more than 1% off; raises a ModuleNotFoundError for a missing tool.
        """
        self.check(options)
        what = f"{self.name} (miniature)" if options.miniature else self.name
        with claimed(options.dest, what):
            settings = self.settings(options)
            summary = options.dest / "recipe.json"
            recorded = read_json(summary)  # {} if DEST is not complete yet: then it has no recipe.json
            # recipe.json of an older release may hold settings besides these, which no longer matter
            same_settings = settings.items() <= recorded.get("settings", {}).items()
            if same_settings and recorded["outputs"] == output_sizes(options.dest):
                print(f"{options.dest}: complete already, nothing is left to do")
                return
            summary.unlink(missing_ok=True)

            if not options.miniature:
                self._check_space(options)
            steps = Steps(options.dest)
            fetched = self.fetch(options, steps) if self.files(options) else {}  # --from needs no download
            own_entries = self.make(options, steps, files={name: options.downloads / name for name in fetched})

            entries = {"recipe": self.name, "miniature": options.miniature, "tools": settings["tools"]}
            # "files" may be among own_entries, and replaces `fetched` then: m2m102 downloads its files in make()
            entries |= {"files": fetched} | own_entries
            entries |= {"settings": settings, "outputs": output_sizes(options.dest)}
            write_json(summary, entries)
            print(f"| wrote {options.dest}")

    def _check_space(self, options: Options) -> None:
        """Print how much disk space is still needed; raise a UserError if the disk of DEST has less.

        The bytes of the files that are in DEST and in the folder of downloads already are taken off.
        """
        present = set()  # a set, because the folder of downloads is usually in DEST, whose files include its files then
        for folder in {options.dest.resolve(), options.downloads.resolve()}:
            present |= {file for file in folder.rglob("*") if file.is_file()}
        missing = self.needs(options) - sum(file.stat().st_size for file in present)
        say_space(options.dest, max(0, missing), f"the corpus {self.name}")

    def check(self, options: Options) -> None:
        """Raise a UserError for options that this recipe does not use, and for unusable values.

        Raises a ModuleNotFoundError for a missing tool.
        """
        refuse_pathsep(options.dest)  # fairseq would split a name with ":" into several folders
        for field, flag in FLAGS.items():
            if getattr(options, field) is not None and field not in self.takes:
                raise UserError(flag, f"means nothing to the recipe {self.name}; leave it out")
        numbers = {
            "--workers": options.workers,
            "--vocab": options.vocab,
            "--shards": options.shards,
            "--vocab-sample": options.vocab_sample,
        }
        for flag, number in numbers.items():
            if number is not None and number < 1:
                raise UserError(f"{flag} {number}", "must be 1 or more")
        if options.text is not None and not options.text.is_dir():
            raise UserError(f"--from {options.text}", "no such folder")
        self.tools(options)  # raises for missing ones

    def fetch(self, options: Options, steps: Steps) -> dict[str, dict]:
        """Download missing files in a step; return file name -> {"sha256", "size" in bytes, "url"}.

        Raises a UserError if no address gives a file, or if it differs from the published one.
        """
        files = self.files(options)
        paths = [options.downloads / file.name for file in files]
        published = {file.name: {"url": file.urls[0], "checksum": file.checksum} for file in files}
        settings = {"files": published, "miniature": options.miniature}

        def make() -> dict[str, dict]:
            """Have options.fetch download the files, or generate those of a miniature."""
            return fetch_described(files, options.downloads, options.fetch)

        # keep=True: files that are there already are not removed first, for they need not be downloaded again
        return steps.run("download", paths, settings=settings, make=make, keep=True)

    def check_count(self, options: Options, what: str, count: int, unit: str = "sentence pairs") -> None:
        """Print a count beside the expected one; raise a UserError if they are more than 1% apart.

        Smaller differences get a warning: sacremoses splits a few lines otherwise than Moses' Perl script.

        what: what is counted, a key of `expected` if a number is known for it
        unit: the things counted, in the plural, for the message
        """
        known = self._expected_of(options).get(what)
        line = f"| {what}: {count:,} {unit}"
        if known is None:
            print(line)
        elif count == known:
            print(f"{line} (as expected)")
        elif abs(count - known) <= known / 100:
            print(f"{line}; WARNING: {known:,} are expected ({LIKELY})")
        else:
            raise UserError(
                what,
                f"{count:,} {unit}, but {known:,} are expected; remove the downloads in {options.downloads} "
                "and start again, or take --miniature if these are a miniature's",
            )

    def _expected_of(self, options: Options) -> dict[str, int]:
        """Return `expected`; {} for a miniature and for the user's own text (--from), of which nothing is expected."""
        return {} if options.miniature or options.text else self.expected

    def plan(self, options: Options) -> str:
        """Return a text of several lines that tells what build() would download and do; do nothing of it."""
        self.check(options)
        needed = self.needs(options)
        all_sizes = f"about {tqdm.format_sizeof(needed, 'B')} with all steps" if needed else "size not known"
        lines = [f"{self.name}: {self.title}", f"into {options.dest}, {all_sizes}"]

        files = self.files(options)
        if files:
            lines.append("files:")
        for file in files:
            size = f"{file.size:,} bytes" if file.size else "size not known"
            checksum = f"{file.checksum} ({file.origin})" if file.checksum else "no checksum known, it is recorded"
            lines.append(f"  {file.name}, {size}, {checksum}")
            lines += [f"    {url}" for url in file.urls]

        lines.append(f"text: {self.outline(options)}")
        lines.append("tools:")
        lines += [f"  {tool} {tool_version}" for tool, tool_version in self.tools(options).items()]

        expected = self._expected_of(options)
        if expected:
            lines.append("expected:")
            lines += [f"  {what}: {count:,}" for what, count in expected.items()]
        return "\n".join(lines)


def versions(*packages: str) -> dict[str, str]:
    """Return Python package -> installed version."""
    return {package: version(package) for package in packages}


@contextmanager
def claimed(dest: Path, what: str) -> Iterator[None]:
    """Hold a lock on DEST during the context, so that one process at a time fills it; wait for it if necessary.

    The file DEST/steps/recipe records which recipe fills DEST. Raises a UserError if DEST holds something else.

    what: name of the recipe, followed by " (miniature)" for its miniature
    """
    mark = dest / "steps" / "recipe"
    if not mark.exists():
        if dest.exists() and not dest.is_dir():
            raise UserError(dest, "is there and no folder; name another")
        if dest.is_dir():
            # downloads: files may have been put there by hand; steps: left by a process that was killed early
            others = {path.name for path in dest.iterdir()} - {"downloads", "steps"}
            if others:
                raise UserError(dest, f"is there and holds other things ({sorted(others)[0]}); name a new folder")
        mark.parent.mkdir(parents=True, exist_ok=True)

    with locked(dest / "steps" / "lock"):
        recorded = mark.read_text().strip() if mark.exists() else ""
        if recorded and recorded != what:  # "": an empty mark, left by a process that was killed while it wrote it
            raise UserError(dest, f"holds {recorded}, not {what}; name another folder")
        mark.write_text(f"{what}\n")
        yield


def output_sizes(dest: Path) -> dict[str, int]:
    """Return path relative to DEST -> size in bytes, for the files in DEST/bin and DEST/reference.

    build() tells by this whether DEST is complete. Times of change are not compared, because a copy of DEST has others.
    Files of earlier steps, as in DEST/text, are not compared, because they may be deleted when DEST is made.
    """
    sizes = {}
    for folder in (dest / "bin", dest / "reference"):
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                sizes[os.fspath(file.relative_to(dest))] = file.stat().st_size
    return sizes
