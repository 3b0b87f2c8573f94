"""Perl scripts in the places of Moses', which say that they were there, and with which words."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deepnet_fairseq.data.moses.perl import SCRIPTS

needs_perl = pytest.mark.skipif(shutil.which("perl") is None, reason="runs Perl")

MARKS = r"""
my $words = join(",", @ARGV);
binmode(STDIN, ":utf8"); binmode(STDOUT, ":utf8");
while (<STDIN>) { chomp; print "$_ <NAME $words>\n"; }
"""
CLEANS = r"""
my (undef, $ratio, $corpus, $one, $two, $out, $least, $most) = @ARGV;
for my $lang ($one, $two) {
    open(my $in, "<", "$corpus.$lang") or die; open(my $to, ">", "$out.$lang") or die;
    while (<$in>) { chomp; print $to "$_ <clean $ratio $least $most>\n"; }
}
"""


def marking_checkout(folder: Path) -> Path:
    """A line of text leaves each script with <NAME WORDS> at its end."""
    for name, script in SCRIPTS.items():
        (folder / script).parent.mkdir(parents=True, exist_ok=True)
        (folder / script).write_text(CLEANS if name == "clean" else MARKS.replace("NAME", name))
    return folder
