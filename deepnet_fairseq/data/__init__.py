"""Prepare data: take text, and write fairseq's binarised data.

The text is the embedded corpus in an artificial language (language/), any parallel text (parallel_text.py), text for
language models (lm_text.py), or a corpus of the papers (recipes/). The files of these corpora are downloaded
(download.py, archive.py) or generated in miniature (miniature/); bilingual.py has the steps from the text of one
language pair to binarised data, multilingual.py those of many languages, and steps.py runs each step once.

Text is a stream of lines (lines.py): survey.py reads it once and counts, learning.py learns a SentencePiece model from
a sample (vocabulary.py), pieces.py cuts text into its pieces, and binarise.py and indexed.py write. folder.py makes a
folder that appears whole or not at all.
"""
