"""Optimiser pieces that fairseq lacks."""
