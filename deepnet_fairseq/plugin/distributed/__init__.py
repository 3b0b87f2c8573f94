"""Distributed training: processes (launch.py), collectives (agreement.py), --zero-sharding's settings (zero.py)."""
