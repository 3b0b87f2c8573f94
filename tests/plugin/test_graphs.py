"""Tests of --cuda-graphs by graphs that a CPU records: the same training as without, in every method and precision.

A CUDA graph replays the kernels of a batch's forward and backward passes on fixed memory, without Python. One graph is
captured for each of a few shapes (rows, source length, target length); batches are padded to the smallest shape that
covers them. The last tests run on a GPU, by its own graphs.
"""

from __future__ import annotations

import itertools
import sys
from typing import NamedTuple

import numpy
import pytest
import torch
from fairseq.data import LanguagePairDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from benchmarks import corpus
from benchmarks.models import trainer_of
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.plugin.graphs import kernels, settings, shapes
from deepnet_fairseq.plugin.graphs.capture import CaptureFailed, CudaDevice
from deepnet_fairseq.plugin.graphs.static_batch import StaticBatch, shape_of
from deepnet_fairseq.plugin.graphs.step import GraphedStep, has_foreign_hooks
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags

from ..support.errors import refused
from ..support.lm_trainings import FLAGS, KINDS, make_text
from ..support.marks import smoke_but
from ..support.recorded_graph import RecordedDevice, UncapturableDevice

SMALL_TRANSLATOR = (
    "--cpu", "--arch=deepnet_transformer_tiny", "--encoder-layers=2", "--decoder-layers=2", "--max-tokens=200",
    "--benchmark-vocabulary=100", "--optimizer=deepnet_adam", "--lr=2e-3", "--warmup-updates=5", "--dropout=0",
    "--share-all-embeddings",
)  # fmt: skip
PAD = 1  # index of <pad> in fairseq's dictionaries
UPDATES = 20
SHAPES = 8  # shapes of batches that get a graph, unless a test says otherwise
ENOUGH_MEMORY = 2**40  # bytes
ROUNDING = 2e-3  # bits a token: what products of more rows, with padding, change in a loss
ROUNDING_OF_NORMS = 1e-3  # the same for the norm of the gradients, relative
SMALL_SCALE = "--fp16-init-scale=16"  # nothing overflows
OVERFLOWING_SCALE = f"--fp16-init-scale={2**22}"  # the first updates overflow, are skipped, and halve it
CHUNKED = "--criterion=chunked_label_smoothed_cross_entropy"


def smoke(flags: tuple[str, ...]):
    """Return flags as a parameter of a smoke test."""
    return pytest.param(flags, marks=pytest.mark.smoke)


@pytest.fixture(autouse=True)
def small_benchmark_corpus(monkeypatch):
    """Let the translators train on 1,000 made-up sentence pairs in place of 20,000."""
    monkeypatch.setattr(corpus, "SENTENCES", 1000)
    corpus.sentences.cache_clear()
    yield
    corpus.sentences.cache_clear()


class EagerGraph:
    """Graph whose replay calls the captured function again, as Python."""

    def capture(self, function):
        self.replay = function


class EagerDevice(RecordedDevice):
    """Device whose graphs compute what the plain passes compute."""

    def graph(self):
        return EagerGraph()


@pytest.fixture
def graphs_on_a_cpu(monkeypatch):
    """Let a trainer that runs on a CPU find a device for graphs, which records them."""
    monkeypatch.setattr(settings, "device_of", lambda trainer: RecordedDevice())


class TrainingRun(NamedTuple):
    """Result of some updates: what each one logged, None where it overflowed, and the model after the last."""

    losses: list[float | None]  # bits a token
    norms: list[float | None]  # of the gradients
    weights: dict[str, torch.Tensor]
    trainer: Trainer

    @property
    def graphs(self) -> GraphedStep:
        return self.trainer.graphs


def first_batches(trainer, count: int) -> list[dict]:
    """Begin epoch 1 of a trainer; return its first batches."""
    batches = list(trainer.get_train_iterator(1).next_epoch_itr(shuffle=True))
    trainer.begin_epoch(1)
    return batches[:count]


