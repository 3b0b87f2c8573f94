"""What a training will need before it is started: parameters, operations, memory, time, and the flags that make it fit.

A few layers of the model run on tensors without storage, and what torch then keeps and computes is counted (trace.py);
the rest is arithmetic on that (needs.py). Nothing here imports fairseq.
"""
