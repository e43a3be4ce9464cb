"""Rates of single operators by size, and what launching one and waiting for it cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor, nn

from lmtime.calibration import Pass, Product
from lmtime.cost import operators as op
from lmtime.timing.calls import N_SAMPLES, N_WARM_UP, Budget, Pool, last_cache_bytes, time_call
from lmtime.timing.conditions import precision

N_COLD = 3  # how many products are measured with empty caches too
FLUSH_BYTES = 2**28  # at least
WIDTH = 1_024  # of the activations that are normalised and gated
VOCAB_SIZE, EMBEDDING_SIZE = 32_768, 256
# Bytes per parameter in fp32: 11 and 20 values of four bytes (`cost.optimizers`).
OPTIMIZERS = {
    "sgd_nesterov": (44, lambda p: torch.optim.SGD(p, 1e-4, momentum=0.9, nesterov=True)),
    "adamw": (80, lambda p: torch.optim.AdamW(p, 1e-4)),
}
# Operators that meet the same values more than once, so that a cache may spare the memory.
REUSING = ("embedding", "embedding_backward", "index_select", *OPTIMIZERS)


def gemm(
    sizes: Sequence[int], device: str, dtype: str, pool: Pool, budget: Budget
) -> list[Product]:
    """Rows of products of every three sizes, the least work first, on the same operands again.

    The second operand is a transposed weight, as in a linear layer.
    """
    rows: list[Product] = []
    for shape in sorted(product(sizes, repeat=3), key=lambda s: (math.prod(s), s)):
        guess_s = _guess_s(shape, rows[-1].flops_per_s if rows else math.inf)
        if budget.allows(f"{dtype} product of {shape}", guess_s):
            rows.append(_product(shape, device, dtype, pool, max_s=budget.each_s))
    return rows


def cold_gemm(
    hot: Sequence[Product], device: str, dtype: str, pool: Pool, budget: Budget
) -> list[Product]:
    """The largest products again, each call after a buffer larger than the caches was written."""
    n_bytes = max(2 * last_cache_bytes(device), FLUSH_BYTES)
    flush = torch.empty(n_bytes, dtype=torch.uint8, device=device)
    rows = []
    for row in hot[-N_COLD:]:
        shape = (row.rows, row.inner, row.columns)
        if budget.allows(f"{dtype} product of {shape}, cold", _guess_s(shape, row.flops_per_s)):
            rows.append(_product(shape, device, dtype, pool, flush))
    return rows


def _guess_s(shape: tuple[int, ...], flops_per_s: float) -> float:
    """Seconds of the fewest calls that make a measurement."""
    return (N_WARM_UP + N_SAMPLES[0]) * 2 * math.prod(shape) / flops_per_s


def _product(
    shape: tuple[int, int, int],
    device: str,
    dtype: str,
    pool: Pool,
    flush: Tensor | None = None,
    max_s: float | None = None,
) -> Product:
    n_rows, inner, columns = shape
    x, weight = pool.operands((n_rows, inner), (columns, inner))
    out = pool.result(n_rows, columns)
    before = None if flush is None else lambda: flush.fill_(1)
    with precision(dtype):
        timed = time_call(
            lambda: torch.mm(x, weight.t(), out=out), device, max_s=max_s, before=before
        )
    flops = 2 * math.prod(shape)
    cache = "hot" if flush is None else "cold"
    return Product(dtype, *shape, flops / timed.median_s, flops / timed.best_s, timed.n, cache)


def copies(sizes: Sequence[int], device: str, pool: Pool, budget: Budget) -> list[Pass]:
    """Copy, scaled addition (triad) and sum of fp32; sizes are the bytes read and written."""
    rows = []
    for n_bytes in sizes:
        (x,) = pool.operands((n_bytes // 8,))
        a, b = pool.operands((n_bytes // 12,), (n_bytes // 12,))
        (values,) = pool.operands((n_bytes // 4,))
        half, third = pool.result(n_bytes // 8), pool.result(n_bytes // 12)
        calls = {
            "copy": (lambda x=x, out=half: out.copy_(x), 2 * x.nbytes),
            "add": (lambda a=a, b=b, out=third: torch.add(a, b, alpha=0.5, out=out), 3 * a.nbytes),
            "sum": (lambda values=values: values.sum(), values.nbytes + 4),
        }
        rows += _passes(calls, device, budget)
    return rows


def passes(sizes: Sequence[int], device: str, pool: Pool, budget: Budget) -> list[Pass]:
    """The operators of a step that move and hardly compute; sizes are the bytes of one operand.

    Each allocates its result, as in a step: on a CPU, large ones are given new pages every time.
    """
    rows = []
    for n_bytes in sizes:
        calls = _logit_calls(n_bytes, pool) | _row_calls(n_bytes, pool)
        rows += _passes(calls | _embedding_calls(n_bytes, device, pool), device, budget)
        rows += _optimizer_passes(n_bytes // 4, device, pool, budget)
    return rows


Calls = dict[str, tuple[Callable[[], object], float]]  # {operator: (call, bytes)}


def _passes(calls: Calls, device: str, budget: Budget) -> list[Pass]:
    rows = []
    for name, (call, n_bytes) in calls.items():
        if not budget.allows(f"{name} of {n_bytes:.0f} bytes", 5 * n_bytes / 1e9):
            continue
        timed = time_call(call, device)
        rates = n_bytes / timed.median_s, n_bytes / timed.best_s
        rows.append(Pass(name, int(n_bytes), *rates, timed.n))
    return rows


def _logit_calls(n_bytes: int, pool: Pool) -> Calls:
    shape = max(n_bytes // (4 * VOCAB_SIZE), 1), VOCAB_SIZE
    logits, grad = pool.operands(shape, shape)
    log_p = torch.log_softmax(logits, -1)
    backward = torch.ops.aten._log_softmax_backward_data
    n = logits.numel()
    return {
        "log_softmax": (lambda: torch.log_softmax(logits, -1), op.traffic(2 * n, 4).bytes),
        "log_softmax_backward": (
            lambda: backward(grad, log_p, 1, torch.float32),
            op.traffic(3 * n, 4).bytes,
        ),
    }


def _row_calls(n_bytes: int, pool: Pool) -> Calls:
    x, weight, bias = pool.operands((n_bytes // (4 * WIDTH), WIDTH), (WIDTH,), (WIDTH,))
    n, n_rows = x.numel(), len(x)
    return {
        "layer_norm": (
            lambda: torch.native_layer_norm(x, (WIDTH,), weight, bias, 1e-5),
            op.traffic(2 * n + 2 * WIDTH + 2 * n_rows, 4).bytes,  # mean and deviation are kept
        ),
        "glu": (lambda: nn.functional.glu(x), op.traffic(1.5 * n, 4).bytes),
        "gelu": (lambda: nn.functional.gelu(x), op.traffic(2 * n, 4).bytes),
    }


def _embedding_calls(n_bytes: int, device: str, pool: Pool) -> Calls:
    """Ids as frequent as 1 / rank: uniform ones would hit more rows than words do."""
    n_tokens, width = n_bytes // (4 * EMBEDDING_SIZE), EMBEDDING_SIZE
    table, grad = pool.operands((VOCAB_SIZE, width), (n_tokens, width))
    ids = (VOCAB_SIZE ** torch.rand(n_tokens, device=device)).long() - 1
    backward = torch.ops.aten.embedding_dense_backward
    looked_up = op.embedding(n_tokens, width, 4).bytes
    return {
        "embedding": (lambda: nn.functional.embedding(ids, table), looked_up),
        "embedding_backward": (
            lambda: backward(grad, ids, VOCAB_SIZE, -1, False),
            op.embedding_backward(n_tokens, VOCAB_SIZE, width, 4).bytes,
        ),
        "index_select": (lambda: table.index_select(0, ids), looked_up),
    }


def _optimizer_passes(n_parameters: int, device: str, pool: Pool, budget: Budget) -> list[Pass]:
    rows = []
    for name, (bytes_each, build) in OPTIMIZERS.items():
        if not budget.allows(f"{name} of {n_parameters} parameters", n_parameters / 1e7):
            continue
        value, grad = (t.clone() for t in pool.operands((n_parameters,), (n_parameters,)))
        parameter = nn.Parameter(value)
        parameter.grad = grad
        optimizer = build([parameter])
        rows += _passes({name: (optimizer.step, bytes_each * n_parameters)}, device, budget)
    return rows


CHAIN = 100


def overheads(device: str) -> dict[str, float]:
    """Seconds per operator of a chain of tiny ones, on device and host, and of one wait."""
    x = torch.ones(1, device=device)
    leaf = torch.ones(1, device=device, requires_grad=True)

    def chain() -> None:
        for _ in range(CHAIN):
            x.mul_(1.0)

    def recorded() -> None:
        y = leaf
        for _ in range(CHAIN):
            y = y * 1.0
        y.backward()

    return {
        "launch_s": time_call(chain, device).median_s / CHAIN,
        "host_s_per_operator": time_call(recorded, device, host=True).median_s / (2 * CHAIN),
        "sync_s": time_call(x.item, device, host=True).median_s,
    }
