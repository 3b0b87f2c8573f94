"""What becomes of each method that folds in transformers: python -m scripts.hub_exports > results/huggingface.md

Translation models, 2L-2L of width 64, learn the quickstart's language; each is exported and translates 100 sentences
with fairseq's search and with generate(). Language models, 4 layers, learn one side of it; fairseq-eval-lm's number,
that of `--check` and lm-evaluation-harness's stand beside each other. Needs the extra `huggingface`, and lm_eval.
"""

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from fairseq.logging import metrics
from omegaconf import OmegaConf

from deepnet_fairseq import register
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.models import blueprint
from deepnet_fairseq.data.language import make_corpus, write_corpus
from deepnet_fairseq.data.lm_text import prepare_lm, train_sentencepiece
from deepnet_fairseq.data.parallel_text import prepare_text
from deepnet_fairseq.plugin.trainer import build_trainer, parse
from deepnet_fairseq.study.tables.result import described
from deepnet_fairseq.tools.environment import environment
from deepnet_fairseq.tools.export.fold import why_not_foldable
from deepnet_fairseq.tools.export.huggingface import library, write_huggingface
from deepnet_fairseq.tools.export.transformer import NO_TRAINING, fold_checkpoint

SPLITS, UPDATES = {"train": 2000, "valid": 50, "test": 100}, 1000
WORDS = {"nouns": 20, "verbs": 10}
LANGS = ("qaa", "qab")
FLAGS = (
    "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "2e-3", "--lr-scheduler", "inverse_sqrt",
    "--warmup-updates", "50", "--warmup-init-lr", "1e-7", "--max-tokens", "1000", "--num-workers", "0", "--cpu",
)  # fmt: skip
TRANSLATION = (
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2", "--share-all-embeddings",
    "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--dropout", "0",
)  # fmt: skip
LANGUAGE_MODEL = (
    "--task", "language_modeling", "--arch", "deepnet_lm_tiny", "--decoder-layers", "4", "--dropout", "0",
    "--share-decoder-input-output-embed", "--tokens-per-sample", "256", "--sample-break-mode", "eos",
)  # fmt: skip
PAGE = """# Exports to Hugging Face

`python -m scripts.hub_exports` wrote this page. Width 64, {updates} updates of at most 1,000 tokens on {pairs:,}
pairs of the quickstart's language with 30 stems. What is checked: [docs](../docs/huggingface.md#what-is-checked).

## Translation, 2L-2L: 100 sentences, beam 5

cut: ended by the limit of 200 tokens, where fairseq counts the end's log-probability and generate() does not. The last
two are BLEU, which says how far a method had come by then, at one rate for all.

{translation}

`{signature}`.

## Language models, 4 layers: perplexity of 100 lines

By `fairseq-eval-lm`, by `deepnet export --check` (the exported model), and by lm-evaluation-harness
(`loglikelihood_rolling`, `</s>` at the end of each line).

{language_models}

{environment}, {libraries}.
"""


def train(words, path: Path) -> Path:
    """A checkpoint of UPDATES updates with these flags of fairseq-train."""
    trainer = build_trainer(parse([str(word) for word in (*words, *FLAGS)]))
    batches = list(trainer.get_train_iterator(1).next_epoch_itr(shuffle=True))
    trainer.begin_epoch(1)
    for batch in itertools.islice(itertools.cycle(batches), UPDATES):
        with metrics.aggregate("train_inner"):
            trainer.train_step([batch])
    cfg = OmegaConf.to_container(trainer.cfg, resolve=True, enum_to_str=True)
    torch.save({"args": None, "cfg": cfg, "model": trainer.get_model().state_dict()} | NO_TRAINING, path)
    return path


