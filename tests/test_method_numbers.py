"""Each method's numbers against closed forms worked out by hand, at width 512 and feed-forward width 2048."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from deepnet_fairseq.building import build
from deepnet_fairseq.initialisation import weight_std
from deepnet_fairseq.methods import get_method
from deepnet_fairseq.optim.t_fixup_schedule import TFixupSchedule, TFixupScheduleConfig
from deepnet_fairseq.transformer.slots import Site, Weight

from .support.helpers import SMALL, VOCAB, batch, logits, small

SHAPES = {"fc1": (512, 2048), "fc2": (2048, 512)}


def std(method, stack, layer, sublayer, role, profile=None):
    """The std a built method gives to one weight matrix of a base-width model (drawn so: test_init)."""
    linear = nn.Linear(*SHAPES.get(role, (512, 512)), device="meta")
    weight = Weight(Site(stack, layer, sublayer, 512, 8), role, linear, 512)
    return weight_std(method, profile or method.init_profiles[0], weight)


def method(name, N, M=None, **options):
    return get_method(name)(N, M or N, **options)


def extra_parameters(name, layers, **fields):
    """Parameters beside Post-LN's at width 512."""
    with torch.device("meta"):
        depths = {"vocab": 50, "encoder_layers": layers, "decoder_layers": layers}
        models = build(method=name, **depths, **fields), build(method="post_ln", **depths)
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
    return sizes[0] - sizes[1]


@pytest.mark.parametrize(("layer", "expected"), [(1, 0.0015528), (6, 0.0021501), (17, 0.0139754), (18, 0.0279508)])
def test_post_ln_init(layer, expected):
    built = method("post_ln_init", 18)
    assert std(built, "encoder", layer, "ffn", "fc2", "xavier_legacy") == pytest.approx(expected, rel=1e-4)
    for stack, sublayer, role in (("decoder", "encoder_attn", "q"), ("encoder", "self_attn", "out")):
        top = std(built, stack, 18, sublayer, role)
        assert std(built, stack, layer, sublayer, role) * (19 - layer) == pytest.approx(top)


def test_post_ln_init_on_fairseqs_own_init():
    assert std(method("post_ln_init", 18), "encoder", 1, "ffn", "fc2") == pytest.approx(0.00070877, rel=1e-4)


def test_post_ln_init_of_output_matrices_alone():
    built = method("post_ln_init", 18, weights="output")
    assert [built.gain(Site("decoder", 1, "ffn", 512, 8), role) for role in ("fc1", "fc2")] == [1, 1 / 18]


@pytest.mark.parametrize(("layers", "expected"), [(6, 15_360), (18, 46_080), (100, 256_000)])
def test_admin_parameters(layers, expected):
    """(2N + 3M) d."""
    assert extra_parameters("admin", layers) == expected


ADMIN_TORCH = {  # n branches: omega with growth O(log n)
    12: 2.017009, 18: 2.335132, 36: 3.040839, 54: 3.567189, 100: 4.569966, 200: 6.074611, 300: 7.193138,
    1000: 11.995359, 1500: 14.290767,
}  # fmt: skip


@pytest.mark.parametrize("layers", [6, 18, 50, 100, 500])
def test_admin_torch(layers):
    for stack, n in (("encoder", 2 * layers), ("decoder", 3 * layers)):
        if n in ADMIN_TORCH:
            assert method("admin_torch", layers).omega(stack) == pytest.approx(ADMIN_TORCH[n], abs=6e-7)
        assert method("admin_torch", layers, output_change="constant").omega(stack) == pytest.approx(math.sqrt(n))
        assert method("admin_torch", layers, output_change="linear").omega(stack) == 1


@pytest.mark.parametrize(("layers", "size", "used"), [(6, 49, 28), (18, 361, 190), (100, 10_201, 5_151)])
def test_dlcl_weights(layers, size, used):
    for stack in ("encoder", "decoder"):
        weight = method("dlcl", layers).mixer(stack, 8).weights.weight
        assert (weight.numel(), weight.count_nonzero().item()) == (size, used)
        assert torch.allclose(weight.sum(1), torch.ones(layers + 1))
        assert weight[0, 0] == 1
        assert torch.allclose(weight[-1], torch.full((layers + 1,), 1 / (layers + 1)))


