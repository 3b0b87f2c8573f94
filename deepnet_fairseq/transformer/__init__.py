"""The Transformer itself: the one equation in its layers, attention, the stacks of encoder and decoder, their cache.

slots.py has the addresses of branches and what several methods put into them, layer.py the equation; attention.py and
modules.py compute a branch; stack.py has the encoder and the decoder; decoding.py runs a decoder a token at a time;
recomputation.py saves memory.
"""
