"""Keep the best validation losses of two trainings in one process apart.

fairseq keeps them in attributes of two of its functions, which all trainings of a process share: save_checkpoint.best
for checkpoint_best, and for --patience should_stop_early.best and num_runs, the number of validations since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fairseq import checkpoint_utils

# names of fairseq's two functions
SAVE = "save_checkpoint"
PATIENCE = "should_stop_early"
ATTRIBUTES = {SAVE: ("best",), PATIENCE: ("best", "num_runs")}  # function -> names of its attributes


class BestLosses:
    """One run's values of the two functions' attributes, which the functions have only in the context `in_fairseq`.

    namespace: globals of fairseq-train's main, where should_stop_early is defined; {} outside of fairseq-train, where
    there is no --patience.
    """

    def __init__(self, namespace: dict[str, Any]):
        self.namespace = namespace
        # {function: {attribute: value}}, without attributes that are not set yet; out of date inside the context
        self._values: dict[str, dict[str, Any]] = {SAVE: {}, PATIENCE: {}}
        self._is_in_fairseq = False

    @contextmanager
    def in_fairseq(self) -> Iterator[None]:
        """Set this run's values on fairseq's functions; at the end of the context take back what they have then.

        The values that the functions had before, another run's or none, are restored. A context inside another one of
        the same run does nothing: a resume that validates also saves.
        """
        if self._is_in_fairseq:
            yield
            return

        values_before = self._exchange(self._values)
        self._is_in_fairseq = True
        try:
            yield
        finally:
            self._is_in_fairseq = False
            self._values = self._exchange(values_before)

    @property
    def patience(self) -> dict[str, Any]:
        """Values by which --patience goes: {"best": best loss, "num_runs": validations since}, {} before the first one.

        In the context they are read from fairseq's function, which changes them there.
        """
        function = self._functions().get(PATIENCE)
        if function is None or not self._is_in_fairseq:
            return self._values[PATIENCE]
        return _attributes(function, ATTRIBUTES[PATIENCE])

    def set_patience(self, values: dict[str, Any]) -> None:
        """Set what `patience` returns, in the context and outside of it."""
        function = self._functions().get(PATIENCE)
        if function is None or not self._is_in_fairseq:
            self._values[PATIENCE] = values
        else:
            _set_attributes(function, ATTRIBUTES[PATIENCE], values)

    def _functions(self) -> dict[str, Callable[..., Any]]:
        """Return fairseq's functions by the names SAVE and PATIENCE, without the latter outside of fairseq-train."""
        functions = {SAVE: checkpoint_utils.save_checkpoint}
        if PATIENCE in self.namespace:
            functions[PATIENCE] = self.namespace[PATIENCE]
        return functions

    def _exchange(self, values: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Set the functions' attributes to `values`, and return what they had."""
        before: dict[str, dict[str, Any]] = {SAVE: {}, PATIENCE: {}}
        for name, function in self._functions().items():
            before[name] = _attributes(function, ATTRIBUTES[name])
            _set_attributes(function, ATTRIBUTES[name], values[name])
        return before


def _attributes(function: Callable[..., Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return those of the named attributes that the function has, with their values."""
    return {name: vars(function)[name] for name in names if name in vars(function)}


def _set_attributes(function: Callable[..., Any], names: tuple[str, ...], values: dict[str, Any]) -> None:
    """Set the attributes that `values` has, and remove the other named ones: fairseq asks whether there is one."""
    for name in names:
        vars(function).pop(name, None)
    vars(function).update(values)
