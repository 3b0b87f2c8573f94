"""Tests of fairseq's own programs on our model: train, generate, interactive, validate and resume, as a user runs them.

Each program is started here at least once in a process that has imported nothing (run_cold). Elsewhere the programs are
forks of the test process (run).
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import pytest
from tensorboardX.proto import event_pb2

from deepnet_fairseq.cli import main
from deepnet_fairseq.plugin.building import from_checkpoint
from deepnet_fairseq.plugin.command_line import read_input
from deepnet_fairseq.plugin.flags import CONFIGS

from ..conftest import TRAIN_FLAGS
from ..support.errors import refused
from ..support.helpers import USER_DIR, run, run_cold
from ..support.logs import TRANSLATE, hypotheses, losses

TINY = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2")
TEST_SENTENCES = 20


def output_without_warnings(done) -> str:
    """Return what a program has printed, after checking that it holds no warnings or debug lines."""
    assert "Warning" not in done.stdout
    assert "DEBUG" not in done.stdout
    return done.stdout


# A model of 100 layers


@pytest.fixture(scope="module")
def trained_100_layers(data, tmp_path_factory) -> Path:
    """Provide the last checkpoint of a 100L-100L model after 4 updates of fairseq-train."""
    folder = tmp_path_factory.mktemp("trained")
    arch = ("--arch", "deepnet_transformer_tiny_100_100")
    run("fairseq-train", data, *TRAIN_FLAGS, *arch, "--max-update", "4", "--save-dir", folder)
    return folder / "checkpoint_last.pt"


@pytest.mark.smoke
def test_a_model_of_100_layers_translates(data, trained_100_layers):
    flags = (*TRANSLATE, "--path", trained_100_layers, "--max-sentences", "20")

    printed = output_without_warnings(run_cold("fairseq-generate", data, *flags))

    assert len(hypotheses(printed)) == TEST_SENTENCES
    assert f"{TEST_SENTENCES} sentences" in printed  # fairseq's last line


@pytest.mark.smoke
def test_deepnet_verify_reads_method_updates_and_alphas_of_a_checkpoint(trained_100_layers, capsys):
    main(["verify", str(trained_100_layers), "--method", "deepnorm"])

    printed = capsys.readouterr().out
    assert "encoder 100, decoder 100" in printed
    assert "4 updates" in printed
    for alpha in ("(encoder.alpha)", "(decoder.alpha)"):
        (line,) = [line for line in printed.splitlines() if alpha in line]
        assert "fits" in line  # the paper's formula


# A model of 2 layers in each stack


class SmallTraining(NamedTuple):
    checkpoint: Path
    board: Path  # folder of TensorBoard
    log: str  # with a line "... | deepnorm 2L-2L; ...", which opens the training


@pytest.fixture(scope="module")
def small_training(data, tmp_path_factory) -> SmallTraining:
    """Provide a training of a 2L-2L model after one update, by fairseq-train started cold."""
    folder = tmp_path_factory.mktemp("small")
    board = folder / "board"
    flags = ("--max-update", "1", "--save-dir", folder, "--tensorboard-logdir", board)
    log = output_without_warnings(run_cold("fairseq-train", data, *TRAIN_FLAGS, *TINY, *flags))
    return SmallTraining(folder / "checkpoint_last.pt", board, log)


def test_the_log_opens_with_a_line_about_the_training(small_training):
    (opening,) = re.findall(r"deepnorm 2L-2L; .*", small_training.log)

    # Wang et al. 2022, Figure 2: of the encoder 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16), of the decoder
    # (3M)^(1/4) and (12M)^(-1/4), with N = M = 2 layers
    assert "encoder alpha 1.006, beta 0.7006" in opening
    assert "decoder alpha 1.565, beta 0.4518" in opening
    assert "; fp32; " in opening
    model, _ = from_checkpoint(str(small_training.checkpoint))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert f"; {parameters:,} parameters; " in opening


def test_the_opening_line_names_the_folders_that_are_written(small_training):
    (opening,) = re.findall(r"deepnorm 2L-2L; .*", small_training.log)

    assert f" {small_training.checkpoint.parent};" in opening
    assert f" {small_training.board}" in opening


def last_scalars(folder) -> dict[str, float]:
    """Return the last value of each tag in a folder's only TensorBoard file.

    A record of the file is 8 bytes of length, 4 of checksum, an event of that length, 4 of checksum.
    """
    (path,) = folder.iterdir()
    content = path.read_bytes()
    values = {}
    record = 0  # where it begins
    while record < len(content):
        length = int.from_bytes(content[record : record + 8], "little")
        begin = record + 8 + 4
        end = begin + length
        event = event_pb2.Event.FromString(content[begin:end])
        for value in event.summary.value:
            values[value.tag] = value.simple_value
        record = end + 4
    return values


def test_tensorboard_receives_the_loss_of_the_log(small_training):
    scalars = last_scalars(small_training.board / "train_inner")

    assert scalars["loss"] == pytest.approx(losses(small_training.log)[1], abs=1e-3)


def test_fairseq_interactive_translates_lines_of_a_file(data, small_training, tmp_path):
    lines = (data.parent / "text" / "test.qaa").read_text().splitlines(keepends=True)
    (tmp_path / "input").write_text("".join(lines[:2]))
    model = ("--path", small_training.checkpoint, "--user-dir", USER_DIR, "--cpu")
    search = ("--beam", "1", "--max-len-a", "0", "--max-len-b", "3", "--print-alignment", "hard")
    subwords = ("--bpe", "sentencepiece", "--sentencepiece-model", data / "spm.model")
    text = ("--source-lang", "qaa", "--target-lang", "qab", "--input", tmp_path / "input")

    printed = run_cold("fairseq-interactive", data, *model, *search, *subwords, *text).stdout

    assert len(re.findall(r"^D-[01]\t", printed, re.MULTILINE)) == 2  # detokenised translations
    assert re.search(r"^A-0\t\d+-\d+", printed, re.MULTILINE)  # alignment, as "SOURCE-TARGET ..."


def test_a_line_of_input_that_is_not_utf8_is_named(tmp_path):
    """fairseq-interactive reads its input by the function read_input."""
    path = tmp_path / "input"
    path.write_bytes(b"a\ncaf\xe9\n")  # in Latin-1

    with refused(path, "line 2"):
        list(read_input(None, str(path), 1))


def test_fairseq_validate_computes_a_loss(data, small_training):
    flags = ("--path", small_training.checkpoint, "--user-dir", USER_DIR, "--cpu", "--task", "translation")

    printed = run_cold("fairseq-validate", data, *flags, "--max-tokens", "2000").stdout

    assert re.search(r"valid on 'valid' subset \| loss \d", printed)  # in fairseq's words


# Other ways to start


def test_help_ends_with_the_flags_of_our_models():
    """The flags come in three groups, whose headings begin with the model's name."""
    words = ("--user-dir", USER_DIR, "--arch", "deepnet_transformer_18_18", "--help")

    printed = run("fairseq-train", *words).stdout

    headings = list(re.finditer(r"^deepnet_transformer: .*:$", printed, re.MULTILINE))
    assert len(headings) == 3
    first_heading = headings[0].start()
    shown = set(re.findall(r"^  (--[\w-]+)", printed[first_heading:], re.MULTILINE))
    ours = {f"--{field.name.replace('_', '-')}" for field in fields(CONFIGS["deepnet_transformer"])}
    assert shown <= ours
    assert {"--encoder-layers", "--method", "--admin-profile", "--pro-res", "--deepnet-probe", "--stop-stuck"} <= shown


