"""Which cases of a test the default suite runs, and which the smoke tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest


def smoke_but(kept: Collection, values: Iterable) -> list:
    """Return values as a test's parameters: the default suite runs those in `kept`, the smoke tests the others."""
    values = list(values)
    unknown = [value for value in kept if value not in values]
    assert not unknown, f"{unknown} are no values of this test"

    parameters = []
    for value in values:
        mark = () if value in kept else pytest.mark.smoke
        parameters.append(pytest.param(value, marks=mark))
    return parameters
