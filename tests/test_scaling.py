"""`deepnet scale`: its formulas against numbers worked out by hand, published ones, and failures that are drawn."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from deepnet_fairseq.plan.flags import parse
from deepnet_fairseq.plan.flops import flops
from deepnet_fairseq.plan.memory import memory
from deepnet_fairseq.plan.parameters import count
from deepnet_fairseq.plan.scale import collectives, failures
from deepnet_fairseq.plan.scale.hardware import PRESETS, Network, hardware
from deepnet_fairseq.plan.scale.model import Model, Pace
from deepnet_fairseq.plan.scale.modes import update
from deepnet_fairseq.plan.scale.recorded import RECORDED
from deepnet_fairseq.plan.scale.saves import saves, size
from deepnet_fairseq.plan.scale.timeline import Step, play

PLAIN = Network(
    node=8, intra=100e9, inter=10e9, share=1.0, start=0.0, hop_intra=0.0, hop_inter=0.0,
    tree_start=1.0, tree_intra=0.0, tree_inter=0.0,  # no trees: they start after a second
)  # fmt: skip
MODEL = ["--arch", "deepnet_transformer_tiny_18_18", "--vocab", "1000", "--share-all-embeddings", "--bf16"]


def test_ring_by_hand():
    """1 GB over 4 GPUs of 100 GB/s: 3/4 of it once in 7.5 ms, twice for an all-reduce; 16 GPUs send 80 GB/s out."""
    assert collectives.all_gather(PLAIN, 4, 1e9) == pytest.approx(7.5e-3)
    assert collectives.all_reduce(PLAIN, 4, 1e9) == pytest.approx(15e-3)
    assert collectives.all_gather(PLAIN, 16, 1e9) == pytest.approx(15 / 16 / 80)
    assert collectives.all_reduce(PLAIN, 1, 1e9) == 0


def test_latency_by_hand():
    """512 GPUs in 64 machines: a ring has 63 steps between and 448 inside of machines; trees 6 and 7, up and down."""
    network = replace(PRESETS["a100"].network)
    ring = 10e-6 + 448 * 1.9e-6 + 63 * 4e-6
    assert collectives.all_gather(network, 512, 0) == pytest.approx(ring)
    assert collectives.all_reduce(network, 512, 0) == pytest.approx(4.4e-6 + 2 * (7 * 1.2e-6 + 6 * 8.5e-6))
    assert collectives.all_reduce(replace(network, tree_start=1.0), 512, 0) == pytest.approx(2 * ring - 10e-6)


@pytest.mark.parametrize(("mtbf", "minutes"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_daly_as_published(mtbf, minutes):
    """Figures 3 to 5 of Daly 2006: saves of 5 minutes."""
    assert failures.daly(5, mtbf) == pytest.approx(minutes, rel=0.006)
    assert failures.daly(5, 2.0) == 2.0  # a save longer than twice the time between failures


@pytest.mark.parametrize(("save", "restart", "mtbf"), [(5, 10, 1440), (1, 0, 60), (30, 600, 350_000)])
def test_daly_is_the_best_interval(save, restart, mtbf):
    """The least of the expected loss over a fine grid; Young's is near where saves are short."""
    grid = [failures.young(save, mtbf) * 1.01**step for step in range(-200, 200)]
    best = min(grid, key=lambda interval: failures.lost(interval, save, restart, mtbf))
    assert failures.daly(save, mtbf) == pytest.approx(best, rel=0.02)
    assert failures.young(save, mtbf) == pytest.approx(best, rel=0.15)


@pytest.mark.parametrize(("interval", "save", "restart", "mtbf"), [(60, 5, 10, 120), (20, 2, 30, 50)])
def test_loss_is_that_of_drawn_failures(interval, save, restart, mtbf):
    """A run of 20,000 intervals: failures come at random, in saves and restarts too, and undo what is not saved."""
    draw = random.Random(1)
    clock, fails = 0.0, draw.expovariate(1 / mtbf)
    for _ in range(20_000):
        need = interval + save
        while clock + need > fails:
            clock, fails = fails, fails + draw.expovariate(1 / mtbf)
            while clock + restart > fails:
                clock, fails = fails, fails + draw.expovariate(1 / mtbf)
            clock += restart
        clock += need
    assert failures.lost(interval, save, restart, mtbf) == pytest.approx(1 - 20_000 * interval / clock, abs=0.01)


def test_nothing_gets_done_where_everything_fails():
    assert failures.lost(1e6, 1, 1, 1) == 1
    assert failures.lost(100, 1, 0, 1e12) == pytest.approx(1 / 101, rel=1e-6)  # no failures: saves alone


