"""deepnet score-choices: the numbers are fairseq's own, and those of models that a few lines of Python can follow."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.sequence_scorer import SequenceScorer

from deepnet_fairseq import cli
from deepnet_fairseq.choices.model import LanguageModel, load
from deepnet_fairseq.choices.pieces import Continuation, Reader
from deepnet_fairseq.choices.report import wilson
from deepnet_fairseq.choices.scoring import NORMALISATIONS, Likelihood
from deepnet_fairseq.data.monolingual import segmenter

from .support.language_models import configured, data_folder, save, train
from .support.plain_text import documents

CPU = torch.device("cpu")
MODELS = [("transformer_lm",), ("deepnet_lm", "--add-bos-token")]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return data_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def sentences():
    return [line for text in documents(100, seed=7) for line in text]


@pytest.fixture(scope="module", params=MODELS, ids="".join)
def checkpoint(request, data, sentences, tmp_path_factory):
    """A model that knows the sentences a little."""
    torch.manual_seed(0)
    cfg, task = configured(data, *request.param)
    model = task.build_model(cfg.model)
    reader = Reader(segmenter.read(data), task.dictionary)
    start = task.dictionary.bos() if "--add-bos-token" in request.param else task.dictionary.eos()
    rows = [list(reader.read("", sentence)[0].choice) for sentence in sentences]
    train(model, rows, task.dictionary, start, steps=60)
    return save(tmp_path_factory.mktemp("trained") / "checkpoint.pt", cfg, model), task


@pytest.fixture(scope="module")
def items(sentences, tmp_path_factory):
    """The end of a sentence, or its letters in another order; the context of the first is longer than the model."""
    draw, rows = random.Random(1), []
    for number, sentence in enumerate(sentences[:30]):
        words = sentence.split()
        context, right = " ".join(words[:2]), " ".join(words[2:5])
        wrong = "".join(draw.sample(right, len(right)))
        answer = number % 2
        row = {"context": context, "choices": [wrong, right] if answer else [right, wrong], "answer": answer}
        rows.append(row | {"id": f"item {number}"})
    rows[0]["context"] = " ".join(sentences) + " " + rows[0]["context"]
    path = tmp_path_factory.mktemp("items") / "items.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return path


def ask(capsys, *words) -> dict:
    cli.main(["score-choices", *map(str, words), "--cpu", "--json"])
    return json.loads(capsys.readouterr().out)


def test_as_fairseq_scores(checkpoint, items, tmp_path, capsys):
    """Sums of SequenceScorer's log-probabilities over the choice, for each alone, by the task's own batches."""
    path, task = checkpoint
    found = ask(capsys, items, "--path", path, "--normalise", "none", "--results", tmp_path / "out.jsonl")
    results = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    model, folder = load(str(path), None, cpu=True)
    reader, scorer = Reader(segmenter.read(folder), task.dictionary), SequenceScorer(task.dictionary)
    rows = [json.loads(line) for line in items.read_text().splitlines() if line]
    assert [result["id"] for result in results] == [row["id"] for row in rows]
    for row, result in zip(rows[1:], results[1:], strict=True):
        for choice, scored in zip(row["choices"], result["choices"], strict=True):
            asked, _ = reader.read(row["context"], choice)
            tokens = torch.tensor([*asked.context, *asked.choice, task.dictionary.eos()])
            dataset = task.build_dataset_for_inference([tokens], [len(tokens)])
            (hypothesis,), *_ = scorer.generate([model.model], dataset.collater([dataset[0]]))
            expected = hypothesis["positional_scores"][-len(asked.choice) :].sum().item()
            assert scored["log_p"] == pytest.approx(expected, abs=1e-4) == scored["score"]
    assert [result["truncated"] for result in results] == [True] + 29 * [False]
    assert found["truncated"] == 1 and found["items"] == found["answered"] == 30 and found["chance"] == 0.5
    assert found["correct"] == sum(result["correct"] for result in results) >= 25  # 20 are chance's one in twenty


def test_batches_change_nothing(checkpoint, items, tmp_path, capsys):
    path, _ = checkpoint
    found = []
    for tokens in (1, 300, 100_000):
        out = tmp_path / f"{tokens}.jsonl"
        ask(capsys, items, "--path", path, "--batch-tokens", tokens, "--results", out)
        results = [json.loads(line) for line in out.read_text().splitlines()]
        found.append([choice["log_p"] for result in results for choice in result["choices"]])
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-4)


class Bag(torch.nn.Module):
    """What follows depends on all that came before, in no order: logits are the sum of its symbols' rows."""

    def __init__(self, vocabulary: int, positions: int):
        super().__init__()
        self.table = torch.randn(vocabulary, vocabulary, generator=torch.Generator().manual_seed(0))
        self.positions = positions

    def max_positions(self):
        return self.positions

    def forward(self, tokens):
        assert tokens.size(1) <= self.positions
        return torch.nn.functional.one_hot(tokens, len(self.table)).float().cumsum(1) @ self.table, None

    def get_normalized_probs(self, output, log_probs):
        return output[0].log_softmax(-1)

    def expected(self, start, context, choice) -> float:
        """The same with Python's floats, a symbol at a time."""
        seen, total, rows = [start, *context], 0.0, self.table.tolist()
        for symbol in choice:
            logits = [sum(rows[one][i] for one in seen) for i in range(len(rows))]
            total += logits[symbol] - math.log(sum(map(math.exp, logits)))
            seen.append(symbol)
        return total


