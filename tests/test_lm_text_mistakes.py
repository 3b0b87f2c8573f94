"""deepnet prepare-lm: a mistake ends in one line that names the flag or the file, and leaves nothing behind."""

from __future__ import annotations

import pytest

from deepnet_fairseq.data.monolingual import segmenter
from deepnet_fairseq.errors import UserError

from .support.plain_text import VOCAB, a_texts, prepare, write_gpt2  # noqa: F401


def broken_gpt2(change):
    """Flags with a GPT-2 BPE of which one file was changed: change(encoder, merges)."""

    def flags(folder):
        paths = write_gpt2(folder / "broken")
        change(*paths)
        return ("--bpe", "gpt2", "--encoder-json", paths[0], "--vocab-bpe", paths[1])

    return flags


MISTAKES = {
    "too many pieces": (lambda _: ("--vocab", 30_000), r"--vocab 30000: this text supports at most \d+"),
    "pieces of GPT-2": (lambda _: ("--bpe", "gpt2", "--vocab", 9), r"--vocab: only with --bpe sentencepiece"),
    "GPT-2's file": (lambda _: ("--encoder-json", "x"), r"--encoder-json: only with --bpe gpt2"),
    "one of two": (lambda _: ("--bpe", "gpt2", "--vocab-bpe", "x"), r"--encoder-json and --vocab-bpe: give both"),
    "no such model": (lambda folder: ("--spm", folder / "nowhere"), r"nowhere: no such file"),
    "no model": (lambda _: ("--spm", __file__), r"test_lm_text_mistakes.py: no SentencePiece model"),
    "no dictionary": (lambda folder: ("--dict", folder / "nowhere"), r"--dict .*nowhere: no such file"),
    "workers": (lambda _: ("--workers", 0), r"--workers 0: must be at least 1"),
    "no JSON": (broken_gpt2(lambda encoder, _: encoder.write_text("{")), r"encoder.json: is no JSON"),
    "bytes": (broken_gpt2(lambda encoder, _: encoder.write_text('{"a": 0}')), r"encoder.json: has no number for 255"),
    "twice": (broken_gpt2(lambda encoder, _: encoder.write_text('{"a": 1, "b": 1}')), r"encoder.json: must give each"),
    "version": (broken_gpt2(lambda _, merges: merges.write_text("t h\n")), r"vocab.bpe, line 1: is not #version"),
    "merge": (
        broken_gpt2(lambda _, merges: merges.write_text("#version\nt h\nq q\n")),
        r"vocab.bpe, line 3: is not two",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_leave_nothing(mistake, texts, tmp_path):
    flags, message = MISTAKES[mistake]
    with pytest.raises(SystemExit, match=f"^deepnet: error: .*{message}"):
        prepare(texts, tmp_path / "bin", *flags(tmp_path))
    assert not list(tmp_path.glob("bin*"))


TEXTS = {
    "missing": (None, r"changed: no such file"),
    "empty": (b"", r"changed: no text in it"),
    "blank": (b" \n\n", r"changed: no text in it"),
    "bad UTF-8": (b"fine\ncaf\xe9\n", r"changed, line 2: not UTF-8"),
}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("kind", TEXTS)
def test_text_is_checked_first(kind, place, texts, tmp_path):
    body, message = TEXTS[kind]
    if body is not None:
        (tmp_path / "changed").write_bytes(body)
    given = [tmp_path / "changed" if number == place else path for number, path in enumerate(texts)]
    with pytest.raises(SystemExit, match=message):
        prepare(given, tmp_path / "bin")
    assert not list(tmp_path.glob("bin*"))


def test_a_folder_in_the_way(texts, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mine").write_text("keep")
    with pytest.raises(SystemExit, match="is there and not empty"):
        prepare(texts, tmp_path / "bin", "--vocab", VOCAB)
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["mine"]


SETTINGS = {
    "{}": r'text.json: "bpe" must be one of sentencepiece, gpt2',
    '{"bpe": ["gpt2"]}': r'text.json: "bpe" must be one of',
    '{"bpe": "gpt2", "gpt2_encoder_json": "encoder.json"}': r"text.json: lacks 'gpt2_vocab_bpe'",
    '{"bpe": "sentencepiece", "sentencepiece_model": "nowhere"}': r"nowhere: no such file",
    "[]": r"text.json: must hold one JSON object",
}


@pytest.mark.parametrize("text", SETTINGS)
def test_settings_that_are_none(text, tmp_path):
    (tmp_path / "text.json").write_text(text)
    with pytest.raises(UserError, match=SETTINGS[text]):
        segmenter.read(tmp_path)


def test_data_without_settings(tmp_path):
    with pytest.raises(UserError, match=r"text.json: no such file; make the data with `deepnet prepare-lm`"):
        segmenter.read(tmp_path)
