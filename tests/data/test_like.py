"""Tests of `deepnet prepare text --like`: a second corpus with the pieces and the dictionary of a model.

The model is named by its checkpoint, the folder of its run or of its data, or the folder of its export.
"""

from __future__ import annotations

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
from ..support.errors import assert_refused, refusal, refused
from ..support.prepared_again import copy_data, longer, renamed, reordered, save_start, trainer_of

LANGS = ("qaa", "qab")
MODEL = (
    "--arch", "deepnet_transformer_tiny", "--share-all-embeddings", "--encoder-layers", "2", "--decoder-layers", "2",
)  # fmt: skip
register()


@pytest.fixture(scope="module")
def first_run(data, tmp_path_factory):
    """Provide a folder with a run's data in data/ and its checkpoint in run/. The training has made no update."""
    folder = tmp_path_factory.mktemp("first")
    copy_data(data, folder / "data")
    save_start(folder / "run" / "checkpoint_last.pt", folder / "data", *MODEL)
    return folder


@pytest.fixture(scope="module")
def checkpoint(first_run):
    """Provide the path of the checkpoint of the first run."""
    return first_run / "run" / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def second_text(tmp_path_factory):
    """Provide the folder of a text of other sentences; three lines of valid.qaa have ж, which the first text lacks."""
    folder = tmp_path_factory.mktemp("second")
    write_corpus(make_corpus({"train": 40, "valid": 8, "test": 8}, seed=7, nouns=20, verbs=10), folder)
    valid = folder / "valid.qaa"
    lines = valid.read_text(encoding="utf-8").split("\n")
    lines[:3] = [f"ж{line}" for line in lines[:3]]
    valid.write_text("\n".join(lines), encoding="utf-8")
    return folder


def command_like(text, dest, like):
    """Return the words after `deepnet` that prepare the text in a folder like that of a model."""
    prefixes = [str(text / split) for split in SPLITS]
    return ["prepare", "text", *LANGS, *prefixes, str(dest), "--like", str(like)]


@pytest.fixture(scope="module")
def second_data(second_text, checkpoint, tmp_path_factory):
    """Provide the folder of data of the second text, with the vocabulary of the first run's checkpoint."""
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
    """Three of the 8 lines of valid.qaa have ж."""
    main(command_like(second_text, tmp_path / "bin", checkpoint))

    (told,) = [line for line in capsys.readouterr().out.split("\n") if "valid.qaa: " in line]
    assert "ж" in told
    assert "3 of 8" in told


def test_the_checkpoint_is_trained_further_on_the_second_corpus(checkpoint, second_data, second_text, tmp_path):
    """The training's first sample is the first sentence of the second text, in the numbers of the model's pieces."""
    trainer = trainer_of(second_data, *MODEL, save_dir=tmp_path / "save")
    trainer.load_checkpoint(str(checkpoint), reset_optimizer=True)
    trainer.task.load_dataset("train")
    sample = trainer.task.datasets["train"][0]["source"]

    processor = sentencepiece.SentencePieceProcessor(model_file=str(second_data / "spm.model"))
    pieces = processor.encode(next(read_lines(second_text / "train.qaa")), out_type=str)
    dictionary = trainer.task.source_dictionary
    assert sample.tolist() == [*map(dictionary.index, pieces), dictionary.eos()]


def assert_vocabulary_of_first_run(place, first_run, folder):
    """Check that the vocabulary that find_vocabulary finds in a place is that of the first run.

    folder: to which the dictionaries are written
    """
    known = find_vocabulary(place, LANGS)
    assert known.pieces.read_bytes() == (first_run / "data" / "spm.model").read_bytes()

    dictionaries = known.write_dictionaries(folder)
    assert dictionaries.keys() == set(LANGS)
    for path in dictionaries.values():
        assert symbols_in(path) == symbols_in(first_run / "data" / "dict.qaa.txt")


@pytest.mark.parametrize("name", ["run", "data"])
def test_folders_of_a_run_give_its_vocabulary(name, first_run, tmp_path):
    assert_vocabulary_of_first_run(first_run / name, first_run, tmp_path)


EXPORTERS = {  # library -> function that writes an exported model to a folder
    "ctranslate2": lambda served, folder: write_ctranslate2(served, folder, None),  # None: not quantised
    "transformers": write_huggingface,
}


@pytest.mark.parametrize("library", EXPORTERS)
def test_an_exported_folder_gives_its_model_s_vocabulary(library, first_run, checkpoint, tmp_path):
    pytest.importorskip(library)
    served = serve(fold_checkpoint(str(checkpoint)), data=None, subwords=None)  # None: those of the run
    EXPORTERS[library](served, tmp_path / "exported")

    assert_vocabulary_of_first_run(tmp_path / "exported", first_run, tmp_path)


def test_tags_of_languages_in_an_export_are_left_out(tmp_path):
    """A CTranslate2 export of a model of many pairs lists tags and special symbols with its vocabulary.

    The files of dictionaries must have neither, because fairseq's task adds both. The folder has the three files that
    are read of such an export.
    """
    described = {"pieces": "sentencepiece", "symbols": {"de": "__de__", "en": "__en__"}}
    symbols = ["<s>", "<blank>", "</s>", "<unk>", "a", "b", "__de__", "__en__"]
    (tmp_path / "spm.model").write_bytes(b"pieces")
    (tmp_path / "translation.json").write_text(json.dumps(described))
    (tmp_path / "shared_vocabulary.json").write_text(json.dumps(symbols))

    known = find_vocabulary(tmp_path, ("de", "en"))

    assert known.dictionaries == {"de": ["a 1", "b 1"], "en": ["a 1", "b 1"]}


