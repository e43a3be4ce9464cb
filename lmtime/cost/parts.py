"""Parts of Transformers: forward and backward pass and weights of each, as torch executes them.

Unfused on a CPU, under autograd; `n` is rows (tokens), `b` bytes a value. Traffic of operators
that follow one another is given as one cost: time at best does not depend on how it is cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmtime.cost import operators as op
from lmtime.cost.operators import Cost, traffic

WIDE_BYTES = 4  # fp32


@dataclass(frozen=True)
class Part:
    """Work of both passes, and the sizes of the tensors of weights. Parts add up."""

    forward: tuple[Cost, ...] = ()
    backward: tuple[Cost, ...] = ()
    weights: tuple[int, ...] = ()

    def __add__(self, other: Part) -> Part:
        return Part(
            self.forward + other.forward,
            self.backward + other.backward,
            self.weights + other.weights,
        )

    def __radd__(self, zero: int) -> Part:
        """So that `sum` starts from its 0."""
        return self


def elementwise(
    forward: float, backward: float, b: float, *, launches: tuple[int, int] = (1, 1)
) -> Part:
    """Values read or written in the passes, by so many operators, and no product."""
    passes = (
        (traffic(values, b, launches=n),) if values else ()
        for values, n in zip((forward, backward), launches, strict=True)
    )
    return Part(*passes)


def linear(n: int, d_in: int, d_out: int, b: float, *, bias: bool, tied: bool = False) -> Part:
    """(n, d_in) -> (n, d_out); a tied matrix is counted where it is first used."""
    product = op.matmul(n, d_in, d_out, b)
    forward, backward = [product], op.matmul_backward(n, d_in, d_out, b)
    if bias:
        forward, backward = op.linear(n, d_in, d_out, b), op.linear_backward(n, d_in, d_out, b)
    weights = (() if tied else (d_in * d_out,)) + ((d_out,) if bias else ())
    return Part(tuple(forward), tuple(backward), weights)


def layer_norm(n: int, d: int, b: float) -> Part:
    """One kernel a pass; mean and deviation of each row are kept."""
    values = elementwise(2 * n * d + 2 * d + 2 * n, 3 * n * d + 4 * d + 2 * n, b)
    return values + Part(weights=(d, d))


def rms_norm(n: int, d: int, b: float, *, around_one: bool = False) -> Part:
    """Written out in transformers: square, mean, root, two products; around_one: 1 + weight.

    In fp32 whatever the values are, but for the product with a weight that is not around one:
    what comes in and out of half precision is cast, and so is a weight around one.
    """
    narrow, narrow_backward = (0, 0) if around_one else (2 * n * d + d, 6 * n * d + 2 * d)
    forward = 7 * n * d + 6 * n + (3 if around_one else 1) * d - narrow
    backward = 24 * n * d + 9 * n + 2 * d - narrow_backward
    launches, cast = (7 if around_one else 6, 14), 2 * n * d + (d if around_one else 0)
    part = elementwise(forward, backward, WIDE_BYTES, launches=launches)
    part += elementwise(narrow, narrow_backward, b, launches=(0, 0)) + Part(weights=(d,))
    return part + casts(cast, cast, b, launches=3 if around_one else 2)


def casts(forward: float, backward: float, b: float, *, launches: int) -> Part:
    """Values made wide or narrow again; none of what is wide already."""
    if b == WIDE_BYTES:
        return Part()
    return elementwise(forward, backward, b + WIDE_BYTES, launches=(launches, launches))


def residual(n: int, d: int, b: float) -> Part:
    """The sum, and that of the two gradients which meet there."""
    return elementwise(3 * n * d, 3 * n * d, b)


def shared_input(n: int, d: int, times: int, b: float) -> Part:
    """Gradients of one input of several projections are added one by one."""
    return elementwise(0, 3 * n * d * (times - 1), b, launches=(0, times - 1))


def activation(name: str, values: int, b: float) -> Part:
    """Values read and written: `gelu_new` is written out, the gradient of `silu` too."""
    forward, backward, launches = {
        "gelu_new": (18, 28, (8, 11)),
        "silu": (2, 17, (1, 7)),
        "gelu": (2, 3, (1, 1)),
        "gelu_pytorch_tanh": (2, 3, (1, 1)),
    }[name]
    return elementwise(forward * values, backward * values, b, launches=launches)


def rotary(batch_size: int, seq_len: int, n_heads: int, head_size: int, b: float) -> Part:
    """Positions turned into queries or keys: products with cosine and sine of a turned copy."""
    values, table = batch_size * seq_len * n_heads * head_size, 2 * seq_len * head_size
    copied = 2 * values if n_heads > 1 and seq_len > 1 else 0  # gradient: from heads into rows
    launches = 5, 7 + (copied > 0)
    return elementwise(10 * values + table, 14 * values + table + copied, b, launches=launches)


@dataclass(frozen=True)
class Attention:
    """Fused attention of one layer. pairs: (query, key) of one sequence and head, that count."""

    batch_size: int
    seq_len: int
    n_heads: int
    n_kv_heads: int
    head_size: int
    pairs: int
    is_masked: bool = False  # a mask is given, as for a window; keys are then repeated

    def part(self, b: float) -> Part:
        """2 products forward; 5 backward, for the scores are computed again."""
        n = self.batch_size * self.seq_len
        queries, sums = n * self.n_heads * self.head_size, n * self.n_heads
        keys = n * self.n_kv_heads * self.head_size
        flops = 4 * self.batch_size * self.n_heads * self.head_size * self.pairs
        mask = self.batch_size * self.seq_len**2 if self.is_masked else 0
        read = queries if self.is_masked else keys
        sums_bytes = sums * op.SUM_BYTES
        kernel = Part(
            (Cost(flops, (2 * queries + 2 * read + mask) * b + sums_bytes),),
            (Cost(flops * 5 // 2, (4 * queries + 4 * read + mask) * b + sums_bytes),),
        )
        if not self.is_masked:
            return kernel
        # Numbers out of the booleans.
        made = Part((traffic(4 + mask, b, masks=mask, launches=3),))
        if self.n_heads == self.n_kv_heads:
            return kernel + made
        copied, into_rows = (4 * queries, 2 * keys) if self.n_kv_heads > 1 else (0, 0)
        added, launches = 2 * (queries + keys) + into_rows, (2, 2 + (into_rows > 0))
        return kernel + made + elementwise(copied, added, b, launches=launches)


def embedding(n: int, vocab_size: int, d: int, b: float) -> Part:
    """A lookup; its dense gradient."""
    return Part(
        (op.embedding(n, d, b),),
        (op.embedding_backward(n, vocab_size, d, b),),
        (vocab_size * d,),
    )


def added_positions(batch_size: int, seq_len: int, d: int, b: float) -> Part:
    """One row for each position, added to every sequence."""
    values, table = batch_size * seq_len * d, seq_len * d
    return elementwise(2 * values + table, values + table if batch_size > 1 else 0, b)


def cross_entropy(n: int, vocab_size: int, b: float) -> Part:
    """Log-softmax and the mean over the targets."""
    values = n * vocab_size
    return Part(
        (traffic(2 * values + 3, b, ids=n, launches=2),),
        (traffic(4 * values + 2, b, ids=n, launches=2),),
    )
