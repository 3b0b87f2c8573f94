"""What a machine without network needs: the text in binary form, wheels, and the name of the commit.

`dev/gpu_minutes.sh --prepare` makes them on a machine with network, in the folder gpu_minutes: text/language (the
quickstart's generated language) and text/mix (German-English text of several collections), both binarised for
fairseq-train; wheels; and commit.json. One takes that folder along with the project's files to the machine with a GPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from deepnet_fairseq import register
from deepnet_fairseq.data import language
from deepnet_fairseq.data.parallel_text import prepare_text
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools.environment import repository

from .records import ROOT

SPLITS = ("train", "valid", "test")
# what a machine lacks that has Python 3.12, torch and the other packages that docs/gpu_minutes.md names
WHEELS = (
    "fairseq-fixed==0.12.3.1", "hydra-core==1.3.2", "omegaconf==2.3.0", "bitarray", "tensorboardX", "sacremoses",
    "subword-nmt",
)  # fmt: skip
FROM_SOURCE = ("antlr4-python3-runtime==4.9.3",)  # of hydra and omegaconf; its wheel is made here
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12, 5)] + ["manylinux2014_x86_64"]
PYTHON = "3.12"
MOST = 64 * 2**20  # bytes of tree, wheels and text together
# split -> collections of the German-English mix whose sentences it has; fairseq names the second one of test test1
MIX = {
    "valid": ("iwslt14",),
    "test": ("iwslt14", "newstest2014"),
}


def prepare(folder: Path, mix: Path | None) -> None:
    """Make in `folder` what it does not have yet: text/language, text/mix and wheels; write commit.json anew.

    mix: folder of the German-English text, with files train.de, valid.iwslt14.de and so on; None if text/mix is there
    or not wanted. Prints the sizes of the project's files, the text and the wheels. UserError if they are too large
    together, if `mix` has no train.de, or if pip fails.
    """
    register()
    text = folder / "text"
    if not (text / "language").exists():
        quickstart_language(text / "language", language.SIZES, vocab=1000)
    if mix is not None and not (text / "mix").exists():
        german_english(text / "mix", mix)
    for made in text.iterdir():  # also what an earlier call, which was killed, has left
        keep_binary(made)
    if not (folder / "wheels" / "complete").exists():
        fetch_wheels(folder / "wheels")
    write_commit(folder)
    check_size(folder)


def keep_binary(folder: Path) -> None:
    """Remove the plain text from a folder of binarised data, to make it smaller: fairseq's programs do not need it."""
    for name in ("text", "raw"):
        shutil.rmtree(folder / name, ignore_errors=True)


def quickstart_language(dest: Path, sizes: dict[str, int], vocab: int) -> None:
    """Generate sentences of the quickstart's language, and binarise them into the folder `dest`.

    sizes: {split: number of sentence pairs}; vocab: subwords of the vocabulary.
    """
    with TemporaryDirectory() as made:
        language.write_corpus(language.make_corpus(sizes, nouns=60, verbs=30), Path(made))
        prefixes = {split: f"{made}/{split}" for split in SPLITS}
        prepare_text(("qaa", "qab"), prefixes, dest, vocab=vocab)


def german_english(dest: Path, mix: Path) -> None:
    """Binarise the German-English mix into the folder `dest`, with 10,000 subwords, as for IWSLT-14 in Figure 6.

    mix: folder of the plain text; MIX says which of its collections are used. UserError if the folder has no train.de.
    A pair with an empty side is left out.
    """
    if not (mix / "train.de").exists():
        raise UserError(f"--mix {mix}: has no train.de; name the folder with train.de, valid.iwslt14.de and so on")
    prefixes = {"train": str(mix / "train")}
    for split, names in MIX.items():
        prefixes[split] = ",".join(str(mix / f"{split}.{name}") for name in names)
    prepare_text(("de", "en"), prefixes, dest, vocab=10_000, drop_empty=True)


def miniature(folder: Path) -> None:
    """Make small texts in `folder` under the names of the real ones, language and mix, unless they are there.

    Both texts are of the generated language, which needs no download; that of the mix is called German and English.
    """
    register()
    sizes = {"train": 400, "valid": 20, "test": 20}
    if not (folder / "language").exists():
        quickstart_language(folder / "language", sizes, vocab=150)
    if not (folder / "mix").exists():
        with TemporaryDirectory() as made:
            language.write_corpus(language.make_corpus(sizes, nouns=60, verbs=30), Path(made))
            real_suffix = {".qaa": ".de", ".qab": ".en"}
            for path in Path(made).iterdir():
                path.rename(path.with_suffix(real_suffix[path.suffix]))
            # two test sets, as the real mix has; the second one is the validation text again
            prefixes = {"train": f"{made}/train", "valid": f"{made}/valid", "test": f"{made}/test,{made}/valid"}
            prepare_text(("de", "en"), prefixes, folder / "mix", vocab=150)


def fetch_wheels(folder: Path) -> None:
    """Download into `folder` the wheels of what a machine with torch usually lacks, for Python 3.12 on x86-64.

    An empty file "complete" says at the end that all are there. UserError if pip fails.
    """
    pip = [sys.executable, "-m", "pip"]
    platforms: list[str] = []
    for platform in PLATFORMS:
        platforms += ["--platform", platform]
    binary = ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *platforms]
    try:
        subprocess.run([*pip, "download", "--quiet", "--no-deps", "-d", folder, *binary, *WHEELS], check=True)
        subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "-w", folder, *FROM_SOURCE], check=True)
    except subprocess.CalledProcessError as error:
        raise UserError(f"{folder}: pip ended with status {error.returncode}; its message stands above") from error
    (folder / "complete").touch()


def write_commit(folder: Path) -> None:
    """Write the commit of this checkout, and whether files differ from it, into FOLDER/commit.json.

    A machine without git takes it from there, see read_commit.
    """
    commit, modified = repository()
    (folder / "commit.json").write_text(json.dumps({"commit": commit, "modified": modified}))


def read_commit(folder: Path) -> dict:
    """Return {"commit": ..., "modified": whether files differ from it}, for records.

    The values are those of this checkout; without git, those that write_commit noted in `folder`; without either, None
    and False.
    """
    commit, modified = repository()
    noted = folder / "commit.json"
    if commit is None and noted.exists():
        return json.loads(noted.read_text())
    return {"commit": commit, "modified": modified}


def check_size(folder: Path) -> None:
    """Print the sizes of the project's files, and of text and wheels in `folder`; UserError if they exceed MOST."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout
    files = {"tree": [ROOT / name for name in listed.split("\0")]}  # the files that git tracks
    for name in ("text", "wheels"):
        files[name] = list((folder / name).rglob("*"))

    sizes = {}  # bytes
    for name, paths in files.items():
        sizes[name] = sum(path.stat().st_size for path in paths if path.is_file())
    shown = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in sizes.items())
    print(f"{folder}: {shown}")
    if sum(sizes.values()) > MOST:
        raise UserError(
            f"{folder}: larger than {MOST // 2**20} MiB, too large to copy to some machines; remove what is not needed"
        )
