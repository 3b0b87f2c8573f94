"""Optimisers and schedules that fairseq lacks: Adam on flat parameters (deepnet_adam), RAdam, T-Fixup's learning rate.

deepnet_adam.py is fairseq's side of Adam, flat_adam.py torch's, its arithmetic and checkpoints, flat.py its memory.
"""
