"""Trainings on several processes: how they start (launch.py), agree (agreement.py) and shard Adam's state (zero.py)."""
