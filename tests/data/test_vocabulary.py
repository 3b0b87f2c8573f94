"""Tests that data of another vocabulary than a checkpoint's are refused wherever the two meet."""

import argparse
import logging
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq import register
from deepnet_fairseq.data import digests
from deepnet_fairseq.data.parallel_text import sentencepiece_model
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.checkpoints import vocabulary
from deepnet_fairseq.tools import averaging, translation
from deepnet_fairseq.tools.export.served import serve
from deepnet_fairseq.tools.export.transformer import fold_checkpoint, write_transformer

from ..golden.training import MANY
from ..support import ranks
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
KINDS = {  # kind of model -> flags
    "translation": PAIR,
    "translation_multi_simple_epoch": (*PAIR, *MANY[1:-1]),
    "language_modeling": ("--task", "language_modeling", "--arch", "deepnet_lm", *DECODER, *TEXT, "cross_entropy"),
    "masked_lm": ("--task", "masked_lm", "--arch", "deepnet_masked_lm", *ENCODER, *TEXT, "masked_lm"),
}
OTHERS = {"other symbols": renamed, "another order": reordered, "more symbols": longer}
register()


class Run:
    """A kind of model with its data, and a checkpoint of it."""

    def __init__(self, kind: str, data: Path, folder: Path):
        self.kind, self.folder, self.flags = kind, folder, KINDS[kind]
        if kind == "translation":
            self.data = copy_data(data, folder / "data")
        elif kind == "translation_multi_simple_epoch":
            self.data = copy_data(MANY[0], folder / "data")
        else:
            self.data = plain_text(data, folder / "data")
        self.path = folder / "run" / "checkpoint_last.pt"
        self.model = save_start(self.path, self.data, *self.flags).get_model()

    def other(self, name: str, change=None, pieces=None) -> Path:
        """Return data that are prepared otherwise, made at the first call."""
        folder = self.folder / name.replace(" ", "-")
        return folder if folder.exists() else copy_data(self.data, folder, change, pieces)

    def start(self, data: Path, path: Path | None = None, *flags):
        """Load the checkpoint as a training on `data` does that starts from it; return the trainer."""
        trainer = trainer_of(data, *self.flags, *flags, save_dir=self.folder / "never")
        trainer.load_checkpoint(str(path or self.path), reset_optimizer=True, reset_lr_scheduler=True)
        return trainer

    def use(self, data: Path, path: Path | None = None) -> None:
        """Load the checkpoint as fairseq-generate, fairseq-validate and the hub's interface do."""
        more = {"source_lang": "de", "target_lang": "en"} if "multi" in self.kind else {}
        checkpoint_utils.load_model_ensemble_and_task([str(path or self.path)], {"data": str(data)} | more)


@pytest.fixture(scope="module", name="runs")
def a_runs(data, tmp_path_factory):
    """Provide a Run of each kind, made when it is asked for."""
    made: dict[str, Run] = {}

    def of_kind(kind: str) -> Run:
        if kind not in made:
            made[kind] = Run(kind, data, tmp_path_factory.mktemp(kind))
        return made[kind]

    return of_kind


def warnings(caplog) -> list[str]:
    """Return what has been warned of about vocabularies."""
    found = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.getMessage() for record in found if record.name == vocabulary.log.name]


