"""`python -m tests.faults --help`: trainings that are killed; docs/faults.md says what is injected and promised."""
