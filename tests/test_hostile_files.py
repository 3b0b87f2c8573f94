"""Profiles, configs, recorded runs, scores and plain text that are broken: one line with the file and the reason."""

import os
import shutil

import pytest
import sentencepiece

from .hostile import texts
from .hostile.checkpoints import CANARY
from .hostile.programs import contents
from .hostile.rooms import TRAIN, check_harmless, refused, the_programs  # noqa: F401
from .support.helpers import ROOT, USER_DIR
from .support.recorded import record, watched
from .support.reported import run as reported_run

OMEGA = texts.PROFILE["omega"]


def profile(**values) -> bytes:
    return texts.as_json(texts.PROFILE | values)


PROFILES = texts.broken_json(texts.PROFILE) | {
    "omega NaN": profile(omega=OMEGA | {"encoder.1.ffn": float("nan")}),
    "omega 0": profile(omega=OMEGA | {"encoder.1.ffn": 0}),
    "omega is text": profile(omega=OMEGA | {"encoder.1.ffn": "many"}),
    "omega of 10**400": profile(omega=OMEGA | {"encoder.1.ffn": 10**400}),
    "omegas in a list": profile(omega=[1.5] * 5),
    "dropout is a list": profile(dropout=[0.1]),
    "of another format": profile(format="deepnet_fairseq admin profile 9"),
    "with another key": profile(nonsense=1),
    "columns that break off": b"1 1.5\n2 1.5\n1 1.5\n2",
    "columns not in order": b"1 1.5\n3 1.5\n1 1.5\n2 1.5\n3 1.5\n",
    "one stack's columns": b"1 1.5\n2 1.5\n",
}


@pytest.mark.parametrize("case", PROFILES)
def test_profiles(case, programs, tmp_path):
    path = tmp_path / "profile.json"
    path.write_bytes(PROFILES[case])
    refused(programs, tmp_path, ("fairseq-profile", path), f"--admin-profile {path}", "not a ")


@pytest.mark.parametrize("case", ["cut", "a pipe", "of other branches"])
def test_training_with_a_profile(case, programs, data, tmp_path):
    path = tmp_path / "profile.json"
    if case == "a pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(PROFILES["cut"] if case == "cut" else profile(omega={"encoder.7.ffn": 1.5}))
    admin = ("--method", "admin", "--admin-profile", path, "--save-dir", tmp_path / "save")
    refused(programs, tmp_path, ("fairseq-train", data, *TRAIN, *admin), f"--admin-profile {path}")


FACTS = {"method": "deepnorm", "encoder_layers": 6, "decoder_layers": 6}
RUN_FILES = {
    **{f"run.json {case}": ("run.json", content) for case, content in texts.broken_json(FACTS).items()},
    "depth below 1": ("run.json", texts.as_json(FACTS | {"encoder_layers": 0})),
    "depth is text": ("run.json", texts.as_json(FACTS | {"decoder_layers": "6"})),
    "method is a list": ("run.json", texts.as_json(FACTS | {"method": []})),
    "score.json cut": ("score.json", b'{"bleu": 2'),
    "score.json without a score": ("score.json", b"{}"),
    "score is text": ("score.json", b'{"bleu": "many"}'),
}


@pytest.mark.parametrize("case", RUN_FILES)
def test_recorded_runs(case, programs, tmp_path):
    name, content = RUN_FILES[case]
    folder = record(tmp_path / "runs", 8, "x", layers=6, bleu=27.0)
    (folder / name).write_bytes(content)
    words = ("deepnet", "figures", tmp_path / "runs", "--only", "8", "--out", tmp_path)
    refused(programs, tmp_path, words, str(folder / name))


LOGS = {
    "train.log empty": ("train.log", b""),
    "train.log of zeros": ("train.log", bytes(1000)),
    "row without a loss": ("train.log", b'now | INFO | train_inner | {"num_updates": "1", "wall": 1}\n'),
    "row of text": ("train.log", b'now | INFO | train_inner | {"num_updates": "x", "loss": "1", "wall": 1}\n'),
    "row that is no JSON": ("train.log", b"now | INFO | train_inner | {'loss': 1}\n"),
    "probes.jsonl empty": ("probes.jsonl", b""),
    "probes.jsonl of another format": ("probes.jsonl", b'{"format": 2}\n{"update": 0}\n'),
    "probes.jsonl broken": ("probes.jsonl", b'{"format": 1}\n{"update": \n{"update": 1}\n'),
    "probes.jsonl with text": ("probes.jsonl", b'{"format": 1}\n{"update": 0, "ln_input": {"a": "b"}}\n'),
    "probes.jsonl nested deeply": ("probes.jsonl", b'{"format": 1}\n' + texts.DEEP + b"\n"),
}


@pytest.mark.parametrize("case", LOGS)
def test_logs_and_probes(case, programs, tmp_path):
    name, content = LOGS[case]
    folder = record(tmp_path / "runs", 4, "x", "post_ln", probes=watched(), series="post_ln_no_warmup")
    (folder / name).write_bytes(content)
    words = {
        "train.log": ("deepnet", "compare", folder, "--reference", folder, "--plot", tmp_path / "plot.png"),
        "probes.jsonl": ("deepnet", "figures", tmp_path / "runs", "--only", "4", "--out", tmp_path),
    }[name]
    refused(programs, tmp_path, words, str(folder / name))


