"""Label-smoothed loss of a projection to the vocabulary, a chunk of tokens at a time, in torch alone.

The logits of a batch, their logarithms in float32 and the gradients of both are the largest tensors of a training step
where the vocabulary is large. Here a chunk of tokens at a time goes through the projection, and its gradient with
respect to features and weight is taken at once, as in Liger Kernel's fused linear cross-entropy (Hsu et al. 2024).

Shapes: N tokens, C width, V vocabulary.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# names of the criteria that compute this loss (chunked_cross_entropy.py)
PREFIX = "chunked_"
LABEL_SMOOTHED = f"{PREFIX}label_smoothed_cross_entropy"
CROSS_ENTROPY = f"{PREFIX}cross_entropy"
# bytes of a chunk's logits in float32, by type of device: they fit into a CPU's cache, or keep a GPU busy
LOGITS_BYTES = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}
FEWEST_TOKENS = 256  # of a chunk: fewer make an inefficient matrix product
# factor of a chunk's gradients in fp16, removed after the product: it keeps those of unlikely words in the range of
# fp16, because the loss scale is known in the backward pass only
SCALE = 2.0**10


class Losses(NamedTuple):
    """Losses summed over tokens, in nats.

    loss: the one to train on, with label smoothing; nll_loss: the sum of -log p(target), without smoothing.
    """

    loss: Tensor
    nll_loss: Tensor


def label_smoothed_loss(
    features: Tensor, weight: Tensor, targets: Tensor, smoothing: float, chunk: int, ignored: int | None = None
) -> Losses:
    """Compute fairseq's label-smoothed loss of the logits `features @ weight.T`, summed over tokens.

    features (N, C), weight (V, C), targets (N,); smoothing: epsilon; chunk: tokens at a time, 0 to choose the number by
    LOGITS_BYTES; ignored: a target that has no loss, None if there is none. Differentiable once with respect to
    features and weight; where no gradient is wanted none is computed. With eps_i = epsilon / (V - 1) a token's loss is
    (1 - epsilon - eps_i) (-log p(target)) + eps_i sum_v -log p(v) (Szegedy et al. 2016, section 7, fairseq's variant).
    """
    device = features.device.type
    if torch.is_autocast_enabled(device):  # cast as autocast does for a product; _ProjectedLoss computes without it
        dtype = torch.get_autocast_dtype(device)
        features = features.to(dtype)
        weight = weight.to(dtype)

    if not chunk:
        logits_bytes = LOGITS_BYTES.get(device, LOGITS_BYTES["cuda"])  # another accelerator counts as a GPU
        bytes_a_token = 4 * weight.size(0)  # in float32
        chunk = max(FEWEST_TOKENS, logits_bytes // bytes_a_token)

    # inside an autograd function gradients are disabled, so it is asked here whether they are wanted
    wanted = [torch.is_grad_enabled() and tensor.requires_grad for tensor in (features, weight)]
    return Losses(*_ProjectedLoss.apply(features, weight, targets, smoothing, chunk, wanted, ignored))


class _ProjectedLoss(torch.autograd.Function):
    """Autograd function that computes the gradients in the forward pass; backward multiplies them by the incoming one.

    The arguments are those of label_smoothed_loss, chunk above 0, and wanted: a pair, whether features and weight need
    a gradient. The results are the two of Losses, of which the first is differentiable. Losses and gradients are summed
    in float32, or float64 for features in float64.
    """

    @staticmethod
    def forward(ctx, features, weight, targets, smoothing, chunk, wanted, ignored):
        """Compute both losses, and save the gradients of the first one with respect to features and weight."""
        options = {"dtype": torch.promote_types(features.dtype, torch.float32), "device": features.device}
        eps_i = smoothing / (weight.size(0) - 1)
        target_weight = 1.0 - smoothing - eps_i
        wants_features, wants_weight = wanted

        loss = torch.zeros((), **options)
        nll_loss = torch.zeros((), **options)
        grad_features = torch.empty(features.shape, **options) if wants_features else None
        grad_weight = torch.zeros(weight.shape, **options) if wants_weight else None

        chunks = max(1, math.ceil(len(targets) / chunk))
        x_chunks = features.tensor_split(chunks)
        y_chunks = targets.unsqueeze(1).tensor_split(chunks)
        grad_x_chunks = grad_features.tensor_split(chunks) if wants_features else [None] * chunks

        with torch.autocast(features.device.type, enabled=False):
            for x, y, grad_x in zip(x_chunks, y_chunks, grad_x_chunks, strict=True):  # (n, C), (n, 1), (n, C)
                lprobs = torch.log_softmax(x @ weight.t(), dim=-1, dtype=options["dtype"])  # (n, V)
                if ignored is not None:
                    lprobs.masked_fill_(y.eq(ignored), 0.0)  # these tokens add 0 to the losses
                chunk_nll = -lprobs.gather(1, y).sum()
                nll_loss += chunk_nll
                loss += target_weight * chunk_nll
                if eps_i:
                    loss -= eps_i * lprobs.sum()

                if wants_features or wants_weight:
                    grad_logits = _to_logits_gradient_(lprobs, y, eps_i, target_weight)  # in the memory of lprobs
                    if ignored is not None:
                        grad_logits.masked_fill_(y.eq(ignored), 0.0)
                    _add_gradients(x, weight, grad_logits, grad_x, grad_weight)

        ctx.dtypes = features.dtype, weight.dtype
        ctx.save_for_backward(grad_features, grad_weight)
        ctx.mark_non_differentiable(nll_loss)
        return loss, nll_loss

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, *_):
        """Return the saved gradients times `gradient`, a scalar, in the types of features and weight."""
        gradients = []
        for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            gradients.append(None if saved is None else (saved * gradient).to(dtype))
        return *gradients, None, None, None, None, None  # only features and weight have gradients


def _to_logits_gradient_(lprobs: Tensor, y: Tensor, eps_i: float, target_weight: float) -> Tensor:
    """Overwrite lprobs with d loss / d logits = p - eps_i - (1 - eps - eps_i) onehot(y), and return it.

    lprobs (N, V): logarithms of the probabilities p; y (N, 1): targets; eps_i, target_weight = 1 - eps - eps_i: as in
    label_smoothed_loss.
    """
    gradient = lprobs.exp_()
    if eps_i:
        gradient -= eps_i
    return gradient.scatter_add_(1, y, gradient.new_full((), -target_weight).expand_as(y))


def _add_gradients(
    x: Tensor, weight: Tensor, grad_logits: Tensor, grad_x: Tensor | None, grad_weight: Tensor | None
) -> None:
    """Write the gradient of a chunk's features to grad_x, and add the chunk's gradient of the weight to grad_weight.

    x (n, C): the chunk's features; weight (V, C); grad_logits (n, V), in float32 or float64; grad_x (n, C) and
    grad_weight (V, C), of the type of grad_logits: None if they are not wanted.

    If x is in half precision, grad_logits is rounded to its type for the products; on a CPU, and by a torch before 2.8,
    the product for grad_weight is computed in float32 instead.
    """
    in_half_precision = x.dtype != grad_logits.dtype
    scale = SCALE if x.dtype == torch.float16 else 1.0
    scaled_grad = (grad_logits * scale).to(x.dtype) if in_half_precision else grad_logits

    if grad_x is not None:
        grad_x.copy_(scaled_grad @ weight).div_(scale)
    if grad_weight is None:
        return
    if x.is_cuda and in_half_precision and torch.__version__ >= (2, 8):
        # half precision in, float32 out: fp16 would overflow at a frequent word
        grad_weight.add_(torch.mm(scaled_grad.t(), x, out_dtype=grad_weight.dtype), alpha=1 / scale)
    else:
        grad_weight.addmm_(grad_logits.t(), x.to(grad_weight.dtype))
