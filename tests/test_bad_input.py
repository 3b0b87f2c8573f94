"""A user's mistake ends non-zero, in one line that names the flag or the file, with nothing written."""

import pickle
import subprocess
import zipfile

import pytest
import torch

from .conftest import TRAIN_FLAGS
from .support.helpers import USER_DIR, run, run_cold

ARCH = ("--arch", "deepnet_transformer_tiny")
MISTAKES = {
    "unknown method": ((*ARCH, "--method", "deepnrom"), "--method deepnrom"),
    "depth 0": ((*ARCH, "--encoder-layers", "0"), "--encoder-layers 0"),
    "negative depth": ((*ARCH, "--decoder-layers", "-3"), "--decoder-layers -3"),
    "heads": ((*ARCH, "--encoder-attention-heads", "7"), "--encoder-attention-heads 7"),
    "no such arch": (("--arch", "deepnet_transformer_18_19"), "--arch deepnet_transformer_18_19"),
    "norm place": ((*ARCH, "--encoder-normalize-before"), "--encoder-normalize-before"),
    "decoder norm place": ((*ARCH, "--method", "post_ln", "--decoder-normalize-before"), "--decoder-normalize-before"),
    "profile": ((*ARCH, "--init-profile", "fairseq_head"), "--init-profile fairseq_head"),
    "dropout": ((*ARCH, "--dropout", "1.5"), "--dropout 1.5"),
    "stock flag": (
        (*ARCH, "--adaptive-softmax-cutoff", "10"),
        "--adaptive-softmax-cutoff: fairseq's `transformer` has it",
    ),
    "layerdrop": ((*ARCH, "--encoder-layerdrop", "0.1"), "--encoder-layerdrop: fairseq's `transformer` has it"),
    "typo": ((*ARCH, "--encoder-leyers", "3"), "--encoder-leyers"),
    "fp16 on a CPU": ((*ARCH, "--fp16"), "--fp16"),
    "restore": ((*ARCH, "--restore-file", "nowhere.pt"), "--restore-file nowhere.pt"),
    "finetune": ((*ARCH, "--finetune-from-model", "nowhere.pt"), "--finetune-from-model nowhere.pt"),
    "warm-up": ((*ARCH, "--warmup-updates", "0"), "--warmup-updates 0"),
    "criterion": ((*ARCH, "--criterion", "label_smoothed_cross_entropy_with_alignment"), "--criterion"),
    "widths": ((*ARCH, "--decoder-embed-dim", "32"), "--share-all-embeddings"),
}


def assert_one_line(done: subprocess.CompletedProcess, *words: str):
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    error = [line for line in done.stdout.splitlines() if "error: " in line]
    assert len(error) == 1, done.stdout
    assert all(word in error[0] for word in words), error[0]
    assert len(error[0]) < 400


@pytest.mark.parametrize("mistake", MISTAKES)
def test_flags(mistake, data, tmp_path):
    flags, named = MISTAKES[mistake]
    done = run("fairseq-train", data, *TRAIN_FLAGS, *flags, "--save-dir", tmp_path / "save", check=False)
    assert_one_line(done, named)
    assert not (tmp_path / "save").exists()


def test_missing_architecture(data, tmp_path):
    done = run_cold("fairseq-train", data, *TRAIN_FLAGS, "--save-dir", tmp_path / "save", check=False)
    assert_one_line(done, "--arch", "deepnet archs")


def test_data_that_are_none(tmp_path):
    done = run("fairseq-train", tmp_path, *TRAIN_FLAGS, *ARCH, check=False)
    assert_one_line(done, f"{tmp_path}: holds no dict.LANG.txt")


def test_missing_data(tmp_path):
    done = run("fairseq-train", tmp_path / "nowhere", *TRAIN_FLAGS, *ARCH, check=False)
    assert_one_line(done, f"{tmp_path / 'nowhere'}: no such file or folder")


YAML_MISTAKES = {
    "model.method=deepnrom": "--method deepnrom: unknown",
    "+model.adaptive_softmax_cutoff=[10]": "model.adaptive_softmax_cutoff: deepnet_transformer has no such setting",
    "model._name=deepnet_transformer_18_19": "model._name deepnet_transformer_18_19: no such architecture",
    "+model.encoder_layers=many": "model.encoder_layers: ",
}


