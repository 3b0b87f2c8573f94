"""Mix-LN: the first layers of a stack are Post-LN, LN(x + f(x)), the others Pre-LN, x + f(LN(x)), LN at the end.

Li, Yin, Liu 2024, "Mix-LN: Unleashing the Power of Deeper Layers by Combining Pre-LN and Post-LN" (arXiv:2412.13795),
for decoder language models. A quarter of the layers is Post-LN, rounded down, in the paper; its code
(pixeli99/MixLN) counts them by a variable, 3 of 12 layers and 6 of 24 in its scripts. Below four layers a quarter is
none, and all is Pre-LN.
Ours: encoders too, and all three branches of a decoder's layer alike.
"""

from ...errors import UserError
from .base import Method, Option, register


@register("mix_ln")
class MixLN(Method):
    """Post-LN in the first layers, Pre-LN in the others; UserError for a share outside [0, 1)."""

    title = "Mix-LN"
    equation = "LN(x + f(x)) in the first layers, x + f(LN(x)) in the others"
    paper = "Li et al. 2024"
    norm = "pre"
    options = {"share": Option(0.25, "share of a stack's layers, its first ones, that are Post-LN; rounded down")}

    def check(self):
        if not 0 <= self.share < 1:
            raise UserError(f"--mix-ln-share {self.share}", "must be at least 0 and below 1")

    def post_layers(self, stack: str) -> int:
        """Count the Post-LN layers of `stack`."""
        return int(self.share * self.depth(stack) + 1e-9)  # 0.29 x 100 is a little less than 29

    def norm_place(self, site):
        return "post" if site.layer <= self.post_layers(site.stack) else "pre"

    def coefficients(self, stack):
        return {"post_layers": float(self.post_layers(stack))}

    def constants(self, stack):
        return self.coefficients(stack)
