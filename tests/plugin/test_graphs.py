"""Tests of --cuda-graphs by graphs that a CPU records: the same training as without, in every method and precision.

The last tests run on a GPU, by its own graphs.
"""

from __future__ import annotations

import itertools
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
from deepnet_fairseq.plugin.graphs.step import GraphedStep
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags

from ..support.errors import refused
from ..support.lm_trainings import FLAGS, KINDS, make_text
from ..support.recorded_graph import RecordedDevice

SMALL_TRANSLATOR = (
    "--cpu", "--arch=deepnet_transformer_tiny", "--encoder-layers=2", "--decoder-layers=2", "--max-tokens=200",
    "--benchmark-vocabulary=100", "--optimizer=deepnet_adam", "--lr=2e-3", "--warmup-updates=5", "--dropout=0",
    "--share-all-embeddings",
)  # fmt: skip
PAD = 1
UPDATES = 20
SHAPES = 8  # shapes of batches that get a graph, unless a test says otherwise
ENOUGH_MEMORY = 2**40
ROUNDING = 2e-3  # bits a token: what products of more rows, with padding, change in a loss
SMALL_SCALE = "--fp16-init-scale=16"  # nothing overflows


@pytest.fixture(autouse=True)
def small_benchmark_corpus(monkeypatch):
    monkeypatch.setattr(corpus, "SENTENCES", 1000)
    corpus.sentences.cache_clear()
    yield
    corpus.sentences.cache_clear()


class EagerGraph:
    """A graph that runs the function again."""

    def capture(self, function):
        self.replay = function


class EagerDevice(RecordedDevice):
    """Device whose graphs compute what the plain passes compute."""

    def graph(self):
        return EagerGraph()


class UncapturableGraph:
    def capture(self, function):
        raise CaptureFailed("--cuda-graphs: no")


class UncapturableDevice(RecordedDevice):
    """Device on which nothing can be captured."""

    def graph(self):
        return UncapturableGraph()


class TrainingRun(NamedTuple):
    """Result of some updates: what each one logged, None where it overflowed, and the model after the last."""

    losses: list[float | None]  # bits a token
    norms: list[float | None]  # of the gradients
    weights: dict[str, torch.Tensor]
    trainer: Trainer


def use_graphs(trainer, graphs) -> None:
    trainer.graphs = graphs
    trainer.task.graphs = graphs


