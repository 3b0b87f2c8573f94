"""Run the rows of an experiment: plan them, print what would be run, or train and score them.

A row is one training of an experiment, a word one argument of a command. A miniature (the choice "smoke") is the
experiment with small models on generated data, to try it. A `place` is {name: value} of environment variables, which
give a row's programs their GPUs or limit their threads (Hardware.places). Admin's profile is what that method measures
on the first batch, before it trains (plugin/admin_profile.py).
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...errors import UserError
from ...files import whole
from ...study.experiment import Row
from ...study.run_folder import FILES, RunFolder, Stopped, last_line
from ...study.runner import Ended, Runner
from ...user_dir import import_user_dir
from ..environment import environment
from ..plan import rows as plan_rows
from ..plan.rows import GB
from ..plan.setting import GIB
from ..progress import Progress, Training
from .commands import Setting
from .corpus import Step
from .evaluation import Evaluation
from .words import differing_flag, last_value, whole_number

# folder that holds the package; programs run there, so that they find --user-dir deepnet_fairseq
PACKAGE_PARENT = Path(__file__).resolve().parents[3]
# seconds between two lines of progress, of a miniature and of other experiments
MINIATURE_INTERVAL = 10.0
INTERVAL = 60.0
LONGEST_ON_CPU = 720  # hours, a month: a row that takes longer was meant for GPUs


def plan(setting: Setting, tokens: int | None, rate: float | None) -> tuple[Setting, str]:
    """Choose batch and recomputation of each row; return the setting with these flags, and the plan as a text.

    tokens: of a batch on a GPU, None to choose them; rate: TFLOP/s of each GPU, None to assume it.
    """
    rows = setting.rows()
    lines = [shlex.join(setting.planned_words(row, tokens)) for row in rows]
    planned = plan_rows.read_rows(lines, rate)
    chosen = {}  # name of a row -> words, as in Setting
    too_large = {}  # name of a row -> GiB
    hours = {row.name: row.hours for row in planned if not row.done}
    for row in planned:
        if row.fits or row.done:  # a row that is done needs no memory any more
            chosen[row.name] = row.flags.split()
        else:
            too_large[row.name] = row.least_memory / GIB  # bytes to GiB
    most, _in_the_end = plan_rows.disk_of_all(planned, setting.hardware.jobs)
    there_already = sum(row.disk_kept for row in planned if row.done)
    setting = replace(setting, chosen=chosen, too_large=too_large, hours=hours, disk=most - there_already)
    return setting, plan_rows.as_text(planned, rate, setting.hardware.jobs)


def check_flags(setting: Setting) -> None:
    """Raise a UserError if fairseq-train would refuse the user's flags, before hours are spent on making the data.

    The experiment's own flags are right; without flags of the user's nothing is checked. The user's are the same in all
    rows, so that the first row tells.
    """
    if not setting.extra:
        return

    # imported here because it imports fairseq, which takes seconds, and a dry run without such flags needs none of it
    from ... import register
    from ...plugin.trainer import check_training_flags

    words = setting.training(setting.rows()[0])
    folder = PACKAGE_PARENT / (last_value("--user-dir", words) or "deepnet_fairseq")
    register()
    import_user_dir(folder)
    check_training_flags([*words, "--user-dir", str(folder)], files_exist=False)


def shell_lines(setting: Setting) -> list[str]:
    """List every command of the experiment in order, as they are known before anything is run, as lines for a shell.

    They make the data, and then, row by row, measure Admin's profile, train, average checkpoints, evaluate and score.
    What `Work` writes beside that, the files by which `deepnet report` finds a row, is not among them.
    """
    lines = [shlex.join(["cd", str(PACKAGE_PARENT)])]
    for step in setting.corpus.steps:
        lines.append(shlex.join(step.command))

    for row in setting.rows():
        run = setting.folder(row)
        evaluations = setting.judge.evaluations(run) if row.scored else []
        folders = sorted({str(run), *(str(evaluation.result.parent) for evaluation in evaluations)})
        lines.append(shlex.join(["mkdir", "-p", *folders]))

        profile = setting.profile(row)
        if profile:
            lines.append(shlex.join(profile))
        lines.append(shlex.join([*setting.launcher(only_printed=True), *setting.training(row)]))
        if not row.scored:
            continue

        average = setting.average(row)
        if average:
            lines.append(shlex.join(average))
        for evaluation in evaluations:
            # as Work directs them: see Evaluation.all_printed
            errors = "2>&1" if evaluation.all_printed else f"2> {shlex.quote(str(evaluation.log))}"
            lines.append(f"{shlex.join(evaluation.command)} > {shlex.quote(str(evaluation.result))} {errors}")
        score_file = run / FILES["score"]
        lines.append(f"{shlex.join(setting.judge.score(run))} > {shlex.quote(str(score_file))}")
    return lines


def refuse_what_does_not_fit(setting: Setting) -> None:
    """Raise a UserError if the plan found no way to train a row in a GPU's memory, or in a month on the CPU.

    It names the first such row, and the memory of a GPU that would do, or the hours.
    """
    for name, needed in setting.too_large.items():  # GiB
        has = f"{name} does not fit into {setting.hardware.memory:g} GiB"
        would = f"it takes GPUs of {math.ceil(needed)} GiB, or perhaps more of them (--gpus), which share the optimiser"
        raise UserError("--gpu-memory", f"{has}; {would}; leave it out, or try --no-plan")

    if setting.hardware.gpus:
        return
    for name, hours in setting.hours.items():
        if hours > LONGEST_ON_CPU:
            problem = f"this machine has none, and {name} takes some {hours:,.0f} hours on its CPU"
            raise UserError("--gpus", f"{problem}; try --smoke, or --no-plan to train it here all the same")


def warn_of_full_disk(setting: Setting) -> None:
    """Warn on stderr if the files of the rows take more of the disk, by the plan, than is free.

    It is no reason to refuse: checkpoints of an earlier attempt may be among what fills the disk.
    """
    folder = setting.out
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if setting.disk > free:
        needs = f"the plan takes up to {setting.disk / GB:,.0f} GB of disk, and {free / GB:,.0f} GB are free"
        print(f"deepnet: warning: {setting.out}: {needs}; make room, or take another --out", file=sys.stderr)


def warn_of_other_batches(setting: Setting) -> None:
    """Warn on stderr of each row whose updates do not have as many tokens as the paper's, because of the user's flags.

    Nothing is said of a miniature, whose updates never have as many.
    """
    if setting.experiment.choice.smoke:
        return
    for row in setting.rows():
        facts = setting.facts(row)
        update_tokens = facts["batch_tokens"]
        papers = facts.get("paper_batch_tokens")
        if papers is not None and update_tokens != papers:
            differs = f"an update has {update_tokens:,} tokens, the paper's {papers:,}"
            print(f"deepnet: warning: {row.name}: {differs}; the report says so", file=sys.stderr)


def prepare(steps: Sequence[Step]) -> None:
    """Run the steps that make the data, and note beside each folder how it was made; UserError if a step fails."""
    for step in steps:
        print(f"\n== {shlex.join(step.command[:4])}", flush=True)
        done = subprocess.run(step.command, env=os.environ | environments_path())
        if done.returncode:
            raise UserError(shlex.join(step.command), "failed; its message stands above")
        step.write_note()


def environments_path() -> dict[str, str]:
    """Return {"PATH": ...} by which the programs of this Python environment are found first, activated or not."""
    own_programs = Path(sys.executable).parent
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": f"{own_programs}{os.pathsep}{path}"}


class Work:
    """Trains and scores the rows of an experiment, each as far as this is still to be done.

    keep: whether all checkpoints of a finished run are kept. In all methods `run` is the folder of a row's training,
    and `place` the environment variables of its programs (see the top of this file).
    """

    def __init__(self, setting: Setting, keep: bool = False):
        self.setting = setting
        self.keep = keep
        self.rows = setting.rows()
        self.shown: str | None = None  # the last line of progress that was printed
        hardware = setting.hardware
        interval = MINIATURE_INTERVAL if setting.experiment.choice.smoke else INTERVAL
        self.progress = Progress(self._trainings(), hardware.jobs, over=self._is_over)
        self.runner = Runner(hardware.jobs, places=hardware.places, show=self.show, seconds=interval)

    def _trainings(self) -> dict[str, Training]:
        """Return name of a row -> its training, for the line of progress."""
        trainings = {}
        for row in self.rows:
            max_update = last_value("--max-update", self.setting.training(row))
            updates = whole_number(max_update)  # 0 for a training that ends by another flag
            log = RunFolder(self.setting.folder(row)).log
            trainings[row.name] = Training(row.name, log, layers=row.layers, updates=updates or None)
        return trainings

    def _is_over(self, name: str) -> bool:
        """Return whether the training of a row has ended; name: the row's."""
        return RunFolder(self.setting.out / self.setting.experiment.folder / name).is_over

    def show(self) -> None:
        """Print a line of progress, unless it is the last one that was printed."""
        line = self.progress.line()
        if line is not None and line != self.shown:
            print(f"   {line}", flush=True)
        self.shown = line

    def run(self) -> None:
        """Train and score all rows, as many at a time as the hardware allows.

        Before anything is run, raise a UserError if a row was begun with other flags of fairseq-train.
        """
        for row in self.rows:
            self._check_flags(row)
        cells: list[Callable[[Mapping[str, str]], Awaitable[None]]] = []  # functions of the place, for the Runner
        for row in self.rows:
            cells.append(partial(self._train_and_score, row))
        try:
            self.runner.run(cells)
        except Stopped as stopped:  # by a signal; the line says where
            print(f"   {stopped.line}", file=sys.stderr)
            raise

    def _check_flags(self, row: Row) -> None:
        """Raise a UserError if the row's training goes on from other flags than it has now."""
        run = RunFolder(self.setting.folder(row))
        command = run.command
        if command is None or not run.has_progress:  # it begins now
            return
        before = shlex.split(command)[1:]  # without fairseq-train
        differs = differing_flag(before, self.setting.training(row))
        if differs:
            problem = f"was trained with another {differs} (its file command)"
            raise UserError(run.path, f"{problem}; remove it, take another --out, or give what it had")

    async def _train_and_score(self, row: Row, place: Mapping[str, str]) -> None:
        """Train and score a row, as far as this is still to be done, and remove the files that are no longer needed."""
        run = RunFolder(self.setting.folder(row))
        with run.locked() as has_lock:
            if not has_lock:
                raise UserError(run.path, "another process works on it; wait for its end, or take another --out")

            to_train = not run.is_over
            if to_train:
                self.progress.begin(row.name)
                await self._train(row, run, place)

            has_model = run.failed is None and run.last_checkpoint.exists()
            has_score = (run / FILES["score"]).exists()
            if row.scored and has_model and not has_score:
                await self._score(row, run, place)
            await self._remove_and_measure(run, place)
            if to_train:
                self.progress.end(row.name)

    async def _train(self, row: Row, run: RunFolder, place: Mapping[str, str]) -> None:
        """Train a row, or go on with its training, and mark the folder as over.

        Admin's profile is measured before, if the row's method needs one. UserError if a program failed. A training
        that diverges or is stuck has not failed: its line is printed.
        """
        setting = self.setting
        run.begin(
            facts=setting.facts(row),
            command=shlex.join(["fairseq-train", *setting.training(row)]),
            environment=environment(setting.hardware.gpus * setting.hardware.nodes),
        )
        profile = setting.profile(row)
        if profile and not (run / "profile.json").exists():
            print(f"   profiling {run.path}", flush=True)
            ended = await self._program(profile, run / "profile.log", place)
            self._check_status(ended, f"profiling {run.path}", run / "profile.log")

        print(f"   training {run.path} (log: {run.log})", flush=True)
        begun_at = run.size_of_log()  # behind what earlier attempts have printed
        command = [*setting.launcher(), *setting.training(row)]
        ended = await self._program(command, run.log, place)
        run.end(ended.status, f"training {run.path}", begun_at)
        if run.failed:  # diverged or stuck
            print(f"   {run.path} {run.failed}", flush=True)

    async def _score(self, row: Row, run: RunFolder, place: Mapping[str, str]) -> None:
        """Average a row's checkpoints, evaluate the model on what is not evaluated yet, and write score.json."""
        await self._average(run, place)
        for evaluation in self.setting.judge.evaluations(run.path):
            if not evaluation.result.exists():
                await self._evaluate(evaluation, run, place)

        with whole(run / FILES["score"]) as part:
            command = self.setting.judge.score(run.path)
            ended = await self._program(command, run / "score.log", place, output=part)
            self._check_status(ended, f"scoring {run.path}", run / "score.log")

    async def _evaluate(self, evaluation: Evaluation, run: RunFolder, place: Mapping[str, str]) -> None:
        """Run an evaluation, and write its result whole or not at all."""
        what = f"{evaluation.doing} {run.path}"
        print(f"   {what}", flush=True)
        evaluation.result.parent.mkdir(exist_ok=True)
        if evaluation.all_printed:  # both streams go to the log, which becomes the result
            evaluation.log.unlink(missing_ok=True)  # of an attempt that failed
            ended = await self._program(evaluation.command, evaluation.log, place)
            self._check_status(ended, what, evaluation.log)
            os.replace(evaluation.log, evaluation.result)
            return
        with whole(evaluation.result) as part:
            ended = await self._program(evaluation.command, evaluation.log, place, output=part)
            self._check_status(ended, what, evaluation.log)

    async def _average(self, run: RunFolder, place: Mapping[str, str]) -> None:
        """Write averaged.pt: the mean of the weights of the wanted epochs, or of as many of them as exist.

        If there is only one, averaged.pt is a hard link to it; if there is none, to the last checkpoint. Nothing is
        written if the experiment averages no checkpoints.
        """
        wanted_number, epochs = self.setting.experiment.average  # number of checkpoints, and "last:10" or "36-45"
        out = run / "averaged.pt"
        if wanted_number == 1 or out.exists():
            return

        by_epoch = {int(file.stem.removeprefix("weights")): file for file in run.path.glob("weights[0-9]*.pt")}
        if epochs.startswith("last:"):
            wanted = sorted(by_epoch)[-wanted_number:]
        else:
            first, last = map(int, epochs.split("-"))
            wanted = [epoch for epoch in range(first, last + 1) if epoch in by_epoch]
        files = [by_epoch[epoch] for epoch in wanted]
        if len(files) > 1:
            await self._write_mean(files, out, run, place)
            return

        # a training that ended early
        if not files:
            print(f"   {run.path}: has no weights of epochs {epochs}; its last checkpoint translates", file=sys.stderr)
        else:
            print(f"   {run.path}: has the weights of one wanted epoch alone, which translate", file=sys.stderr)
        os.link(files[0] if files else run.last_checkpoint, out)

    async def _write_mean(self, files: Sequence[Path], out: Path, run: RunFolder, place: Mapping[str, str]) -> None:
        """Write the mean of checkpoint files to `out`, without the state that only training needs.

        Of a single file the mean is its own weights.
        """
        log = run / "average.log"
        command = ["deepnet", "average", *map(str, files), "--out", str(out)]
        ended = await self._program(command, log, place)
        self._check_status(ended, f"averaging {run.path}", log)
        log.unlink()

    async def _remove_and_measure(self, run: RunFolder, place: Mapping[str, str]) -> None:
        """Keep only the last weights and the averaged ones of a finished run, and write their size to the file disk.

        With `keep` all checkpoints stay. Nothing is done if the training is not over, if the file disk says that this
        has been done, or if there are no checkpoints.
        """
        if not run.is_over or (run / "disk").exists() or not list(run.path.glob("*.pt")):
            return
        if not self.keep:
            await self._remove_needless(run, place)

        # by inode, because averaged.pt may be a hard link to another file
        sizes = {file.stat().st_ino: file.stat().st_size for file in run.path.glob("*.pt")}
        total = sum(sizes.values())
        kept = f"checkpoints: {_with_prefix(total)}B kept"
        (run / "disk").write_text(f"{kept}\n")
        print(f"   {run.path} {kept}", flush=True)

    async def _remove_needless(self, run: RunFolder, place: Mapping[str, str]) -> None:
        """Remove the optimiser's state from the last checkpoint, and all other checkpoints but averaged.pt."""
        averaged = run / "averaged.pt"
        weights = run / "last_weights.pt"  # the last checkpoint without that state
        if run.last_checkpoint.exists():
            averaged_is_last = averaged.exists() and averaged.samefile(run.last_checkpoint)
            await self._write_mean([run.last_checkpoint], weights, run, place)
            if averaged_is_last:  # link it to the new file, or the old one would stay on the disk
                averaged.unlink()
                os.link(weights, averaged)
            os.replace(weights, run.last_checkpoint)

        # fairseq's checkpoints of updates and of epochs, and the weights of epochs that were averaged
        for pattern in ("checkpoint_[0-9]*.pt", "checkpoint[0-9]*.pt", "weights[0-9]*.pt"):
            for file in run.path.glob(pattern):
                file.unlink()
        for name in ("checkpoint_previous.pt", "checkpoint_best.pt"):
            (run / name).unlink(missing_ok=True)

    async def _program(
        self, command: list[str], log: Path, place: Mapping[str, str], output: Path | None = None
    ) -> Ended:
        """Run a program to its end.

        command: its words; log: file to which its standard error is appended; output: file for its standard output,
        None to append it to the log too.
        """
        variables = {**environments_path(), **place}
        return await self.runner.program(command, log=log, output=output, variables=variables, folder=PACKAGE_PARENT)

    def _check_status(self, ended: Ended, what: str, log: Path) -> None:
        """Raise a UserError with the last line of the log if a program failed; what: what it did, for the message."""
        if ended.status:
            said = last_line(log.read_text(encoding="utf-8", errors="replace"))
            raise UserError(f"{what} failed", f"{said}; whole log: {log}")