def note_norms(trainer) -> list[torch.Tensor]:
    """Make a trainer note the norm of the gradients of each update; return the list that it fills."""
    norms = []
    original = trainer.clip_grad_norm

    def clip_and_note(largest):
        norm = original(largest)
        norms.append(norm)
        return norm

    trainer.clip_grad_norm = clip_and_note
    return norms


def train_translator_in_process(
    *flags, device=None, updates=UPDATES, batches_an_update=1, padded_by=None, most_shapes=SHAPES, on_gpu=False
) -> TrainingRun:
    """Train a small translator, without graphs unless a device is given.

    device: what captures the graphs; batches_an_update: --update-freq; padded_by: the GraphedStep of another training,
    to whose shapes batches are padded; most_shapes: the largest number of shapes that get a graph.
    """
    flags = [*SMALL_TRANSLATOR, *flags, f"--update-freq={batches_an_update}"]
    if on_gpu:
        flags.remove("--cpu")
    trainer = trainer_of(flags)
    if device is not None:
        trainer.use_graphs(GraphedStep(most_shapes, PAD, device))
    if padded_by is not None and hasattr(trainer.criterion, "masks_padding"):
        # a chunked loss computes padding too, as in a graph: products of as many rows, which round alike
        trainer.criterion.masks_padding = True

    iterator = trainer.get_train_iterator(1)
    trainer.begin_epoch(1)
    batches = itertools.cycle(list(iterator.next_epoch_itr(shuffle=True)))
    noted = note_norms(trainer)
    losses = []
    norms = []
    for _ in range(updates):
        samples = list(itertools.islice(batches, batches_an_update))
        if padded_by is not None:
            samples = [padded_copy(sample, padded_by) for sample in samples]
        with metrics.aggregate("train_inner"):
            logged = trainer.train_step(samples)
        overflowed = logged is None
        losses.append(None if overflowed else logged["loss"])
        norms.append(None if overflowed else float(noted[-1]))

    weights = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    return TrainingRun(losses, norms, weights, trainer)


def padded_copy(sample: dict, graphs: GraphedStep) -> dict:
    """Return a copy of a sample with the padding that graphs give it."""
    shape = shapes.covering(shape_of(sample), graphs.captured_shapes)
    batch = StaticBatch(sample, shape, PAD)
    batch.fill(sample)
    return batch.sample | {"id": sample["id"], "ntokens": sample["ntokens"]}


def assert_graphs_change_no_bit(*flags, device=None, **options) -> None:
    """Check that a training by graphs equals one without graphs on the same padded batches, bit for bit.

    flags: of both trainings; device: what captures the graphs, by default a RecordedDevice; options: those of
    train_translator_in_process.
    """
    by_graphs = train_translator_in_process(*flags, device=device or RecordedDevice(), **options)
    plain = train_translator_in_process(*flags, padded_by=by_graphs.graphs, **options)

    assert by_graphs.graphs.obstacle is None
    assert by_graphs.graphs.served >= UPDATES  # batches by a graph
    assert by_graphs.graphs.unserved == 0
    assert by_graphs.losses == plain.losses
    assert by_graphs.norms == plain.norms
    for name, weight in plain.weights.items():
        assert torch.equal(by_graphs.weights[name], weight), name


@pytest.mark.parametrize("method", smoke_but(("deepnorm",), sorted(METHODS)))
def test_graphs_change_no_bit_of_any_method(method):
    assert_graphs_change_no_bit("--method", method, *METHODS[method].train_flags)


