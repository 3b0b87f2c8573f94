"""Say how the trained model of a row is judged: by the BLEU of its translations, or by its perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...study.experiment import NOT_GIVEN, Experiment
from .corpus import Corpus
from .hardware import Hardware
from .words import words_of

LONGEST = 6000  # tokens of the longest sentence that is translated
PACKED = 4  # samples of a batch of perplexity


@dataclass(frozen=True)
class Evaluation:
    """A program that uses a trained model.

    doing: for its line of progress; result: file or folder by which it is known to be done; log: of what it prints
    beside the result; all_printed: whether the result is all that the program prints, as fairseq's log is on standard
    output or on standard error by what is installed.
    """

    doing: str
    command: list[str]
    result: Path
    log: Path
    all_printed: bool = False


@dataclass(frozen=True)
class Judge:
    """Base of the ways to judge a model. extra: flags of the training; generation: further ones of fairseq-generate."""

    experiment: Experiment
    corpus: Corpus
    hardware: Hardware
    extra: Sequence[str] = ()
    generation: Sequence[str] = ()

    def evaluations(self, run: Path) -> list[Evaluation]:
        """Return the programs that use the model of a run's folder."""
        raise NotImplementedError

    def score(self, run: Path) -> list[str]:
        """Return the command that prints the content of score.json."""
        raise NotImplementedError


class Translation(Judge):
    """Judges a model by the translations of the test sets."""

    def subsets(self) -> list[str]:
        """Return the test sets: "test", or those of several that the data have."""
        several = self.experiment.get("subsets")
        return ["test"] if several is None else self.corpus.subsets(list(several))

    def evaluations(self, run: Path) -> list[Evaluation]:
        """Return one for each test set."""
        translation = self.experiment["translation"]
        number, _epochs = self.experiment.average
        model = run / ("averaged.pt" if number > 1 else "checkpoint_last.pt")
        search = ["--beam", str(translation["beam"])]
        if translation.get("lenpen", NOT_GIVEN) != NOT_GIVEN:
            search += ["--lenpen", str(translation["lenpen"])]
        if self.experiment.choice.smoke:  # a model that has learnt nothing would generate up to fairseq's 200
            search += ["--max-len-a", "1.5", "--max-len-b", "10"]

        found = []
        for subset in self.subsets():
            words = [str(self.corpus.folder), "--user-dir", "deepnet_fairseq", "--path", str(model)]
            words += ["--gen-subset", subset, *search, "--remove-bpe", self.corpus.pieces]
            words += ["--max-tokens", str(LONGEST), *self.positions(), *self.hardware.decoding, *self.generation]
            if self.corpus.directions:
                several = ",".join(self.corpus.directions_of(subset))
                out = ["--directions", several, "--out", str(run / "generated" / subset)]
                command = ["deepnet", "generate", *words, *self.corpus.task, *out]
                result, log = run / f"generated.{subset}", run / f"generate.{subset}.log"
            else:
                command = ["fairseq-generate", *words]
                result, log = run / "generated.txt", run / "generate.log"
            found.append(Evaluation("translating with", command, result, log))
        return found

    def positions(self) -> list[str]:
        """Return the flags by which sentences are translated that are longer than those of the training.

        Sinusoidal positions have no end; without these flags fairseq stops at the first longer sentence.
        """
        if any(word.endswith("-learned-pos") for word in self.extra):
            return []
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
        """Return one for each subset."""
        task = dict(self.experiment["task"])
        if self.experiment.smoke is not None:
            task["tokens-per-sample"] = self.experiment.smoke["flags"]["tokens-per-sample"]

        found = []
        for subset in self.experiment["perplexity"]["subsets"]:
            words = ["fairseq-validate", self.corpus.data, "--valid-subset", subset, "--log-format", "json"]
            if self.experiment["stack"] == "decoder":
                words = ["fairseq-eval-lm", self.corpus.data, "--gen-subset", subset, "--context-window", "0"]
            words += ["--user-dir", "deepnet_fairseq", "--path", str(run / "checkpoint_last.pt"), *words_of(task)]
            words += ["--max-tokens", str(PACKED * task["tokens-per-sample"]), "--num-workers", "0"]
            words += self.hardware.decoding
            found.append(
                Evaluation(
                    doing=f"evaluating on {subset}",
                    command=words,
                    result=run / "evaluated" / f"{subset}.txt",
                    log=run / "evaluated" / f"{subset}.log",
                    all_printed=True,
                )
            )
        return found

    def score(self, run: Path) -> list[str]:
        """Return the command that prints the perplexities."""
        return ["deepnet", "score", str(run / "evaluated"), "--json", "--paper", "perplexity"]
