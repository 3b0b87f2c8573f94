"""A training on many GPUs, on paper: seconds of an update and where they go, saves, failures, days.

Everything is an assumption that is named (hardware.py), a number that was measured (measured.py) or a formula with a
source (collectives.py, failures.py); timeline.py plays an update through.
"""