def test_dlcl_window_averages_the_last_outputs():
    weight = method("dlcl", 6, window=3).mixer("encoder", 8).weights.weight
    assert weight[5].tolist() == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 0])
    assert weight[1].tolist() == pytest.approx([0.5, 0.5, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(("fields", "per_layer"), [({}, 5_128), ({"normformer_scale_residual": True}, 5_640)])
def test_normformer_parameters(fields, per_layer):
    """h + 2d + 2f a layer, + d with factors on the shortcut; and Pre-LN's two last LayerNorms."""
    assert extra_parameters("normformer", 6, **fields) == 12 * per_layer + 2 * 1024


@pytest.mark.parametrize(("options", "extra"), [({}, 12), ({"rezero_per_sublayer": True}, 30)])
def test_rezero_parameters(options, extra):
    """N + M factors, or one a branch; the 2N + 3M LayerNorms fall away."""
    assert extra_parameters("rezero", 6, **options) == extra - 30 * 1024


R_FIXUP = {  # N = M: L, std of q, k, v and of fc1
    6: (30, 0.017728, 0.005103), 18: (90, 0.014762, 0.002946), 50: (250, 0.012451, 0.001768),
    100: (500, 0.011092, 0.001250),
}  # fmt: skip


@pytest.mark.parametrize("layers", R_FIXUP)
def test_r_fixup(layers):
    branches, qkv, fc1 = R_FIXUP[layers]
    assert branches == 2 * layers + 3 * layers
    built = method("r_fixup", layers)
    for stack in ("encoder", "decoder"):
        for sublayer in built.sublayers(stack)[:-1]:
            for role in ("q", "k", "v"):
                assert std(built, stack, 1, sublayer, role) == pytest.approx(qkv, rel=5e-4)
            assert std(built, stack, 1, sublayer, "out") == 0
        assert std(built, stack, 1, "ffn", "fc1") == pytest.approx(fc1, rel=5e-4)
        assert std(built, stack, 1, "ffn", "fc2") == 0


T_FIXUP = {  # N = M: encoder's and decoder's factor
    2: (0.563401, 0.485492), 6: (0.428092, 0.368894), 10: (0.376769, 0.324668), 18: (0.325279, 0.280299),
    50: (0.251960, 0.217119), 100: (0.211873, 0.182574), 500: (0.141688, 0.122095),
}  # fmt: skip
T_FIXUP_STD = {  # encoder v = out, fc; decoder v = out, fc; embedding
    6: (0.018919, 0.011966, 0.016303, 0.010311, 0.016303),
    18: (0.014375, 0.009092, 0.012388, 0.007835, 0.012388),
    100: (0.009364, 0.005922, 0.008069, 0.005103, 0.008069),
}


@pytest.mark.parametrize("layers", T_FIXUP)
def test_t_fixup(layers):
    built = method("t_fixup", layers)
    ends = [built.gain(Site(stack, 1, "ffn", 512, 8), "fc1") for stack in ("encoder", "decoder")]
    assert ends == pytest.approx(T_FIXUP[layers], abs=6e-7)
    assert std(built, "decoder", 1, "encoder_attn", "q") == pytest.approx(0.03125)
    if layers in T_FIXUP_STD:
        places = [("encoder", "self_attn", "v"), ("encoder", "ffn", "fc2")]
        places += [("decoder", "encoder_attn", "out"), ("decoder", "ffn", "fc1")]
        found = [std(built, stack, 1, sublayer, role) for stack, sublayer, role in places]
        found.append(built.embedding_gain("encoder") * 512**-0.5)
        assert found == pytest.approx(T_FIXUP_STD[layers], rel=2e-4)


def test_t_fixup_schedule():
    """lr sqrt(P / (P + t)) with P = 4000."""
    rates = []
    optimizer = SimpleNamespace(set_lr=rates.append, get_lr=lambda: rates[-1])
    schedule = object.__new__(TFixupSchedule)
    schedule.cfg, schedule.optimizer = TFixupScheduleConfig(lr=[5e-4]), optimizer
    assert [schedule.step_update(t) for t in (0, 4000, 12000)] == pytest.approx([5e-4, 3.5355e-4, 2.5e-4], rel=1e-4)


def test_t_fixup_scales_a_shared_embedding_once():
    """By the encoder's depth: (9 * 2)^(-1/4), not the decoder's, not both."""
    model = build(vocab=2000, method="t_fixup", encoder_layers=2, decoder_layers=3, share_all_embeddings=True)
    assert model.encoder.embed_tokens.weight.std().item() == pytest.approx(0.485492 * 512**-0.5, rel=0.01)


DS_INIT = {1: (1, 1), 2: (0.707107, 0.840896), 6: (0.408248, 0.638943), 12: (0.288675, 0.537285),
           18: (0.235702, 0.485492), 100: (0.1, 0.316228)}  # fmt: skip
DS_INIT_STD = {  # fc; q, k, v; out
    1: (0.027951, 0.03125, 0.044194), 2: (0.019764, 0.022097, 0.031250), 6: (0.011411, 0.012758, 0.018042),
    18: (0.006588, 0.007366, 0.010417), 100: (0.002795, 0.003125, 0.004419),
}  # fmt: skip


@pytest.mark.parametrize("layer", DS_INIT)
def test_ds_init(layer):
    built, code = method("ds_init", 100), method("ds_init", 100, exponent=0.25)
    site = Site("decoder", layer, "ffn", 512, 8)
    assert (built.gain(site, "fc1"), code.gain(site, "fc1")) == pytest.approx(DS_INIT[layer], abs=6e-7)
    if layer in DS_INIT_STD:
        found = [std(built, "encoder", layer, "ffn", "fc1"), std(built, "encoder", layer, "self_attn", "v")]
        found.append(std(built, "encoder", layer, "self_attn", "out"))
        assert found == pytest.approx(DS_INIT_STD[layer], rel=2e-4)


SUB_LN = {1: (0.503819, 1.048147), 2: (0.909928, 1.338566), 6: (1.547288, 1.700109), 18: (2.182857, 1.997244),
          100: (3.173875, 2.388259), 500: (4.103573, 2.704297)}  # fmt: skip
SUB_LN_STD = {6: (0.043248, 0.047520), 18: (0.061013, 0.055825)}


@pytest.mark.parametrize("layers", SUB_LN)
def test_sub_ln(layers):
    built = method("sub_ln", layers)
    assert (built.gamma("encoder"), built.gamma("decoder")) == pytest.approx(SUB_LN[layers], abs=6e-7)
    assert std(built, "decoder", 1, "encoder_attn", "v") == pytest.approx(512**-0.5)
    assert std(built, "decoder", 1, "self_attn", "q") == pytest.approx(512**-0.5)
    if layers in SUB_LN_STD:
        found = (std(built, "encoder", 1, "ffn", "fc1"), std(built, "decoder", 1, "ffn", "fc2"))
        assert found == pytest.approx(SUB_LN_STD[layers], rel=2e-4)


def test_branchnorm_rises_from_one_over_t():
    model = small(1, method="branchnorm", branchnorm_updates=10)
    residual = model.decoder.layers[0].residual["encoder_attn"]
    assert residual.a.item() == pytest.approx(0.1)
    for updates, expected in ((0, 0.1), (4, 0.5), (9, 1), (500, 1)):
        model.set_num_updates(updates)
        assert residual.a.item() == pytest.approx(expected)


def test_r_fixup_knows_nothing_at_first():
    """Without tied embeddings all scores are 0, and the loss is ln V."""
    assert not logits(small(3, method="r_fixup"), *batch()).any()


@pytest.mark.parametrize("name", ["r_fixup", "rezero"])
def test_branches_are_silent_at_first(name):
    """The encoder gives back what it reads, the decoder scores each word by its embedding."""
    model = small(3, method=name, share_all_embeddings=True)
    src, prev = batch()
    with torch.no_grad():
        x, _ = model.encoder.embed(src, model.encoder.positions(src))
        memory = model.encoder(src)["encoder_out"][0].transpose(0, 1)
        assert torch.allclose(memory[0], x[0], atol=1e-6)
        y, _ = model.decoder.embed(prev, model.decoder.positions(prev))
        expected = y @ model.decoder.embed_tokens.weight.T
    assert torch.allclose(logits(model, src, prev), expected, atol=1e-5)


def test_first_step_of_rezero():
    """Only the factors, the embeddings and the output projection have a gradient."""
    model = build(vocab=VOCAB, method="rezero", encoder_layers=2, decoder_layers=2, **SMALL)
    src, prev = batch()
    scores = model(src, None, prev)[0]
    nn.functional.cross_entropy(scores.flatten(0, 1), prev.flatten()).backward()
    moved = {name for name, p in model.named_parameters() if p.grad.abs().max() > 0}
    factors = {f"{stack}.layers.{l}.residual.self_attn.a" for stack in ("encoder", "decoder") for l in (0, 1)}
    # nothing reaches the encoder while the factor on cross-attention is 0
    factors = {name for name in factors if name.startswith("decoder")}
    assert moved == factors | {"decoder.embed_tokens.weight", "decoder.output_projection.weight"}
