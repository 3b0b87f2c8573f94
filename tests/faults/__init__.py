"""`python -m tests.faults --help`: trainings that are killed; docs/checkpoints.md says what is injected."""