def refused(load, *words) -> None:
    """Check that load() ends in one line that holds the words."""
    with pytest.raises(Exception) as caught:  # fairseq wraps some
        load()
    causes = [error for error in (caught.value, caught.value.__context__) if isinstance(error, UserError)]
    assert causes and "\n" not in str(causes[0]), caught.value
    assert all(str(word) in str(causes[0]) for word in words), str(causes[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", OTHERS)
def test_another_dictionary_is_refused(runs, kind, change):
    """A training names the way on; a use of the model names its own data."""
    made = runs(kind)
    other = made.other(change, OTHERS[change])
    refused(lambda: made.start(other), made.path, other, "--new-vocabulary")
    refused(lambda: made.use(other), made.path, other, made.data)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_vocabulary_is_taken(runs, kind, caplog):
    """Own data, a copy elsewhere and other counts are the same vocabulary; masks and tags come as they came."""
    made = runs(kind)
    for same in (made.data, made.other("copy"), made.other("counts", recounted)):
        made.start(same)
        made.use(same)
    assert warnings(caplog) == []


@pytest.mark.parametrize("kind", KINDS)
def test_other_pieces_are_refused(runs, kind):
    """The same dictionary, and text that another SentencePiece model has cut."""
    made = runs(kind)
    text = [f"{chr(97 + n % 7)}{chr(97 + n % 5)} {n}" for n in range(200)]
    other = made.other("pieces", pieces=sentencepiece_model(text, 40))
    if digests.cutting_files(str(made.data)):
        refused(lambda: made.start(other), made.path, "pieces")
        refused(lambda: made.use(other), made.path, "pieces")

    unknown = made.other("no pieces")
    (unknown / "spm.model").unlink(missing_ok=True)
    made.start(unknown)


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_without_digests(runs, kind, caplog, tmp_path):
    """Compare older checkpoints by the data that their run names; if these are gone, one warning says so."""
    logging.getLogger("deepnet_fairseq").propagate = True
    made = runs(kind)
    old = without_digests(made.path, tmp_path / "old.pt")
    other = made.other("another order", reordered)
    refused(lambda: made.start(other, old), old, other)
    refused(lambda: made.use(other, old), old, other)
    made.start(made.data, old)
    made.use(made.other("copy"), old)
    assert warnings(caplog) == []
    gone = without_digests(made.path, tmp_path / "gone.pt", data=str(tmp_path / "gone"))
    made.start(other, gone)
    (line,) = warnings(caplog)
    assert str(gone) in line and str(tmp_path / "gone") in line


def test_text_by_another_vocabulary_is_refused(runs, tmp_path):
    """Translating and exporting name the flag; the model's own data and pieces are taken."""
    made = runs("translation")
    text = [f"{chr(97 + n % 7)}{chr(97 + n % 5)} {n}" for n in range(200)]
    other = made.other("another order", reordered)
    (tmp_path / "spm.model").write_bytes(sentencepiece_model(text, 40))
    refused(lambda: translation.load(str(made.path), data=str(other)), made.path, f"--data {other}", "--like")
    subwords = str(tmp_path / "spm.model")
    refused(lambda: translation.load(str(made.path), subwords=subwords), made.path, f"--subwords {subwords}")
    folded = fold_checkpoint(str(made.path))
    refused(lambda: serve(folded, str(other), None), made.path, f"--data {other}")
    assert serve(folded, str(made.other("copy")), None).text is not None
    assert serve(folded, None, str(made.data / "spm.model")).text is not None

    write_transformer(folded, tmp_path / "plain.pt", half=False)
    refused(lambda: made.use(other, tmp_path / "plain.pt"), tmp_path / "plain.pt", other)
    text_model = runs("language_modeling")
    folded = fold_checkpoint(str(text_model.path))
    other = text_model.other("another order", reordered)
    refused(lambda: serve(folded, str(other), None), text_model.path, f"--data {other}")


def test_averages_keep_the_vocabulary(runs, tmp_path):
    """The mean of checkpoints of one vocabulary carries its digests, if only one of them has any."""
    made = runs("translation")
    old = without_digests(made.path, tmp_path / "old.pt")
    averaging.average([old, made.path], tmp_path / "mean.pt")
    own = torch.load(made.path)["task_state"][digests.KEY]
    assert torch.load(tmp_path / "mean.pt")["task_state"] == {digests.KEY: own}
    averaging.average([old, old], tmp_path / "none.pt")
    assert torch.load(tmp_path / "none.pt")["task_state"] == {}

    save_start(tmp_path / "other.pt", made.other("another order", reordered), *made.flags)
    with pytest.raises(UserError, match="other.pt: .* dictionary"):
        averaging.average([made.path, tmp_path / "other.pt"], tmp_path / "never.pt")
    assert not (tmp_path / "never.pt").exists()


def symbols(data: Path) -> dict[str, int]:
    """Return symbol -> row of the model's embedding, without masks and tags."""
    path = sorted(data.glob("dict*.txt"))[0]
    words = [line.rsplit(" ", 1)[0] for line in path.read_text(encoding="utf-8").splitlines()]
    return {word: row for row, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *words])}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [reordered, longer, renamed])
def test_a_new_vocabulary_keeps_common_symbols(runs, kind, change):
    """--new-vocabulary moves rows to their symbols; other symbols start as drawn, all else is the checkpoint's."""
    made = runs(kind)
    name = {reordered: "another order", longer: "more symbols", renamed: "other symbols"}[change]
    other = made.other(name, change)
    fresh = trainer_of(other, *made.flags, save_dir=made.folder / "never").get_model().state_dict()
    state, before = made.start(other, None, "--new-vocabulary").get_model().state_dict(), made.model.state_dict()
    old, new = symbols(made.data), symbols(other)
    for key, value in state.items():
        if key not in vocabulary.BY_SYMBOL:
            assert torch.equal(value, before[key]), key
            continue
        for symbol, row in new.items():
            expected = before[key][old[symbol]] if symbol in old else fresh[key][row]
            assert torch.equal(value[row], expected), (key, symbol)


def test_what_a_new_vocabulary_rules_out(runs):
    made = runs("translation")
    other = made.other("another order", reordered)
    trainer = trainer_of(other, *made.flags, "--new-vocabulary", save_dir=made.folder / "never")
    refused(lambda: trainer.load_checkpoint(str(made.path)), "--reset-optimizer")
    refused(lambda: made.start(other, None, "--new-vocabulary", "--store-ema"), "--store-ema")
    assert trainer.get_model().rows is None
    trainer_of(made.data, *made.flags, "--new-vocabulary", save_dir=made.folder / "never").load_checkpoint(
        str(made.path)
    )


