"""On a CUDA device: half precision at depth, and the same numbers as on the CPU."""

import pytest
import torch

from deepnet_fairseq.building import build
from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.probes.record import read_record
from deepnet_fairseq.profiling.start import take_profile

from .conftest import TRAIN_FLAGS
from .support.helpers import PAD, VOCAB, batch, logits, run_cold, small

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_100_layers_of_base_width_stay_finite(method, dtype):
    model = build("deepnet_transformer_100_100", vocab=VOCAB, method=method).cuda().to(dtype).train()
    src, prev = (tokens.cuda() for tokens in batch())
    scores = model(src, None, prev)[0].float()
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), prev.flatten(), ignore_index=PAD)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_same_as_on_the_cpu(method):
    model = small(6, method=method).double()
    src, prev = batch()
    expected = logits(model, src, prev)
    found = logits(model.cuda(), src.cuda(), prev.cuda()).cpu()
    assert torch.allclose(found[prev.ne(PAD)], expected[prev.ne(PAD)], atol=1e-9)


def test_profile_of_a_half_precision_model_is_the_cpus():
    """Taken in float32 whatever the model's type; no dropout, for the two devices draw it differently."""
    src, prev = batch()
    inputs = {"src_tokens": src, "src_lengths": None, "prev_output_tokens": prev}
    expected = take_profile(small(6, method="admin"), inputs, 1).omega
    found = take_profile(small(6, method="admin").cuda().half(), inputs, 1).omega
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=2e-3)


@pytest.mark.parametrize("precision", ["--fp16", "--memory-efficient-fp16", "--amp", "--bf16"])
def test_probed_gradients_are_unscaled(data, tmp_path, precision):
    """The first update's gradient norms in half precision are those of float32."""
    found = {}
    for name, flags in (("full", ()), ("half", ("--fp16", precision) if "fp16" in precision else (precision,))):
        train = [flag for flag in TRAIN_FLAGS if flag != "--cpu"]
        arch = ("--arch", "deepnet_transformer_tiny", "--dropout", "0", "--fp16-init-scale", "64")
        probes = ("--deepnet-probe", "all", "--probe-interval", "1", "--max-update", "1", "--no-save")
        run_cold("fairseq-train", data, *train, *arch, *probes, *flags, "--save-dir", tmp_path / name)
        found[name] = read_record(tmp_path / name / "probes.jsonl").rows[0]["gradient_norm"]
    for address in ("encoder.1", "decoder.6", "decoder.3.ffn.fc1", "encoder.embed_tokens"):
        assert found["half"][address] == pytest.approx(found["full"][address], rel=0.05)
