"""Tests of probed updates: accumulation, dummy batches, overflows, names; and of the record file."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from deepnet_fairseq.core.probes import PROBES, get_probes
from deepnet_fairseq.core.probes.session import Session
from deepnet_fairseq.core.slots import Residual
from deepnet_fairseq.plugin.probe_record import Writer, read_record
from deepnet_fairseq.plugin.probing import TrainingProbes

from ..support.errors import refused
from ..support.helpers import VOCAB, small
from ..support.observing import close, loss_of, net_input, observe

HEADER = {"method": "deepnorm"}


def test_two_batches_of_an_update_count_as_one_larger_batch():
    """The rows of the two forward passes are padded differently."""
    whole = net_input(rows=4)
    targets = (torch.arange(whole["prev_output_tokens"].numel()) % VOCAB).view(4, -1)
    model = small(2)
    session = Session(model, get_probes("gradient_norm,ln_input,branch_dependency"))

    session.begin()
    for rows in (slice(0, 2), slice(2, 4)):
        half = {name: tensor[rows] for name, tensor in whole.items()}
        scores = model(**half)[0]
        F.cross_entropy(scores.flatten(0, 1), targets[rows].flatten(), reduction="sum").backward()
    session.gradients(1.0)
    values = session.values()

    of_one_batch = observe(small(2), [whole])
    assert set(values) == {"gradient_norm", "ln_input", "branch_dependency"}
    for probe in values:
        close(values[probe], of_one_batch[probe], 1e-4)


def test_a_dummy_batch_counts_for_nothing():
    """A dummy batch, which keeps a rank busy without data, adds nothing to the sums."""
    model = small(2)
    session = Session(model, get_probes("ln_input,branch_dependency"))

    session.begin()
    model(**net_input())
    session.dummy = True
    model(**net_input(seed=5))
    values = session.values()
    session.end()

    without = observe(small(2), [net_input()], "ln_input")
    close(values["ln_input"], without["ln_input"])
    assert len(values["branch_dependency"]) == 10


class ResidualWithoutSomeBranches(Residual):
    """Residual whose branch is left out of a token at random, as in stochastic depth."""

    def forward(self, x, f):
        return x + f * (torch.rand(*f.shape[:-1], 1) > 0.3)


def test_probes_use_up_no_random_numbers():
    """Probes consume no random numbers, even where a residual that they evaluate draws some."""

    def model_that_draws():
        model = small(2, dropout=0.1).train()
        for layer in model.encoder.layers:
            layer.residual["ffn"] = ResidualWithoutSomeBranches()
        torch.manual_seed(4)
        return model

    plain = model_that_draws()
    loss_of(plain, net_input()).backward()
    random_state = torch.get_rng_state()

    probed = model_that_draws()
    observe(probed, [net_input()])

    assert torch.equal(torch.get_rng_state(), random_state)
    for ours, theirs in zip(probed.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_an_update_is_recorded_only_once_it_succeeds(tmp_path):
    """An update that overflows leaves no row; its next attempt does, with the gradients of the mean loss."""
    model = small(2)
    inputs = net_input()
    path = tmp_path / "probes.jsonl"
    probes = TrainingProbes(model, get_probes("gradient_norm"), 1, tmp_path, HEADER)
    loss_scale = 64

    def attempt(made):
        model.zero_grad()
        probes.before_batch(0)
        (loss_of(model, inputs) * loss_scale).backward()
        probes.see_gradients(1 / loss_scale)
        probes.end_update(made)

    attempt(made=False)
    assert not probes.session.watching
    assert read_record(path).rows == {}

    attempt(made=True)
    assert not probes.session.watching
    rows = read_record(path).rows
    assert rows.keys() == {0}
    close(rows[0]["gradient_norm"], observe(small(2), [inputs])["gradient_norm"], 1e-4)


def test_without_the_flag_there_are_no_probes():
    assert get_probes(None) == []


def test_all_names_every_probe():
    assert get_probes("all") == list(PROBES.values())


def test_probes_are_named_in_a_list_of_which_repetitions_do_not_count():
    assert get_probes("ln_input, gradient_norm,ln_input") == [PROBES["ln_input"], PROBES["gradient_norm"]]


@pytest.mark.parametrize("names", ["", "ln_input,x"])
def test_an_unknown_probe_is_refused_with_the_names_of_all(names):
    with refused("--deepnet-probe") as caught:
        get_probes(names)

    for name in PROBES:
        assert name in caught.value.way_out


def test_the_interval_of_probes_is_at_least_one_update():
    with refused("--probe-interval 0"):
        small(2, deepnet_probe="all", probe_interval=0)


@pytest.fixture
def path(tmp_path):
    """Provide the path of a record in a folder that does not exist yet."""
    return tmp_path / "run" / "probes.jsonl"


def write_rows(path, distances: dict, header=HEADER, fresh=True) -> None:
    """Write a record of the values of model_update in the decoder, {update: value}."""
    writer = Writer(path, header, fresh)
    for update, value in distances.items():
        writer.append_row(update, {"model_update": {"decoder": value}})


def test_a_record_is_read_as_written_with_five_digits(path):
    write_rows(path, {0: 1.0, 5: 3.123456})

    record = read_record(path)

    assert record.header["method"] == "deepnorm"
    assert record.updates() == [0, 5]
    assert record.series("model_update", "decoder") == ([0, 5], [1.0, 3.1235])


def test_a_value_that_is_not_finite_is_read_as_nan(path):
    write_rows(path, {10: math.inf})

    _, [value] = read_record(path).series("model_update", "decoder")

    assert math.isnan(value)


def test_the_later_of_two_rows_for_an_update_counts(path):
    write_rows(path, {5: 2.0})
    write_rows(path, {5: 3.0}, fresh=False)

    assert read_record(path).series("model_update", "decoder") == ([5], [3.0])


def test_a_resumed_run_appends_to_its_record(path):
    write_rows(path, {0: 1.0})

    Writer(path, HEADER, fresh=False).append_row(15, {"ln_input": {"decoder.1.ffn": 4.0}})

    record = read_record(path)
    assert record.updates() == [0, 15]
    assert record.series("model_update", "decoder") == ([0], [1.0])


def test_a_resumed_run_sets_the_header(path):
    write_rows(path, {0: 1.0})

    write_rows(path, {5: 2.0}, header=HEADER | {"interval": 3}, fresh=False)

    record = read_record(path)
    assert record.updates() == [0, 5]
    assert record.header["interval"] == 3


def cut_off_a_row(path) -> None:
    """Append what a kill leaves of a row."""
    with open(path, "a") as file:
        file.write('{"update": 20, "model_upd')


def test_a_row_that_a_kill_cut_off_is_not_read(path):
    write_rows(path, {0: 1.0, 5: 2.0})
    cut_off_a_row(path)

    assert read_record(path).updates() == [0, 5]


def test_a_resumed_run_drops_the_row_that_a_kill_cut_off(path):
    write_rows(path, {0: 1.0, 5: 2.0})
    cut_off_a_row(path)

    write_rows(path, {21: 5.0}, fresh=False)

    assert read_record(path).updates() == [0, 5, 21]


def test_a_fresh_run_begins_its_record_anew(path):
    write_rows(path, {0: 1.0})

    Writer(path, HEADER, fresh=True)

    assert read_record(path).rows == {}


@pytest.mark.parametrize("number, text", [("None", ""), ("2", '{"format": 2}\n')])
def test_a_record_of_another_format_is_refused(path, number, text):
    path.parent.mkdir()
    path.write_text(text)

    with refused(path) as caught:
        read_record(path)

    assert f"format {number}," in caught.value.way_out


def test_a_broken_record_is_refused(path):
    path.parent.mkdir()
    path.write_text('{"format": 1}\n{"update": 1, "a": 3}\n')

    with refused(path):
        read_record(path)


def test_a_missing_record_is_refused_with_the_flag_that_makes_one(path):
    with refused(path) as caught:
        read_record(path)

    assert "--deepnet-probe" in caught.value.way_out
