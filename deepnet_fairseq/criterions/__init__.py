"""Training losses that fairseq lacks: its cross-entropies in less memory (chunked.py), by projected.py's arithmetic."""
