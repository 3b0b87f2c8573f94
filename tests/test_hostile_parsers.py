"""Files of our own formats: any bytes give a value or a UserError in one line, and no other exception."""

import json

import pytest
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

from deepnet_fairseq.analysis.logs import read_log, read_validation
from deepnet_fairseq.analysis.recorded_run import RecordedRun
from deepnet_fairseq.analysis.scoring.corpus import read_corpus
from deepnet_fairseq.analysis.scoring.generated import read_generated
from deepnet_fairseq.bench import lengths
from deepnet_fairseq.cli.bench import rendered
from deepnet_fairseq.data.download import recorded_sums
from deepnet_fairseq.data.lines import read_lines
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.probes.record import read_record
from deepnet_fairseq.profiling.profile import read_profile

from .hostile.examples import VALUES, bounded

DEEP = b"[" * 100_000


def objects(*keys):
    """JSON objects with some of the keys that the parser looks for, under values of any type."""
    return st.dictionaries(st.sampled_from(keys) | st.text(max_size=5), VALUES, max_size=len(keys))


def encoded(content) -> bytes:
    return json.dumps(content).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module", name="place")
def a_place(tmp_path_factory):
    return tmp_path_factory.mktemp("parsers")


def tries(read, path, content: bytes) -> None:
    """`read` gives a value or a UserError in one line that names the file."""
    path.write_bytes(content)
    try:
        read(path)
    except UserError as error:
        assert "\n" not in str(error)
        assert str(path.parent) in str(error)


PROFILE = ("format", "omega", "encoder_layers", "decoder_layers", "seed", "dropout", "data", "method", "encoder_width")
RUN = ("method", "encoder_layers", "decoder_layers", "seed", "part", "series")
ROW = ("num_updates", "loss", "wall", "valid_num_updates", "valid_loss", "epoch")
RECORD = ("format", "update", "model_update", "gradient_norm")
BENCH = ("cells", "settings", "environment", "candidates", "depths")
RECIPE = ("tokenize", "pieces", "detokenise", "lowercase")


def whole_run(path):
    run = RecordedRun.read(path.parent)
    return run.layers, run.seed, run.total_layers


PARSERS = {  # name of the file -> reader, keys of its objects, what stands before one
    "profile.json": (lambda path: read_profile(str(path)), PROFILE, b""),
    "run.json": (whole_run, RUN, b""),
    "train.log": (read_log, ROW, b"now | INFO | train_inner | "),
    "valid.log": (read_validation, ROW, b"now | INFO | valid | "),
    "probes.jsonl": (read_record, RECORD, b'{"format": 1}\n'),
    "bench.json": (lambda path: rendered(str(path)), BENCH, b""),
    "recipe.json": (lambda path: read_corpus(path.parent / "bin"), RECIPE, b""),
    "generated.txt": (read_generated, ("D",), b"D-0\t0.1\t"),
    "lengths": (lambda path: lengths.from_file(path, 9, 1), ("1 1",), b"3 4\n"),
    "SHA256SUMS": (lambda path: recorded_sums(path.parent), ("a",), b""),
    "dict.txt": (lambda path: Dictionary.load(str(path)), ("a",), b"word 1\n"),
    "lines.txt": (lambda path: list(read_lines(path)), ("a",), b""),
}


@pytest.mark.parametrize("name", PARSERS)
def test_any_bytes(name, place):
    read, keys, before = PARSERS[name]
    folder = place / name
    (folder / "bin").mkdir(parents=True)

    @bounded
    @given(st.binary(max_size=200) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
    def bytes_alone(content):
        tries(read, folder / name, content)
        tries(read, folder / name, before + content + b"\n")

    @bounded
    @given(objects(*keys) | VALUES)
    def values(content):
        tries(read, folder / name, before + encoded(content) + b"\n")

    bytes_alone()
    values()
    tries(read, folder / name, before + DEEP + b"\n")
    tries(read, folder / name, before + b'{"a":' * 100_000 + b"\n")
