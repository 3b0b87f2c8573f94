"""Tests that data of another vocabulary than a checkpoint's are refused wherever the two meet.

A vocabulary is the dictionaries of source and target, and the file that cut the text into pieces, spm.model or BPE
codes. Checkpoints hold digests (hashes) of them. The data of a checkpoint's run are those that it was trained on.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq import register
from deepnet_fairseq.data import digests
from deepnet_fairseq.data.parallel_text import sentencepiece_model
from deepnet_fairseq.errors import UserError, causes
from deepnet_fairseq.plugin.checkpoints import vocabulary
from deepnet_fairseq.tools import averaging, translation
from deepnet_fairseq.tools.export.served import serve
from deepnet_fairseq.tools.export.transformer import fold_checkpoint, write_transformer

from ..golden.training import MULTILINGUAL_TASK
from ..support import ranks
from ..support.errors import refused
from ..support.helpers import USER_DIR, run
from ..support.prepared_again import (
    FLAGS,
    copy_data,
    copy_source_side,
    longer,
    recounted,
    renamed,
    reordered,
    save_start,
    trainer_of,
    without_digests,
)

ENCODER = ("--encoder-layers", "2", "--encoder-embed-dim", "16")
DECODER = ("--decoder-layers", "2", "--decoder-embed-dim", "16")
PAIR = ("--arch", "deepnet_transformer_tiny", "--share-all-embeddings", *ENCODER, *DECODER)
TEXT = ("--tokens-per-sample", "32", "--criterion")
MANY_DATA, *MANY_FLAGS = MULTILINGUAL_TASK  # binarised data de-en without spm.model, and the flags of their task
KINDS = {  # kind of model, by its task -> flags
    "translation": PAIR,
    "translation_multi_simple_epoch": (*PAIR, *MANY_FLAGS),
    "language_modeling": ("--task", "language_modeling", "--arch", "deepnet_lm", *DECODER, *TEXT, "cross_entropy"),
    "masked_lm": ("--task", "masked_lm", "--arch", "deepnet_masked_lm", *ENCODER, *TEXT, "masked_lm"),
}
WITH_PIECES = ("translation", "language_modeling", "masked_lm")  # kinds whose data have an spm.model
OTHER_DICTIONARIES = {"other symbols": renamed, "another order": reordered, "more symbols": longer}
register()


class Trained:
    """A model, its data, and its checkpoint `path` of a training that has made no update.

    kind: one of KINDS
    folder: of data, their changed copies, and the run
    data: binarised data of the run
    flags: of the training
    """

    def __init__(self, kind: str, data: Path, folder: Path):
        """Make the data, the model and its checkpoint in `folder`; data: a translator's, of one dictionary."""
        self.kind = kind
        self.folder = folder
        self.flags = KINDS[kind]
        if kind == "translation":
            self.data = copy_data(data, folder / "data")
        elif kind == "translation_multi_simple_epoch":
            self.data = copy_data(MANY_DATA, folder / "data")
        else:
            self.data = copy_source_side(data, folder / "data")
        self.path = folder / "run" / "checkpoint_last.pt"
        self.model = save_start(self.path, self.data, *self.flags).get_model()

    def copy_of_data(self, name: str, change=None, pieces: bytes | None = None) -> Path:
        """Return a copy of the data, with changed dictionaries or another spm.model; made at its name's first call.

        change: function that changes the lines of a dictionary; pieces: bytes of the other spm.model
        """
        folder = self.folder / name.replace(" ", "-")
        return folder if folder.exists() else copy_data(self.data, folder, change, pieces)

    def data_with(self, change: str) -> Path:
        """Return a copy of the data with another dictionary; change: one of OTHER_DICTIONARIES."""
        return self.copy_of_data(change, OTHER_DICTIONARIES[change])

    def new_trainer(self, data: Path, *flags: str):
        """Return the trainer of a new training on `data`, which has loaded no checkpoint."""
        return trainer_of(data, *self.flags, *flags, save_dir=self.folder / "never")

    def start_from(self, path: Path, data: Path, *flags: str):
        """Load a checkpoint as a training on `data` does that starts from it; return the trainer."""
        trainer = self.new_trainer(data, *flags)
        trainer.load_checkpoint(str(path), reset_optimizer=True, reset_lr_scheduler=True)
        return trainer

    def use(self, path: Path, data: Path) -> None:
        """Load a checkpoint with data as fairseq-generate, fairseq-validate and the hub's interface do."""
        languages = {"source_lang": "de", "target_lang": "en"} if "multi" in self.kind else {}
        checkpoint_utils.load_model_ensemble_and_task([str(path)], {"data": str(data)} | languages)


