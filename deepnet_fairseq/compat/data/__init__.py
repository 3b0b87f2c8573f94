"""What fairseq trains on: binarised data, its batches, what a language model is given."""
