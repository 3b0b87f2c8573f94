"""`deepnet quickstart`: one deep model by several methods on the embedded corpus, trained, translated with, compared.

Data, seed, budget and hyper-parameters are the same. A second call skips what is done and resumes what is not.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.metrics import BLEU

from .. import register
from ..core.methods import get_method
from ..data import language
from ..data.parallel_text import prepare_text
from ..errors import UserError
from ..files import whole
from ..study.figures import training_losses
from ..study.plots import draw
from ..study.runs import RecordedRun
from ..study.scoring.generated import read_generated
from ..text_table import render
from .environment import environment

PACKAGE = Path(__file__).resolve().parents[1]
SCRIPT = "scripts/quickstart.sh"  # of a clone: sets it up and runs the command
LOGGED = 25  # updates from a line of the log to the next
PAIR = ("qaa", "qab")
TRAINING = shlex.split(f"""
    --arch deepnet_transformer_18_18 --encoder-embed-dim 64 --encoder-ffn-embed-dim 128 --encoder-attention-heads 2
    --share-all-embeddings --dropout 0.0 --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --optimizer adam --adam-betas '(0.9, 0.98)'
    --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 200 --warmup-init-lr 1e-7 --max-tokens 1000
    --no-epoch-checkpoints --save-interval-updates 200 --keep-interval-updates 1
    --validate-interval 999 --validate-interval-updates 100 --max-tokens-valid 4000 --stop-stuck 300
    --num-workers 0 --log-format json --log-interval {LOGGED} --cpu""")
GENERATION = shlex.split("""
    --beam 4 --lenpen 0.6 --max-len-a 1.5 --max-len-b 10 --remove-bpe sentencepiece --max-tokens 6000 --cpu""")
PROGRESS = re.compile(r'\| train_inner \|.*"loss": "([\d.]+)".*"num_updates": "(\d+00)"')
ENDED = re.compile(r"error: ((diverged|stuck) at update \d+)")


@dataclass(frozen=True)
class Setting:
    """What is trained: N-N models of `depth` N, one a method, for so many updates. out: where all of it goes."""

    methods: tuple[str, ...]
    depth: int
    updates: int
    seed: int
    out: Path

    @property
    def data(self) -> Path:
        """Binarised."""
        return self.out / "data"

    def folder(self, method: str) -> Path:
        """Of a method's run."""
        return self.out / f"{self.depth}L-{self.depth}L-{self.updates}-updates-seed{self.seed}" / method


def compare(setting: Setting) -> str:
    """Does all that is not done yet, and gives the table of it; draws OUT/loss.png.

    UserError, before anything is written, for a setting that cannot be; later, naming the log, where a program fails.
    """
    for method in setting.methods:
        get_method(method)
    if setting.updates < LOGGED:
        raise UserError(f"--updates {setting.updates}: give at least {LOGGED}, the log has a line every {LOGGED}")
    if setting.depth < 1:
        raise UserError(f"--depth {setting.depth}: must be at least 1")
    make_data(setting)
    for method in setting.methods:
        train(setting, method)
        translate(setting, method)
    _say(f"result ({setting.depth}-{setting.depth}, seed {setting.seed})")
    return _result(setting)


def make_data(setting: Setting) -> None:
    """The embedded corpus, as text and binarised."""
    if (setting.data / f"dict.{PAIR[0]}.txt").exists():
        return
    _say("corpus: 20,000 sentence pairs of an artificial language")
    text = setting.out / "text"
    language.write_corpus(language.make_corpus(language.SIZES, nouns=60, verbs=30), text)
    register()
    prepare_text(PAIR, {split: str(text / split) for split in language.SIZES}, setting.data, vocab=1000)


def train(setting: Setting, method: str) -> None:
    """A run's training, to its end; one that diverges or is stuck has ended, too, and its folder says so."""
    run = setting.folder(method)
    if (run / "trained").exists():
        return
    _say(f"training {setting.depth}-{setting.depth} {method}, {setting.updates} updates")
    run.mkdir(parents=True, exist_ok=True)
    if not (run / "checkpoint_last.pt").exists():
        (run / "train.log").unlink(missing_ok=True)
    _describe(setting, method)
    layers, more = str(setting.depth), " ".join(get_method(method).train_flags).split()
    words = [*TRAINING, "--encoder-layers", layers, "--decoder-layers", layers, "--method", method, *more]
    words += ["--max-update", str(setting.updates), "--seed", str(setting.seed), "--save-dir", str(run)]
    if _follow(program("train", setting.data, words), run / "train.log", setting.updates):
        ended = ENDED.findall((run / "train.log").read_text(encoding="utf-8", errors="replace"))
        if not ended:
            raise _failed(f"training with {method}", run / "train.log")
        said, how = ended[-1]
        (run / how).write_text(f"{said}\n")  # a result; if diverged, what was saved last is translated and scored
    (run / "trained").touch()


