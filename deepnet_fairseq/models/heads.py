"""What stands behind an encoder-only model: scores of masked tokens, classes of sentences. Names are RoBERTa's."""

from __future__ import annotations

import torch
from fairseq.modules import LayerNorm
from fairseq.utils import get_activation_fn
from torch import Tensor, nn

from ..transformer.dropout import Dropout
from ..transformer.linear import Linear


class MaskedTokenHead(Linear):
    """Scores of the vocabulary, W LN(act(dense(x))) + b (Devlin et al. 2019, section 3.1); W may be the embedding."""

    def __init__(self, dim: int, vocabulary: int, activation_fn: str, embedding: nn.Embedding | None):
        super().__init__(dim, vocabulary)
        self.dense = Linear(dim, dim)
        self.activation_fn = get_activation_fn(activation_fn)
        self.layer_norm = LayerNorm(dim)
        if embedding is not None:
            self.weight = embedding.weight

    def forward(self, features: Tensor, masked_tokens: Tensor | None = None) -> Tensor:
        """features (B, T, C) -> (B, T, V); of the places that masked_tokens (B, T) marks alone, (masked, V)."""
        if masked_tokens is not None:
            features = features[masked_tokens]
        return super().forward(self.layer_norm(self.activation_fn(self.dense(features))))


class ClassificationHead(nn.Module):
    """Classes of a sentence from its first token: out_proj(drop(act(dense(drop(x_0)))))."""

    def __init__(self, dim: int, inner_dim: int, classes: int, activation_fn: str, dropout: float):
        super().__init__()
        self.dense = Linear(dim, inner_dim)
        self.activation_fn = get_activation_fn(activation_fn)
        self.dropout = Dropout(dropout, module_name=type(self).__name__)
        self.out_proj = Linear(inner_dim, classes)
        with torch.no_grad():
            for linear in (self.dense, self.out_proj):
                nn.init.normal_(linear.weight, 0.0, linear.in_features**-0.5)
                nn.init.zeros_(linear.bias)

    def forward(self, features: Tensor) -> Tensor:
        """(B, T, C) -> (B, classes)."""
        x = self.activation_fn(self.dense(self.dropout(features[:, 0])))
        return self.out_proj(self.dropout(x))

    def sizes(self) -> tuple[int, int]:
        """Inner width and classes."""
        return self.dense.out_features, self.out_proj.out_features
