"""Text in pieces -> fairseq's binarised data, the files that fairseq-preprocess would write."""

from __future__ import annotations

from pathlib import Path

from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary
from fairseq.tokenizer import tokenize_line

PLAIN = "text"  # stands for the language in text for language models
MULTIPLE = 8  # what fairseq-preprocess fills dictionaries up to


def binarise(
    langs: tuple[str, str] | None,
    prefixes: dict[str, list[Path]],
    dest: Path,
    workers: int = 2,
    dictionary: Path | None = None,
) -> dict:
    """Fills the folder `dest`, with a joined dictionary: `dictionary`, else one made of the training text.

    langs: source and target, or None for language models; prefixes: "train", "valid" and "test" -> P of the files
    P.LANG, or the files; fairseq calls several of them test, test1, ... Returns {"types": of the dictionary with its
    special symbols, "text": {subset: {lang, or PLAIN: {"sentences", "pieces", "unknown": per cent}}}}; an empty line
    counts as a sentence of no piece.
    """
    endings = {lang: f".{lang}" for lang in langs} if langs else {PLAIN: ""}
    pair = f".{'-'.join(langs)}" if langs else ""
    if dictionary:
        types = Dictionary.load(str(dictionary))
    else:
        types = Dictionary()
        for ending in endings.values():
            Dictionary.add_file_to_dictionary(f"{prefixes['train'][0]}{ending}", types, tokenize_line, workers)
        types.finalize(padding_factor=MULTIPLE)
    text: dict[str, dict] = {f"{split}{i or ''}": {} for split, given in prefixes.items() for i in range(len(given))}
    for lang, ending in endings.items():
        types.save(str(dest / f"dict{ending}.txt"))
        for subset, prefix in zip(text, (prefix for given in prefixes.values() for prefix in given), strict=True):
            binarizer, to = VocabularyDatasetBinarizer(types, append_eos=True), str(dest / f"{subset}{pair}{ending}")
            found = FileBinarizer.multiprocess_dataset(f"{prefix}{ending}", "mmap", binarizer, to, len(types), workers)
            text[subset][lang] = {
                "sentences": found.num_seq,
                "pieces": found.num_tok - found.num_seq,  # it counts an end of sentence each
                "unknown": float(f"{found.replaced_percent:.3}"),
            }
    return {"types": len(types), "text": text}
