"""What properties are tried on: made anew from the same seed each time, and few enough for seconds."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st

bounded = settings(max_examples=30, derandomize=True, deadline=timedelta(seconds=10), database=None)
_FLOATS = st.floats(allow_subnormal=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _FLOATS | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
