"""The Transformer itself, and every way to keep a deep one trainable, on torch alone.

slots.py has the addresses of branches and what several methods put into them, layer.py the equation; attention.py and
modules.py compute a branch; stack.py has the encoder and the decoder; decoding.py runs a decoder a token at a time;
recomputation.py saves memory. methods/ has a file a method, probes/ a file a probe.
"""
