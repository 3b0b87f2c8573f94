"""`deepnet reproduce`, which reproduces a table or figure of a paper.

The scripts of tables and figures (scripts/table1_wmt17.sh and so on) call it with --variables: they take their settings
from environment variables, METHODS=deepnorm and so on, and all their arguments are flags of fairseq-train.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from . import parse_integers

if TYPE_CHECKING:
    from ..study.experiment import Experiment
    from ..tools.reproduce.commands import Setting
    from ..tools.reproduce.corpus import Corpus

# environment variable of the scripts -> flag of `deepnet reproduce` that gets its value
VARIABLES = {
    "METHODS": "--methods", "DEPTHS": "--depths", "SEEDS": "--seeds", "SEED": "--seeds", "OUT": "--out",
    "DATA": "--data", "GPUS": "--gpus", "NODES": "--nodes", "GPU_MEMORY": "--gpu-memory", "TFLOPS": "--tflops",
    "MAX_TOKENS": "--max-tokens", "PRECISION": "--precision", "AVERAGE": "--average", "LAUNCH": "--launch",
    "STOP_STUCK": "--stop-stuck", "GENERATE": "--generate", "JOBS": "--jobs", "ORDER": "--order", "KEEP": "--keep",
    "RECIPE": "--recipe", "PAIRS": "--pairs", "UPDATE": "--update", "SIZES": "--sizes", "LRS": "--lrs",
}  # fmt: skip
SWITCHES = {  # (variable of the scripts, value) -> flags of `deepnet reproduce`
    ("SMOKE", "1"): ["--smoke"], ("PLAN", "0"): ["--no-plan"], ("SHARE_EMBEDDINGS", "0"): ["--separate-embeddings"],
    ("RECOMPUTE", "1"): ["--recompute", "yes"], ("RECOMPUTE", "0"): ["--recompute", "no"],
    ("WARMUP", "1"): ["--variants", "warmup"], ("WARMUP", "0"): ["--variants", "no_warmup"],
    ("WARMUP", "1 0"): ["--variants", "warmup,no_warmup"], ("WARMUP", "0 1"): ["--variants", "no_warmup,warmup"],
}  # fmt: skip
FOR_JOBS = (  # flags that a job of SLURM gets as the user gave them
    "methods", "depths", "sizes", "lrs", "seeds", "variants", "recipe", "pairs", "gpu_memory", "tflops", "max_tokens",
    "recompute", "precision", "average", "separate_embeddings", "stop_stuck", "generate", "keep", "no_plan", "smoke",
    "update",
)  # fmt: skip
OF_SCRIPTS = ("--dry-run", "--dry-run=plan", "--dry-run=commands", "-h", "--help")  # arguments of a script's own
OF_BOTH = ("--max-tokens", "--stop-stuck", "--seed")  # flags of both `deepnet reproduce` and fairseq-train
# flag of `deepnet reproduce` that a script refuses -> what the script takes instead
REFUSED_BY_SCRIPTS = {flag: f"{variable}=..." for variable, flag in VARIABLES.items() if flag not in OF_BOTH} | {
    "--smoke": "SMOKE=1", "--no-plan": "PLAN=0", "--separate-embeddings": "SHARE_EMBEDDINGS=0",
    "--recompute": "RECOMPUTE=1", "--variants": "WARMUP=0", "--text": "TEXT=...",
}  # fmt: skip
DEFAULTS = {"SMOKE": "0", "PLAN": "1", "SHARE_EMBEDDINGS": "1"}  # values of switches that change nothing
LISTS = ("METHODS", "DEPTHS", "SEEDS", "PAIRS", "SIZES", "LRS")  # variables whose words are separated by blanks


def reproduce(args) -> None:
    """Train and score the rows of a paper's table or figure.

    Fetches the data, plans what fits into the GPUs, trains each row or goes on with one that was begun, translates,
    scores, and ends with the table beside the published numbers. A row that diverges or is stuck is a result. Flags of
    fairseq-train stand behind --, and override all others.

    example:
      deepnet reproduce table1 --methods deepnorm --depths 18 --gpus 8 --dry-run
      deepnet reproduce iwslt14_de_en --smoke --out runs-smoke -- --max-update 100
    """
    from ..study import experiments

    if args.list or args.name is None:
        for name in experiments.names():
            print(f"{name:28}{experiments.read_experiment(name)['title']}")
        return
    _run(args, _setting(args))


def _setting(args) -> Setting:
    """Return the experiment, machine, data and folders that the flags ask for; UserError for flags that contradict."""
    from ..study import experiments
    from ..tools.reproduce.commands import Setting
    from ..tools.reproduce.hardware import hardware

    experiment = experiments.read_experiment(args.name, args.recipe)
    for_cpu = experiment.get("machine") == "cpu"  # a small experiment
    experiment = experiments.with_choices(
        experiment,
        methods=parse_words("--methods", args.methods),
        depths=parse_words("--depths", args.depths),
        sizes=parse_words("--sizes", args.sizes),
        rates=parse_words("--lrs", args.lrs),
        seeds=None if args.seeds is None else parse_integers("--seeds", args.seeds, "1,2"),
        variants=parse_words("--variants", args.variants),
        average=args.average,
        stuck=args.stop_stuck,
        tokens=args.max_tokens,
        shared=not args.separate_embeddings,
        smoke=args.smoke and not for_cpu,
        order=args.order,
        update=args.update,
    )
    _check_needs(experiment, args)
    if for_cpu and args.launch != "spawn":
        raise UserError(f"--launch {args.launch}", f"{args.name} trains on this machine's CPU; leave it out")

    machine = hardware(
        papers_gpus=experiment["gpus"],
        gpus=args.gpus,
        nodes=args.nodes,
        launch=args.launch,
        precision=experiment.get("precision") or args.precision,
        jobs=args.jobs or (1 if for_cpu else None),
        memory=args.gpu_memory,
        small=args.smoke or for_cpu,
        only_printed=bool(args.dry_run),
    )
    experiment.check_rows(machine.world, args.row)

    default_out = "runs-smoke" if args.smoke or for_cpu else "runs"
    out = Path(args.out or default_out).absolute()
    return Setting(
        experiment=experiment,
        hardware=machine,
        corpus=_corpus(args, experiment, out),
        out=out,
        extra=[absolute_if_path(word) for word in args.behind],
        generation=shell_words("--generate", args.generate or ""),
        recompute={"yes": True, "no": False, None: None}[args.recompute],
        planned=not (args.no_plan or for_cpu),
        only=args.row,
    )


def _corpus(args, experiment: Experiment, out: Path) -> Corpus:
    """Return the data that --data names, or else those of the experiment in OUT/data, with the steps to make them.

    The answer depends on what is made already: called again after the steps, it knows languages and pieces.
    """
    from ..tools.reproduce.corpus import corpus

    data = None
    if args.data is not None:
        data = ":".join(str(Path(part).absolute()) for part in args.data.split(":"))
    return corpus(experiment, out, data=data, pairs=args.pairs, text=args.text or ())


def _check_needs(experiment: Experiment, args) -> None:
    """Raise a UserError for data, language pairs or precision that do not go with the experiment, or are missing.

    Also for an experiment whose methods are in a folder of the checkout, where the package is installed without one.
    """
    from ..tools.reproduce.corpus import MULTILINGUAL
    from ..tools.reproduce.run import PACKAGE_PARENT

    if args.data == "":
        raise UserError("--data", "names no folder")
    if args.pairs and experiment["corpus"] not in MULTILINGUAL:
        raise UserError("--pairs", f"{experiment.name} has one language pair, or none")
    precision = experiment.get("precision")
    if args.precision and precision and args.precision != precision:
        raise UserError(f"--precision {args.precision}", f"{experiment.name} is in {precision}; leave it out")

    needs = experiment.get("needs")  # "pairs", a folder of a checkout, or None
    if needs == "pairs":
        if not (args.pairs or args.data or args.smoke or args.dry_run):
            raise UserError(
                "--pairs", "name language pairs as de-en,fr-en, or --data with all of them: they fit no machine"
            )
    elif needs is not None and not (PACKAGE_PARENT / needs).is_dir():  # a checkout has it beside the package
        raise UserError(experiment.name, f"its methods are in {needs} of a checkout, and not installed; run it there")


def _run(args, setting: Setting) -> None:
    """Run an experiment: plan, make the data, train and score, report. With --launch slurm its jobs are submitted.

    With --dry-run only the plan is printed; with --dry-run commands, or where there is no plan, the commands.
    """
    from ..tools.reproduce import run

    if args.launch == "slurm":
        _submit(args, setting)
        return
    if setting.planned:
        setting, text = run.plan(setting, tokens=args.max_tokens, rate=args.tflops)
        if args.dry_run != "commands":
            print(f"== plan\n{text}", flush=True)
    run.warn_of_other_batches(setting)
    if args.dry_run == "commands" or (args.dry_run and not setting.planned):
        for command in run.all_commands(setting):
            print(shlex.join(command))
    if args.dry_run:
        return
    run.refuse_what_does_not_fit(setting)
    if setting.corpus.steps:
        run.prepare(setting.corpus.steps)
        # described again: only now that the data are made are their languages and pieces known
        made = _corpus(args, setting.experiment, setting.out)
        setting = replace(setting, corpus=made)
    run.Work(setting, keep=args.keep == "all").run()
    run.report(setting)


def _submit(args, setting: Setting) -> None:
    """Make the data and submit a job of SLURM for each row; with --dry-run print the commands and jobs instead."""
    from ..tools.reproduce import run, slurm

    flags = flags_for_job(args, setting.hardware.gpus, setting.out)
    command = ["deepnet", "reproduce", args.name, *flags, "--data", setting.corpus.data]
    if args.dry_run:
        for step in setting.corpus.steps:
            print(shlex.join(step.command))
        for row in setting.rows():
            print(f"sbatch <<'JOB'\n{slurm.job(setting, row, command)}JOB")
        return
    run.prepare(setting.corpus.steps)
    slurm.submit(setting, command)
    for end in setting.experiment["end"]:  # as "table 1" or "figures 4"
        kind, name = end.split()[:2]
        flag = "--table" if kind == "table" else "--figures"
        print(f"submitted; when the jobs are over: deepnet report {shlex.quote(str(setting.out))} {flag} {name}")


def flags_for_job(args, gpus: int, out: Path) -> list[str]:
    """Return the flags of `deepnet reproduce` that the job of each row gets: those of the user's command line.

    gpus, out: the number on each machine and the folder of runs that were decided on, since the user may have given
    neither.
    """
    flags = ["--out", str(out), "--gpus", str(gpus), "--nodes", str(args.nodes)]
    for name in FOR_JOBS:
        value = getattr(args, name)
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            flags.append(f"{flag}={value}")  # a value may begin with a hyphen
    return flags


def parse_words(flag: str, text: str | None) -> list[str] | None:
    """Split a flag's comma-separated list; None if the flag is not given. UserError, naming the flag, for no words."""
    if text is None:
        return None
    found = [word for word in text.split(",") if word]
    if not found:
        raise UserError(f"{flag} {text}", "names nothing")
    return found


