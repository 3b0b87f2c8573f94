"""Export a trained model as a plain Transformer, for stock fairseq, CTranslate2 and Hugging Face's transformers.

fold.py multiplies a method's factors into the weights of the model, which is then a plain Transformer: a folded model.
transformer.py makes it one of fairseq's own and writes that; served.py adds its text: dictionaries, tokenizer and data.
From there ctranslate2.py (with convert.py) and huggingface.py (with hub_models.py and hub_tokenizers.py) write a folder
for the other two libraries; checks.py compares its translations with fairseq's, readme.py writes its README.md.
"""
