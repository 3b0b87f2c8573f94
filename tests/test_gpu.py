"""On a CUDA device: half precision at depth, and the same numbers as on the CPU."""

import pytest
import torch

from deepnet_fairseq.building import build
from deepnet_fairseq.methods import METHODS

from .helpers import PAD, VOCAB, batch, logits, small

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
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("method", sorted(METHODS))
def test_same_as_on_the_cpu(method):
    model = small(6, method=method).double()
    src, prev = batch()
    expected = logits(model, src, prev)
    found = logits(model.cuda(), src.cuda(), prev.cuda()).cpu()
    assert torch.allclose(found[prev.ne(PAD)], expected[prev.ne(PAD)], atol=1e-9)
