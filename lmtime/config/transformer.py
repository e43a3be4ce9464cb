"""The Transformer language model with adaptive input, and one training step of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmtime.config.adaptive import ADAPTIVE_NAMES, AdaptiveSoftmaxConfig, check_output_layer
from lmtime.config.checks import require_dropout, require_positive, whole_fields
from lmtime.errors import UsageError


@dataclass(frozen=True)
class TransformerConfig:
    """The decoder of Baevski and Auli (2019): pre-norm layers between adaptive input and softmax.

    The paper's model for Google Billion Word has 24 layers; every other number of the large
    preset is our reconstruction from the published count of parameters. Words of the adaptive
    input and of the adaptive softmax share their vectors, band by band; the projections are not
    shared. With a full softmax nothing is.
    """

    hidden_size: int = 384
    ffn_size: int = 2_048
    n_heads: int = 6
    n_layers: int = 24
    vocab_size: int = 198_368
    cutoffs: tuple[int, ...] = (15_000, 40_000)
    div_value: float = 4.0
    output_layer: str = "adaptive"
    batch_size: int = 2
    seq_len: int = 128
    dropout: float = 0.0  # behind the positions, each attention and each feed-forward part

    corpus: ClassVar[str] = "word-counts"  # large enough for the vocabulary

    def __post_init__(self) -> None:
        require_positive(self, whole_fields(TransformerConfig))
        require_dropout(self)
        check_output_layer(self)
        object.__setattr__(self, "cutoffs", self.adaptive.cutoffs)  # the input has bands too
        if self.hidden_size % self.n_heads:
            raise UsageError(
                f"hidden_size={self.hidden_size} does not divide into n_heads={self.n_heads}: "
                f"choose a multiple"
            )

    @property
    def n_tokens(self) -> int:
        """Tokens in one step."""
        return self.batch_size * self.seq_len

    @property
    def final_hidden_size(self) -> int:
        """Width before the output layer."""
        return self.hidden_size

    @property
    def ties_words(self) -> bool:
        """Whether input and output layer share the vectors of the words."""
        return self.output_layer in ADAPTIVE_NAMES

    @property
    def adaptive(self) -> AdaptiveSoftmaxConfig:
        """The partition of the vocabulary, of the input and of an adaptive output layer."""
        return AdaptiveSoftmaxConfig(
            self.hidden_size, self.vocab_size, self.cutoffs, self.div_value
        )
