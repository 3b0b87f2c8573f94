"""Plan a training before it starts: parameters, operations, memory, time, and the flags that make it fit.

A few layers of the model run on tensors without storage, and trace.py counts the memory and the operations; the rest is
arithmetic on these counts (needs.py). Nothing here imports fairseq.
"""
