"""Setting of a plan, read from fairseq-train's flags: a model, its batches, precision and optimiser."""

from __future__ import annotations

import argparse
import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...core import archs, config
from ...core.recomputation import group_size
from ...errors import UserError
from ...plugin.chunked_loss import CROSS_ENTROPY, LABEL_SMOOTHED

GIB = 2**30
FLOAT32 = 4
MOST = 10**8  # limit of any whole number
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
OPTIMIZERS = ADAM, FUSED = "adam", "deepnet_adam"
SHARDED = "--zero-sharding os"


class Objective(NamedTuple):
    """Training objective of a model.

    task, criterion: fairseq's names; chunked: the criterion's form without all logits, None where there is none;
    length: tokens of a sample, by default.
    """

    task: str
    criterion: str
    chunked: str | None
    length: int = 1024

    @property
    def translates(self) -> bool:
        """True if there are a source and a target; the loss is then label-smoothed."""
        return self.task == "translation"

    @property
    def masks(self) -> bool:
        """True if some of the tokens are masked, and only these predicted."""
        return self.task == "masked_lm"


OBJECTIVES = {
    archs.MODEL_NAME: Objective("translation", "label_smoothed_cross_entropy", LABEL_SMOOTHED, 32),
    archs.LM: Objective("language_modeling", "cross_entropy", CROSS_ENTROPY),
    archs.MASKED_LM: Objective("masked_lm", "masked_lm", None),
}


