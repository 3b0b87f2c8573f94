"""Archives into folders: whole, with nothing outside; or line by line without unpacking."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path, PurePosixPath

from ...atomic_output import whole
from ...errors import UserError
from .disk import free_space, need_space, writing
from .members import BLOCK, Member, members_of
from .progress import amount, progress

BIG = 50_000_000  # bytes of an archive from which on the progress is shown


def unpack(archive: Path, dest: Path, wanted: Callable[[str], bool] | None = None) -> Path:
    """The members of `archive` (.zip, .tar, compressed or not, or one .gz, .bz2, .xz) in the new folder `dest`.

    wanted: of the names (a/b.txt) those to unpack; the others are not looked at
    UserError, and nothing of `dest`: a member would get outside, is a device, or is setuid; the archive is broken;
        it unpacks to more than the disk has free; nothing in it is wanted; `dest` holds something already
    """
    archive, dest = Path(archive), Path(dest)
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise UserError(f"{dest}: is there and not empty; name a new folder")
    with members_of(archive) as (members, raw):
        with writing(dest, "name another place"):
            dest.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(members, list):
            chosen = [each for each in members if wanted is None or wanted(_plain(each.name))]
            need_space(dest.parent, sum(each.size or 0 for each in chosen), str(archive))
        big = archive.stat().st_size >= BIG
        with whole(dest) as part, progress(archive.name, archive.stat().st_size) if big else nullcontext() as bar:
            with writing(part, "name another place"):
                part.mkdir()
            unpacking = _Unpacking(archive, part, (lambda: bar.at(raw.tell())) if big else (lambda: None))
            found = 0
            for member in members:
                if wanted is None or wanted(_plain(member.name)):
                    unpacking.put(member)
                    found += member.kind != "folder"
            if wanted is not None and not found:
                raise UserError(f"{archive}: holds none of the files wanted; remove it and fetch it again")
            unpacking.link()
    return dest


def stream_lines(archive: Path, member: str) -> Iterator[str]:
    """The lines of one member of an archive, without their "\\n", unpacked only as they are read (UTF-8).

    UserError, when the first or a later line is asked for: no such member, no UTF-8, an archive that is broken.
    """
    archive = Path(archive)
    with members_of(archive) as (members, _):
        for each in members:
            if each.kind == "file" and _plain(each.name) == _plain(member):
                break
        else:
            raise UserError(f"{archive}: holds no {member}; name another member, or remove it and fetch it again")
        number = 0
        try:
            with io.TextIOWrapper(io.BufferedReader(each.open(), BLOCK), encoding="utf-8", newline="\n") as text:
                for line in text:
                    number += 1
                    yield line.removesuffix("\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{archive}: {member} is no UTF-8 after line {number:,}; fetch it again") from error


def _plain(name: str) -> str:
    """Without the ./ that some archives begin names with."""
    return str(PurePosixPath(name))


class _Unpacking:
    """Members on their way into `root`, which nobody else knows yet. Links are made last: nothing is written through.

    Files lie below real folders only, and a link goes up (..) only at the start of its target and not above `root`;
    so wherever links lead, by whatever chain, they stay inside.
    """

    def __init__(self, archive: Path, root: Path, moved: Callable[[], None]):
        self.archive, self.root, self.moved = archive, root, moved
        self.free = self.left = free_space(root)
        self.files: set[PurePosixPath] = set()
        self.links: dict[PurePosixPath, str] = {}

    def put(self, member: Member) -> None:
        path = PurePosixPath(member.name)
        self._check(member, path)
        with writing(self.root / path, "free some space or name another place"):
            if member.kind == "symlink":
                self.links[path] = member.target
            elif member.kind == "folder":
                (self.root / path).mkdir(parents=True, exist_ok=True)
            else:
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                (self.root / path).unlink(missing_ok=True)  # in a tar the last of a name counts
                if member.kind == "hardlink":
                    os.link(self.root / PurePosixPath(member.target), self.root / path)
                else:
                    self._write(member, self.root / path)
                self.files.add(path)

    def link(self) -> None:
        """The symbolic links."""
        for path in self.links:
            if os.path.lexists(self.root / path) or any(parent in self.links for parent in path.parents):
                self._refuse(str(path), "is a link and something else too")
        for path, target in self.links.items():
            with writing(self.root / path, "name another place"):
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                (self.root / path).symlink_to(target)

    def _check(self, member: Member, path: PurePosixPath) -> None:
        if path.is_absolute() or ".." in path.parts:
            self._refuse(member.name, "lies outside the folder")
        if member.kind == "special":
            self._refuse(member.name, "is neither file nor folder nor link")
        if member.kind == "file" and member.mode & (stat.S_ISUID | stat.S_ISGID):
            self._refuse(member.name, "would run as another user (setuid)")
        if member.kind == "hardlink" and PurePosixPath(member.target) not in self.files:
            self._refuse(member.name, f"is a link to {member.target}, which is no file unpacked before")
        if member.kind == "symlink":
            target = PurePosixPath(member.target)
            ups = target.parts.count("..")
            if target.is_absolute() or ".." in target.parts[ups:] or ups > len(path.parent.parts):
                self._refuse(member.name, f"is a link to {member.target}, outside the folder or hard to follow")

    def _refuse(self, name: str, why: str) -> None:
        raise UserError(f"{self.archive}: {name!r} {why}; nothing was unpacked, get the archive from a better place")

    def _write(self, member: Member, path: Path) -> None:
        self._take(0, member.size or 0)
        with member.open() as body, open(path, "xb") as out:
            while chunk := body.read(BLOCK):
                self._take(len(chunk))
                out.write(chunk)
                self.moved()
        if member.mode & stat.S_IXUSR:
            mode = path.stat().st_mode
            path.chmod(mode | (mode & 0o444) >> 2)  # whoever may read may run

    def _take(self, size: int, declared: int = 0) -> None:
        """UserError if the disk had not that much free when we began: a bomb, or simply too big."""
        self.left -= size
        if self.left < declared:
            raise UserError(
                f"{self.archive}: unpacks to more than the {amount(self.free)} free in {self.root.parent}; "
                "free some or name another place"
            )
