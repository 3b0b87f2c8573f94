"""Evaluation of language models by lm-evaluation-harness."""

from __future__ import annotations

import json
import os
from pathlib import Path

from deepnet_fairseq.tools.export.huggingface import library


def harness(hub: Path):
    """Return an exported model as lm-evaluation-harness loads it for perplexities."""
    library()
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(hub), device="cpu", batch_size=16, add_bos_token=False)


def harness_bits(model, lines: list[str], folder: Path) -> float:
    """Return the bits of lines that end with </s>, from lm-evaluation-harness's bits_per_byte of `model`."""
    os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
    from lm_eval import simple_evaluate

    documents = [f"{line}</s>" for line in lines]
    file = folder / "held_out.json"
    file.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents), encoding="utf-8")
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

    size = sum(len(document.encode()) for document in documents)
    return results["held_out"]["bits_per_byte,none"] * size
