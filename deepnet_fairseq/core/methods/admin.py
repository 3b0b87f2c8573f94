"""Admin: y = LN(omega o x + dropout(f(x))), omega a trained vector per branch that starts from a profile of the model.

Liu et al. 2020, "Understanding the Difficulty of Training Transformers", section 4.3, and "Very Deep Transformers for
Neural Machine Translation", section 2. In one forward pass in training mode every omega is set as the pass reaches it
(core/profile.py):
    omega_1 = 1,  omega_{i+1}^2 = Var(omega_i o x_i) + Var(f_i)     per stack, the decoder starting at 1 again
The paper measures all branches with omega = 1 and leaves Var(x_0) out; we follow the authors' code, which computes the
above. It keeps the profile in a side file that even generation needs; ours is read once and lives in the checkpoint.
omega_1 of each stack stays at 1 (`--admin-train but_first`), so that a trained model folds into a Transformer without
untying its embeddings; the authors train it too (`all`), and report that `none` gives almost the same BLEU.
omega is kept in float32: half precision would lose the updates of a number of size 10.
"""

from ..slots import LearnedShortcut
from .base import Method, Option, register


@register("admin")
class Admin(Method):
    """Post-LN with a vector omega (C,) on each shortcut, from a profile; training without a profile is a UserError."""

    title = "Admin"
    equation = "LN(omega o x + f(x)), omega from a profile"
    paper = "Liu et al. 2020"
    init_profiles = ("xavier_legacy", "fairseq_head")
    options = {
        "profile": Option(None, "file of `deepnet profile`, or auto: profile on the first training batch"),
        "train": Option(
            "but_first", "the omegas to train: all but the first of a stack, all, or none", ("but_first", "all", "none")
        ),
    }
    train_flags = ("--admin-profile", "auto")
    profiled = True  # omegas are measured before the first update

    def residual(self, site):
        first_of_stack = site.layer == 1 and site.sublayer == "self_attn"  # its omega is omega_1
        trainable = self.train == "all" or (self.train == "but_first" and not first_of_stack)
        return LearnedShortcut(site.dim, trainable=trainable)
