"""Optimisers and schedules that fairseq lacks: Adam on flat parameters (deepnet_adam), RAdam, T-Fixup's learning rate.

deepnet_adam.py is fairseq's side of Adam, half_precision.py under --fp16 and --bf16, flat_adam.py torch's, adam_part.py
its arithmetic, flat.py its memory, share.py that of several processes, adam_state.py its checkpoints.
"""
