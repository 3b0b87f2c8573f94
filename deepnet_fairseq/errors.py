"""A mistake the user can mend: one line that names the flag or the file and the way out."""

from __future__ import annotations

import re


class UserError(ValueError):
    """What a user asked for cannot be: str(error) is the line to print. A ValueError for Python callers."""


def user_error_line(error: BaseException | None) -> str | None:
    """The line to print for `error`, or None if no UserError stands behind it.

    fairseq wraps whatever goes wrong while loading into "Cannot load model parameters from checkpoint FILE; ...":
    the wrapper knows the file, the UserError behind it knows the reason.
    """
    file = ""
    while error is not None:
        if isinstance(error, UserError):
            return f"{file}{error}"
        if match := re.match(r"Cannot load model parameters from checkpoint (.*?);", str(error)):
            file = f"{match.group(1)}: "
        error = error.__cause__ or error.__context__
    return None
