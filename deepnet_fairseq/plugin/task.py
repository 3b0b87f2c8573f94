"""DeepTask, a mixin that is put in front of the class of every task that fairseq sets up.

Also here: the section `task` of a YAML file is read for tasks whose settings are flags alone; fairseq ignores it.
"""

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

# sections of fairseq's config whose settings a task without a dataclass sees beside its own
SECTIONS = ("common", "dataset", "optimization", "checkpoint")


class DeepTask:
    """Mixin in front of the class of every task that fairseq sets up; super() is the task's own class.

    DeepTrainer sets the first three attributes, those of its training. The task does not hold the trainer itself: the
    two would refer to each other, and their memory would be freed only at a garbage collection.
    """

    probes: TrainingProbes | None = None  # of --deepnet-probe
    graphs: GraphedStep | None = None  # the training step by CUDA graphs
    stuck: Stuck | None = None  # monitor of validation losses for --stop-stuck
    # digests of the dictionaries and of what cut the text into pieces; None for a task without a dictionary
    digests: vocabulary.Digests | None = None
    validated_subsets = 0  # in the present validation, so far

    def build_criterion(self, cfg, *args, **kwargs):
        """Build the loss, and have it called with copies of the batches, by a hook.

        A loss may change its batch: R-Drop's doubles it, and --eval-bleu then translates that same batch.
        """
        criterion = super().build_criterion(cfg, *args, **kwargs)  # type: ignore[misc]
        criterion.register_forward_pre_hook(_copy_batches, with_kwargs=True)
        return criterion

    def state_dict(self):
        """Return the task's state for a checkpoint, with the digests of the vocabulary."""
        state = dict(super().state_dict())  # type: ignore[misc]
        if self.digests is not None:
            state[vocabulary.KEY] = self.digests
        return state

    def load_state_dict(self, state_dict):
        """Load the state in a checkpoint; raise a UserError, naming its file, if its vocabulary is not the data's.

        fairseq calls this before it builds a model that it loads, as in fairseq-generate, and does not when a training
        resumes (DeepTrainer.load_checkpoint compares the vocabulary then). reading.load_checkpoint_to_cpu has put the
        checkpoint's file and digests into the state. A state that state_dict has returned names no file, and is not
        compared.
        """
        state = dict(state_dict)
        origin = state.pop(vocabulary.KEY, None)
        if origin is not None and "file" in origin:
            data = vocabulary.data_of(self)
            vocabulary.check_vocabulary(origin, self.digests, data, f"the data in {data}")
        super().load_state_dict(state)  # type: ignore[misc]

    def build_generator(self, models, args, *more, **kwargs):
        """Build the beam search; raise a UserError if a language model (--lm-path) has another dictionary.

        The scores of such a model would be added to those of other symbols of the target side.
        """
        language_model = (kwargs.get("extra_gen_cls_kwargs") or {}).get("lm_model")
        if language_model is not None:
            its_dictionary = getattr(language_model.decoder, "dictionary", None)
            own = self.target_dictionary  # type: ignore[attr-defined]  # of the task's own class
            if its_dictionary is not None and vocabulary.symbols_of(its_dictionary) != vocabulary.symbols_of(own):
                path = getattr(args, "lm_path", None)
                raise UserError(
                    f"--lm-path {path}", "has another dictionary than the target side; train one on its data"
                )
        return super().build_generator(models, args, *more, **kwargs)  # type: ignore[misc]

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False, **kwargs):
        """Run the forward and backward pass of one batch; return its loss, sample size and values to log.

        ignore_grad: whether it is a dummy batch, which only keeps a process busy that has no batches left. For such a
        batch the sample size and all values to log are 0; fairseq itself would log what the loss logs of it.
        """
        is_probed = False  # whether probes observe this update, by hooks that a graph would not call
        if self.probes is not None:
            self.probes.before_batch(update_num, dummy=ignore_grad)
            is_probed = bool(self.probes.session.watching)

        result = None
        if self.graphs is not None and not is_probed:
            result = self.graphs.step(sample, update_num, dummy=ignore_grad)
        if result is None:  # without graphs, or for a batch that they leave to the task
            own_step = super().train_step  # type: ignore[misc]  # of the task's own class
            result = own_step(sample, model, criterion, optimizer, update_num, ignore_grad, **kwargs)

        loss, size, logged = result
        if ignore_grad:
            size = size * 0
            logged = {key: value * 0 for key, value in logged.items()}
        return loss, size, logged

    def own_train_step(self) -> Any:
        """Return the train_step of the task's own class, as a plain function.

        graphs/settings.py compares it with fairseq's: a graph does not run a train_step that a task has overridden.
        """
        return super().train_step.__func__  # type: ignore[misc]

    def optimizer_step(self, optimizer, model, update_num):
        """Make an update, and then let the model's method change the weights, if it does so."""
        super().optimizer_step(optimizer, model, update_num)  # type: ignore[misc]
        apply_after_update(optimizer, model)

    def filter_indices_by_size(self, indices, dataset, max_positions=None, ignore_invalid_inputs=False):
        """Return `indices`, numbers of sentences in the data set, without those of sentences that are too long.

        max_positions: the longest length in tokens, or one for each side. Raises a UserError if a sentence is too long
        and ignore_invalid_inputs is False; or if all are, where fairseq would go through empty epochs.
        """
        # for messages: the source side's file, of translation data that are read from a file
        path = getattr(getattr(dataset, "src", None), "_path", "the data")
        try:
            filter_of_task = super().filter_indices_by_size  # type: ignore[misc]
            kept = filter_of_task(indices, dataset, max_positions, ignore_invalid_inputs)
        except Exception as error:
            if str(error).startswith("Size of sample"):  # fairseq raises an Exception for a sentence that is too long
                raise UserError(path, str(error)) from error
            raise

        if len(indices) and not len(kept):
            problem = f"all sentences are longer than {max_positions}; raise --max-tokens or --max-...-positions"
            raise UserError(path, problem)
        return kept

    def begin_valid_epoch(self, epoch, model):
        """Begin to validate the subsets, of which --stop-stuck looks at the first."""
        self.validated_subsets = 0
        super().begin_valid_epoch(epoch, model)  # type: ignore[misc]

    def post_validate(self, model, stats, agg):
        """End the validation of a subset. stats: what fairseq logs of it; agg: its meters."""
        if self.stuck is not None:
            self.stuck.end_subset(self, stats, first=self.validated_subsets == 0)
        self.validated_subsets += 1
        if hasattr(super(), "post_validate"):
            super().post_validate(model, stats, agg)  # type: ignore[misc]