def test_a_checkpoint_of_the_stock_transformer_resumes(data, tmp_path):
    """A checkpoint of fairseq's `transformer`, with Adam's state, resumes as post_ln with the same loss."""
    model = (
        "--encoder-layers", "2", "--encoder-attention-heads", "2", "--decoder-layers", "2",
        "--decoder-attention-heads", "2", "--encoder-embed-dim", "64", "--encoder-ffn-embed-dim", "128",
        "--dropout", "0",
    )  # fmt: skip
    train = ("fairseq-train", data, *TRAIN_FLAGS, *model, "--save-dir", tmp_path)
    run(*train, "--arch", "transformer", "--max-update", "2")

    resume = (*train, "--max-update", "3", "--restore-file", tmp_path / "checkpoint_last.pt", "--no-save")
    theirs = losses(run(*resume, "--arch", "transformer").stdout)
    ours = losses(run(*resume, "--arch", "deepnet_transformer", "--method", "post_ln").stdout)

    assert list(ours) == [3]
    assert ours == pytest.approx(theirs, abs=1e-3)


@pytest.mark.smoke
def test_the_quickstarts_yaml_trains(data, tmp_path):
    """fairseq-hydra-train trains from configs/quickstart.yaml, with some settings overridden."""
    config = ("--config-dir", f"{USER_DIR}/../configs", "--config-name", "quickstart")
    places = (f"common.user_dir={USER_DIR}", f"task.data={data}", f"checkpoint.save_dir={tmp_path}")
    settings = ("model.method=pre_ln", "optimization.max_update=1", f"hydra.run.dir={tmp_path}/hydra")

    run_cold("fairseq-hydra-train", *config, *places, *settings)

    _, cfg = from_checkpoint(str(tmp_path / "checkpoint_last.pt"))
    assert cfg.model.method == "pre_ln"
    assert cfg.model.encoder_layers == 18
    assert cfg.model.encoder_embed_dim == 64
