"""Evaluation of language models by lm-evaluation-harness."""

from __future__ import annotations

import json
import os
from pathlib import Path

from deepnet_fairseq.tools.export.huggingface import library


def load_in_harness(hub: Path):
    """Load an exported model as lm-evaluation-harness does; hub: the folder of the export.

    The windows in which it measures perplexity begin with a begin of sentence anyway, so the tokenizer adds none.
    """
    library()
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(hub), device="cpu", batch_size=16, add_bos_token=False)


def harness_bits(model, lines: list[str], folder: Path) -> float:
    """Return the bits of all `lines`, each with its end of sentence, by lm-evaluation-harness's task of perplexity.

    The harness reports bits per byte of text; </s> counts as four bytes there, and so it does here.

    model: one of the harness; folder: for the task's file and the cache
    """
    os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
    from lm_eval import simple_evaluate

    documents = [f"{line}</s>" for line in lines]
    file = folder / "held_out.json"
    rows = [json.dumps({"text": document}) for document in documents]
    file.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    task = {
        "task": "held_out",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }

    results = simple_evaluate(model, tasks=[task], bootstrap_iters=0)["results"]

    bytes_of_text = sum(len(document.encode()) for document in documents)
    return results["held_out"]["bits_per_byte,none"] * bytes_of_text