def _copy_batches(criterion: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Return the arguments of a loss with the batches among them replaced by copies, which the loss may change.

    A forward pre-hook of the loss: args, kwargs are its arguments, among which the dictionaries are batches. In
    training only the dictionaries are copied, not the tensors in them: nothing reads these after the loss. A validation
    does, so there they are copied too.
    """
    copy_tensor = _same if criterion.training else torch.clone

    def copied(value):
        return utils.apply_to_sample(copy_tensor, value) if isinstance(value, dict) else value

    copied_args = tuple(copied(value) for value in args)
    copied_kwargs = {name: copied(value) for name, value in kwargs.items()}
    return copied_args, copied_kwargs


def _same(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself."""
    return tensor


def set_up_with_mixin(original, cfg, **kwargs):
    """Set up a task as fairseq's setup_task (`original`) does, with DeepTask in front of its class; return the task.

    cfg: the config's section for the task, or a Namespace of flags. Raises a UserError for settings that do not go with
    --zero-sharding, or that would run code; a `cfg` that belongs to no whole config, as a Namespace, is not checked.
    """
    whole_config: Any = cfg._get_parent() if isinstance(cfg, DictConfig) else None
    if whole_config is not None:
        zero.check_settings(lambda section, key: getattr(whole_config.get(section), key, None))
        check_plain("the config", whole_config)
    return with_mixin(original(_as_flags_of_task(cfg), **kwargs))


def with_mixin(task: Any) -> Any:
    """Put DeepTask in front of the class of `task`, once, set the task's digests, and return the task."""
    if not isinstance(task, DeepTask):
        task.__class__ = _mixed(cast(Any, type(task)))
        task.digests = vocabulary.digests_of_task(task)
    return task


@functools.cache
def _mixed(kind: Any) -> type:
    """Make a subclass of a task's class with DeepTask in front, and with its name, which fairseq logs."""
    return type(kind.__name__, (DeepTask, kind), {"__module__": kind.__module__})


def _as_flags_of_task(cfg: Any) -> Any:
    """Convert the config's section of a task that has no dataclass into a Namespace, with defaults for what it lacks.

    Such a task, as translation_multi_simple_epoch, defines its settings as flags alone (add_args), and fairseq ignores
    what a YAML file sets for it. cfg: the section; a Namespace, and the section of any other task, are returned as they
    are. Raises a UserError for a setting that the task does not have.
    """
    name = getattr(cfg, "_name", None)
    if not isinstance(cfg, DictConfig) or name not in tasks.TASK_REGISTRY or name in tasks.TASK_DATACLASS_REGISTRY:
        return cfg

    # let the task define its flags on a parser, to learn their names, types and defaults
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    tasks.TASK_REGISTRY[name].add_args(parser)
    flags = {action.dest: action for action in parser._actions}  # name of a setting -> argparse's action
    unknown = sorted(set(cfg) - flags.keys() - {"_name"})
    if unknown:
        raise UserError(f"task.{unknown[0]}", f"{name} has no such setting; drop it")
    defaults = {dest: action.default for dest, action in flags.items() if dest not in cfg}
    with open_dict(cfg):  # in the config itself too: settings of the model refer to it
        cfg.update(defaults)

    # as from a command line, the Namespace has the settings of other sections too, beside the task's own
    values: dict[str, Any] = {}
    whole_config: Any = cfg._get_parent()
    if whole_config is not None:
        for section in SECTIONS:
            if section in whole_config:
                values |= cast(dict, OmegaConf.to_container(whole_config[section]))

    settings: Any = OmegaConf.to_container(cfg)
    for dest, action in flags.items():
        value = settings[dest]
        if callable(action.type) and isinstance(value, str):  # convert a text as argparse would
            value = action.type(value)
        values[dest] = value
    values["task"] = name
    return argparse.Namespace(**values)