def test_timeline_by_hand():
    """Sending hides behind computing, gathering is asked for one step ahead, the last step waits for all."""
    assert play([Step(1), Step(1, send=3), Step(1), Step(1, waits=True)]).network == 2
    assert play([Step(1, gather=2), Step(1, gather=2), Step(1, gather=2)]).network == 4
    assert play([Step(2, gather=1), Step(2, gather=1)]).network == 1
    assert play([Step(2, host=3), Step(4, host=1)]).host == 1
    assert play([Step(2, host=3), Step(4, host=1)], asynchronous=False).total == 10


def _spent(gpus=16, sharding="none", machine=None, **settings):
    model = Model(parse([*MODEL, "--max-tokens", "1024"]))
    setting = model.on(gpus, sharding, 1024, settings.pop("update_freq", 1), settings.pop("recomputed", False))
    return update(model, setting, Pace(machine or PRESETS["a100"], RECORDED, 0.4, **settings))


def test_one_gpu_computes_what_is_counted():
    """Operations over the rate, recomputation with them, and 32 bytes a parameter for the optimiser."""
    for flags in ([], ["--checkpoint-activations"]):
        setting = parse([*MODEL, "--max-tokens", "1024", *flags])
        found = _spent(1, recomputed=bool(flags), graphed=True, update_freq=3)
        operations = 3 * flops(setting).step / (0.4 * 312e12)
        assert found.total == pytest.approx(operations + count(setting).trainable * 32 / 2039e9)


def test_bytes_sent_by_hand():
    """Gradients of 2 bytes twice around the ring; ZeRO's weights once more; sharded layers' weights twice in 2
    bytes and gradients once in 4, in each of 2 batches."""
    machine = replace(PRESETS["a100"], network=replace(PLAIN, node=16))
    trained = count(parse(MODEL)).trainable
    around = 15 / 16 / 100e9
    assert _spent(machine=machine, update_freq=2).sent == pytest.approx(2 * 2 * trained * around)
    assert _spent(sharding="os", machine=machine).sent == pytest.approx(3 * 2 * trained * around)
    embedding = 1000 * 64  # tied, gathered once
    fully = 2 * (8 * trained - 2 * embedding) * around
    assert _spent(sharding="fully_sharded", machine=machine, update_freq=2).sent == pytest.approx(fully, rel=1e-3)


@pytest.mark.parametrize("sharding", ["none", "os", "fully_sharded"])
def test_better_machines_are_not_slower(sharding):
    base = _spent(64, sharding).total
    for better in ({"inter": 100e9}, {"intra": 600e9}, {"share": 1.0}, {"hop_inter": 0.0, "tree_inter": 0.0}):
        faster = _spent(64, sharding, hardware("a100", **better)).total
        assert faster <= base and (faster < base or better == {"intra": 600e9})
    assert _spent(64, sharding, graphed=True).total < base
    assert math.isclose(_spent(64, sharding).sent, _spent(64, sharding, graphed=True).sent)


def test_a_checkpoint_by_hand():
    """Bytes a parameter: weight and moments; in half precision with float32 weights, if there are any, beside."""
    for flags, each in (([], 12), (["--bf16"], 14), (["--memory-efficient-bf16"], 10)):
        model = Model(parse([*MODEL[:-1], *flags]))
        assert size(model) == each * model.parameters.total
    model = Model(parse(MODEL))
    by_one, by_all, behind = saves(model, model.on(8, "os", 1024, 1, False), PRESETS["a100"], RECORDED)
    assert by_one.stops == pytest.approx(14 * model.parameters.total / RECORDED.write)
    assert by_all.stops == pytest.approx(by_one.stops / 8) and behind.written == by_all.written
    assert behind.lost < by_all.lost < by_one.lost


def test_memory_of_shards():
    """Over twice as many GPUs half of weights, gradients and state, but for what is gathered and activations."""
    flags = [*MODEL, "--max-tokens", "256", "--optimizer", "adam", "--ddp-backend", "fully_sharded", "--gpus"]
    two, four = (memory(parse([*flags, gpus])) for gpus in ("2", "4"))
    trained = count(parse(MODEL)).trainable
    assert two.optimiser == 2 * four.optimiser == 8 * trained
    assert two.gradients == pytest.approx(2 * four.gradients, abs=2)
    assert two.weights - four.weights == pytest.approx(2 * trained / 4, abs=2)
    assert two.activations == four.activations and two.buckets == 0