def first_batches(trainer, count: int) -> list[dict]:
    """Begin epoch 1; return its first batches."""
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

    device: of its graphs; padded_by: the GraphedStep of another training, to whose shapes batches are padded.
    """
    flags = [*SMALL_TRANSLATOR, *flags, f"--update-freq={batches_an_update}"]
    if on_gpu:
        flags.remove("--cpu")
    trainer = trainer_of(flags)
    if device is not None:
        use_graphs(trainer, GraphedStep(most_shapes, PAD, device))
    if padded_by is not None and hasattr(trainer.criterion, "masks_padding"):
        trainer.criterion.masks_padding = True  # products of as many rows, which round alike

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


def assert_graphs_change_no_bit(*flags, device=None, **options) -> GraphedStep:
    """Compare a training by graphs, recorded ones by default, with one without graphs on the same padded batches."""
    by_graphs = train_translator_in_process(*flags, device=device or RecordedDevice(), **options)
    graphs = by_graphs.trainer.task.graphs
    assert graphs.obstacle is None
    assert graphs.served >= UPDATES
    assert graphs.unserved == 0

    plain = train_translator_in_process(*flags, padded_by=graphs, **options)
    assert by_graphs.losses == plain.losses
    assert by_graphs.norms == plain.norms
    for name, weight in plain.weights.items():
        assert torch.equal(by_graphs.weights[name], weight), name
    return graphs


@pytest.mark.parametrize(
    "method", [name if name == "deepnorm" else pytest.param(name, marks=pytest.mark.smoke) for name in sorted(METHODS)]
)
def test_graphs_change_no_bit_of_any_method(method):
    assert_graphs_change_no_bit("--method", method, *METHODS[method].train_flags)


@pytest.mark.parametrize(
    "flags",
    [
        ("--fp16", "--fp16-init-scale=4194304", "--method=branchnorm", "--branchnorm-updates=7"),  # overflows first
        ("--bf16", "--criterion=chunked_label_smoothed_cross_entropy"),
        *(
            pytest.param(flags, marks=pytest.mark.smoke)
            for flags in (
                ("--fp16", "--fp16-no-flatten-grads"),
                ("--fp16", "--optimizer=adam"),
                ("--amp",),
                ("--memory-efficient-fp16", "--optimizer=adam"),
                ("--criterion=chunked_label_smoothed_cross_entropy",),
                ("--criterion=chunked_label_smoothed_cross_entropy", "--fp16"),
                ("--pro-res", "--pro-res-updates=3", "--qk-norm"),
                ("--store-ema", "--ema-decay=0.9", "--ema-fp32"),
            )
        ),
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
    graphs = assert_graphs_change_no_bit()

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
            return None
        return original(self, *args, **kwargs)

    monkeypatch.setattr(GraphedStep, "step", step_of_two_in_three)
    mixed = train_translator_in_process(device=RecordedDevice(), **three_each)

    assert mixed.losses == pytest.approx(plain.losses, abs=ROUNDING)


def test_each_replay_draws_dropout_from_the_present_seed():
    """Replays of one batch at one update's seed differ from those at another's, and repeat at the same."""
    trainer = train_translator_in_process("--dropout=0.3", device=RecordedDevice(), updates=2).trainer
    sample = trainer.samples[0]

    def loss_with_seed(seed):
        torch.manual_seed(seed)
        return trainer.graphs.step(sample, trainer.model, trainer.criterion, trainer.optimizer, 3, False)[0].item()

    first = loss_with_seed(1)
    other = loss_with_seed(2)
    again = loss_with_seed(1)

    assert again == first
    assert other != first


def test_dropout_is_that_of_the_eager_step():
    by_graphs = train_translator_in_process("--dropout=0.1", device=RecordedDevice())

    plain = train_translator_in_process("--dropout=0.1", padded_by=by_graphs.trainer.task.graphs)

    assert by_graphs.losses == plain.losses
    assert by_graphs.norms == plain.norms


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--sentence-avg",),  # the sample size is that of the sentences, without the rows of padding
        ("--criterion=chunked_label_smoothed_cross_entropy", "--loss-chunk-tokens=50"),
    ],
    ids=" ".join,
)
def test_padding_changes_no_loss_and_no_gradient(flags):
    by_graphs = train_translator_in_process(*flags, device=RecordedDevice(), updates=3, most_shapes=2)

    plain = train_translator_in_process(*flags, updates=3)

    assert by_graphs.losses == pytest.approx(plain.losses, abs=ROUNDING)
    assert by_graphs.norms == pytest.approx(plain.norms, rel=1e-3)


def test_a_loss_that_reads_numbers_trains_as_without_graphs():
    with_device = train_translator_in_process("--report-accuracy", device=RecordedDevice(), updates=3)

    plain = train_translator_in_process("--report-accuracy", updates=3)

    assert "label_smoothed_cross_entropy.py" in with_device.trainer.graphs.obstacle
    assert with_device.losses == plain.losses
    assert with_device.norms == plain.norms


def test_a_plain_training_can_use_graphs(monkeypatch):
    monkeypatch.setattr(settings, "device_of", lambda trainer: RecordedDevice())
    trainer = trainer_of([*SMALL_TRANSLATOR])

    trainer.use_graphs(SHAPES)

    assert trainer.graphs is not None


@pytest.mark.parametrize("flag", ["--checkpoint-activations", "--use-bmuf"])
def test_a_setting_that_allows_no_graphs_is_named(flag, monkeypatch):
    monkeypatch.setattr(settings, "device_of", lambda trainer: RecordedDevice())
    trainer = trainer_of([*SMALL_TRANSLATOR, flag])

    trainer.use_graphs(SHAPES)

    assert trainer.graphs is None
    assert flag in settings.why_settings_forbid_graphs(trainer)


def test_a_hook_is_called_in_each_pass():
    """A hook that is there at the first batch ends the graphs, so that it sees every batch."""
    trainer = trainer_of(SMALL_TRANSLATOR)
    use_graphs(trainer, GraphedStep(SHAPES, PAD, RecordedDevice()))
    passes_seen = []
    trainer.get_model().decoder.layers[0].register_forward_hook(lambda *_: passes_seen.append(1))
    batches = first_batches(trainer, 3)

    with metrics.aggregate():
        for batch in batches:
            trainer.train_step([batch])

    assert len(passes_seen) == 3
    assert trainer.graphs.served == 0


def test_memory_that_ends_leaves_fewer_graphs():
    """Shapes without a graph go into larger ones; the training is whole and its losses are those of a plain one."""
    device = RecordedDevice(free=(*[ENOUGH_MEMORY] * 5, 0))

    by_graphs = train_translator_in_process(device=device, updates=6)

    graphs = by_graphs.trainer.graphs
    assert 0 < len(graphs.captured) < SHAPES
    assert graphs.served + graphs.unserved == 6
    assert graphs.obstacle is None
    plain = train_translator_in_process(updates=6)
    assert by_graphs.losses == pytest.approx(plain.losses, abs=ROUNDING)


def test_without_free_memory_a_training_goes_on_without_graphs():
    with_device = train_translator_in_process(device=RecordedDevice(free=(0,)), updates=3)

    plain = train_translator_in_process(updates=3)

    graphs = with_device.trainer.graphs
    assert graphs.obstacle is not None
    assert graphs.for_checkpoint == 0
    assert with_device.losses == plain.losses
    assert with_device.norms == plain.norms


@pytest.mark.parametrize(
    "seconds_of_a_replay, served, for_checkpoint", [(0.5, 3, SHAPES), (1.5, 0, 0)], ids=["faster", "slower"]
)
def test_auto_uses_graphs_only_if_they_are_faster(seconds_of_a_replay, served, for_checkpoint):
    """Two plain passes take 1 second each, then two replays are timed."""
    device = RecordedDevice(times=(1.0, 1.0, seconds_of_a_replay, seconds_of_a_replay))
    trainer = trainer_of(SMALL_TRANSLATOR)
    graphs = GraphedStep(SHAPES, PAD, device, compare=True)
    use_graphs(trainer, graphs)
    batches = first_batches(trainer, 3)
    assert graphs.for_checkpoint == "auto"

    with metrics.aggregate():
        losses = [trainer.train_step([batch])["loss"] for batch in batches]

    assert graphs.served == served
    assert graphs.for_checkpoint == for_checkpoint
    plain = train_translator_in_process(updates=3)
    assert losses == pytest.approx(plain.losses, abs=ROUNDING)


def test_a_later_epoch_with_longer_sentences_gets_more_graphs():
    """Batches of a new shard that no graph covers get graphs of their own, at most a quarter as many."""
    trainer = train_translator_in_process(device=RecordedDevice(), updates=2).trainer
    graphs = trainer.graphs
    longer = corpus.LONGEST + 10
    sentences = [torch.full((length,), 9) for length in (longer, longer - 5, 20, 20)]
    sizes = numpy.array([len(sentence) for sentence in sentences])
    dictionary = trainer.task.source_dictionary
    dataset = LanguagePairDataset(sentences, sizes, dictionary, sentences, sizes, dictionary)
    batches = [[0, 1], [2, 3]]
    served_before = graphs.served

    graphs.plan(EpochBatchIterator(dataset, dataset.collater, batches))
    with metrics.aggregate():
        for batch in batches:
            trainer.train_step([dataset.collater([dataset[number] for number in batch])])

    assert graphs.served == served_before + 2
    assert SHAPES < len(graphs.captured) <= SHAPES + SHAPES // 4


@pytest.mark.parametrize(
    "flag, began_with, expected",
    [
        (None, 0, 0),
        (None, 16, 16),
        ("32", 16, 16),
        ("32", 0, 0),
        ("auto", 16, 16),
        ("0", 16, 0),
        ("auto", "auto", "auto"),
    ],
)
def test_a_resumed_run_keeps_what_it_began_with(flag, began_with, expected):
    assert settings.after_resume(flag, began_with) == expected


def resumed_from_a_checkpoint_with(shape_limit, folder):
    """Save a checkpoint of a trainer with --cuda-graphs; return a trainer without the flag that has loaded it."""
    path = str(folder / "checkpoint.pt")
    trainer = trainer_of([*SMALL_TRANSLATOR, f"--cuda-graphs={shape_limit}", f"--save-dir={folder}"])
    trainer.begin_epoch(1)
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(path, {"train_iterator": {"epoch": 1}})

    resumed = trainer_of([*SMALL_TRANSLATOR, f"--save-dir={folder}"])
    resumed.load_checkpoint(path)
    return resumed


def test_a_run_resumes_with_the_number_of_shapes_in_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "device_of", lambda trainer: RecordedDevice())

    resumed = resumed_from_a_checkpoint_with(8, tmp_path)

    assert resumed.graphs.limit == 8


def test_a_run_that_began_without_graphs_resumes_without(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "device_of", lambda trainer: RecordedDevice())

    resumed = resumed_from_a_checkpoint_with(0, tmp_path)

    assert resumed.graphs is None


@pytest.mark.parametrize("number", ["x", "-1", "1.5", ""])
def test_a_number_of_shapes_is_a_whole_number(number):
    with refused(f"--cuda-graphs {number}"):
        settings.parse_cuda_graphs(number)


def train_language_model_in_process(text, kind, *flags, device=None):
    """Train for 8 updates, without graphs unless a device is given; return the losses and the GraphedStep or None."""
    words = (text, *KINDS[kind], *FLAGS, *flags)
    trainer = build_trainer(parse_training_flags([str(word) for word in words]))
    graphs = None if device is None else GraphedStep(6, PAD, device)
    use_graphs(trainer, graphs)
    batches = first_batches(trainer, 8)
    with metrics.aggregate():
        losses = [trainer.train_step([batch])["loss"] for batch in batches]
    return losses, graphs


@pytest.mark.parametrize("flags", [(), ("--criterion=chunked_cross_entropy",)], ids=" ".join)
def test_causal_language_models_train_by_graphs(flags, tmp_path):
    text = make_text(tmp_path)

    losses, graphs = train_language_model_in_process(text, "causal", *flags, device=RecordedDevice())

    plain, _ = train_language_model_in_process(text, "causal", *flags)
    assert losses == pytest.approx(plain, abs=ROUNDING)
    assert len(losses) == 8
    assert graphs.served == 8
    assert graphs.obstacle is None


def test_a_masked_language_model_trains_without_graphs(tmp_path):
    """Its batches have what no graph reads."""
    text = make_text(tmp_path)

    losses, graphs = train_language_model_in_process(text, "masked", device=RecordedDevice())

    plain, _ = train_language_model_in_process(text, "masked")
    assert losses == pytest.approx(plain, abs=ROUNDING)
    assert graphs.served == 0
    assert graphs.obstacle is not None


def test_a_number_of_shapes_is_refused_on_a_cpu():
    with refused("--cuda-graphs 8"):
        trainer_of([*SMALL_TRANSLATOR, "--cuda-graphs=8"])


@pytest.mark.parametrize("most", [1, 5, 40, 1000])
def test_the_chosen_shapes_cover_every_batch(most):
    draw = numpy.random.default_rng(0)
    sizes = draw.integers(1, 60, (500, 2))
    batches = [draw.integers(0, 500, rows) for rows in draw.integers(1, 20, 100)]
    shapes_of_batches = shapes.shapes_of(batches, sizes)

    chosen = shapes.choose(shapes_of_batches, most)

    different = numpy.unique(shapes_of_batches, axis=0)
    assert len(chosen) == min(most, len(different))
    for shape in shapes_of_batches:
        assert shapes.covering(tuple(shape), chosen)


def test_recorded_graphs_compute_what_the_eager_step_computes():
    """This holds the recording itself, on which the other tests rest, to be right."""
    recorded = train_translator_in_process("--method=branchnorm", device=RecordedDevice())

    eager = train_translator_in_process("--method=branchnorm", device=EagerDevice())

    assert recorded.losses == eager.losses
    assert recorded.norms == eager.norms


@pytest.fixture
def restarts(monkeypatch):
    """Provide the list of the programs that would take this one's place, on a device where every capture fails."""
    started = []
    monkeypatch.setattr(settings, "device_of", lambda trainer: UncapturableDevice(times=(1.0, 1.0)))
    monkeypatch.setattr(settings.os, "execv", lambda program, words: started.append(words))
    monkeypatch.setattr(settings.sys, "argv", ["/bin/fairseq-train", "data"])
    monkeypatch.setattr(settings.sys, "orig_argv", ["python", "/bin/fairseq-train", "data"])
    return started