@pytest.mark.parametrize(
    "flags",
    [
        # the factor of branchnorm's branches grows until update 7: a replay has to read it anew
        ("--fp16", OVERFLOWING_SCALE, "--method=branchnorm", "--branchnorm-updates=7"),
        ("--bf16", CHUNKED),
        smoke(("--fp16", "--fp16-no-flatten-grads")),
        smoke(("--fp16", "--optimizer=adam")),
        smoke(("--amp",)),
        smoke(("--memory-efficient-fp16", "--optimizer=adam")),
        ("--checkpoint-activations",),
        smoke(("--checkpoint-every=2", "--method=dlcl", CHUNKED)),  # dlcl's layers share a tensor
        smoke(("--checkpoint-activations", "--memory-efficient-fp16", "--optimizer=adam")),
        smoke((CHUNKED,)),
        smoke((CHUNKED, "--fp16")),
        smoke(("--pro-res", "--pro-res-updates=3", "--qk-norm")),
        smoke(("--store-ema", "--ema-decay=0.9", "--ema-fp32")),
    ],
    ids=" ".join,
)
def test_graphs_change_no_bit_under_other_settings(flags):
    assert_graphs_change_no_bit(*flags)


@pytest.mark.smoke
@pytest.mark.parametrize("flags", [(), ("--fp16",), ("--bf16",)], ids=" ".join)
def test_graphs_change_no_bit_with_two_batches_an_update(flags):
    assert_graphs_change_no_bit(*flags, batches_an_update=2)


def test_each_of_the_allowed_shapes_gets_a_graph():
    graphs = train_translator_in_process(device=RecordedDevice(), updates=1).graphs

    assert len(graphs.epoch_shapes) > SHAPES  # of the batches
    assert len(graphs.captured) == SHAPES


@pytest.mark.smoke
@pytest.mark.parametrize("without_graph", range(3))
def test_batches_with_and_without_a_graph_add_up_in_an_update(without_graph, monkeypatch):
    """Whichever of an update's three batches no graph serves, the losses are those of a plain training."""
    three_each = {"batches_an_update": 3, "updates": 6}
    plain = train_translator_in_process(**three_each)
    original = GraphedStep.step
    calls = itertools.count()

    def step_of_two_in_three(self, *args, **kwargs):
        if next(calls) % 3 == without_graph:
            return None  # fairseq computes the batch
        return original(self, *args, **kwargs)

    monkeypatch.setattr(GraphedStep, "step", step_of_two_in_three)

    mixed = train_translator_in_process(device=RecordedDevice(), **three_each)

    assert mixed.graphs.served == 2 * 6
    assert mixed.losses == pytest.approx(plain.losses, abs=ROUNDING)


def test_each_replay_draws_dropout_from_the_present_seed():
    """Replays of one batch repeat under one seed, and differ under another."""
    trainer = train_translator_in_process("--dropout=0.3", device=RecordedDevice(), updates=2).trainer
    sample = trainer.samples[0]  # the batch of the last update

    def loss_with_seed(seed):
        torch.manual_seed(seed)
        loss, _size, _log = trainer.graphs.step(sample, update=3, dummy=False)
        return loss.item()

    first = loss_with_seed(1)
    other = loss_with_seed(2)
    again = loss_with_seed(1)

    assert again == first
    assert other != first


def test_dropout_by_graphs_is_that_of_the_plain_passes():
    assert_graphs_change_no_bit("--dropout=0.1")


@pytest.mark.parametrize(
    "flags",
    [
        (),
        smoke(("--sentence-avg",)),  # the sample size is that of the sentences, without the rows of padding
        (CHUNKED, "--loss-chunk-tokens=50"),
    ],
    ids=" ".join,
)
def test_padding_changes_no_loss_and_no_gradient(flags):
    """Graphs of two shapes alone pad nearly every batch; the plain training pads none beyond its longest sentence."""
    by_graphs = train_translator_in_process(*flags, device=RecordedDevice(), updates=3, most_shapes=2)

    plain = train_translator_in_process(*flags, updates=3)

    assert by_graphs.graphs.served == 3
    assert by_graphs.losses == pytest.approx(plain.losses, abs=ROUNDING)
    assert by_graphs.norms == pytest.approx(plain.norms, rel=ROUNDING_OF_NORMS)


