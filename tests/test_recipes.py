"""Plans of every recipe in the registry, and the miniatures of their files."""

from __future__ import annotations

import re

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.data.miniature import ARCHIVES, archive, write
from deepnet_fairseq.data.recipes import RECIPES, Options

PUBLISHED = {  # facts that the plans state, beside their files and counts
    "iwslt14_de_en": (
        "dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz", "19,982,877 bytes, md5:10936dfdf616504ddbd844e91b94ef4a",
        "1 to 175 words", "10,000 BPE merges", "one training pair in 23", "lower-case", "train: 160,239",
        "valid: 7,283", "test: 6,750",
    ),
    "opus100": (
        "https://object.pouta.csc.fi/OPUS-100/v1.0/opus-100-corpus-de-en-v1.0.tar.gz",
        "67,205,361 bytes, sha256:aca2cb2f", "250,000 pieces",
    ),
    "m2m102": ("OPUS-CCMatrix/v1/moses/de-en.txt.zip", "flores101_dataset.tar.gz", "opus-100-corpus-de-en-v1.0.tar"),
}  # fmt: skip


@pytest.fixture
def asked(tmp_path):
    """Return the options and flags with which a recipe plans de-en: every recipe needs other ones."""
    text = tmp_path / "text"
    (text / "de-en").mkdir(parents=True)
    for lang in ("de", "en"):
        (text / "de-en" / f"train.{lang}").write_text("ja\n")

    def asked(recipe):
        chosen = {"pairs": ("de-en",)} if "pairs" in recipe.takes else {}
        chosen |= {"text": text} if recipe.name == "multilingual" else {}
        flags = [word for name in chosen for word in {"pairs": ("--pairs", "de-en"), "text": ("--from", str(text))}[name]]
        return Options(tmp_path / "dest", tmp_path, **chosen), flags

    return asked


@pytest.mark.parametrize("name", RECIPES)
def test_a_plan_names_files_and_counts_and_makes_nothing(name, asked, tmp_path, capsys):
    options, flags = asked(RECIPES[name])
    main(["prepare", name, str(options.dest), "--plan", *flags])
    plan, files = capsys.readouterr().out, RECIPES[name].files(options)
    facts = [fact for file in files for fact in (*file.urls, file.checksum or "no checksum known")]
    facts += [f"{what}: {count:,}" for what, count in RECIPES[name].expected.items()]
    assert [fact for fact in (*facts, *PUBLISHED.get(name, ())) if fact not in plan] == []
    assert bool(files) == ("files:" in plan) == (name != "multilingual")
    assert not options.dest.exists()


@pytest.mark.parametrize("name", RECIPES)
def test_every_file_has_a_miniature(name, asked):
    for file in RECIPES[name].files(asked(RECIPES[name])[0]):
        assert any(re.search(pattern, file.urls[0]) for pattern in ARCHIVES), file


def test_a_miniature_has_the_same_bytes_each_time_and_leaves_alone_what_is_there(tmp_path):
    (file,) = RECIPES["opus100"].files(Options(tmp_path, tmp_path, pairs=("an-en",)))
    path = write([file], tmp_path)[file.name]
    assert path.read_bytes() == archive(file.urls[0])
    path.write_bytes(b"mine")
    write([file], tmp_path)
    assert path.read_bytes() == b"mine"
