"""The way back: a trained model as a plain Transformer, for stock fairseq, CTranslate2 and Hugging Face's transformers.

fold.py says whether a model folds and folds it, transformer.py knows fairseq's models and writes them; served.py adds
the text. ctranslate2.py (with convert.py) and huggingface.py go on from there, the latter with hub_models.py (which
model of theirs it is) and hub_tokenizers.py; checks.py compares translations, readme.py writes the folder's README.md.
"""