def test_a_loss_that_reads_numbers_of_the_device_trains_without_graphs():
    """With --report-accuracy the CPU reads how many words are right; the obstacle names the file that does so."""
    with_device = train_translator_in_process("--report-accuracy", device=RecordedDevice(), updates=3)

    plain = train_translator_in_process("--report-accuracy", updates=3)

    assert "label_smoothed_cross_entropy.py" in with_device.graphs.obstacle
    assert with_device.losses == plain.losses
    assert with_device.norms == plain.norms


@pytest.mark.usefixtures("graphs_on_a_cpu")
def test_a_training_of_one_process_can_use_graphs():
    trainer = trainer_of([*SMALL_TRANSLATOR])

    trainer.use_graphs(settings.graphed_step(trainer, SHAPES))

    assert trainer.graphs is not None


@pytest.mark.usefixtures("graphs_on_a_cpu")
def test_a_setting_that_allows_no_graphs_is_named():
    trainer = trainer_of([*SMALL_TRANSLATOR, "--use-bmuf"])

    trainer.use_graphs(settings.graphed_step(trainer, SHAPES))

    assert trainer.graphs is None
    assert "--use-bmuf" in settings.why_settings_forbid_graphs(trainer)


DROPOUTS = ("--dropout=0.1", "--attention-dropout=0.1", "--activation-dropout=0.1")


@pytest.mark.parametrize("flag", smoke_but(("--dropout=0.1",), DROPOUTS))
def test_layers_that_are_recomputed_with_dropout_train_without_graphs(flag):
    """A capture must not put back the random generators, so the layers would draw other numbers the second time."""
    flags = ("--checkpoint-activations", flag)

    with_device = train_translator_in_process(*flags, device=RecordedDevice(), updates=3)

    plain = train_translator_in_process(*flags, updates=3)
    assert "--checkpoint-activations" in with_device.graphs.obstacle
    assert with_device.losses == plain.losses
    assert with_device.norms == plain.norms


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_a_hook_of_any_kind_is_foreign(register):
    module = torch.nn.Linear(1, 1)
    assert not has_foreign_hooks(module)

    getattr(module, register)(lambda *_: None)

    assert has_foreign_hooks(module)


def test_a_forward_hook_is_called_in_each_pass():
    """A hook that is there at the first batch ends the graphs, so that it sees every batch."""
    trainer = trainer_of(SMALL_TRANSLATOR)
    trainer.use_graphs(GraphedStep(SHAPES, PAD, RecordedDevice()))
    passes_seen = []
    trainer.get_model().decoder.layers[0].register_forward_hook(lambda *_: passes_seen.append(1))
    batches = first_batches(trainer, 3)

    with metrics.aggregate():
        for batch in batches:
            trainer.train_step([batch])

    assert len(passes_seen) == 3
    assert trainer.graphs.served == 0


def test_memory_that_ends_leaves_fewer_graphs():
    """Batches whose shape got no graph go into a larger graph or are computed without one.

    The losses are those of a plain run.
    """
    # memory is asked for twice before the first graph is captured and once after each: the fourth graph uses it up
    device = RecordedDevice(free=(*[ENOUGH_MEMORY] * 5, 0))

    by_graphs = train_translator_in_process(device=device, updates=6)

    plain = train_translator_in_process(updates=6)
    graphs = by_graphs.graphs
    assert len(graphs.captured) == 4
    assert graphs.served + graphs.unserved == 6
    assert graphs.obstacle is None
    assert by_graphs.losses == pytest.approx(plain.losses, abs=ROUNDING)


@pytest.mark.smoke
def test_without_free_memory_a_training_goes_on_without_graphs():
    with_device = train_translator_in_process(device=RecordedDevice(free=(0,)), updates=3)

    plain = train_translator_in_process(updates=3)

    assert with_device.graphs.obstacle is not None
    assert with_device.graphs.for_checkpoint == 0  # a resumed run uses none either
    assert with_device.losses == plain.losses
    assert with_device.norms == plain.norms


class Comparison(NamedTuple):
    """Seconds that a replay takes where plain passes take one, and what --cuda-graphs auto makes of it."""

    seconds_of_a_replay: float
    served: int  # of three batches
    for_checkpoint: int  # shapes with which a resumed run goes on


