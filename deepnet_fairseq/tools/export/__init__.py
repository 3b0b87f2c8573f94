"""The way back: a trained model as a plain Transformer, for stock fairseq, CTranslate2 and Hugging Face's transformers.

fold.py says whether a model folds and folds it, transformer.py knows fairseq's models and writes them; ctranslate2.py
and huggingface.py go on from there, the latter with hub_models.py (which model of theirs it is), hub_tokenizers.py and
hub_checks.py (are translations and perplexities the same?).
"""
