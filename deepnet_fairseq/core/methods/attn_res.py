"""Attention residuals: each branch reads a weighted mean of the embedding and of all branches before it.

    h_k = sum_i softmax_i(w_k . RMSNorm(v_i)) v_i,   v_0 the embedding, v_i = dropout(f_i(LN(h_i)))

"Attention Residuals" (arXiv:2603.15031), for decoder language models, in its full form: the softmax is over the
embedding and all earlier branches of the stack, for each token by itself. w_k (C,) is 0 at first, so that h_k begins as
a plain mean. The paper's block form, which keeps sums of eight groups of layers, is left out. Ours: encoders too, each
stack by itself.
The work grows with the square of the depth.
"""

import torch
from torch import nn

from ..pass_state import pass_state
from ..slots import FullPrecision
from .base import Method, register

# keys of two lists in the state of a forward pass (pass_state.py), by which the branches of a stack share
OUTPUTS = "attn_res_outputs"  # the v_i
KEYS = "attn_res_keys"  # the RMSNorm(v_i)


class MeanOfOutputs(FullPrecision):
    """Residual merge of branch k that returns h_{k+1}, the weighted mean of v_0 to v_k, which the next branch reads.

    The merge is called with the branch's shortcut x, which it reads in the first branch alone, and the branch's output
    f = v_k, (B, T, C) each; dim: C. As in attention, w_{k+1} is the query and the RMSNorm(v_i) are the keys.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(dim))

    def forward(self, x, f):
        state = pass_state()
        outputs = state.setdefault(OUTPUTS, [])
        keys = state.setdefault(KEYS, [])

        newest = (f,) if outputs else (x, f)  # the first branch's shortcut is v_0, the embedding
        for v in newest:
            outputs.append(v)
            keys.append(nn.functional.rms_norm(v, v.shape[-1:]))

        query = self.query.to(f.dtype)
        scores = []  # (B, T) each
        for key in keys:
            # the query takes each key's dtype: under autocast the embedding is float32 and branches are not
            score = torch.mv(key.flatten(0, -2), query.to(key.dtype))
            scores.append(score.view(key.shape[:-1]))
        weights = torch.stack(scores).softmax(0).unsqueeze(-1)  # (k + 1, B, T, 1)

        # added up one by one: stacking the outputs would copy all of them in each branch
        mean = weights[0] * outputs[0]
        for weight, v in zip(weights[1:], outputs[1:], strict=True):
            mean = torch.addcmul(mean, weight, v)
        return mean

    def branch_and_sum(self, x, f):
        """Return f and x + f, the sum that a plain Transformer would have here; probes compare the two."""
        return f, x + f


@register("attn_res")
class AttentionResiduals(Method):
    """Pre-LN with a MeanOfOutputs in place of every residual sum."""

    title = "AttnRes"
    equation = "sum_i softmax_i(w_k . RMSNorm(v_i)) v_i over the outputs v_i of all earlier branches"
    paper = "arXiv:2603.15031"
    norm = "pre"

    def residual(self, site):
        return MeanOfOutputs(site.dim)
