"""What is kept of a finished run: enough for every report and figure, without checkpoints, corpora or machine paths."""
