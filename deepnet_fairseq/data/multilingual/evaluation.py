"""Test sets of many languages at once: Flores-101, the zero-shot pairs of OPUS-100, and a folder of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..archive import unpack
from ..download import RemoteFile, digest, fetch_all
from ..steps import Steps
from .languages import FLORES
from .pair_text import Sentences, file_state, read_lines, read_pairs

FLORES_101 = RemoteFile(
    "flores101_dataset.tar.gz", ("https://dl.fbaipublicfiles.com/flores101/dataset/flores101_dataset.tar.gz",)
)
ZERO_SHOT = RemoteFile(
    "opus-100-corpus-zeroshot-v1.0.tar.gz",
    ("https://object.pouta.csc.fi/OPUS-100/v1.0/opus-100-corpus-zeroshot-v1.0.tar.gz",),
    2_556_791,
    "sha256:241de5bf4eb382017337f3ffb23cdf319c971585b5f679da9a420f23a5c2ed8f",
    "the datasets library, datasets/opus100/dataset_infos.json",
)
ZERO_SHOT_LANGUAGES = ("ar", "de", "fr", "nl", "ru", "zh")  # every two of them
FLORES_SPLITS = {"valid": "dev", "flores": "devtest"}


@dataclass(frozen=True)
class Evaluation:
    """In DEST/evaluation once `fetch` was called; folder: FOLDER/PAIR/SUBSET.LANG, further test sets, or None."""

    dest: Path
    downloads: Path
    miniature: bool
    folder: Path | None

    def fetch(self) -> dict[str, dict]:
        """Downloads and unpacks; name -> {"sha256", "size", "url"}."""
        files = (FLORES_101, ZERO_SHOT)
        folders = [self.dest / "evaluation" / name for name in ("flores101", "opus100")]

        def make() -> dict:
            found = fetch_all(files, self.downloads, self.miniature)
            for path, folder in zip(found.values(), folders, strict=True):
                unpack(path, folder, lambda name: "/dev/" in name or "/devtest/" in name or "zero-shot" in name)
            return {
                file.name: {"sha256": digest(path), "size": path.stat().st_size, "url": file.urls[0]}
                for file, path in zip(files, found.values(), strict=True)
            }

        return Steps(self.dest).run("evaluation", folders, {"files": [file.checksum for file in files]}, make)

    def subsets(self, langs: tuple[str, str]) -> dict[str, Callable[[], Sentences]]:
        """valid and flores where Flores-101 has both languages, opus where OPUS-100 has the pair, and FOLDER's."""
        return {name: partial(read_pairs, *paths, empty="keep") for name, paths in self._paths(langs).items()}

    def state(self, langs: tuple[str, str]) -> dict:
        """What changes when the test sets of a pair do, as PairText.state."""
        paths = self._paths(langs)
        given = [path for name in self._given("-".join(langs)) for path in paths[name]]
        return {"subsets": sorted(paths), "given": {str(path): file_state(path) for path in given}}

    def held_out(self, lang: str) -> frozenset[str]:
        """All sentences of a language in all the sets."""
        root, code = self.dest / "evaluation", FLORES.get(lang)
        files = [*(root / "opus100").rglob(f"*.{lang}"), *(self.folder.rglob(f"*.{lang}") if self.folder else ())]
        files += [path for split in FLORES_SPLITS.values() for path in root.rglob(f"{code}.{split}")]
        return frozenset(line for path in files for line in read_lines(path))

    def _paths(self, langs: tuple[str, str]) -> dict[str, list[Path]]:
        root, pair = self.dest / "evaluation", "-".join(langs)
        paths = {}
        if all(lang in FLORES for lang in langs):
            for name, split in FLORES_SPLITS.items():
                folder = root / "flores101" / "flores101_dataset" / split
                paths[name] = [folder / f"{FLORES[lang]}.{split}" for lang in langs]
        if all(lang in ZERO_SHOT_LANGUAGES for lang in langs):
            folder = root / "opus100" / "opus-100-corpus" / "v1.0" / "zero-shot" / pair
            paths["opus"] = [folder / f"opus.{pair}-test.{lang}" for lang in langs]
        for name in self._given(pair):
            paths[name] = [self.folder / pair / f"{name}.{lang}" for lang in langs]
        return paths

    def _given(self, pair: str) -> list[str]:
        """The subsets of FOLDER."""
        folder = self.folder / pair if self.folder else None
        return sorted({path.stem for path in folder.iterdir()}) if folder and folder.is_dir() else []
