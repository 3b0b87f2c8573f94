"""Plain text for language models: cut into pieces, binarised, with what cuts new text in the same way."""
