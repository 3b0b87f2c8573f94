"""Fault-injection campaigns: `python -m tests.faults --help`; results/faults.md lists the faults."""
