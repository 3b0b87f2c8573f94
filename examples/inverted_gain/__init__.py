"""User-defined methods: DeepNorm with the mistakes of code released with later papers, as a `--user-dir`.

The gain on v, out, fc1 and fc2 is (8N)^(+1/4) where Wang et al. 2022 have (8N)^(-1/4), and the shortcut's factor is
that of a 32-layer model, (2 * 32)^(1/4) = 2.8284, at every depth:

    pixeli99/MixLN@ff458269 and lmsdss/LayerNorm-Scaling@3ac54dde, peft_pretraining/modeling_llama.py

Their models have a decoder alone. A model with two stacks has both gains inverted here, 1 / beta each.
"""

import deepnet_fairseq

deepnet_fairseq.register()  # before methods of one's own

from deepnet_fairseq.core.methods import register  # noqa: E402
from deepnet_fairseq.core.methods.deepnorm import DeepNorm  # noqa: E402


@register("deepnorm_inverted_gain")
class InvertedGain(DeepNorm):
    """DeepNorm with 1 / beta in place of beta, and the correct alpha."""

    def gain(self, site, role):
        """Return 1 / beta for the matrices v, out, fc1 and fc2; q and k keep their gain of 1."""
        return 1 / super().gain(site, role)


@register("deepnorm_fixed_alpha")
class FixedAlpha(DeepNorm):
    """DeepNorm with the alpha of 32 decoder layers at every depth, and the correct beta."""

    def coefficients(self, stack):
        """Return DeepNorm's coefficients of the stack, with alpha = (2 * 32)^(1/4)."""
        return super().coefficients(stack) | {"alpha": (2 * 32) ** 0.25}


@register("deepnorm_inverted_gain_fixed_alpha")
class InvertedGainFixedAlpha(InvertedGain, FixedAlpha):
    """DeepNorm with both mistakes, as in the released code: `gain` of the first class, `coefficients` of the second."""
