"""DeepNet's Theorems 4.2 and 4.3 on built models: the bounds of one step's model update, and the update itself.

magnitudes.py reads v, w and alpha off a model, bounds.py has the theorems, measured.py takes the step, growth.py goes
over depths.
"""
