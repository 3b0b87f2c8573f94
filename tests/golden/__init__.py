"""Golden checkpoints, written by commit 45b0f76; later versions must load, resume and translate with them."""
