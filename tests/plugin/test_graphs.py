"""Tests of --cuda-graphs by graphs that a CPU records: the same training as without, in every method and precision."""

from __future__ import annotations

import itertools

import numpy
import pytest
import torch
from fairseq.data import LanguagePairDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging import metrics

from benchmarks import corpus
from benchmarks.models import trainer_of
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.graphs import kernels, settings, shapes
from deepnet_fairseq.plugin.graphs.capture import CaptureFailed, CudaDevice
from deepnet_fairseq.plugin.graphs.static_batch import StaticBatch, shape_of
from deepnet_fairseq.plugin.graphs.step import GraphedStep
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags

from ..support.lm_trainings import FLAGS, KINDS, make_text
from ..support.recorded_graph import RecordedDevice

SMALL = (
    "--cpu", "--arch=deepnet_transformer_tiny", "--encoder-layers=2", "--decoder-layers=2", "--max-tokens=200",
    "--benchmark-vocabulary=100", "--optimizer=deepnet_adam", "--lr=2e-3", "--warmup-updates=5", "--dropout=0",
    "--share-all-embeddings",
)  # fmt: skip
PAD = 1
UPDATES = 20


@pytest.fixture(autouse=True)
def few_sentences(monkeypatch):
    monkeypatch.setattr(corpus, "SENTENCES", 1000)
    corpus.sentences.cache_clear()
    yield
    corpus.sentences.cache_clear()


class Eager:
    """A graph that runs the function again."""

    def capture(self, function):
        self.replay = function


class EagerDevice(RecordedDevice):
    def graph(self):
        return Eager()


def trained(*flags, device=None, updates=UPDATES, frequency=1, padded_by=None, shapes_of=8, on_gpu=False):
    """Train a small model; return its losses, its parameters and its trainer.

    device: of its graphs; padded_by: the GraphedStep of another training, to whose shapes batches are padded.
    """
    flags = [*SMALL, *flags, f"--update-freq={frequency}"]
    if on_gpu:
        flags.remove("--cpu")
    trainer = trainer_of(flags)
    if device is not None:
        trainer.graphs = trainer.task.graphs = GraphedStep(shapes_of, PAD, device)
    if padded_by is not None and hasattr(trainer.criterion, "masks_padding"):
        trainer.criterion.masks_padding = True  # products of as many rows, which round alike
    iterator = trainer.get_train_iterator(1)
    trainer.begin_epoch(1)
    clip, norms = trainer.clip_grad_norm, []
    trainer.clip_grad_norm = lambda largest: norms.append(clip(largest)) or norms[-1]
    batches, losses = itertools.cycle(list(iterator.next_epoch_itr(shuffle=True))), []
    while len(losses) < updates:
        samples = list(itertools.islice(batches, frequency))
        if padded_by is not None:
            samples = [padded(sample, padded_by) for sample in samples]
        with metrics.aggregate("train_inner"):
            logged = trainer.train_step(samples)
        losses.append(None if logged is None else (logged["loss"], float(norms[-1])))
    return losses, {name: p.detach().clone() for name, p in trainer.model.named_parameters()}, trainer


def padded(sample, graphs):
    """Return a copy of a sample with the padding that graphs give it."""
    batch = StaticBatch(sample, shapes.covering(shape_of(sample), graphs.captured_shapes), PAD)
    batch.fill(sample)
    return batch.sample | {"id": sample["id"], "ntokens": sample["ntokens"]}


def check(*flags, device=None, **settings):
    """Compare a training by graphs, recorded ones by default, with one on the same padded batches."""
    losses, weights, trainer = trained(*flags, device=device or RecordedDevice(), **settings)
    graphs = trainer.task.graphs
    assert graphs.obstacle is None and graphs.served >= UPDATES and graphs.unserved == 0
    expected, own, _ = trained(*flags, padded_by=graphs, **settings)
    assert losses == expected
    assert all(torch.equal(weights[name], own[name]) for name in own)
    return graphs


@pytest.mark.parametrize(
    "method", [name if name == "deepnorm" else pytest.param(name, marks=pytest.mark.smoke) for name in sorted(METHODS)]
)
def test_every_method(method):
    check("--method", method, *METHODS[method].train_flags)


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
def test_settings(flags):
    check(*flags)


@pytest.mark.smoke
@pytest.mark.parametrize("flags", [(), ("--fp16",), ("--bf16",)], ids=" ".join)
def test_update_freq(flags):
    check(*flags, frequency=2)


def test_several_shapes_are_used():
    graphs = check()
    assert len(graphs.captured) == 8


