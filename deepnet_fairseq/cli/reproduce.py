"""`deepnet reproduce`, which reproduces a table or figure of a paper.

An experiment is all trainings of such a table or figure, its rows; study/experiments.py reads it from a file. A
miniature (--smoke) is the experiment with small models on generated data. The command is a function of the parsed
flags, `args`; args.behind are the flags of fairseq-train that stand behind -- on the command line. A plan chooses the
size of micro-batches and whether activations are recomputed, so that a row fits into the GPUs' memory.

The scripts of tables and figures (scripts/table1_wmt17.sh and so on) call it with --variables: they take their settings
from environment variables, METHODS=deepnorm and so on, and all their arguments are flags of fairseq-train.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
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
SINGULARS = ("METHOD", "DEPTH", "PAIR", "SIZE", "LR", "GPU", "NODE", "JOB")  # mistaken for those with an S


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
    """Return the experiment, machine, data and folders that the flags ask for.

    Raises a UserError for flags that contradict each other or the experiment.
    """
    from ..study import experiments
    from ..tools.reproduce.commands import Setting
    from ..tools.reproduce.hardware import hardware

    experiment = experiments.read_experiment(args.name, args.recipe)
    for_cpu = experiment.get("machine") == "cpu"  # as small as a miniature: it needs no plan, and --smoke is ignored
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

    small = args.smoke or for_cpu
    machine = hardware(
        papers_gpus=experiment["gpus"],
        gpus=args.gpus,
        nodes=args.nodes,
        launch=args.launch,
        precision=experiment.get("precision") or args.precision,
        jobs=args.jobs or (1 if for_cpu else None),
        memory=args.gpu_memory,
        small=small,
        only_printed=bool(args.dry_run),
    )
    experiment.check_rows(machine.world, args.row)

    default_out = "runs-smoke" if small else "runs"
    out = Path(args.out or default_out).absolute()
    return Setting(
        experiment=experiment,
        hardware=machine,
        corpus=_corpus(args, experiment, out),
        out=out,
        extra=[absolute_if_path(word) for word in args.behind],
        generation=shell_words("--generate", args.generate or ""),
        recompute={"yes": True, "no": False, None: None}[args.recompute],  # activations; None: the plan decides
        planned=not (args.no_plan or for_cpu),
        only=args.row,
    )


def _corpus(args, experiment: Experiment, out: Path) -> Corpus:
    """Return the data that --data names, or else those of the experiment in OUT/data, with the steps to make them.

    out: OUT, the folder of all runs. The result depends on what has been made: called again after the steps are done,
    it has no steps, and knows the data's languages and vocabulary.
    """
    from ..tools.reproduce.corpus import corpus

    data = None
    if args.data is not None:  # a folder, or the folders of several shards with colons between
        data = args.data
        if "://" not in data:  # a URL is refused as it is
            data = ":".join(str(Path(folder).absolute()) for folder in data.split(":"))
    return corpus(experiment, out, data=data, pairs=args.pairs, text=args.text or ())


def _check_needs(experiment: Experiment, args) -> None:
    """Raise a UserError for --data, --pairs or --precision that do not go with the experiment, or are missing.

    Also for an experiment whose methods are in a folder of the checkout, if the package is installed without it.
    """
    from ..tools.reproduce.corpus import MULTILINGUAL
    from ..tools.reproduce.run import PACKAGE_PARENT

    if args.data == "":
        raise UserError("--data", "is empty; name a folder of binarised data, or leave it out")
    if args.pairs and experiment["corpus"] not in MULTILINGUAL:
        raise UserError(
            "--pairs", f"{experiment.name} is not multilingual, so there is nothing to choose; leave it out"
        )
    precision = experiment.get("precision")
    if args.precision and precision and args.precision != precision:
        raise UserError(
            f"--precision {args.precision}", f"{experiment.name} is trained in {precision} only; leave it out"
        )

    needs = experiment.get("needs")  # "pairs", a folder of a checkout, or None
    if needs == "pairs":
        if not (args.pairs or args.data or args.smoke or args.dry_run):
            raise UserError("--pairs", "name some, as de-en,fr-en, or give --data: all pairs together fit no machine")
    elif needs is not None and not (PACKAGE_PARENT / needs).is_dir():  # a checkout has it beside the package
        raise UserError(experiment.name, f"its methods are in {needs} of a checkout, and not installed; run it there")


def _run(args, setting: Setting) -> None:
    """Run an experiment: plan, make the data, train and score, report. With --launch slurm submit its jobs instead.

    With --dry-run only the plan is printed; with --dry-run commands, or if there is no plan, the commands. setting:
    what _setting returned for args.
    """
    from ..tools.reproduce import run

    run.check_flags(setting)
    if args.launch == "slurm":
        _submit(args, setting)
        return

    if setting.planned:
        setting, text = run.plan(setting, tokens=args.max_tokens, rate=args.tflops)
        if args.dry_run != "commands":
            print(f"== plan\n{text}", flush=True)
    run.warn_of_other_batches(setting)
    if not args.dry_run:
        run.warn_of_full_disk(setting)
    if args.dry_run == "commands" or (args.dry_run and not setting.planned):
        for line in run.shell_lines(setting):
            print(line)
    if args.dry_run:
        return

    run.refuse_what_does_not_fit(setting)
    if setting.corpus.steps:
        run.prepare(setting.corpus.steps)
        # described again, because languages and vocabulary are known only now that the data are made
        made = _corpus(args, setting.experiment, setting.out)
        setting = replace(setting, corpus=made)
    run.Work(setting, keep=args.keep == "all").run()
    run.report(setting)


def _submit(args, setting: Setting) -> None:
    """Make the data and submit a job of SLURM for each row; with --dry-run print the commands and jobs instead.

    A job calls `deepnet reproduce` for its row. setting: what _setting returned for args.
    """
    from ..tools.reproduce import run, slurm

    flags = flags_for_job(args, setting.hardware.gpus, setting.out)
    command = ["deepnet", "reproduce", args.name, *flags, "--data", setting.corpus.data]
    if args.dry_run:
        for step in setting.corpus.steps:
            print(shlex.join(step.command))
        for row in setting.rows():
            log = slurm.log_of(setting, row)
            print(shlex.join(["mkdir", "-p", str(log.parent)]))
            print(f"{shlex.join(slurm.sbatch(log))} <<'JOB'\n{slurm.job(setting, row, command)}JOB")
        return
    run.prepare(setting.corpus.steps)
    slurm.submit(setting, command)
    for end in setting.experiment["end"]:  # as "table 1" or "figure 10 if flores", see run.report
        what, _, needed = end.partition(" if ")
        kind, name = what.split()
        flag = "--table" if kind == "table" else "--figures"
        when = f"when they are over, if there is {needed}" if needed else "when they are over"
        print(f"all jobs are submitted; {when}, run: deepnet report {shlex.quote(str(setting.out))} {flag} {name}")


def flags_for_job(args, gpus: int, out: Path) -> list[str]:
    """Return the flags of `deepnet reproduce` for the job of a row.

    They are --out, --gpus and --nodes, and those of FOR_JOBS that the user gave. out: folder of runs; gpus: number of
    GPUs on each machine. Both were decided on, since the user may have given neither.
    """
    flags = ["--out", str(out), "--gpus", str(gpus), "--nodes", str(args.nodes)]
    for name in FOR_JOBS:
        value = getattr(args, name)
        flag = f"--{name.replace('_', '-')}"
        if value is True:  # a switch
            flags.append(flag)
        elif value is not None and value is not False:
            flags.append(f"{flag}={value}")  # as one word, because a value may begin with a hyphen
    return flags


def parse_words(flag: str, text: str | None) -> list[str] | None:
    """Split `text`, a flag's comma-separated list; None if that is None, because the flag is not given.

    UserError, naming the flag, for a list without words.
    """
    if text is None:
        return None
    found = [word for word in text.split(",") if word]
    if not found:
        raise UserError(f"{flag} {text}", "names nothing; give words with commas between, or leave it out")
    return found


def shell_words(flag: str, text: str) -> list[str]:
    """Split `text`, the value of a flag or variable, as a shell would; UserError, naming it, for unclosed quotes."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{flag} {text}", f"{str(error).lower()}") from error


