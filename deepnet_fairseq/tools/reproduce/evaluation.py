"""Say how the trained model of a row is judged: by the BLEU of its translations, or by its perplexity.

A row is one training of an experiment. A miniature (the key "smoke") is the experiment with small models on generated
data, to try it. `run` is always the folder of a row's training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...study.experiment import NOT_GIVEN, Experiment
from .corpus import Corpus
from .hardware import Hardware
from .words import as_words

LONGEST = 6000  # tokens of a batch of translations, and of the longest sentence that is translated
SAMPLES_PER_BATCH = 4  # blocks of text in a batch, when perplexity is measured


@dataclass(frozen=True)
class Evaluation:
    """A program that runs a trained model on a test set.

    doing: what it does, for the line of progress, where the run's folder follows; command: its words; result: file with
    what the program prints, whose existence says that the evaluation is done; log: file of its standard error, and of
    all that it prints while it runs if all_printed is True; all_printed: whether the result is standard output and
    standard error together, because fairseq's log with the numbers goes to one or the other, depending on what is
    installed; False for standard output alone.
    """

    doing: str
    command: list[str]
    result: Path
    log: Path
    all_printed: bool = False


@dataclass(frozen=True)
class Judge:
    """Base of the ways to judge a model.

    extra: words of the user's flags of fairseq-train; generation: words of the user's flags of fairseq-generate.
    """

    experiment: Experiment
    corpus: Corpus
    hardware: Hardware
    extra: Sequence[str] = ()
    generation: Sequence[str] = ()

    def evaluations(self, run: Path) -> list[Evaluation]:
        """Return the programs that run the trained model in the folder `run`."""
        raise NotImplementedError

    def score(self, run: Path) -> list[str]:
        """Return the command that prints the content of score.json, from the results of `evaluations`."""
        raise NotImplementedError


class Translation(Judge):
    """Judges a model by the translations of the test sets."""

    def subsets(self) -> list[str]:
        """Return the names of the test sets: "test", or those of the experiment's several that the data have."""
        several = self.experiment.get("subsets")
        return ["test"] if several is None else self.corpus.subsets(list(several))

    def evaluations(self, run: Path) -> list[Evaluation]:
        """Return a program for each test set, which translates it; for a multilingual model it takes all directions."""
        translation = self.experiment["translation"]
        averaged, _epochs = self.experiment.average  # number of checkpoints
        model = run / ("averaged.pt" if averaged > 1 else "checkpoint_last.pt")

        search = ["--beam", str(translation["beam"])]
        if translation.get("lenpen", NOT_GIVEN) != NOT_GIVEN:  # otherwise fairseq's default holds
            search += ["--lenpen", str(translation["lenpen"])]
        if self.experiment.choice.smoke:  # a model that has learnt nothing would generate fairseq's limit of 200 tokens
            search += ["--max-len-a", "1.5", "--max-len-b", "10"]

        evaluations = []
        for subset in self.subsets():
            words = [str(self.corpus.folder), "--user-dir", "deepnet_fairseq", "--path", str(model)]
            words += ["--gen-subset", subset, *search, "--remove-bpe", self.corpus.remove_bpe]
            words += ["--max-tokens", str(LONGEST), *self.positions(), *self.hardware.decoding_flags, *self.generation]
            if self.corpus.directions:
                directions = ",".join(self.corpus.directions_of(subset))
                out = ["--directions", directions, "--out", str(run / "generated" / subset)]
                command = ["deepnet", "generate", *words, *self.corpus.task, *out]
                result = run / f"generated.{subset}"
                log = run / f"generate.{subset}.log"
            else:
                command = ["fairseq-generate", *words]  # only multilingual experiments have several test sets
                result = run / "generated.txt"
                log = run / "generate.log"
            evaluations.append(Evaluation("translating with", command, result, log))
        return evaluations

    def positions(self) -> list[str]:
        """Return the flags with which fairseq translates sentences that are longer than those of the training.

        Without them it stops at the first longer sentence. For learned positions, of which a model has a fixed number,
        there are no such flags, and the list is empty; sinusoidal ones can be computed for any length.
        """
        if any(word.endswith("-learned-pos") for word in self.extra):
            return []
        # fairseq takes the smaller one of the task's limits (the flags) and those of the checkpoint's model
        longest = str(LONGEST)
        limits = {"max_source_positions": LONGEST, "max_target_positions": LONGEST}
        return [
            "--max-source-positions", longest, "--max-target-positions", longest, "--model-overrides", str(limits),
        ]  # fmt: skip

    def score(self, run: Path) -> list[str]:
        """Return the command that prints the BLEU of the translations."""
        translation = self.experiment["translation"]
        result = run / ("generated" if self.corpus.directions else "generated.txt")
        words = ["deepnet", "score", str(result), "--json", "--data", self.corpus.data]
        metric = translation["metric"]
        if self.experiment.choice.smoke:
            metric = metric.split(",")[0]  # spBLEU would download a file
        words += ["--paper", metric]
        if "tokenize" in translation:
            words += ["--tokenize", translation["tokenize"]]
        return words


class Perplexity(Judge):
    """Judges a language model by the perplexity of lines that it has not seen."""

    def evaluations(self, run: Path) -> list[Evaluation]:
        """Return a program for each subset of lines, which measures the perplexity."""
        task = dict(self.experiment["task"])  # flags of fairseq's task
        if self.experiment.smoke_table is not None:  # a miniature, which has shorter blocks of text
            task["tokens-per-sample"] = self.experiment.smoke_table["flags"]["tokens-per-sample"]

        evaluations = []
        for subset in self.experiment["perplexity"]["subsets"]:
            if self.experiment["stack"] == "decoder":  # a causal language model
                words = ["fairseq-eval-lm", self.corpus.data, "--gen-subset", subset, "--context-window", "0"]
            else:  # a masked one
                words = ["fairseq-validate", self.corpus.data, "--valid-subset", subset, "--log-format", "json"]
            words += ["--user-dir", "deepnet_fairseq", "--path", str(run / "checkpoint_last.pt"), *as_words(task)]
            batch_tokens = SAMPLES_PER_BATCH * task["tokens-per-sample"]
            words += ["--max-tokens", str(batch_tokens), "--num-workers", "0"]
            words += self.hardware.decoding_flags
            evaluations.append(
                Evaluation(
                    doing=f"evaluating on {subset}",
                    command=words,
                    result=run / "evaluated" / f"{subset}.txt",
                    log=run / "evaluated" / f"{subset}.log",
                    all_printed=True,
                )
            )
        return evaluations

    def score(self, run: Path) -> list[str]:
        """Return the command that prints the perplexities."""
        return ["deepnet", "score", str(run / "evaluated"), "--json", "--paper", "perplexity"]
