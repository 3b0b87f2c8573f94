"""Admin without profiling: y = LN(omega x + dropout(f(x))), one omega for all branches of a stack, from their number.

Microsoft's package admin-torch (2022), by the authors of Admin. With n branches (2N in the encoder, 3M in the decoder,
2M without an encoder) the output's change under a small change of the parameters is to grow as
    log       O(log n)  omega = sqrt((n + 1) / ln(n + 1) - 1)   the default
    constant  O(1)      omega = sqrt(n)
    linear    O(n)      omega = 1, which is Post-LN
At n = 12: 2.017, 3.464, 1. The package leaves n to its user and divides by zero at n = 0; here n follows from the
depth. omega is a constant there by default, a trained vector (C,) in its translation scripts:
`--admin-torch-as-parameter`.
"""

import math

from ..slots import ConstantShortcut, LearnedShortcut
from .base import Method, Option, register

# growth of the output's change -> function of n that returns omega
OMEGA = {"log": lambda n: math.sqrt((n + 1) / math.log(n + 1) - 1), "constant": math.sqrt, "linear": lambda n: 1.0}


@register("admin_torch")
class AdminTorch(Method):
    """Post-LN with omega on each shortcut: a constant, or the value at first of a trained vector (C,).

    The option output_change chooses the formula in OMEGA that gives omega.
    """

    title = "Admin (2022)"
    equation = "LN(omega x + f(x)), omega from the depth"
    paper = "Liu et al. 2022 (admin-torch)"
    init_profiles = ("xavier_legacy", "fairseq_head")
    options = {
        "output_change": Option("log", "how the output's change is to grow with depth", tuple(OMEGA)),
        "as_parameter": Option(False, "train omega, one number a feature"),
    }

    def omega(self, stack: str) -> float:
        """Return the factor of every shortcut of `stack`; where it is trained, its initial value."""
        return OMEGA[self.output_change](self.branches(stack))

    def residual(self, site):
        omega = self.omega(site.stack)
        return LearnedShortcut(site.dim, omega) if self.as_parameter else ConstantShortcut(omega)

    def coefficients(self, stack):
        return {"omega": self.omega(stack)}

    def constants(self, stack):
        return {} if self.as_parameter else {"omega": self.omega(stack)}
