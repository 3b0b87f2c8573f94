"""Tests of `deepnet prepare text --like`: a second corpus with the pieces and the dictionary of a model."""

import argparse
import json

import pytest
import sentencepiece
import torch

from deepnet_fairseq import register
from deepnet_fairseq.cli import main
from deepnet_fairseq.data import digests
from deepnet_fairseq.data.language import make_corpus, write_corpus
from deepnet_fairseq.data.like import find_vocabulary
from deepnet_fairseq.data.lines import read_lines
from deepnet_fairseq.tools.export.ctranslate2 import write_ctranslate2
from deepnet_fairseq.tools.export.huggingface import write_huggingface
from deepnet_fairseq.tools.export.served import serve
from deepnet_fairseq.tools.export.transformer import fold_checkpoint

from ..support.corpora import SPLITS
from ..support.errors import assert_refused, refused
from ..support.prepared_again import copy_data, longer, renamed, reordered, save_start, trainer_of

LANGS = ("qaa", "qab")
MODEL = (
    "--arch", "deepnet_transformer_tiny", "--share-all-embeddings", "--encoder-layers", "2", "--decoder-layers", "2",
)  # fmt: skip
register()


@pytest.fixture(scope="module")
def first_run(data, tmp_path_factory):
    """Provide a folder with the data of a run in data/, and its checkpoint in run/."""
    folder = tmp_path_factory.mktemp("first")
    copy_data(data, folder / "data")
    save_start(folder / "run" / "checkpoint_last.pt", folder / "data", *MODEL)
    return folder


@pytest.fixture(scope="module")
def checkpoint(first_run):
    return first_run / "run" / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def second_text(tmp_path_factory):
    """Provide text of other sentences; three lines of valid.qaa have ж, which the first text does not have."""
    folder = tmp_path_factory.mktemp("second")
    write_corpus(make_corpus({"train": 40, "valid": 8, "test": 8}, seed=7, nouns=20, verbs=10), folder)
    valid = folder / "valid.qaa"
    lines = valid.read_text(encoding="utf-8").split("\n")
    lines[:3] = [f"ж{line}" for line in lines[:3]]
    valid.write_text("\n".join(lines), encoding="utf-8")
    return folder


def command_like(text, dest, like):
    """Return the words of `deepnet prepare text --like`."""
    prefixes = [str(text / split) for split in SPLITS]
    return ["prepare", "text", *LANGS, *prefixes, str(dest), "--like", str(like)]


@pytest.fixture(scope="module")
def second_data(second_text, checkpoint, tmp_path_factory):
    """Provide the data that are made of the second text like those of the first run's checkpoint."""
    dest = tmp_path_factory.mktemp("like") / "bin"
    main(command_like(second_text, dest, checkpoint))
    return dest


def symbols_in(path):
    """Return the symbols of a dictionary's file, without their counts."""
    return [line.rsplit(" ", 1)[0] for line in read_lines(path)]


def test_a_second_corpus_has_the_pieces_and_dictionaries_of_the_model(first_run, second_data):
    for name in ("spm.model", "dict.qaa.txt", "dict.qab.txt"):
        assert (second_data / name).read_bytes() == (first_run / "data" / name).read_bytes()


def test_characters_that_the_model_has_never_seen_are_told(second_text, checkpoint, tmp_path, capsys):
    main(command_like(second_text, tmp_path / "bin", checkpoint))

    (told,) = [line for line in capsys.readouterr().out.split("\n") if "valid.qaa: " in line and "ж" in line]
    assert "3 of 8" in told


def test_the_checkpoint_is_trained_further_on_the_second_corpus(checkpoint, second_data, second_text, tmp_path):
    trainer = trainer_of(second_data, *MODEL, save_dir=tmp_path / "save")
    trainer.load_checkpoint(str(checkpoint), reset_optimizer=True)
    trainer.task.load_dataset("train")
    sample = trainer.task.datasets["train"][0]["source"]

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(second_data / "spm.model"))
    cut = pieces.encode(next(read_lines(second_text / "train.qaa")), out_type=str)
    dictionary = trainer.task.source_dictionary
    assert sample.tolist() == [*map(dictionary.index, cut), dictionary.eos()]


def assert_vocabulary_of_first_run(place, first_run, folder):
    """Check the pieces and the symbols that are found in a place; the dictionaries are written to `folder`."""
    known = find_vocabulary(place, LANGS)
    assert known.pieces.read_bytes() == (first_run / "data" / "spm.model").read_bytes()

    dictionaries = known.write_dictionaries(folder)
    assert dictionaries.keys() == set(LANGS)
    for path in dictionaries.values():
        assert symbols_in(path) == symbols_in(first_run / "data" / "dict.qaa.txt")


@pytest.mark.parametrize("name", ["run", "data"])
def test_a_run_s_folders_give_its_vocabulary(name, first_run, tmp_path):
    assert_vocabulary_of_first_run(first_run / name, first_run, tmp_path)


@pytest.mark.parametrize(
    ("library", "write"),
    [("ctranslate2", lambda *to: write_ctranslate2(*to, None)), ("transformers", write_huggingface)],
    ids=["ctranslate2", "transformers"],
)
def test_an_exported_folder_gives_its_model_s_vocabulary(library, write, first_run, checkpoint, tmp_path):
    pytest.importorskip(library)
    write(serve(fold_checkpoint(str(checkpoint)), None, None), tmp_path / "exported")

    assert_vocabulary_of_first_run(tmp_path / "exported", first_run, tmp_path)


