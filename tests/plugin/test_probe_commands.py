"""Tests of probes in fairseq-train: the training stays the same, in every mode, and log and file hold the values."""

from __future__ import annotations

import json
import math
import re
from typing import NamedTuple

import pytest
import torch

from deepnet_fairseq.cli import main
from deepnet_fairseq.plugin import divergence
from deepnet_fairseq.plugin.probe_record import Record, read_record
from deepnet_fairseq.plugin.probing import reference

from ..conftest import TRAIN_FLAGS
from ..support import ranks
from ..support.diverging import weights
from ..support.helpers import USER_DIR, run, small
from ..support.observing import net_input

ARCH = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "3", "--decoder-layers", "2")
PROBES = ("--deepnet-probe", "all", "--probe-interval", "2")
DROPOUT = ("--dropout", "0.1")
TWENTY_UPDATES = ("--max-update", "20", *DROPOUT)
ONE_UPDATE = ("--max-update", "1", "--dropout", "0", "--no-save")


def fairseq_train(data, folder, *flags, check=True):
    """Train a model of ARCH; checkpoints and probes.jsonl go to `folder`. Return the finished program."""
    return run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, "--save-dir", folder, *flags, check=check)


def logged_updates(output: str) -> list[dict]:
    """Return the log's row of each update."""
    return [json.loads(row) for row in re.findall(r"\| train_inner \| (\{.*\})", output)]


def assert_rows_close(actual, expected, tolerance):
    """Check that two rows of records, {probe: {address: value}}, agree up to a relative tolerance.

    Numbers below a tenth of a probe's largest may differ by more, because they are rounded differently.
    """
    assert actual.keys() == expected.keys()
    for probe in expected:
        assert actual[probe].keys() == expected[probe].keys()
        largest = max(map(abs, expected[probe].values()), default=0.0)  # a method may have learned no factors
        for address, value in expected[probe].items():
            near = pytest.approx(value, rel=tolerance, abs=tolerance * largest * 0.1)
            assert actual[probe][address] == near, address


class ProbedRun(NamedTuple):
    """A run of 20 updates with all probes at every second."""

    logged: list[dict]  # the row of each update in fairseq's log
    record: Record  # what probes.jsonl holds


@pytest.fixture(scope="module")
def folder_without_probes(data, tmp_path_factory):
    """Provide the folder of a run of 20 updates without probes, with dropout."""
    folder = tmp_path_factory.mktemp("plain")
    fairseq_train(data, folder, *TWENTY_UPDATES)
    return folder


@pytest.fixture(scope="module")
def folder_with_probes(data, tmp_path_factory):
    """Provide the folder of the same run with all probes, every second update; its output is in out.txt."""
    folder = tmp_path_factory.mktemp("probed")
    output = fairseq_train(data, folder, *TWENTY_UPDATES, *PROBES).stdout
    (folder / "out.txt").write_text(output)
    return folder


@pytest.fixture(scope="module")
def probed_run(folder_with_probes):
    """Provide what the run with probes has logged and recorded."""
    logged = logged_updates((folder_with_probes / "out.txt").read_text())
    return ProbedRun(logged, read_record(folder_with_probes / "probes.jsonl"))


def test_probes_change_no_bit_of_the_weights(folder_without_probes, folder_with_probes):
    plain = weights(folder_without_probes / "checkpoint_last.pt")

    probed = weights(folder_with_probes / "checkpoint_last.pt")

    assert probed.keys() == plain.keys()
    for name, weight in plain.items():
        assert torch.equal(probed[name], weight), name


def test_a_run_without_probes_has_no_record(folder_without_probes):
    assert not (folder_without_probes / "probes.jsonl").exists()


def test_a_row_is_recorded_at_every_interval(probed_run):
    assert probed_run.record.updates() == list(range(0, 20, 2))


def test_the_record_begins_with_facts_of_the_model(probed_run):
    header = probed_run.record.header

    assert header["method"] == "deepnorm"
    assert header["encoder_layers"] == 3


def test_every_update_is_logged_not_only_the_probed_ones(probed_run):
    losses = [row["loss"] for row in probed_run.logged]

    assert len(losses) == 20


