"""Translate a test set once with one program, as a script of its own: `python -P translate.py JOB.json`.

The script imports only what its program needs, because its memory is measured. It prints what fairseq-generate prints:
T-, D- and the line with the speed, which is that of the search, from tokens to tokens. The job, which deployed.py
writes, has
- "program": a key of PROGRAMS, and "model": the file or folder that it reads;
- "flags": of fairseq-generate, which reads a test set by them; for the others
- "batches": file of the test set, a list of batches; a batch is a list of sentences, each with "id", "source" (tokens),
  "numbers" (those of the tokens, with the end of the sentence) and "reference" (a text);
- "beam"; "threads"; "symbols" of the target dictionary by number; "type" of CTranslate2's numbers;
- "peak": file that gets the peak of resident memory, in bytes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONGEST = 200  # tokens of a translation, as fairseq-generate has it
TranslateBatch = Callable[[list[dict]], list[list[str]]]  # a batch -> the tokens of its translations


def fairseq_generate(job: dict) -> None:
    """Run fairseq-generate itself with the job's flags, which tell it all."""
    from fairseq_cli.generate import cli_main

    sys.argv = ["fairseq-generate", *job["flags"]]
    cli_main()


def ctranslate2(job: dict) -> None:
    """Translate with a CTranslate2 model, which takes the tokens of a sentence."""
    import ctranslate2

    translator = ctranslate2.Translator(job["model"], compute_type=job["type"], intra_threads=job["threads"])

    def translate(batch: list[dict]) -> list[list[str]]:
        """Return the tokens of the best translation of each sentence."""
        sources = [sentence["source"] for sentence in batch]
        results = translator.translate_batch(sources, beam_size=job["beam"], max_decoding_length=LONGEST)
        return [result.hypotheses[0] for result in results]

    translate_all(job, translate)


def transformers(job: dict) -> None:
    """Translate with a Hugging Face model, which takes the numbers of the tokens and of the end of the sentence."""
    modules: dict[str, Any] = sys.modules
    modules["torchaudio"] = None  # transformers imports it, and one built for another torch fails
    import torch
    from transformers import AutoModelForSeq2SeqLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    model = AutoModelForSeq2SeqLM.from_pretrained(job["model"], local_files_only=True).eval()
    config = model.generation_config
    symbols = job["symbols"]
    # special tokens that generate() returns around a translation
    marks = {config.pad_token_id, config.eos_token_id, config.decoder_start_token_id}

    def translate(batch: list[dict]) -> list[list[str]]:
        """Return the tokens of the best translation of each sentence, without special ones."""
        rows = [torch.tensor(sentence["numbers"]) for sentence in batch]
        inputs = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=config.pad_token_id)
        mask = inputs.ne(config.pad_token_id).long()
        output = model.generate(input_ids=inputs, attention_mask=mask, num_beams=job["beam"], length_penalty=1.0)
        translations = []
        for numbers in output.tolist():
            translations.append([symbols[number] for number in numbers if number not in marks])
        return translations

    translate_all(job, translate)


def translate_all(job: dict, translate: TranslateBatch) -> None:
    """Translate all batches, then print translations and speed, so that printing takes none of the time.

    The end of a sentence counts as a token, as in fairseq-generate.
    """
    batches = json.loads(Path(job["batches"]).read_text(encoding="utf-8"))
    start = time.perf_counter()
    texts = [translate(batch) for batch in batches]
    seconds = time.perf_counter() - start

    lines = 0
    tokens = 0
    for batch, translations in zip(batches, texts, strict=True):
        for sentence, pieces in zip(batch, translations, strict=True):
            print(f"T-{sentence['id']}\t{sentence['reference']}")
            print(f"D-{sentence['id']}\t0\t{' '.join(pieces)}")
            lines += 1
            tokens += len(pieces) + 1
    speed = f"{lines / seconds:.2f} sentences/s, {tokens / seconds:.2f} tokens/s"
    print(f"Translated {lines:,} sentences ({tokens:,} tokens) in {seconds:.1f}s ({speed})")


PROGRAMS = {function.__name__: function for function in (fairseq_generate, ctranslate2, transformers)}

if __name__ == "__main__":
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    PROGRAMS[work["program"]](work)
    status = Path("/proc/self/status").read_text(encoding="utf-8").split("\n")
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    Path(work["peak"]).write_text(str(peak), encoding="utf-8")