def test_a_failed_capture_ends_a_run_with_a_number_of_shapes(restarts):
    with pytest.raises(CaptureFailed):
        train_translator_in_process("--cuda-graphs=8", updates=1)

    assert restarts == []


def test_a_failed_capture_with_auto_starts_the_run_again_without(restarts):
    with pytest.raises(CaptureFailed):
        train_translator_in_process("--cuda-graphs=auto", updates=1)

    assert [words[1:] for words in restarts] == [["/bin/fairseq-train", "data", "--cuda-graphs", "0"]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_gradient_of_a_bias_is_the_sum_over_rows(dtype):
    """The faster kernel computes it by a product with ones."""
    torch.manual_seed(0)
    x = torch.randn(300, 40).to(dtype)

    with kernels.FasterKernels(most_rows=300, device=x.device):
        kept_dimension = x.sum(0, keepdim=True)
        flat = x.sum(0)

    exact = x.double().sum(0)
    assert torch.equal(kept_dimension[0], flat)
    assert (flat.double() - exact).abs().max() < torch.finfo(dtype).eps * exact.abs().max() * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "summed",
    [lambda x: x.sum(1), lambda x: torch.cat([x, x]).sum(0), lambda x: x.float().sum(0)],
    ids=["over columns", "of more rows", "in float32"],
)
def test_other_sums_than_those_of_biases_stay_torchs(summed, dtype):
    torch.manual_seed(0)
    x = torch.randn(300, 40).to(dtype)

    with kernels.FasterKernels(most_rows=300, device=x.device):
        found = summed(x)

    assert torch.equal(found, summed(x))


