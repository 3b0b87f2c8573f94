"""Golden files: checkpoints that later versions must load, resume and translate with, and what programs printed."""
