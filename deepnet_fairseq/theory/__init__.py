"""DeepNet's Theorems 4.2 and 4.3 on built models: the bounds (bounds.py), and one step's update (growth.py)."""
