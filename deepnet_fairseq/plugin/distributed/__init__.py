"""A model that no GPU holds whole: parameters, gradients and optimiser state in shards (`--ddp-backend fully_sharded`).

fairseq's own way stands on fairscale; this one on torch's FSDP2, behind the same flags.
"""
