"""Benchmarks of deepnet_fairseq beside stock fairseq and other programs: python -m benchmarks --help."""
