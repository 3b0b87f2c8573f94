"""CUDA graphs without a GPU: what is captured when, and that training with recorded passes is training without them."""

import copy
import logging

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from deepnet_fairseq.graphs import use_graphs
from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.transformer.slots import Residual

from .support.helpers import PAD, batch, small
from .support.observing import close, net_input, observe
from .support.recorded_graphs import Recorded
from .support.training_twins import SHAPES, as_on_a_gpu, assert_same_training, loss_of, train


@pytest.fixture(autouse=True)
def replays(monkeypatch):
    """Counts passes that came out of a recording."""
    as_on_a_gpu(monkeypatch)
    Recorded.replays = 0
    yield lambda: Recorded.replays


def graphed(model, limit: int = 8):
    use_graphs(model, limit, capture=Recorded)
    return model


@pytest.mark.parametrize("method", sorted(METHODS))
def test_training_with_dropout_and_accumulation_is_the_same(method, replays):
    """The second backward pass of an update must not write into what the first left as `grad`; BranchNorm's factor,
    which rises with the updates, is read at each replay."""
    options = {"method": method, "dropout": 0.1, "attention_dropout": 0.1}
    assert_same_training(graphed(small(2, **options)), small(2, **options))
    assert replays() == 2 * (20 - len(set(SHAPES)))  # both stacks, each shape's first pass apart


def test_20_updates_with_a_loss_scale(replays):
    one, other = (small(2, dropout=0.1) for _ in range(2))
    assert_same_training(graphed(one), other, updates=20, update_freq=1, scale=128.0)
    assert replays()


def test_gradients_are_taken_without_a_copy(replays):
    """Autograd makes the shared buffers the first gradients: no second set of gradients in memory."""
    model = graphed(small(2)).train()
    for _ in range(3):
        model.zero_grad()
        loss_of(model, SHAPES[0], 0).backward()
    gradients = model.encoder.transform.gradients
    assert all(p.grad.data_ptr() == b.data_ptr() for p, b in zip(gradients.parameters, gradients.buffers))


def test_two_forward_passes_before_their_backward_passes(replays):
    one, other = graphed(small(2)).train(), small(2).train()
    for seed in range(3):
        for model in (one, other):
            model.zero_grad()
            first, second = loss_of(model, SHAPES[0], seed), loss_of(model, SHAPES[0], seed + 5)
            first.backward()
            second.backward()
        for a, b in zip(one.parameters(), other.parameters()):
            assert torch.allclose(a.grad, b.grad, atol=1e-6)
    assert replays() == 6  # each stack: the second pass of the first pair captures, then the first of each


def test_outputs_that_are_dropped_free_the_graphs(replays):
    model = graphed(small(2)).train()
    for _ in range(4):
        loss_of(model, SHAPES[0], 0)
    assert replays() == 6


def test_a_second_backward_pass_is_refused(replays):
    model = graphed(small(2)).train()
    loss_of(model, SHAPES[0], 0).backward()
    loss = loss_of(model, SHAPES[0], 0)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="--cuda-graphs"):
        loss.backward()


def test_limit_and_masks(replays, caplog):
    """A mask that is None in one batch and a tensor in another makes two; shapes beyond the limit run as they are."""
    caplog.set_level(logging.INFO)
    model, plain = graphed(small(2), limit=2).train(), small(2).train()
    src, prev = batch()
    full = src.masked_fill(src.eq(PAD), 5)
    for source in (src, full, src, full, src[:2], src[:2]):
        target = prev[: len(source)]
        assert torch.allclose(model(source, None, target)[0], plain(source, None, target)[0], atol=1e-6)
    assert len(model.encoder.transform.captures) == 2
    assert replays() == 4
    (line, _decoders) = [row.message for row in caplog.records if "limit of 2" in row.message]
    assert "--num-batch-buckets" in line


def test_passes_that_train_nothing_are_not_captured(replays):
    model = graphed(small(2))
    src, prev = batch()
    for _ in range(3):
        model.eval()(src, None, prev)
        model.train()
        with torch.no_grad():
            model(src, None, prev)
        model(src, None, prev, return_all_hiddens=True)
    assert replays() == 0
    assert not model.encoder.transform.captures


def test_probes_see_their_update(replays):
    """A probed update after captured ones: the values are those of a plain model."""
    model = graphed(small(2))
    model.train()
    for _ in range(3):
        loss_of(model, SHAPES[0], 0).backward()
    captured = replays()
    model.zero_grad()
    inputs = [net_input()]
    found, expected = observe(model, inputs), observe(small(2).train(), inputs)
    for probe in expected:
        close(found[probe], expected[probe])
    assert replays() == captured


class NumberedBranch(Residual):
    """A factor that rises with the updates and is a number in Python, which no graph would read again."""

    def __init__(self):
        super().__init__()
        self.a = 0.1

    def set_num_updates(self, t):
        self.a = 0.1 * (t + 1)

    def forward(self, x, f):
        return x + self.a * f


def with_numbers(model):
    for layer in model.encoder.layers:
        layer.residual["ffn"] = NumberedBranch()
    return model


def test_a_number_that_changes_is_never_stale(replays, caplog):
    caplog.set_level(logging.INFO)
    assert_same_training(graphed(with_numbers(small(2))), with_numbers(small(2)))
    assert any("numbers in the layers change" in row.message for row in caplog.records)
    assert replays() > 17  # the decoder keeps its graphs


def test_dropout_rates_and_frozen_parameters_are_seen(replays):
    one, other = graphed(small(2)), small(2)
    for model in (one, other):
        train(model, updates=4)
        model.decoder.layers[0].dropout.p = 0.5
        model.encoder.layers[0].fc1.weight.requires_grad_(False)
    assert_same_training(one, other, updates=8)
    assert replays()


def test_parameters_that_move_are_found(replays):
    """`.data` swapped, as a flat optimiser or a cast does; loading copies in place."""
    one, other = graphed(small(2, method="post_ln")), small(2, method="post_ln")
    for model in (one, other):
        train(model, updates=4)
        state = {name: 0.9 * value for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        train(model, updates=4)
        for p in model.parameters():
            p.data = p.data * 1.1
    assert_same_training(one, other, updates=8)


def test_what_cannot_be_captured_runs_as_it_is(replays, caplog):
    caplog.set_level(logging.INFO)

    class Failing(Recorded):
        def __init__(self, *_):
            raise RuntimeError("operation not permitted\nwhen capturing")

    model = small(2, dropout=0.1)
    use_graphs(model, 8, capture=Failing)
    assert_same_training(model, small(2, dropout=0.1), updates=6)
    lines = [row.message for row in caplog.records if "not permitted" in row.message]
    assert len(lines) == 2  # one a stack


def test_a_copy_of_the_model_runs_its_own_layers(replays):
    model = graphed(small(2)).train()
    for seed in range(2):
        loss_of(model, SHAPES[0], seed).backward()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.encoder.layers[0].fc1.weight.mul_(2)
    done = replays()
    assert loss_of(twin, SHAPES[0], 0).item() != pytest.approx(loss_of(model, SHAPES[0], 0).item(), rel=1e-6)
    assert replays() == done + 2  # the original's


def test_hooks_of_distributed_training_get_the_gradients(replays):
    """DistributedDataParallel in one process: its buckets take and return every gradient."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        one = DistributedDataParallel(graphed(small(2, dropout=0.1)))
        other = DistributedDataParallel(small(2, dropout=0.1))
        assert_same_training(one, other, updates=8)
    finally:
        dist.destroy_process_group()
    assert replays()
