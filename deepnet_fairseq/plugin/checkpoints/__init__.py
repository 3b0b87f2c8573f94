"""Checkpoints that survive: saved whole or not at all, verified when they are read, in time when a signal comes.

atomic.py writes a file, saving.py a training's; integrity.py verifies one and says which to resume from,
exact_resume.py does what else it takes to go on exactly; holding.py keeps a second training out of the folder, and
train_loop.py stops one. docs/checkpoints.md.
"""