def test_data_that_are_gone_give_no_rows(runs, tmp_path):
    """A new vocabulary starts all embeddings anew where the old dictionary is gone."""
    made = runs("translation")
    other = made.other("another order", reordered)
    state = torch.load(made.path)
    state["cfg"]["task"]["data"] = str(tmp_path / "gone")
    torch.save(state, tmp_path / "moved.pt")
    fresh = trainer_of(other, *made.flags, save_dir=made.folder / "never").get_model().state_dict()
    started = made.start(other, tmp_path / "moved.pt", "--new-vocabulary").get_model().state_dict()
    key = "encoder.embed_tokens.weight"
    assert torch.equal(started[key], fresh[key])
    assert torch.equal(started["encoder.layers.0.fc1.weight"], made.model.state_dict()["encoder.layers.0.fc1.weight"])


def test_an_encoder_of_another_vocabulary_is_refused(runs):
    """A part of a model is compared by the dictionary that it reads."""
    made = runs("translation")
    model = trainer_of(made.other("another order", reordered), *made.flags, save_dir=made.folder / "x").get_model()
    load = checkpoint_utils.load_pretrained_component_from_model
    refused(lambda: load(model.encoder, str(made.path)), made.path, "source dictionary", "encoder")
    refused(lambda: load(model.decoder, str(made.path)), made.path, "target dictionary", "decoder")
    load(made.model.encoder, str(made.path))


def test_a_language_model_of_another_vocabulary_is_refused(runs):
    """fairseq-generate --lm-path adds scores of the language model to those of the same symbols."""
    made, text = runs("translation"), runs("language_modeling")
    start = made.start(made.data)
    args = argparse.Namespace(lm_path="lm.pt", beam=2)
    other = trainer_of(text.other("another order", reordered), *text.flags, save_dir=text.folder / "never").get_model()
    start.task.build_generator([start.get_model()], args, extra_gen_cls_kwargs={"lm_model": text.model})
    build = start.task.build_generator
    refused(lambda: build([made.model], args, extra_gen_cls_kwargs={"lm_model": other}), "--lm-path lm.pt")


def test_several_processes_refuse_in_one_line(runs, tmp_path):
    """The first process reads the file, and all of them end with its line."""
    made = runs("translation")
    other = made.other("another order", reordered)
    words = (other, *FLAGS, *made.flags, "--max-update", "1", "--finetune-from-model", made.path)
    with pytest.raises(AssertionError, match="another dictionary"):
        ranks.train(2, tmp_path / "log", *words, "--save-dir", tmp_path / "tuned")
    assert not list((tmp_path / "tuned").glob("*.pt"))


def test_programs_refuse_in_one_line(runs, tmp_path):
    """Fine-tuning, resuming and translating by fairseq's own programs end before anything is written."""
    made = runs("translation")
    other = made.other("another order", reordered)
    train = ("fairseq-train", other, *FLAGS, *made.flags, "--max-update", "1")
    use = (other, "--user-dir", USER_DIR, "--cpu", "--path", made.path)
    commands = [
        (*train, "--finetune-from-model", made.path, "--save-dir", tmp_path / "tuned"),
        (*train, "--restore-file", made.path, "--save-dir", tmp_path / "tuned"),
        (*train, "--save-dir", made.path.parent),
        ("fairseq-generate", *use),
        ("fairseq-interactive", *use),
        ("fairseq-validate", *use, "--task", "translation", "--max-tokens", "600"),
    ]
    for command in commands:
        done = run(*command, check=False)
        last = done.stdout.strip().split("\n")[-1]
        assert done.returncode and f"{command[0]}: error: {made.path}: " in last and str(other) in last, last
    assert not list((tmp_path / "tuned").glob("*.pt"))


def test_digests_of_what_cuts_text(tmp_path):
    """The same text gives the same digest each time, although SentencePiece's files differ; other text another."""
    text = [f"{chr(97 + n % 7)}{chr(98 + n % 5)} {n}" for n in range(300)]
    files = [tmp_path / name for name in ("one", "two", "three", "codes")]
    for path, lines in zip(files, (text, text, text[100:]), strict=False):
        path.write_bytes(sentencepiece_model(lines, 40))
    files[3].write_text("#version: 0.2\ne n</w>\n")
    one, two, three, codes = (digests.of_cutting([path]) for path in files)
    assert one == two and len({one, three, codes}) == 3
    files[3].write_text("#version: 0.2\ne r</w>\n")
    assert digests.of_cutting([files[3]]) != codes
    assert digests.of_cutting([]) is None and digests.of_cutting([tmp_path / "missing"]) is None
