"""The parts of `deepnet bench`: turns, limits, clock, lengths, operations."""

from __future__ import annotations

import time

import numpy
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from deepnet_fairseq.bench import memory, task, turns
from deepnet_fairseq.bench.contender import Clock, Contender
from deepnet_fairseq.bench.report import number
from deepnet_fairseq.bench.settings import STOCK, Settings, Shape, candidates
from deepnet_fairseq.bench.trials import training_flops
from deepnet_fairseq.bench.turns import DIVERGED, FAILED, NO_MEMORY, NO_TIME, Cell
from deepnet_fairseq.errors import UserError

from .support.benched import SHAPE, short_sentences, short_settings

CPU = torch.device("cpu")


@pytest.fixture
def settings(tmp_path):
    return short_settings(short_sentences(tmp_path))


def test_ratios_are_of_the_same_repeat():
    """A repeat that one of two lacks is left out: 2/1, 9/3, 8/2; the median."""
    mine, other = Cell("train", "ours", "6-6", "tiny"), Cell("train", STOCK, "6-6", "tiny")
    for repeat, value in ((0, 2.0), (1, 100.0), (2, 9.0), (3, 8.0)):
        mine.add(repeat, {"step": value})
    for repeat, value in ((0, 1.0), (2, 3.0), (3, 2.0), (4, 1.0)):
        other.add(repeat, {"step": value})
    assert mine.relative_to(other) == {"step": 3.0}
    assert mine.summary()["step"] == {"n": 4, "median": 8.5, "min": 2.0, "max": 100.0}


def test_order_rotates_and_failures_are_recorded():
    called = []

    def run(name, error=None):
        def once(repeat):
            called.append(name)
            if error:
                raise error
            return {"seconds": 1.0}

        return once

    errors = {
        "a": None,
        "b": ValueError("odd\nmore"),
        "c": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        "d": FloatingPointError("not finite"),
    }
    found = {name: Cell("train", name, "6-6", "tiny") for name in errors}
    turns.interleave(found, {name: run(name, error) for name, error in errors.items()}, range(3), 60)
    assert called == ["a", "b", "c", "d", "a", "a"]
    assert [cell.state for cell in found.values()] == ["measured", FAILED, NO_MEMORY, DIVERGED]
    assert found["b"].reason == "ValueError: odd" and found["a"].repeats == [0, 1, 2]
    assert turns.rotated(["a", "b", "c"], 1) == ["b", "c", "a"]
    with pytest.raises(UserError):
        turns.interleave({"e": Cell("train", "e", "6-6", "tiny")}, {"e": run("e", UserError("--flag"))}, range(1), 60)


def test_time_is_bounded():
    """The repeat that is too long is broken off; those before it stand, and none follows."""
    found = {name: Cell("train", name, "6-6", "tiny") for name in ("slow", "slower")}
    start = time.monotonic()
    turns.interleave(
        found,
        {
            "slow": lambda repeat: time.sleep(30 * repeat) or {"seconds": 1.0},
            "slower": lambda repeat: time.sleep(30),
        },
        range(3),
        0.3,
    )
    assert time.monotonic() - start < 10
    assert (found["slow"].state, found["slow"].repeats) == ("measured", [0]) and found["slow"].reason
    assert found["slower"].state == NO_TIME


def test_memory_that_is_not_there_is_an_error_not_a_killed_process():
    """The block is never touched: without the limit the system would give it."""
    cell, bytes_ = Cell("train", "ours", "6-6", "tiny"), memory.free_memory(CPU) + 2**28
    with memory.limited(CPU), turns.recorded(cell, 60):
        torch.empty(bytes_, dtype=torch.uint8)
    assert cell.state == NO_MEMORY


def test_candidates_that_do_not_fit_together_take_turns():
    """500L-500L base is 3.7 billion parameters, 59 GB of training state; a tiny 6L-6L one 18 MB."""
    assert memory.parameters(Shape(500, 500, "base"), 10_000) == pytest.approx(3.68e9, rel=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "free_memory", lambda device: 24 * 2**30)
        assert memory.side_by_side(3, Shape(6, 6, "tiny"), Settings())
        assert not memory.side_by_side(1, Shape(500, 500, "base"), Settings())


def test_lengths_are_like_those_of_iwslt14():
    """25.2 and 24.6 tokens on average; the same from one seed."""
    drawn = task.log_normal(20_000, seed=3)
    assert drawn.mean(axis=0) == pytest.approx([25.2, 24.6], rel=0.04)
    assert drawn.min() >= 1
    assert numpy.corrcoef(numpy.log(drawn), rowvar=False)[0, 1] == pytest.approx(0.97, abs=0.01)
    assert (drawn == task.log_normal(20_000, seed=3)).all()


@pytest.mark.parametrize("text", ["3\n", "3 4 5\n", "3 x\n", "0 3\n", ""])
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_a_file_of_other_things_is_refused(tmp_path, text):
    (tmp_path / "lengths").write_text(text)
    with pytest.raises(UserError, match="--lengths .*SOURCE TARGET"):
        task.from_file(tmp_path / "lengths", 10, 1)


def test_batches_are_fairseqs(settings):
    """Of at most --max-tokens positions a side, within a file's lengths and the end of sentence; not all alike."""
    contender = Contender(candidates(STOCK)[0], SHAPE, settings)
    batches = contender.batches(10)
    contender.close()
    for batch in batches:
        for tokens in (batch["net_input"]["src_tokens"], batch["target"]):
            assert tokens.numel() <= settings.max_tokens
            kept = tokens.ne(1).sum(dim=1)
            assert kept.min() >= 3 and kept.max() <= 10
    assert len({tuple(batch["target"].shape) for batch in batches}) > 1


def test_flops_are_those_torch_counts(settings):
    """Of stock fairseq without padding, but for the half of the decoder's scores that its mask throws away."""
    contender = Contender(candidates(STOCK)[0], SHAPE, settings)
    source, target = torch.randint(4, 100, (3, 7)), torch.randint(4, 100, (3, 5))
    batch = {"net_input": {"src_tokens": source, "src_lengths": None, "prev_output_tokens": target}}
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # others are not counted on a CPU
        contender.model.train()(**batch["net_input"])[0].sum().backward()
    contender.close()
    masked = 6 * 3 * SHAPE.M * 5 * 5 * 64
    assert counter.get_total_flops() == training_flops(SHAPE, 120, batch) + masked


def test_clock_forgets_what_it_has_read():
    clock = Clock(CPU)
    watched = clock.watched(time.sleep, "sleep")
    watched(0.02), watched(0.03)
    assert clock.read()["sleep"] >= 0.05
    assert clock.read() == {}


def test_clock_counts_a_call_within_itself_once():
    clock = Clock(CPU)
    inner = clock.watched(time.sleep, "part")
    clock.watched(lambda: inner(0.05), "part")()
    assert len(clock.spans["part"]) == 1


def test_numbers_have_three_digits():
    given = ((1234.5, ""), (0.01234, "s"), (2.345, "s"), (1.5 * 2**30, "B"), (2**25, "B"))
    assert [number(*pair) for pair in given] == ["1,234", "12.3 ms", "2.35 s", "1.50 GiB", "32.0 MiB"]
