"""Compare training and decoding of two checkouts of this repository, and stock fairseq's, on one CPU core.

python results/bench/two_checkouts.py OLD NEW train 64-18-24x20 512-18-4x32       width, layers, sentences x tokens
python results/bench/two_checkouts.py OLD NEW decode 64-18-80x24 64-18-1x24       beam 5, all hypotheses of that length

OLD and NEW are folders of two checkouts; the environment is the active one. Each candidate is a process of its own that
stays, and they take turns, so that a busy machine slows all of them alike; figures are processor seconds, ratios are
medians over the rounds. Weights are random and the same, DeepNorm's; stock is fairseq's `transformer`. Prints Markdown
and appends a line for each case to two_checkouts.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

VOCABULARY = 1000
MARK = "RESULT "  # begins a candidate's answer among what fairseq prints


def build_model(kind: str, width: int, depth: int, dropout: float):
    """Build fairseq's model for the kind "stock", else ours, of equal shape.

    width: features of a hidden state; depth: layers of the encoder, and of the decoder.
    """
    import torch
    from fairseq.models.transformer import TransformerModel, base_architecture

    from deepnet_fairseq.plugin import building

    torch.manual_seed(0)
    shape = {"embed_dim": width, "layers": depth}
    if width < 128:  # as the tiny architecture
        shape |= {"ffn_embed_dim": 2 * width, "attention_heads": 2}
    else:
        shape |= {"ffn_embed_dim": 4 * width, "attention_heads": 8}
    fields: dict = {"dropout": dropout, "share_all_embeddings": True}
    for name, value in shape.items():
        fields[f"encoder_{name}"] = value
        fields[f"decoder_{name}"] = value

    if kind != "stock":
        return building.build("deepnet_transformer", vocab=VOCABULARY, method="deepnorm", **fields)
    args = argparse.Namespace(**fields)
    base_architecture(args)
    return TransformerModel.build_model(args, building.blank_task(VOCABULARY))


def train(kind: str, width: int, depth: int, sentences: int, length: int):
    """Return a function that runs a forward and a backward pass with dropout 0.1 and returns its processor seconds.

    kind, width, depth: of the model; sentences, length: of the batch, in tokens on both sides. The function's second
    value is None, in the place of the hypotheses of `decode`.
    """
    import torch

    model = build_model(kind, width, depth, 0.1).train()
    generator = torch.Generator().manual_seed(1)
    source, target = torch.randint(4, VOCABULARY, (2, sentences, length), generator=generator)
    source[1, :3] = 1  # one sentence is padded
    lengths = source.ne(1).sum(1)

    def step() -> tuple[float, None]:
        model.zero_grad()
        begun = time.process_time()
        scores = model(source, lengths, target)[0]
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten()).backward()
        return time.process_time() - begun, None

    return step


def decode(kind: str, width: int, depth: int, sentences: int, length: int):
    """Return a function that translates with beam 5, and returns its processor seconds and the best hypotheses.

    kind, width, depth: of the model; sentences: of the batch; length: tokens of every hypothesis.
    """
    import torch
    from fairseq.sequence_generator import SequenceGenerator

    from deepnet_fairseq.plugin import building

    model = build_model(kind, width, depth, 0.0).eval()
    off = {"retain_dropout": False, "print_alignment": None, "no_beamable_mm": False, "retain_dropout_modules": None}
    model.prepare_for_inference_(argparse.Namespace(generation=argparse.Namespace(**off)))

    # sources of 8 to 20 tokens, padded on the left with fairseq's 1
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(4, VOCABULARY, (sentences, 20), generator=generator)
    lengths = torch.randint(8, 21, (sentences,), generator=generator)
    for sentence, tokens in zip(source, lengths.tolist(), strict=True):
        sentence[: 20 - tokens] = 1
    batch = {"net_input": {"src_tokens": source, "src_lengths": lengths}}

    dictionary = building.blank_task(VOCABULARY).target_dictionary
    limits = {"max_len_a": 0, "max_len_b": length, "min_len": length}
    search = SequenceGenerator([model], dictionary, beam_size=5, **limits)

    def translate() -> tuple[float, list]:
        begun = time.process_time()
        beams = search.generate([model], batch)
        seconds = time.process_time() - begun
        return seconds, [hypotheses[0]["tokens"].tolist() for hypotheses in beams]

    return translate


def serve(kind: str) -> None:
    """Answer requests "TASK WIDTH DEPTH SENTENCES LENGTH" on standard input with [processor seconds, hypotheses].

    TASK is train or decode. Requests in a row for the same case use one model. kind: as in build_model.
    """
    import torch

    import deepnet_fairseq

    torch.set_num_threads(1)
    deepnet_fairseq.register()
    tasks = {"train": train, "decode": decode}
    prepared = None  # the request that `measure` answers
    for line in sys.stdin:
        task, *numbers = line.split()
        if line != prepared:
            measure = tasks[task](kind, *map(int, numbers))
            measure()  # what the first run alone costs
            prepared = line
        print(MARK + json.dumps(measure()), flush=True)


def ask(worker: subprocess.Popen, request: str) -> list:
    """Send one request of `serve` and wait for its answer."""
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(request + "\n")
    worker.stdin.flush()
    for line in worker.stdout:
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    sys.exit(f"two_checkouts.py: error: a worker ended at {request}")


def commit_of(folder: Path) -> str:
    """Return the commit of a checkout, "" if the folder is none."""
    words = ["git", "rev-parse", "HEAD"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True).stdout.strip()


def started(kind: str, folder: Path) -> subprocess.Popen:
    """Start this program as the candidate of a kind, with the package of a checkout."""
    variables = os.environ | {"PYTHONPATH": str(folder.resolve()), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, __file__, "serve", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=variables, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def median_ratio(seconds: list[float], of_other: list[float]) -> str:
    """Return the median over the rounds of one candidate's seconds over another's."""
    ratios = [mine / others for mine, others in zip(seconds, of_other, strict=True)]
    return f"{statistics.median(ratios):.2f}"


def main() -> None:
    """Compare the cases of the command line."""
    if sys.argv[1:2] == ["serve"]:
        return serve(sys.argv[2])
    from deepnet_fairseq.tools.environment import environment

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("task", choices=("train", "decode"))
    parser.add_argument("cases", nargs="+", metavar="WIDTH-LAYERS-SENTENCESxTOKENS")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    folders = {"old": args.old, "new": args.new, "stock": args.new}
    commits = {name: commit_of(folder) for name, folder in folders.items()}
    workers = {name: started(name, folder) for name, folder in folders.items()}
    print(f"| {args.task} | old, s | new, s | stock, s | old / new | stock / old | stock / new | same words |")
    print("|---|---|---|---|---|---|---|---|")
    for case in args.cases:
        request = f"{args.task} {case.replace('-', ' ').replace('x', ' ')}"
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        words = {}  # the last hypotheses of each candidate
        for _ in range(args.rounds):
            for name, worker in workers.items():
                taken, words[name] = ask(worker, request)
                seconds[name].append(taken)

        same_words = words["old"] == words["new"]
        cells = [case]
        cells += [f"{statistics.median(taken):.3f}" for taken in seconds.values()]
        cells.append(median_ratio(seconds["old"], seconds["new"]))
        cells.append(median_ratio(seconds["stock"], seconds["old"]))
        cells.append(median_ratio(seconds["stock"], seconds["new"]))
        cells.append("yes" if same_words else "no")
        print("|", " | ".join(cells), "|", flush=True)

        record = {
            "task": args.task,
            "case": case,
            "seconds": seconds,
            "commits": commits,
            "hardware": environment(0)["hardware"],
            "same_words": same_words,
        }
        with open(Path(__file__).with_suffix(".jsonl"), "a", encoding="utf-8") as records:
            records.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
