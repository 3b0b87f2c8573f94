"""DeepNet's Theorems 4.2 and 4.3 on built models: the bounds of one step's model update, and the update itself."""