@pytest.mark.parametrize("content", ['["<s>", "<bla', "3"], ids=["cut off", "a number"])
def test_an_export_with_a_broken_vocabulary_is_refused(content, tmp_path):
    (tmp_path / "spm.model").write_bytes(b"pieces")
    (tmp_path / "translation.json").write_text('{"pieces": "sentencepiece"}')
    (tmp_path / "shared_vocabulary.json").write_text(content)

    with refused(f"--like {tmp_path}") as caught:
        find_vocabulary(tmp_path, LANGS)

    assert "shared_vocabulary.json" in caught.value.way_out


def change_dictionary(path, change):
    """Change the lines of a dictionary's file by a function."""
    lines = change(list(read_lines(path)))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def data_with_two_dictionaries(first_run, tmp_path):
    """Provide the folder of data whose dictionary of qab has eight symbols more than that of qaa."""
    data = copy_data(first_run / "data", tmp_path / "two")
    change_dictionary(data / "dict.qab.txt", longer)
    return data


def test_each_language_keeps_its_own_dictionary(data_with_two_dictionaries):
    dictionaries = find_vocabulary(data_with_two_dictionaries, LANGS).dictionaries

    assert len(dictionaries["qab"]) == len(dictionaries["qaa"]) + 8


def test_a_new_language_is_refused_if_the_model_s_have_several_dictionaries(data_with_two_dictionaries):
    """It is not known which of the dictionaries the new language should have."""
    with refused(f"--like {data_with_two_dictionaries}") as caught:
        find_vocabulary(data_with_two_dictionaries, ("qaa", "de"))

    assert "dict.de.txt" in caught.value.way_out


def test_a_new_language_takes_the_dictionary_that_all_others_share(first_run):
    dictionaries = find_vocabulary(first_run / "data", ("de", "qab")).dictionaries

    assert dictionaries["de"] == list(read_lines(first_run / "data" / "dict.qaa.txt"))


def write_moved_checkpoint(checkpoint, path):
    """Write a copy of a checkpoint to `path` that names a folder of data which is gone."""
    state = torch.load(checkpoint)
    state["cfg"]["task"]["data"] = str(path.parent / "gone")
    torch.save(state, path)


def write_checkpoint_without_data(path):
    """Write a checkpoint whose task names no data."""
    torch.save({"args": argparse.Namespace(task="translation"), "model": {}}, path)


def write_data_cut_by_codes(data, folder):
    """Write a copy of data to `folder` as if they were cut by BPE codes, not by SentencePiece."""
    copy_data(data, folder)
    (folder / "spm.model").unlink()
    (folder / "codes").write_text("#version: 0.2\n")


@pytest.fixture
def places_without_vocabulary(first_run, checkpoint, tmp_path):
    """Provide a folder of files and folders, named as in PLACES, that do not tell a model's vocabulary."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "noise.pt").write_bytes(b"noise")
    write_checkpoint_without_data(tmp_path / "no_data.pt")
    write_moved_checkpoint(checkpoint, tmp_path / "moved.pt")
    write_data_cut_by_codes(first_run / "data", tmp_path / "codes")
    return tmp_path


PLACES = {  # name of a place -> what the refusal names besides the place
    "missing": "",
    "empty": "",
    "noise.pt": "",
    "no_data.pt": "",
    "moved.pt": "gone",  # the folder of data
    "codes": "--srcdict",  # of fairseq-preprocess, which has to be used then
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_without_a_vocabulary_is_refused(name, places_without_vocabulary, second_text, tmp_path):
    place = places_without_vocabulary / name

    line = refusal(*command_like(second_text, tmp_path / "never", place))

    assert f"--like {place}" in line
    assert PLACES[name] in line
    assert not (tmp_path / "never").exists()


def test_the_flag_vocab_does_not_go_with_like(second_text, checkpoint, tmp_path):
    assert_refused("--vocab", *command_like(second_text, tmp_path / "never", checkpoint), "--vocab", "100")


@pytest.mark.parametrize("change", [renamed, reordered])
def test_a_checkpoint_whose_data_were_prepared_again_is_refused(first_run, tmp_path, change):
    """The folder that the checkpoint names holds another vocabulary now than when the checkpoint was written."""
    data = copy_data(first_run / "data", tmp_path / "data")
    save_start(tmp_path / "run.pt", data, *MODEL)
    assert find_vocabulary(tmp_path / "run.pt", LANGS).pieces == data / "spm.model"

    for path in data.glob("dict.*.txt"):
        change_dictionary(path, change)

    with refused(f"--like {tmp_path / 'run.pt'}") as caught:
        find_vocabulary(tmp_path / "run.pt", LANGS)

    assert str(data) in caught.value.way_out


def test_plain_text_with_spm_and_dict_of_another_has_its_vocabulary(second_text, tmp_path):
    """`prepare lm` has no --like: --spm and --dict take the two files. The text in qab gets qaa's vocabulary."""
    first = tmp_path / "first"
    of_qaa = [str(second_text / f"{split}.qaa") for split in SPLITS]
    main(["prepare", "lm", *of_qaa, str(first), "--vocab", "80", "--workers", "1"])

    second = tmp_path / "second"
    of_qab = [str(second_text / f"{split}.qab") for split in SPLITS]
    flags = ("--spm", str(first / "spm.model"), "--dict", str(first / "dict.txt"))
    main(["prepare", "lm", *of_qab, str(second), *flags, "--workers", "1"])

    digest_of_first = digests.of_cutting(digests.cutting_files(str(first)))
    digest_of_second = digests.of_cutting(digests.cutting_files(str(second)))
    assert digest_of_first is not None
    assert digest_of_second == digest_of_first
    assert symbols_in(second / "dict.txt") == symbols_in(first / "dict.txt")
