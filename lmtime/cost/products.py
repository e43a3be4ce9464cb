"""Who multiplies on a CPU in fp32, told by the sizes of a product alone.

The layers (`lmtime.softmax.products`) and their costs decide by these rules. Costs know no CPU:
they take oneDNN wherever a rule allows it, the layers by default only where it is much faster.

oneDNN is faster than the BLAS of PyTorch's wheels, but for small products, where the call takes
longer. A sum of up to 192 products errs alike by both. The BLAS begins a new sum there, oneDNN
after up to a thousand: so a longer one by oneDNN errs up to twice as much, unless it is cut into
runs.
"""

from __future__ import annotations

LONGEST_RUN = 192  # values
LEAST_SIDE = 16  # of width and words; below, oneDNN may take ten times as long
LEAST_ROWS = 4  # of fewer the BLAS makes no runs: of two or three it errs half as much where
LONG_SUM = 6_000  # sums are short, and several times as much where they are as long as this
LEAST_WORK = 2**20  # multiplications; below, the call takes as long as the BLAS does
LEAST_RUN_RESULT = 2**16  # values, each run passes over all of them
LEAST_GRADIENT_WIDTH = 256  # of a gradient, for which scores are turned
MOST_TURNED = 2**18  # scores at once
LEAST_GRADIENT_ROWS = 128  # tokens of a gradient in runs


def pays(n_rows: float, inner: float, n_columns: float) -> bool:
    """Whether oneDNN is faster at (n_rows, inner) @ (inner, n_columns)."""
    large = inner >= LEAST_SIDE and n_columns >= LEAST_SIDE
    return large and n_rows * inner * n_columns >= LEAST_WORK


def is_short(n_rows: float, inner: float, n_columns: float) -> bool:
    """Whether it is faster, and errs no more since its sums are short."""
    is_two_or_three = 1 < n_rows < LEAST_ROWS
    return inner <= LONGEST_RUN and not is_two_or_three and pays(n_rows, inner, n_columns)


def is_of_few_rows(n_rows: float, inner: float, n_columns: float) -> bool:
    """Whether it is faster, and errs no more since the BLAS has no runs."""
    return n_rows < LEAST_ROWS and inner >= LONG_SUM and pays(n_rows, inner, n_columns)


def is_in_runs(n_rows: float, inner: float, n_columns: float) -> bool:
    """Whether it is faster in runs, where it is much faster at all."""
    return inner > LONGEST_RUN and n_rows * n_columns >= LEAST_RUN_RESULT


def is_short_gradient(n_words: float, n_tokens: float, width: float) -> bool:
    """The same as `is_short` of (n_tokens, n_words) transposed @ (n_tokens, width)."""
    few = LEAST_ROWS <= n_tokens <= LONGEST_RUN and n_tokens * n_words <= MOST_TURNED
    return few and width >= LEAST_GRADIENT_WIDTH and pays(n_tokens, n_words, width)


def is_gradient_in_runs(n_tokens: float, width: float) -> bool:
    """The same as `is_in_runs`, whatever the number of words."""
    return width >= LEAST_GRADIENT_WIDTH and n_tokens >= LEAST_GRADIENT_ROWS
