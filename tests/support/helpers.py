"""Small translators and batches for tests, starts of programs, and constants of both."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from deepnet_fairseq.plugin.building import build

from .forked import fork

ROOT = Path(__file__).resolve().parents[2]  # of the repository
ELSEWHERE = tempfile.TemporaryDirectory()  # working folder of programs, empty at first
USER_DIR = str(ROOT / "deepnet_fairseq")  # value of fairseq's --user-dir
# Numbers of fairseq's special symbols in every dictionary, the first number of a word, and the number of symbols
# of small models.
PAD = 1
EOS = 2
UNK = 3
FIRST = 4
VOCAB = 60
# Largest difference that rounding may make between scores computed in two ways, by their type.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
SMALL = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 2, "dropout": 0.0}


def small(layers: int = 2, **fields):
    """Build a translator of width 16 in evaluation mode, its weights drawn from a fixed seed.

    layers: of each stack; fields: config fields that differ. single_stacks.small builds models of every kind.
    """
    torch.manual_seed(0)
    depths = {"encoder_layers": layers, "decoder_layers": layers}
    return build(vocab=VOCAB, **(depths | SMALL | fields)).eval()


def batch(rows: int = 3, source: int = 9, target: int = 7, seed: int = 0):
    """Draw a translator's batch: (src_tokens (rows, source), prev_output_tokens (rows, target)), of words and padding.

    Row 1 of the sources begins with four tokens of padding, row 0 of the targets ends with two, as fairseq pads them.
    """
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(FIRST, VOCAB, (rows, source), generator=generator)
    prev = torch.randint(FIRST, VOCAB, (rows, target), generator=generator)
    src[1, :4] = PAD
    prev[0, target - 2 :] = PAD
    return src, prev


def logits(model, src, prev):
    """Compute a translator's scores (B, T, V), without gradients, for a batch as `batch` draws it."""
    with torch.no_grad():
        return model(src, None, prev)[0]


def sentences(rows: int, vocab: int, seed: int = 0):
    """Draw src_tokens (rows, 9) that end with EOS; the first half of the rows begins with four tokens of padding.

    vocab: number of symbols, special ones included
    """
    source = torch.randint(FIRST, vocab, (rows, 9), generator=torch.Generator().manual_seed(seed))
    source[: rows // 2, :4] = PAD
    source[:, -1] = EOS
    return source


def teach(model, steps: int, sample, lr: float = 1e-2):
    """Train a model by Adam for so many steps; return it in evaluation mode.

    sample: step, from 1 -> (arguments of the model's call, targets (B, T)) of the step's batch
    """
    model.train().set_num_updates(1000)  # methods that change over a training stay as after 1,000 updates
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=lr)
    for step in range(steps):
        inputs, target = sample(step + 1)
        scores = model(*inputs)[0].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(scores, target.flatten(), ignore_index=PAD)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def run(*command, check=True) -> subprocess.CompletedProcess:
    """Run a program of this environment in the folder ELSEWHERE; its stdout has the standard error at the end.

    The program runs in a fork of this process, which takes about 1 s and not 5 s.

    command: its name, or "-m" and a module, and its arguments; check: whether it must succeed
    """
    return _with_errors_in_stdout(fork([str(word) for word in command], ELSEWHERE.name), check)


def run_cold(*command, check=True) -> subprocess.CompletedProcess:
    """Run a program as `run` does, but as a new process that imports all itself, for tests of the start."""
    program = Path(sys.executable).parent / command[0]
    words = [str(word) for word in command[1:]]
    done = subprocess.run(
        [str(program), *words], cwd=ELSEWHERE.name, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
        capture_output=True, stdin=subprocess.DEVNULL, timeout=600,
    )  # fmt: skip
    return _with_errors_in_stdout(done, check)


def _with_errors_in_stdout(done: subprocess.CompletedProcess, check: bool) -> subprocess.CompletedProcess:
    """Append the standard error to stdout; check: whether the program must have succeeded."""
    done.stdout += done.stderr
    if check:
        assert done.returncode == 0, done.stdout[-3000:]
    return done


def output_of_module(package: Path, *words) -> str:
    """Return the output of `python -m WORDS` that imports a copy of the package; package: folder of the copy."""
    environment = os.environ | {"PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)], cwd=ROOT / "tests", env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def shown_in_results(mark: str) -> list[list[str]]:
    """Return the rows of a table in results/MARK/README.md, each a list of cells, without its header.

    The table is the one between the comments <!-- MARK --> and <!-- /MARK -->.
    """
    page = (ROOT / f"results/{mark}/README.md").read_text()
    table = page.split(f"<!-- {mark} -->\n")[1].split(f"<!-- /{mark}")[0]

    rows = []
    for line in table.splitlines()[2:]:  # behind the header and its rule
        cells = line.strip("|").split("|")
        rows.append([cell.strip() for cell in cells])
    return rows