@pytest.mark.parametrize("case", ["cut", "a list", "nested deeply", "not in UTF-8"])
def test_reports(case, programs, tmp_path):
    folder = reported_run(tmp_path, "table1", "x", bleu=27.0)
    (folder / "score.json").write_bytes(texts.broken_json({"bleu": 27.0})[case])
    words = ("deepnet", "report", tmp_path, "--table", "1", "--out", tmp_path / "out.md")
    refused(programs, tmp_path, words, str(folder / "score.json"))


@pytest.mark.parametrize("case", texts.broken_json({"cells": []}))
def test_benches(case, programs, tmp_path):
    path = tmp_path / "bench.json"
    path.write_bytes(texts.broken_json({"cells": []})[case])
    refused(programs, tmp_path, ("deepnet", "bench", "--render", path), str(path))


GENERATED = {
    "empty": (b"", "0 translations"),
    "cut": (b"T-0\ta\nD-0\t-1\tb\nT-1\ta\nD-1\t-", "middle of a line"),
    "sentence missing": (b"T-0\ta\nD-0\t-1\tb\nT-2\ta\nD-2\t-1\tb\n", "missing"),
    "sentence twice": (b"T-0\ta\nD-0\t-1\tb\nD-0\t-1\tb\n", "twice"),
    "not in UTF-8": (b"T-0\t\xff\nD-0\t-1\tb\n", "no UTF-8"),
    "references missing": (b"D-0\t-1\tb\n", "no references"),
}


@pytest.mark.parametrize("case", GENERATED)
def test_scores(case, programs, tmp_path):
    content, says = GENERATED[case]
    (tmp_path / "generated.txt").write_bytes(content)
    words = ("deepnet", "score", tmp_path / "generated.txt", "--out", tmp_path / "score.json")
    refused(programs, tmp_path, words, str(tmp_path / "generated.txt"), says)


@pytest.mark.parametrize("case", texts.broken_text())
def test_plain_text(case, programs, tmp_path):
    files, name, says = texts.broken_text()[case]
    texts.write(tmp_path, files)
    prefix, vocab = tmp_path / "train", "9000" if "vocab" in case else "60"
    words = ("deepnet", "prepare-text", "qaa", "qab", prefix, prefix, prefix, tmp_path / "out", "--vocab", vocab)
    refused(programs, tmp_path, words, name, says)


@pytest.mark.smoke
def test_text_of_any_shape(programs, tmp_path):
    """Bytes that no tool of the trade takes for the end of a line, and a very long line, are text."""
    lines = [b"word%d\x00 other\r" % number for number in range(150)] + [b"word1 " * 9_000, "a\u2028b\x85c".encode()]
    for lang in ("qaa", "qab"):
        (tmp_path / f"train.{lang}").write_bytes(b"\n".join(lines) + b"\n")
    prefix = tmp_path / "train"
    words = ("deepnet", "prepare-text", "qaa", "qab", prefix, prefix, prefix, tmp_path / "out", "--vocab", "60")
    done = programs.run(*words)
    assert done.status == 0, done.printed
    assert "152 sentence pairs" in done.printed


def model_of(tmp_path) -> bytes:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["ab ba", "aab"] * 9), model_prefix=str(tmp_path / "m"), vocab_size=8, minloglevel=2
    )
    return (tmp_path / "m.model").read_bytes()


MODELS = {
    "empty": lambda model: b"",
    "cut": lambda model: model[: len(model) // 3],
    "a bit": lambda model: bytes([model[0] ^ 0xFF]) + model[1:],
    "zeros": lambda model: bytes(500),
    "text": lambda model: b"not a model\n" * 9,
    "2**60 bytes claimed": lambda model: b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x0f" + model,
}


@pytest.mark.parametrize("case", MODELS)
def test_sentencepiece_models(case, programs, tmp_path):
    path = tmp_path / "spm.model"
    path.write_bytes(MODELS[case](model_of(tmp_path)))
    texts.write(tmp_path, {f"text/de-en/train.{lang}": b"ab ba\n" * 200 for lang in ("de", "en")})
    words = ("deepnet", "prepare", "multilingual", tmp_path / "out", "--from", tmp_path / "text", "--spm", path)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    refused(programs, tmp_path, (*words, "--workers", "1"), str(path), "no SentencePiece model")


YAML = {  # hydra reads it before a plug-in is there, and prints calls besides: status, file and reason are held to
    "syntax": (b"\n  : [", "expected <block end>"),
    "not in UTF-8": (b"\n# \xff\xfe\n", "utf-8"),
    "zeros": (bytes(9), "special characters are not allowed"),
    "a tag that calls": (f"\nx: !!python/object/apply:os.system ['touch {CANARY}']\n".encode(), "os.system"),
    "section twice": (b"\nmodel:\n  _name: x\n", "duplicate key model"),
    "unknown section": (b"\nnonsense:\n  a: 1\n", "'nonsense' not in"),
    "settings that call": (b"", "is no plain value"),
}


@pytest.mark.parametrize("case", YAML)
def test_yaml(case, programs, data, tmp_path):
    added, says = YAML[case]
    (tmp_path / "x.yaml").write_bytes((ROOT / "configs" / "quickstart.yaml").read_bytes() + added)
    settings = [f"hydra.run.dir={tmp_path}/hydra", f"common.user_dir={USER_DIR}", f"task.data={data}",
                f"checkpoint.save_dir={tmp_path}/save", "hydra.output_subdir=null"]  # fmt: skip
    if case == "settings that call":
        settings.append(f"optimizer.adam_betas=\"__import__('os').system('touch {CANARY}')\"")
    before = contents(tmp_path)
    done = programs.run("fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "x", *settings)
    assert done.status == 1 and says in done.printed, done.printed[-2000:]
    check_harmless(programs, tmp_path, before)
