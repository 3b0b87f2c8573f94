"""Text in pieces -> fairseq's binarised data, the files that fairseq-preprocess would write."""

from __future__ import annotations

from pathlib import Path

PLAIN = "text"  # stands for the language in text for language models
MULTIPLE = 8  # what fairseq-preprocess fills dictionaries up to


def binarise(
    langs: tuple[str, str] | None,
    texts: dict[str, Path],
    dest: Path,
    workers: int = 2,
    dictionary: Path | None = None,
) -> dict:
    """Fills the folder `dest`, with a joined dictionary: `dictionary`, else one made of the training text.

    langs: source and target, or None for language models; texts: subset in fairseq's names ("train", "valid", "test",
    "test1", ...) -> P of the files P.LANG, or the file. Returns {"types": of the dictionary with its special symbols,
    "text": {subset: {lang, or PLAIN: {"sentences", "pieces", "unknown": per cent}}}}; an empty line counts as a
    sentence of no piece.
    """
    from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
    from fairseq.data import Dictionary
    from fairseq.tokenizer import tokenize_line

    endings = {lang: f".{lang}" for lang in langs} if langs else {PLAIN: ""}
    pair = f".{'-'.join(langs)}" if langs else ""
    if dictionary:
        types = Dictionary.load(str(dictionary))
    else:
        types = Dictionary()
        for ending in endings.values():
            Dictionary.add_file_to_dictionary(f"{texts['train']}{ending}", types, tokenize_line, workers)
        types.finalize(padding_factor=MULTIPLE)
    text: dict[str, dict] = {subset: {} for subset in texts}
    for lang, ending in endings.items():
        types.save(str(dest / f"dict{ending}.txt"))
        for subset, prefix in texts.items():
            binarizer, to = VocabularyDatasetBinarizer(types, append_eos=True), str(dest / f"{subset}{pair}{ending}")
            found = FileBinarizer.multiprocess_dataset(f"{prefix}{ending}", "mmap", binarizer, to, len(types), workers)
            text[subset][lang] = {
                "sentences": found.num_seq,
                "pieces": found.num_tok - found.num_seq,  # it counts an end of sentence each
                "unknown": float(f"{found.replaced_percent:.3}"),
            }
    return {"types": len(types), "text": text}
