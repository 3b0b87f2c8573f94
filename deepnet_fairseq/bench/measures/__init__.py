"""What is measured of a candidate, a file each: building, training, generating, checkpointing, memory."""
