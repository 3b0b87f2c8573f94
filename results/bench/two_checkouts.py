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
MARK = "RESULT "


def build(kind: str, width: int, depth: int, dropout: float):
    """Build our model or stock fairseq's, of equal shape."""
    import torch
    from fairseq.models.transformer import TransformerModel, base_architecture

    from deepnet_fairseq.plugin import building

    torch.manual_seed(0)
    shape = {"embed_dim": width, "ffn_embed_dim": 2 * width if width < 128 else 4 * width, "layers": depth}
    shape["attention_heads"] = 2 if width < 128 else 8
    fields = {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in shape.items()}
    fields |= {"dropout": dropout, "share_all_embeddings": True}
    if kind != "stock":
        return building.build("deepnet_transformer", vocab=VOCABULARY, method="deepnorm", **fields)
    args = argparse.Namespace(**fields)
    base_architecture(args)
    return TransformerModel.build_model(args, building.blank_task(VOCABULARY))


def train(kind: str, width: int, depth: int, sentences: int, length: int):
    """Return a function that runs a forward and a backward pass with dropout 0.1 and returns its processor seconds."""
    import torch

    model = build(kind, width, depth, 0.1).train()
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
    """Return a function that translates with beam 5, and returns its processor seconds and the best hypotheses."""
    import torch
    from fairseq.sequence_generator import SequenceGenerator

    from deepnet_fairseq.plugin import building

    model = build(kind, width, depth, 0.0).eval()
    off = {"retain_dropout": False, "print_alignment": None, "no_beamable_mm": False, "retain_dropout_modules": None}
    model.prepare_for_inference_(argparse.Namespace(generation=argparse.Namespace(**off)))
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(4, VOCABULARY, (sentences, 20), generator=generator)
    lengths = torch.randint(8, 21, (sentences,), generator=generator)
    for row, words in zip(source, lengths.tolist(), strict=True):
        row[: 20 - words] = 1
    limits = {"max_len_a": 0, "max_len_b": length, "min_len": length}
    search = SequenceGenerator([model], building.blank_task(VOCABULARY).target_dictionary, beam_size=5, **limits)

    def translate() -> tuple[float, list]:
        begun = time.process_time()
        beams = search.generate([model], {"net_input": {"src_tokens": source, "src_lengths": lengths}})
        return time.process_time() - begun, [hypotheses[0]["tokens"].tolist() for hypotheses in beams]

    return translate


def serve(kind: str) -> None:
    """Answer requests "train WIDTH DEPTH SENTENCES LENGTH" on standard input, a case prepared once."""
    import torch

    import deepnet_fairseq

    torch.set_num_threads(1)
    deepnet_fairseq.register()
    prepared = {}
    for line in sys.stdin:
        task, *numbers = line.split()
        if line not in prepared:
            prepared = {line: {"train": train, "decode": decode}[task](kind, *map(int, numbers))}
            prepared[line]()  # what the first run alone costs
        print(MARK + json.dumps(prepared[line]()), flush=True)


def ask(worker: subprocess.Popen, request: str) -> list:
    """Send one request and wait for its answer."""
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(request + "\n")
    worker.stdin.flush()
    for line in worker.stdout:
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    sys.exit(f"two_checkouts.py: error: a worker ended at {request}")


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
    commits = {
        name: subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True).stdout.strip()
        for name, folder in folders.items()
    }
    workers = {
        name: subprocess.Popen(
            [sys.executable, __file__, "serve", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": str(folder.resolve()), "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL,
        )
        for name, folder in folders.items()
    }  # fmt: skip
    print(f"| {args.task} | old, s | new, s | stock, s | old / new | stock / old | stock / new | same words |")
    print("|---|---|---|---|---|---|---|---|")
    for case in args.cases:
        request = f"{args.task} {case.replace('-', ' ').replace('x', ' ')}"
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        words = {}
        for _ in range(args.rounds):
            for name, worker in workers.items():
                taken, words[name] = ask(worker, request)
                seconds[name].append(taken)

        def ratio(one: str, other: str, seconds=seconds) -> float:
            return statistics.median(a / b for a, b in zip(seconds[one], seconds[other], strict=True))

        medians = [f"{statistics.median(taken):.3f}" for taken in seconds.values()]
        ratios = [f"{ratio(*pair):.2f}" for pair in (("old", "new"), ("stock", "old"), ("stock", "new"))]
        print(
            "|", " | ".join([case, *medians, *ratios, "yes" if words["old"] == words["new"] else "no"]), "|", flush=True
        )
        record = {
            "task": args.task,
            "case": case,
            "seconds": seconds,
            "commits": commits,
            "hardware": environment(0)["hardware"],
        }
        with open(Path(__file__).with_suffix(".jsonl"), "a", encoding="utf-8") as records:
            records.write(json.dumps(record | {"same_words": words["old"] == words["new"]}) + "\n")


if __name__ == "__main__":
    main()
