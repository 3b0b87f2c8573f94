"""Optimisers and schedules that fairseq lacks: Adam by a fused kernel (deepnet_adam), RAdam, T-Fixup's schedule.

shard.py divides Adam's state among processes (--zero-sharding os). half_precision.py builds fairseq's optimisers for
--fp16, --bf16 and --amp, float32_weights.py saves what they lose at a resume, and after_update.py lets a method change
the weights.
"""
