"""DeepNorm with the mistakes of codes released beside later papers: a stranger's methods, in a `--user-dir` of its own.

The gain (8N)^(+1/4) on v, out, fc1 and fc2 where Wang et al. 2022 have (8N)^(-1/4), and the shortcut's factor of a
32-layer model, (2 * 32)^(1/4) = 2.8284, at every depth:
    pixeli99/MixLN@ff458269 and lmsdss/LayerNorm-Scaling@3ac54dde, peft_pretraining/modeling_llama.py
Their models have a decoder alone. With two stacks both gains are inverted here, 1 / beta each.
"""

import deepnet_fairseq

deepnet_fairseq.register()  # before methods of one's own

from deepnet_fairseq.core.methods import register  # noqa: E402
from deepnet_fairseq.core.methods.deepnorm import DeepNorm  # noqa: E402


@register("deepnorm_inverted_gain")
class InvertedGain(DeepNorm):
    """1 / beta in the place of beta; alpha is right."""

    def gain(self, site, role):
        return 1 / super().gain(site, role)


@register("deepnorm_fixed_alpha")
class FixedAlpha(DeepNorm):
    """The alpha of 32 decoder layers at every depth; beta is right."""

    def coefficients(self, stack):
        return super().coefficients(stack) | {"alpha": 64**0.25}


@register("deepnorm_inverted_gain_fixed_alpha")
class InvertedGainFixedAlpha(InvertedGain, FixedAlpha):
    """Both, as released."""
