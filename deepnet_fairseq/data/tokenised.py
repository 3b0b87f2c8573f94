"""A user's own text, tokenised already: FOLDER/{train,valid,test}.{SRC,TGT}, perhaps with codes and a dictionary."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from ..errors import UserError
from . import bpe
from .lines import read_pairs
from .steps import file_state

LOOKED_AT = 10_000  # lines


class Tokenised:
    """What is in `folder`; UserError if files are missing.

    texts: subset in fairseq's names -> prefix; names: subset -> the name it has in the folder. Validation and test sets
    may be several, as test.NAME.de; the one without a name comes first, the others by name. codes, dictionary: the
    files `codes` and `dict.txt`, None where they are not.
    """

    def __init__(self, folder: Path, langs: tuple[str, str]):
        self.folder, self.langs = folder, langs
        self.texts: dict[str, Path] = {}
        self.names: dict[str, str] = {}
        for split in ("train", "valid", "test"):
            for number, name in enumerate(self._names(split)):
                subset = f"{split}{number or ''}"
                self.texts[subset], self.names[subset] = folder / name, name
        codes, dictionary = folder / "codes", folder / "dict.txt"
        self.codes = codes if codes.is_file() else None
        self.dictionary = dictionary if dictionary.is_file() else None
        if self.dictionary and not self.codes:
            raise UserError(f"{dictionary}: goes with the BPE codes it was made with; put them beside it as {codes}")

    def _names(self, split: str) -> list[str]:
        found = {
            lang: {path.name.removesuffix(f".{lang}") for path in self.folder.glob(f"{split}*.{lang}")}
            for lang in self.langs
        }
        found = {lang: {name for name in names if f"{name}.".startswith(f"{split}.")} for lang, names in found.items()}
        for lang, other in (self.langs, self.langs[::-1]):
            if missing := found[lang] - found[other]:
                raise UserError(f"{self.folder / min(missing)}.{other}: no such file; {min(missing)}.{lang} is there")
        names = sorted(found[self.langs[0]])  # the name without a suffix is the shortest, so the first
        if not names or (split == "train" and names != ["train"]):
            expected = " and ".join(f"{split}.{lang}" for lang in self.langs)
            raise UserError(f"--from {self.folder}: holds no {expected}" + (" alone" if names else ""))
        return names

    def files(self) -> list[Path]:
        """All of them: texts in both languages, and codes and dictionary where they are."""
        texts = [Path(f"{prefix}.{lang}") for prefix in self.texts.values() for lang in self.langs]
        return texts + [path for path in (self.codes, self.dictionary) if path]

    def state(self) -> dict[str, list[int] | None]:
        """File -> size and time of change."""
        return {path.name: file_state(path) for path in self.files()}

    def check(self) -> dict[str, int]:
        """Subset -> pairs; UserError for unequal lengths, bad UTF-8, and text that is in pieces already."""
        if self.codes:
            bpe.check_codes(self.codes)
        return {subset: self._check(prefix) for subset, prefix in self.texts.items()}

    def _check(self, prefix: Path) -> int:
        pairs = read_pairs(*(Path(f"{prefix}.{lang}") for lang in self.langs))
        count = 0
        for pair in islice(pairs, LOOKED_AT):
            count += 1
            for lang, line in zip(self.langs, pair, strict=True):
                if f"{bpe.MARK} " in line:
                    raise UserError(
                        f"{prefix}.{lang}, line {count}: is in BPE pieces already; give the text before that "
                        "(fairseq's prepare-iwslt14.sh leaves it in the folder tmp)"
                    )
        return count + sum(1 for _ in pairs)
