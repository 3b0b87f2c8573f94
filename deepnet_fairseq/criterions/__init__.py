"""Training losses that fairseq lacks: its cross-entropies in less memory."""
