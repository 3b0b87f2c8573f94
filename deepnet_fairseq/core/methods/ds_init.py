"""DS-Init, depth-scaled initialisation: Post-LN with the std of the weights of layer l multiplied by l^(-1/2).

Zhang, Titov, Sennrich 2019, "Improving Deep Transformer with Depth-Scaled Initialization and Merged Attention", its
section "Depth-Scaled Initialization": W ~ U(-alpha g / sqrt(l), alpha g / sqrt(l)), g = sqrt(6 / (d_in + d_out)), for
every matrix of layer l, counted from 1 in each stack; alpha in (0, 1], 1 by default. Embeddings are not scaled.
The authors' code hands l^(-1/2) to an initialiser that takes a variance, so its std falls as l^(-1/4) only; we follow
the paper, and `--ds-init-exponent 0.25` computes what the code does. In the code q, k, v of self-attention are one
matrix (gain 1/sqrt2 each, as here) and those of cross-attention three (gain 1; here 1/sqrt2, by the profile
xavier_legacy). The paper pairs the method with merged attention, which is not part of it.
"""

import math

from ...errors import UserError
from .base import Method, Option, register


@register("ds_init")
class DSInit(Method):
    """Post-LN with the factor alpha l^(-exponent) on the std of every matrix of layer l.

    Raises a UserError for an exponent below 0 or infinite, and for an alpha outside (0, 1].
    """

    title = "DS-Init"
    equation = "LN(x + f(x)), W_l drawn alpha l^(-1/2) as wide"
    paper = "Zhang et al. 2019 (EMNLP)"
    init_profiles = ("xavier_legacy", "fairseq_head")
    options = {
        "exponent": Option(0.5, "the weights of layer l are scaled by l to the minus this"),
        "alpha": Option(1.0, "factor on the weights of all layers"),
    }

    def check(self):
        if not 0 <= self.exponent < math.inf:
            raise UserError(f"--ds-init-exponent {self.exponent}", "must be a number from 0 on")
        if not 0 < self.alpha <= 1:
            raise UserError(f"--ds-init-alpha {self.alpha}", "must be above 0 and at most 1")

    def gain(self, site, role):
        return self.alpha * site.layer**-self.exponent