@pytest.fixture(scope="module")
def trained_as(data, tmp_path_factory) -> Callable[[str], Trained]:
    """Provide a function that returns the Trained of a kind, one of KINDS, made when it is asked for first."""
    known: dict[str, Trained] = {}

    def of_kind(kind: str) -> Trained:
        if kind not in known:
            known[kind] = Trained(kind, data, tmp_path_factory.mktemp(kind))
        return known[kind]

    return of_kind


@pytest.fixture
def vocabulary_warnings(caplog, monkeypatch) -> Callable[[], list[str]]:
    """Provide a function that returns the warnings about vocabularies that the package has logged."""
    monkeypatch.setattr(logging.getLogger("deepnet_fairseq"), "propagate", True)  # programs turn it off

    def read() -> list[str]:
        found = [record for record in caplog.records if record.name == vocabulary.log.name]
        return [record.getMessage() for record in found if record.levelno >= logging.WARNING]

    return read


@contextmanager
def vocabulary_refused(subject: object, *facts: object) -> Iterator[None]:
    """Check that the block raises a UserError about `subject` that names the facts, maybe wrapped by fairseq."""
    with pytest.raises(Exception) as caught:
        yield
    errors = [error for error in causes(caught.value) if isinstance(error, UserError)]
    assert errors, caught.value
    line = str(errors[0])
    assert "\n" not in line
    assert str(subject) in errors[0].subject, line
    for fact in facts:
        assert str(fact) in line


def letters_and_numbers(lines: int) -> list[str]:
    """Return lines of two letters and a number, as "ab 12", to learn a SentencePiece model from."""
    text = []
    for number in range(lines):
        first = "abcdefg"[number % 7]
        second = "abcde"[number % 5]
        text.append(f"{first}{second} {number}")
    return text


def other_pieces() -> bytes:
    """Return a SentencePiece model of other text than that of the data."""
    return sentencepiece_model(letters_and_numbers(200), vocab=40)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", OTHER_DICTIONARIES)
