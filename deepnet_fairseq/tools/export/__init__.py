"""The way back: a trained model as a plain Transformer, for stock fairseq and CTranslate2.

fold.py says whether a model folds and folds it, transformer.py knows fairseq's models and writes them, ctranslate2.py
goes on from there.
"""
