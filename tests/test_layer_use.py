"""`deepnet layer-use`: what layers do, against models of which it is known; the command, its record, its picture."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from torch.nn.functional import cross_entropy

from deepnet_fairseq.cli import main
from deepnet_fairseq.core import archs
from deepnet_fairseq.core.layer_use import StackUse, Use, angular_distance, arrival, half, measure, used, work
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.modules import submodules

from .conftest import TRAIN_FLAGS
from .support.helpers import PAD, USER_DIR, assert_refused, run
from .support.lm_trainings import FLAGS, KINDS, make_text
from .support.single_stacks import EVERY, MASK, awake, inputs

LAYERS = 3
SLOTS = (
    "resi_dual",
    "mhc",
    "dlcl",
)  # wide streams, with an end of their own, a mixer; the others are in the smoke test


def sample(kind=archs.MODEL_NAME):
    """As fairseq's tasks give it."""
    given = inputs(kind)
    if kind == archs.MODEL_NAME:
        net_input = dict(zip(("src_tokens", "src_lengths", "prev_output_tokens"), given, strict=True))
        return {"net_input": net_input, "target": given[2].roll(-1, 1)}
    (tokens,) = given
    if kind == archs.LM:
        return {"net_input": {"src_tokens": tokens}, "target": tokens.roll(-1, 1)}
    hidden = torch.zeros_like(tokens, dtype=torch.bool)
    hidden[:, ::3] = True
    net_input = {"src_tokens": tokens.masked_fill(hidden, MASK)}
    return {"net_input": net_input, "target": tokens.masked_fill(~hidden, PAD)}


def nats(model, sample):
    """Of each sentence, (B,)."""
    with torch.no_grad():
        scores = model(**sample["net_input"])[0]
    each = cross_entropy(scores.transpose(1, 2), sample["target"], ignore_index=PAD, reduction="none")
    return each.sum(1).double()


def close(found, expected):
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


def rebuilt(model, kind, order, **fields):
    """A model with the layers of the last stack in that order, by its state dict."""
    stack = list(model.stacks())[-1]
    state = {key: value for key, value in model.state_dict().items() if not key.startswith(f"{stack}.layers.")}
    for place, index in enumerate(order):
        prefix = f"{stack}.layers.{index}."
        layer = {key.removeprefix(prefix): v for key, v in model.state_dict().items() if key.startswith(prefix)}
        state |= {f"{stack}.layers.{place}.{key}": value for key, value in layer.items()}
    other = awake(kind, LAYERS, **fields | {f"{stack}_layers": len(order)})
    other.load_state_dict(state)
    return other


# against models built otherwise


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("method", ["pre_ln", "post_ln"])
def test_a_skipped_layer_is_one_that_is_not_there(kind, method):
    """The same weights built with a layer less, or with two in each other's place; encoders of encoder-decoders too."""
    model, given = awake(kind, LAYERS, method=method), sample(kind)
    found = measure(model, [given])
    assert close(found.base, nats(model, given))
    last = found.stacks[list(model.stacks())[-1]]
    for l in range(LAYERS):
        without = rebuilt(model, kind, [k for k in range(LAYERS) if k != l], method=method)
        assert close(last.skip[l], nats(without, given))
    for l, order in enumerate([[1, 0, 2], [0, 2, 1]]):
        assert close(last.swap[l], nats(rebuilt(model, kind, order, method=method), given))
    assert tuple(last.skip.shape) == (LAYERS, 3) and tuple(last.lens.shape) == (LAYERS + 1, 3)


@pytest.mark.parametrize("method", SLOTS)
def test_hooks_that_pass_the_input_on_say_the_same(method):
    """Encoder and decoder, each layer, whatever is mixed between layers."""
    model, given = awake(archs.MODEL_NAME, LAYERS, method=method), sample()
    found = measure(model, [given])
    for name, stack in model.stacks().items():
        for l, layer in enumerate(stack.layers):
            with layer.register_forward_hook(lambda module, inputs, output: inputs[0]):
                assert close(found.stacks[name].skip[l], nats(model, given)), (name, l)


@pytest.mark.parametrize("method", SLOTS)
def test_the_lens_ends_at_the_model_s_own_loss(method):
    """And behind a layer it is the loss of a model whose later layers pass on what they read."""
    model, given = awake(archs.MODEL_NAME, LAYERS, method=method), sample()
    found = measure(model, [given])
    for name in ("encoder", "decoder"):
        assert close(found.stacks[name].lens[-1], nats(model, given))
    if method != "dlcl":  # whose mixer would mix what is passed on
        for name, stack in model.stacks().items():
            last = stack.layers[-1]
            with last.register_forward_hook(lambda module, inputs, output: inputs[0]):
                assert close(found.stacks[name].lens[-2], nats(model, given))


