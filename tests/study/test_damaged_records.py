"""Tests of our own formats, plain text and settings: damage gives one line with the file and the reason."""

import json
from argparse import Namespace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepnet_fairseq.data.lines import read_lines
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.admin_profile import read_profile
from deepnet_fairseq.plugin.probe_record import read_record
from deepnet_fairseq.plugin.settings import LONGEST, check_plain
from deepnet_fairseq.study.logs import READ, curve, read_log
from deepnet_fairseq.study.runs import RecordedRun, read_records
from deepnet_fairseq.study.scoring.generated import read_corpus, read_generated

from ..support.broken import DEEP, check_line
from ..support.errors import refused

FACTS = {"method": "deepnorm", "encoder_layers": 6, "decoder_layers": 6}  # of run.json
OMEGAS = {
    "encoder.1.self_attn": 1.5,
    "encoder.1.ffn": 1.5,
    "decoder.1.self_attn": 1.5,
    "decoder.1.ffn": 1.5,
    "decoder.1.encoder_attn": 2.0,
}
PROFILE = {
    "format": "deepnet_fairseq admin profile 1",
    "encoder_layers": 1,
    "decoder_layers": 1,
    "omega": OMEGAS,
}

# How each file is read, as a value that depends on all of it.


def profile(path):
    return read_profile(str(path))


def facts_of_run(path):
    run = RecordedRun(path.parent)
    return run.layers, run.seed, run.total_layers


def record_with_log(path):
    """Read a record whose log is what the file holds, in one line."""
    record = path.with_name("record.jsonl")
    log = path.read_bytes().replace(b"\n", b" ").replace(b"\r", b" ")
    record.write_bytes(b'{"name": "a", "run": %b, "log": %b}\n' % (json.dumps(FACTS).encode(), log))

    (run,) = read_records(record)
    return run.hours, run.log


def losses_of_training(path):
    return curve(read_log(path), "train_inner", path)


def losses_of_validation(path):
    return curve(read_log(path), "valid", path)


def corpus_of_recipe(path):
    return read_corpus(path.parent / "bin")


def lines(path):
    return list(read_lines(path))


READERS = {
    "profile.json": profile,
    "run.json": facts_of_run,
    "record": record_with_log,
    "train.log": losses_of_training,
    "valid.log": losses_of_validation,
    "probes.jsonl": read_record,
    "recipe.json": corpus_of_recipe,
    "generated.txt": read_generated,
    "lines.txt": lines,
}

# Contents that no program writes.

CUT_OFF = b'{"method": "deepnorm", "enc'
NOT_UTF8 = b'{"\xff\xfe": 1}'


def as_json(value, **changes) -> bytes:
    return json.dumps(value | changes).encode()


def profile_with_omega(value) -> bytes:
    return as_json(PROFILE, omega=OMEGAS | {"encoder.1.ffn": value})


WRONG_PROFILES = {
    "cut off": CUT_OFF,
    "not UTF-8": NOT_UTF8,
    "NaN": profile_with_omega(float("nan")),
    "too large for a float": profile_with_omega(10**400),
    "omegas in a list": as_json(PROFILE, omega=[1.5] * 5),
    "other format": as_json(PROFILE, format="deepnet_fairseq admin profile 9"),
    "unknown key": as_json(PROFILE, nonsense=1),
    "columns of two stacks": b"1 1.5\n3 1.5\n1 1.5\n2 1.5\n3 1.5\n",  # as in older files
    "columns of one stack": b"1 1.5\n2 1.5\n",
    "columns without a number": b"1 1.0\n2 two\n",
}
WRONG_RUNS = {
    "cut off": CUT_OFF,
    "not UTF-8": NOT_UTF8,
    "no layers": as_json(FACTS, encoder_layers=0),
    "layers in text": as_json(FACTS, decoder_layers="6"),
}
WRONG_LOGS = {
    "no loss": b'now | INFO | train_inner | {"num_updates": "1", "wall": 1}\n',
    "no JSON": b"now | INFO | train_inner | {'loss': 1}\n",
}


@pytest.mark.parametrize("case", WRONG_PROFILES)
def test_a_wrong_profile_is_refused_as_a_profile(case, tmp_path):
    path = tmp_path / "profile.json"
    path.write_bytes(WRONG_PROFILES[case])

    with refused(path) as caught:
        profile(path)

    check_line(caught.value)
    assert "profile" in caught.value.way_out


