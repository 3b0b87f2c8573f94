"""Small models and batches for tests, and the tolerances of comparisons."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from deepnet_fairseq.plugin.building import build

from .forked import fork

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = tempfile.TemporaryDirectory()  # working folder of programs that are given none
USER_DIR = str(ROOT / "deepnet_fairseq")
PAD, EOS, UNK, FIRST, VOCAB = 1, 2, 3, 4, 60
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
SMALL = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 2, "dropout": 0.0}


def small(layers: int = 2, **fields):
    """Build a translator of width 16 in evaluation mode; single_stacks.small builds every kind of model."""
    torch.manual_seed(0)
    depths = {"encoder_layers": layers, "decoder_layers": layers}
    return build(vocab=VOCAB, **(depths | SMALL | fields)).eval()


def batch(rows: int = 3, source: int = 9, target: int = 7, seed: int = 0):
    """Draw src_tokens padded on the left and prev_output_tokens padded on the right, both (B, T)."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(FIRST, VOCAB, (rows, source), generator=generator)
    prev = torch.randint(FIRST, VOCAB, (rows, target), generator=generator)
    src[1, :4] = PAD
    prev[0, target - 2 :] = PAD
    return src, prev


def logits(model, src, prev):
    """Compute the scores (B, T, V) of a translator without gradients."""
    with torch.no_grad():
        return model(src, None, prev)[0]


def sentences(rows: int, vocab: int, seed: int = 0):
    """Draw src_tokens (B, 9) that end with eos; the first half of the rows is padded on the left."""
    source = torch.randint(FIRST, vocab, (rows, 9), generator=torch.Generator().manual_seed(seed))
    source[: rows // 2, :4] = PAD
    source[:, -1] = EOS
    return source


def teach(model, steps: int, sample, lr: float = 1e-2):
    """Train a model on sample(step) -> (inputs, targets (B, T)) until it predicts all targets at once."""
    model.train().set_num_updates(1000)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=lr)
    for step in range(steps):
        inputs, target = sample(step + 1)
        scores = model(*inputs)[0].flatten(0, 1)
        torch.nn.functional.cross_entropy(scores, target.flatten(), ignore_index=PAD).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def run(*command, check=True) -> subprocess.CompletedProcess:
    """Run a program of this environment's bin folder in an empty folder; its stderr follows in stdout.

    The program runs in a fork of this process, which takes about 1 s and not 5 s.
    """
    return _printed(fork([str(word) for word in command], ELSEWHERE.name), check)


def run_cold(*command, check=True) -> subprocess.CompletedProcess:
    """Run a program as `run` does, but in a process that has imported nothing, for tests of the start itself."""
    program = Path(sys.executable).parent / command[0]
    words = [str(word) for word in command[1:]]
    done = subprocess.run(
        [str(program), *words], cwd=ELSEWHERE.name, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
        capture_output=True, stdin=subprocess.DEVNULL, timeout=600,
    )  # fmt: skip
    return _printed(done, check)


def _printed(done: subprocess.CompletedProcess, check: bool) -> subprocess.CompletedProcess:
    done.stdout += done.stderr
    if check:
        assert done.returncode == 0, done.stdout[-3000:]
    return done


def call(package: Path, *words) -> str:
    """Return the output of `python -m WORDS` with that copy of the package first on PYTHONPATH."""
    environment = os.environ | {"PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)], cwd=ROOT / "tests", env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def shown_in_results(mark: str) -> list[list[str]]:
    """Return the rows of the table in results/MARK/README.md between comments of that name, without its header."""
    page = (ROOT / f"results/{mark}/README.md").read_text()
    table = page.split(f"<!-- {mark} -->\n")[1].split(f"<!-- /{mark}")[0]

    rows = []
    for line in table.splitlines()[2:]:
        cells = line.strip("|").split("|")
        rows.append([cell.strip() for cell in cells])
    return rows