@pytest.mark.smoke
@pytest.mark.parametrize("which", range(3))
def test_a_batch_that_no_graph_serves_joins_the_others(which, monkeypatch):
    """Batches of an update with a graph and without one add up, whichever of three has none."""
    (losses, *_), step, calls = trained(frequency=3, updates=6), GraphedStep.step, itertools.count()

    def sometimes(self, *args, **kwargs):
        return step(self, *args, **kwargs) if next(calls) % 3 != which else None

    monkeypatch.setattr(GraphedStep, "step", sometimes)
    mixed, *_ = trained(device=RecordedDevice(), frequency=3, updates=6)
    assert [loss for loss, _ in mixed] == pytest.approx([loss for loss, _ in losses], abs=2e-3)


def test_dropout_draws_anew():
    """Replays of one batch at one update's seed differ from those at another's, and repeat at the same."""
    _, _, trainer = trained("--dropout=0.3", device=RecordedDevice(), updates=2)
    graphs, (sample, *_) = trainer.task.graphs, trainer.samples
    found = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        found.append(graphs.step(sample, trainer.model, trainer.criterion, trainer.optimizer, 3, False)[0].item())
    assert found[0] == found[2] != found[1]


def test_dropout_is_that_of_the_eager_step():
    losses, weights, trainer = trained("--dropout=0.1", device=RecordedDevice())
    expected, own, _ = trained("--dropout=0.1", padded_by=trainer.task.graphs)
    assert losses == expected


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
    losses, weights, _ = trained(*flags, device=RecordedDevice(), updates=3, shapes_of=2)
    plain, own, _ = trained(*flags, updates=3)
    assert [loss for loss, _ in losses] == pytest.approx([loss for loss, _ in plain], abs=2e-3)
    assert [norm for _, norm in losses] == pytest.approx([norm for _, norm in plain], rel=1e-3)


def test_a_loss_that_reads_numbers_trains_as_without_graphs():
    losses, _, trainer = trained("--report-accuracy", device=RecordedDevice(), updates=3)
    assert "label_smoothed_cross_entropy.py" in trainer.graphs.obstacle
    expected, *_ = trained("--report-accuracy", updates=3)
    assert losses == expected


@pytest.mark.parametrize(
    "flags, setting",
    [(("--checkpoint-activations",), "--checkpoint-activations"), (("--use-bmuf",), "--use-bmuf"), ((), None)],
)
def test_settings_without_graphs(flags, setting, monkeypatch):
    trainer = trainer_of([*SMALL, *flags])
    monkeypatch.setattr(settings, "device_of", lambda trainer: RecordedDevice())
    trainer.use_graphs(8)
    assert (trainer.graphs is None) == (setting is not None)
    assert setting is None or setting in settings.setting_without_graphs(trainer)


def test_a_hook_is_called_in_each_pass():
    """The passes stay fairseq's while somebody listens, so that a hook sees every batch."""
    trainer = trainer_of(SMALL)
    trainer.graphs = trainer.task.graphs = GraphedStep(8, PAD, RecordedDevice())
    seen = []
    trainer.get_model().decoder.layers[0].register_forward_hook(lambda *_: seen.append(1))
    batches = list(trainer.get_train_iterator(1).next_epoch_itr(shuffle=True))[:3]
    trainer.begin_epoch(1)
    with metrics.aggregate():
        for batch in batches:
            trainer.train_step([batch])
    assert len(seen) == 3 and trainer.graphs.served == 0


def test_memory_that_ends_leaves_fewer_graphs():
    """Shapes without a graph go into larger ones; the training is whole and its losses are those of a plain one."""
    enough, none = 2**40, 0
    device = RecordedDevice(free=(enough, enough, enough, enough, enough, none))
    losses, _, trainer = trained(device=device, updates=6)
    graphs = trainer.graphs
    assert 0 < len(graphs.captured) < 8 and graphs.served + graphs.unserved == 6 and graphs.obstacle is None
    plain, *_ = trained(updates=6)
    assert [loss for loss, _ in losses] == pytest.approx([loss for loss, _ in plain], abs=2e-3)


def test_no_memory_at_all():
    losses, _, trainer = trained(device=RecordedDevice(free=(0,)), updates=3)
    assert trainer.graphs.obstacle is not None and trainer.graphs.for_checkpoint == 0
    expected, *_ = trained(updates=3)
    assert losses == expected


