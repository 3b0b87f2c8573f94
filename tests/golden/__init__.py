"""Checkpoints of commit 45b0f76, which later versions still load, resume and translate with."""