@pytest.mark.parametrize("case", WRONG_RUNS)
def test_a_wrong_run_json_is_refused(case, tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(WRONG_RUNS[case])

    with refused(path) as caught:
        facts_of_run(path)

    check_line(caught.value)


@pytest.mark.parametrize("case", WRONG_LOGS)
def test_a_wrong_log_is_refused(case, tmp_path):
    path = tmp_path / "train.log"
    path.write_bytes(WRONG_LOGS[case])

    with refused(path) as caught:
        losses_of_training(path)

    check_line(caught.value)


# Any content: a value, or a UserError in one line that names the file, and no other exception.

bounded = settings(max_examples=30, derandomize=True, deadline=timedelta(seconds=10), database=None)
BYTES = st.binary(max_size=200) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))
FLOATS = st.floats(allow_subnormal=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = {  # file -> keys of the objects in it
    "profile.json": (*PROFILE, "seed", "dropout", "data", "method", "encoder_width"),
    "run.json": ("method", "encoder_layers", "decoder_layers", "seed", "part", "series"),
    "record": ("attempts", "train_inner"),
    "train.log": READ["train_inner"],
    "valid.log": READ["valid"],
    "probes.jsonl": ("format", "update", "model_update", "gradient_norm"),
    "recipe.json": ("pieces", "detokenise", "lowercase"),
    "generated.txt": ("D",),
    "lines.txt": ("a",),
}
BEFORE = {  # file -> bytes before an object in it; nothing in the others
    "train.log": b"now | INFO | train_inner | ",
    "valid.log": b"now | INFO | valid | ",
    "probes.jsonl": b'{"format": 1}\n',
    "generated.txt": b"D-0\t0.1\t",
}
FILES = pytest.mark.parametrize("name", READERS)


@pytest.fixture
def read_or_refuse(name, tmp_path):
    """Give a function that writes a content into the file and reads it, and checks the error if it is refused."""
    path = tmp_path / name
    (tmp_path / "bin").mkdir()

    def check(content: bytes) -> None:
        path.write_bytes(BEFORE.get(name, b"") + content + b"\n")
        try:
            READERS[name](path)
        except UserError as error:
            assert "\n" not in str(error)
            assert str(tmp_path) in error.subject

    return check


@FILES
def test_any_bytes_are_read_or_refused(name, read_or_refuse):
    @bounded
    @given(BYTES)
    def check(content):
        read_or_refuse(content)

    check()


@FILES
def test_any_json_is_read_or_refused(name, read_or_refuse):
    keys = KEYS[name]
    some_key = st.sampled_from(keys) | st.text(max_size=5)

    @bounded
    @given(st.dictionaries(some_key, VALUES, max_size=len(keys)) | VALUES)
    def check(content):
        read_or_refuse(json.dumps(content).encode("utf-8", "surrogatepass"))

    check()


@FILES
@pytest.mark.parametrize("content", [DEEP, b'{"a":' * 100_000], ids=["lists", "objects"])
def test_json_in_100000_levels_is_read_or_refused(name, content, read_or_refuse):
    read_or_refuse(content)


# Settings that fairseq would run.

TOO_LONG = f"[0] * {LONGEST + 1}"
CODE = [
    "__import__('os').system('x')",
    "open('x')",
    "(lambda: 1)",
    "[x for x in (1,)]",
    "(2 ** 9 ** 9)",
    "9**9**9",
    "1 << 9999999999",
    TOO_LONG,
]
PLAIN = ["[(512, 3)] * 2 + [(1024, 1)]", "{'a': (0.9, -1e-8)}", "zh-Hans", "relu", "(0.9, 0.98)", "", "(", "f(x", True]


def in_config(text):
    return {"model": {"_name": "fconv", "encoder_layers": text}}


def in_arguments(text):
    """Return the settings as checkpoints of old releases have them."""
    return Namespace(encoder_layers=text)


def in_arguments_of_an_inner_model(text):
    return {"model": {"w2v_args": Namespace(encoder_layers=text)}}


@pytest.mark.parametrize("place", [in_config, in_arguments, in_arguments_of_an_inner_model])
@pytest.mark.parametrize("text", CODE)
def test_settings_that_run_code_are_refused(text, place):
    with refused("old.pt") as caught:
        check_plain("old.pt", place(text))

    assert caught.value.way_out.startswith("encoder_layers ")


@pytest.mark.parametrize("value", PLAIN)
def test_settings_as_fairseqs_models_have_them_pass(value):
    check_plain("old.pt", {"model": {"setting": value}})


def test_places_with_brackets_in_their_names_pass():
    check_plain("old.pt", Namespace(data="runs/b(1)", save_dir="copy(2)"))
