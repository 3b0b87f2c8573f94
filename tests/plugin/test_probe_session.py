"""Tests of probed updates: accumulation, dummy batches, overflows, names; and of the record file."""

import math

import pytest
import torch
import torch.nn.functional as F

from deepnet_fairseq.core.probes import PROBES, get_probes
from deepnet_fairseq.core.probes.session import Session
from deepnet_fairseq.core.slots import Residual
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.probe_record import Writer, read_record
from deepnet_fairseq.plugin.probing import TrainingProbes

from ..support.helpers import VOCAB, small
from ..support.observing import close, loss_of, net_input, observe


def test_accumulation_is_one_larger_batch():
    """Two forward passes of an update count as one larger batch, although their rows are padded differently."""
    whole = net_input(rows=4)
    halves = [{key: value[rows] for key, value in whole.items()} for rows in (slice(0, 2), slice(2, 4))]
    one = observe(small(2), [whole])
    model = small(2)
    targets = (torch.arange(whole["prev_output_tokens"].numel()) % VOCAB).view(4, -1)
    session = Session(model, get_probes("gradient_norm,ln_input,branch_dependency"))
    session.begin()
    for half, target in zip(halves, (targets[:2], targets[2:])):
        F.cross_entropy(model(**half)[0].flatten(0, 1), target.flatten(), reduction="sum").backward()
    session.gradients(1.0)
    two = session.values()
    for probe in two:
        close(two[probe], one[probe], 1e-4)


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
    close(values["ln_input"], observe(small(2), [net_input()], "ln_input")["ln_input"])
    assert len(values["branch_dependency"]) == 10


class LeftOut(Residual):
    """Residual whose branch is left out of a token at random, as in stochastic depth."""

    def forward(self, x, f):
        return x + f * (torch.rand(*f.shape[:-1], 1) > 0.3)


def test_probes_use_up_no_random_numbers():
    """Probes consume no random numbers, even where a residual that they evaluate draws some."""
    left = []
    for probed in (False, True):
        model = small(2, dropout=0.1).train()
        for layer in model.encoder.layers:
            layer.residual["ffn"] = LeftOut()
        torch.manual_seed(4)
        if probed:
            observe(model, [net_input()])
        else:
            loss_of(model, net_input()).backward()
        left.append([torch.get_rng_state(), *(parameter.grad for parameter in model.parameters())])
    assert all(map(torch.equal, *left))


def test_overflow_and_loss_scale(tmp_path):
    """An update that overflows leaves no row; its next attempt does, with the gradients of the mean loss."""
    model, inputs = small(2), net_input()
    probes = TrainingProbes(model, get_probes("gradient_norm"), 1, tmp_path, {"method": "deepnorm"})
    for made in (False, True):
        model.zero_grad()
        probes.before_batch(0)
        (loss_of(model, inputs) * 64).backward()
        probes.see_gradients(1 / 64)
        probes.end_update(made)
        assert not probes.session.watching
        assert set(read_record(tmp_path / "probes.jsonl").rows) == ({0} if made else set())
    norms = read_record(tmp_path / "probes.jsonl").rows[0]["gradient_norm"]
    close(norms, observe(small(2), [inputs])["gradient_norm"], 1e-4)


def test_names():
    assert get_probes(None) == [] and get_probes("all") == list(PROBES.values())
    assert get_probes("ln_input, gradient_norm,ln_input") == [PROBES["ln_input"], PROBES["gradient_norm"]]
    for wrong in ("", "ln_input,x"):
        with pytest.raises(UserError, match="--deepnet-probe .*: choose some of branch_dependency,gradient_norm"):
            get_probes(wrong)
    with pytest.raises(UserError, match="--probe-interval 0: must be at least 1"):
        small(2, deepnet_probe="all", probe_interval=0)


def test_record_round_trip(tmp_path):
    """Records are read as written; a repeated update replaces its row, and a fresh run starts over."""
    path = tmp_path / "run" / "probes.jsonl"
    writer = Writer(path, {"method": "deepnorm"}, fresh=True)
    for update, value in ((0, 1.0), (5, 2.0), (5, 3.123456), (10, math.inf)):
        writer.append_row(update, {"model_update": {"decoder": value}})
    Writer(path, {"method": "deepnorm"}, fresh=False).append_row(15, {"ln_input": {"decoder.1.ffn": 4.0}})
    record = read_record(path)
    assert record.header["method"] == "deepnorm" and record.updates() == [0, 5, 10, 15]
    updates, values = record.series("model_update", "decoder")
    assert updates == [0, 5, 10] and values[:2] == [1.0, 3.1235] and math.isnan(values[2])
    with open(path, "a") as file:
        file.write('{"update": 20, "model_upd')  # cut off by a kill
    assert read_record(path).updates() == [0, 5, 10, 15]
    Writer(path, {"method": "deepnorm", "interval": 3}, fresh=False).append_row(21, {"model_update": {"decoder": 5.0}})
    assert read_record(path).updates() == [0, 5, 10, 15, 21] and read_record(path).header["interval"] == 3
    Writer(path, {"method": "deepnorm"}, fresh=True)
    assert read_record(path).rows == {}


REFUSED = [
    ("", "is of format None, this package reads 1"),
    ('{"format": 1}\n{"update": 1, "a": 3}\n', "is no record of probes, or broken"),
    ('{"format": 2}\n', "is of format 2, this package reads 1"),
    (None, "no such file; train with --deepnet-probe"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_broken_records(tmp_path, text, message):
    path = tmp_path / "probes.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=f"probes.jsonl: {message}"):
        read_record(path)
