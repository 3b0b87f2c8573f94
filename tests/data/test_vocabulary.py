"""Tests that data of another vocabulary than a checkpoint's are refused wherever the two meet."""

import argparse
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

from ..golden.training import MANY
from ..support import ranks
from ..support.errors import refused
from ..support.helpers import USER_DIR, run
from ..support.prepared_again import (
    FLAGS,
    copy_data,
    longer,
    plain_text,
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
KINDS = {  # kind of model, by its task -> flags
    "translation": PAIR,
    "translation_multi_simple_epoch": (*PAIR, *MANY[1:-1]),
    "language_modeling": ("--task", "language_modeling", "--arch", "deepnet_lm", *DECODER, *TEXT, "cross_entropy"),
    "masked_lm": ("--task", "masked_lm", "--arch", "deepnet_masked_lm", *ENCODER, *TEXT, "masked_lm"),
}
WITH_PIECES = ("translation", "language_modeling", "masked_lm")  # their data hold the model that cut the text
OTHER_DICTIONARIES = {"other symbols": renamed, "another order": reordered, "more symbols": longer}
register()


class Trained:
    """A model, its data, and its checkpoint `path` of a training that has made no update."""

    def __init__(self, kind: str, data: Path, folder: Path):
        self.kind = kind
        self.folder = folder
        self.flags = KINDS[kind]
        if kind == "translation":
            self.data = copy_data(data, folder / "data")
        elif kind == "translation_multi_simple_epoch":
            self.data = copy_data(MANY[0], folder / "data")
        else:
            self.data = plain_text(data, folder / "data")
        self.path = folder / "run" / "checkpoint_last.pt"
        self.model = save_start(self.path, self.data, *self.flags).get_model()

    def copy_of_data(self, name: str, change=None, pieces: bytes | None = None) -> Path:
        """Return a copy of the data, with a changed dictionary or other pieces; made at the first call of its name."""
        folder = self.folder / name.replace(" ", "-")
        return folder if folder.exists() else copy_data(self.data, folder, change, pieces)

    def data_with(self, change: str) -> Path:
        """Return a copy of the data with one of OTHER_DICTIONARIES."""
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
        """Load a checkpoint as fairseq-generate, fairseq-validate and the hub's interface do."""
        languages = {"source_lang": "de", "target_lang": "en"} if "multi" in self.kind else {}
        checkpoint_utils.load_model_ensemble_and_task([str(path)], {"data": str(data)} | languages)


@pytest.fixture(scope="module")
def trained_as(data, tmp_path_factory) -> Callable[[str], Trained]:
    """Provide a function that returns the Trained of a kind, made when it is asked for first."""
    known: dict[str, Trained] = {}

    def of_kind(kind: str) -> Trained:
        if kind not in known:
            known[kind] = Trained(kind, data, tmp_path_factory.mktemp(kind))
        return known[kind]

    return of_kind


@pytest.fixture
def vocabulary_warnings(caplog, monkeypatch) -> Callable[[], list[str]]:
    """Provide a function that returns what has been warned of about vocabularies."""
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


def other_pieces() -> bytes:
    """Return a SentencePiece model of other text than that of the data."""
    return sentencepiece_model([f"{chr(97 + n % 7)}{chr(97 + n % 5)} {n}" for n in range(200)], 40)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", OTHER_DICTIONARIES)
def test_a_training_on_data_with_another_dictionary_is_refused(trained_as, kind, change):
    trained = trained_as(kind)
    other = trained.data_with(change)

    with vocabulary_refused(trained.path, other, "--new-vocabulary"):
        trained.start_from(trained.path, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", OTHER_DICTIONARIES)
def test_a_use_with_data_with_another_dictionary_is_refused(trained_as, kind, change):
    """The line names the data of the model's own run."""
    trained = trained_as(kind)
    other = trained.data_with(change)

    with vocabulary_refused(trained.path, other, trained.data):
        trained.use(trained.path, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("same", ["own data", "a copy", "other counts"])
def test_the_same_vocabulary_is_taken(trained_as, kind, same, vocabulary_warnings):
    """Where the data lie and how often a symbol occurs is no part of it; masks and tags come as they came."""
    trained = trained_as(kind)
    data = {
        "own data": lambda: trained.data,
        "a copy": lambda: trained.copy_of_data("copy"),
        "other counts": lambda: trained.copy_of_data("counts", recounted),
    }[same]()

    trained.start_from(trained.path, data)
    trained.use(trained.path, data)

    assert vocabulary_warnings() == []


@pytest.mark.parametrize("kind", WITH_PIECES)
def test_text_that_other_pieces_have_cut_is_refused(trained_as, kind):
    """The dictionary is the same, and the text was cut by another SentencePiece model."""
    trained = trained_as(kind)
    assert digests.cutting_files(str(trained.data))
    other = trained.copy_of_data("pieces", pieces=other_pieces())

    with vocabulary_refused(trained.path, "pieces"):
        trained.start_from(trained.path, other)
    with vocabulary_refused(trained.path, "pieces"):
        trained.use(trained.path, other)


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_was_cut_by_unknown_means_is_taken(trained_as, kind):
    trained = trained_as(kind)
    unknown = trained.copy_of_data("no pieces")
    (unknown / "spm.model").unlink(missing_ok=True)

    trained.start_from(trained.path, unknown)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_without_digests_is_compared_by_its_run_s_data(trained_as, kind, tmp_path):
    trained = trained_as(kind)
    old = without_digests(trained.path, tmp_path / "old.pt")
    other = trained.data_with("another order")

    with vocabulary_refused(old, other):
        trained.start_from(old, other)
    with vocabulary_refused(old, other):
        trained.use(old, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_without_digests_takes_its_own_vocabulary(trained_as, kind, vocabulary_warnings, tmp_path):
    trained = trained_as(kind)
    old = without_digests(trained.path, tmp_path / "old.pt")

    trained.start_from(old, trained.data)
    trained.use(old, trained.copy_of_data("copy"))

    assert vocabulary_warnings() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_cannot_be_compared_gives_one_warning(trained_as, kind, vocabulary_warnings, tmp_path):
    """It has no digests, and the data of its run are gone."""
    trained = trained_as(kind)
    gone = tmp_path / "gone"
    old = without_digests(trained.path, tmp_path / "old.pt", data=str(gone))

    trained.start_from(old, trained.data_with("another order"))

    (line,) = vocabulary_warnings()
    assert str(old) in line
    assert str(gone) in line


def test_translating_with_the_data_of_another_vocabulary_is_refused(trained_as):
    trained = trained_as("translation")
    other = trained.data_with("another order")

    with vocabulary_refused(trained.path, f"--data {other}", "--like"):
        translation.load(str(trained.path), data=str(other))


def test_translating_with_other_pieces_is_refused(trained_as, tmp_path):
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
        serve(folded, str(other), None)


def test_exporting_with_the_model_s_own_data_or_pieces_is_possible(trained_as):
    trained = trained_as("translation")
    folded = fold_checkpoint(str(trained.path))

    assert serve(folded, str(trained.copy_of_data("copy")), None).text is not None
    assert serve(folded, None, str(trained.data / "spm.model")).text is not None


def test_a_model_of_fairseq_that_was_exported_keeps_its_vocabulary(trained_as, tmp_path):
    trained = trained_as("translation")
    other = trained.data_with("another order")
    exported = tmp_path / "plain.pt"
    write_transformer(fold_checkpoint(str(trained.path)), exported, half=False)

    with vocabulary_refused(exported, other):
        trained.use(exported, other)


def test_the_average_of_checkpoints_keeps_their_vocabulary(trained_as, tmp_path):
    """One of them having digests is enough."""
    trained = trained_as("translation")
    old = without_digests(trained.path, tmp_path / "old.pt")

    averaging.average([old, trained.path], tmp_path / "mean.pt")

    own = torch.load(trained.path)["task_state"][digests.KEY]
    assert torch.load(tmp_path / "mean.pt")["task_state"] == {digests.KEY: own}


def test_the_average_of_checkpoints_without_digests_has_none(trained_as, tmp_path):
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
    """Return symbol -> row of the embedding of a model of these data, without masks and tags."""
    first_dictionary = sorted(data.glob("dict*.txt"))[0]
    lines = first_dictionary.read_text(encoding="utf-8").splitlines()
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *(line.rsplit(" ", 1)[0] for line in lines)]
    return {symbol: row for row, symbol in enumerate(symbols)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", OTHER_DICTIONARIES)
def test_a_new_vocabulary_keeps_the_embeddings_of_common_symbols(trained_as, kind, change):
    """--new-vocabulary moves rows to their symbols; other symbols start as drawn, all else is the checkpoint's."""
    trained = trained_as(kind)
    other = trained.data_with(change)
    saved = trained.model.state_dict()
    drawn = trained.new_trainer(other).get_model().state_dict()

    started = trained.start_from(trained.path, other, "--new-vocabulary").get_model().state_dict()

    with_rows = started.keys() & vocabulary.BY_SYMBOL.keys()
    assert with_rows
    for name in started.keys() - with_rows:
        assert torch.equal(started[name], saved[name]), name

    row_before = rows_of_symbols(trained.data)
    for name in with_rows:
        for symbol, row in rows_of_symbols(other).items():
            expected = saved[name][row_before[symbol]] if symbol in row_before else drawn[name][row]
            assert torch.equal(started[name][row], expected), (name, symbol)


def test_a_new_vocabulary_does_not_go_with_an_old_optimiser_s_state(trained_as):
    trained = trained_as("translation")
    trainer = trained.new_trainer(trained.data_with("another order"), "--new-vocabulary")

    with vocabulary_refused("--new-vocabulary", "--reset-optimizer"):
        trainer.load_checkpoint(str(trained.path))

    assert trainer.get_model().rows is None


def test_a_new_vocabulary_does_not_go_with_averaged_weights(trained_as):
    trained = trained_as("translation")

    with vocabulary_refused("--new-vocabulary", "--store-ema"):
        trained.start_from(trained.path, trained.data_with("another order"), "--new-vocabulary", "--store-ema")


def test_a_new_vocabulary_that_is_the_old_one_keeps_the_optimiser_s_state(trained_as):
    trained = trained_as("translation")

    trained.new_trainer(trained.data, "--new-vocabulary").load_checkpoint(str(trained.path))


def test_a_new_vocabulary_keeps_no_embedding_if_the_old_data_are_gone(trained_as, tmp_path):
    trained = trained_as("translation")
    other = trained.data_with("another order")
    state = torch.load(trained.path)
    state["cfg"]["task"]["data"] = str(tmp_path / "gone")
    torch.save(state, tmp_path / "moved.pt")

    started = trained.start_from(tmp_path / "moved.pt", other, "--new-vocabulary").get_model().state_dict()

    drawn = trained.new_trainer(other).get_model().state_dict()
    assert torch.equal(started["encoder.embed_tokens.weight"], drawn["encoder.embed_tokens.weight"])
    saved = trained.model.state_dict()
    assert torch.equal(started["encoder.layers.0.fc1.weight"], saved["encoder.layers.0.fc1.weight"])


@pytest.mark.parametrize(("part", "side"), [("encoder", "source"), ("decoder", "target")])
def test_a_part_of_a_model_of_another_vocabulary_is_refused(trained_as, part, side):
    """A part of a model is compared by the dictionary that it reads."""
    trained = trained_as("translation")
    model = trained.new_trainer(trained.data_with("another order")).get_model()

    with vocabulary_refused(trained.path, side, part):
        checkpoint_utils.load_pretrained_component_from_model(getattr(model, part), str(trained.path))


def test_an_encoder_of_the_same_vocabulary_is_taken(trained_as):
    trained = trained_as("translation")

    checkpoint_utils.load_pretrained_component_from_model(trained.model.encoder, str(trained.path))


@pytest.fixture
def generator_with(trained_as):
    """Provide a function that builds a generator which adds the scores of a language model (--lm-path lm.pt)."""
    translating = trained_as("translation")
    trainer = translating.start_from(translating.path, translating.data)
    flags = argparse.Namespace(lm_path="lm.pt", beam=2)

    def build(language_model):
        kwargs = {"lm_model": language_model}
        return trainer.task.build_generator([trainer.get_model()], flags, extra_gen_cls_kwargs=kwargs)

    return build


def test_a_language_model_of_another_vocabulary_is_refused_to_score(trained_as, generator_with):
    """fairseq-generate --lm-path adds scores of the language model to those of the same symbols."""
    scoring = trained_as("language_modeling")
    other = scoring.new_trainer(scoring.data_with("another order")).get_model()

    with vocabulary_refused("--lm-path lm.pt"):
        generator_with(other)


def test_a_language_model_of_the_same_vocabulary_may_score(trained_as, generator_with):
    generator_with(trained_as("language_modeling").model)


def test_several_processes_refuse_another_vocabulary(trained_as, tmp_path):
    """The first process reads the file, and all of them end with its line."""
    trained = trained_as("translation")
    other = trained.data_with("another order")
    words = (other, *FLAGS, *trained.flags, "--max-update", "1", "--finetune-from-model", trained.path)

    with pytest.raises(AssertionError, match="another dictionary"):
        ranks.train(2, tmp_path / "log", *words, "--save-dir", tmp_path / "tuned")

    assert not list((tmp_path / "tuned").glob("*.pt"))


PROGRAMS = ("fine-tuning", "resuming from a file", "resuming", "generate", "interactive", "validate")


@pytest.mark.parametrize("program", PROGRAMS)
def test_fairseq_s_programs_refuse_another_vocabulary_in_one_line(trained_as, program, tmp_path):
    """They end before anything is written."""
    trained = trained_as("translation")
    other = trained.data_with("another order")
    train = ("fairseq-train", other, *FLAGS, *trained.flags, "--max-update", "1")
    use = (other, "--user-dir", USER_DIR, "--cpu", "--path", trained.path)
    command = {
        "fine-tuning": (*train, "--finetune-from-model", trained.path, "--save-dir", tmp_path / "tuned"),
        "resuming from a file": (*train, "--restore-file", trained.path, "--save-dir", tmp_path / "tuned"),
        "resuming": (*train, "--save-dir", trained.path.parent),
        "generate": ("fairseq-generate", *use),
        "interactive": ("fairseq-interactive", *use),
        "validate": ("fairseq-validate", *use, "--task", "translation", "--max-tokens", "600"),
    }[program]

    done = run(*command, check=False)

    assert done.returncode != 0
    last_line = done.stdout.strip().split("\n")[-1]
    assert f"{command[0]}: error: {trained.path}: " in last_line
    assert str(other) in last_line
    assert not list((tmp_path / "tuned").glob("*.pt"))


def digest_of_model(path: Path, text: list[str]) -> str | None:
    """Write the SentencePiece model of a text; return its digest."""
    path.write_bytes(sentencepiece_model(text, 40))
    return digests.of_cutting([path])


def test_a_sentencepiece_model_s_digest_is_that_of_its_pieces(tmp_path):
    """The same text gives the same digest each time, although SentencePiece's files differ; other text another."""
    text = [f"{chr(97 + n % 7)}{chr(98 + n % 5)} {n}" for n in range(300)]

    first = digest_of_model(tmp_path / "first", text)
    again = digest_of_model(tmp_path / "again", text)
    other = digest_of_model(tmp_path / "other", text[100:])

    assert first is not None
    assert first == again
    assert first != other


def test_the_digest_of_bpe_codes_is_that_of_their_merges(tmp_path):
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\ne n</w>\n")
    first = digests.of_cutting([codes])
    codes.write_text("#version: 0.2\ne r</w>\n")

    assert first is not None
    assert digests.of_cutting([codes]) not in (None, first)


def test_what_is_not_there_has_no_digest(tmp_path):
    assert digests.of_cutting([]) is None
    assert digests.of_cutting([tmp_path / "missing"]) is None
