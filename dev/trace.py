"""Count the files of this package that a training enters: until its first update, in one, in a save and in a resume.

    python -m dev.trace            prints a table
    python -m dev.trace --files    and the files by name

A change of file is a call of a function in another file than the call before it. The training is one of two layers on a
CPU, on text that the program makes.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from deepnet_fairseq import register
from deepnet_fairseq.data import language
from deepnet_fairseq.data.parallel_text import prepare_text
from deepnet_fairseq.plugin.trainer import batches_by_update, build_trainer, make_update, parse_training_flags
from deepnet_fairseq.text_table import markdown

PACKAGE = Path(__file__).resolve().parents[1] / "deepnet_fairseq"
SIZES = {"train": 200, "valid": 10, "test": 10}  # sentence pairs
FLAGS = (
    "--arch=deepnet_transformer_tiny", "--encoder-layers=2", "--decoder-layers=2", "--max-tokens=400", "--cpu",
    "--optimizer=deepnet_adam", "--lr=1e-3", "--num-workers=0", "--share-all-embeddings", "--disable-validation",
)  # fmt: skip


@dataclass
class Trace:
    """The files of the package whose functions were called, in the order of the calls.

    visits: their paths in the package; a file stands there once for calls in a row, and again when the calls come back
    to it from another file.
    """

    visits: list[str] = field(default_factory=list)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note the file of a call. sys.setprofile calls this for every call and return, with the callee's frame."""
        if event != "call":
            return
        name = frame.f_code.co_filename
        if name.startswith(str(PACKAGE)):
            file = str(Path(name).relative_to(PACKAGE))
            if not self.visits or self.visits[-1] != file:
                self.visits.append(file)

    @property
    def files(self) -> list[str]:
        """Return the files in the order in which they were entered first."""
        return list(dict.fromkeys(self.visits))


@contextmanager
def traced() -> Iterator[Trace]:
    """Trace the calls that are made in a `with` block, also in threads that it starts; the block gets the Trace."""
    trace = Trace()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def make_data(folder: Path) -> Path:
    """Make a small corpus of generated language below `folder`, and return the folder of its binarised data."""
    text = folder / "text"
    language.write_corpus(language.make_corpus(SIZES, nouns=20, verbs=10), text)
    prepare_text(("qaa", "qab"), {split: str(text / split) for split in SIZES}, folder / "bin", vocab=150)
    return folder / "bin"


def traces(folder: Path) -> dict[str, Trace]:
    """Train for five updates, save, and resume; return {what was done: its Trace}. folder: for text and checkpoint."""
    words = [str(make_data(folder)), *FLAGS, "--save-dir", str(folder / "run")]
    found = {}  # each `with traced()` puts its Trace here
    with traced() as found["until the first update"]:
        trainer = build_trainer(parse_training_flags(words))
        source = batches_by_update(trainer)
        first = next(source)
    # the first updates also allocate and check what later ones find ready
    make_update(trainer, first)
    for _ in range(3):
        make_update(trainer, next(source))
    with traced() as found["an update"]:
        make_update(trainer, next(source))

    checkpoint = folder / "run" / "checkpoint_last.pt"
    checkpoint.parent.mkdir()
    # what fairseq-train itself stores beside the trainer's state: where it is in the data, and the validation loss
    extra_state = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 5}, "val_loss": None}
    with traced() as found["a save"]:
        trainer.consolidate_optimizer()
        trainer.save_checkpoint(str(checkpoint), extra_state)
    again = build_trainer(parse_training_flags(words))
    with traced() as found["a resume"]:
        again.load_checkpoint(str(checkpoint))
    return found


def main() -> None:
    """Trace the training, print a table, and with --files the names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="name the files, in the order in which they are entered")
    args = parser.parse_args()
    register()
    logging.disable(logging.CRITICAL)
    # the progress of preparing the text goes to stderr
    with TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        found = traces(Path(folder))

    table = [["", "files", "changes of file"]]
    for name, trace in found.items():
        table.append([name, str(len(trace.files)), str(len(trace.visits))])
    print(markdown(table))
    if args.files:
        for name, trace in found.items():
            print(f"\n{name}: {', '.join(trace.files)}")


if __name__ == "__main__":
    main()
