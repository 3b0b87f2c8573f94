"""Moses' tools themselves: Perl scripts in a checkout of mosesdecoder."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from tqdm import tqdm

from ...errors import UserError
from ..cleaning import Limits
from ..processes import die_with_parent
from .base import Chain, Moses

SCRIPTS = {
    "normalise": "scripts/tokenizer/normalize-punctuation.perl",
    "printing": "scripts/tokenizer/remove-non-printing-char.perl",
    "tokenise": "scripts/tokenizer/tokenizer.perl",
    "lowercase": "scripts/tokenizer/lowercase.perl",
    "clean": "scripts/training/clean-corpus-n.perl",
}


class Perl(Moses):
    """The scripts in `checkout`; UserError if one, or Perl, is not there."""

    def __init__(self, checkout: Path):
        self.checkout = checkout
        self.scripts = {name: (checkout / script).resolve() for name, script in SCRIPTS.items()}
        for name, path in self.scripts.items():
            if not path.is_file():
                raise UserError(
                    f"--moses {checkout}: holds no {SCRIPTS[name]}; give a checkout of "
                    "https://github.com/moses-smt/mosesdecoder, or leave the flag out for sacremoses"
                )
        if shutil.which("perl") is None:
            raise UserError(f"--moses {checkout}: needs perl; install it, or leave the flag out for sacremoses")

    def versions(self) -> dict[str, str]:
        """The commit of the checkout, and a digest of the scripts themselves, which may be changed or no checkout."""
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in self.scripts.values())).hexdigest()
        found = {"mosesdecoder scripts": f"sha256:{digest}"}
        if (self.checkout / ".git").exists():
            with suppress(OSError, subprocess.CalledProcessError):
                command = ["git", "-C", str(self.checkout), "rev-parse", "HEAD"]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found["mosesdecoder"] = done.stdout.strip()
        return found

    def process(self, lines: Iterable[str], lang: str, chain: Chain, workers: int, label: str) -> Iterator[str]:
        commands = []
        if chain.normalise:
            commands += [["normalise", lang], ["printing"]]  # its language without -l, which its first versions lack
        commands.append(["tokenise", "-threads", str(workers), *(["-a"] if chain.aggressive else []), "-l", lang])
        if chain.lowercase:
            commands.append(["lowercase"])
        sent = 0

        def counted() -> Iterator[bytes]:
            nonlocal sent
            for line in lines:
                sent += 1
                yield f"{line}\n".encode()

        received = 0
        for line in tqdm(self._pipe(commands, counted()), label, unit=" lines", unit_scale=True, disable=None):
            received += 1
            yield line.decode("utf-8").removesuffix("\n")
        if sent != received:
            raise UserError(f"--moses {self.checkout}: {sent:,} lines went in, {received:,} came out; try another one")

    def _pipe(self, commands: list[list[str]], content: Iterator[bytes]) -> Iterator[bytes]:
        """What the last of the scripts prints, each reading what the one before it prints."""
        with tempfile.TemporaryFile() as log:
            running: list[subprocess.Popen] = []
            source: Any = subprocess.PIPE
            for name, *words in commands:
                running.append(
                    subprocess.Popen(
                        ["perl", str(self.scripts[name]), *words], stdin=source, stdout=subprocess.PIPE, stderr=log,
                        preexec_fn=die_with_parent,
                    )
                )  # fmt: skip
                if source is not subprocess.PIPE:
                    source.close()  # theirs now
                source = running[-1].stdout
            failure: list[BaseException] = []
            feeder = Thread(target=_feed, args=(running[0].stdin, content, failure), daemon=True)
            feeder.start()
            try:
                yield from running[-1].stdout
            finally:  # also when nobody wants more
                for process in running:
                    process.stdout.close()
                feeder.join()
                statuses = [process.wait() for process in running]
            if failure:
                raise failure[0]
            self._check([name for name, *_ in commands], statuses, log)

    def clean(self, langs: tuple[str, str], source: Path, dest: Path, limits: Limits) -> None:
        words = ["-ratio", f"{limits.ratio:g}", source, *langs, dest, limits.least, limits.most]
        dest.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as log:
            command = ["perl", str(self.scripts["clean"]), *map(str, words)]
            done = subprocess.run(command, stdout=log, stderr=log, preexec_fn=die_with_parent)
            self._check(["clean"], [done.returncode], log)

    def _check(self, names: list[str], statuses: list[int], log) -> None:
        for name, status in reversed(list(zip(names, statuses, strict=True))):  # a script's end ends those before it
            if status:
                log.seek(0)
                said = log.read().decode("utf-8", "replace").strip().splitlines()[-1:]
                raise UserError(
                    f"--moses {self.checkout}: {SCRIPTS[name]} ended with status {status}: {''.join(said)}; "
                    "try --workers 1 (a Perl without threads), or leave the flag out for sacremoses"
                )


def _feed(pipe, content: Iterator[bytes], failure: list[BaseException]) -> None:
    """In a thread. What goes wrong while reading `content` is left in `failure`."""
    try:
        with suppress(BrokenPipeError), pipe:  # a script that ended early tells by its status
            pipe.writelines(content)
    except BaseException as error:
        failure.append(error)
