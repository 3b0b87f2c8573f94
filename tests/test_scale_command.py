"""`deepnet scale`: what it prints, what it chooses, what it refuses, what it measures."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.plan.fit import USABLE
from deepnet_fairseq.plan.flags import parse
from deepnet_fairseq.plan.memory import memory
from deepnet_fairseq.plan.scale import measured, time_layers, time_loading, time_update
from deepnet_fairseq.plan.scale.measurement import disk_rates, one_thread
from deepnet_fairseq.plan.scale.recorded import RECORDED
from deepnet_fairseq.plan.setting import GIB, SHARDING_FLAGS

from .support.helpers import ROOT
from .support.refused import assert_refused

MODEL = ["--arch", "deepnet_transformer_18_18", "--share-all-embeddings", "--bf16", "--optimizer", "deepnet_adam"]


def scaled(capsys, *flags) -> dict:
    main(["scale", *MODEL, *flags, "--json"])
    return json.loads(capsys.readouterr().out)


def test_what_is_chosen_fits(capsys):
    """By deepnet plan, of the same flags; the batch is the one asked for; twice the tokens would not fit."""
    found = scaled(capsys, "--gpus", "8", "--gpu-memory", "10", "--efficiency", "0.3")["gpus"]["8"]
    for sharding, one in found.items():
        tokens = one["max_tokens"]
        assert tokens * one["update_freq"] * 8 == 256 * 4096
        flags = [*MODEL, "--gpus", "8", *SHARDING_FLAGS[sharding].split(), *one["flags"].split()]
        flags += ["--optimizer", "adam"] if sharding == "fully_sharded" else []
        peaks = [
            memory(parse([*flags, "--max-tokens", str(size), "--update-freq", "2"])).peak
            for size in (tokens, 2 * tokens)
        ]
        assert peaks[0] <= USABLE * 10 * GIB
        assert peaks[1] > USABLE * 10 * GIB or tokens == 16_384


def test_days_and_shares_add_up(capsys):
    found = scaled(
        capsys, "--gpus", "64", "--pairs", "1e9", "--length", "20", "--batch", "500000", "--efficiency", "0.2,0.4"
    )
    assert found["updates"] == 40_000 and found["passes"] == pytest.approx(1)
    for one in found["gpus"]["64"].values():
        slow, fast = one["times"]
        assert slow["parts"]["computing"] == pytest.approx(2 * fast["parts"]["computing"], rel=0.1)
        for time in (slow, fast):
            assert time["days"] == pytest.approx(40_000 * sum(time["parts"].values()) / 86_400)
            assert time["gpu_hours"] == pytest.approx(time["days"] * 24 * 64)
            assert time["limit"] == max(time["parts"], key=time["parts"].get)


def test_slow_parts_become_the_limit(capsys, tmp_path):
    """A network, a loader, a disk that are a thousand times slower."""
    slow = tmp_path / "slow.json"
    replace(RECORDED, loader=RECORDED.loader / 1000).dump(slow)
    for flags, limit in (
        (["--inter-bandwidth", "0.01"], "network"),
        (["--measured", str(slow)], "loading"),
        (["--storage-bandwidth", "0.0001", "--mtbf", "500"], "saves and failures"),
    ):
        found = scaled(capsys, "--gpus", "16", "--efficiency", "0.4", *flags)
        assert {one["times"][0]["limit"] for one in found["gpus"]["16"].values()} == {limit}


def test_the_documented_example(capsys):
    """docs/scaling.md, 3.2 B parameters on 64 GPUs; correct it there when this fails."""
    flags = ["--arch", "deepnet_transformer_large_100_100", "--vocab", "250002", "--gpus", "64"]
    found = scaled(capsys, *flags)
    slow, fast = found["gpus"]["64"]["os"]["times"]
    days = f"{fast['days']:.1f} to {slow['days']:.0f}"
    hours = " to ".join(f"{round(one['gpu_hours'], -3):,.0f}" for one in (fast, slow))
    page = (ROOT / "docs" / "scaling.md").read_text()
    assert f"| | 64 | ZeRO, 4,096 x 4 | {days} | {hours} |" in page
    by_one = found["gpus"]["64"]["os"]["saves"][0]
    assert f"every {by_one['interval'] / 3600:.1f} h, {100 * by_one['lost']:.2f}% |" in page


def test_text_and_json_say_the_same(capsys):
    flags = ["--gpus", "8,512", "--hardware", "h100"]
    found = scaled(capsys, *flags)
    main(["scale", *MODEL, *flags])
    text = capsys.readouterr().out
    assert f"{found['parameters']:,} parameters" in text and "989 TFLOP/s" in text
    for gpus in ("8", "512"):
        for one in found["gpus"][gpus].values():
            slow, fast = one["times"]
            assert f"{fast['days']:,.1f} to {slow['days']:,.1f}" in text
    assert found["limits"][0]["gpus"] == 1


MISTAKES = [
    ("--hardware z80", "--hardware z80: unknown; there are v100"),
    ("--gpus many", "--gpus many: give numbers"),
    ("--gpus 0", "--gpus 0: must be at least 1"),
    ("--pairs 0", "--pairs 0"),
    ("--pairs nan", "--pairs nan"),
    ("--batch 0", "--batch 0"),
    ("--updates 0", "--updates 0"),
    ("--efficiency 1.5", "--efficiency 1.5: shares of the peak"),
    ("--mtbf 0", "--mtbf 0: must be above 0"),
    ("--storage-bandwidth -1", "--storage-bandwidth"),
    ("--network-share 2", "--network-share 2"),
    ("--restart -1", "--restart -1"),
    ("--num-workers 0", "--num-workers 0"),
    ("--zero-sharding os", "--zero-sharding: all modes"),
    ("--update-freq=8", "--update-freq: all modes"),
    ("--lr 1", "unknown: --lr 1"),
    ("--measured nowhere.json", "nowhere.json"),
    ("--measure nowhere/here.json", "--measure nowhere/here.json: there is no folder"),
]


@pytest.mark.parametrize(("flags", "message"), MISTAKES)
def test_mistakes_end_in_one_line(flags, message):
    assert_refused(message, "scale", *flags.split())


def test_too_many_gpus_for_a_batch(capsys):
    found = scaled(capsys, "--gpus", "8", "--batch", "64")
    assert all("too few for 8 GPUs" in reason for reason in found["gpus"]["8"].values())


def test_measured_times_come_back(tmp_path):
    RECORDED.dump(tmp_path / "times.json")
    assert measured.load(tmp_path / "times.json") == RECORDED


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"widths": []}, {"loader": "fast"}, {"matmul": -1}, {"extra": 1}, {"adam": True}]
)
def test_other_files_are_refused(tmp_path, change):
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"format": 1} | asdict(RECORDED) | change))
    with pytest.raises(measured.UserError, match="--measured .*times.json"):
        measured.load(path)


def test_recorded_times_are_those_of_the_results():
    found = measured.load(ROOT / "results" / "scaling.json")
    for name in ("matmul", "adam", "loader", "index_seconds", "index_bytes", "write", "read"):
        assert getattr(RECORDED, name) == pytest.approx(getattr(found, name), rel=0.01)
    for mine, theirs in zip(RECORDED.widths, found.widths, strict=True):
        for stack in measured.STACKS:
            assert asdict(getattr(mine, stack)) == pytest.approx(asdict(getattr(theirs, stack)), rel=0.01)


def test_times_of_this_machine(tmp_path):
    """Wide bounds, for machines differ: a layer's times foresee an update within a factor of two."""
    with one_thread():
        tiny = time_layers.layer_times("tiny", 3)
        found = replace(RECORDED, widths=(tiny,), matmul=3 * tiny.encoder.flops / tiny.encoder.forward_token)
        compared = time_update.compare(found, "tiny", 6, turns=3)
    assert 0.5 < compared.ratio < 2
    assert tiny.dim == 64 and tiny.decoder.flops > tiny.encoder.flops


def test_loading_and_saving_of_this_machine(tmp_path, monkeypatch):
    """All tokens are counted; an epoch's order has at least the 8 bytes of a pair's number."""
    monkeypatch.setattr(time_loading, "PAIRS", 500)
    monkeypatch.setattr(time_loading, "INDEXED", 20_000)
    assert time_loading.loader_rate(tmp_path) > 1000
    seconds, size = time_loading.index_cost(tmp_path)
    assert 0 < seconds < 1e-4 and 8 <= size < 1000
    write, read = disk_rates(tmp_path / "checkpoint.pt", 2**22)
    assert min(write, read) > 1e5
    assert not list(tmp_path.glob("*.part*"))
