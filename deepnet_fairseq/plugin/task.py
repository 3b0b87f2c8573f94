"""Put a mixin in front of every task of fairseq, and read settings from YAML for tasks without a dataclass."""

from __future__ import annotations

import argparse
import functools
from typing import Any, cast

import torch
from fairseq import tasks, utils
from omegaconf import DictConfig, OmegaConf, open_dict

from ..errors import UserError
from .checkpoints import vocabulary
from .distributed import zero
from .graphs.step import GraphedStep
from .optimisers.after_update import apply_after_update
from .probing import TrainingProbes
from .settings import check_plain
from .stuck import Stuck

SECTIONS = ("common", "dataset", "optimization", "checkpoint")


class DeepTask:
    """Mixin in front of the class of every task that fairseq sets up.

    probes: those of the training that the task is part of; graphs: its step by CUDA graphs; stuck: its monitor of
    validation losses. DeepTrainer sets them. The task holds no trainer: a cycle of the two would free their memory only
    at a garbage collection. digests: of the dictionaries and of what cut the text, None for a task without a
    dictionary.
    """

    probes: TrainingProbes | None = None
    graphs: GraphedStep | None = None
    stuck: Stuck | None = None
    digests: vocabulary.Digests | None = None
    validated = 0  # number of subsets that the present validation has finished

    def build_criterion(self, cfg, *args, **kwargs):
        """Build the loss, which gets copies of the batches: R-Drop doubles a batch that --eval-bleu then translates."""
        criterion = super().build_criterion(cfg, *args, **kwargs)  # type: ignore[misc]
        criterion.register_forward_pre_hook(_on_copies, with_kwargs=True)
        return criterion

    def state_dict(self):
        """Return the state that checkpoints hold, with the digests of the vocabulary."""
        state = dict(super().state_dict())  # type: ignore[misc]
        if self.digests is not None:
            state[vocabulary.KEY] = self.digests
        return state

    def load_state_dict(self, state_dict):
        """Load the state in a checkpoint; raise a UserError, naming its file, if its vocabulary is not the data's.

        fairseq calls this in two cases. A program that uses a model has read its checkpoint, to which
        vocabulary.attach_origin has added where it comes from; it is compared here, before the model is built. A
        training that resumes has the digests alone, which DeepTrainer.load_checkpoint compares.
        """
        state = dict(state_dict)
        origin = state.pop(vocabulary.KEY, None)
        if origin is not None and "file" in origin:
            data = vocabulary.data_of(self)
            vocabulary.check_vocabulary(origin, self.digests, data, f"the data in {data}")
        super().load_state_dict(state)  # type: ignore[misc]

    def build_generator(self, models, args, *more, **kwargs):
        """Build the search; raise a UserError if a language model (--lm-path) has another dictionary than the target.

        Such a model would add the scores of other symbols.
        """
        language_model = (kwargs.get("extra_gen_cls_kwargs") or {}).get("lm_model")
        if language_model is not None:
            read = getattr(language_model.decoder, "dictionary", None)
            own = self.target_dictionary  # type: ignore[attr-defined]  # of the task's own class
            if read is not None and vocabulary.symbols_of(read) != vocabulary.symbols_of(own):
                path = getattr(args, "lm_path", None)
                raise UserError(f"--lm-path {path}: has another dictionary than the target side; train one on its data")
        return super().build_generator(models, args, *more, **kwargs)  # type: ignore[misc]

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False, **kwargs):
        """Run the passes of one batch. A batch that keeps an idle process busy has size 0 and logs zeros.

        fairseq zeroes the size of such a batch by itself, but not what the loss logs of it.
        """
        probed = False
        if self.probes is not None:
            self.probes.before_batch(update_num, dummy=ignore_grad)
            probed = bool(self.probes.session.watching)

        done = None
        if self.graphs is not None and not probed:
            done = self.graphs.step(sample, model, criterion, optimizer, update_num, dummy=ignore_grad)
        if done is None:  # without graphs, or for a batch that they leave to the task
            own = super().train_step  # type: ignore[misc]  # of the task's own class
            done = own(sample, model, criterion, optimizer, update_num, ignore_grad, **kwargs)

        loss, size, logged = done
        if ignore_grad:
            size = size * 0
            logged = {key: value * 0 for key, value in logged.items()}
        return loss, size, logged

    def own_train_step(self) -> Any:
        """Return the train_step of the task's own class, as a function."""
        return super().train_step.__func__  # type: ignore[misc]

    def optimizer_step(self, optimizer, model, update_num):
        """Make an update, and let the method change the weights after it."""
        super().optimizer_step(optimizer, model, update_num)  # type: ignore[misc]
        apply_after_update(optimizer, model)

    def filter_indices_by_size(self, indices, dataset, max_positions=None, ignore_invalid_inputs=False):
        """Leave out sentences that are too long; raise a UserError where fairseq is told not to, or none is left.

        Where none is left, fairseq would go through empty epochs.
        """
        path = getattr(getattr(dataset, "src", None), "_path", "the data")
        try:
            by_size = super().filter_indices_by_size  # type: ignore[misc]
            kept = by_size(indices, dataset, max_positions, ignore_invalid_inputs)
        except Exception as error:
            if str(error).startswith("Size of sample"):
                raise UserError(f"{path}: {error}") from error
            raise

        if len(indices) and not len(kept):
            problem = f"all sentences are longer than {max_positions}; raise --max-tokens or --max-...-positions"
            raise UserError(f"{path}: {problem}")
        return kept

    def begin_valid_epoch(self, epoch, model):
        """Begin a validation, of which the first subset decides what --stop-stuck sees."""
        self.validated = 0
        super().begin_valid_epoch(epoch, model)  # type: ignore[misc]

    def post_validate(self, model, stats, agg):
        """End the validation of a subset."""
        if self.stuck is not None:
            self.stuck.compare(self, stats, first=self.validated == 0)
        self.validated += 1
        if hasattr(super(), "post_validate"):
            super().post_validate(model, stats, agg)  # type: ignore[misc]


