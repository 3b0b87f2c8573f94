"""Tests run with fairseq as programs find it under --user-dir, but for what a process of its own is to show."""

from deepnet_fairseq import register

register()
