"""Small experiments on the quickstart's corpus: an inverted gain as a stranger's method, the methods' first updates."""

import importlib.util
import json
import re

import pytest

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.slots import Site
from deepnet_fairseq.plugin.probe_record import read_record
from deepnet_fairseq.study.named_figures import redraw
from deepnet_fairseq.study.runs import runs_of
from scripts import small_tables

from .conftest import TRAIN_FLAGS
from .support.experiments import trainings, values
from .support.helpers import ROOT, run
from .support.reported import run as recorded
from .test_scripts import needs_venv

STRANGER = ROOT / "scripts" / "inverted_gain"


@pytest.fixture(scope="module")
def wrong():
    """Name -> class of the stranger's methods, which leave the registry again."""
    spec = importlib.util.spec_from_file_location("inverted_gain", STRANGER / "__init__.py")
    before = set(METHODS)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return {name: METHODS.pop(name) for name in METHODS.keys() - before}


@pytest.mark.parametrize("depths, stack, beta", [
    ((0, 6), "decoder", 48**-0.25), ((0, 24), "decoder", 192**-0.25), ((18, 18), "decoder", 216**-0.25),
    ((18, 18), "encoder", 0.87 * 18 ** (-5 / 16)),
])  # fmt: skip
def test_what_is_wrong_with_them(depths, stack, beta, wrong):
    """The gain of v, out, fc1, fc2, or alpha, or both; q and k as in the paper."""
    assert len(wrong) == 3
    for name, method in ((name, kind(*depths)) for name, kind in wrong.items()):
        gain = 1 / beta if "inverted_gain" in name else beta
        site = Site(stack, 1, "ffn", 64, 2)
        gains = [method.gain(site, role) for role in ("v", "out", "fc1", "fc2")]
        assert gains == pytest.approx([gain] * 4), name
        assert method.gain(Site(stack, 1, "self_attn", 64, 2), "q") == 1
        right = METHODS["deepnorm"](*depths).coefficients(stack)["alpha"]
        assert method.constants(stack)["alpha"] == method.residual(site).alpha
        assert method.residual(site).alpha == pytest.approx(2.828427 if "fixed_alpha" in name else right)


def test_a_stranger_trains_by_a_user_dir_of_its_own(data, tmp_path):
    flags = ("--user-dir", STRANGER, "--method", "deepnorm_inverted_gain", "--deepnet-probe", "gradient_norm")
    depth = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", 2, "--decoder-layers", 2, "--max-update", 2)
    said = run("fairseq-train", data, *TRAIN_FLAGS, *depth, *flags, "--no-save", "--save-dir", tmp_path).stdout
    assert '"num_updates": "2"' in said
    assert read_record(tmp_path / "probes.jsonl").updates()


@needs_venv
def test_trainings_differ_in_the_method_alone(tmp_path):
    """Of each model and seed: updates, learning rate, width, seed and data are one; wrong alphas at 24 layers alone."""
    groups: dict[tuple, dict[str, dict]] = {}
    for words in trainings("inverted_gain", OUT=tmp_path / "out"):
        found = values(words)
        model, _, seed = re.fullmatch(r".*/(\w+-\d+)(.*)-seed(\d)", found.pop("--save-dir")).groups()
        method = found.pop("--method")
        groups.setdefault((model, seed), {})[method] = found | {"data": words[0]}
    assert len(groups) == 12 and not (tmp_path / "out").exists()
    for (model, seed), variants in groups.items():
        flags = variants["deepnorm"]
        assert len(variants) == (4 if model == "lm-24" else 2) and all(one == flags for one in variants.values())
        assert (flags["--seed"], flags["--max-update"], flags["--lr"]) == (seed, "400", "1e-3")
        assert flags["--user-dir"] == "scripts/inverted_gain" and model.endswith("-" + flags["--decoder-layers"])


@needs_venv
def test_every_method_is_trained_and_flags_are_passed_on(tmp_path):
    found = [values(words) for words in trainings("later_methods", OUT=tmp_path / "out")]
    assert {(flags["--method"], flags["--encoder-layers"]) for flags in found} >= {
        (name, depth) for name in METHODS for depth in ("6", "18")
    }
    word = "normformer+normformer-scale-residual+normformer-head-scale=none"
    (flags,) = map(values, trainings("later_methods", METHODS=word, DEPTHS=2, UPDATES=7, OUT=tmp_path / "out"))
    said = {"--normformer-scale-residual": "", "--normformer-head-scale": "none", "--max-update": "7"}
    assert said.items() <= flags.items() and flags["--save-dir"].endswith(f"{word.translate({43: 45, 61: 45})}-2-seed1")


def write(root, name, final, norms, depth=6, **facts):
    """A language model's run that ends at `final` bits in training, 0.5 above it in validation."""
    rows = [
        ("train_inner", {"num_updates": str(update), "loss": str(final), "wall": "1", "gnorm": str(norm)})
        for update, norm in zip((25, 100, 200, 400), norms, strict=True)
    ]
    rows.append(("valid", {"epoch": 1, "valid_loss": str(final + 0.5), "valid_num_updates": "400"}))
    text = "".join(f"now | INFO | {tag} | {json.dumps(row)}\n" for tag, row in rows)
    folder = recorded(root, "inverted_gain", name, log=text)
    (folder / "run.json").write_text(json.dumps({"method": "deepnorm", "decoder_layers": depth, "seed": 1} | facts))
    return folder


def test_medians_and_ranges_over_seeds(tmp_path):
    """How the tables of the other pages look, the records of results/ show."""
    for seed, final in ((1, 3.5), (2, 2.5), (3, 4.5)):
        write(tmp_path, f"a-{seed}", final, [seed, 1.0, 1.0, 2 * seed], seed=seed, variant="")
    folder = write(tmp_path, "b", 7.5, [1.0, 1.0, 1.0, float("nan")], variant="inverted_gain")
    norms = {"decoder.1": 0.25, "decoder.1.self_attn.q": 1e-9, "decoder.6": 2.0}
    (folder / "probes.jsonl").write_text(f'{{"format": 1}}\n{json.dumps({"update": 0, "gradient_norm": norms})}\n')
    runs = runs_of(tmp_path, "inverted_gain")
    header, *rows = small_tables.rows_inverted(runs)
    means = ["3.50 (2.50 to 4.50)", "4.00 (3.00 to 5.00)", "16.0 (8.00 to 32.0)", "2.00 (1.00 to 3.00)"]
    assert rows[0] == ["6L", "DeepNorm", "3", *means, "1.00 (1.00 to 1.00)", "4.00 (2.00 to 6.00)"]
    assert rows[1] == ["6L", "gain inverted", "1", "7.50", "8.00", "256", "1.00", "1.00", "-"]
    (row,) = small_tables.rows_gradients(runs)[1:]
    assert row == ["6L", "gain inverted", "0", "0.25", "–", "2.0", "–", "–", "–", "1.0e-09", *["–"] * 5]
    assert "3.50 [2.50 to 4.50]" in redraw(tmp_path, "inverted_gain", tmp_path)
