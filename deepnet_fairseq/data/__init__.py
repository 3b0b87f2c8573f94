"""Text in, fairseq's binarised data out.

The embedded corpus (language/), any parallel text (parallel_text.py), text for language models (lm_text.py), the
corpora of the papers (recipes/) with what fetches them (download.py, archive.py), stands in for them (miniature/), and
the steps of language pairs (bilingual.py) and of many languages (multilingual.py).
"""
