"""`deepnet quickstart`: `deepnet compare` on data of its own. The real programs run in tests/test_scripts.py."""

from __future__ import annotations

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.runs import RecordedRun

from .support.helpers import assert_refused
from .test_compare import pair, programs  # noqa: F401


def words(out, methods="deepnorm"):
    return ["quickstart", "--methods", methods, "--depth", "2", "--updates", "100", "--seed", "3", "--out", str(out)]


def test_it_trains_translates_and_compares_once(programs, pair, capsys):  # noqa: F811
    """A method that is added is trained alone."""
    out = pair.parent
    main(words(out))
    first = capsys.readouterr().out
    assert programs.names == ["train", "generate"]
    run = RecordedRun(out / "2L-2L-100-updates-seed3/deepnorm-lr1e-3")
    assert (run.depth, run.seed, run.bleu, run.environment["gpus"]) == ("2L-2L", 3, 100.0, 0)
    assert run.command.startswith(f"deepnet compare {pair} --methods deepnorm --depths 2 --lrs 1e-3 --seeds 3")
    (row,) = [line for line in first.splitlines() if line.startswith("deepnorm ")]
    assert row in (out / "result.txt").read_text() and (out / "loss.png").stat().st_size > 5000
    main(words(out))
    assert programs.names == ["train", "generate"] and capsys.readouterr().out == first
    main(words(out, "deepnorm,admin"))
    assert programs.names == ["train", "generate"] * 2
    flags = programs.asked[-2][1]
    assert "--method admin --admin-profile auto" in flags and "--seed 3 " in flags


def test_what_cannot_be_leaves_nothing(programs, tmp_path):  # noqa: F811
    out = str(tmp_path / "out")
    assert_refused("--method deepnrom: unknown", "quickstart", "--methods", "deepnorm,deepnrom", "--out", out)
    assert programs.asked == [] and not (tmp_path / "out").exists()