@pytest.mark.parametrize("replay, served", [(0.5, 3), (1.5, 0)])
def test_auto_takes_what_is_faster(replay, served):
    device = RecordedDevice(times=(1.0, 1.0, replay, replay))
    trainer = trainer_of(SMALL)
    graphs = trainer.graphs = trainer.task.graphs = GraphedStep(8, PAD, device, compare=True)
    batches = list(trainer.get_train_iterator(1).next_epoch_itr(shuffle=True))[:3]
    trainer.begin_epoch(1)
    assert graphs.for_checkpoint == "auto"
    with metrics.aggregate():
        losses = [trainer.train_step([batch])["loss"] for batch in batches]
    assert graphs.served == served and graphs.for_checkpoint == (8 if served else 0)
    plain, *_ = trained(updates=3)
    assert losses == pytest.approx([loss for loss, _ in plain], abs=2e-3)


def test_a_later_epoch_with_longer_sentences():
    """Batches of a new shard that no graph covers get graphs of their own, at most a quarter as many."""
    _, _, trainer = trained(device=RecordedDevice(), updates=2)
    graphs = trainer.graphs
    longer = corpus.LONGEST + 10
    source = [torch.full((length,), 9) for length in (longer, longer - 5, 20, 20)]
    sizes = numpy.array([len(line) for line in source])
    dictionary = trainer.task.source_dictionary
    dataset = LanguagePairDataset(source, sizes, dictionary, source, sizes, dictionary)
    batches = [[0, 1], [2, 3]]
    graphs.plan(EpochBatchIterator(dataset, dataset.collater, batches))
    before = graphs.served
    with metrics.aggregate():
        for batch in batches:
            trainer.train_step([dataset.collater([dataset[n] for n in batch])])
    assert graphs.served == before + 2
    assert 8 < len(graphs.captured) <= 10


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


def test_a_checkpoint_holds_the_number_of_shapes(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "device_of", lambda trainer: RecordedDevice())
    found = []
    for limit, path in ((8, "with.pt"), (0, "without.pt")):
        trainer = trainer_of([*SMALL, f"--cuda-graphs={limit}", f"--save-dir={tmp_path}"])
        trainer.begin_epoch(1)
        trainer.consolidate_optimizer()
        trainer.save_checkpoint(str(tmp_path / path), {"train_iterator": {"epoch": 1}})
        resumed = trainer_of([*SMALL, f"--save-dir={tmp_path}"])
        resumed.load_checkpoint(str(tmp_path / path))
        found.append(None if resumed.graphs is None else resumed.graphs.limit)
    assert found == [8, None]


@pytest.mark.parametrize("flag", ["x", "-1", "1.5", ""])
def test_wrong_numbers(flag):
    with pytest.raises(UserError, match="--cuda-graphs"):
        settings.parse_cuda_graphs(flag)


@pytest.mark.parametrize(
    "kind, more, served",
    [("causal", (), 8), ("causal", ("--criterion=chunked_cross_entropy",), 8), ("masked", (), 0)],
)
def test_language_models(kind, more, served, tmp_path):
    """Causal ones train by graphs; a masked one's batches have what no graph reads."""
    folder, runs = make_text(tmp_path), []
    for device in (RecordedDevice(), None):
        trainer = build_trainer(parse_training_flags([str(word) for word in (folder, *KINDS[kind], *FLAGS, *more)]))
        graphs = trainer.graphs = trainer.task.graphs = None if device is None else GraphedStep(6, PAD, device)
        batches = trainer.get_train_iterator(1).next_epoch_itr(shuffle=True)
        trainer.begin_epoch(1)
        with metrics.aggregate():
            runs.append(([trainer.train_step([batch])["loss"] for batch in itertools.islice(batches, 8)], graphs))
    (losses, graphs), (plain, _) = runs
    assert losses == pytest.approx(plain, abs=2e-3)
    assert graphs.served == served and (graphs.obstacle is None) == (served > 0)


def test_flag_is_for_gpus():
    with pytest.raises(UserError, match="--cuda-graphs 8"):
        trainer_of([*SMALL, "--cuda-graphs=8"])


def test_table_covers_every_batch():
    draw = numpy.random.default_rng(0)
    sizes = draw.integers(1, 60, (500, 2))
    batches = [draw.integers(0, 500, rows) for rows in draw.integers(1, 20, 100)]
    of_all = shapes.shapes_of(batches, sizes)
    for number in (1, 5, 40, 1000):
        table = shapes.choose(of_all, number)
        assert len(table) == min(number, len(numpy.unique(of_all, axis=0)))
        assert all(shapes.covering(tuple(shape), table) for shape in of_all)


