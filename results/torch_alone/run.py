"""Run README's example of torch alone on some seeds, and print a record of each: `run.py 0 1 2 3 4 > records.jsonl`.

A record holds the seed, the loss of the last update, how many of 32 new sentences come out reversed, the processor time
in seconds, the commit and torch's version.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import torch

from deepnet_fairseq.core import SPECIALS, beam_search

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = 32


def example() -> str:
    """Return the lines of README.md's block of Python that begins with torch."""
    (lines,) = re.findall(r"^```python\n(import torch\n.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.M)
    return lines


def run(seed: int) -> dict:
    """Run the example; its prints go to stderr."""
    torch.manual_seed(seed)
    made: dict = {}
    begun = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        exec(example(), made)
    seconds = round(time.process_time() - begun)
    source = torch.randint(SPECIALS, 30, (SENTENCES, 6))
    outputs = [best[0].tokens for best in beam_search(made["model"], source)]
    right = sum(tokens.equal(sentence.flip(0)) for tokens, sentence in zip(outputs, source, strict=True))
    loss = round(made["loss"].item(), 5)
    return {"seed": seed, "final_loss": loss, "right": right, "of": SENTENCES, "cpu_seconds": seconds}


if __name__ == "__main__":
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    for seed in map(int, sys.argv[1:]):
        print(json.dumps(run(seed) | {"commit": commit.strip(), "torch": torch.__version__}), flush=True)
