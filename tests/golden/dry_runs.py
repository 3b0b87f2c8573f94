"""Dry runs of every experiment script, as the bash engine printed them, one compressed file a case in dry_runs/.

A case is a script, its flags and its environment variables; its file holds what the script prints, with the folders of
the checkout and of the runs replaced by ROOT and OUT. tests/tools/test_dry_runs.py compares what `deepnet reproduce`
prints.

`python -m tests.golden.dry_runs [NAME...]` writes the missing files, or those of the named cases anew.
"""

from __future__ import annotations

import lzma
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

GOLDEN = Path(__file__).parent / "dry_runs"
ROOT = Path(__file__).parents[2]
OUT = "/tmp/deepnet_dry_run"  # named in every command, and never made
# scripts/NAME.sh
TABLES = (  # of whole tables and figures of papers, on the hardware that GPUS and GPU_MEMORY name
    "admin_iwslt14", "admin_wmt14", "admin_wmt14_en_fr", "figure3", "figure4", "figure5", "figure6", "figure7",
    "figure8", "iwslt14_de_en", "normformer_lm", "opus100", "table1_wmt17", "table2_opus100", "table3_m2m",
)  # fmt: skip
SMALL = ("later_methods", "inverted_gain")  # of experiments of this project's, on a CPU
# flags: a dry run prints the plan of a script's trainings, or their commands
PLAN = "--dry-run"
COMMANDS = "--dry-run=commands"
TEXT = {"TEXT": "train.txt valid.txt test.txt"}  # normformer_lm needs a text or SMOKE
ONE_ROW = {"METHODS": "deepnorm", "DEPTHS": "18", "GPUS": "8", "GPU_MEMORY": "80"}  # of Table 1
INHERITED = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "PYTHONPATH")  # variables of the environment


class Case(NamedTuple):
    """A dry run."""

    name: str  # of its file, without .xz
    script: str  # scripts/SCRIPT.sh
    flags: tuple[str, ...]  # behind the script, PLAN or COMMANDS first
    variables: dict[str, str]  # of its environment, beside those of INHERITED


def cases() -> list[Case]:
    """List every case: scripts on all hardware and by all launchers, miniatures, then further variables."""
    found = []
    for script in TABLES:
        found += _of_hardware(script)
        found += _of_launchers(script)
        found.append(Case(f"{script}-smoke", script, (COMMANDS,), {"SMOKE": "1", "JOBS": "1"}))
    for script in SMALL:
        found.append(Case(f"{script}-commands", script, (COMMANDS,), {}))
    return found + _of_variables_of_one_row() + _of_variables_of_scripts()


def _needed(script: str) -> dict[str, str]:
    """Return the variables without which a script refuses to run in full."""
    return TEXT if script == "normformer_lm" else {}


def _of_hardware(script: str) -> list[Case]:
    """List the plan and the commands of a script, on 1 and on 8 GPUs, of 24 and of 80 GB."""
    found = []
    for gpus in (1, 8):
        for gigabytes in (24, 80):
            variables = {"GPUS": str(gpus), "GPU_MEMORY": str(gigabytes)} | _needed(script)
            name = f"{script}-{gpus}x{gigabytes}"
            found.append(Case(f"{name}-plan", script, (PLAN,), variables))
            found.append(Case(f"{name}-commands", script, (COMMANDS,), variables))
    return found


def _of_launchers(script: str) -> list[Case]:
    """List the commands of a script for torchrun, for SLURM, and for SLURM on two nodes, without a plan (PLAN=0)."""
    launchers = {  # name -> variables
        "torchrun": {"LAUNCH": "torchrun"},
        "slurm": {"LAUNCH": "slurm"},
        "two-nodes": {"LAUNCH": "slurm", "NODES": "2"},
    }
    common = {"GPUS": "1", "PLAN": "0"} | _needed(script)

    found = []
    for name, variables in launchers.items():
        found.append(Case(f"{script}-{name}", script, (COMMANDS,), common | variables))
    return found


