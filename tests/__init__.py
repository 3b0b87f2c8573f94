"""Test suite; fairseq is imported with the plug-in registered, as its programs import it for --user-dir."""

from deepnet_fairseq import register

register()