def test_recorded_graphs_are_right():
    """Eager and recorded graphs agree, so that the recording itself is right."""
    recorded, eager = (trained("--method=branchnorm", device=device)[0] for device in (RecordedDevice(), EagerDevice()))
    assert recorded == eager


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
def test_every_method_captured(method, deterministic):
    """CUDA graphs make the same bits as the kernels one by one, dropout included."""
    flags = ("--fp16", "--fp16-init-scale=16", "--dropout=0.1", "--method", method, *METHODS[method].train_flags)
    check(*flags, device=CudaDevice(faster=False), on_gpu=True)


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
def test_settings_captured(flags, deterministic):
    check(*flags, device=CudaDevice(faster=False), on_gpu=True)


@pytest.mark.gpu
def test_update_freq_captured(deterministic):
    check("--fp16", device=CudaDevice(faster=False), on_gpu=True, frequency=2)


@pytest.mark.gpu
@pytest.mark.parametrize("half", ["--fp16", "--bf16"])
def test_faster_kernels_change_only_the_rounding(half):
    losses, _, trainer = trained(half, "--fp16-init-scale=16", device=CudaDevice(), on_gpu=True)
    plain, *_ = trained(half, "--fp16-init-scale=16", on_gpu=True)
    assert trainer.graphs.served == UPDATES
    assert [loss for loss, _ in losses] == pytest.approx([loss for loss, _ in plain], rel=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows, width", [(50, 64), (4001, 512), (3, 48), (777, 1024)])
def test_gradients_of_a_layer_norm(rows, width, kind):
    """The kernel's sums and products are those of float64, to the rounding of the result."""
    torch.manual_seed(0)
    x = (2 * torch.randn(rows, width) + 1).to("cuda", kind)
    gradient, weight, bias = (torch.randn(size).to("cuda", kind) for size in ((rows, width), width, width))
    _, mean, rstd = torch.native_layer_norm(x.float(), [width], weight.float(), bias.float(), 1e-5)
    found = kernels.layer_norm_backward(gradient, x, [width], mean, rstd, weight, bias, [True] * 3)
    exact = [tensor.double() for tensor in (gradient, x, mean, rstd, weight, bias)]
    expected = torch.ops.aten.native_layer_norm_backward(*exact[:2], [width], *exact[2:], [True] * 3)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.double() - theirs).norm() < 2 * torch.finfo(kind).eps * theirs.norm()


@pytest.mark.gpu
def test_memory_stays_level():
    _, _, trainer = trained("--fp16", "--fp16-init-scale=16", device=CudaDevice(), on_gpu=True)
    reserved = torch.cuda.memory_reserved()
    samples = trainer.samples
    with metrics.aggregate("train_inner"):
        for _ in range(200):
            trainer.train_step(samples)
    assert torch.cuda.memory_reserved() == reserved


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_gradient_of_a_bias(kind):
    """The product with ones is the sum over rows, and other sums stay torch's."""
    torch.manual_seed(0)
    x = torch.randn(300, 40).to(kind)
    with kernels.FasterKernels(most_rows=300, device=x.device):
        whole, flat = x.sum(0, keepdim=True), x.sum(0)
        others = x.sum(1), torch.cat([x, x]).sum(0), x.float().sum(0)
    exact = x.double().sum(0)
    assert torch.equal(whole[0], flat)
    assert (flat.double() - exact).abs().max() < torch.finfo(kind).eps * exact.abs().max() * 2
    expected = x.sum(1), torch.cat([x, x]).sum(0), x.float().sum(0)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(others, expected, strict=True))


class Failing(RecordedDevice):
    """Device on which nothing can be captured."""

    def graph(self):
        return FailingGraph()


class FailingGraph:
    def capture(self, function):
        raise CaptureFailed("--cuda-graphs: no")


@pytest.mark.parametrize("flag", ["8", "auto"])
def test_a_failed_capture_ends_the_run_or_starts_it_again(flag, monkeypatch):
    """A number of shapes ends the run; with auto fairseq-train starts anew without graphs, once."""
    started = []
    monkeypatch.setattr(settings, "device_of", lambda trainer: Failing(times=(1.0, 1.0)))
    monkeypatch.setattr(settings.os, "execv", lambda program, words: started.append(words))
    monkeypatch.setattr(settings.sys, "argv", ["/bin/fairseq-train", "data"])
    monkeypatch.setattr(settings.sys, "orig_argv", ["python", "/bin/fairseq-train", "data"])
    with pytest.raises(CaptureFailed):
        trained(f"--cuda-graphs={flag}", updates=1)
    assert [words[1:] for words in started] == [["/bin/fairseq-train", "data", "--cuda-graphs", "0"]] * (flag == "auto")
