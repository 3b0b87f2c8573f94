"""Which of fairseq's tasks and losses go with which of our models, before anything is read or written.

fairseq pairs them by what fails: a page of calls about an argument or an attribute. What a user has registered, and
tasks that are not named here, go with any model.
"""

from __future__ import annotations

from typing import Any

from fairseq import tasks
from fairseq.criterions import CRITERION_REGISTRY
from omegaconf import DictConfig

from .. import archs
from ..errors import UserError
from .data import language_models
from .wrapping import wrap

TOKENS = ("cross_entropy", "label_smoothed_cross_entropy")
MASKED = ("masked_lm", *TOKENS)
TASKS: dict[str, tuple[str, tuple[str, ...]]] = {  # task -> its model, fairseq's losses of it; no losses: many
    "translation": (archs.MODEL_NAME, ()),
    "translation_multi_simple_epoch": (archs.MODEL_NAME, ()),
    "multilingual_translation": (archs.MODEL_NAME, ()),
    "language_modeling": (archs.LM, TOKENS),
    "multilingual_language_modeling": (archs.LM, TOKENS),
    "masked_lm": (archs.MASKED_LM, MASKED),
    "multilingual_masked_lm": (archs.MASKED_LM, MASKED),
    "sentence_prediction": (archs.MASKED_LM, ("sentence_prediction",)),
    "sentence_ranking": (archs.MASKED_LM, ("sentence_ranking",)),
}
OWN = {
    archs.MODEL_NAME: "translation",
    archs.LM: "language_modeling",
    archs.MASKED_LM: "masked_lm or sentence_prediction",
}
# losses that no translation model has the parts for
NEVER = ("masked_lm", "sentence_prediction", "sentence_ranking", "adaptive_loss")


def refuse_misfits() -> None:
    """Wraps tasks.setup_task, for YAML and Python; the command line is checked when it is parsed. Idempotent."""
    wrap(tasks, "setup_task", _fitting)


def check(arch: str | None, task: str | None, criterion: str | None) -> None:
    """UserError, naming the flag, for a task that `arch` is no model for, or a loss that the task has no use for."""
    model = archs.MODELS.get(arch)
    if model and task in TASKS and TASKS[task][0] != model:
        raise UserError(f"--task {task}: --arch {arch} is trained by --task {OWN[model]}")
    check_criterion(task, criterion)


def check_criterion(task: str | None, criterion: str | None) -> None:
    """The second half of `check`, with its UserError, for programs that name no architecture."""
    if task not in TASKS:
        return
    losses = TASKS[task][1]
    if criterion in NEVER if not losses else criterion not in losses and _of_fairseq(criterion):
        usual = losses[0] if losses else TOKENS[1]
        raise UserError(f"--criterion {criterion}: --task {task} is trained by --criterion {usual}")


def _of_fairseq(criterion: str | None) -> bool:
    kind = CRITERION_REGISTRY.get(criterion)
    return kind is not None and kind.__module__.startswith("fairseq.criterions.")


def _fitting(setup, cfg, *args, **kwargs):
    whole: Any = cfg._get_parent() if isinstance(cfg, DictConfig) else None
    if whole is not None and not kwargs.get("from_checkpoint"):
        name = {section: getattr(whole.get(section), "_name", None) for section in ("model", "criterion")}
        check(name["model"], getattr(cfg, "_name", None), name["criterion"])
        language_models.check_settings(cfg._name, cfg.get)
    return setup(cfg, *args, **kwargs)
