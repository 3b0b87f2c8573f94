"""Distributed training: start processes (launch.py), run collectives (agreement.py), shard Adam's state (zero.py)."""
