"""Training losses that fairseq lacks."""
