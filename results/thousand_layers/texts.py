"""Cells of experiments A, B, C2 and D: fairseq-train on a text, then translations and BLEU of its test set."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

from cells import Cell, PlanError
from commands import Failed, Programs, relative

# What fairseq-train prints when it ends before its last update. Groups: diverged or stuck, and the update.
ENDED = re.compile(r"error: (diverged|stuck) at update (\d+)")
# Flags of fairseq-train for both texts. Dropout and clipping, which would hide how a method trains, are off.
TRAINING = """--user-dir deepnet_fairseq --arch deepnet_transformer --encoder-attention-heads 2 --encoder-embed-dim 64
    --share-all-embeddings --dropout 0.0 --clip-norm 0.0 --criterion label_smoothed_cross_entropy
    --optimizer deepnet_adam --adam-betas '(0.9, 0.98)' --num-workers 0 --log-format json --log-interval 25 --cpu
    --no-epoch-checkpoints --keep-interval-updates 1 --save-interval-updates 100 --max-tokens-valid 4000
    --validate-interval 999"""
# The two texts: "language", which deepnet_fairseq.data.language generates, and "mix", German-English text of several
# sources. Each has a tuple: (source and target language), flags of fairseq-train beside TRAINING, flags of
# fairseq-generate, subwords of the vocabulary.
TEXTS = {
    "language": (
        ("qaa", "qab"),
        "--encoder-ffn-embed-dim 128 --label-smoothing 0.1 --max-tokens 1000 --validate-interval-updates 200",
        "--beam 4 --lenpen 0.6 --max-len-a 1.5 --max-len-b 10 --remove-bpe sentencepiece --max-tokens 6000",
        1000,
    ),
    "mix": (
        ("de", "en"),
        "--encoder-ffn-embed-dim 256 --label-smoothing 0.0 --max-tokens 1024 --validate-interval-updates 500",
        "--beam 5 --max-len-a 1.5 --max-len-b 10 --remove-bpe sentencepiece --max-tokens 6000",
        4000,
    ),
}
DIVERGED, STUCK = 3, 4  # fairseq-train's statuses for trainings that are results, too
FALL = 0.3  # share of a held schedule's updates, at its end, in which the rate falls
SPLITS = ("train", "valid", "test")
# split of the mix -> the collections whose sentences it has, and how many of each: the first ones
HELD_OUT = {"valid": ("iwslt14", "multi30k", "tatoeba", "newstest2013"), "test": ("tatoeba",)}
HELD_OUT_SENTENCES = {"valid": 250, "test": 500}


def schedule_flags(cell: Cell) -> list[str]:
    """Return the flags of fairseq-train for the schedule of a cell's learning rate, which begins with a linear warm-up.

    With the schedule "held" the rate stays at its peak, and in the last updates falls exponentially to a hundredth of
    it, which is the default of fairseq's tri_stage. Otherwise a cell on the generated language has an inverse square
    root, one on the mix a linear fall to 0.
    """
    if cell.schedule == "held":
        fall = round(FALL * cell.updates)
        steps = {"warmup": cell.warmup, "hold": cell.updates - cell.warmup - fall, "decay": fall}
        flags = ["--lr-scheduler", "tri_stage"]
        for name, number in steps.items():
            flags += [f"--{name}-steps", str(number)]
        return flags

    warmup = ["--warmup-updates", str(cell.warmup)]
    if cell.task == "mix":
        linear = ["--lr-scheduler", "polynomial_decay", "--end-learning-rate", "0"]
        return [*linear, "--total-num-update", str(cell.updates), *warmup]
    return ["--lr-scheduler", "inverse_sqrt", "--warmup-init-lr", "1e-7", *warmup]


async def train_text(cell: Cell, run: Path, programs: Programs, work: Path) -> dict:
    """Train a cell by fairseq-train on one of the two texts; translate and score the test set.

    run: the cell's folder; programs: runs the commands; work: the folder of the texts and their binarised data. Returns
    the entries of the record: those of `curves`; "ended" (trained, diverged or stuck) and "ended_at", the update of
    that, None for trained; the "command"; and those of `translate`, unless the training was stuck or left no
    checkpoint. Raises Failed if a program ends with an error. After a kill a training resumes, and one that was over
    is not begun again.
    """
    from deepnet_fairseq.core.methods import METHODS

    pair, train_flags, generate_flags, _vocabulary = TEXTS[cell.task]
    data = make_data(cell.task, work)
    command = [
        sys.executable, "-m", "fairseq_cli.train", str(data), *shlex.split(TRAINING), *shlex.split(train_flags),
        "--encoder-layers", cell.layers, "--decoder-layers", cell.layers, "--method", cell.method,
        *shlex.split(" ".join(METHODS[cell.method].train_flags)), "--lr", f"{cell.lr:g}",
        *schedule_flags(cell), "--max-update", cell.updates, "--seed", cell.seed, "--save-dir", str(run),
    ]  # fmt: skip
    if cell.probes:
        command += ["--deepnet-probe", cell.probes, "--probe-interval", "100"]
    if cell.stop_stuck:
        command += ["--stop-stuck", cell.stop_stuck]

    # The file RUN/trained says that the training is over, and how: "stuck 600" or "diverged 600", with the update, or
    # "trained 0", in which the number says nothing.
    log = run / "train.log"
    mark = run / "trained"
    if not mark.exists():
        status = await programs.run(command, log)
        if status in (DIVERGED, STUCK):
            endings = ENDED.findall(log.read_text(encoding="utf-8", errors="replace"))
            word, update = endings[-1]
            mark.write_text(f"{word} {update}")
        elif status:
            raise Failed(f"{cell.name}: fairseq-train ended with {status}; whole log: {log}")
        else:
            mark.write_text("trained 0")
    ended, _, number = mark.read_text().partition(" ")
    ended_at = None if ended == "trained" else int(number)

    result = curves(log) | {"ended": ended, "ended_at": ended_at, "command": relative(command)}
    # a model that is stuck has learnt nothing to translate with; a training may diverge before it saves one
    if ended == "stuck" or not (run / "checkpoint_last.pt").exists():
        return result
    return result | await translate(cell, run, programs, data, pair, generate_flags)


async def translate(cell: Cell, run: Path, programs: Programs, data: Path, pair: tuple[str, str], flags: str) -> dict:
    """Translate the test set with the last checkpoint and score it; return "bleu" and "bleu_signature", sacreBLEU's.

    run: the cell's folder, which gets the translations; programs: runs fairseq-generate; data: folder of the binarised
    data, beside that of the text; pair: source and target language; flags: of fairseq-generate. Raises Failed if
    fairseq-generate ends with an error.
    """
    from sacrebleu.metrics import BLEU

    command = [
        sys.executable, "-m", "fairseq_cli.generate", str(data), "--user-dir", "deepnet_fairseq",
        "--path", str(run / "checkpoint_last.pt"), *shlex.split(flags), "--cpu",
    ]  # fmt: skip
    generated = run / "generated.txt"
    log = run / "generate.log"
    status = await programs.run(command, log, generated)
    if status != 0:
        raise Failed(f"{cell.name}: fairseq-generate failed; whole log: {log}")

    # fairseq-generate prints "H-<number of the sentence>\t<score>\t<translation>", in the order of its batches
    printed = generated.read_text(encoding="utf-8")
    translations = dict(re.findall(r"^H-(\d+)\t[^\t]*\t(.*)$", printed, re.MULTILINE))  # by number, as a text
    references = (data.parent / "text" / f"test.{pair[1]}").read_text(encoding="utf-8").split("\n")[:-1]
    hypotheses = [translations[str(number)] for number in range(len(references))]
    # the mix is tokenised already: 13a, sacreBLEU's usual tokenisation, would cut it again
    metric = BLEU(force=True, tokenize="none" if cell.task == "mix" else "13a")
    score = metric.corpus_score(hypotheses, [references])
    return {"bleu": round(score.score, 2), "bleu_signature": str(metric.get_signature())}


def curves(log: Path) -> dict:
    """Read the losses in fairseq-train's log, in bits per token and without label smoothing.

    Returns "train_loss" and "valid_loss", lists of pairs (update, loss), and "final_loss", the last of the validation,
    None if there was none. The log may hold several attempts, of which a resumed one repeats updates: the last line on
    each update counts.
    """
    train: dict[int, float] = {}
    valid: dict[int, float] = {}
    # lines "TIME | INFO | train_inner | {JSON}" of training, and "... | valid | {JSON}" of validations
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if "| train_inner |" in line:
            row = json.loads(line.split("| train_inner |", 1)[1])
            train[int(row["num_updates"])] = float(row["nll_loss"])
        if "| valid |" in line:
            row = json.loads(line.split("| valid |", 1)[1])
            valid[int(row["valid_num_updates"])] = float(row["valid_nll_loss"])
    final = list(valid.values())[-1] if valid else None
    return {"final_loss": final, "train_loss": list(train.items()), "valid_loss": list(valid.items())}


def make_data(task: str, work: Path) -> Path:
    """Write and binarise a text, unless that is done; return the folder of its binarised data, WORK/data/TASK/bin.

    task: a key of TEXTS. The generated language is written here; the mix is selected from WORK/text, where somebody
    must have unpacked it. A PlanError says that it is not there.
    """
    pair, _flags, _generation, vocabulary = TEXTS[task]
    folder = work / "data" / task
    if (folder / "bin" / f"dict.{pair[0]}.txt").exists():
        return folder / "bin"

    from deepnet_fairseq import register
    from deepnet_fairseq.data import language
    from deepnet_fairseq.data.parallel_text import prepare_text

    text = folder / "text"
    text.mkdir(parents=True, exist_ok=True)
    if task == "language":  # the same sentences as the quickstart's
        language.write_corpus(language.make_corpus(language.SIZES, nouns=60, verbs=30), text)
    else:
        select_mix(work / "text", text, pair)
    register()
    prepare_text(pair, {split: str(text / split) for split in SPLITS}, folder / "bin", vocab=vocabulary)
    return folder / "bin"


def select_mix(source: Path, text: Path, pair: tuple[str, str]) -> None:
    """Write train, valid and test of the mix: train as it is, the others of the collections that HELD_OUT names.

    Of each collection of a split the first sentences are taken, as many as HELD_OUT_SENTENCES says. source: folder of
    the unpacked mix, with train.LANG and SPLIT.COLLECTION.LANG; text: the folder that gets SPLIT.LANG; pair: the two
    languages. PlanError if the training text is missing.
    """
    for lang in pair:
        if not (source / f"train.{lang}").exists():
            raise PlanError(f"{source}/train.{lang}: no such file; unpack mix.de-en there, or link it")
        (text / f"train.{lang}").write_bytes((source / f"train.{lang}").read_bytes())
        for split, names in HELD_OUT.items():
            lines = []
            for name in names:
                sentences = (source / f"{split}.{name}.{lang}").read_text(encoding="utf-8").split("\n")
                lines += sentences[: HELD_OUT_SENTENCES[split]]
            (text / f"{split}.{lang}").write_text("\n".join(lines) + "\n", encoding="utf-8")
