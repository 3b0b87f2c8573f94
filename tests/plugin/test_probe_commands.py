"""Tests of probes in fairseq-train: the training stays the same, in every mode, and log and file hold the values."""

import json
import math
import re

import pytest
import torch

from deepnet_fairseq.cli import main
from deepnet_fairseq.plugin.probe_record import read_record
from deepnet_fairseq.plugin.probing import reference

from ..conftest import TRAIN_FLAGS
from ..support import ranks
from ..support.helpers import run, small
from ..support.observing import net_input

ARCH = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "3", "--decoder-layers", "2")
PROBES = ("--deepnet-probe", "all", "--probe-interval", "2")


def train(data, folder, *flags, check=True):
    return run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, "--save-dir", folder, *flags, check=check).stdout


def weights(folder):
    return torch.load(folder / "checkpoint_last.pt", weights_only=False)["model"]


def close(actual, expected, tolerance):
    """Check that two rows of records agree, except in the largest single numbers, which round differently."""
    assert actual.keys() == expected.keys()
    for probe in actual.keys() - {"half_precision"}:
        assert actual[probe].keys() == expected[probe].keys()
        scale = max(map(abs, expected[probe].values()), default=0.0)  # a method may have learned no factors
        for address, value in expected[probe].items():
            assert actual[probe][address] == pytest.approx(value, rel=tolerance, abs=tolerance * scale * 0.1), address


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    """Provide a run of 20 updates without probes, with dropout."""
    folder = tmp_path_factory.mktemp("plain")
    train(data, folder, "--max-update", "20", "--dropout", "0.1")
    return folder


@pytest.fixture(scope="module")
def probed(data, tmp_path_factory):
    """Provide the same run with all probes, its output in out.txt."""
    folder = tmp_path_factory.mktemp("probed")
    out = train(data, folder, "--max-update", "20", "--dropout", "0.1", *PROBES)
    (folder / "out.txt").write_text(out)
    return folder


def test_probes_change_nothing(plain, probed):
    """Probes leave the weights after 20 updates bit-identical."""
    ours, theirs = weights(probed), weights(plain)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert not (plain / "probes.jsonl").exists()


def test_rows_and_log(probed):
    """Probes write a row every second update; fairseq's log has the same numbers, and its gnorm is their norm."""
    record = read_record(probed / "probes.jsonl")
    assert record.updates() == list(range(0, 20, 2))
    assert record.header["method"] == "deepnorm" and record.header["encoder_layers"] == 3
    logged = [json.loads(row) for row in re.findall(r"\| train_inner \| (\{.*\})", (probed / "out.txt").read_text())]
    assert len(logged) == 20 and all("loss" in row for row in logged)
    for probe, address in (("model_update", "decoder"), ("gradient_norm", "decoder.2"), ("gradient_norm", "encoder.3")):
        values = [float(row[f"{probe}/{address}"]) for row in logged if row.get(f"{probe}/{address}") is not None]
        assert values == pytest.approx(record.series(probe, address)[1], rel=1e-3, abs=2e-6)
    assert "ln_input/decoder.encoder_attn" in logged[0] and "branch_dependency/encoder.ffn" in logged[0]
    update = record.series("model_update", "decoder")[1]
    assert update[0] == 0 and all(later > 0 for later in update[1:]) and update[-1] > 5 * update[1]
    for update in (0, 10, 18):
        norms = [v for a, v in record.rows[update]["gradient_norm"].items() if a.count(".") == 1]
        assert sum(v * v for v in norms) ** 0.5 == pytest.approx(float(logged[update]["gnorm"]), abs=2e-3)


def test_resumed_run_goes_on(data, probed, tmp_path):
    """A run resumed after 9 updates has the rows of an undisturbed one, because it remembers theta_0."""
    train(data, tmp_path, "--max-update", "9", "--dropout", "0.1", *PROBES)
    out = train(data, tmp_path, "--max-update", "20", "--dropout", "0.1", *PROBES)
    resumed, whole = read_record(tmp_path / "probes.jsonl"), read_record(probed / "probes.jsonl")
    assert resumed.updates() == whole.updates() and "counts from update" not in out
    close(resumed.rows[18], whole.rows[18], 1e-4)


