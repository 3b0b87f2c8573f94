"""Checkpoints: written whole or not at all, verified when they are read, and saved when a signal arrives.

atomic.py writes a file, and saving.py a training's checkpoints; integrity.py verifies one and chooses the one to resume
from, exact_resume.py restores what fairseq loses, holding.py locks the folder, and train_loop.py stops a training.
docs/checkpoints.md.
"""
