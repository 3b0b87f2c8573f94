"""Tests of our own formats, plain text and settings: damage gives one line with the file and the reason.

Whole files are read back as they were written.
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

bounded = settings(max_examples=30, derandomize=True, deadline=timedelta(seconds=10), database=None)
FLOATS = st.floats(allow_subnormal=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)

BRANCHES = [f"{stack}.1.{place}" for stack in ("encoder", "decoder") for place in ("self_attn", "ffn")]
PROFILE = {
    "format": "deepnet_fairseq admin profile 1",
    "encoder_layers": 1,
    "decoder_layers": 1,
    "omega": dict.fromkeys(BRANCHES, 1.5) | {"decoder.1.encoder_attn": 2.0},
}


def as_json(value, **others) -> bytes:
    return json.dumps(value | others).encode()


def omega(value) -> bytes:
    return as_json(PROFILE, omega=PROFILE["omega"] | {"encoder.1.ffn": value})


CUT, NOT_UTF8 = b'{"method": "deepnorm", "enc', b'{"\xff\xfe": 1}'
FACTS = {"method": "deepnorm", "encoder_layers": 6, "decoder_layers": 6}
WRONG = {  # file -> contents that no program writes; arbitrary bytes are tried below
    "profile.json": (
        CUT, NOT_UTF8, omega(float("nan")), omega(10**400), as_json(PROFILE, omega=[1.5] * 5),
        as_json(PROFILE, format="deepnet_fairseq admin profile 9"), as_json(PROFILE, nonsense=1),
        b"1 1.5\n3 1.5\n1 1.5\n2 1.5\n3 1.5\n", b"1 1.5\n2 1.5\n", b"1 1.0\n2 two\n",  # columns, as in older files
    ),
    "run.json": (CUT, NOT_UTF8, as_json(FACTS, encoder_layers=0), as_json(FACTS, decoder_layers="6")),
    "train.log": (b'now | INFO | train_inner | {"num_updates": "1", "wall": 1}\n',
                  b"now | INFO | train_inner | {'loss': 1}\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_own_formats(name, tmp_path):
    path = tmp_path / name
    for content in WRONG[name]:
        path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            PARSERS[name][0](path)
        check_line(caught.value, str(path), "not a " if name == "profile.json" else "")


def whole_run(path):
    run = RecordedRun(path.parent)
    return run.layers, run.seed, run.total_layers


def log_of_a_record(path):
    record = path.with_name("record.jsonl")
    log = path.read_bytes().replace(b"\n", b" ").replace(b"\r", b" ")
    record.write_bytes(b'{"name": "a", "run": %b, "log": %b}\n' % (json.dumps(FACTS).encode(), log))
    (run,) = read_records(record)
    return run.hours, run.log


PROFILE_KEYS = (*PROFILE, "seed", "dropout", "data", "method", "encoder_width")
PARSERS = {  # name of the file -> reader, keys of its objects, bytes before an object
    "profile.json": (lambda path: read_profile(str(path)), PROFILE_KEYS, b""),
    "run.json": (whole_run, ("method", "encoder_layers", "decoder_layers", "seed", "part", "series"), b""),
    "record": (log_of_a_record, ("attempts", "train_inner"), b""),
    "train.log": (lambda p: curve(read_log(p), "train_inner", p), READ["train_inner"], b"now | INFO | train_inner | "),
    "valid.log": (lambda p: curve(read_log(p), "valid", p), READ["valid"], b"now | INFO | valid | "),
    "probes.jsonl": (read_record, ("format", "update", "model_update", "gradient_norm"), b'{"format": 1}\n'),
    "recipe.json": (lambda p: read_corpus(p.parent / "bin"), ("pieces", "detokenise", "lowercase"), b""),
    "generated.txt": (read_generated, ("D",), b"D-0\t0.1\t"),
    "lines.txt": (lambda path: list(read_lines(path)), ("a",), b""),
}


@pytest.mark.parametrize("name", PARSERS)
def test_any_bytes(name, tmp_path):
    """Any bytes in a file give a value or a UserError in one line that names the file, and no other exception."""
    read, keys, before = PARSERS[name]
    path = tmp_path / name
    (tmp_path / "bin").mkdir()

    def tries(content: bytes) -> None:
        path.write_bytes(before + content + b"\n")
        try:
            read(path)
        except UserError as error:
            assert "\n" not in str(error) and str(tmp_path) in str(error)

    @bounded
    @given(st.binary(max_size=200) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
    def any_bytes(content):
        tries(content)

    @bounded
    @given(st.dictionaries(st.sampled_from(keys) | st.text(max_size=5), VALUES, max_size=len(keys)) | VALUES)
    def any_values(content):
        tries(json.dumps(content).encode("utf-8", "surrogatepass"))

    any_bytes()
    any_values()
    tries(DEEP)
    tries(b'{"a":' * 100_000)


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('x')", "open('x')", "(lambda: 1)", "[x for x in (1,)]", "(2 ** 9 ** 9)",
     "9**9**9", "1 << 9999999999", f"[0] * {LONGEST + 1}"],
)  # fmt: skip
def test_settings_that_run_code_are_refused(text):
    """Settings that run code are refused, in fairseq's config and in the arguments of old checkpoints."""
    args = Namespace(encoder_layers=text)
    for config in ({"model": {"_name": "fconv", "encoder_layers": text}}, args, {"model": {"w2v_args": args}}):
        with pytest.raises(UserError, match=r"^old\.pt: encoder_layers .* is no plain value"):
            check_plain("old.pt", config)


def test_settings_as_fairseqs_models_have_them_pass():
    plain = [
        "[(512, 3)] * 2 + [(1024, 1)]",
        "{'a': (0.9, -1e-8)}",
        "zh-Hans",
        "relu",
        "(0.9, 0.98)",
        "",
        "(",
        "f(x",
        True,
    ]
    check_plain("old.pt", {"model": {f"setting{number}": value for number, value in enumerate(plain)}})
    check_plain("old.pt", Namespace(data="runs/b(1)", save_dir="copy(2)"))