def test_a_reference_that_is_lost(tmp_path, caplog):
    """A reference that is lost, damaged or of another batch is replaced, with a warning in the log."""
    model, kept = small(2), tmp_path / "probes.reference.pt"
    first = reference(model, net_input(), kept, 0, write=True)
    assert all(torch.equal(reference(model, net_input(), kept, 5, write=False)[name], first[name]) for name in first)
    assert not caplog.records
    reference(model, net_input(seed=3), kept, 20, write=False)
    kept.write_bytes(b"broken")
    reference(model, net_input(), kept, 20, write=False)
    for record in caplog.records:
        assert record.getMessage().endswith("does not hold the outputs of update 0; model_update counts from update 20")
    assert len(caplog.records) == 2


@pytest.fixture(scope="module")
def row(data, tmp_path_factory):
    """Provide the first row of a run with two batches an update, by flags."""

    def made(*flags):
        folder = tmp_path_factory.mktemp("row")
        train(data, folder, "--max-update", "1", "--no-save", "--dropout", "0", "--update-freq", "2", *PROBES, *flags)
        return read_record(folder / "probes.jsonl").rows[0]

    return made


@pytest.fixture(scope="module")
def accumulated(row):
    return row()


def test_checkpointing_and_clipping(row, accumulated):
    """Gradients are read whole and before clipping, and recomputed passes count once."""
    close(row("--checkpoint-activations", "--clip-norm", "0.001"), accumulated, 1e-4)


@pytest.mark.parametrize("flags", [
    "--bf16", "--bf16 --memory-efficient-bf16",
    *(pytest.param(flag, marks=pytest.mark.smoke) for flag in ("--fp16", "--memory-efficient-fp16", "--amp")),
])  # fmt: skip
def test_half_precision_gradients_are_unscaled(row, accumulated, flags):
    """Gradients in half precision are reported unscaled, although fairseq divides them only after clipping."""
    full, half = accumulated["gradient_norm"], row(*flags.split())["gradient_norm"]
    for address in ("decoder.2", "encoder.1", "decoder.1.ffn.fc1", "encoder.embed_tokens"):
        assert half[address] == pytest.approx(full[address], rel=0.05)


def test_two_ranks_are_one_larger_batch(data, tmp_path, accumulated):
    """Two processes report what one process reports that accumulates two batches."""
    words = [data, *TRAIN_FLAGS, *ARCH, "--max-update", "1", "--no-save", *PROBES, "--dropout", "0"]
    ranks.train(2, tmp_path / "log", *words, "--save-dir", tmp_path / "two", "--ddp-backend", "legacy_ddp")
    record = read_record(tmp_path / "two" / "probes.jsonl")
    assert record.updates() == [0]
    close(record.rows[0], accumulated, 1e-3)


def test_a_probed_checkpoint_translates_and_is_averaged(data, probed, plain, tmp_path):
    """fairseq-generate and `deepnet average` accept a checkpoint of a probed run."""
    out = run("fairseq-generate", data, "--user-dir", TRAIN_FLAGS[1], "--path", probed / "checkpoint_last.pt", "--cpu")
    assert "Generate test" in out.stdout
    both = [str(folder / "checkpoint_last.pt") for folder in (probed, plain)]
    main(["average", *both, "--out", str(tmp_path / "mean.pt")])


def test_divergence_is_named_and_recorded(data, tmp_path):
    """A divergence is named, with status 3, and recorded in rows of which the last holds null."""
    flags = ("--method", "t_fixup", "--lr", "1e6", "--warmup-updates", "1", "--max-update", "20")
    done = run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, *flags, "--no-save", "--save-dir", tmp_path,
               "--deepnet-probe", "all", "--probe-interval", "1", check=False)  # fmt: skip
    assert done.returncode == 3
    assert "error: diverged at update" in done.stdout.rstrip().splitlines()[-1]
    record = read_record(tmp_path / "probes.jsonl")
    last = record.rows[record.updates()[-1]]["gradient_norm"]
    assert any(math.isnan(norm) for norm in last.values()) and record.updates()[-1] < 20
