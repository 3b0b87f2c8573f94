"""Speed of one checkpoint as it is deployed: each program translates the same test set, in a process of its own.

Stock fairseq-generate reads the folded model (a plain Transformer whose weights contain the method's factors), ours the
model as it is, CTranslate2 and transformers read what `deepnet export` makes of it. All get the same sentences in the
same batches. A candidate is a program by its name in PROGRAMS; translate.py runs one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fairseq.data.data_utils import numpy_seed, post_process
from fairseq.data.indexed_dataset import make_builder
from fairseq.tasks.translation import TranslationConfig, TranslationTask

import deepnet_fairseq
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.building import from_checkpoint
from deepnet_fairseq.study.scoring.generated import Generated, generation_speed, read_generated
from deepnet_fairseq.study.scoring.words import bleu_metric

from .timing import STOCK, Cell, Column, table, take_turns

DEFAULT_TOKENS = 12_000  # of a batch of fairseq-generate
# kind of batches, as --batches names it -> arguments of fairseq's batch_by_size
BATCHES = {"default": {"max_tokens": DEFAULT_TOKENS}, "32": {"max_sentences": 32}, "1": {"max_sentences": 1}}
COLUMNS = [
    Column("tokens/s", ""), Column("BLEU", ""), Column("peak memory", "B"), Column("start to end"),
    Column("on disk", "B"),
]  # fmt: skip
# values of fields that TranslationTask takes from other sections of a run's config, for a config without these
TASK_FIELDS: dict[str, Any] = {"dataset_impl": None, "required_seq_len_multiple": 1, "train_subset": ""}


class Program(NamedTuple):
    """A program that translates."""

    command: tuple[str, ...]  # words behind `deepnet`, which write its model; {checkpoint}, {data}: those of the user
    name: str  # of its function in translate.py
    flags: tuple[str, ...] = ()  # further flags of fairseq-generate
    type: str = ""  # of CTranslate2's numbers, "float32" or "int8"; "" for another program


EXPORT = ("export", "{checkpoint}", "--data", "{data}", "--to")
OURS = ("--user-dir", str(Path(deepnet_fairseq.__file__).parent))
PROGRAMS = {
    STOCK: Program(("export", "{checkpoint}", "--to", "transformer"), "fairseq_generate"),
    # the average of a single checkpoint is its model, without the optimiser's state
    "ours": Program(("average", "{checkpoint}"), "fairseq_generate", OURS),
    "ctranslate2": Program((*EXPORT, "ctranslate2"), "ctranslate2", type="float32"),
    "ctranslate2-int8": Program((*EXPORT, "ctranslate2", "--quantization", "int8"), "ctranslate2", type="int8"),
    "transformers": Program((*EXPORT, "huggingface"), "transformers"),
}


def deployed(args: argparse.Namespace) -> None:
    """Print a table of the candidates' speeds with each kind of batch.

    args: the flags of `python -m benchmarks deployed`. UserError for an unknown candidate or kind of batch, and for a
    checkpoint of another task.
    """
    for flag, names, known in (("--candidates", args.candidates, PROGRAMS), ("--batches", args.batches, BATCHES)):
        unknown = [name for name in names.split(",") if name not in known]
        if unknown:
            raise UserError(f"{flag} {','.join(unknown)}: unknown; choose of {', '.join(known)}")

    _model, cfg = from_checkpoint(args.checkpoint)
    if cfg.task._name != "translation":
        raise UserError(f"{args.checkpoint}: is of --task {cfg.task._name}; this benchmark is for --task translation")
    task = task_on(args.data, (cfg.task.source_lang, cfg.task.target_lang), args.subset)
    languages = (task.cfg.source_lang, task.cfg.target_lang)  # by the data where the checkpoint does not say

    cells: list[Cell] = []
    with tempfile.TemporaryDirectory(prefix="deepnet-deployed-") as folder:
        work = Path(folder)
        models = {name: exported(name, args, work) for name in args.candidates.split(",")}
        for kind in args.batches.split(","):
            test_set = TestSet(args, languages, kind, work)
            cells_of_kind = {}  # by candidate
            runs = {}
            for name, (facts, reason) in models.items():
                # a cell with a reason, the error of a failed export, takes no turn
                cells_of_kind[name] = Cell(name, (kind,), facts=facts, reason=reason)
                runs[name] = partial(test_set.translate, name)
            take_turns(cells_of_kind, runs, range(args.rounds))
            cells += cells_of_kind.values()
    print(table(["batches"], COLUMNS, cells))


def exported(name: str, args: argparse.Namespace, work: Path) -> tuple[dict[str, float], str]:
    """Write a program's model to `work` / `name`; return ({"on disk": its bytes}, "").

    Where that fails, return ({}, the last line of the error). These are `facts` and `reason` of the candidate's cells.
    name: of the candidate; args: the command's flags.
    """
    words = [word.format(checkpoint=args.checkpoint, data=args.data) for word in PROGRAMS[name].command]
    command = [sys.executable, "-m", "deepnet_fairseq", *words, "--out", str(work / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {}, last_line(done.stderr)
    files = [work / name, *(work / name).rglob("*")]  # the model is a file or a folder
    size = sum(file.stat().st_size for file in files if file.is_file())
    return {"on disk": size}, ""


def last_line(text: str) -> str:
    """Return the last line of what a program printed, "no message" if it printed nothing."""
    return (text.strip() or "no message").splitlines()[-1]


def task_on(data: str, languages: tuple[str | None, str | None], subset: str) -> TranslationTask:
    """Return fairseq's task on a folder of binarised data, with the dataset `subset` loaded.

    languages: source and target; None where the names of the files in the folder tell them.
    """
    cfg = TranslationConfig(data=data, source_lang=languages[0], target_lang=languages[1], **TASK_FIELDS)
    task = TranslationTask.setup_task(cfg)
    task.load_dataset(subset)
    return task


class TestSet:
    """The first sentences of a test set in batches of one kind, written in the form that each program reads.

    The sentences are binarised for fairseq-generate, and in batches.json for the other programs, see `listed`.
    """

    def __init__(self, args: argparse.Namespace, languages: tuple[str, str], kind: str, work: Path):
        """Write the files into a folder of their own in `work`, which has the models, too.

        args: the command's flags; languages: source and target; kind: of the batches, "default" for fairseq's or the
        number of sentences in each, as "1".
        """
        self.args = args
        self.work = work
        self.folder = work / f"batches-{kind}"
        self.folder.mkdir()
        # one sentence at a time is slow, so the flag --alone says how many are translated that way
        count = args.alone if kind == "1" else args.sentences
        task = self._write_data(languages, count)
        self.symbols = task.target_dictionary.symbols
        batches = listed(task, args.subset, BATCHES[kind])
        (self.folder / "batches.json").write_text(json.dumps(batches), encoding="utf-8")

        # flags of fairseq-generate
        self.flags = [str(self.folder), "--cpu", "--beam", str(args.beam), "--gen-subset", args.subset]
        self.flags += ["--source-lang", languages[0], "--target-lang", languages[1]]
        if kind != "default":
            self.flags += ["--batch-size", kind]
        self.flags += ["--required-batch-size-multiple", "1"]  # stock fairseq leaves out the last sentences otherwise

    def _write_data(self, languages: tuple[str, str], count: int) -> TranslationTask:
        """Write the first `count` sentences of --subset as binarised data into the folder; return the task on them."""
        subset = self.args.subset
        task = task_on(self.args.data, languages, subset)
        dataset = task.dataset(subset)
        sides = ((dataset.src, task.source_dictionary), (dataset.tgt, task.target_dictionary))
        for language, (side, dictionary) in zip(languages, sides, strict=True):
            prefix = self.folder / f"{subset}.{'-'.join(languages)}.{language}"
            builder = make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(dictionary))
            for index in range(min(count, len(side))):
                builder.add_item(side[index])
            builder.finalize(f"{prefix}.idx")
            dictionary.save(str(self.folder / f"dict.{language}.txt"))
        return task_on(str(self.folder), languages, subset)

    def translate(self, name: str, repeat: int) -> dict[str, float]:
        """Translate once in a process of its own; return the numbers of COLUMNS but "on disk", by their names.

        name: a key of PROGRAMS; repeat: the round, which changes nothing. RuntimeError if the program fails.
        """
        program = PROGRAMS[name]
        model = str(self.work / name)
        peak_file = self.folder / "peak"
        job = {  # see translate.py
            "program": program.name,
            "model": model,
            "batches": str(self.folder / "batches.json"),
            "beam": self.args.beam,
            "threads": self.args.threads,
            "symbols": self.symbols,
            "type": program.type,
            "flags": [*self.flags, "--path", model, *program.flags],
            "peak": str(peak_file),
        }
        job_file = self.folder / "job.json"
        job_file.write_text(json.dumps(job), encoding="utf-8")

        printed = self.folder / "generated.txt"
        log = self.folder / "generate.log"
        # -P keeps this folder off the program's path: it has a torchscale.py, for instance
        command = [sys.executable, "-P", str(Path(__file__).with_name("translate.py")), str(job_file)]
        variables = os.environ | {"OMP_NUM_THREADS": str(self.args.threads)}
        start = time.perf_counter()
        with open(printed, "w", encoding="utf-8") as output, open(log, "w", encoding="utf-8") as errors:
            done = subprocess.run(command, stdout=output, stderr=errors, env=variables, check=False)
        seconds = time.perf_counter() - start
        if done.returncode:
            raise RuntimeError(last_line(log.read_text(errors="replace")))

        generated = read_generated(printed)
        speed = generation_speed(generated)
        assert speed is not None  # every program prints it
        return {
            "tokens/s": speed["tokens_per_second"],
            "BLEU": self._bleu(generated),
            "peak memory": float(peak_file.read_text()),
            "start to end": seconds,
        }

    def _bleu(self, generated: Generated) -> float:
        """Return BLEU of text if --joined names the segmentation to undo, else of the dictionary's symbols."""
        joined = self.args.joined  # None: post_process leaves the lines alone
        translations = [post_process(line, joined) for line in generated.translations]
        assert generated.references is not None  # every program prints them
        references = [post_process(line, joined) for line in generated.references]
        # what subword_nmt has cut is in tokens already, and so are the dictionary's symbols
        metric = bleu_metric(tokenize="13a" if joined == "sentencepiece" else "none")
        return metric.corpus_score(translations, [references]).score


def listed(task: TranslationTask, subset: str, sizes: dict[str, int]) -> list[list[dict]]:
    """Return the batches that fairseq-generate makes of a test set, in its order, as lists of sentences for JSON.

    A sentence has its "id", the place in the test set; its "source", a list of tokens; "numbers", those of the tokens
    and of the end of the sentence; and its "reference", a text. task: fairseq's, with the test set `subset` loaded;
    sizes: a value of BATCHES.
    """
    dataset = task.dataset(subset)
    source = task.source_dictionary
    target = task.target_dictionary
    with numpy_seed(1):  # as fairseq-generate has it: but for "test", sentences of equal length are in random order
        order = dataset.ordered_indices()

    def sentence(index: int) -> dict:
        """Return the sentence with that place in the test set."""
        numbers = dataset.src[index].tolist()
        tokens = [source[number] for number in numbers if number != source.eos()]
        reference = target.string(dataset.tgt[index], None, escape_unk=True)
        return {"id": index, "source": tokens, "numbers": numbers, "reference": reference}

    batches = dataset.batch_by_size(order, required_batch_size_multiple=1, **sizes)
    return [[sentence(int(index)) for index in batch] for batch in batches]
