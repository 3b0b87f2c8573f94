"""`deepnet check`: the first updates of a run, watched (short_training.py), and what they foretell (verdict.py)."""