def shell_words(flag: str, text: str) -> list[str]:
    """Split a text as a shell would; UserError, naming the flag, for quotes that do not end."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{flag} {text}", f"{str(error).lower()}") from error


def absolute_if_path(word: str) -> str:
    """Return a word that is the path of an existing file as an absolute path, because programs run in another folder.

    Any other word is returned as it is. A path has a slash, or ends in .pt.
    """
    is_path = not word.startswith("-") and (os.sep in word or word.endswith(".pt"))
    return str(Path(word).absolute()) if is_path and Path(word).exists() else word


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no whole number above 0")
    return int(text)


def above_zero(text: str) -> float:
    """Parse a number above 0. argparse shows this function's name for a text that is no number."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def flags_of_variables() -> list[str]:
    """Return the flags of `deepnet reproduce` that the scripts' environment variables stand for.

    UserError, naming the variable, for a value that a switch does not have.
    """
    flags = []
    for name, flag in VARIABLES.items():
        value = os.environ.get(name, "").strip()
        if not value or (name == "SEED" and os.environ.get("SEEDS")):
            continue
        if (name, value) == ("RECIPE", "clinic"):  # the scripts' name for the recipe that is used without the flag
            continue
        if name in LISTS:
            value = ",".join(value.split())
        flags.append(f"{flag}={value}")
    if os.environ.get("TEXT", "").strip():
        flags += ["--text", *shell_words("TEXT", os.environ["TEXT"])]
    for name in dict.fromkeys(variable for variable, _ in SWITCHES):  # each once
        value = os.environ.get(name, "")
        known = [known_value for variable, known_value in SWITCHES if variable == name]
        if value in known:
            flags += SWITCHES[name, value]
        elif value not in ("", DEFAULTS.get(name)):
            raise UserError(f"{name}={value}", f"choose {' or '.join(known)}")
    return flags


