"""`python -m tests.faults --help`: trainings that are killed; results/faults.md says what is injected."""