def _with_prefix(size: int) -> str:
    """Format bytes as "12K" or "1.3M", in steps of 1,000: with one decimal if the number is below 10, bytes without."""
    prefixes = ["", "K", "M", "G", "T"]  # the first one is that of the number
    number = float(size)
    while number >= 1000 and len(prefixes) > 1:
        number /= 1000
        prefixes.pop(0)
    prefix = prefixes[0]
    return f"{number:.1f}{prefix}" if prefix and number < 10 else f"{number:.0f}{prefix}"


def report(setting: Setting) -> None:
    """Print the tables, and draw the figures, that the experiment ends with.

    The experiment's key `end` lists them as "table NAME" or "figure NAME", some with " if NEEDED" behind it: the name
    of a test set that the data must have, or a pattern that the folder of at least one run must match.
    """
    runs = setting.out / setting.experiment.folder
    test_sets = setting.corpus.subsets(list(setting.experiment.get("subsets", ())))
    for end in setting.experiment["end"]:  # as "figure 10 if flores"
        kind_and_name, _, needed = end.partition(" if ")
        if needed and needed not in test_sets and not list(runs.glob(needed)):
            continue

        kind, name = kind_and_name.split()
        print(f"\n== {kind} {name}", flush=True)
        words = ["deepnet", "report", str(setting.out)]
        page = setting.out / f"{setting.experiment.folder}.md"
        if kind == "table":
            words += ["--table", name, "--out", str(page)]
        else:
            words += ["--figures", name, "--out", str(setting.out)]
        done = subprocess.run(words, env=os.environ | environments_path())
        if done.returncode:
            raise UserError(shlex.join(words), "failed; its message stands above")
        if kind == "table":
            print(page.read_text(encoding="utf-8"))