def add(command) -> None:
    """Register `deepnet reproduce` and its flags; command: as parser() gives it."""
    sub = command("reproduce", reproduce)
    sub.add_argument("name", nargs="?", metavar="NAME", help="as --list prints them: table1, figure6, ...")
    sub.add_argument("--list", action="store_true", help="print the experiments")
    sub.add_argument("--methods", metavar="M,M", help="as `deepnet methods` lists (default: the paper's)")
    sub.add_argument("--depths", metavar="N,N", help="layers, or ENCODER-DECODER (default: the paper's)")
    sub.add_argument("--sizes", metavar="S,S", help="of language models, as 125m,355m (default: the paper's)")
    sub.add_argument("--lrs", metavar="L,L", help="learning rates of language models, all of which are trained")
    sub.add_argument("--seeds", metavar="S,S", help="of the trainings (default: 1, or the authors')")
    sub.add_argument("--variants", metavar="V,V", help="of each row, where there are several (default: all)")
    sub.add_argument("--row", metavar="NAME", help="run this row alone, as the plan names it")
    sub.add_argument("--update", type=positive, metavar="N", help="that Figure 5 shows (default 5)")
    sub.add_argument("--recipe", metavar="NAME", help="another version of the experiment")
    sub.add_argument("--pairs", metavar="P,P", help="language pairs of a corpus of many, as de-en,fr-en")
    sub.add_argument("--out", metavar="DIR", help="folder of runs, reports and pictures (default: runs, runs-smoke)")
    sub.add_argument("--data", metavar="DIR", help="binarised data (default: the corpus's recipe makes them in OUT)")
    sub.add_argument("--text", nargs=3, metavar=("TRAIN", "VALID", "TEST"), help="lines for language models")
    sub.add_argument(
        "--gpus", type=positive, metavar="N", help="GPUs of each training on a machine (default: the paper's)"
    )
    sub.add_argument(
        "--nodes", type=positive, default=1, metavar="N", help="machines of each training, by SLURM (default 1)"
    )
    sub.add_argument(
        "--gpu-memory", type=above_zero, metavar="GIB", help="of each GPU (default: as nvidia-smi says, or 80)"
    )
    sub.add_argument("--tflops", type=above_zero, metavar="N", help="of each GPU, for the printed hours (default 100)")
    sub.add_argument("--max-tokens", type=positive, metavar="N", help="of a batch on a GPU (default: the plan's)")
    sub.add_argument("--recompute", choices=("yes", "no"), help="activations (default: the plan decides)")
    sub.add_argument("--precision", choices=("fp16", "bf16", "fp32"), help="default: fp16 on a GPU, fp32 on the CPU")
    sub.add_argument("--average", metavar="N", help="epochs averaged: 10 the last 10, or 36-45 (default: the paper's)")
    sub.add_argument("--separate-embeddings", action="store_true", help="of source, target and output; by default one")
    sub.add_argument("--launch", default="spawn", choices=("spawn", "torchrun", "slurm"), help="default: spawn")
    sub.add_argument("--stop-stuck", type=int, metavar="K", help="ends trainings that learn nothing for K updates")
    sub.add_argument("--generate", metavar="FLAGS", help="more flags of fairseq-generate, in quotes")
    sub.add_argument(
        "--jobs", type=positive, metavar="N", help="trainings at a time (default: as many as the machine takes)"
    )
    sub.add_argument("--order", choices=("deepest", "shallowest", "given"), help="of the rows (default: deepest first)")
    sub.add_argument("--keep", default="weights", choices=("weights", "all"), help="checkpoints of a scored run")
    sub.add_argument("--no-plan", action="store_true", help="the paper's batch, whatever fits")
    sub.add_argument("--smoke", action="store_true", help="a miniature on generated data, in minutes on two CPU cores")
    sub.add_argument(
        "--dry-run", nargs="?", const="plan", choices=("plan", "commands"), help="print the plan, or commands"
    )
    sub.add_argument("--variables", action="store_true", help="take the scripts' variables, METHODS=... and so on")