@pytest.mark.parametrize(
    "probe, address",
    [("model_update", "decoder"), ("gradient_norm", "decoder.2"), ("gradient_norm", "encoder.3")],
)
def test_the_log_has_the_numbers_of_the_record(probed_run, probe, address):
    """fairseq logs an update that no probe watches without these columns, or with null."""
    column = f"{probe}/{address}"
    logged = [float(row[column]) for row in probed_run.logged if row.get(column) is not None]

    _updates, recorded = probed_run.record.series(probe, address)

    assert logged == pytest.approx(recorded, rel=1e-3, abs=2e-6)


@pytest.mark.parametrize(
    "probe, stack, layers, sublayer",
    [("ln_input", "decoder", 2, "encoder_attn"), ("branch_dependency", "encoder", 3, "ffn")],
)
def test_the_log_has_the_mean_over_the_layers_of_a_stack(probe, stack, layers, sublayer, probed_run):
    recorded = probed_run.record.rows[0][probe]
    of_layers = [recorded[f"{stack}.{layer}.{sublayer}"] for layer in range(1, layers + 1)]

    logged = float(probed_run.logged[0][f"{probe}/{stack}.{sublayer}"])

    assert logged == pytest.approx(sum(of_layers) / layers, rel=1e-3)


def test_the_model_moves_away_from_its_start(probed_run):
    """model_update is the distance of the outputs on one batch from those before the first update."""
    _updates, distances = probed_run.record.series("model_update", "decoder")

    assert distances[0] == 0
    assert min(distances[1:]) > 0
    assert distances[-1] > 5 * distances[1]


@pytest.mark.parametrize("update", [0, 10, 18])
def test_norms_of_the_parts_add_up_to_fairseqs_gnorm(probed_run, update):
    """Addresses with one dot, as decoder.2, cover each parameter once; those with more are parts of layers."""
    norms = probed_run.record.rows[update]["gradient_norm"]
    with_one_dot = [norm for address, norm in norms.items() if address.count(".") == 1]

    total = sum(norm**2 for norm in with_one_dot) ** 0.5

    assert total == pytest.approx(float(probed_run.logged[update]["gnorm"]), abs=2e-3)


def test_a_resumed_run_has_the_rows_of_an_undisturbed_one(data, probed_run, tmp_path):
    """After 9 updates the run is ended. The resumed run compares its outputs with those before the first update."""
    fairseq_train(data, tmp_path, "--max-update", "9", *DROPOUT, *PROBES)

    output = fairseq_train(data, tmp_path, *TWENTY_UPDATES, *PROBES).stdout

    resumed = read_record(tmp_path / "probes.jsonl")
    assert resumed.updates() == probed_run.record.updates()
    assert "probes.reference.pt" not in output  # the file of those outputs: a warning would say that it is lost
    assert_rows_close(resumed.rows[18], probed_run.record.rows[18], 1e-4)


def test_a_resumed_run_reads_the_outputs_of_its_start(tmp_path, caplog):
    """`reference` gives the outputs on one batch before the first update, which the first process writes to a file."""
    model = small(2)
    path = tmp_path / "probes.reference.pt"
    at_start = reference(model, net_input(), path, update=0, write=True)
    with torch.no_grad():
        model.decoder.embed_tokens.weight.mul_(2)  # as if updates had changed the model

    read = reference(model, net_input(), path, update=5, write=False)

    assert read.keys() == at_start.keys()
    for stack, outputs in at_start.items():
        assert torch.equal(read[stack], outputs)
    assert not caplog.records


@pytest.mark.parametrize(
    "is_damaged, seed_at_resume",
    [pytest.param(True, 0, id="the file is damaged"), pytest.param(False, 3, id="the batch is another one")],
)
def test_lost_outputs_of_the_start_are_replaced_with_a_warning(is_damaged, seed_at_resume, tmp_path, caplog):
    """The present outputs take the place of the lost ones.

    The warning names the file, and the update from which model_update counts.
    is_damaged: whether the file is damaged before the resume; seed_at_resume: seed of the held batch, 0 at the start
    """
    model = small(2)
    path = tmp_path / "probes.reference.pt"
    reference(model, net_input(seed=0), path, update=0, write=True)
    if is_damaged:
        path.write_bytes(b"broken")
    batch = net_input(seed=seed_at_resume)

    replaced = reference(model, batch, path, update=20, write=False)

    present = reference(model, batch, path, update=0, write=False)
    assert replaced.keys() == present.keys()
    for stack, outputs in present.items():
        assert torch.equal(replaced[stack], outputs)
    [warning] = [record.getMessage() for record in caplog.records]
    assert str(path) in warning
    assert "update 20" in warning