def absolute_if_path(word: str) -> str:
    """Return a word of a command line as an absolute path if it is the path of an existing file, else as it is.

    It has to be absolute because the training runs in another folder. Only a word that has a slash or ends in .pt is
    taken for a path, since a file may happen to be named like the value of a flag.
    """
    looks_like_path = not word.startswith("-") and (os.sep in word or word.endswith(".pt"))
    if looks_like_path and Path(word).exists():
        return str(Path(word).absolute())
    return word


def positive(text: str) -> int:
    """Parse a whole number above 0, the value of a flag; argparse prints the error for anything else."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no whole number above 0")
    return int(text)


def above_zero(text: str) -> float:
    """Parse a finite number above 0, the value of a flag; argparse prints the error for anything else.

    For a text that is no number at all argparse prints this function's name: "invalid above_zero value".
    """
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def flags_of_variables() -> list[str]:
    """Return the flags of `deepnet reproduce` that the scripts' environment variables stand for.

    They are those of VARIABLES, TEXT (three files) and SWITCHES. UserError, naming the variable, for a value that a
    switch does not have. A variable of SINGULARS has no meaning, which is said on stderr: it is no mistake, since other
    programs may read it.
    """
    for name in SINGULARS:
        if os.environ.get(name) and not os.environ.get(f"{name}S"):
            print(f"deepnet: warning: {name} is not read, {name}S is", file=sys.stderr)

    flags = []
    for name, flag in VARIABLES.items():
        value = os.environ.get(name, "").strip()
        if not value or (name == "SEED" and os.environ.get("SEEDS")):  # SEED and SEEDS are one flag; SEEDS goes first
            continue
        if (name, value) == ("RECIPE", "clinic"):  # the scripts' name for the recipe that is used without the flag
            continue
        if name in LISTS:
            value = ",".join(value.split())
        flags.append(f"{flag}={value}")

    if os.environ.get("TEXT", "").strip():
        flags += ["--text", *shell_words("TEXT", os.environ["TEXT"])]

    switches = dict.fromkeys(variable for variable, _ in SWITCHES)  # names of variables, each once
    for name in switches:
        value = os.environ.get(name, "")
        known = [known_value for variable, known_value in SWITCHES if variable == name]
        if value in known:
            flags += SWITCHES[name, value]
        elif value not in ("", DEFAULTS.get(name)):
            raise UserError(f"{name}={value}", f"choose {' or '.join(known)}")
    return flags


def add(command) -> None:
    """Register `deepnet reproduce` and its flags.

    command: function (name, function) that makes a subcommand's parser and returns it, see __init__.
    """
    sub = command("reproduce", reproduce)

    # the experiment and its rows
    sub.add_argument(
        "name", nargs="?", metavar="NAME", help="name of an experiment, as --list prints it: table1, figure6, ..."
    )
    sub.add_argument("--list", action="store_true", help="print the names of the experiments, and what they reproduce")
    sub.add_argument(
        "--methods", metavar="M,M", help="names that `deepnet methods` lists (default: the paper's methods)"
    )
    sub.add_argument("--depths", metavar="N,N", help="depths to train, as 18,100 or 60-12 (default: the paper's)")
    sub.add_argument("--sizes", metavar="S,S", help="sizes of language models, as 125m,355m (default: the paper's)")
    sub.add_argument(
        "--lrs", metavar="L,L", help="learning rates, each of which trains each language model (default: the paper's)"
    )
    sub.add_argument("--seeds", metavar="S,S", help="random seeds, each of which trains every row (default: 1, or the "
                     "authors')")  # fmt: skip
    sub.add_argument(
        "--variants", metavar="V,V", help="warmup or no_warmup, where the experiment has both (default: both)"
    )
    sub.add_argument("--row", metavar="NAME", help="run only the row of this name, which --dry-run shows")
    sub.add_argument("--update", type=positive, metavar="N", help="number of updates for Figure 5 (default 5)")
    sub.add_argument(
        "--recipe", metavar="NAME", help="another version of the experiment, as deepnmt (default: the usual one)"
    )
    sub.add_argument("--pairs", metavar="P,P", help="language pairs of a multilingual corpus, as de-en,fr-en (default: "
                     "all, but table3 needs some)")  # fmt: skip

    # folders and data
    sub.add_argument("--out", metavar="DIR", help="folder for runs, reports and pictures (default: runs; "
                     "runs-smoke with --smoke, and for experiments for a CPU)")  # fmt: skip
    sub.add_argument(
        "--data", metavar="DIR", help="folder of binarised data (default: made in OUT/data by the corpus's recipe)"
    )
    sub.add_argument(
        "--text",
        nargs=3,
        metavar=("TRAIN", "VALID", "TEST"),
        help="plain text for language models, a file for each use",
    )

    # machines
    sub.add_argument(
        "--gpus",
        type=positive,
        metavar="N",
        help="GPUs of a training on each machine (default: as many as the paper, "
        "or as there are; a miniature takes the CPU)",
    )
    sub.add_argument(
        "--nodes",
        type=positive,
        default=1,
        metavar="N",
        help="machines of each training, with --launch slurm (default 1)",
    )
    sub.add_argument(
        "--gpu-memory",
        type=above_zero,
        metavar="GIB",
        help="memory of each GPU in GiB (default: as nvidia-smi says, or 80)",
    )
    sub.add_argument(
        "--tflops", type=above_zero, metavar="N", help="TFLOP/s that each GPU achieves, for the plan's hours (default: "
        "100; 0.03 on a CPU)"
    )  # fmt: skip

    # the training of a row
    sub.add_argument(
        "--max-tokens", type=positive, metavar="N", help="tokens of a batch on a GPU (default: the plan's)"
    )
    sub.add_argument(
        "--recompute", choices=("yes", "no"), help="whether to recompute activations (default: as the plan decides)"
    )
    sub.add_argument(
        "--precision",
        choices=("fp16", "bf16", "fp32"),
        help="number format of training (default: the experiment's, else fp16 on a GPU and fp32 on the CPU)",
    )
    sub.add_argument("--average", metavar="N", help="epochs whose checkpoints to average: 10 for the last ten, or "
                     "36-45 (default: the paper's)")  # fmt: skip
    sub.add_argument("--separate-embeddings", action="store_true", help="train separate embeddings of source, target "
                     "and output, where the experiment shares one")  # fmt: skip
    sub.add_argument(
        "--launch",
        default="spawn",
        choices=("spawn", "torchrun", "slurm"),
        help="what starts a training's processes: fairseq-train (spawn, the default), torchrun, or SLURM, a job a row",
    )
    sub.add_argument("--stop-stuck", type=int, metavar="K", help="end a training that for K updates is hardly better "
                     "than guessing by the words' frequencies; 0: never (default: by row, docs/experiments.md)"
    )  # fmt: skip

    # how all rows are run
    sub.add_argument("--generate", metavar="FLAGS", help="more flags of fairseq-generate, as one word in quotes")
    sub.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="number of trainings at a time (default: as many as the GPUs or cores take; 1 in experiments for a CPU)",
    )
    sub.add_argument("--order", choices=("deepest", "shallowest", "given"), help="which rows begin first; given: as "
                     "listed (default: the deepest)")  # fmt: skip
    sub.add_argument("--keep", default="weights", choices=("weights", "all"), help="checkpoints that stay of a "
                     "finished run: the last and averaged weights, or all (default: weights)")  # fmt: skip
    sub.add_argument(
        "--no-plan", action="store_true", help="train with the paper's batch without asking whether it fits into memory"
    )
    sub.add_argument(
        "--smoke", action="store_true", help="run a miniature on generated data, in minutes on two CPU cores"
    )
    sub.add_argument(
        "--dry-run",
        nargs="?",
        const="plan",
        choices=("plan", "commands"),
        help="train nothing, but print the plan, or the shell commands",
    )
    sub.add_argument(
        "--variables",
        action="store_true",
        help="read the scripts' environment variables, METHODS=... and so on, as flags",
    )


def split_command_line(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line into (words of `deepnet reproduce`, flags of fairseq-train).

    argv: begins with "reproduce"; flags of fairseq-train stand behind a --. Or it is the call of a script,
    ["reproduce", NAME, "--variables", *arguments]. The script's arguments are flags of fairseq-train, without a --
    before them, but for OF_SCRIPTS; its environment variables become flags of `deepnet reproduce`. UserError for a
    script's argument that is a flag of `deepnet reproduce`.
    """
    if "--variables" in argv:
        scripts_own = [word for word in argv[2:] if word in OF_SCRIPTS]
        flags_of_training = [word for word in argv[2:] if word not in (*OF_SCRIPTS, "--variables", "--")]
        for word in flags_of_training:
            flag = word.split("=")[0]
            instead = REFUSED_BY_SCRIPTS.get(flag)
            if instead is not None:
                raise UserError(flag, f"a script takes variables ({instead}); or call deepnet reproduce {argv[1]}")
        return [*argv[:2], *flags_of_variables(), *scripts_own], split_values(flags_of_training)

    if "--" in argv:
        place = argv.index("--")
        return argv[:place], split_values(argv[place + 1 :])
    return argv, []


def split_values(flags: list[str]) -> list[str]:
    """Return the flags with each --name=value split into two words.

    So are the flags of experiments, and code that looks for a flag in a command compares whole words.
    """
    words = []
    for word in flags:
        if word.startswith("--") and "=" in word:
            words += word.split("=", 1)
        else:
            words.append(word)
    return words