@pytest.mark.parametrize(
    "comparison",
    [
        Comparison(seconds_of_a_replay=0.5, served=3, for_checkpoint=SHAPES),
        pytest.param(Comparison(seconds_of_a_replay=1.5, served=0, for_checkpoint=0), marks=pytest.mark.smoke),
    ],
    ids=["faster", "slower"],
)
def test_auto_uses_graphs_only_if_they_are_faster(comparison):
    """Two plain passes are timed before the first update, 1 second each, and then two replays."""
    device = RecordedDevice(times=(1.0, 1.0, comparison.seconds_of_a_replay, comparison.seconds_of_a_replay))
    trainer = trainer_of(SMALL_TRANSLATOR)
    graphs = GraphedStep(SHAPES, PAD, device, compare=True)
    trainer.use_graphs(graphs)
    batches = first_batches(trainer, 3)

    with metrics.aggregate():
        losses = [trainer.train_step([batch])["loss"] for batch in batches]

    plain = train_translator_in_process(updates=3)
    assert graphs.served == comparison.served
    assert graphs.for_checkpoint == comparison.for_checkpoint
    assert losses == pytest.approx(plain.losses, abs=ROUNDING)


def test_a_checkpoint_before_the_comparison_keeps_auto():
    graphs = GraphedStep(SHAPES, PAD, RecordedDevice(), compare=True)

    assert graphs.for_checkpoint == "auto"


def test_a_later_epoch_with_longer_sentences_gets_more_graphs():
    """Batches of a new shard that no graph covers get graphs of their own, a quarter as many as the first epoch's."""
    trainer = train_translator_in_process(device=RecordedDevice(), updates=2).trainer
    graphs = trainer.graphs
    served_before = graphs.served
    lengths = []
    # three of these are longer than any sentence before
    for length in (corpus.LONGEST + 30, corpus.LONGEST + 20, corpus.LONGEST + 10, 20):
        lengths += [length, length]
    sentences = [torch.full((length,), 9) for length in lengths]
    dictionary = trainer.task.source_dictionary
    dataset = LanguagePairDataset(
        sentences, numpy.array(lengths), dictionary, sentences, numpy.array(lengths), dictionary
    )
    batches = [[0, 1], [2, 3], [4, 5], [6, 7]]

    graphs.plan(EpochBatchIterator(dataset, dataset.collater, batches))
    with metrics.aggregate():
        for batch in batches:
            trainer.train_step([dataset.collater([dataset[number] for number in batch])])

    assert graphs.served == served_before + 4
    assert len(graphs.captured) == SHAPES + SHAPES // 4


class Resume(NamedTuple):
    """Settings of --cuda-graphs: a number of shapes, 0 for no graphs, or auto."""

    flag: str | None  # of the resumed run; None if it is not given
    began_with: int | str  # entry of the checkpoint; auto: nothing was decided when it was saved
    goes_on_with: int | str


@pytest.mark.parametrize(
    "resume",
    [
        Resume(flag=None, began_with=0, goes_on_with=0),
        Resume(flag=None, began_with=16, goes_on_with=16),
        Resume(flag="32", began_with=16, goes_on_with=16),
        Resume(flag="32", began_with=0, goes_on_with=0),
        Resume(flag="auto", began_with=16, goes_on_with=16),
        Resume(flag="auto", began_with="auto", goes_on_with="auto"),
    ],
    ids=str,
)
def test_a_resumed_run_keeps_what_it_began_with(resume):
    assert settings.after_resume(resume.flag, resume.began_with) == resume.goes_on_with


@pytest.mark.parametrize(
    "resume",
    [Resume(flag="0", began_with=16, goes_on_with=0), Resume(flag="32", began_with="auto", goes_on_with=32)],
    ids=["0 ends the graphs", "a number decides auto"],
)
def test_a_resumed_run_follows_a_flag_that_ends_or_decides(resume):
    assert settings.after_resume(resume.flag, resume.began_with) == resume.goes_on_with


