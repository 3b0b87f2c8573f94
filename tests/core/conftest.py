"""Fixture of the tests of all methods: a method that fills every slot."""

import pytest

from ..support.every_slot import every_slot_registered


@pytest.fixture
def every_slot():
    """Register a method that fills every slot, for one test; the value is its name."""
    with every_slot_registered() as name:
        yield name
