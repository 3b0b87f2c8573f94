"""Tests of fairseq's own programs on our model: train, generate, interactive, validate and resume, as a user runs them.

Each program is started cold here at least once; elsewhere they are forks of the test process.
"""

import json
import re
from dataclasses import fields

import pytest
from tensorboardX.proto import event_pb2

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.building import from_checkpoint
from deepnet_fairseq.plugin.command_line import read_input
from deepnet_fairseq.plugin.flags import CONFIGS

from ..conftest import TRAIN_FLAGS
from ..support.helpers import USER_DIR, run, run_cold

TINY = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2")


def losses(log: str) -> dict[int, float]:
    rows = [json.loads(row) for row in re.findall(r"\| INFO \| train_inner \| (\{.*\})", log)]
    return {int(row["num_updates"]): float(row["loss"]) for row in rows}


def quiet(done) -> str:
    """Return the output of a start without mistakes, after checking that it holds no warnings or debug lines."""
    assert "Warning" not in done.stdout and "DEBUG" not in done.stdout
    return done.stdout


def test_a_100_layer_model_translates(data, trained):
    path = trained / "checkpoint_last.pt"
    flags = ("--path", path, "--user-dir", USER_DIR, "--cpu", "--max-len-b", "5", "--max-len-a", "0")
    printed = quiet(run_cold("fairseq-generate", data, *flags, "--beam", "2", "--max-sentences", "20"))
    assert len(re.findall(r"^H-\d+\t", printed, re.MULTILINE)) == 20
    assert "Translated 20 sentences" in printed


def test_it_is_what_it_says(trained, capsys):
    """`deepnet verify` reads from a checkpoint of fairseq-train its method, updates and both alphas."""
    main(["verify", str(trained / "checkpoint_last.pt"), "--method", "deepnorm"])
    printed = capsys.readouterr().out
    assert "layers: encoder 100, decoder 100; trained, 4 updates" in printed
    assert "(encoder.alpha)  fits" in printed and "(decoder.alpha)  fits" in printed


@pytest.fixture(scope="module")
def small(data, tmp_path_factory):
    """Provide a checkpoint of a 2L-2L model."""
    folder = tmp_path_factory.mktemp("small")
    flags = ("--max-update", "1", "--save-dir", folder, "--tensorboard-logdir", folder / "board")
    log = quiet(run_cold("fairseq-train", data, *TRAIN_FLAGS, *TINY, *flags))
    (folder / "log").write_text(log)
    return folder / "checkpoint_last.pt"


def scalars(folder) -> dict[str, float]:
    """Return the last value of each tag in a folder's only TensorBoard file.

    A record is 8 bytes of length, 4 of checksum, an event, 4 of checksum.
    """
    (path,) = folder.iterdir()
    content, at, values = path.read_bytes(), 0, {}
    while at < len(content):
        end = at + 12 + int.from_bytes(content[at : at + 8], "little")
        event = event_pb2.Event.FromString(content[at + 12 : end])
        values |= {value.tag: value.simple_value for value in event.summary.value}
        at = end + 4
    return values


def test_a_training_says_what_it_is_and_where_its_numbers_go(small):
    """The log's first line describes the training, and --tensorboard-logdir receives the log's loss."""
    log, board = (small.parent / "log").read_text(), small.parent / "board"
    (opening,) = re.findall(r"deepnorm 2L-2L; .*", log)
    assert "encoder alpha 1.006, beta 0.7006; decoder alpha 1.565, beta 0.4518" in opening
    assert "; fp32; " in opening
    assert f"checkpoints in {small.parent}; TensorBoard in {board}" in opening
    parameters = sum(p.numel() for p in from_checkpoint(str(small))[0].parameters())
    assert f"; {parameters:,} parameters; " in opening
    assert scalars(board / "train_inner")["loss"] == pytest.approx(losses(log)[1], abs=1e-3)


