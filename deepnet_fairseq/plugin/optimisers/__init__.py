"""Optimisers and schedules that fairseq lacks: Adam by a fused kernel (deepnet_adam), RAdam, T-Fixup's schedule.

shard.py divides Adam's state among processes (--zero-sharding os).
"""
