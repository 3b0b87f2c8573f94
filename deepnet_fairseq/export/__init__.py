"""The way back: a trained model as a plain Transformer, for stock fairseq and CTranslate2."""