def test_known_model():
    """Sum over the choice alone; a context that is too long loses its beginning, never the start symbol."""
    dictionary = Dictionary()
    for symbol in "abcde":
        dictionary.add_symbol(symbol)
    bag = Bag(len(dictionary), positions=5)
    model = LanguageModel(bag, dictionary, dictionary.eos(), CPU)
    a, b, c, d, e = range(4, 9)
    asked = {
        Continuation((a,), (b,)): ((a,), (b,)),
        Continuation((), (c, d, e)): ((), (c, d, e)),
        Continuation((a, b), (c, d, 2)): ((a, b), (c, d, 2)),
        Continuation((a, b, c, d, e), (b, c)): ((c, d, e), (b, c)),
        Continuation((a, b, c, d), (e, d, c, b, a)): ((), (e, d, c, b, a)),
    }
    found = model.log_likelihoods([*asked, *reversed(asked)], batch_tokens=10)
    expected = [bag.expected(dictionary.eos(), *what) for what in asked.values()]
    assert found == pytest.approx([*expected, *reversed(expected)], abs=1e-5)
    assert [model.truncates(one) for one in asked] == [False, False, False, True, True]


WILSON = [(8, 10, 0.4902, 0.9433), (0, 10, 0, 0.2775), (50, 100, 0.4038, 0.5962)]  # as tables of the interval have it
BOUNDARIES = {  # context, choice -> pieces of each, whether both were cut apart
    ("the", "cat"): ("the", "Ġcat", False),
    ("the", " cat"): ("the", "Ġcat", False),
    ("the ", "cat"): ("the", "Ġcat", False),
    ("the \t", "cat"): ("the", "Ġ ĉ cat", False),
    ("the\n", "cat"): ("the </s>", "cat", False),
    ("", "cat"): ("", "cat", False),
    ("", " cat\nun"): ("", "cat </s> un", False),
    ("do the", "un do"): ("do Ġthe", "Ġun Ġ do", False),
    ("un\ncat", "?"): ("un </s> cat", "Ġ ?", False),
}


@pytest.mark.parametrize("texts", BOUNDARIES, ids=repr)
def test_boundary(texts, data):
    """White space goes with the choice; the pieces are those of the whole text."""
    head, tail, apart = BOUNDARIES[texts]
    reader, name = named(data)
    found, was_apart = reader.read(*texts)
    assert (name(found.context), name(found.choice), was_apart) == (head, tail, apart)


def test_boundary_within_a_piece(data):
    """ "un" + "do" are one piece when nothing is between them: cut apart then, and told."""
    reader, name = named(data, delimiter="")
    found, apart = reader.read("un", "do")
    assert (name(found.context), name(found.choice), apart) == ("un", "do", True)
    found, apart = reader.read("the", " cat")
    assert (name(found.context), name(found.choice), apart) == ("the", "Ġcat", False)


def named(data, **options):
    """A reader, and what turns numbers into the pieces' names."""
    dictionary = Dictionary.load(str(data / "dict.txt"))
    names = {number: piece for piece, number in json.loads((data / "encoder.json").read_text()).items()}

    def name(numbers):
        return " ".join(names[int(s)] if (s := dictionary[one]).isdecimal() else s for one in numbers)

    return Reader(segmenter.read(data), dictionary, **options), name


def test_normalisations():
    """Brown et al. 2020: the sum, by pieces, by bytes, and as the ratio to the choice's own likelihood."""
    found = Likelihood(log_p=-6.0, pieces=3, bytes=12, unconditional=-10.0)
    assert {name: rule(found) for name, rule in NORMALISATIONS.items()} == {
        "none": -6.0, "tokens": -2.0, "bytes": -0.5, "unconditional": 4.0,
    }  # fmt: skip


def test_unconditional(checkpoint, tmp_path, capsys):
    """score = log p(choice | context) - log p(choice | its unconditional context), of this item or "Answer:"."""
    path, _ = checkpoint
    choices = ["the cat", "un do"]
    rows = [
        {"context": "cat", "choices": choices, "unconditional_context": "so"},
        {"context": "so", "choices": choices},
        {"context": "cat", "choices": choices},
        {"context": "Answer:", "choices": choices},
    ]
    (tmp_path / "items").write_text("\n".join(map(json.dumps, rows)))
    found = ask(capsys, tmp_path / "items", "--path", path, "--normalise", "unconditional", "--results", tmp_path / "r")
    assert found["accuracy"] is None and found["answered"] == 0
    results = [json.loads(line)["choices"] for line in (tmp_path / "r").read_text().splitlines()]
    for number in range(len(choices)):
        so, answer = results[1][number]["log_p"], results[3][number]["log_p"]
        assert results[0][number]["score"] == pytest.approx(results[0][number]["log_p"] - so, abs=1e-5)
        assert results[2][number]["score"] == pytest.approx(results[2][number]["log_p"] - answer, abs=1e-5)
        assert results[3][number]["score"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(("correct", "total", "low", "high"), WILSON)
def test_wilson(correct, total, low, high):
    assert wilson(correct, total) == pytest.approx((low, high), abs=5e-5)
