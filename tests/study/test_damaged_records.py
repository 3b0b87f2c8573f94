"""Tests of the package's own files, of plain text and of settings: damage gives one line with the file and the reason.

The files are those of a run's folder (run.json, train.log, probes.jsonl), a record of it (one line of JSON), Admin's
profile (its weights omega of residual connections), recipe.json of a corpus, and what fairseq-generate printed.
"""

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
OMEGAS = {  # of Admin, for one encoder layer and one decoder layer
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

# Functions that read each kind of file to its end.


def read_admin_profile(path):
    return read_profile(str(path))


def read_facts_of_run(path):
    run = RecordedRun(path.parent)
    return run.layers, run.seed, run.total_layers


def read_record_with_log(path):
    """Read a record whose log is the content of the file, in one line."""
    record = path.with_name("record.jsonl")
    log = path.read_bytes().replace(b"\n", b" ").replace(b"\r", b" ")
    record.write_bytes(b'{"name": "a", "run": %b, "log": %b}\n' % (json.dumps(FACTS).encode(), log))

    (run,) = read_records(record)
    return run.hours, run.log


def read_losses_of_training(path):
    return curve(read_log(path), "train_inner", path)


def read_losses_of_validation(path):
    return curve(read_log(path), "valid", path)


def read_corpus_of_recipe(path):
    return read_corpus(path.parent / "bin")


def read_all_lines(path):
    return list(read_lines(path))


READERS = {  # name of the file -> function that reads it
    "profile.json": read_admin_profile,
    "run.json": read_facts_of_run,
    "record": read_record_with_log,
    "train.log": read_losses_of_training,
    "valid.log": read_losses_of_validation,
    "probes.jsonl": read_record,
    "recipe.json": read_corpus_of_recipe,
    "generated.txt": read_generated,
    "lines.txt": read_all_lines,
}

# Contents that no program writes.

CUT_OFF = b'{"method": "deepnorm", "enc'
NOT_UTF8 = b'{"\xff\xfe": 1}'


def changed(content: dict, **changes) -> bytes:
    """Return the JSON of an object with some of its entries changed or added."""
    return json.dumps(content | changes).encode()


def profile_with_omega(value) -> bytes:
    """Return a profile of which one omega has this value."""
    return changed(PROFILE, omega=OMEGAS | {"encoder.1.ffn": value})


WRONG_PROFILES = {
    "cut off": CUT_OFF,
    "not UTF-8": NOT_UTF8,
    "NaN": profile_with_omega(float("nan")),
    "too large for a float": profile_with_omega(10**400),
    "omegas in a list": changed(PROFILE, omega=[1.5] * 5),
    "other format": changed(PROFILE, format="deepnet_fairseq admin profile 9"),
    "unknown key": changed(PROFILE, nonsense=1),
    # older files had two columns: a number of the branch, and its omega
    "columns of two stacks": b"1 1.5\n3 1.5\n1 1.5\n2 1.5\n3 1.5\n",
    "columns of one stack": b"1 1.5\n2 1.5\n",
    "columns without a number": b"1 1.0\n2 two\n",
}
WRONG_RUNS = {
    "cut off": CUT_OFF,
    "not UTF-8": NOT_UTF8,
    "no layers": changed(FACTS, encoder_layers=0),
    "layers in text": changed(FACTS, decoder_layers="6"),
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
        read_admin_profile(path)

    check_line(caught.value)
    assert "profile" in caught.value.way_out


@pytest.mark.parametrize("case", WRONG_RUNS)
def test_a_wrong_run_json_is_refused(case, tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(WRONG_RUNS[case])

    with refused(path) as caught:
        read_facts_of_run(path)

    check_line(caught.value)


@pytest.mark.parametrize("case", WRONG_LOGS)
def test_a_wrong_log_is_refused(case, tmp_path):
    path = tmp_path / "train.log"
    path.write_bytes(WRONG_LOGS[case])

    with refused(path) as caught:
        read_losses_of_training(path)

    check_line(caught.value)


# Any content, drawn by hypothesis: a value, or a UserError in one line that names the file, and no other exception.

thirty_examples = settings(max_examples=30, derandomize=True, deadline=timedelta(seconds=10), database=None)
BYTES = st.binary(max_size=200) | st.text(max_size=60).map(str.encode)
FLOATS = st.floats(allow_subnormal=False)
# Any JSON in which lists and objects hold others; 10**400 is larger than any float.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = {  # file -> keys that its reader looks for in objects
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
BEFORE = {  # file -> bytes that stand before an object in it; none in other files
    "train.log": b"now | INFO | train_inner | ",
    "valid.log": b"now | INFO | valid | ",
    "probes.jsonl": b'{"format": 1}\n',
    "generated.txt": b"D-0\t0.1\t",
}
each_file = pytest.mark.parametrize("name", READERS)


@pytest.fixture
def read_or_refuse(name, tmp_path):
    """Provide a function that writes bytes into the file `name` and reads it, or checks the error that refuses it."""
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


@each_file
def test_any_bytes_are_read_or_refused(name, read_or_refuse):
    @thirty_examples
    @given(BYTES)
    def check(content):
        read_or_refuse(content)

    check()


@each_file
def test_any_json_is_read_or_refused(name, read_or_refuse):
    """Most of the objects have keys that the reader looks for, with values of any type."""
    keys = KEYS[name]
    some_key = st.sampled_from(keys) | st.text(max_size=5)

    objects = st.dictionaries(some_key, VALUES, max_size=len(keys))

    @thirty_examples
    @given(objects | VALUES)
    def check(content):
        read_or_refuse(json.dumps(content).encode())

    check()


@each_file
@pytest.mark.parametrize("content", [DEEP, b'{"a":' * 100_000], ids=["lists", "objects"])
def test_json_nested_100000_times_is_read_or_refused(name, content, read_or_refuse):
    read_or_refuse(content)


# Settings that fairseq evaluates as Python.

TOO_LONG = f"[0] * {LONGEST + 1}"  # would make a list of 100,001 entries
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
    """Return the settings of a checkpoint in which the model's encoder_layers is the text."""
    return {"model": {"_name": "fconv", "encoder_layers": text}}


def in_arguments(text):
    """Return settings with this encoder_layers as checkpoints of old releases have them, in a Namespace."""
    return Namespace(encoder_layers=text)


def in_arguments_of_an_inner_model(text):
    """Return settings with this encoder_layers of the wav2vec model inside a model that was fine-tuned from it."""
    return {"model": {"w2v_args": Namespace(encoder_layers=text)}}


@pytest.mark.parametrize("settings_with", [in_config, in_arguments, in_arguments_of_an_inner_model])
@pytest.mark.parametrize("text", CODE)
def test_a_setting_that_runs_code_or_takes_much_memory_is_refused(text, settings_with):
    with refused("old.pt") as caught:
        check_plain("old.pt", settings_with(text))

    assert "encoder_layers" in caught.value.way_out


@pytest.mark.parametrize("value", PLAIN)
def test_a_setting_as_fairseqs_models_have_it_is_accepted(value):
    check_plain("old.pt", {"model": {"setting": value}})


def test_paths_with_brackets_in_their_names_are_accepted():
    check_plain("old.pt", Namespace(data="runs/b(1)", save_dir="copy(2)"))