def test_a_training_on_data_with_another_dictionary_is_refused(trained_as, kind, change):
    trained = trained_as(kind)
    other = trained.data_with(change)

    with vocabulary_refused(trained.path, other, "--new-vocabulary"):
        trained.start_from(trained.path, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", OTHER_DICTIONARIES)
def test_a_checkpoint_with_data_of_another_dictionary_is_refused(trained_as, kind, change):
    """The refusal names the data of the checkpoint's run, which have the right dictionary."""
    trained = trained_as(kind)
    other = trained.data_with(change)

    with vocabulary_refused(trained.path, other, trained.data):
        trained.use(trained.path, other)


SAME_VOCABULARY = {  # data with the vocabulary of a Trained -> how to get them
    "own data": lambda trained: trained.data,
    "a copy": lambda trained: trained.copy_of_data("copy"),
    "other counts": lambda trained: trained.copy_of_data("counts", recounted),  # how often symbols occur
}
load_to_train_or_use = pytest.mark.parametrize("load", [Trained.start_from, Trained.use], ids=["train", "use"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("same", SAME_VOCABULARY)
@load_to_train_or_use
def test_the_same_vocabulary_is_taken(load, trained_as, kind, same, vocabulary_warnings):
    trained = trained_as(kind)
    data = SAME_VOCABULARY[same](trained)

    load(trained, trained.path, data)

    assert vocabulary_warnings() == []


@pytest.mark.parametrize("kind", WITH_PIECES)
@load_to_train_or_use
def test_text_that_another_sentencepiece_model_has_cut_is_refused(load, trained_as, kind):
    """The other data have the same dictionary."""
    trained = trained_as(kind)
    other = trained.copy_of_data("pieces", pieces=other_pieces())

    with vocabulary_refused(trained.path, "pieces"):
        load(trained, trained.path, other)


@pytest.mark.parametrize("kind", WITH_PIECES)
def test_text_that_was_cut_by_unknown_means_is_taken(trained_as, kind, tmp_path):
    """The data have the same dictionary, and no spm.model."""
    trained = trained_as(kind)
    unknown = copy_data(trained.data, tmp_path / "no pieces")
    (unknown / "spm.model").unlink()

    trained.start_from(trained.path, unknown)


@pytest.mark.parametrize("kind", KINDS)
@load_to_train_or_use
def test_a_checkpoint_without_digests_is_compared_by_the_data_of_its_run(load, trained_as, kind, tmp_path):
    trained = trained_as(kind)
    old = without_digests(trained.path, tmp_path / "old.pt")
    other = trained.data_with("another order")

    with vocabulary_refused(old, other):
        load(trained, old, other)


def test_a_checkpoint_without_digests_that_was_saved_again_is_compared_by_the_data_of_its_run(trained_as, tmp_path):
    """A script has loaded the checkpoint by fairseq's function, and saved it again.

    Loading puts the checkpoint's origin, without digests, into its task_state.
    """
    trained = trained_as("translation")
    old = without_digests(trained.path, tmp_path / "old.pt")
    again = tmp_path / "again.pt"
    torch.save(checkpoint_utils.load_checkpoint_to_cpu(str(old)), again)
    other = trained.data_with("another order")

    with vocabulary_refused(again, other):
        trained.use(again, other)


@pytest.mark.parametrize("entry", [{}, {"source": None}, {"digests": {}}, {"digests": None}, None])
def test_a_checkpoint_whose_digests_are_all_unknown_has_none(entry):
    assert digests.recorded({digests.KEY: entry}) is None


def test_a_known_digest_of_one_dictionary_is_read_from_the_digests_and_from_an_origin():
    known = {"source": None, "target": "abc", "pieces": None}

    in_file = digests.recorded({digests.KEY: {"target": "abc"}})
    in_origin = digests.recorded({digests.KEY: {"file": "old.pt", "digests": {"target": "abc"}}})

    assert in_file == known
    assert in_origin == known


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("same", ["own data", "a copy"])
def test_a_checkpoint_without_digests_takes_its_own_vocabulary(trained_as, kind, same, vocabulary_warnings, tmp_path):
    trained = trained_as(kind)
    old = without_digests(trained.path, tmp_path / "old.pt")

    trained.start_from(old, SAME_VOCABULARY[same](trained))

    assert vocabulary_warnings() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_cannot_be_compared_gives_one_warning(trained_as, kind, vocabulary_warnings, tmp_path):
    """The checkpoint has no digests, and the data of its run are gone."""
    trained = trained_as(kind)
    gone = tmp_path / "gone"
    old = without_digests(trained.path, tmp_path / "old.pt", data=str(gone))

    trained.start_from(old, trained.data_with("another order"))

    (warning,) = vocabulary_warnings()
    assert str(old) in warning
    assert str(gone) in warning


def test_translating_with_the_data_of_another_vocabulary_is_refused(trained_as):
    trained = trained_as("translation")
    other = trained.data_with("another order")

    with vocabulary_refused(trained.path, f"--data {other}", "--like"):
        translation.load(str(trained.path), data=str(other))


def test_translating_with_another_sentencepiece_model_is_refused(trained_as, tmp_path):
    trained = trained_as("translation")
    subwords = tmp_path / "spm.model"
    subwords.write_bytes(other_pieces())

    with vocabulary_refused(trained.path, f"--subwords {subwords}"):
        translation.load(str(trained.path), subwords=str(subwords))


@pytest.mark.parametrize("kind", ["translation", "language_modeling"])
def test_exporting_with_the_data_of_another_vocabulary_is_refused(trained_as, kind):
    trained = trained_as(kind)
    other = trained.data_with("another order")
    folded = fold_checkpoint(str(trained.path))

    with vocabulary_refused(trained.path, f"--data {other}"):
        serve(folded, data=str(other), subwords=None)


def test_exporting_with_a_copy_of_the_model_s_data_is_possible(trained_as):
    trained = trained_as("translation")
    folded = fold_checkpoint(str(trained.path))

    served = serve(folded, data=str(trained.copy_of_data("copy")), subwords=None)

    assert served.text is not None


def test_exporting_with_the_model_s_own_sentencepiece_model_is_possible(trained_as):
    trained = trained_as("translation")
    folded = fold_checkpoint(str(trained.path))

    served = serve(folded, data=None, subwords=str(trained.data / "spm.model"))

    assert served.text is not None


def test_an_export_to_fairseq_s_transformer_keeps_the_vocabulary(trained_as, tmp_path):
    trained = trained_as("translation")
    other = trained.data_with("another order")
    exported = tmp_path / "plain.pt"

    write_transformer(fold_checkpoint(str(trained.path)), exported, half=False)

    with vocabulary_refused(exported, other):
        trained.use(exported, other)


def test_the_average_of_checkpoints_keeps_their_vocabulary(trained_as, tmp_path):
    """The average has digests if one of the checkpoints has them."""
    trained = trained_as("translation")
    old = without_digests(trained.path, tmp_path / "old.pt")

    averaging.average([old, trained.path], tmp_path / "mean.pt")

    of_checkpoint = torch.load(trained.path)["task_state"][digests.KEY]
    of_average = torch.load(tmp_path / "mean.pt")["task_state"]
    assert of_average == {digests.KEY: of_checkpoint}


def test_the_average_of_checkpoints_without_digests_has_no_digests(trained_as, tmp_path):
    old = without_digests(trained_as("translation").path, tmp_path / "old.pt")

    averaging.average([old, old], tmp_path / "mean.pt")

    assert torch.load(tmp_path / "mean.pt")["task_state"] == {}


def test_averaging_checkpoints_of_two_vocabularies_is_refused(trained_as, tmp_path):
    trained = trained_as("translation")
    save_start(tmp_path / "other.pt", trained.data_with("another order"), *trained.flags)

    with refused(tmp_path / "other.pt") as caught:
        averaging.average([trained.path, tmp_path / "other.pt"], tmp_path / "never.pt")

    assert "dictionary" in caught.value.way_out
    assert not (tmp_path / "never.pt").exists()


def rows_of_symbols(data: Path) -> dict[str, int]:
    """Return symbol -> its row in the embeddings of a model of these data.

    A mask and tags of languages, which tasks add behind the symbols of the dictionary, are left out.
    """
    first_dictionary = sorted(data.glob("dict*.txt"))[0]  # the others are the same
    lines = first_dictionary.read_text(encoding="utf-8").splitlines()
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *(line.rsplit(" ", 1)[0] for line in lines)]
    return {symbol: row for row, symbol in enumerate(symbols)}


def with_other_weights(trained: Trained, path: Path) -> Path:
    """Write a copy of a checkpoint to `path` in which every parameter is 1 more; return `path`.

    The parameters of a new training are drawn with the seed of the checkpoint's own, which would hide what is loaded.
    """
    state = torch.load(trained.path)
    for name, _ in trained.model.named_parameters(remove_duplicate=False):  # a shared one has several names
        state["model"][name] = state["model"][name] + 1
    torch.save(state, path)
    return path


def kinds_with_other_dictionaries():
    """Return each kind of model with each change of the dictionary.

    By default translation is tried with all changes, and the other kinds with "more symbols" alone.
    """
    cases = []
    for kind, change in product(KINDS, OTHER_DICTIONARIES):
        by_default = kind == "translation" or change == "more symbols"
        cases.append(pytest.param(kind, change, marks=() if by_default else pytest.mark.smoke))
    return cases


@pytest.mark.parametrize(("kind", "change"), kinds_with_other_dictionaries())
def test_a_new_vocabulary_keeps_the_embeddings_of_common_symbols(trained_as, kind, change, tmp_path):
    """Rows of embeddings move with their symbols. Rows of new symbols are as drawn. All else is the checkpoint's."""
    trained = trained_as(kind)
    other = trained.data_with(change)
    checkpoint = with_other_weights(trained, tmp_path / "checkpoint.pt")
    saved = torch.load(checkpoint)["model"]
    drawn = trained.new_trainer(other).get_model().state_dict()  # the seed is always the same

    started = trained.start_from(checkpoint, other, "--new-vocabulary").get_model().state_dict()

    embeddings = started.keys() & vocabulary.BY_SYMBOL.keys()  # and what else has a row for each symbol
    assert embeddings
    for name in started.keys() - embeddings:
        assert torch.equal(started[name], saved[name]), name

    rows_before = rows_of_symbols(trained.data)
    for name in embeddings:
        for symbol, row in rows_of_symbols(other).items():
            expected = saved[name][rows_before[symbol]] if symbol in rows_before else drawn[name][row]
            assert torch.equal(started[name][row], expected), (name, symbol)


def test_a_new_vocabulary_does_not_go_with_an_old_optimiser_s_state(trained_as):
    trained = trained_as("translation")
    trainer = trained.new_trainer(trained.data_with("another order"), "--new-vocabulary")

    with vocabulary_refused("--new-vocabulary", "--reset-optimizer"):
        trainer.load_checkpoint(str(trained.path))

    assert trainer.get_model().rows is None  # a later load moves no rows


def test_a_new_vocabulary_does_not_go_with_averaged_weights(trained_as):
    trained = trained_as("translation")
    other = trained.data_with("another order")

    with vocabulary_refused("--new-vocabulary", "--store-ema"):
        trained.start_from(trained.path, other, "--new-vocabulary", "--store-ema")


def test_new_vocabulary_needs_no_reset_optimizer_if_it_is_the_old_one(trained_as, tmp_path):
    trained = trained_as("translation")
    checkpoint = with_other_weights(trained, tmp_path / "checkpoint.pt")
    trainer = trained.new_trainer(trained.data, "--new-vocabulary")

    trainer.load_checkpoint(str(checkpoint))  # with the optimiser's state

    saved = torch.load(checkpoint)["model"]
    started = trainer.get_model().state_dict()
    assert torch.equal(started["encoder.embed_tokens.weight"], saved["encoder.embed_tokens.weight"])


def test_a_new_vocabulary_keeps_no_embedding_if_the_old_data_are_gone(trained_as, tmp_path):
    trained = trained_as("translation")
    other = trained.data_with("another order")
    state = torch.load(with_other_weights(trained, tmp_path / "moved.pt"))
    state["cfg"]["task"]["data"] = str(tmp_path / "gone")
    torch.save(state, tmp_path / "moved.pt")

    started = trained.start_from(tmp_path / "moved.pt", other, "--new-vocabulary").get_model().state_dict()

    drawn = trained.new_trainer(other).get_model().state_dict()  # the seed is always the same
    saved = state["model"]
    assert torch.equal(started["encoder.embed_tokens.weight"], drawn["encoder.embed_tokens.weight"])
    assert torch.equal(started["encoder.layers.0.fc1.weight"], saved["encoder.layers.0.fc1.weight"])


@pytest.mark.parametrize(("part", "side"), [("encoder", "source"), ("decoder", "target")])
def test_a_pretrained_part_of_another_vocabulary_is_refused(trained_as, part, side):
    """The encoder is compared by the source's dictionary, the decoder by the target's; fairseq loads either alone."""
    trained = trained_as("translation")
    model = trained.new_trainer(trained.data_with("another order")).get_model()

    with vocabulary_refused(trained.path, side, part):
        checkpoint_utils.load_pretrained_component_from_model(getattr(model, part), str(trained.path))


def test_a_pretrained_encoder_of_the_same_vocabulary_is_taken(trained_as, tmp_path):
    trained = trained_as("translation")
    checkpoint = with_other_weights(trained, tmp_path / "checkpoint.pt")
    encoder = trained.new_trainer(trained.data).get_model().encoder

    taken = checkpoint_utils.load_pretrained_component_from_model(encoder, str(checkpoint))

    saved = torch.load(checkpoint)["model"]
    assert torch.equal(taken.embed_tokens.weight, saved["encoder.embed_tokens.weight"])


@pytest.fixture
def generator_with(trained_as):
    """Provide a function that builds the generator of fairseq-generate --lm-path lm.pt for a given language model.

    The generator adds the scores of the language model to those of the same symbols of a translator.
    """
    translator = trained_as("translation")
    trainer = translator.start_from(translator.path, translator.data)
    flags = argparse.Namespace(lm_path="lm.pt", beam=2)

    def build(language_model):
        kwargs = {"lm_model": language_model}
        return trainer.task.build_generator([trainer.get_model()], flags, extra_gen_cls_kwargs=kwargs)

    return build


def test_a_language_model_of_another_vocabulary_is_refused_to_score(trained_as, generator_with):
    language_model = trained_as("language_modeling")
    other = language_model.new_trainer(language_model.data_with("another order")).get_model()

    with vocabulary_refused("--lm-path lm.pt"):
        generator_with(other)


def test_a_language_model_of_the_same_vocabulary_may_score(trained_as, generator_with):
    language_model = trained_as("language_modeling").model

    generator = generator_with(language_model)

    assert generator.lm_model is language_model


def test_all_processes_of_a_training_refuse_another_vocabulary(trained_as, tmp_path):
    """The first process reads the checkpoint for all."""
    trained = trained_as("translation")
    other = trained.data_with("another order")
    words = (other, *FLAGS, *trained.flags, "--max-update", "1", "--finetune-from-model", trained.path)

    ranks.train(2, tmp_path / "log", *words, "--save-dir", tmp_path / "tuned", check=False)

    log = (tmp_path / "log").read_text()
    assert log.count(f"fairseq-train: error: {trained.path}: ") == 2
    assert not list((tmp_path / "tuned").glob("*.pt"))


TRAIN = ("--max-update", "1")
USE = ("--user-dir", USER_DIR, "--cpu")
PROGRAMS = {  # what is done -> program, flags with {path} and {folder} of the checkpoint and {new}, another folder
    "fine-tuning": ("fairseq-train", *TRAIN, "--finetune-from-model", "{path}", "--save-dir", "{new}"),
    "resuming from a file": ("fairseq-train", *TRAIN, "--restore-file", "{path}", "--save-dir", "{new}"),
    "resuming": ("fairseq-train", *TRAIN, "--save-dir", "{folder}"),
    "generate": ("fairseq-generate", *USE, "--path", "{path}"),
    "interactive": ("fairseq-interactive", *USE, "--path", "{path}"),
    "validate": (
        "fairseq-validate", *USE, "--path", "{path}", "--task", "translation", "--max-tokens", "600",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_fairseq_s_programs_refuse_another_vocabulary_in_one_line(trained_as, name, tmp_path):
    """The programs end before a checkpoint is written."""
    trained = trained_as("translation")
    other = trained.data_with("another order")
    program, *flags = PROGRAMS[name]
    if program == "fairseq-train":
        flags += [*FLAGS, *trained.flags]
    places = {"path": trained.path, "folder": trained.path.parent, "new": tmp_path / "new"}
    words = [str(flag).format(**places) for flag in flags]
    saved = trained.path.read_bytes()

    done = run(program, other, *words, check=False)

    assert done.returncode != 0
    last_line = done.stdout.strip().split("\n")[-1]
    assert f"{program}: error: {trained.path}: " in last_line
    assert str(other) in last_line
    assert trained.path.read_bytes() == saved
    assert list(trained.path.parent.glob("*.pt")) == [trained.path]
    assert not list((tmp_path / "new").glob("*.pt"))


def digest_of_pieces(path: Path, model: bytes) -> str | None:
    """Write a SentencePiece model to a file; return its digest."""
    path.write_bytes(model)
    return digests.of_cutting([path])


def test_settings_of_sentencepiece_s_training_do_not_change_a_digest(tmp_path):
    """A model records such settings, for example the largest number of sentences. The pieces are the same."""
    text = letters_and_numbers(300)
    model = sentencepiece_model(text, vocab=40)
    again = sentencepiece_model(text, vocab=40, input_sentence_size=1_000_000)
    assert again != model

    digest = digest_of_pieces(tmp_path / "model", model)

    assert digest is not None
    assert digest_of_pieces(tmp_path / "again", again) == digest


def test_sentencepiece_models_of_other_pieces_have_other_digests(tmp_path):
    text = letters_and_numbers(300)
    model = sentencepiece_model(text, vocab=40)
    other = sentencepiece_model(text[100:], vocab=40)

    digest = digest_of_pieces(tmp_path / "model", model)

    assert digest_of_pieces(tmp_path / "other", other) != digest


def test_the_digest_of_bpe_codes_changes_with_their_merges(tmp_path):
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\ne n</w>\n")
    digest = digests.of_cutting([codes])

    codes.write_text("#version: 0.2\ne r</w>\n")

    assert digest is not None
    assert digests.of_cutting([codes]) is not None
    assert digests.of_cutting([codes]) != digest


def test_no_file_has_no_digest():
    assert digests.of_cutting([]) is None


def test_a_missing_file_has_no_digest(tmp_path):
    assert digests.of_cutting([tmp_path / "missing"]) is None