# properties


def test_a_layer_with_empty_branches_does_nothing():
    """Pre-LN, out_proj and fc2 zero: cost and angle are 0 exactly, not nearly; its neighbours do something."""
    model = awake(archs.MODEL_NAME, LAYERS, method="pre_ln")
    with torch.no_grad():
        for stack in model.stacks().values():
            layer = stack.layers[1]
            for weight in layer.weights():
                if weight.role in ("out", "fc2"):
                    weight.linear.weight.zero_()
                    weight.linear.bias.zero_()
    found = measure(model, [sample(), sample()])
    for stack in found.stacks.values():
        costs, errors = found.cost(stack.skip)
        assert costs[1] == errors[1] == stack.distance()[1] == 0
        assert used(costs, errors)[1] is False and min(abs(costs[0]), abs(costs[2]), stack.distance()[0]) > 1e-4
        assert torch.equal(stack.lens[1], stack.lens[2])


@pytest.mark.parametrize("method", ["deepnorm", "pre_ln"])
def test_equal_neighbours_may_change_places(method):
    model = awake(archs.MODEL_NAME, LAYERS, method=method)
    for stack in model.stacks().values():
        stack.layers[2].load_state_dict(stack.layers[1].state_dict())
    found = measure(model, [sample()])
    for stack in found.stacks.values():
        costs, errors = found.cost(stack.swap)
        assert costs[1] == errors[1] == 0 and costs[0] != 0


def test_a_layer_alone():
    """There is nobody to change places with, and fairseq would have its alignments."""
    found = measure(awake(archs.MODEL_NAME, 1), [sample()])
    for stack in found.stacks.values():
        assert (
            tuple(stack.skip.shape) == (1, 3)
            and tuple(stack.swap.shape) == (0, 3)
            and found.cost(stack.swap) == ([], [])
        )


def test_nothing_is_left_behind():
    """Weights, modes, hooks, random numbers; and twice gives the same."""
    model, given = awake(archs.MODEL_NAME, 2, method="dlcl", dropout=0.3).train(), sample()
    model.encoder.eval()
    before, modes = {k: v.clone() for k, v in model.state_dict().items()}, [m.training for m in model.modules()]
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first = measure(model, [given])
    assert torch.equal(torch.rand(1), expected)
    assert modes == [m.training for m in model.modules()]
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in submodules(model))
    assert torch.equal(measure(model, [given]).stacks["decoder"].swap, first.stacks["decoder"].swap)


def test_how_sentences_are_batched_says_nothing():
    """One at a time, without the padding of the longest: the same costs and angles."""
    model, given = awake(archs.MODEL_NAME, LAYERS, method="deepnorm"), sample()
    together, parts = measure(model, [given]), []
    for row in range(3):
        read = {key: tokens[row : row + 1] for key, tokens in given["net_input"].items() if tokens is not None}
        read["src_tokens"] = read["src_tokens"][read["src_tokens"].ne(PAD)].unsqueeze(0)
        parts.append({"net_input": read | {"src_lengths": None}, "target": given["target"][row : row + 1]})
    apart = measure(model, parts)
    assert torch.equal(apart.tokens, together.tokens)
    for name, stack in together.stacks.items():
        for runs in ("skip", "swap", "lens"):
            assert close(getattr(apart.stacks[name], runs), getattr(stack, runs))
        assert apart.stacks[name].distance() == pytest.approx(stack.distance(), rel=1e-5)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method(method, kind):
    """Hooks agree with what is measured, under any method, in any model."""
    model, given = awake(kind, LAYERS, method=method), sample(kind)
    found = measure(model, [given], block=2)
    for name, stack in model.stacks().items():
        of_stack = found.stacks[name]
        assert close(of_stack.lens[-1], nats(model, given))
        with stack.layers[1].register_forward_hook(lambda module, inputs, output: inputs[0]):
            assert close(of_stack.skip[1], nats(model, given))
        assert all(0 < angle < 1 for n in (1, 2) for angle in of_stack.distance(n))


# formulas


def test_angles():
    """Of vectors at known angles; exact where arccos of a rounded cosine is not."""
    for degrees in (0, 1e-4, 60, 90, 179.9999, 180):
        angle = math.radians(degrees)
        x, y = torch.tensor([[2.0, 0.0]]), 3 * torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
        assert angular_distance(x, y).item() == pytest.approx(degrees / 180, rel=1e-6), degrees
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    assert angular_distance(x, x).tolist() == [0.0] * 50


