"""Text in, fairseq's binarised data out.

The embedded corpus (corpus.py, language/), any parallel text (prepare.py), text for language models (lm_text.py), the
corpora of the papers (recipes/) with what fetches them (download.py, archive.py), stands in for them (miniature/), and
the steps of language pairs (bilingual.py) and of many languages (multilingual/).
"""
