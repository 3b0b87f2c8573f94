"""How each method looks in every figure: colours of Okabe and Ito (2008) and shades between them, a marker, a name.

Methods that share a panel stay apart for colour-blind readers too, by colour or marker.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """label: name in legends and tables; marker: a letter of matplotlib."""

    label: str
    colour: str
    marker: str


STYLES = {
    "deepnorm": Style("DeepNorm", "#D55E00", "o"),
    "post_ln": Style("Post-LN", "#000000", "s"),
    "post_ln_init": Style("Post-LN-init", "#009E73", "D"),
    "ds_init": Style("DS-Init", "#E69F00", "^"),
    "admin": Style("Admin", "#0072B2", "v"),
    "admin_torch": Style("Admin (2022)", "#56B4E9", "<"),
    "branchnorm": Style("BranchNorm", "#CC79A7", ">"),
    "rezero": Style("ReZero", "#2B2D7C", "s"),
    "r_fixup": Style("R-Fixup", "#74C7A5", "D"),
    "t_fixup": Style("T-Fixup", "#D9CB1E", "^"),
    "pre_ln": Style("Pre-LN", "#4D4D4D", "s"),
    "dlcl": Style("DLCL", "#B5489A", "v"),
    "normformer": Style("NormFormer", "#9CC7EC", "D"),
    "sub_ln": Style("Sub-LN", "#C9A66B", "^"),
    "b2t": Style("B2T", "#670A23", "h"),
    "complete_p": Style("CompleteP", "#5608F6", ">"),
    "gpas": Style("GPAS", "#05F321", "<"),
    "hybrid_norm": Style("HybridNorm", "#495B0E", "p"),
    "keel": Style("Keel", "#3863FF", "X"),
    "ln_scaling": Style("LN-Scaling", "#F02957", "X"),
    "mhc": Style("mHC", "#B9E781", "*"),
    "mix_ln": Style("Mix-LN", "#479E04", "p"),
    "peri_ln": Style("Peri-LN", "#D92AE3", "h"),
    "resi_dual": Style("ResiDual", "#1BF79A", "d"),
    "siamese_norm": Style("SiameseNorm", "#ADA0FD", "d"),
}
PLAIN = "#767676"  # legends that speak of no method, and methods without a style
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#D55E00")  # settings of one method
MARKERS = "osD^v<"


def style_of(method: str) -> Style:
    """How a method looks; one added later is grey until it gets a line above."""
    return STYLES.get(method, Style(method, PLAIN, "P"))


def style_of_setting(rank: int, label: str) -> Style:
    """The rank-th setting of one hyper-parameter, from 0; colour and marker repeat together after 42."""
    return Style(label, SERIES[rank % len(SERIES)], MARKERS[rank % len(MARKERS)])