def resumed_from_a_checkpoint_with(shape_limit: int, folder) -> Trainer:
    """Save a checkpoint of a trainer with --cuda-graphs; return a trainer without the flag that has loaded it."""
    path = str(folder / "checkpoint.pt")
    trainer = trainer_of([*SMALL_TRANSLATOR, f"--cuda-graphs={shape_limit}", f"--save-dir={folder}"])
    trainer.begin_epoch(1)
    trainer.consolidate_optimizer()  # fairseq calls it before each save
    trainer.save_checkpoint(path, {"train_iterator": {"epoch": 1}})

    resumed = trainer_of([*SMALL_TRANSLATOR, f"--save-dir={folder}"])
    resumed.load_checkpoint(path)
    return resumed


@pytest.mark.usefixtures("graphs_on_a_cpu")
def test_a_run_resumes_with_the_number_of_shapes_in_its_checkpoint(tmp_path):
    resumed = resumed_from_a_checkpoint_with(8, tmp_path)

    assert resumed.graphs.limit == 8


@pytest.mark.usefixtures("graphs_on_a_cpu")
def test_a_run_that_began_without_graphs_resumes_without(tmp_path):
    """The 0 in its checkpoint stands for no graphs, and not for a number of shapes that is still to be chosen."""
    resumed = resumed_from_a_checkpoint_with(0, tmp_path)

    assert resumed.graphs is None


@pytest.mark.parametrize("number", ["x", "-1", "1.5", ""])
def test_a_number_of_shapes_that_is_no_whole_number_is_refused(number):
    with refused(f"--cuda-graphs {number}"):
        settings.parse_cuda_graphs(number)


def test_a_number_of_shapes_is_refused_on_a_cpu():
    with refused("--cuda-graphs 8"):
        trainer_of([*SMALL_TRANSLATOR, "--cuda-graphs=8"])


# Language models


LANGUAGE_MODEL_UPDATES = 8


class LanguageModelRun(NamedTuple):
    losses: list[float]  # of each update, bits a token
    graphs: GraphedStep | None


def train_language_model_in_process(text, kind: str, *flags, device=None) -> LanguageModelRun:
    """Train a model, "causal" or "masked", for a few updates, without graphs unless a device is given."""
    words = (text, *KINDS[kind], *FLAGS, *flags)
    trainer = build_trainer(parse_training_flags([str(word) for word in words]))
    graphs = None if device is None else GraphedStep(SHAPES, PAD, device)
    trainer.use_graphs(graphs)
    batches = first_batches(trainer, LANGUAGE_MODEL_UPDATES)
    with metrics.aggregate():
        losses = [trainer.train_step([batch])["loss"] for batch in batches]
    return LanguageModelRun(losses, graphs)


@pytest.mark.parametrize("flags", [(), smoke(("--criterion=chunked_cross_entropy",))], ids=" ".join)
def test_causal_language_models_train_by_graphs(flags, tmp_path):
    text = make_text(tmp_path)

    by_graphs = train_language_model_in_process(text, "causal", *flags, device=RecordedDevice())

    plain = train_language_model_in_process(text, "causal", *flags)
    assert by_graphs.graphs.served == LANGUAGE_MODEL_UPDATES
    assert by_graphs.graphs.obstacle is None
    assert by_graphs.losses == pytest.approx(plain.losses, abs=ROUNDING)


@pytest.mark.smoke
def test_a_masked_language_model_trains_without_graphs(tmp_path):
    """fairseq's nested data set has a list of sizes in place of a size for each sentence: no shape can be chosen."""
    text = make_text(tmp_path)

    with_device = train_language_model_in_process(text, "masked", device=RecordedDevice())

    plain = train_language_model_in_process(text, "masked")
    assert with_device.graphs.served == 0
    assert with_device.graphs.obstacle is not None
    assert with_device.losses == pytest.approx(plain.losses, abs=ROUNDING)


# Shapes, the recording itself, and failed captures