def test_distances_are_means_over_tokens():
    """Of what the layers read and give, seen by hooks; padding is left out; a block is from first to last."""
    model, given = awake(archs.MODEL_NAME, LAYERS, method="deepnorm"), sample()
    states = {"encoder": [], "decoder": []}
    handles = [
        layer.register_forward_hook(lambda module, inputs, output, name=name: states[name].append((inputs[0], output)))
        for name, stack in model.stacks().items()
        for layer in stack.layers
    ]
    nats(model, given)
    for handle in handles:
        handle.remove()
    found = measure(model, [given], block=2)
    for name, tokens in zip(
        states, (given["net_input"][key] for key in ("src_tokens", "prev_output_tokens")), strict=True
    ):
        mask = tokens.ne(PAD)
        for n in (1, 2):
            for first, angle in enumerate(found.stacks[name].distance(n)):
                x, y = states[name][first][0][mask], states[name][first + n - 1][1][mask]
                cosines = torch.cosine_similarity(x.double(), y.double(), dim=-1)
                assert angle == pytest.approx((cosines.acos() / math.pi).mean().item(), rel=1e-5)


def test_costs_are_paired_and_in_bits():
    """Sentences of 1, 2 and 3 tokens: a bit a token dearer is 1 bit without error, whatever they cost themselves."""
    tokens, base = torch.tensor([1, 2, 3]), torch.tensor([5.0, 1.0, 9.0]).double()
    nothing = torch.zeros(0, 3).double()
    found = Use({"decoder": StackUse(nothing, nothing, base.unsqueeze(0), {}, 1)}, tokens)
    assert found.bits(base) == pytest.approx(15 / 6 / math.log(2))
    costs, errors = found.cost(base + math.log(2) * torch.stack([tokens, torch.tensor([0, 2, 7])]))
    assert costs == pytest.approx([1, 1.5]) and errors[0] == pytest.approx(0, abs=1e-12)
    # d - cost n is -1.5, -1, 2.5 of the second: its variance is 9.5 / 2, the error of a mean sqrt(that / 3), n is 2
    assert errors[1] == pytest.approx(math.sqrt(9.5 / 2 / 3) / 2)
    assert used([1, 2, 2.1, -3], [1, 1, 1, 1]) == [False, False, True, False]


def test_what_it_comes_to():
    assert half([4, 1, 1, 1, 1]) == 1 and half([1, 1, 1, 1]) == 2 and half([3, -9, 2, 2]) == 2
    assert half([0, 0]) == half([-1, -2]) == 0
    assert arrival([9, 5.2, 6, 5.2, 5]) == 3 and arrival([5, 5, 5]) == 0 and arrival([9, 8, 5]) == 2


@pytest.mark.parametrize("kind", EVERY)
def test_only_what_lies_behind_is_run_again(kind):
    """As many layers as `work` says."""
    model, calls, told = awake(kind, LAYERS), [], []
    for stack in model.stacks().values():
        for layer in stack.layers:
            layer.register_forward_pre_hook(lambda *_: calls.append(1))
    measure(model, [sample(kind)], progress=told.append)
    assert sum(told) == work(model.stacks())
    assert len(calls) == sum(told)  # as many were skipped as the pass that hooks watch has run


# the command

TINY = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "3", "--decoder-layers", "2", "--max-update", "3")


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory):
    """Of a 3L-2L DeepNorm."""
    folder = tmp_path_factory.mktemp("layers")
    run("fairseq-train", data, *TRAIN_FLAGS, *TINY, "--save-dir", folder)
    return folder / "checkpoint_last.pt"


def measured(path, data, *words):
    """The record that the command writes."""
    record = path.with_name("found.run.json")
    main(["layer-use", str(path), str(data), "--json", str(record), *words])
    return json.loads(record.read_text())


