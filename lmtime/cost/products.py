"""Who multiplies on a CPU in fp32, told by the sizes of a product alone.

The layers (`lmtime.softmax.products`) and their costs decide by these rules. oneDNN is faster than
the BLAS of PyTorch's wheels, but for small products, where the call takes longer. A sum of up to
192 products errs alike by both. The BLAS begins a new sum there, oneDNN after up to a thousand: so
a longer one by oneDNN errs up to twice as much, unless it is cut into runs.
"""

from __future__ import annotations

LONGEST_RUN = 192  # values
LEAST_ROWS, LEAST_SIDE = 4, 16  # below, the BLAS may err less and oneDNN take ten times as long
LEAST_WORK = 2**20  # multiplications; below, the call takes as long as the BLAS does
LEAST_RUN_RESULT = 2**16  # values, each run passes over all of them
LEAST_GRADIENT_ROWS, LEAST_GRADIENT_WIDTH = 4, 256  # of a gradient, for which scores are turned
MOST_TURNED = 2**18  # scores; a copy of them is made


def pays(n_rows: float, inner: float, n_columns: float) -> bool:
    """Whether oneDNN is faster at (n_rows, inner) @ (inner, n_columns)."""
    large = n_rows >= LEAST_ROWS and inner >= LEAST_SIDE and n_columns >= LEAST_SIDE
    return large and n_rows * inner * n_columns >= LEAST_WORK


def is_short(n_rows: float, inner: float, n_columns: float) -> bool:
    """Whether it is faster and errs no more."""
    return inner <= LONGEST_RUN and pays(n_rows, inner, n_columns)


def is_in_runs(n_rows: float, inner: float, n_columns: float) -> bool:
    """Whether it is faster in runs that err no more."""
    return inner > LONGEST_RUN and n_rows * n_columns >= LEAST_RUN_RESULT


def is_short_gradient(n_rows: float, n_tokens: float, width: float) -> bool:
    """The same as `is_short` of (n_tokens, n_rows) transposed @ (n_tokens, width)."""
    enough = n_tokens >= LEAST_GRADIENT_ROWS and width >= LEAST_GRADIENT_WIDTH
    few = n_tokens <= LONGEST_RUN and n_rows * n_tokens <= MOST_TURNED
    return enough and few and n_rows * n_tokens * width >= LEAST_WORK
