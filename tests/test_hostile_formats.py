"""What we write is read again as it was; settings for eval() and the index of data are what they say."""

import ast
import math
import string

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepnet_fairseq.compat.data import check_mapped
from deepnet_fairseq.compat.yaml_config import LONGEST, literal
from deepnet_fairseq.data.lines import read_lines, write_lines
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.probes.record import Writer, read_record

from .support.broken import sentences
from .support.examples import bounded

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\n\ufeff")
NAMES = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=12)


@pytest.fixture(name="place", scope="module")
def a_place(tmp_path_factory):
    return tmp_path_factory.mktemp("formats")


@bounded
@given(st.lists(st.dictionaries(NAMES, st.floats(allow_subnormal=False), min_size=1, max_size=3), max_size=4))
def test_records_of_probes(place, rows):
    writer = Writer(place / "probes.jsonl", {"method": "deepnorm"}, fresh=True)
    for update, values in enumerate(rows):
        writer.row(update, {"model_update": values})
    record = read_record(place / "probes.jsonl")
    assert record.header == {"format": 1, "method": "deepnorm"} and record.updates() == list(range(len(rows)))
    for update, values in enumerate(rows):
        for name, value in record.rows[update]["model_update"].items():
            given_value = values[name] if abs(values[name]) < 1.79765e308 else math.nan
            assert math.isclose(value, given_value, rel_tol=1e-4) or (math.isnan(value) and math.isnan(given_value))


@bounded
@given(st.lists(st.text(LETTERS, max_size=20), max_size=5))
def test_lines(place, lines):
    write_lines(place / "lines", lines)
    assert list(read_lines(place / "lines")) == lines


FLOATS = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@bounded
@given(PLAIN)
def test_plain_settings_are_what_python_says(value):
    assert literal(repr(value)) == ast.literal_eval(repr(value)) == value


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "open('x')", "[].__class__", "lambda: 1", "[x for x in (1,)]", "f'{1}'", "2 ** 9 ** 9",
     f"[0] * {LONGEST + 1}", "'a' * 10 ** 9", "(" * 10_000, "1 / 0", "", "x"],
)  # fmt: skip
def test_settings_refused(text):
    with pytest.raises(UserError, match="no plain value"):
        literal(text)
    assert literal("[(512, 3)] * 2 + [(1024, 1)]") == [(512, 3), (512, 3), (1024, 1)]  # as fairseq's models have


@bounded
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_byte_of_an_index(place, offset, byte):
    """It is refused, or it tells of sentences that are there."""
    sentences("data", [5, 6, 2], [7, 2])(place)
    index = place / "data.idx"
    found = bytearray(index.read_bytes())
    found[offset % len(found)] = byte
    index.write_bytes(found)
    try:
        check_mapped(str(place / "data"), 8)
    except UserError as error:
        assert "\n" not in str(error) and str(place) in str(error)
        return
    sizes, places = numpy.frombuffer(found, "<i4", 2, 26), numpy.frombuffer(found, "<i8", 2, 34)
    assert (sizes >= 1).all() and (places >= 0).all()
    assert (places + 4 * sizes <= (place / "data.bin").stat().st_size).all() or found[17] != 4
