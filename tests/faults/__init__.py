"""Fault-injection campaigns: `python -m tests.faults --help`; docs/checkpoints.md lists the faults."""