@pytest.mark.parametrize("most", [1, 5, 40, 1000])
def test_the_chosen_shapes_cover_every_batch(most):
    """There are 100 batches of up to 19 sentence pairs, 1 to 59 tokens long on each side."""
    draw = numpy.random.default_rng(0)
    sizes = draw.integers(1, 60, (500, 2))  # source and target length of 500 pairs
    batches = [draw.integers(0, 500, rows) for rows in draw.integers(1, 20, 100)]
    shapes_of_batches = shapes.shapes_of(batches, sizes)

    chosen = shapes.choose(shapes_of_batches, most)

    different = numpy.unique(shapes_of_batches, axis=0)
    assert len(chosen) == min(most, len(different))
    for shape in shapes_of_batches:
        assert shapes.covering(tuple(shape), chosen)


@pytest.mark.smoke
def test_recorded_graphs_compute_what_repeated_python_computes():
    """The other tests rest on recorded graphs. The factor of branchnorm grows at each update: replays must read it."""
    recorded = train_translator_in_process("--method=branchnorm", device=RecordedDevice())

    eager = train_translator_in_process("--method=branchnorm", device=EagerDevice())

    assert recorded.losses == eager.losses
    assert recorded.norms == eager.norms


@pytest.fixture
def started_programs(monkeypatch) -> list[list[str]]:
    """Provide the list of programs that take the place of `fairseq-train data`, on a device where captures fail.

    --cuda-graphs auto times two plain passes before it captures.
    """
    started = []
    monkeypatch.setattr(settings, "device_of", lambda trainer: UncapturableDevice(times=(1.0, 1.0)))
    monkeypatch.setattr(settings.os, "execv", lambda program, words: started.append(words))
    monkeypatch.setattr(settings.sys, "argv", ["/bin/fairseq-train", "data"])
    monkeypatch.setattr(settings.sys, "orig_argv", ["python", "/bin/fairseq-train", "data"])
    return started


def test_a_failed_capture_ends_a_run_with_a_number_of_shapes(started_programs):
    with pytest.raises(CaptureFailed):
        train_translator_in_process("--cuda-graphs=8", updates=1)

    assert started_programs == []


def test_a_failed_capture_with_auto_starts_the_run_again_without_graphs(started_programs):
    with pytest.raises(CaptureFailed):  # execv would not have returned
        train_translator_in_process("--cuda-graphs=auto", updates=1)

    assert started_programs == [[sys.executable, "/bin/fairseq-train", "data", "--cuda-graphs", "0"]]


# Faster kernels

half_precision = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@half_precision
def test_the_gradient_of_a_bias_is_the_sum_over_rows(dtype):
    """The faster kernel computes sums over rows, such as autograd's for a bias, by a product with ones."""
    torch.manual_seed(0)
    x = torch.randn(300, 40).to(dtype)

    with kernels.FasterKernels(most_rows=300, device=x.device):
        kept_dimension = x.sum(0, keepdim=True)
        flat = x.sum(0)

    exact = x.double().sum(0)
    rounding = torch.finfo(dtype).eps * exact.abs().max()
    assert torch.equal(kept_dimension[0], flat)
    assert (flat.double() - exact).abs().max() < 2 * rounding


@half_precision
@pytest.mark.parametrize(
    "summed",
    [lambda x: x.sum(1), lambda x: torch.cat([x, x]).sum(0), lambda x: x.float().sum(0)],
    ids=["over columns", "of more rows", "in float32"],
)
def test_sums_that_the_faster_kernel_does_not_cover_are_left_to_torch(summed, dtype):
    """It covers sums over at most `most_rows` rows in half precision, as a bias's gradient is one."""
    torch.manual_seed(0)
    x = torch.randn(300, 40).to(dtype)

    with kernels.FasterKernels(most_rows=300, device=x.device):
        found = summed(x)

    assert torch.equal(found, summed(x))


# On a GPU


