"""Prepare data: text in, fairseq's binarised data out.

The sources are the embedded corpus (language/), any parallel text (parallel_text.py), text for language models
(lm_text.py) and the corpora of the papers (recipes/), which are downloaded (download.py, archive.py) or generated in
miniature (miniature/). bilingual.py has the steps of language pairs, multilingual.py those of many languages.

Text is a stream: survey.py reads it once and counts, learning.py learns pieces from a sample, pieces.py cuts;
binarise.py and indexed.py write. lines.py works in several processes, folder.py makes a folder whole or not at all.
"""