@dataclass(frozen=True)
class Setting:
    """Setting of a training: the flags of model, batches and machine that determine memory and time.

    cfg: a filled model config; vocab: symbols that the first stack reads, and those that the model predicts;
    max_tokens: source tokens, and target tokens, in a batch of one GPU, padding included (of a language model's one
    text, simply tokens); length: tokens of a sentence; precision: a key of DTYPES, or "memory-efficient-" and one of
    the half precisions, then without a master copy; optimizer: "adam" or "deepnet_adam"; criterion: by default the
    model's; cuda_graphs: shapes of batches that have a graph, 0 for none; mask_prob: share of the tokens that a masked
    language model predicts; checkpoint_every: layers that are recomputed together, 0 for none; zero: whether the
    optimiser's state is sharded; gpu_memory: bytes; device: "cpu" or "cuda". Raises a UserError, naming the flag, for
    values out of range and for flags that do not go together.
    """

    cfg: argparse.Namespace
    vocab: tuple[int, int]
    max_tokens: int = 4096
    update_freq: int = 1
    length: int = 32
    precision: str = "fp32"
    optimizer: str = ADAM
    criterion: str = ""
    mask_prob: float = 0.15  # fairseq's
    checkpoint_every: int = 0
    zero: bool = False
    gpus: int = 1
    cuda_graphs: int = 0
    gpu_memory: int = 80 * GIB
    device: str = "cuda"

    def __post_init__(self):
        object.__setattr__(self, "criterion", self.criterion or self.objective.criterion)  # the class is frozen
        self._check_ranges()
        self._check_batch_and_loss()
        self._check_vocabularies()
        self._check_optimiser()

    def _check_ranges(self) -> None:
        """Raise a UserError for a number out of its range."""
        for name in ("max_tokens", "update_freq", "length", "gpus"):
            number = getattr(self, name)
            if not 1 <= number <= MOST:
                raise UserError(f"--{name.replace('_', '-')} {number}: must be from 1 to {MOST:,}")
        if not 0 <= self.cuda_graphs <= MOST:
            raise UserError(f"--cuda-graphs {self.cuda_graphs}: must be from 0 to {MOST:,}")
        if self.gpu_memory < 1:
            raise UserError(f"--gpu-memory {self.gpu_memory / GIB:g}: must be above 0")
        if not 0 < self.mask_prob <= 1:
            raise UserError(f"--mask-prob {self.mask_prob}: must be above 0 and at most 1")
        if not 1 <= min(self.vocab) <= max(self.vocab) <= MOST:
            raise UserError(f"--vocab {self.vocab[0]},{self.vocab[1]}: a vocabulary has 1 to {MOST:,} entries")

    def _check_batch_and_loss(self) -> None:
        """Raise a UserError for a sentence longer than a batch, and for a loss that is not the model's."""
        if self.length > self.max_tokens:
            raise UserError(f"--length {self.length}: longer than a batch of --max-tokens {self.max_tokens}")

        whole = self.objective.criterion
        chunked = self.objective.chunked
        if self.criterion not in (whole, chunked):
            known = f"{whole} or {chunked}" if chunked else whole
            raise UserError(f"--criterion {self.criterion}: the plan of a {self.model} knows {known}")

    def _check_vocabularies(self) -> None:
        """Raise a UserError for two vocabularies in a model that has one."""
        if self.vocab[0] == self.vocab[1]:
            return
        sizes = f"--vocab {self.vocab[0]},{self.vocab[1]}"
        if len(self.stacks) == 1:
            raise UserError(f"{sizes}: a {self.model} has one vocabulary")
        if self.cfg.share_all_embeddings:
            raise UserError(f"--share-all-embeddings: {sizes} names two dictionaries")

    def _check_optimiser(self) -> None:
        """Raise a UserError for an optimiser that can do neither the sharding nor the precision."""
        if self.zero and self.gpus == 1:
            raise UserError(f"{SHARDED}: shards over several GPUs; give --gpus")
        if self.zero and self.optimizer != FUSED:
            raise UserError(f"{SHARDED}: with --optimizer {FUSED}; {self.optimizer} is not sharded")
        if self.memory_efficient and self.optimizer == FUSED:
            raise UserError(f"--{self.precision}: not with --optimizer {FUSED}")

    @property
    def memory_efficient(self) -> bool:
        """True if the weights are in half precision without a master copy."""
        return self.precision.startswith("memory-efficient")

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, activations and gradients."""
        return DTYPES[self.precision.removeprefix("memory-efficient-")]

    @property
    def model(self) -> str:
        """Name of the model, a key of archs.STACKS."""
        return archs.model_of(self.cfg)

    @property
    def objective(self) -> Objective:
        """Training objective of the model."""
        return OBJECTIVES[self.model]

    @property
    def stacks(self) -> tuple[str, ...]:
        """Names of the model's stacks, in forward order."""
        return archs.STACKS[self.model]

    @property
    def layer_fields(self) -> list[str]:
        """The config's fields with the depth of each stack."""
        return [f"{stack}_layers" for stack in self.stacks]

    @property
    def chunked(self) -> bool:
        """True if the loss is computed in chunks."""
        return self.criterion == self.objective.chunked

    @property
    def graphs(self) -> int:
        """Number of CUDA graphs: a training on several GPUs or a CPU, or with recomputation, goes on without."""
        served = self.device == "cuda" and self.gpus == 1 and not self.checkpoint_every
        return self.cuda_graphs if served else 0

    @property
    def scored(self) -> int:
        """Number of tokens, of a batch of whole sentences, that are projected to the vocabulary."""
        tokens = self.max_tokens // self.length * self.length
        if not self.objective.masks:
            return tokens
        return max(1, round(tokens * self.mask_prob))

    @property
    def batch(self) -> int:
        """Number of target tokens of an update, masked or not."""
        return self.max_tokens * self.update_freq * self.gpus

    def optimiser(self, numbers: int, largest: int) -> tuple[int, int]:
        """Return bytes kept between updates, and temporary bytes of an update.

        numbers: in all trained parameters; largest: in the largest of them. Kept are Adam's moments and, where the
        weights are in half precision, weights and gradients in float32, sharded or not. fairseq's adam has the root of
        one tensor's second moment at a time (with --fp16 all are one tensor) and, without float32 weights, copies of
        weight and gradient (optim/adam.py, fp16_optimizer.py of fairseq); deepnet_adam has no temporaries.
        """
        copies = 2  # Adam's two moments
        if self.precision in ("fp16", "bf16"):
            copies += 2  # weights and gradients in float32
        shards = self.gpus if self.zero else 1
        kept = -(-numbers * FLOAT32 * copies // shards)  # rounded up

        if self.optimizer == FUSED:
            return kept, 0
        temporaries = 3 if self.memory_efficient else 1  # root; copies of weight and gradient
        at_a_time = numbers if self.precision == "fp16" else largest
        return kept, temporaries * FLOAT32 * at_a_time


def recomputation(every: int) -> str:
    """Return fairseq-train's flags for recomputing `every` layers together."""
    if every == 0:
        return ""
    if every == 1:
        return "--checkpoint-activations"
    return f"--checkpoint-every {every}"


FLAGS = ("max_tokens", "update_freq", "criterion", "mask_prob", "gpus")  # of Setting's fields, with their defaults
AUTO_GRAPHS = 32  # shapes that --cuda-graphs auto makes


class Parser(argparse.ArgumentParser):
    """Parser that raises a UserError for a mistake."""

    def error(self, message: str):
        """Raise a UserError."""
        raise UserError(message.removeprefix("argument "))


def check_number(flag: str, value: float, zero: bool = False) -> None:
    """Raise a UserError, naming the flag, unless the value is a number above 0 or, with `zero`, 0."""
    if not (0 < value < 1e18 or (zero and value == 0)):  # false for NaN
        raise UserError(f"{flag} {value}: must be a number {'from' if zero else 'above'} 0")


def parse(flags: list[str], strict: bool = True) -> Setting:
    """Parse `deepnet plan`'s flags; raise a UserError, naming the flag, for one that is unknown or contradicts others.

    strict: False ignores flags that memory and time do not depend on, as in a whole command of fairseq-train.
    """
    first = Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--arch", "-a", default=archs.MODEL_NAME)
    arch = first.parse_known_args(flags)[0].arch  # the other flags depend on its model
    if arch not in archs.PRESETS:
        raise UserError(f"--arch {arch}: no such architecture; `deepnet methods --archs` lists them")

    fields = {field.name: field for field in dataclasses.fields(config.config_class(archs.MODELS[arch]))}
    parser = _parser(arch, fields)
    args, rest = parser.parse_known_args(flags)
    if rest and strict:
        raise UserError(f"unknown: {' '.join(rest)}; memory and time do not depend on it, drop it")

    overrides = {name: value for name, value in vars(args).items() if name in fields}
    if "max_source_positions" not in fields:  # a language model's samples are all of one length, which is its longest
        longest = fields.keys() & {"tokens_per_sample", "max_target_positions", "max_positions"}
        overrides = dict.fromkeys(longest, args.length) | overrides
    cfg = config.namespace(arch, **overrides)
    if not math.isfinite(args.gpu_memory * GIB):
        raise UserError(f"--gpu-memory {args.gpu_memory}: must be a number of GiB")

    return Setting(
        cfg=cfg,
        vocab=_vocabularies(args.vocab),
        precision=_precision(args),
        checkpoint_every=group_size(cfg),
        zero=args.zero_sharding == "os",
        gpu_memory=int(args.gpu_memory * GIB),
        device="cpu" if args.cpu else "cuda",
        cuda_graphs=_graphs(args.cuda_graphs),
        length=args.length,
        optimizer=args.optimizer,
        **{name: getattr(args, name) for name in FLAGS},
    )


TYPES = {"int": int, "float": float, "str": str}  # words in a field's annotation -> type of its flag


def _parser(arch: str, fields: dict[str, dataclasses.Field]) -> argparse.ArgumentParser:
    """Return the parser of the model's fields and of the flags of batch, precision, optimiser and machine.

    fields: of the config of the architecture's model, by name. A field whose flag is not given is left out of the
    result, because the architecture sets it.
    """
    objective = OBJECTIVES[archs.MODELS[arch]]
    parser = Parser(prog="deepnet plan", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--arch", "-a", default=archs.MODEL_NAME)
    parser.add_argument("--length", "--tokens-per-sample", type=int, default=objective.length)

    for name in fields.keys() - {"tokens_per_sample"}:
        flag = f"--{name.replace('_', '-')}"
        annotation = str(fields[name].type)  # as "bool" or "Optional[int]"
        if "bool" in annotation:
            parser.add_argument(flag, action="store_true")
        else:
            kind = next(kind for word, kind in TYPES.items() if word in annotation)
            parser.add_argument(flag, type=kind, choices=fields[name].metadata["choices"] or None)

    parser.add_argument("--vocab", default="32000")
    parser.add_argument("--gpu-memory", type=float, default=80.0)
    parser.add_argument("--cuda-graphs", default="0")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default=ADAM)
    parser.add_argument("--zero-sharding", choices=("none", "os"), default="none")
    for name in FLAGS:
        default = getattr(Setting, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    for flag in ("fp16", "bf16", "memory-efficient-fp16", "memory-efficient-bf16", "cpu"):
        parser.add_argument(f"--{flag}", action="store_true", default=False)
    return parser


def _graphs(text: str) -> int:
    """Return the number of shapes that --cuda-graphs names."""
    if text != "auto" and not text.isdecimal():
        raise UserError(f"--cuda-graphs {text}: give a number of shapes, or auto")
    if text == "auto":
        return AUTO_GRAPHS
    return int(text)


def _vocabularies(text: str) -> tuple[int, int]:
    """Return the sizes of the source's and the target's vocabulary, of "32000" or "32000,40000"."""
    sizes = text.split(",")
    if len(sizes) > 2 or not all(size.isdecimal() for size in sizes):
        raise UserError(f"--vocab {text}: give the size of the vocabulary, or two with a comma, source first")
    return int(sizes[0]), int(sizes[-1])


def _precision(args: argparse.Namespace) -> str:
    """Return Setting's precision; a UserError if the flags name two."""
    asked = []
    for half in ("fp16", "bf16"):
        if getattr(args, f"memory_efficient_{half}"):  # --fp16 beside it adds nothing
            asked.append(f"memory-efficient-{half}")
        elif getattr(args, half):
            asked.append(half)
    if len(asked) > 1:
        raise UserError("--fp16 and --bf16: choose one")
    return asked[0] if asked else "fp32"
