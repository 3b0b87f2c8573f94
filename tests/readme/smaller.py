"""The reader's programs at a size for seconds on two CPU cores: what each makes of a command's words."""

from __future__ import annotations

from collections.abc import Callable

UPDATES, MAX_TOKENS = "6", "40000"  # an update an epoch of the corpus, for `average --last 5`
VOCAB = "150"
WIDTH = {"embed-dim": "16", "ffn-embed-dim": "32", "attention-heads": "2", "layers": "2"}
GPU_ONLY = {"--fp16", "--memory-efficient-fp16"}
Words = list[str]


def given(words: Words, **values: str) -> Words:
    """The value of each flag that is there, replaced; `max_update` stands for --max-update and --max_update."""
    found = list(words)
    for position, word in enumerate(words):
        flag, equals, _ = word.partition("=")
        value = values.get(flag.removeprefix("--").replace("-", "_")) if flag.startswith("--") else None
        if value is not None and equals:
            found[position] = f"{flag}={value}"
        elif value is not None and position + 1 < len(words):
            found[position + 1] = value
    return found


def stacks(words: Words) -> Words:
    """Flags of the width and depth of the architecture's stacks; none where the words name no architecture of ours."""
    arch = next((value for flag, value in zip(words, words[1:], strict=False) if flag in ("--arch", "-a")), "")
    if "masked_lm" in arch:
        sides = ["encoder"]
    elif "lm" in arch.split("_"):
        sides = ["decoder"]
    else:
        sides = ["encoder", "decoder"] if arch else []
    return [word for side in sides for name, value in WIDTH.items() for word in (f"--{side}-{name}", value)]


def on_cpu(words: Words) -> Words:
    """Two processes at most, without what needs a GPU."""
    here = [word for word in words if word not in GPU_ONLY]
    return [*given(here, distributed_world_size="2"), "--cpu"]


def train(words: Words) -> Words:
    larger = given(words, max_tokens=MAX_TOKENS)
    return [*on_cpu(larger), *stacks(words), "--max-update", UPDATES, "--log-interval", "1", "--num-workers", "0"]


def hydra_train(words: Words) -> Words:
    width = [f"model.{side}_{name.replace('-', '_')}={value}" for side in ("encoder", "decoder") for name, value in
             WIDTH.items()]  # fmt: skip
    return [
        *words, *width, f"optimization.max_update={UPDATES}", "common.cpu=true", "common.fp16=false",
        "distributed_training.distributed_world_size=1", "dataset.num_workers=0",
    ]  # fmt: skip


def torchrun(words: Words) -> Words:
    return given(words, nproc_per_node="2", nnodes="1")


def deepnet(words: Words) -> Words:
    """By its subcommand; one that is not named here is quick."""
    command = words[0] if words else ""
    if command == "corpus":
        return [*words, "--train", "200", "--valid", "20", "--test", "20"]
    if command in ("prepare-text", "prepare-lm"):
        return given(words, vocab=VOCAB)
    if command in ("check", "profile"):
        return [*words, *stacks(words)]
    if command == "bench":
        return [*words, "--depths", "2-2", "--widths", "tiny", "--repeats", "2", "--warmup", "1", "--sentences", "1"]
    return words


def python(words: Words) -> Words:
    return [*words, "3"] if words[:2] == ["-m", "tests.faults"] else words


def pytest(words: Words) -> Words:
    """Finds the tests, of one file unless some are chosen, and runs none: what runs this is one of them."""
    chosen = "-k" in words or any(word.startswith("tests/") for word in words)
    return [*words, *([] if chosen else ["tests/test_links.py"]), "-n", "0", "-m", "", "--collect-only", "-q"]


def mypy(words: Words) -> Words:
    """Half a minute of the tests' own check."""
    return [*words, "--version"]


def pip(words: Words) -> Words:
    """Says whether what is asked for is what is there, without a network."""
    return [*words, "--dry-run", "--no-index", "--no-deps"] if words[:1] == ["install"] else words


PROGRAMS: dict[str, Callable[[Words], Words]] = {
    "fairseq-train": train,
    "fairseq-validate": on_cpu,
    "fairseq-generate": on_cpu,
    "fairseq-interactive": on_cpu,
    "fairseq-eval-lm": on_cpu,
    "fairseq-hydra-train": hydra_train,
    "torchrun": torchrun,
    "deepnet": deepnet,
    "python": python,
    "pytest": pytest,
    "mypy": mypy,
    "pip": pip,
}