def _on_copies(criterion: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Replace the batches among a loss's arguments by copies, which it may change without anybody noticing.

    args, kwargs: of the loss; both are returned. Only a validation reads a batch's numbers after the loss: there the
    tensors are copied too, in training only the containers.
    """
    copy_tensor = _same if criterion.training else torch.clone

    def copied(value):
        return utils.apply_to_sample(copy_tensor, value) if isinstance(value, dict) else value

    return tuple(copied(value) for value in args), {name: copied(value) for name, value in kwargs.items()}


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def set_up(original, cfg, **kwargs):
    """Set up a task, with DeepTask in front of its class.

    original: fairseq's function; cfg: the config's section for the task. Raises a UserError for settings that forbid
    sharding, or would run code.
    """
    whole_config: Any = cfg._get_parent() if isinstance(cfg, DictConfig) else None
    if whole_config is not None:
        zero.check_settings(lambda section, key: getattr(whole_config.get(section), key, None))
        check_plain("the config", whole_config)
    return with_mixin(original(_by_flags(cfg), **kwargs))


def with_mixin(task: Any) -> Any:
    """Put DeepTask in front of the class of `task`, once, and return the task."""
    if not isinstance(task, DeepTask):
        task.__class__ = _mixed(cast(Any, type(task)))
        task.digests = vocabulary.of_task(task)
    return task


@functools.cache
def _mixed(kind: Any) -> type:
    """Make a subclass of a task's class with DeepTask in front, and with its name, which fairseq logs."""
    return type(kind.__name__, (DeepTask, kind), {"__module__": kind.__module__})


def _by_flags(cfg: Any) -> Any:
    """Convert the YAML section of a task that has flags but no dataclass into a namespace, with the flags' defaults.

    Tasks such as translation_multi_simple_epoch have no dataclass, and fairseq then ignores the section.
    """
    name = getattr(cfg, "_name", None)
    if not isinstance(cfg, DictConfig) or name not in tasks.TASK_REGISTRY or name in tasks.TASK_DATACLASS_REGISTRY:
        return cfg

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    tasks.TASK_REGISTRY[name].add_args(parser)
    flags = {action.dest: action for action in parser._actions}
    unknown = sorted(set(cfg) - flags.keys() - {"_name"})
    if unknown:
        raise UserError(f"task.{unknown[0]}: {name} has no such setting; drop it")
    with open_dict(cfg):  # the model's settings refer to the task's
        cfg.update({dest: action.default for dest, action in flags.items() if dest not in cfg})

    # such a task sees the settings of common, dataset and so on beside its own
    values: dict[str, Any] = {}
    whole_config: Any = cfg._get_parent()
    if whole_config is not None:
        for section in SECTIONS:
            if section in whole_config:
                values |= cast(dict, OmegaConf.to_container(whole_config[section]))

    settings: Any = OmegaConf.to_container(cfg)
    for dest, action in flags.items():  # texts are read as the flags would read them
        value = settings[dest]
        values[dest] = action.type(value) if callable(action.type) and isinstance(value, str) else value
    values["task"] = name
    return argparse.Namespace(**values)