@pytest.mark.parametrize("setting", YAML_MISTAKES)
def test_a_mistake_in_yaml(setting, data, tmp_path):
    flags = ("--config-dir", f"{USER_DIR}/../configs", "--config-name", "quickstart", f"hydra.run.dir={tmp_path}/hydra")
    settings = (f"common.user_dir={USER_DIR}", f"task.data={data}", f"checkpoint.save_dir={tmp_path}/save", setting)
    done = run("fairseq-hydra-train", *flags, *settings, check=False)
    assert done.returncode != 0
    assert YAML_MISTAKES[setting] in done.stdout
    assert "Traceback" not in done.stdout


CHECKPOINT_MISTAKES = {
    "depth": ("deepnet_transformer_tiny_18_18", (), "100 encoder layers"),
    "method": ("deepnet_transformer_tiny_100_100", ("--method", "post_ln"), "--method"),
}


@pytest.mark.parametrize("mistake", CHECKPOINT_MISTAKES)
def test_checkpoint_of_another_model(mistake, data, trained, tmp_path):
    arch, flags, named = CHECKPOINT_MISTAKES[mistake]
    path = trained / "checkpoint_last.pt"
    restore = ("--restore-file", path, "--save-dir", tmp_path / "save", "--max-update", "9")
    done = run("fairseq-train", data, *TRAIN_FLAGS, "--arch", arch, *flags, *restore, check=False)
    assert_one_line(done, str(path), named)
    assert not list((tmp_path / "save").glob("*.pt"))


@pytest.fixture
def truncated(trained, tmp_path):
    path = tmp_path / "truncated.pt"
    path.write_bytes((trained / "checkpoint_last.pt").read_bytes()[:5000])
    return path


def test_not_a_checkpoint_of_fairseq(data, tmp_path):
    path = tmp_path / "weights.pt"
    torch.save({"weight": torch.zeros(3)}, path)
    assert_one_line(open_checkpoint("generate", data, path, tmp_path), f"{path}: not a checkpoint of fairseq")


class Hostile:
    def __init__(self, proof):
        self.proof = proof

    def __reduce__(self):
        return (open, (self.proof, "w"))


def hostile_checkpoints(tmp_path, proof):
    """The two formats torch.load reads: the zip archive and the bare pickle of old."""
    modern, legacy = tmp_path / "modern.pt", tmp_path / "legacy.pt"
    torch.save({"model": {}, "args": Hostile(proof)}, modern)
    assert zipfile.is_zipfile(modern)
    legacy.write_bytes(pickle.dumps({"model": {}, "args": Hostile(proof)}, protocol=2))
    return modern, legacy


def test_missing_checkpoint(data, tmp_path):
    path = tmp_path / "nowhere.pt"
    assert_one_line(open_checkpoint("generate", data, path, tmp_path), f"--path {path}: no such file or folder")


@pytest.mark.parametrize("program", ["generate", "train"])
def test_truncated_checkpoint(program, data, truncated, tmp_path):
    assert_one_line(open_checkpoint(program, data, truncated, tmp_path), str(truncated), "truncated")


@pytest.mark.parametrize("program", ["generate", "train", "interactive", "validate"])
def test_hostile_checkpoint_is_not_run(program, data, tmp_path):
    proof = str(tmp_path / "proof")
    for path in hostile_checkpoints(tmp_path, proof):
        assert_one_line(open_checkpoint(program, data, path, tmp_path), str(path), "refused", "io.open")
    assert not (tmp_path / "proof").exists()


def open_checkpoint(program, data, path, tmp_path):
    if program != "train":
        flags = ("--path", path, "--user-dir", USER_DIR, "--cpu", "--task", "translation", "--max-tokens", "2000")
        return run(f"fairseq-{program}", data, *flags, check=False)
    restore = ("--restore-file", path, "--save-dir", tmp_path / "save", "--max-update", "1")
    return run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, *restore, check=False)


def test_deepnet_command():
    assert_one_line(run_cold("deepnet", "coefficients", "0", "0", check=False), "at least 1 layer")
    assert_one_line(run("deepnet", "coefficients", "6", "6", "--method", "pre_ln", check=False), "--method pre_ln")
    assert_one_line(run("deepnet", "init-report", "--arch", "nonsense", check=False), "--arch nonsense")
