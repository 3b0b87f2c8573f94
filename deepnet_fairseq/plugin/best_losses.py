"""Keep one training's best validation loss, and its validations without progress, apart from another's.

fairseq keeps them in attributes of two of its functions: save_checkpoint.best; should_stop_early.best and num_runs,
which --patience reads. All trainings of a process share these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fairseq import checkpoint_utils

SAVE, PATIENCE = "save_checkpoint", "should_stop_early"
KEPT = {SAVE: ("best",), PATIENCE: ("best", "num_runs")}  # function -> its attributes


class BestLosses:
    """A run's values of those attributes, which fairseq's functions have while they are lent.

    namespace: of fairseq-train's main, which looks should_stop_early up there; {} outside of fairseq-train.
    """

    def __init__(self, namespace: dict[str, Any]):
        self.namespace = namespace
        self._values: dict[str, dict[str, Any]] = {SAVE: {}, PATIENCE: {}}
        self._is_lent = False

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Give fairseq's functions this run's values while the context lasts; take back what they have then."""
        if self._is_lent:
            yield
            return

        of_others = self._exchange(self._values)
        self._is_lent = True
        try:
            yield
        finally:
            self._is_lent = False
            self._values = self._exchange(of_others)

    @property
    def patience(self) -> dict[str, Any]:
        """Values for --patience: best, the best loss, and num_runs, the validations since; {} before the first one."""
        function = self._functions().get(PATIENCE)
        if function is None or not self._is_lent:
            return self._values[PATIENCE]
        return _attributes(function, KEPT[PATIENCE])

    def set_patience(self, values: dict[str, Any]) -> None:
        """Set what `patience` returns."""
        function = self._functions().get(PATIENCE)
        if function is None or not self._is_lent:
            self._values[PATIENCE] = values
        else:
            _set_attributes(function, KEPT[PATIENCE], values)

    def _functions(self) -> dict[str, Callable[..., Any]]:
        functions = {SAVE: checkpoint_utils.save_checkpoint}
        if PATIENCE in self.namespace:
            functions[PATIENCE] = self.namespace[PATIENCE]
        return functions

    def _exchange(self, values: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Set the functions' attributes to `values`, and return what they had."""
        before: dict[str, dict[str, Any]] = {SAVE: {}, PATIENCE: {}}
        for name, function in self._functions().items():
            before[name] = _attributes(function, KEPT[name])
            _set_attributes(function, KEPT[name], values[name])
        return before


def _attributes(function: Callable[..., Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: vars(function)[name] for name in names if name in vars(function)}


def _set_attributes(function: Callable[..., Any], names: tuple[str, ...], values: dict[str, Any]) -> None:
    """Set the attributes that `values` has, and remove the others: fairseq asks whether there is one."""
    for name in names:
        vars(function).pop(name, None)
    vars(function).update(values)