def test_tags_of_languages_in_an_export_are_left_out(tmp_path):
    """They are added by the task, not by the dictionary."""
    described = {"pieces": "sentencepiece", "symbols": {"de": "__de__", "en": "__en__"}}
    symbols = ["<s>", "<blank>", "</s>", "<unk>", "a", "b", "__de__", "__en__"]
    (tmp_path / "spm.model").write_bytes(b"pieces")
    (tmp_path / "translation.json").write_text(json.dumps(described))
    (tmp_path / "shared_vocabulary.json").write_text(json.dumps(symbols))

    known = find_vocabulary(tmp_path, ("de", "en"))

    assert known.dictionaries == {"de": ["a 1", "b 1"], "en": ["a 1", "b 1"]}


def change_dictionary(path, change):
    """Change the lines of a dictionary's file."""
    lines = change(list(read_lines(path)))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def data_with_two_dictionaries(first_run, tmp_path):
    """Provide data whose dictionary of qab has eight symbols more than that of qaa."""
    data = copy_data(first_run / "data", tmp_path / "two")
    change_dictionary(data / "dict.qab.txt", longer)
    return data


def test_each_side_keeps_its_own_dictionary(data_with_two_dictionaries):
    dictionaries = find_vocabulary(data_with_two_dictionaries, LANGS).dictionaries

    assert len(dictionaries["qab"]) == len(dictionaries["qaa"]) + 8


def test_another_language_is_refused_if_the_model_s_have_several_dictionaries(data_with_two_dictionaries):
    with refused(f"--like {data_with_two_dictionaries}") as caught:
        find_vocabulary(data_with_two_dictionaries, ("qaa", "de"))

    assert "dict.de.txt" in caught.value.way_out


def test_another_language_takes_the_dictionary_that_all_others_share(first_run):
    dictionaries = find_vocabulary(first_run / "data", ("de", "qab")).dictionaries

    assert dictionaries["de"] == list(read_lines(first_run / "data" / "dict.qaa.txt"))


def moved_checkpoint(checkpoint, path):
    """Write a checkpoint whose data are gone."""
    state = torch.load(checkpoint)
    state["cfg"]["task"]["data"] = str(path.parent / "gone")
    torch.save(state, path)


def checkpoint_without_data(path):
    """Write a checkpoint whose task names no data."""
    torch.save({"args": argparse.Namespace(task="translation"), "model": {}}, path)


def data_cut_by_codes(data, folder):
    """Write data that were cut by BPE codes, not by SentencePiece."""
    copy_data(data, folder)
    (folder / "spm.model").unlink()
    (folder / "codes").write_text("#version: 0.2\n")


@pytest.fixture
def places_without_vocabulary(first_run, checkpoint, tmp_path):
    """Provide a folder of places that do not say what a model's vocabulary is."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "noise.pt").write_bytes(b"noise")
    checkpoint_without_data(tmp_path / "no_data.pt")
    moved_checkpoint(checkpoint, tmp_path / "moved.pt")
    data_cut_by_codes(first_run / "data", tmp_path / "codes")
    return tmp_path


PLACES = {  # name of a place -> what the refusal names besides
    "missing": "missing",
    "empty": "empty",
    "noise.pt": "noise.pt",
    "no_data.pt": "no_data.pt",
    "moved.pt": "gone",  # the data
    "codes": "--srcdict",  # of fairseq-preprocess, which is the way then
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_without_a_vocabulary_is_refused(name, places_without_vocabulary, second_text, tmp_path):
    place = places_without_vocabulary / name
    command = command_like(second_text, tmp_path / "never", place)

    assert_refused(f"--like {place}", *command)
    assert_refused(PLACES[name], *command)

    assert not (tmp_path / "never").exists()


def test_a_size_of_the_vocabulary_does_not_go_with_like(second_text, checkpoint, tmp_path):
    assert_refused("--vocab", *command_like(second_text, tmp_path / "never", checkpoint), "--vocab", "100")


@pytest.mark.parametrize("change", [renamed, reordered])
def test_a_checkpoint_whose_data_were_prepared_again_is_refused(first_run, tmp_path, change):
    """The folder that it names holds another vocabulary than the checkpoint's by now."""
    data = copy_data(first_run / "data", tmp_path / "data")
    save_start(tmp_path / "run.pt", data, *MODEL)
    assert find_vocabulary(tmp_path / "run.pt", LANGS).pieces == data / "spm.model"

    for path in data.glob("dict.*.txt"):
        change_dictionary(path, change)

    with refused(f"--like {tmp_path / 'run.pt'}") as caught:
        find_vocabulary(tmp_path / "run.pt", LANGS)
    assert str(data) in caught.value.way_out


def test_a_second_text_of_a_language_model_has_the_first_s_vocabulary(second_text, tmp_path):
    """`prepare lm` with the first text's --spm and --dict gives the same vocabulary, by digest."""
    first = tmp_path / "first"
    text = [str(second_text / f"{split}.qaa") for split in SPLITS]
    main(["prepare", "lm", *text, str(first), "--vocab", "80", "--workers", "1"])

    second = tmp_path / "second"
    other_text = [str(second_text / f"{split}.qab") for split in SPLITS]
    flags = ("--spm", str(first / "spm.model"), "--dict", str(first / "dict.txt"))
    main(["prepare", "lm", *other_text, str(second), *flags, "--workers", "1"])

    digest = digests.of_cutting(digests.cutting_files(str(first)))
    assert digest is not None
    assert digests.of_cutting(digests.cutting_files(str(second))) == digest
    assert symbols_in(second / "dict.txt") == symbols_in(first / "dict.txt")
