"""Checkpoints: written whole or not at all, verified when they are read, and saved when a signal arrives.

atomic.py writes a file; lock.py locks a training's folder; saving.py has further parts of a save; epoch_weights.py
writes weights alone. reading.py verifies a file and chooses the one to resume from; vocabulary.py compares its
vocabulary with that of the data; loading.py names the file in errors; exact_resume.py restores what fairseq loses.
plugin/run.py joins them into the saves and resumes of a training. docs/checkpoints.md tells users about them.
"""
