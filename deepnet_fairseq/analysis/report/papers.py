"""Where the papers of the methods are to be read."""

from __future__ import annotations

from ...methods import METHODS

PLACES = {
    "admin": "https://arxiv.org/abs/2004.08249",
    "admin_torch": "https://github.com/microsoft/admin-torch",
    "branchnorm": "https://arxiv.org/abs/2305.02790",
    "deepnorm": "https://arxiv.org/abs/2203.00555",
    "dlcl": "https://arxiv.org/abs/1906.01787",
    "ds_init": "https://arxiv.org/abs/1908.11365",
    "normformer": "https://arxiv.org/abs/2110.09456",
    "post_ln": "https://arxiv.org/abs/1706.03762",
    "post_ln_init": "https://arxiv.org/abs/2203.00555",
    "pre_ln": "https://arxiv.org/abs/1906.01787",
    "r_fixup": "https://arxiv.org/abs/1901.09321",
    "rezero": "https://arxiv.org/abs/2003.04887",
    "sub_ln": "https://arxiv.org/abs/2210.06423",
    "t_fixup": "https://proceedings.mlr.press/v119/huang20f.html",
}


def paper_of(method: str) -> tuple[str, str]:
    """Citation, and address; the latter is empty for a method added later until it gets a line above."""
    return METHODS[method].paper, PLACES.get(method, "")
