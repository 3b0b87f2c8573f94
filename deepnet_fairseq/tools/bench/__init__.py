"""`deepnet bench`: our model, stock fairseq's and torchscale's at the same work in one process; docs/speed.md."""
