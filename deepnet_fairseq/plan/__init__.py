"""What a training will need before it is started: parameters, operations, memory, time, and the flags that make it fit.

One symbolic trace of the model (tracing.py) follows the forward pass of transformer/layer.py and writes on a tape
(tape.py) what autograd keeps and how many operations are made; the rest is arithmetic on the tape.
"""
