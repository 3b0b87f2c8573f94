"""What a plan depends on, read from fairseq-train's flags: a model, its batches, precision, optimiser and machine.

The stacks of a model are its encoder, its decoder or both (core/archs.py).
"""

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
from ...plugin.chunked_loss import CROSS_ENTROPY as CHUNKED_CROSS_ENTROPY
from ...plugin.chunked_loss import LABEL_SMOOTHED as CHUNKED_LABEL_SMOOTHED

GIB = 2**30
FLOAT32_BYTES = 4
LIMIT = 10**8  # the greatest value of flags that take a whole number
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ADAM = "adam"  # fairseq's
FUSED = "deepnet_adam"  # the plugin's, whose kernels update many tensors at once
OPTIMIZERS = (ADAM, FUSED)
SHARDED = "--zero-sharding os"  # the optimiser's state is divided among the GPUs (ZeRO, stage 1)


class Objective(NamedTuple):
    """Training objective of a model.

    task, criterion: fairseq's names; chunked: name of the plugin's criterion that computes the same loss a chunk of
    tokens at a time (plugin/chunked_loss.py), None where there is none; length: tokens of a sentence if --length is not
    given.
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
        """True if it is a masked language model: some of the tokens are masked, and only these are predicted."""
        return self.task == "masked_lm"


OBJECTIVES = {  # name of a model -> its objective
    archs.MODEL_NAME: Objective("translation", "label_smoothed_cross_entropy", CHUNKED_LABEL_SMOOTHED, 32),
    archs.LM: Objective("language_modeling", "cross_entropy", CHUNKED_CROSS_ENTROPY),
    archs.MASKED_LM: Objective("masked_lm", "masked_lm", None),
}


@dataclass(frozen=True)
class Setting:
    """Setting of a training: the flags of model, batches and machine that determine memory and time.

    cfg: a config of the model with all fields set
    vocab: two sizes: of the vocabulary that the first stack reads, and of the vocabulary that the model predicts
    max_tokens: tokens in a batch of one GPU, padding included; a translation model has so many source tokens and as
      many target tokens
    update_freq: batches of an update on each GPU
    length: tokens of a sentence; all sentences are taken to be of one length
    precision: a key of DTYPES, or "memory-efficient-" before "fp16" or "bf16", without a float32 copy of the weights
    optimizer: "adam" or "deepnet_adam"
    criterion: fairseq's name; "" for the one of the model's objective
    mask_prob: share of the tokens that a masked language model predicts
    checkpoint_every: number of layers that are recomputed together, 0 to recompute none
    zero: whether the optimiser's state is sharded over the GPUs (--zero-sharding os)
    gpus: number of all GPUs, or of processes on the CPU
    cuda_graphs: number of shapes of batches that get a CUDA graph
    gpu_memory: bytes of one GPU
    device: "cpu" or "cuda"

    Raises a UserError, naming the flag, for values out of range and for flags that do not go together.
    """

    cfg: argparse.Namespace
    vocab: tuple[int, int]
    max_tokens: int = 4096
    update_freq: int = 1
    length: int = 32
    precision: str = "fp32"
    optimizer: str = ADAM
    criterion: str = ""
    mask_prob: float = 0.15  # fairseq's default
    checkpoint_every: int = 0
    zero: bool = False
    gpus: int = 1
    cuda_graphs: int = 0
    gpu_memory: int = 80 * GIB
    device: str = "cuda"

    def __post_init__(self):
        # a frozen class refuses `self.criterion = ...`
        object.__setattr__(self, "criterion", self.criterion or self.objective.criterion)
        self._check_ranges()
        self._check_batch_and_loss()
        self._check_vocabularies()
        self._check_optimiser()

    def _check_ranges(self) -> None:
        """Raise a UserError for a number out of its range."""
        for name in ("max_tokens", "update_freq", "length", "gpus"):
            number = getattr(self, name)
            if not 1 <= number <= LIMIT:
                raise UserError(f"--{name.replace('_', '-')} {number}", f"must be from 1 to {LIMIT:,}")
        if not 0 <= self.cuda_graphs <= LIMIT:
            raise UserError(f"--cuda-graphs {self.cuda_graphs}", f"must be from 0 to {LIMIT:,}")
        if self.gpu_memory < 1:
            raise UserError(f"--gpu-memory {self.gpu_memory / GIB:g}", "must be above 0")
        if not 0 < self.mask_prob <= 1:
            raise UserError(f"--mask-prob {self.mask_prob}", "must be above 0 and at most 1")
        if not 1 <= min(self.vocab) <= max(self.vocab) <= LIMIT:
            raise UserError(f"--vocab {self.vocab[0]},{self.vocab[1]}", f"a vocabulary has 1 to {LIMIT:,} entries")

    def _check_batch_and_loss(self) -> None:
        """Raise a UserError for a sentence longer than a batch, and for a criterion that is not for the model."""
        if self.length > self.max_tokens:
            raise UserError(f"--length {self.length}", f"longer than a batch of --max-tokens {self.max_tokens}")

        usual = self.objective.criterion
        chunked = self.objective.chunked  # None if there is none
        if self.criterion not in (usual, chunked):
            known = f"{usual} or {chunked}" if chunked else usual
            raise UserError(f"--criterion {self.criterion}", f"the plan of a {self.model} knows {known}")

    def _check_vocabularies(self) -> None:
        """Raise a UserError for vocabularies of two sizes in a model that has only one vocabulary.

        It is a language model, or a model with --share-all-embeddings.
        """
        if self.vocab[0] == self.vocab[1]:
            return
        sizes = f"--vocab {self.vocab[0]},{self.vocab[1]}"
        if len(self.stacks) == 1:  # a language model
            raise UserError(sizes, f"a {self.model} has one vocabulary")
        if self.cfg.share_all_embeddings:
            raise UserError("--share-all-embeddings", f"{sizes} names two dictionaries")

    def _check_optimiser(self) -> None:
        """Raise a UserError for flags that do not go together: sharding, optimiser, precision and number of GPUs."""
        if self.zero and self.gpus == 1:
            raise UserError(SHARDED, "shards over several GPUs; give --gpus")
        if self.zero and self.optimizer != FUSED:
            raise UserError(SHARDED, f"with --optimizer {FUSED}; {self.optimizer} is not sharded")
        if self.memory_efficient and self.optimizer == FUSED:
            raise UserError(f"--{self.precision}", f"not with --optimizer {FUSED}")

    @property
    def memory_efficient(self) -> bool:
        """True if the weights are in half precision without a float32 copy."""
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
        """Names of the config's fields that hold the number of layers of each stack, as "encoder_layers"."""
        return [f"{stack}_layers" for stack in self.stacks]

    @property
    def chunked(self) -> bool:
        """True if the loss is computed in chunks of tokens."""
        return self.criterion == self.objective.chunked

    @property
    def active_graphs(self) -> int:
        """Number of CUDA graphs that the plugin makes.

        It makes none on a CPU, none for masked language models, and none where layers with dropout are recomputed.
        """
        cfg = self.cfg
        drops = cfg.dropout or cfg.attention_dropout or cfg.activation_dropout
        if self.device == "cpu" or self.model == archs.MASKED_LM or (self.checkpoint_every and drops):
            return 0
        return self.cuda_graphs

    @property
    def predicted_tokens(self) -> int:
        """Number of tokens in a batch that are projected to the vocabulary: all, or the masked ones."""
        tokens = self.max_tokens // self.length * self.length  # of the whole sentences that a batch has room for
        if self.objective.masks:
            return max(1, round(tokens * self.mask_prob))
        return tokens

    @property
    def tokens_per_update(self) -> int:
        """Number of target tokens in the batches of an update on all GPUs, padding included, masked or not."""
        return self.max_tokens * self.update_freq * self.gpus

    def optimiser_bytes(self, trainable: int, largest: int) -> tuple[int, int]:
        """Return two numbers of bytes: what the optimiser keeps between updates, and the temporaries of its step.

        trainable: number of scalars in all trained parameters; largest: number of scalars in the largest parameter
        tensor.

        It keeps Adam's two moments and, under --fp16 and --bf16, float32 copies of weights and gradients, which the
        memory-efficient precisions do without; with sharding each GPU has its part of all of these. fairseq's adam
        makes the square root of a tensor's second moment, one tensor at a time (with --fp16 all parameters are one
        tensor), and in a memory-efficient precision it also makes float32 copies of that weight and gradient (fairseq's
        optim/adam.py, optim/fp16_optimizer.py). deepnet_adam has no temporaries.
        """
        copies = 2  # Adam's two moments
        if self.precision in ("fp16", "bf16"):
            copies += 2  # weights and gradients in float32
        shards = self.gpus if self.zero else 1
        kept = -(-trainable * FLOAT32_BYTES * copies // shards)  # rounded up

        if self.optimizer == FUSED:
            return kept, 0
        temporaries = 3 if self.memory_efficient else 1  # the root, and the copies of weight and gradient
        tensor_size = trainable if self.precision == "fp16" else largest
        return kept, temporaries * FLOAT32_BYTES * tensor_size


def recomputation_flags(every: int) -> str:
    """Return fairseq-train's flags for recomputing `every` layers together, "" for 0."""
    if every == 0:
        return ""
    if every == 1:
        return "--checkpoint-activations"
    return f"--checkpoint-every {every}"


# fields of Setting whose flags have the same name, type and default
PLAIN_FLAGS = ("max_tokens", "update_freq", "criterion", "mask_prob", "gpus")
AUTO_GRAPHS = 32  # shapes of batches that get a graph under --cuda-graphs auto


class Parser(argparse.ArgumentParser):
    """Parser that raises a UserError for invalid flags, where argparse would print the usage and exit."""

    def error(self, message: str):
        """Raise argparse's message as a UserError."""
        raise UserError(message.removeprefix("argument "))


def check_number(flag: str, value: float, zero: bool = False) -> None:
    """Raise a UserError unless the value of a flag is a number above 0 and below 1e18, which excludes infinity and NaN.

    flag: as the user writes it, "--max-epoch"; zero: whether 0 is allowed too.
    """
    if not (0 < value < 1e18 or (zero and value == 0)):
        raise UserError(f"{flag} {value}", f"must be a number {'from' if zero else 'above'} 0")


def parse_setting(flags: list[str], strict: bool = True) -> Setting:
    """Parse `deepnet plan`'s flags; raise a UserError, naming the flag, for an invalid value or a contradiction.

    strict: whether flags that memory and time do not depend on are errors; False ignores them, as in a whole command of
    fairseq-train.
    """
    # --arch alone at first, because which other flags there are depends on the architecture's model
    arch_parser = Parser(add_help=False, allow_abbrev=False)
    arch_parser.add_argument("--arch", "-a", default=archs.MODEL_NAME)
    arch = arch_parser.parse_known_args(flags)[0].arch
    if arch not in archs.PRESETS:
        raise UserError(f"--arch {arch}", "no such architecture; `deepnet methods --archs` lists them")

    fields = {field.name: field for field in dataclasses.fields(config.config_class(archs.MODELS[arch]))}
    parser = _parser(arch, fields)
    args, unknown = parser.parse_known_args(flags)
    if unknown and strict:
        raise UserError("unknown", f"{' '.join(unknown)}; memory and time do not depend on it, drop it")

    given_fields = {name: value for name, value in vars(args).items() if name in fields}
    if "max_source_positions" not in fields:
        # the sentences of a language model are all of one length, which is thus the default of its length limits
        length_limits = fields.keys() & {"tokens_per_sample", "max_target_positions", "max_positions"}
        given_fields = dict.fromkeys(length_limits, args.length) | given_fields
    cfg = config.namespace(arch, **given_fields)  # the architecture sets the other fields
    if not math.isfinite(args.gpu_memory * GIB):
        raise UserError(f"--gpu-memory {args.gpu_memory}", "must be a number of GiB")

    return Setting(
        cfg=cfg,
        vocab=_vocabularies(args.vocab),
        precision=_precision(args),
        checkpoint_every=group_size(cfg),
        zero=args.zero_sharding == "os",
        gpu_memory=int(args.gpu_memory * GIB),
        device="cpu" if args.cpu else "cuda",
        cuda_graphs=_number_of_graphs(args.cuda_graphs),
        length=args.length,
        optimizer=args.optimizer,
        **{name: getattr(args, name) for name in PLAIN_FLAGS},
    )


FLAG_TYPES = {"int": int, "float": float, "str": str}  # word in the annotation of a config's field -> type of its flag


def _parser(arch: str, fields: dict[str, dataclasses.Field]) -> argparse.ArgumentParser:
    """Return the parser of `deepnet plan`'s flags: those of the model, of batch, precision, optimiser and machine.

    fields: fields of the model's config, by name; each has a flag. A field whose flag is not given is not in the parsed
    namespace (argparse.SUPPRESS), because the architecture sets it.
    """
    objective = OBJECTIVES[archs.MODELS[arch]]
    parser = Parser(prog="deepnet plan", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--arch", "-a", default=archs.MODEL_NAME)
    parser.add_argument("--length", "--tokens-per-sample", type=int, default=objective.length)

    for name in fields.keys() - {"tokens_per_sample"}:  # --tokens-per-sample is the other name of --length, above
        flag = f"--{name.replace('_', '-')}"
        annotation = str(fields[name].type)  # as "bool" or "Optional[int]"
        if "bool" in annotation:
            parser.add_argument(flag, action="store_true")
        else:
            flag_type = next(kind for word, kind in FLAG_TYPES.items() if word in annotation)
            choices = fields[name].metadata["choices"] or None  # () where any value is allowed
            parser.add_argument(flag, type=flag_type, choices=choices)

    parser.add_argument("--vocab", default="32000")
    parser.add_argument("--gpu-memory", type=float, default=80.0)
    parser.add_argument("--cuda-graphs", default="0")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default=ADAM)
    parser.add_argument("--zero-sharding", choices=("none", "os"), default="none")
    for name in PLAIN_FLAGS:
        default = getattr(Setting, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    for flag in ("fp16", "bf16", "memory-efficient-fp16", "memory-efficient-bf16", "cpu"):
        parser.add_argument(f"--{flag}", action="store_true", default=False)
    return parser


def _number_of_graphs(text: str) -> int:
    """Return how many shapes of batches get a graph, for --cuda-graphs' value: a number or "auto"; else UserError."""
    if text == "auto":
        return AUTO_GRAPHS
    if not text.isdecimal():
        raise UserError(f"--cuda-graphs {text}", "give a number of shapes, or auto")
    return int(text)


def _vocabularies(text: str) -> tuple[int, int]:
    """Return the sizes of the source's and the target's vocabulary from "32000" or "32000,40000", --vocab's value.

    UserError for anything else.
    """
    sizes = text.split(",")
    if len(sizes) > 2 or not all(size.isdecimal() for size in sizes):
        raise UserError(f"--vocab {text}", "give the size of the vocabulary, or two with a comma, source first")
    return int(sizes[0]), int(sizes[-1])


def _precision(args: argparse.Namespace) -> str:
    """Return Setting.precision for the flags --fp16, --memory-efficient-bf16 and so on.

    UserError if there are flags of both fp16 and bf16.
    """
    asked = []
    for half in ("fp16", "bf16"):
        if getattr(args, f"memory_efficient_{half}"):  # with or without --fp16 or --bf16, which fairseq itself adds
            asked.append(f"memory-efficient-{half}")
        elif getattr(args, half):
            asked.append(half)
    if len(asked) > 1:
        raise UserError("--fp16 and --bf16", "choose one")
    return asked[0] if asked else "fp32"
