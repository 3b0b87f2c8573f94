"""How fairseq reads and writes checkpoint files; how a training saves and resumes is deepnet_fairseq/checkpoints."""