def split_command_line(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the words of `deepnet reproduce`, and flags of fairseq-train.

    argv: begins with "reproduce". Flags of fairseq-train stand behind a --. With --variables the command line is that
    of a script (["reproduce", NAME, "--variables", *arguments]), whose arguments are flags of fairseq-train without a
    --, but for OF_SCRIPTS, and whose environment variables become flags of `deepnet reproduce`.
    """
    if "--variables" in argv:
        own = [word for word in argv[2:] if word in OF_SCRIPTS]
        others = [word for word in argv[2:] if word not in (*OF_SCRIPTS, "--variables", "--")]
        for word in others:
            flag = word.split("=")[0]
            instead = REFUSED_BY_SCRIPTS.get(flag)
            if instead is not None:
                raise UserError(flag, f"a script takes variables ({instead}); or call deepnet reproduce {argv[1]}")
        return [*argv[:2], *flags_of_variables(), *own], split_values(others)
    if "--" in argv:
        place = argv.index("--")
        return argv[:place], split_values(argv[place + 1 :])
    return argv, []


def split_values(flags: list[str]) -> list[str]:
    """Return flags with each --name=value as two words, as the flags of experiments are."""
    found = []
    for word in flags:
        if word.startswith("--") and "=" in word:
            found += word.split("=", 1)
        else:
            found.append(word)
    return found
