"""Checkpoints: written whole or not at all, verified when they are read, and saved when a signal arrives.

atomic.py writes a file; saving.py locks the folder and saves a training's checkpoints; reading.py verifies one and
chooses the one to resume from; exact_resume.py restores what fairseq loses; train_loop.py stops a training.
docs/checkpoints.md.
"""