@pytest.fixture
def deterministic(monkeypatch):
    """Use kernels whose sums do not depend on the order in which their parts end, as sums of attention may."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def assert_cuda_graphs_change_no_bit(*flags, **options) -> None:
    """Check that CUDA graphs change no bit, without the faster kernels, which round differently."""
    assert_graphs_change_no_bit(*flags, device=CudaDevice(faster=False), on_gpu=True, **options)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("method", sorted(METHODS))
def test_cuda_graphs_change_no_bit_of_any_method(method):
    """CUDA graphs make the same bits as the kernels one by one, dropout included."""
    flags = ("--fp16", SMALL_SCALE, "--dropout=0.1", "--method", method, *METHODS[method].train_flags)

    assert_cuda_graphs_change_no_bit(*flags)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--bf16", "--dropout=0.1"),
        ("--amp",),
        ("--fp16", "--optimizer=adam"),
        ("--fp16", OVERFLOWING_SCALE, "--attention-dropout=0.1"),
        ("--fp16", "--pro-res", "--pro-res-updates=3", "--qk-norm"),
        ("--fp16", "--method=branchnorm", "--branchnorm-updates=7", "--store-ema", "--ema-decay=0.9"),
        ("--fp16", CHUNKED),
        ("--fp16", "--checkpoint-every=2", CHUNKED),
    ],
    ids=" ".join,
)
def test_cuda_graphs_change_no_bit_under_other_settings(flags):
    assert_cuda_graphs_change_no_bit(*flags)


@pytest.mark.gpu
@pytest.mark.usefixtures("deterministic")
def test_cuda_graphs_change_no_bit_with_two_batches_an_update():
    assert_cuda_graphs_change_no_bit("--fp16", batches_an_update=2)


@pytest.mark.gpu
@pytest.mark.parametrize("half", ["--fp16", "--bf16"])
def test_faster_kernels_change_only_the_rounding(half):
    by_graphs = train_translator_in_process(half, SMALL_SCALE, device=CudaDevice(), on_gpu=True)

    plain = train_translator_in_process(half, SMALL_SCALE, on_gpu=True)

    assert by_graphs.graphs.served == UPDATES
    assert by_graphs.losses == pytest.approx(plain.losses, rel=2e-2)


@pytest.mark.gpu
@half_precision
@pytest.mark.parametrize(
    "rows, width",
    [
        (50, 64),
        (4001, 512),  # rows that do not divide evenly among the kernel's programs
        (3, 48),  # a width that is no power of 2, as the kernel's ranges are
        (777, 1024),
    ],
)
def test_gradients_of_a_layer_norm_are_those_of_float64(rows, width, dtype):
    """The kernel's sums and products are exact to the rounding of the result."""
    torch.manual_seed(0)
    x = (2 * torch.randn(rows, width) + 1).to("cuda", dtype)
    gradient = torch.randn(rows, width).to("cuda", dtype)
    weight = torch.randn(width).to("cuda", dtype)
    bias = torch.randn(width).to("cuda", dtype)
    _, mean, rstd = torch.native_layer_norm(x.float(), [width], weight.float(), bias.float(), 1e-5)
    wanted = [True, True, True]  # the gradients of x, weight and bias

    found = kernels.layer_norm_backward(gradient, x, [width], mean, rstd, weight, bias, wanted)

    expected = torch.ops.aten.native_layer_norm_backward(
        gradient.double(), x.double(), [width], mean.double(), rstd.double(), weight.double(), bias.double(), wanted
    )
    for ours, exact in zip(found, expected, strict=True):
        assert (ours.double() - exact).norm() < 2 * torch.finfo(dtype).eps * exact.norm()


@pytest.mark.gpu
def test_replays_take_no_more_memory():
    trainer = train_translator_in_process("--fp16", SMALL_SCALE, device=CudaDevice(), on_gpu=True).trainer
    samples = trainer.samples  # of the last update
    reserved = torch.cuda.memory_reserved()

    with metrics.aggregate("train_inner"):
        for _ in range(200):
            trainer.train_step(samples)

    assert torch.cuda.memory_reserved() == reserved