def translation_rows(folder: Path):
    """The table's, head first; last the signature of BLEU."""
    write_corpus(make_corpus(SPLITS, **WORDS), folder / "text")
    texts = [folder / "text" / f"test.{side}" for side in LANGS]
    prepare_text(LANGS, {split: str(folder / "text" / split) for split in SPLITS}, folder / "bin", vocab=200)
    yield ["method", "becomes", "logits apart", "equal", "more in float64", "cut", "others", "fairseq", "generate()"]
    for method in sorted(METHODS):
        if why_not_foldable(blueprint(method=method, vocab=10)) is not None:
            continue
        flags = (folder / "bin", *TRANSLATION, "--method", method, *METHODS[method].train_flags)
        done = export(train(flags, folder / f"{method}.pt"), folder / method, texts)
        ours, theirs, signature = done.trial.bleu
        trial = done.trial
        alike = [f"{trial.equal} of {trial.sentences}", str(trial.rounded), str(trial.cut), str(len(trial.apart))]
        yield [f"`{method}`", done.name, f"{done.difference:.1e}", *alike, f"{ours:.2f}", f"{theirs:.2f}"]
    yield signature


def export(path: Path, out: Path, texts: list[Path]):
    """As `deepnet export --to huggingface --check`."""
    folded = fold_checkpoint(str(path))
    return write_huggingface(folded, out, folded.sections["task"]["data"], None, None, {}, texts)


def language_model_rows(folder: Path):
    """The table's, head first."""
    texts = {split: [folder / "text" / f"{split}.{LANGS[1]}"] for split in SPLITS}
    prepare_lm(texts, folder / "lm", partial(train_sentencepiece, texts["train"][0], 200))
    yield ["method", "logits apart", "tokens", "fairseq", "--check", "lm-evaluation-harness"]
    lines = texts["test"][0].read_text(encoding="utf-8").splitlines()
    for method in ("deepnorm", "pre_ln"):
        path = train((folder / "lm", *LANGUAGE_MODEL, "--method", method), folder / f"lm_{method}.pt")
        done = export(path, folder / f"lm_{method}", texts["test"])
        trial, bits = done.trial, harness_bits(harness(folder / f"lm_{method}"), lines, folder)
        found = [2 ** evaluated(folder / "lm", path), trial.theirs, 2 ** (bits / trial.tokens)]
        yield [f"`{method}`", f"{done.difference:.1e}", str(trial.tokens), *(f"{number:.3f}" for number in found)]


def evaluated(data: Path, path: Path) -> float:
    """Bits a token of the test text, by fairseq-eval-lm."""
    program = Path(sys.executable).with_name("fairseq-eval-lm")
    words = ["--user-dir", "deepnet_fairseq", "--path", path, "--gen-subset", "test", "--sample-break-mode", "eos"]
    said = subprocess.run([program, data, *words, "--cpu"], capture_output=True, text=True, check=True)
    return float(re.search(r"Loss \(base 2\): (\S+),", said.stdout + said.stderr).group(1))


def harness_bits(model, lines: list[str], folder: Path) -> float:
    """Bits of lines that end with </s>, by lm-evaluation-harness's bits_per_byte; which asks `model`."""
    os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
    from lm_eval import simple_evaluate

    text, docs = folder / "held_out.json", [f"{line}</s>" for line in lines]
    text.write_text("".join(json.dumps({"text": doc}) + "\n" for doc in docs), encoding="utf-8")
    task = {
        "task": "held_out", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(text)}},
        "test_split": "test", "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }  # fmt: skip
    found = simple_evaluate(model, tasks=[task], bootstrap_iters=0)["results"]["held_out"]
    return found["bits_per_byte,none"] * sum(len(doc.encode()) for doc in docs)


def harness(hub: Path):
    """An exported model as lm-evaluation-harness asks it for perplexities."""
    library()
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(hub), device="cpu", batch_size=16, add_bos_token=False)


def shown(rows):
    """The rows, each printed as it comes."""
    for row in rows:
        print(row, flush=True)
        yield row


def markdown(rows: list[list[str]]) -> str:
    """Of rows, head first."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def page(folder: Path) -> str:
    """All of it, Markdown."""
    *rows, signature = shown(translation_rows(folder))
    libraries = ", ".join(f"{name} {version(name)}" for name in ("transformers", "tokenizers", "lm_eval"))
    return PAGE.format(
        updates=UPDATES, pairs=SPLITS["train"], translation=markdown(rows), signature=signature,
        language_models=markdown(list(shown(language_model_rows(folder)))),
        environment=f"Run at {described(environment(0))}", libraries=libraries,
    )  # fmt: skip


if __name__ == "__main__":
    register()
    with tempfile.TemporaryDirectory() as place, redirect_stdout(sys.stderr):
        text = page(Path(place))
    print(text, end="")
