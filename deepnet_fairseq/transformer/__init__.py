"""The Transformer itself: the one equation in its layers, attention, the stacks of encoder and decoder, their cache."""
