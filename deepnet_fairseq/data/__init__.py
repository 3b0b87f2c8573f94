"""Text in, fairseq's binarised data out.

The embedded corpus (corpus.py, language/), any parallel text (prepare.py), the corpora of the papers (recipes/) with
what fetches them (remote/) and stands in for them (miniature/), text for language models (monolingual/) and of many
languages (multilingual/).
"""