@pytest.fixture(scope="module")
def first_row(data, tmp_path_factory):
    """Provide a function of flags that makes one update of two batches, and returns the record's row of it."""

    def train_and_read(*flags):
        folder = tmp_path_factory.mktemp("row")
        fairseq_train(data, folder, *ONE_UPDATE, "--update-freq", "2", *PROBES, *flags)
        return read_record(folder / "probes.jsonl").rows[0]

    return train_and_read


@pytest.fixture(scope="module")
def row_of_two_batches(first_row):
    """Provide the record's row of an update of two batches without further flags, {probe: {address: value}}."""
    return first_row()


def test_recomputation_and_clipping_change_no_value(first_row, row_of_two_batches):
    """Gradients are read before clipping, and a forward pass that is made again for the backward pass counts once."""
    row = first_row("--checkpoint-activations", "--clip-norm", "0.001")

    assert_rows_close(row, row_of_two_batches, 1e-4)


@pytest.mark.parametrize("flags", [
    "--bf16", "--bf16 --memory-efficient-bf16",
    *(pytest.param(flag, marks=pytest.mark.smoke) for flag in ("--fp16", "--memory-efficient-fp16", "--amp")),
])  # fmt: skip
def test_half_precision_gradients_are_unscaled(first_row, row_of_two_batches, flags):
    """fairseq divides gradients by the loss scale only after the probes have read them."""
    half = first_row(*flags.split())["gradient_norm"]

    full = row_of_two_batches["gradient_norm"]
    for address in ("decoder.2", "encoder.1", "decoder.1.ffn.fc1", "encoder.embed_tokens"):
        assert half[address] == pytest.approx(full[address], rel=0.05)


def test_two_processes_report_what_one_reports_of_two_batches(data, tmp_path, row_of_two_batches):
    own = ("--save-dir", tmp_path / "two", "--ddp-backend", "legacy_ddp")

    ranks.train(2, tmp_path / "log", data, *TRAIN_FLAGS, *ARCH, *ONE_UPDATE, *PROBES, *own)

    record = read_record(tmp_path / "two" / "probes.jsonl")
    assert record.updates() == [0]
    assert_rows_close(record.rows[0], row_of_two_batches, 1e-3)


def test_a_checkpoint_of_a_probed_run_translates(data, folder_with_probes):
    checkpoint = folder_with_probes / "checkpoint_last.pt"

    output = run("fairseq-generate", data, "--user-dir", USER_DIR, "--path", checkpoint, "--cpu").stdout

    assert "Generate test" in output


def test_a_checkpoint_of_a_probed_run_is_averaged(folder_with_probes, folder_without_probes, tmp_path):
    """The checkpoint of the run without probes has the same weights, and so has the average."""
    with_probes = folder_with_probes / "checkpoint_last.pt"
    without_probes = folder_without_probes / "checkpoint_last.pt"

    main(["average", str(with_probes), str(without_probes), "--out", str(tmp_path / "mean.pt")])

    mean = weights(tmp_path / "mean.pt")
    for name, weight in weights(without_probes).items():
        assert torch.equal(mean[name], weight), name


def test_a_divergence_ends_the_record(data, tmp_path):
    """The error line names the update; the last row, of that update or an earlier one, holds null for a norm."""
    # t_fixup has no LayerNorms: nothing bounds the outputs
    wild = ("--method", "t_fixup", "--lr", "1e6", "--warmup-updates", "1", "--max-update", "20", "--no-save")
    probes = ("--deepnet-probe", "all", "--probe-interval", "1")

    done = fairseq_train(data, tmp_path, *wild, *probes, check=False)

    assert done.returncode == divergence.STATUS
    last_line = done.stdout.rstrip().splitlines()[-1]
    assert re.search(r"error: .*update \d+", last_line)
    record = read_record(tmp_path / "probes.jsonl")
    last = record.updates()[-1]
    assert last < 20
    assert any(math.isnan(norm) for norm in record.rows[last]["gradient_norm"].values())