def test_command(checkpoint, data, capsys):
    """Its loss is fairseq-validate's; tables have a row a layer; the record has what they show."""
    record = measured(checkpoint, data, "--block", "2")
    printed, found = capsys.readouterr().out, record["layer_use"]
    flags = ("--path", checkpoint, "--user-dir", USER_DIR, "--cpu", "--task", "translation", "--max-tokens", "2000")
    validated = run("fairseq-validate", data, *flags).stdout
    assert found["loss"] == pytest.approx(float(re.search(r"nll_loss ([\d.]+)", validated)[1]), abs=6e-4)
    assert record["run"] == {"method": "deepnorm", "encoder_layers": 3, "decoder_layers": 2, "seed": 1}
    assert found["sentences"] == 20 and found["checkpoint"].endswith("/checkpoint_last.pt")
    assert printed.startswith(f"3L-2L deepnorm: {found['loss']:.3f} bits per target token; 20 sentences of valid")
    for name, layers in (("encoder", 3), ("decoder", 2)):
        table = printed.split(f"\n{name}  ")[1].splitlines()[2:]
        assert [row.split()[0] for row in table[: layers + 1]] == [str(l) for l in range(layers + 1)]
        assert table[1].split()[1] == f"{found['stacks'][name]['distance'][0]:.4f}"
        assert len(found["stacks"][name]["distance_2"]) == layers - 1
        assert f"{name}: {sum(found['stacks'][name]['used'])} of {layers} layers are used" in printed


def test_fewer_sentences_are_spread_over_the_subset(checkpoint, data):
    """The same each time; so those of a test set too."""
    found = [measured(checkpoint, data, "--sentences", "5", "--subset", "test")["layer_use"] for _ in range(2)]
    assert found[0] | {"seconds": 0} == found[1] | {"seconds": 0}
    assert found[0]["sentences"] == 5 and found[0]["subset"] == "test"


@pytest.mark.parametrize("kind", ["causal", pytest.param("masked", marks=pytest.mark.smoke)])
def test_language_models(kind, tmp_path):
    text = make_text(tmp_path / "text")
    run("fairseq-train", text, *FLAGS, *KINDS[kind], "--max-update", "2", "--save-dir", tmp_path)
    stacks = measured(tmp_path / "checkpoint_last.pt", text)["layer_use"]["stacks"]
    (stack,) = stacks.values()
    assert list(stacks) == ["decoder" if kind == "causal" else "encoder"] and len(stack["skip"]) == 2


def test_picture(checkpoint, data, tmp_path, capsys):
    """Several records, one picture; a record of something else is named."""
    record = measured(checkpoint, data)
    runs = tmp_path / "layer_use"
    runs.mkdir()
    for method in ("deepnorm", "post_ln"):
        named = record | {"run": record["run"] | {"method": method}}
        (runs / f"{method}.run.json").write_text(json.dumps(named))
    main(["figures", str(tmp_path), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    used = sum(record["layer_use"]["stacks"]["encoder"]["used"])
    assert re.search(rf"3L-2L +Post-LN +[\d.]+ +encoder +{used} ", printed)
    assert (tmp_path / "out" / "layer_use.png").read_bytes().startswith(b"\x89PNG")
    del record["layer_use"]["stacks"]["decoder"]["lens"][0]
    (runs / "short.run.json").write_text(json.dumps(record))
    assert_refused("short.run.json: layer_use: is broken or not there", "figures", str(tmp_path))


def test_mistakes(checkpoint, data, tmp_path):
    """Each in a line; nothing is written."""
    path, out, bin = str(checkpoint), str(tmp_path / "found.json"), str(data)
    (tmp_path / "no.pt").write_text("no checkpoint")
    other = tmp_path / "other"
    other.mkdir()
    for file in data.iterdir():
        if file.is_file():
            (other / file.name).write_bytes(file.read_bytes())
    for dictionary in other.glob("dict.*.txt"):
        dictionary.write_text(dictionary.read_text() + "more 1\n")
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "dict.qaa.txt").write_text("")
    refused = {
        (str(tmp_path / "none.pt"), bin): "none.pt: no such file",
        (str(tmp_path / "no.pt"), bin): "no.pt: truncated, damaged or not a checkpoint",
        (path, str(tmp_path / "none")): f"{tmp_path / 'none'}: holds no dict.LANG.txt",
        (path, str(alone)): f"{alone}: Could not infer language pair",
        (path, str(other)): f"{other}: ",
        (path, bin, "--subset", "dev"): "holds no dev.",
        (path, bin, "--sentences", "1"): "--sentences 1: must be at least 2",
        (path, bin, "--block", "0"): "--block 0: must be at least 1",
        (path, bin, "--block", "3"): "--block 3: the model has 2 layers",
        (path, bin, "--json", str(tmp_path)): f"--json {tmp_path}: is a folder",
        (path, bin, "--json", path): f"--json {path}: is one of the files to read",
    }
    for words, said in refused.items():
        assert_refused(said, "layer-use", *words, *(() if "--json" in words else ("--json", out)))
    assert not (tmp_path / "found.json").exists()
