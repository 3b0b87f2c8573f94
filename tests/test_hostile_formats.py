"""What we write is read again as it was; flags, names in archives and settings for eval() are what they say."""

import ast
import json
import math
import string

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepnet_fairseq.analysis.logs import read_log
from deepnet_fairseq.bench import lengths
from deepnet_fairseq.compat.data import check_mapped
from deepnet_fairseq.compat.yaml_config import LONGEST, literal
from deepnet_fairseq.data.lines import read_lines, write_lines
from deepnet_fairseq.data.remote.archive import unpack
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plan.flags import parse
from deepnet_fairseq.probes.record import Writer, read_record
from deepnet_fairseq.profiling.profile import Profile, read_profile

from .support.archives import content, make_tar, make_zip, tar_info
from .support.broken import sentences
from .support.examples import FINITE, bounded

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\n\ufeff")
NAMES = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=12)


@pytest.fixture(name="place", scope="module")
def a_place(tmp_path_factory):
    return tmp_path_factory.mktemp("formats")


def branches(N, M):
    names = [f"encoder.{l}.{s}" for l in range(1, N + 1) for s in ("self_attn", "ffn")]
    return names + [f"decoder.{l}.{s}" for l in range(1, M + 1) for s in ("self_attn", "encoder_attn", "ffn")]


@bounded
@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_profiles(place, data, N, M, official):
    omegas = data.draw(st.lists(FINITE, min_size=2 * N + 3 * M, max_size=2 * N + 3 * M))
    profile = Profile(dict(zip(branches(N, M), omegas, strict=True)), N, M)
    path = place / "profile"
    (profile.write_official if official else profile.write)(path)
    assert read_profile(str(path)) == profile


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
@given(st.dictionaries(st.integers(1, 10**6), FINITE, min_size=1, max_size=8), st.text(max_size=30))
def test_logs(place, losses, noise):
    """fairseq's lines of numbers in quotes, whatever stands between them."""
    rows = [{"num_updates": str(update), "loss": str(loss), "wall": "9"} for update, loss in losses.items()]
    lines = [f"now | INFO | train_inner | {json.dumps(row)}\n{noise}\n" for row in rows]
    (place / "train.log").write_text("".join(lines), encoding="utf-8", newline="")
    log = read_log(place / "train.log")
    assert dict(zip(log.updates, log.losses, strict=True)) == losses and log.updates == sorted(losses)


@bounded
@given(st.lists(st.text(LETTERS, max_size=20), max_size=5))
def test_lines(place, lines):
    write_lines(place / "lines", lines)
    assert list(read_lines(place / "lines")) == lines


@bounded
@given(st.lists(st.tuples(st.integers(1, 999), st.integers(1, 999)), min_size=1, max_size=6), st.integers(0, 99))
def test_lengths(place, rows, seed):
    (place / "lengths").write_text("".join(f"{source} {target}\n" for source, target in rows))
    drawn = lengths.from_file(place / "lengths", 20, seed)
    assert {tuple(row) for row in drawn.tolist()} <= set(rows) and drawn.shape == (20, 2)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)  # fmt: skip


@bounded
@given(PLAIN)
def test_plain_settings_are_what_python_says(value):
    assert literal(repr(value)) == ast.literal_eval(repr(value)) == value


@bounded
@given(st.text("()[]{},.:+-*/'\"abc_ 0129=\\\n", max_size=30))
def test_settings_are_plain_or_refused(text):
    try:
        literal(text)
    except UserError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "open('x')", "[].__class__", "lambda: 1", "[x for x in (1,)]", "f'{1}'", "2 ** 9 ** 9",
     f"[0] * {LONGEST + 1}", "'a' * 10 ** 9", "(" * 10_000, "1 / 0", "", "x"],
)  # fmt: skip
def test_settings_refused(text):
    with pytest.raises(UserError, match="no plain value"):
        literal(text)


def test_settings_of_fairseq():
    """Those that its models and optimisers have by default."""
    assert literal("(0.9, 0.999)") == (0.9, 0.999)
    assert literal("[(512, 3)] * 2 + [(1024, 1)]") == [(512, 3), (512, 3), (1024, 1)]
    assert literal(" -1e-3 ") == -1e-3


FLAGS = ["--max-tokens", "--gpus", "--length", "--vocab", "--update-freq", "--gpu-memory", "--encoder-layers",
         "--dropout", "--encoder-attention-heads", "--method", "--arch", "--checkpoint-every"]  # fmt: skip
WORDS = ["0", "1", "-1", "7", "64", "4096", "1e9", "nan", "inf", "", "x", "1,2", "deepnorm", "deepnet_transformer_tiny"]


@settings(bounded, max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(FLAGS), st.sampled_from(WORDS) | st.text(max_size=6)), max_size=3))
def test_flags_of_plan(pairs):
    try:
        setting = parse([word for pair in pairs for word in pair])
    except UserError as error:
        assert "\n" not in str(error)
        return
    assert setting.max_tokens >= setting.length >= 1 and setting.cfg.encoder_layers >= 1
    assert math.isfinite(setting.gpu_memory) and setting.gpu_memory > 0


PARTS = st.sampled_from(["a", "b", "..", ".", "", "~", "c:", "-x", "a\\b", "ä", " "])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


@bounded
@given(st.lists(PATHS, min_size=1, max_size=3, unique=True), st.booleans())
def test_names_in_archives(tmp_path_factory, names, zipped):
    """Whatever the names are, nothing is written outside of the folder, and nothing at all if one is refused."""
    root = tmp_path_factory.mktemp("archives")
    members = [(name if zipped else tar_info(name), b"text") for name in names]
    archive = (make_zip if zipped else make_tar)(root / ("x.zip" if zipped else "x.tar"), *members)
    (root / "room").mkdir()
    before = content(root)
    try:
        unpack(archive, root / "room" / "dest")
    except UserError as error:
        assert "\n" not in str(error) and list((root / "room").iterdir()) == []
    found = content(root)
    assert {name: found[name] for name in before} == before
    assert all(name.startswith("room/dest/") for name in found.keys() - before.keys())


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