def _describe(setting: Setting, method: str) -> None:
    """What a recorded run has beside its log."""
    run = setting.folder(method)
    if not (run / "environment.json").exists():
        (run / "environment.json").write_text(json.dumps(environment(0), indent=1) + "\n")
    layers = {"encoder_layers": setting.depth, "decoder_layers": setting.depth}
    facts = {"method": method} | layers | {"seed": setting.seed, "experiment": "quickstart"}
    (run / "run.json").write_text(json.dumps(facts) + "\n")
    program = SCRIPT if (PACKAGE.parent / SCRIPT).exists() else "deepnet quickstart"
    words = f"--methods {method} --depth {setting.depth} --updates {setting.updates} --seed {setting.seed}"
    (run / "command").write_text(f"{program} {words}\n")


def translate(setting: Setting, method: str) -> None:
    """The test set, to generated.txt; nothing where there is no checkpoint, or one that has learnt nothing."""
    run = setting.folder(method)
    checkpoint, generated, log = run / "checkpoint_last.pt", run / "generated.txt", run / "generate.log"
    if not checkpoint.exists() or (run / "stuck").exists() or generated.exists():
        return
    _say(f"translating the test set with {method}")
    command = program("generate", setting.data, ["--path", str(checkpoint), *GENERATION])
    with whole(generated) as part, open(part, "wb") as output, open(log, "wb") as errors:
        status = subprocess.run(
            command, stdout=output, stderr=errors, stdin=subprocess.DEVNULL, env=_threads()
        ).returncode
        if status:
            raise _failed(f"translating with {method}", log)


def program(name: str, data: Path, words: list[str]) -> list[str]:
    """One of fairseq's, of this interpreter, whatever is on the PATH."""
    return [sys.executable, "-m", f"fairseq_cli.{name}", str(data), "--user-dir", str(PACKAGE), *words]


def _threads() -> dict[str, str]:
    """The environment, with a thread a core unless it says how many."""
    return {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))} | os.environ


def _follow(command: list[str], log: Path, updates: int) -> int:
    """Runs it, what it prints behind what `log` has; of that a line a hundred updates, and errors, are shown.

    Gives its status. A signal that ends this process ends it first; on SIGTERM it saves what it has.
    """
    stopped: list[int] = []
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=_threads(),
        text=True, encoding="utf-8", errors="replace",
    )  # fmt: skip

    def stop(number: int, frame: object) -> None:
        stopped.append(number)
        if number == signal.SIGTERM:  # Ctrl-C reaches it by itself
            process.terminate()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with open(log, "a", encoding="utf-8", buffering=1) as file, process:
            for line in process.stdout or ():
                file.write(line)
                if found := PROGRESS.search(line):
                    print(f"   update {found[2]} of {updates}, loss {found[1]}", flush=True)
                elif "error: " in line or "Error: " in line:
                    print(f"   {line}", end="", flush=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped:
        sys.exit(128 + stopped[0])
    return process.returncode


def _failed(what: str, log: Path) -> UserError:
    last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    return UserError(f"{what} failed: {last[:300]}; whole log: {log}")


def _say(step: str) -> None:
    print(f"\n== {step}", flush=True)


def _result(setting: Setting) -> str:
    """Scores what was translated, draws the losses; a row a method, also in OUT/result.txt."""
    sentences = (setting.out / f"text/test.{PAIR[1]}").read_text(encoding="utf-8").split("\n")[:-1]
    metric = BLEU(force=True)
    folders = [setting.folder(method) for method in setting.methods]
    for folder in folders:  # one that diverged before its first checkpoint has nothing to score
        if (folder / "generated.txt").exists():
            found = metric.corpus_score(read_generated(folder / "generated.txt").translations, [sentences])
            score = {"bleu": round(found.score, 2), "kind": "sacrebleu", "signature": str(metric.get_signature())}
            (folder / "score.json").write_text(json.dumps(score) + "\n")
    every = [RecordedRun(folder) for folder in folders]
    runs = [run for run in every if run.parts.get("log", {}).get("train_inner")]  # others ended before the first row
    if runs:
        draw(training_losses(runs), setting.out / "loss.png")
    rows = [["method", "updates", "final loss", "BLEU", "train time"]]
    rows += [[run.name, "-", "- (diverged at once)", "-", "-"] for run in every if run not in runs]
    for run in runs:
        ended = "stuck" if run.stuck else "diverged" if run.ended_in_nan else ""
        loss = f"{run.log.final_loss():.2f}" + (f" ({ended})" if ended else "")
        bleu = f"{run.score['bleu']:.2f}" if run.score else "-"
        rows.append(
            [run.name, str(run.log.updates[-1]), loss, bleu, "-" if run.hours is None else f"{3600 * run.hours:.0f} s"]
        )
    signatures = {run.score["signature"] for run in runs if run.score}
    lines = [render(rows), "", " ".join([
        "loss: bits per token, label-smoothed, mean of the last intervals;", *signatures,
    ])]  # fmt: skip
    if any(run.stuck for run in runs):
        lines.append("stuck: stopped after 300 updates hardly better than guessing by how often each word occurs")
    table = "\n".join(lines) + "\n"
    (setting.out / "result.txt").write_text(table, encoding="utf-8")
    return f"{table}loss curves: {setting.out / 'loss.png'}"