# on a GPU


@pytest.fixture
def deterministic(monkeypatch):
    """Kernels whose sums do not depend on the order in which parts of them end, as those of attention may."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("method", sorted(METHODS))
def test_cuda_graphs_change_no_bit_of_any_method(method, deterministic):
    """CUDA graphs make the same bits as the kernels one by one, dropout included."""
    flags = ("--fp16", SMALL_SCALE, "--dropout=0.1", "--method", method, *METHODS[method].train_flags)

    assert_graphs_change_no_bit(*flags, device=CudaDevice(faster=False), on_gpu=True)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--bf16", "--dropout=0.1"),
        ("--amp",),
        ("--fp16", "--optimizer=adam"),
        ("--fp16", "--fp16-init-scale=4194304", "--attention-dropout=0.1"),  # overflows first
        ("--fp16", "--pro-res", "--pro-res-updates=3", "--qk-norm"),
        ("--fp16", "--method=branchnorm", "--branchnorm-updates=7", "--store-ema", "--ema-decay=0.9"),
        ("--fp16", "--criterion=chunked_label_smoothed_cross_entropy"),
    ],
    ids=" ".join,
)
def test_cuda_graphs_change_no_bit_under_other_settings(flags, deterministic):
    assert_graphs_change_no_bit(*flags, device=CudaDevice(faster=False), on_gpu=True)


@pytest.mark.gpu
def test_cuda_graphs_change_no_bit_with_two_batches_an_update(deterministic):
    assert_graphs_change_no_bit("--fp16", device=CudaDevice(faster=False), on_gpu=True, batches_an_update=2)


@pytest.mark.gpu
@pytest.mark.parametrize("half", ["--fp16", "--bf16"])
def test_faster_kernels_change_only_the_rounding(half):
    by_graphs = train_translator_in_process(half, SMALL_SCALE, device=CudaDevice(), on_gpu=True)

    plain = train_translator_in_process(half, SMALL_SCALE, on_gpu=True)

    assert by_graphs.trainer.graphs.served == UPDATES
    assert by_graphs.losses == pytest.approx(plain.losses, rel=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows, width", [(50, 64), (4001, 512), (3, 48), (777, 1024)])
def test_gradients_of_a_layer_norm_are_those_of_float64(rows, width, dtype):
    """The kernel's sums and products are exact to the rounding of the result."""
    torch.manual_seed(0)
    x = (2 * torch.randn(rows, width) + 1).to("cuda", dtype)
    gradient = torch.randn(rows, width).to("cuda", dtype)
    weight = torch.randn(width).to("cuda", dtype)
    bias = torch.randn(width).to("cuda", dtype)
    _, mean, rstd = torch.native_layer_norm(x.float(), [width], weight.float(), bias.float(), 1e-5)

    found = kernels.layer_norm_backward(gradient, x, [width], mean, rstd, weight, bias, [True] * 3)

    exact = [tensor.double() for tensor in (gradient, x, mean, rstd, weight, bias)]
    expected = torch.ops.aten.native_layer_norm_backward(*exact[:2], [width], *exact[2:], [True] * 3)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.double() - theirs).norm() < 2 * torch.finfo(dtype).eps * theirs.norm()


@pytest.mark.gpu
def test_replays_take_no_more_memory():
    trainer = train_translator_in_process("--fp16", SMALL_SCALE, device=CudaDevice(), on_gpu=True).trainer
    samples = trainer.samples
    reserved = torch.cuda.memory_reserved()

    with metrics.aggregate("train_inner"):
        for _ in range(200):
            trainer.train_step(samples)

    assert torch.cuda.memory_reserved() == reserved
