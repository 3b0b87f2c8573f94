"""Files of text that are broken: a sound one, and what is made of it."""

from __future__ import annotations

import json
from pathlib import Path

PROFILE = {
    "format": "deepnet_fairseq admin profile 1",
    "encoder_layers": 1,
    "decoder_layers": 1,
    "omega": {f"{stack}.1.{place}": 1.5 for stack in ("encoder", "decoder") for place in ("self_attn", "ffn")}
    | {"decoder.1.encoder_attn": 2.0},
}
DEEP = b"[" * 100_000


def as_json(value) -> bytes:
    return json.dumps(value).encode()


def broken_json(sound: dict) -> dict[str, bytes]:
    """What is wrong in any file of one JSON object."""
    content = as_json(sound)
    return {
        "empty": b"",
        "cut": content[: len(content) // 2],
        "short of its brace": content[:-1],
        "not in UTF-8": content[:2] + b"\xff\xfe" + content[2:],
        "zeros": bytes(100),
        "a list": b"[1, 2]",
        "a number": b"7",
        "nested deeply": DEEP,
        "a number of 5000 digits": b'{"method": ' + b"9" * 5000 + b"}",
        "another object": b'{"a": 1}',
    }


def broken_text() -> dict[str, tuple[dict[str, bytes], str, str]]:
    """Parallel text, qaa and qab: name -> files, the one to be named, and why."""
    good = b"".join(b"word%d other\n" % number for number in range(120))
    one = {"train.qaa": good, "train.qab": good}
    return {
        "source empty": (one | {"train.qaa": b""}, "train.qaa", "0 lines"),
        "both empty": ({"train.qaa": b"", "train.qab": b""}, "train.qaa", "no sentence"),
        "source shorter": (one | {"train.qaa": good[:500]}, "train.qaa", "lines"),
        "not in UTF-8": (one | {"train.qab": good.replace(b"word7 ", b"w\xe9 ")}, "train.qab, line 8", "not UTF-8"),
        "UTF-16": (one | {"train.qaa": good.decode().encode("utf-16")}, "train.qaa, line 1", "not UTF-8"),
        "cut in a letter": (one | {"train.qaa": good + "ä".encode()[:1] + b"\n"}, "train.qaa, line 121", "not UTF-8"),
        "an empty line": (one | {"train.qaa": good.replace(b"word5 other", b"")}, "train.qaa, line 6", "empty"),
        "blanks alone": (one | {"train.qab": good.replace(b"word5 other", b" \t")}, "train.qab, line 6", "empty"),
        "too little": ({"train.qaa": b"a\n", "train.qab": b"b\n"}, "1 training pairs", "too few"),
        "fewer characters than --vocab": (one, "--vocab 9000", "at most"),
    }


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
