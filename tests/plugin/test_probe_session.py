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
from ..support.observing import assert_nearly_equal, loss_of, net_input, observe

HEADER = {"method": "deepnorm"}


def test_two_batches_of_an_update_count_as_one_larger_batch():
    """Probes weight the values of each forward pass by its tokens, of which the two halves have different numbers."""
    whole = net_input(rows=4)
    targets = (torch.arange(whole["prev_output_tokens"].numel()) % VOCAB).view(4, -1)  # the targets that loss_of takes
    model = small(2)
    session = Session(model, get_probes("gradient_norm,ln_input,branch_dependency"))

    session.begin()
    for rows in (slice(0, 2), slice(2, 4)):  # rows 0 and 1 have padding
        half = {name: tensor[rows] for name, tensor in whole.items()}
        scores = model(**half)[0]
        F.cross_entropy(scores.flatten(0, 1), targets[rows].flatten(), reduction="sum").backward()
    session.gradients(scale=1.0)
    values = session.values()

    of_one_batch = observe(small(2), [whole], loss=loss_of)
    assert set(values) == {"gradient_norm", "ln_input", "branch_dependency"}
    for probe in values:
        assert_nearly_equal(values[probe], of_one_batch[probe], 1e-4)


def test_a_dummy_batch_counts_for_nothing():
    """fairseq gives a dummy batch to a process that has no data left, to keep it busy."""
    model = small(2)
    session = Session(model, get_probes("ln_input,branch_dependency"))

    session.begin()
    model(**net_input())
    session.dummy = True
    model(**net_input(seed=5))
    values = session.values()
    session.end()

    without = observe(small(2), [net_input()], "ln_input,branch_dependency")
    assert_nearly_equal(values["ln_input"], without["ln_input"])
    assert_nearly_equal(values["branch_dependency"], without["branch_dependency"])


class ResidualWithoutSomeBranches(Residual):
    """Residual whose branch is left out of each token with probability 0.3, as in stochastic depth."""

    def forward(self, x, f):
        return x + f * (torch.rand(*f.shape[:-1], 1) > 0.3)


def model_that_draws():
    """Build a model whose dropout and residuals draw random numbers."""
    model = small(2, dropout=0.1).train()
    for layer in model.encoder.layers:
        layer.residual["ffn"] = ResidualWithoutSomeBranches()
    return model


def test_probes_use_up_no_random_numbers():
    """The probes also evaluate residuals that draw random numbers.

    Nevertheless an update has the same gradients as without probes.
    """
    plain = model_that_draws()
    torch.manual_seed(4)
    loss_of(plain, net_input()).backward()
    random_state = torch.get_rng_state()

    probed = model_that_draws()
    torch.manual_seed(4)
    observe(probed, [net_input()])

    assert torch.equal(torch.get_rng_state(), random_state)
    for ours, theirs in zip(probed.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


@pytest.fixture
def training_probes(tmp_path):
    """Provide the probe gradient_norm of each update of a training, whose record is tmp_path/probes.jsonl."""
    return TrainingProbes(small(2), get_probes("gradient_norm"), interval=1, folder=tmp_path, header=HEADER)


def try_first_update(probes: TrainingProbes, succeeds: bool) -> None:
    """Call the probes as fairseq's trainer does in its first update, in half precision.

    succeeds: whether the update is made; it overflows otherwise.
    """
    loss_scale = 64
    model = probes.session.model
    model.zero_grad()
    probes.before_batch(update=0)
    (loss_of(model, net_input()) * loss_scale).backward()
    probes.see_gradients(1 / loss_scale)
    probes.end_update(made=succeeds)


def test_an_update_that_overflows_is_not_recorded(training_probes, tmp_path):
    try_first_update(training_probes, succeeds=False)

    assert not training_probes.session.watching
    assert read_record(tmp_path / "probes.jsonl").rows == {}


def test_an_update_that_succeeds_after_an_overflow_is_recorded(training_probes, tmp_path):
    """The row has the gradients of the loss itself, without the loss scale."""
    try_first_update(training_probes, succeeds=False)

    try_first_update(training_probes, succeeds=True)

    assert not training_probes.session.watching
    rows = read_record(tmp_path / "probes.jsonl").rows
    assert rows.keys() == {0}
    unscaled = observe(small(2), [net_input()])["gradient_norm"]
    assert_nearly_equal(rows[0]["gradient_norm"], unscaled, 1e-4)  # the record has five digits


def test_without_the_flag_there_are_no_probes():
    assert get_probes(None) == []


def test_all_names_every_probe():
    assert get_probes("all") == list(PROBES.values())


def test_probes_are_named_in_a_list_of_which_repetitions_do_not_count():
    assert get_probes("ln_input, gradient_norm,ln_input") == [PROBES["ln_input"], PROBES["gradient_norm"]]


@pytest.mark.parametrize("names", [pytest.param("", id="an empty name"), pytest.param("ln_input,x", id="x is unknown")])
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


def write_rows(path, distances: dict[int, float], header=HEADER, fresh=True) -> None:
    """Write the record of a training as far as the probe model_update in the decoder: update -> value.

    fresh: the training begins, and does not resume.
    """
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

    _updates, [value] = read_record(path).series("model_update", "decoder")

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
    """Append the beginning of a row, which a kill leaves if it comes while the row is written."""
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


@pytest.mark.parametrize(
    "text, number",
    [pytest.param("", "None", id="an empty file"), pytest.param('{"format": 2}\n', "2", id="a later format")],
)
def test_a_record_of_another_format_is_refused_with_its_number(text, number, path):
    path.parent.mkdir()
    path.write_text(text)

    with refused(path) as caught:
        read_record(path)

    assert f"format {number}" in caught.value.way_out


def test_a_record_with_a_number_in_place_of_a_probes_values_is_refused(path):
    path.parent.mkdir()
    path.write_text('{"format": 1}\n{"update": 1, "ln_input": 3}\n')

    with refused(path):
        read_record(path)


def test_a_missing_record_is_refused_with_the_flag_that_makes_one(path):
    with refused(path) as caught:
        read_record(path)

    assert "--deepnet-probe" in caught.value.way_out
