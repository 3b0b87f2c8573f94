"""fairseq's reading and writing of checkpoint files; how a training saves and resumes is deepnet_fairseq/checkpoints."""
