"""B2T, bottom-to-top: Post-LN, but the last branch of a layer gives LN(entry + x + f(x)), entry the layer's input.

Takase et al. 2023, "B2T Connection: Serving Stability and Performance in Deep Transformers" (arXiv 2206.00330): a path
in each layer, of both stacks, around all its LayerNorms but the last. Evidence from text generation, translation at
18L-18L among it. The authors' code draws fairseq's initialisation of its time, our default too, and then multiplies all
matrices of branches, not their biases, by N^(-1/2) for N layers in the stack, which its README does not mention:
`--b2t-rescale`. Beyond 18L-18L its README asks for `--clip-norm 0.1`.
"""

from torch import nn

from .base import Method, Option, register


class Bottom(nn.Module):
    """Shortcut x + entry of a layer's last branch: x the branch's input, entry the layer's, (.., C) each."""

    def forward(self, x, entry):
        return x + entry


@register("b2t")
class B2T(Method):
    """Post-LN in which the layer's input is added to the shortcut of the layer's last branch."""

    title = "B2T"
    equation = "LN(x + f(x)); a layer's last one LN(entry + x + f(x))"
    paper = "Takase et al. 2023"
    norm = "post"
    options = {"rescale": Option(False, "draw the branches' matrices N^(-1/2) as wide, N layers, as the authors' code")}

    def bypass(self, site):
        return Bottom()

    def gain(self, site, role):
        return self.depth(site.stack) ** -0.5 if self.rescale else 1.0

    def coefficients(self, stack):
        return {"gain": self.depth(stack) ** -0.5} if self.rescale else {}

    def constants(self, stack):
        # the factor on `entry`, by which checkpoints differ from those of Post-LN, which have the same parameters
        return {"entry": 1.0}
