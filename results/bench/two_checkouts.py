"""Compare training and decoding of two checkouts of this repository, and stock fairseq's, on one CPU core.

python results/bench/two_checkouts.py OLD NEW train 64-18-24x20 512-18-4x32       width, layers, sentences x tokens
python results/bench/two_checkouts.py OLD NEW decode 64-18-80x24 64-18-1x24       beam 5, all hypotheses of that length

OLD and NEW are folders of two checkouts; the environment is the active one. Each candidate is a process of its own that
stays, and they take turns, so that a busy machine slows all of them alike; figures are processor seconds, ratios are
medians over the rounds. Weights are random; OLD and NEW have the same ones, DeepNorm's. Stock is fairseq's
`transformer`. Prints Markdown and appends a line for each case to two_checkouts.jsonl.
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

# A candidate is one of three implementations, by name: "old" and "new" are this package's model in the two checkouts,
# "stock" is fairseq's own model.

VOCABULARY = 1000
MARK = "RESULT "  # begins a candidate's answer among what fairseq prints


def build_model(kind: str, width: int, depth: int, dropout: float):
    """Build the model of a candidate: fairseq's for "stock", ours for any other, of equal shape.

    kind: the candidate's name; width: embed_dim; depth: layers of the encoder, and as many of the decoder; dropout: its
    probability.
    """
    import torch
    from fairseq.models.transformer import TransformerModel, base_architecture

    from deepnet_fairseq.plugin import building

    torch.manual_seed(0)
    shape = {"embed_dim": width, "layers": depth}
    if width < 128:  # the proportions of deepnet_transformer_tiny; else those of the Transformer's base size
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
    """Build a model and a batch; return a function that runs a forward and a backward pass on them.

    The function returns (processor seconds, None); `decode` has hypotheses in place of the None. kind, width, depth: as
    in build_model, with dropout 0.1; sentences: of the batch; length: tokens of every source and target.
    """
    import torch

    model = build_model(kind, width, depth, 0.1).train()
    generator = torch.Generator().manual_seed(1)
    # tokens 0 to 3 are fairseq's special ones
    source, target = torch.randint(4, VOCABULARY, (2, sentences, length), generator=generator)
    source[1, :3] = 1  # 1 is padding, which most real batches have
    lengths = source.ne(1).sum(1)

    def step() -> tuple[float, None]:
        """Compute the gradients once; return the processor seconds, and None for the hypotheses."""
        model.zero_grad()
        begun = time.process_time()
        scores = model(source, lengths, target)[0]  # no shifted target: only the work counts
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten()).backward()
        return time.process_time() - begun, None

    return step


def decode(kind: str, width: int, depth: int, sentences: int, length: int):
    """Build a model and a batch of sources; return a function that translates them with beam 5.

    The function returns (processor seconds, the best hypothesis of each sentence as a list of token numbers). kind,
    width, depth: as in build_model; sentences: of the batch; length: tokens of every hypothesis before its end, so that
    all candidates decode as many.
    """
    import torch
    from fairseq.sequence_generator import SequenceGenerator

    from deepnet_fairseq.plugin import building

    model = build_model(kind, width, depth, 0.0).eval()
    # the fields of fairseq's config that prepare_for_inference_ reads, all of them off
    off = {"retain_dropout": False, "print_alignment": None, "no_beamable_mm": False, "retain_dropout_modules": None}
    model.prepare_for_inference_(argparse.Namespace(generation=argparse.Namespace(**off)))

    # sources of 8 to 20 tokens; fairseq pads them on the left, with token 1
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
        """Translate the batch once; return the processor seconds and the best hypotheses."""
        begun = time.process_time()
        beams = search.generate([model], batch)
        seconds = time.process_time() - begun
        return seconds, [hypotheses[0]["tokens"].tolist() for hypotheses in beams]

    return translate


def serve(kind: str) -> None:
    """Answer requests, a line each, until standard input ends: the program of one candidate.

    A request is "TASK WIDTH DEPTH SENTENCES LENGTH": `train` or `decode`, and the numbers that they take. The answer, a
    line that begins with MARK, is the JSON of [processor seconds, hypotheses or null]. kind: as in build_model.
    """
    import torch

    import deepnet_fairseq

    torch.set_num_threads(1)
    deepnet_fairseq.register()
    tasks = {"train": train, "decode": decode}
    last_request = None  # the line for which `measure` was made; equal requests in a row use the same model
    for line in sys.stdin:
        if line != last_request:
            task, *numbers = line.split()
            measure = tasks[task](kind, *map(int, numbers))
            measure()  # to warm up: the first call takes longer, as it allocates memory
            last_request = line
        print(MARK + json.dumps(measure()), flush=True)


def ask(worker: subprocess.Popen, request: str) -> list:
    """Send a request to a process that runs `serve`; wait for its answer, [processor seconds, hypotheses or None].

    If the process ends instead, this program does, too.
    """
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(request + "\n")
    worker.stdin.flush()
    for line in worker.stdout:
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    sys.exit(f"two_checkouts.py: error: a candidate's process ended during `{request}`; its message stands above")


def commit_of(folder: Path) -> str:
    """Return the commit of a checkout, all of its digits; "" for a folder without git."""
    words = ["git", "rev-parse", "HEAD"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True).stdout.strip()


def start_candidate(kind: str, folder: Path) -> subprocess.Popen:
    """Start this program's `serve` in a process with one thread, for the candidate `kind` of a checkout."""
    variables = os.environ | {"PYTHONPATH": str(folder.resolve()), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, __file__, "serve", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=variables, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def median_ratio(seconds: list[float], of_other: list[float]) -> str:
    """Return the median over the rounds of one candidate's seconds divided by another's in the same round."""
    ratios = [mine / others for mine, others in zip(seconds, of_other, strict=True)]
    return f"{statistics.median(ratios):.2f}"


def main() -> None:
    """Compare the candidates on each case of the command line; print a table and append a record of each case."""
    if sys.argv[1:2] == ["serve"]:  # start_candidate began this process
        return serve(sys.argv[2])
    from deepnet_fairseq.tools.environment import environment

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="folder of a checkout")
    parser.add_argument("new", type=Path, help="folder of the checkout to compare it with")
    parser.add_argument("task", choices=("train", "decode"), help="what to time: an update, or a beam search")
    parser.add_argument(
        "cases", nargs="+", metavar="WIDTH-LAYERS-SENTENCESxTOKENS", help="sizes of model and batch, as 64-18-24x20"
    )
    parser.add_argument("--rounds", type=int, default=9, help="how often to time each candidate (default: 9)")
    args = parser.parse_args()

    folders = {"old": args.old, "new": args.new, "stock": args.new}
    commits = {name: commit_of(folder) for name, folder in folders.items()}
    workers = {name: start_candidate(name, folder) for name, folder in folders.items()}
    print(f"| {args.task} | old, s | new, s | stock, s | old / new | stock / old | stock / new | same words |")
    print("|---|---|---|---|---|---|---|---|")
    for case in args.cases:
        numbers = case.replace("-", " ").replace("x", " ")  # "64-18-24x20" -> "64 18 24 20"
        request = f"{args.task} {numbers}"
        seconds: dict[str, list[float]] = {name: [] for name in workers}  # of each candidate, by round
        hypotheses = {}  # of each candidate, in its last round; None in training
        for _ in range(args.rounds):
            for name, worker in workers.items():
                taken, hypotheses[name] = ask(worker, request)
                seconds[name].append(taken)

        same_words = hypotheses["old"] == hypotheses["new"]  # always so in training, where both are None
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
