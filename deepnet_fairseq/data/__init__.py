"""Text in, binarised data out: the embedded corpus, and preparation of any parallel text."""
