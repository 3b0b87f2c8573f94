"""`deepnet plan` of language models: parameters, operations and memory beside those of the models themselves."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from deepnet_fairseq import archs
from deepnet_fairseq.building import blank_task
from deepnet_fairseq.cli import main
from deepnet_fairseq.criterions.chunked import PLAIN
from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.models import MODELS
from deepnet_fairseq.plan import measure
from deepnet_fairseq.plan.fit import recommend
from deepnet_fairseq.plan.flags import parse
from deepnet_fairseq.plan.flops import flops
from deepnet_fairseq.plan.memory import memory
from deepnet_fairseq.plan.parameters import count
from deepnet_fairseq.plan.tracing import trace
from deepnet_fairseq.plan.trial import Trial

from .support.planned import allocated, storages_saved
from .support.refused import assert_refused

STACK = {archs.LM: "decoder", archs.MASKED_LM: "encoder"}
FORMS = {
    archs.LM: [[], ["--share-decoder-input-output-embed", "--decoder-learned-pos"], ["--layernorm-embedding"]],
    archs.MASKED_LM: [[], ["--untie-weights-roberta"], ["--encoder-learned-pos", "--layernorm-embedding"]],
}
FORMS = [(model, form) for model, forms in FORMS.items() for form in forms]


def planned(model: str, *flags: str):
    """A small setting: 3 layers of width 32, 8 samples of 20 tokens."""
    stack = STACK[model]
    widths = [f"--{stack}-layers=3", f"--{stack}-embed-dim=32", f"--{stack}-ffn-embed-dim=64"]
    widths.append(f"--{stack}-attention-heads=2")
    return parse(
        ["--arch", model, *widths, "--vocab=60", "--max-tokens=160", "--tokens-per-sample=20", "--cpu", *flags]
    )


def built(setting, device: str = "meta"):
    with torch.device(device):
        return MODELS[archs.model_of(setting.cfg)].build_model(setting.cfg, blank_task(setting.source_vocab))


@pytest.mark.parametrize(("model", "form"), FORMS)
def test_count_is_the_built_models(model, form):
    setting = planned(model, *form)
    own, found = built(setting), count(setting)
    assert found.total == sum(p.numel() for p in own.parameters())
    assert found.tensors == len(list(own.parameters()))
    around = ("embed_tokens", "embed_positions", "layernorm_embedding", "output_projection")
    body = own.stacks()[STACK[model]].named_parameters()
    assert getattr(found, STACK[model]) == sum(p.numel() for name, p in body if not name.startswith(around))


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("model", STACK)
def test_count_of_every_method(model, method):
    setting = planned(model, "--method", method)
    assert count(setting).total == sum(p.numel() for p in built(setting).parameters())


PUBLISHED = {"125m": 124.5e6, "355m": 355.0e6, "2.7b": 2649.5e6}  # Shleifer et al. 2021, table 1


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_sizes(size):
    found = count(parse(["--arch", f"normformer_lm_{size}", "--vocab", "51200"]))
    assert found.total == pytest.approx(PUBLISHED[size], rel=1e-3)


@pytest.mark.parametrize("model", STACK)
def test_flops_are_torchs(model):
    setting = planned(model, "--dropout", "0")
    trial = Trial(setting)
    with FlopCounterMode(display=False) as counter:
        loss = trial.trainer.criterion(trial.trainer.model, trial.batches[0])[0]
        forward = counter.get_total_flops()
        loss.backward()
    trial.close()
    found = flops(setting)
    assert forward == pytest.approx(found.forward * 160, rel=1e-9)
    assert counter.get_total_flops() == pytest.approx(found.step, rel=0.01)


def saved_bytes(setting) -> int:
    """What autograd keeps of a forward pass through fairseq's criterion: storages, once each, but parameters."""
    trial = Trial(setting)
    model = trial.trainer.model
    given = trial.batches[0]["net_input"].values()
    with storages_saved((*model.parameters(), *model.buffers(), *given)) as found:
        trial.trainer.criterion(model.train(), trial.batches[0])
    trial.close()
    return sum(found.values())


KEPT = [(model, ["--method", method]) for model in STACK for method in ("deepnorm", "normformer", "dlcl", "rezero")]
KEPT += [(archs.LM, ["--activation-fn", "relu_squared"]), (archs.MASKED_LM, ["--mask-prob", "0.5", "--bf16"])]
KEPT += [(model, form) for model, form in FORMS if "--layernorm-embedding" in form]


@pytest.mark.parametrize(("model", "flags"), KEPT)
def test_activations_are_what_autograd_keeps(model, flags):
    setting = planned(model, *flags)
    held = sum(segment.held_bytes for segment in trace(setting))
    assert held == pytest.approx(saved_bytes(setting), rel=0.03)


