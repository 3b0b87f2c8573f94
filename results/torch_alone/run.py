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
    """Return the code of README.md's example: the one block of Python that begins with "import torch".

    The example trains a model to reverse sentences of six random tokens. ValueError if the page has no such block or
    several.
    """
    page = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"^```python\n(import torch\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return block


def run(seed: int) -> dict:
    """Run the example with a seed, let its model reverse new sentences, and return the record without the versions.

    The entries are "seed", "final_loss" (nats a token), "right" sentences "of" so many, and "cpu_seconds". What the
    example prints goes to standard error, as standard output gets the records.
    """
    torch.manual_seed(seed)
    variables: dict = {}  # gets what the example defines: "model" and "loss" among others
    begun = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        exec(example(), variables)
    seconds = round(time.process_time() - begun)

    source = torch.randint(SPECIALS, 30, (SENTENCES, 6))  # drawn as the example's: six of its 30 symbols, none special
    right = 0
    for sentence, hypotheses in zip(source, beam_search(variables["model"], source), strict=True):
        if hypotheses[0].tokens.equal(sentence.flip(0)):
            right += 1
    loss = round(variables["loss"].item(), 5)
    return {"seed": seed, "final_loss": loss, "right": right, "of": SENTENCES, "cpu_seconds": seconds}


if __name__ == "__main__":
    words = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    for word in sys.argv[1:]:
        record = run(int(word)) | {"commit": commit, "torch": torch.__version__}
        print(json.dumps(record), flush=True)
