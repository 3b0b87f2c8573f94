"""The Transformer itself: the one equation in its layers, attention, the stacks of encoder and decoder, their cache.

layer.py has the equation, slots.py what several methods put into it, site.py the address of a branch; attention.py,
packed.py and products.py compute one; stack.py, encoder.py and decoder.py are the stacks; cache.py, encoder_output.py
and step.py decode a token at a time; recomputation.py saves memory.
"""
