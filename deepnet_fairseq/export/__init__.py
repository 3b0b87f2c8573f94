"""The way back: a trained model as a plain Transformer, for stock fairseq and CTranslate2.

obstacle.py says whether a model folds, fold.py folds it, stock.py knows fairseq's models, transformer.py and
ctranslate2.py write and compare.
"""