LARGE = ["--vocab", "3000", "--max-tokens", "1600"]
TRAININGS = [
    (archs.LM, ["--max-tokens", "1600"]),
    (archs.LM, ["--max-tokens", "1600", "--share-decoder-input-output-embed", "--checkpoint-activations"]),
    (archs.LM, ["--max-tokens", "1600", "--tokens-per-sample", "100", "--checkpoint-activations"]),
    (archs.LM, [*LARGE, "--criterion", PLAIN, "--loss-chunk-tokens", "256"]),
    (archs.LM, [*LARGE, "--optimizer", "deepnet_adam"]),
    (archs.MASKED_LM, [*LARGE]),
    (archs.MASKED_LM, [*LARGE, "--checkpoint-every", "3", "--update-freq", "2"]),
    (archs.MASKED_LM, ["--max-tokens", "1600", "--bf16"]),
]


@pytest.mark.parametrize(("model", "flags"), TRAININGS)
def test_peak_is_what_torch_hands_out(model, flags):
    """Through fairseq's Trainer, beside weights and optimiser, which were there before."""
    setting = planned(model, f"--{STACK[model]}-layers=9", *flags)
    trial = Trial(setting)
    for _ in range(2):
        trial.step()
    found = memory(setting)
    before = found.weights + found.optimiser + found.objects
    trial.trainer.zero_grad()
    measured = allocated(trial.step)
    trial.close()
    assert found.peak - before == pytest.approx(measured, rel=0.04)


BASE = ["--arch", "deepnet_lm_100", "--vocab", "51200", "--max-tokens", "8192", "--bf16"]


@pytest.mark.parametrize("memory_of_gpu", ["60", "24", "8"])
def test_what_is_recommended_fits(memory_of_gpu):
    """Each step needs less than the one before; the flags of the last, given back to the command, give its peak."""
    flags = [*BASE, "--gpu-memory", memory_of_gpu]
    options = recommend(parse(flags))
    peaks = [option.memory.peak for option in options]
    assert peaks == sorted(peaks, reverse=True)
    assert [option.fits for option in options] == [False] * (len(options) - 1) + [True]
    last = options[-1]
    again = parse([*flags, *last.flags.split(), "--gpus", str(last.setting.gpus)])
    assert memory(again) == last.memory
    assert ("loss in chunks" in [option.name for option in options]) == (len(options) > 1)


def test_a_masked_lms_loss_has_no_chunks():
    options = recommend(parse(["--arch", "deepnet_masked_lm_100", "--bf16", "--gpu-memory", "6", "--gpus", "4"]))
    assert options[-1].fits and len(options) > 1
    assert not any("chunk" in option.name or "criterion" in option.flags for option in options)


@pytest.mark.parametrize("model", STACK)
def test_report_speaks_of_the_one_stack(model, capsys):
    main(["plan", "--arch", f"{model}_48"])
    printed = capsys.readouterr().out
    absent = ({"encoder", "decoder"} - {STACK[model]}).pop()
    assert f"{model}_48, 48, deepnorm" in printed and STACK[model] in printed and absent not in printed


def test_measured_rate_takes_a_shallow_model():
    setting = planned(archs.LM, "--decoder-layers=9")
    assert archs.depths(measure._shallow(setting).cfg) == (0, measure.LAYERS)


MISTAKES = [
    ("--arch deepnet_lm --encoder-layers 6", "did you mean --decoder-layers?"),
    ("--arch deepnet_masked_lm --decoder-layers 6", "did you mean --encoder-layers?"),
    ("--arch deepnet_lm --share-all-embeddings", "unknown: --share-all-embeddings"),
    ("--arch deepnet_lm --vocab 3,4", "--vocab 3,4: a deepnet_lm has one vocabulary"),
    ("--arch deepnet_lm --criterion label_smoothed_cross_entropy", "knows cross_entropy or chunked_cross_entropy"),
    ("--arch deepnet_masked_lm --loss-chunk-tokens 64", "--loss-chunk-tokens 64: not of masked_lm"),
    ("--arch deepnet_masked_lm --mask-prob 0", "--mask-prob 0: must be above 0"),
    ("--arch deepnet_lm --tokens-per-sample 9000", "longer than a batch of --max-tokens"),
    ("--arch deepnet_lm_7", "did you mean deepnet_lm"),
]


@pytest.mark.parametrize(("flags", "said"), MISTAKES)
def test_mistakes_end_in_one_line(flags, said):
    assert_refused(said, "plan", *flags.split())
