"""GPT-2's two files, fetched from where fairseq takes them, or from OpenAI."""

from __future__ import annotations

from pathlib import Path

PLACES = (
    "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe",
    "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main",
)
CHECKSUMS = {  # those that OpenAI's tiktoken holds its downloads against
    "encoder.json": "sha256:196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


def fetch_gpt2(folder: Path) -> dict[str, Path]:
    """Name -> path in `folder`, fetched unless they are there; UserError if no address gives them."""
    from ..download import RemoteFile, fetch_all

    files = [
        RemoteFile(name, tuple(f"{place}/{name}" for place in PLACES), checksum=checksum, origin="tiktoken")
        for name, checksum in CHECKSUMS.items()
    ]
    return fetch_all(files, folder)
