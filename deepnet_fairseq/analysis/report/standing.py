"""How far a run has come, as a cell of a table says it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ...errors import UserError
from ..recorded_run import RecordedRun


class State(StrEnum):
    """What a cell says of a run without a number; SCORED has one."""

    SCORED = "scored"
    UNSCORED = "not scored"
    IN_PART = "scored in part"
    RUNNING = "running"
    DIVERGED = "diverged"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Standing:
    """How far a run has come. update: at which it diverged, or up to which it has come."""

    state: State
    update: int | None = None

    @classmethod
    def of(cls, run: RecordedRun) -> Standing:
        """A score counts only once the training is over, and if no direction of the corpus is missing in it."""
        if run.ended_in_nan:
            return cls(State.DIVERGED, run.diverged_at)
        if not run.finished:
            return cls(State.RUNNING, updates(run) or 0)
        if run.score is None:
            return cls(State.UNSCORED)
        return cls(State.IN_PART if run.score.get("missing") else State.SCORED)

    def __str__(self) -> str:
        if self.state is State.DIVERGED and self.update is not None:
            return f"diverged at update {self.update}"
        if self.state is State.RUNNING:
            return f"running (update {self.update})"
        return self.state.value


def updates(run: RecordedRun) -> int | None:
    """Updates that a run had made when it last logged; None before the first line."""
    try:
        return run.log.updates[-1]
    except UserError:
        return None
