"""The folder in which fairseq looks for models of `--user-dir`: it imports every file here."""
