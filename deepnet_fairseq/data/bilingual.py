"""The steps from the lines of one language pair to binarised data, each recorded under its name.

A text is named by its prefix: P stands for P.SRC and P.TGT. Texts are kept as subset -> prefix, in fairseq's names
("train", "valid", "test", "test1", ...), and go from stage to stage in DEST/text/STAGE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ..atomic_output import whole
from ..errors import UserError
from . import bpe
from .binarise import binarise
from .cleaning import Limits
from .lines import read_lines, read_pairs, write_columns, write_lines
from .moses import Chain, Moses
from .steps import Steps

Texts = dict[str, Path]
Lines = Callable[[], Iterable[str]]


def sides(prefix: Path, langs: tuple[str, str]) -> list[Path]:
    """The files P.SRC and P.TGT of a prefix P."""
    return [prefix.with_name(f"{prefix.name}.{lang}") for lang in langs]


class Bilingual:
    """What is made in `dest` for the languages `langs`, source and target; each method is one of `steps` or several."""

    def __init__(self, steps: Steps, dest: Path, langs: tuple[str, str], workers: int):
        self.steps, self.dest, self.langs, self.workers = steps, dest, langs, workers

    def tokenise(self, subset: str, lines: dict[str, Lines], tool: Moses, chain: Chain) -> tuple[Path, int]:
        """The tokenised text, and its sentences.

        lines: language -> its raw lines. UserError if the languages have not as many.
        """
        prefix = self._stage("tokenised") / subset
        counts = {}
        for lang, path in zip(self.langs, sides(prefix, self.langs), strict=True):

            def make(lang=lang, path=path) -> dict:
                tokens = tool.process(lines[lang](), lang, chain, self.workers, path.name)
                return {"sentences": write_lines(path, tokens)}

            settings = {"chain": chain.as_json(), "tools": tool.versions()}
            counts[lang] = self.steps.run(f"tokenise.{subset}.{lang}", [path], settings, make)["sentences"]
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{count:,} in {lang}" for lang, count in counts.items())
            raise UserError(
                f"{prefix}: {said}: each line must translate its twin; remove the downloads and start again"
            )
        return prefix, counts[self.langs[0]]

    def references(self, subset: str, lines: dict[str, Lines], sentences: int) -> None:
        """DEST/reference/SUBSET.SRC-TGT.TGT for both directions.

        UserError unless they have as many lines as the test set has `sentences`.
        """
        folder = self.dest / "reference"

        def make() -> None:
            with whole(folder) as part:
                for source, target in (self.langs, self.langs[::-1]):
                    name = f"{subset}.{source}-{target}.{target}"
                    if (found := write_lines(part / name, lines[target]())) != sentences:
                        raise UserError(f"{folder / name}: {found:,} references for {sentences:,} sentences")

        self.steps.run("references", [folder], {}, make)

    def clean(self, stage: str, texts: Texts, tool: Moses, limits: Limits) -> tuple[Texts, dict[str, int]]:
        """The texts without the pairs outside the limits, and how many pairs are left of each."""
        folder = self._stage(stage)

        def make() -> dict:
            counts = {}
            with whole(folder) as part:
                part.mkdir(parents=True)
                for subset, prefix in texts.items():
                    tool.clean(self.langs, prefix, part / subset, limits)
                    counts[subset] = sum(1 for _ in read_lines(sides(part / subset, self.langs)[0]))
            return counts

        counts = self.steps.run(stage, [folder], {"limits": str(limits), "tools": tool.versions()}, make)
        return {subset: folder / subset for subset in texts}, counts

    def hold_out(self, train: Path, every: int) -> tuple[Texts, dict[str, int]]:
        """Training and validation text: each `every`-th pair of `train` goes to the latter."""
        folder = self._stage("split")

        def make() -> dict:
            with whole(folder) as part:
                return {
                    subset: write_columns(
                        sides(part / subset, self.langs),
                        (
                            pair
                            for number, pair in enumerate(read_pairs(*sides(train, self.langs)), 1)
                            if (number % every == 0) == (subset == "valid")
                        ),
                    )
                    for subset in ("train", "valid")
                }

        counts = self.steps.run("split", [folder], {"every": every}, make)
        return {subset: folder / subset for subset in counts}, counts

    def learn(self, train: Path, merges: int) -> Path:
        """DEST/text/codes: subword-nmt's codes, learnt on both languages together."""
        codes = self.dest / "text" / "codes"
        self.steps.run(
            "learn-bpe", [codes], {"merges": merges}, lambda: bpe.learn(sides(train, self.langs), merges, codes)
        )
        return codes

    def apply(self, codes: Path, texts: Texts) -> tuple[Texts, dict[str, dict]]:
        """The texts in pieces; subset -> language -> numbers of sentences, pieces and types."""
        folder, counts = self._stage("pieces"), {}
        for subset, prefix in texts.items():
            counts[subset] = {}
            for lang, text, dest in zip(
                self.langs, sides(prefix, self.langs), sides(folder / subset, self.langs), strict=True
            ):
                counts[subset][lang] = self.steps.run(
                    f"apply-bpe.{subset}.{lang}", [dest], {},
                    lambda text=text, dest=dest: bpe.apply(codes, text, dest, self.workers),
                )  # fmt: skip
        return {subset: folder / subset for subset in texts}, counts

    def binarise(self, texts: Texts, codes: Path, dictionary: Path | None = None) -> dict:
        """DEST/bin, with the codes; see binarise.binarise."""
        dest = self.dest / "bin"
        prefixes = {
            split: [prefix for subset, prefix in texts.items() if subset.startswith(split)]
            for split in ("train", "valid", "test")
        }

        def make() -> dict:
            with whole(dest) as part:
                part.mkdir(parents=True)
                found = binarise(self.langs, prefixes, part, self.workers, dictionary)
                (part / "codes").write_bytes(codes.read_bytes())
                words = read_lines(part / f"dict.{self.langs[0]}.txt")
                found["words"] = sum(not word.startswith("madeupword") for word in words)  # fairseq pads with those
            return found

        return self.steps.run("binarise", [dest], {}, make)

    def _stage(self, name: str) -> Path:
        return self.dest / "text" / name
