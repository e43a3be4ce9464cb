"""The parts of an adaptive softmax: the head, and one band for each tail cluster."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lmtime.config import AdaptiveSoftmaxConfig


def band_shapes(config: AdaptiveSoftmaxConfig) -> list[tuple[int, int]]:
    """(words, width) of the short list and of each tail: sizes of bands, not cutoffs."""
    sizes = (config.cutoffs[0], *config.tail_sizes)
    return list(zip(sizes, (config.head_dim, *config.tail_dims), strict=True))


class BandWeights(NamedTuple):
    """The tensors of a band, in the order in which a function of autograd takes them."""

    projection: Tensor | None  # (width, input_size); None where the widths are the same
    words: Tensor  # (n_words, width)
    clusters: Tensor | None  # (n_tails, width), of a head whose words belong to another layer
    bias: Tensor | None  # (n_words + n_tails,)

    @property
    def n_entries(self) -> int:
        """Of the softmax."""
        return self.words.shape[0] + (0 if self.clusters is None else self.clusters.shape[0])

    @property
    def sizes(self) -> list[int]:
        """Entries that each matrix of the softmax has."""
        return [m.shape[0] for m in (self.words, self.clusters) if m is not None]


class Band(nn.Module):
    """(n_tokens, input_size) -> the scores of a softmax, (n_tokens, n_words + n_clusters).

    n_clusters: entries that stand for tail clusters. words: (n_words, width), vectors of another
    layer; the entries of the clusters are then a matrix of their own, else they follow the words.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        input_size: int,
        *,
        projects: bool,
        n_clusters: int = 0,
        bias: bool = False,
        words: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        n_words, width = shape
        self.projection = nn.Linear(input_size, width, bias=False) if projects else None
        self.clusters = None
        if words is None:
            self.words = nn.Linear(width, n_words + n_clusters, bias=False)
        else:
            self.words = nn.Linear(width, n_words, bias=False, device="meta")
            self.words.weight = words
            if n_clusters:
                self.clusters = nn.Linear(width, n_clusters, bias=False)
        limit = width**-0.5  # as `nn.Linear` draws it
        self.bias = None
        if bias:
            self.bias = nn.Parameter(torch.empty(n_words + n_clusters).uniform_(-limit, limit))

    @property
    def weights(self) -> BandWeights:
        """All tensors; those that this band has not are None."""
        projection, clusters = self.projection, self.clusters
        return BandWeights(
            None if projection is None else projection.weight,
            self.words.weight,
            None if clusters is None else clusters.weight,
            self.bias,
        )

    def forward(self, hidden: Tensor) -> Tensor:
        narrow = hidden if self.projection is None else self.projection(hidden)
        scores = self.words(narrow)
        if self.clusters is not None:
            scores = torch.cat([scores, self.clusters(narrow)], dim=-1)
        return scores if self.bias is None else scores + self.bias
