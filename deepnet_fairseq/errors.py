"""Mistakes that a user can mend: one line that names the flag or the file and the way out."""

from __future__ import annotations

import re
from collections.abc import Iterator


class UserError(ValueError):
    """Mistake of a user: str(error) is the line to print, "SUBJECT: WAY OUT". A ValueError for Python callers.

    subject: what the user gave that is at fault, as they would write it: a flag with its value, a file, a field
    way_out: what is wrong with it, and what to do instead
    """

    def __init__(self, subject: object, way_out: str = "") -> None:
        """Keep both parts of the line; a single argument is the whole line, to be split at its first ": ", if any."""
        super().__init__(subject, way_out)
        self.subject = str(subject)
        self.way_out = way_out
        if not way_out:
            self.subject, _, self.way_out = self.subject.partition(": ")

    def __str__(self) -> str:
        """Return the line to print."""
        return f"{self.subject}: {self.way_out}" if self.way_out else self.subject


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield `error` and its chain of causes, each once, without those that `raise ... from None` hides.

    The chain may be a cycle: omegaconf's errors are their own causes when a debugger is attached.
    """
    seen: set[int] = set()  # ids of the errors that were yielded
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context


def user_error_line(error: BaseException | None) -> str | None:
    """Return the line to print for an error that the user can mend, None for any other.

    The user can mend a missing file, a UserError, and an error that has a UserError among its causes. fairseq raises
    "Cannot load model parameters from checkpoint FILE; ..." from any error while it loads. The line is then "FILE: "
    and the UserError's text, since fairseq's error names the file, and the UserError the reason.
    """
    if isinstance(error, FileNotFoundError):
        return str(error)
    file = ""  # "FILE: " once fairseq's error was met
    for cause in causes(error):
        if isinstance(cause, UserError):
            return f"{file}{cause}"
        if match := re.match(r"Cannot load model parameters from checkpoint (.*?);", str(cause)):
            file = f"{match.group(1)}: "
    return None
