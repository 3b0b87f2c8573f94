"""Started in a program's place: python stand_in.py NAME REAL_PROGRAM WORDS...; the real one gets the words made small.

Every program of a page begins here, so this imports the standard library alone, and its neighbours by their names.
"""

from __future__ import annotations

import os
import sys

import smaller
import warm

COLD = ("pytest", "pip", "mypy")


def main() -> None:
    name, real, *words = sys.argv[1:]
    made = smaller.PROGRAMS[name](words)
    address = os.environ.get("README_WARM")
    if address and name == "python" and made[:1] == ["-m"]:
        sys.exit(warm.ask(address, *made[:1], made[1:]))
    if address and name not in (*COLD, "python"):
        sys.exit(warm.ask(address, real, made))
    with open(real, "rb") as file:
        script = file.read(2) == b"#!"
    os.execv(sys.executable if script else real, [*([sys.executable] if script else []), real, *made])


if __name__ == "__main__":
    main()