def _of_variables_of_one_row() -> list[Case]:
    """List cases of Table 1's script with the variables that its help names, alone and together."""
    changes = [
        {"METHODS": "deepnorm pre_ln", "DEPTHS": "6 100"},
        {"SEEDS": "1 2 3"},
        {"MAX_TOKENS": "2048"},
        {"RECOMPUTE": "1"},
        {"RECOMPUTE": "0"},
        {"TFLOPS": "300"},
        {"PRECISION": "bf16"},
        {"PRECISION": "fp32"},
        {"AVERAGE": "5"},
        {"AVERAGE": "36-45"},
        {"AVERAGE": "1"},
        {"SHARE_EMBEDDINGS": "0"},
        {"STOP_STUCK": "500"},
        {"GENERATE": "--batch-size 16 --max-len-a 1.5"},
        {"JOBS": "1"},
        {"ORDER": "shallowest", "DEPTHS": "18 6", "METHODS": "deepnorm pre_ln"},
        {"ORDER": "given", "DEPTHS": "18 6", "METHODS": "deepnorm pre_ln"},
        {"PLAN": "0"},
        {"PLAN": "0", "DEPTHS": "100 200"},
        {"KEEP": "all"},
        {"LAUNCH": "slurm", "KEEP": "all", "STOP_STUCK": "500", "GENERATE": "--batch-size 16", "TFLOPS": "300"},
        {"LAUNCH": "slurm", "NODES": "2", "DEPTHS": "18 100"},
    ]
    found = []
    for variables in changes:
        words = [f"{key.lower()}-{value}" for key, value in variables.items()]
        name = re.sub(r"[^\w.-]", "_", "-".join(words))  # without characters that are odd in the name of a file
        found.append(Case(f"table1_wmt17-{name}", "table1_wmt17", (COMMANDS,), ONE_ROW | variables))
    return found


def _of_variables_of_scripts() -> list[Case]:
    """List cases for variables of other scripts, and for each form of flags behind a script."""
    runs = [  # script, variables, flags; the place in this list is in the name of the file, so new ones go to the end
        ("table1_wmt17", ONE_ROW, ("--lr", "1e-3", "--clip-norm=0.5")),
        ("table1_wmt17", ONE_ROW, ("--encoder-learned-pos", "--decoder-learned-pos")),
        ("iwslt14_de_en", {"METHODS": "admin rezero", "DEPTHS": "10"}, ()),
        ("admin_iwslt14", {"WARMUP": "1", "METHODS": "admin", "SEEDS": "1111"}, ()),
        ("admin_iwslt14", {"WARMUP": "0"}, ()),
        ("admin_wmt14", {"RECIPE": "deepnmt"}, ()),
        ("admin_wmt14", {"METHODS": "admin", "DEPTHS": "18 60"}, ()),
        ("admin_wmt14_en_fr", {"RECIPE": "deepnmt"}, ()),
        ("admin_wmt14_en_fr", {"METHODS": "admin", "DEPTHS": "12-12 12-60"}, ()),
        ("figure5", {"UPDATE": "4", "DEPTHS": "6 50 100"}, ()),
        ("figure3", {"DEPTHS": "6 12"}, ()),
        ("opus100", {"DEPTHS": "12 1000", "METHODS": "deepnorm post_ln"}, ()),
        ("table3_m2m", {"PAIRS": "de-en fr-en"}, ()),
        ("normformer_lm", TEXT | {"PARTS": "ablation mlm", "SEEDS": "1 2"}, ()),
        ("normformer_lm", TEXT | {"SIZES": "125m 355m", "PARTS": "clm", "LRS": "1e-3 3e-3"}, ()),
        ("normformer_lm", TEXT | {"PARTS": "clm", "SIZES": "125m", "METHODS": "normformer+scale_residual"}, ()),
        ("later_methods", {"METHODS": "pre_ln normformer+normformer-head-scale=none", "UPDATES": "20"}, ()),
        ("inverted_gain", {"SEEDS": "1", "UPDATES": "40"}, ()),
    ]
    found = []
    for number, (script, variables, flags) in enumerate(runs, start=1):
        found.append(Case(f"{script}-variables{number}", script, (COMMANDS, *flags), {"GPUS": "1"} | variables))
    return found


def printed(case: Case) -> str:
    """Run a case; return its output, errors and status in one text, the same on every machine and in every folder."""
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment |= {"OUT": OUT, "OMP_NUM_THREADS": "1"} | case.variables
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["bash", ROOT / "scripts" / f"{case.script}.sh", *case.flags],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    text = f"{done.stdout}\n-- errors\n{done.stderr}\n-- status {done.returncode}\n"
    return text.replace(folder, "FOLDER").replace(str(ROOT), "ROOT").replace(OUT, "OUT")


def file_of(case: Case) -> Path:
    """Return the compressed file with what the case printed."""
    return GOLDEN / f"{case.name}.xz"


def golden(case: Case) -> str:
    """Return what the case printed when its file was written."""
    return lzma.decompress(file_of(case).read_bytes()).decode()


def main() -> None:
    """Write the files of the cases named on the command line, or all that are missing."""
    named = sys.argv[1:]
    GOLDEN.mkdir(exist_ok=True)
    for case in cases():
        wanted = case.name in named if named else not file_of(case).exists()
        if wanted:
            text = printed(case)
            file_of(case).write_bytes(lzma.compress(text.encode(), preset=9))
            print(case.name, len(text), text.splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
