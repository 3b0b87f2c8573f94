"""`deepnet check`: the first few dozen updates of a run, watched, and a verdict on the rest."""