def test_help_ends_with_the_flags_of_our_models():
    words = ("--user-dir", USER_DIR, "--arch", "deepnet_transformer_18_18", "--help")
    printed = run("fairseq-train", *words).stdout
    ours = printed[printed.index("\ndeepnet_transformer: the model:") :]
    known = set(re.findall(r"^  (--[\w-]+)", ours, re.MULTILINE))
    assert {f"--{field.name}".replace("_", "-") for field in fields(CONFIGS["deepnet_transformer"])} >= known
    assert {"--encoder-layers", "--method", "--admin-profile", "--pro-res", "--deepnet-probe", "--stop-stuck"} <= known
    assert len(re.findall(r"^deepnet_transformer: .*:$", ours, re.MULTILINE)) == 3


def test_interactive_and_validate(data, small, tmp_path):
    first_lines = (data.parent / "text" / "test.qaa").read_text().split("\n")[:2]
    (tmp_path / "input").write_text("\n".join(first_lines) + "\n")
    model = ("--path", small, "--user-dir", USER_DIR, "--cpu")
    flags = (*model, "--beam", "1", "--max-len-a", "0", "--max-len-b", "3", "--print-alignment", "hard")
    flags += ("--bpe", "sentencepiece", "--sentencepiece-model", data / "spm.model")
    flags += ("--source-lang", "qaa", "--target-lang", "qab", "--input", tmp_path / "input")
    printed = run_cold("fairseq-interactive", data, *flags).stdout
    assert len(re.findall(r"^D-[01]\t", printed, re.MULTILINE)) == 2
    assert re.search(r"^A-0\t\d+-\d+", printed, re.MULTILINE)
    (tmp_path / "input").write_bytes(b"a\ncaf\xe9\n")
    with pytest.raises(UserError, match="input, line 2: not UTF-8"):
        list(read_input(None, str(tmp_path / "input"), 1))
    printed = run_cold("fairseq-validate", data, *model, "--task", "translation", "--max-tokens", "2000").stdout
    assert re.search(r"valid on 'valid' subset \| loss \d", printed)


def test_a_checkpoint_of_the_stock_transformer_resumes(data, tmp_path):
    """A checkpoint of fairseq's `transformer`, with Adam's state, resumes as post_ln with the same loss."""
    widths = [f"--{side}-{name}" for side in ("encoder", "decoder") for name in ("layers", "attention-heads")]
    flags = [word for flag in widths for word in (flag, "2")] + ["--encoder-embed-dim", "64"]
    flags += ["--encoder-ffn-embed-dim", "128", "--dropout", "0", "--save-dir", tmp_path]
    train = ("fairseq-train", data, *TRAIN_FLAGS, *flags)
    run(*train, "--arch", "transformer", "--max-update", "2")
    restore = ("--max-update", "3", "--restore-file", tmp_path / "checkpoint_last.pt", "--no-save")
    theirs = losses(run(*train, *restore, "--arch", "transformer").stdout)
    ours = losses(run(*train, *restore, "--arch", "deepnet_transformer", "--method", "post_ln").stdout)
    assert ours == pytest.approx(theirs, abs=1e-3)
    assert sorted(ours) == [3]


def test_the_quickstarts_yaml_trains(data, tmp_path):
    """fairseq-hydra-train trains from configs/quickstart.yaml, with one setting overridden."""
    settings = (f"common.user_dir={USER_DIR}", f"task.data={data}", f"checkpoint.save_dir={tmp_path}")
    settings += ("model.method=pre_ln", "optimization.max_update=1", f"hydra.run.dir={tmp_path}/hydra")
    run_cold("fairseq-hydra-train", "--config-dir", f"{USER_DIR}/../configs", "--config-name", "quickstart", *settings)
    cfg = from_checkpoint(str(tmp_path / "checkpoint_last.pt"))[1].model
    assert (cfg.method, cfg.encoder_layers, cfg.encoder_embed_dim) == ("pre_ln", 18, 64)
