"""FLOPs and bytes of one executed operator. Plain arithmetic: numbers and Altair parameters alike.

A FLOP is an addition or a multiplication of a matrix product or a convolution, so one
multiply-add is two; elementwise work is not counted, its time follows its bytes. Bytes are the
traffic an operator cannot avoid: each operand read once, each result written once, nothing kept
between operators (eager execution). Ids are 8 bytes, masks 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

ID_BYTES = 8  # int64
MASK_BYTES = 1
SUM_BYTES = 4  # sums over rows are kept in fp32 whatever the values are


@dataclass(frozen=True)
class Cost:
    """Work of one operator, or of several added up.

    kind and shape tell a calibration which measured rate is this operator's: the name of a pass,
    and (rows, inner, columns) of a product. A sum of several has neither. launches: how many
    operators of torch it stands for. syncs: how often the host waits for its result.
    """

    flops: float
    bytes: float
    kind: str = field(default="", compare=False)
    shape: tuple[float, float, float] | None = field(default=None, compare=False)
    launches: float = field(default=1, compare=False)
    syncs: float = field(default=0, compare=False)

    @property
    def only_moves(self) -> bool:
        """Whether there is no arithmetic that counts; never of an Altair parameter."""
        return isinstance(self.flops, int | float) and self.flops == 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.bytes + other.bytes,
            launches=self.launches + other.launches,
            syncs=self.syncs + other.syncs,
        )

    def __radd__(self, zero: int) -> Cost:
        """So that `sum` starts from its 0."""
        return self


def traffic(
    values: float, value_bytes: float, *, ids: float = 0, masks: float = 0, **marks: Any
) -> Cost:
    """An operator that only moves: values, ids and masks read or written; marks: as of a Cost."""
    return Cost(0, values * value_bytes + ids * ID_BYTES + masks * MASK_BYTES, **marks)


def matmul(
    rows: float, inner: float, columns: float, value_bytes: float, kind: str = "product"
) -> Cost:
    """(rows, inner) @ (inner, columns)."""
    values = rows * inner + inner * columns + rows * columns
    shape = rows, inner, columns
    return Cost(2 * rows * inner * columns, values * value_bytes, kind, shape)


def adding(product: Cost, values: float, value_bytes: float) -> Cost:
    """The same product added to values that are there: they are read as well."""
    return replace(product, bytes=product.bytes + values * value_bytes)


def linear(rows: float, d_in: float, d_out: float, value_bytes: float) -> list[Cost]:
    """Forward of a linear layer with bias."""
    product = matmul(rows, d_in, d_out, value_bytes)
    return [replace(product, bytes=product.bytes + d_out * value_bytes)]


def matmul_backward(rows: float, d_in: float, d_out: float, value_bytes: float) -> list[Cost]:
    """Weight and input gradient of (rows, d_in) @ (d_in, d_out)."""
    return [matmul(d_out, rows, d_in, value_bytes), matmul(rows, d_out, d_in, value_bytes)]


def linear_backward(rows: float, d_in: float, d_out: float, value_bytes: float) -> list[Cost]:
    """Weight, input and bias gradient."""
    bias = traffic(rows * d_out + d_out, value_bytes)
    return [*matmul_backward(rows, d_in, d_out, value_bytes), bias]


@dataclass(frozen=True)
class Conv:
    """A convolution over time with bias: n_in positions of each sequence give n_out."""

    batch_size: float
    n_in: float
    n_out: float
    d_in: float
    d_out: float
    kernel_size: float

    @property
    def weights(self) -> float:
        """Values of the kernel."""
        return self.d_out * self.d_in * self.kernel_size

    @property
    def product(self) -> tuple[float, float, float]:
        """(rows, inner, columns) of the matrix product that does as much."""
        return self.batch_size * self.n_out, self.d_in * self.kernel_size, self.d_out

    @property
    def flops(self) -> float:
        """Each output position sees every tap; the two gradients cost as much each."""
        return 2 * self.batch_size * self.n_out * self.weights


def conv(shape: Conv, value_bytes: float) -> Cost:
    """Forward."""
    values = (
        shape.batch_size * (shape.n_in * shape.d_in + shape.n_out * shape.d_out)
        + shape.weights
        + shape.d_out
    )
    return Cost(shape.flops, values * value_bytes, "conv", shape.product)


def conv_backward(shape: Conv, value_bytes: float) -> list[Cost]:
    """Input, weight and bias gradient: three kernels that each read the incoming gradient.

    torch's one operator launches all of them.
    """
    incoming = shape.batch_size * shape.n_out * shape.d_out
    x = shape.batch_size * shape.n_in * shape.d_in
    moved = (incoming + x + shape.weights) * value_bytes
    product = Cost(shape.flops, moved, "conv_backward", shape.product)
    bias = traffic(incoming + shape.d_out, value_bytes, launches=0)
    return [product, replace(product, launches=0), bias]


def weight_norm(weights: float, n_norms: float, value_bytes: float) -> Cost:
    """Direction and length read, weight and norms written."""
    moved = (2 * weights + n_norms) * value_bytes + n_norms * SUM_BYTES
    return Cost(0, moved, "weight_norm")


def weight_norm_backward(weights: float, n_norms: float, value_bytes: float) -> Cost:
    """Gradient, direction, lengths and norms read; two gradients written."""
    moved = (3 * weights + 2 * n_norms) * value_bytes + n_norms * SUM_BYTES
    return Cost(0, moved, "weight_norm_backward")


def layer_norm(rows: float, width: float, value_bytes: float) -> Cost:
    """Weight and bias read, mean and deviation of each row written."""
    return traffic(2 * rows * width + 2 * width + 2 * rows, value_bytes, kind="layer_norm")


def layer_norm_backward(rows: float, width: float, value_bytes: float) -> Cost:
    """Gradient, input and what the forward pass read and wrote; three gradients written."""
    return traffic(3 * rows * width + 4 * width + 2 * rows, value_bytes, kind="layer_norm_backward")


def dropout(shape: Any, values: float, value_bytes: float) -> list[Cost]:
    """Forward, where there is any: draw a mask, scale it, multiply. As torch does it on a CPU."""
    if not shape.dropout:
        return []
    return [traffic((1 + 2 + 3) * values, value_bytes, launches=3)]


def dropout_backward(shape: Any, values: float, value_bytes: float) -> list[Cost]:
    """The gradient times the mask."""
    return [traffic(3 * values, value_bytes)] if shape.dropout else []


@dataclass(frozen=True)
class Attention:
    """Self-attention of all heads in one operator, over heads that make up the hidden size.

    causal: whether pairs that the mask hides are left out of the FLOPs. torch on a CPU counts,
    by its shapes, all of them; useful are those that are seen.
    """

    batch_size: float
    seq_len: float
    n_heads: float
    hidden_size: float
    causal: bool = False

    @property
    def product_flops(self) -> float:
        """Of the scores, or of the values that they weigh: one multiply-add a pair and width."""
        n = self.seq_len
        pairs = n * (n + 1) / 2 if self.causal else n * n
        return 2 * self.batch_size * pairs * self.hidden_size

    @property
    def scores(self) -> tuple[float, float, float]:
        """(rows, inner, columns) of the product of one head's queries and keys."""
        return self.seq_len, self.hidden_size / self.n_heads, self.seq_len

    def moved(self, n_tensors: float, value_bytes: float) -> float:
        """Bytes of tensors as large as the queries, and of one sum a query and head."""
        rows = self.batch_size * self.seq_len
        return rows * (n_tensors * self.hidden_size * value_bytes + self.n_heads * SUM_BYTES)


def attention(shape: Attention, value_bytes: float) -> Cost:
    """Queries, keys and values read; result and sums written."""
    return Cost(2 * shape.product_flops, shape.moved(4, value_bytes), "attention", shape.scores)


def attention_backward(shape: Attention, value_bytes: float) -> Cost:
    """Scores again, and two products for each of the two; three gradients written."""
    return Cost(5 * shape.product_flops, shape.moved(8, value_bytes), "attention", shape.scores)


def embedding(n_tokens: float, width: float, value_bytes: float) -> Cost:
    """Rows of the table are copied, not the table."""
    return traffic(2 * n_tokens * width, value_bytes, ids=n_tokens, kind="embedding")


def embedding_backward(
    n_tokens: float, vocab_size: float, width: float, value_bytes: float
) -> Cost:
    """Dense: the whole table is zeroed, then a row is read and written for each token."""
    return traffic(
        (vocab_size + 3 * n_tokens) * width, value_bytes, ids=n_tokens, kind="embedding_backward"
    )
