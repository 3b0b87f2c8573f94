"""Trainings that are killed, starved of disk and started again, beside one that is left alone.

`python -m tests.faults --help`; docs/faults.md says what is injected and what is promised.
"""
