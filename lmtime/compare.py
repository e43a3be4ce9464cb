"""Output layers side by side: one run, interleaved, with what each needs beside time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from lmtime import corpora, stats
from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.errors import UsageError
from lmtime.plans import PARTITIONS, Sizes
from lmtime.records import append_jsonl, document, read_jsonl, results_root
from lmtime.softmax.contestants import ADAPTIVE, Contestant, Task, contestants
from lmtime.study import alone_on
from lmtime.timing.clock import clock_for
from lmtime.timing.conditions import device_folder, load_average, provenance
from lmtime.timing.counters import count
from lmtime.timing.memory import peak_bytes
from lmtime.timing.ownership import Ownership
from lmtime.timing.pages import are_kept
from lmtime.timing.timer import time_once
from lmtime.timing.trace import trace

Say = Callable[[str], None]
CORPUS, NAME = "movie-reviews", "output_layers"
RETURNED = f"{NAME}_returned"  # of a process whose freed memory goes back to the system
SIZES = ("hidden_size", "vocab_size", "n_tokens")
N_ROUNDS = (3, 40)
SLOW_MS = 400.0  # a layer above it is in fewer rounds, beside the reference all the same


@dataclass(frozen=True)
class Shape:
    """Sizes of the comparison, and where torch's layer cuts the vocabulary."""

    hidden_size: int = 1024
    vocab_size: int = 33_278
    n_tokens: int = 1024
    cutoffs: tuple[int, ...] = (2_000, 10_000)

    @property
    def adaptive(self) -> AdaptiveSoftmaxConfig:
        """Torch's shape, checked."""
        return AdaptiveSoftmaxConfig(self.hidden_size, self.vocab_size, self.cutoffs)

    @property
    def partitions(self) -> dict[str, AdaptiveSoftmaxConfig]:
        """Those of `plans.PARTITIONS` that cut this vocabulary at all, by name.

        None is wider than the hidden state; a rank that is no less than it is left out.
        """
        fitted = {name: self._fitted(**options) for name, options in PARTITIONS.items()}
        return {name: config for name, config in fitted.items() if config is not None}

    def _fitted(
        self,
        cutoffs: tuple[int, ...],
        tail_widths: tuple[int, ...] | None = None,
        **ranks: int,
    ) -> AdaptiveSoftmaxConfig | None:
        inside = tuple(c for c in cutoffs if c < self.vocab_size)
        if not inside:
            return None
        if tail_widths is not None:
            tail_widths = tuple(min(w, self.hidden_size) for w in tail_widths[: len(inside)])
        ranks = {name: rank for name, rank in ranks.items() if rank < self.hidden_size}
        sizes = (self.hidden_size, self.vocab_size, inside)
        return AdaptiveSoftmaxConfig(*sizes, tail_widths=tail_widths, **ranks)


def compare(
    names: Sequence[str],
    shape: Shape,
    *,
    device: str = "cpu",
    max_s: float = 30.0,
    seed: int = 0,
    say: Say = lambda text: None,
) -> list[dict[str, object]]:
    """One row a layer: time of forward and backward pass, ratios with intervals, memory, work.

    The reference is torch's adaptive softmax, measured whether it is named or not. Targets are
    words of the default corpus in their order, hidden states random normal.
    """
    wanted = contestants([ADAPTIVE, *names], _task(shape, device, seed))
    needs = {}
    for one in wanted:
        say(f"{one.name}: memory and work")
        needs[one.name] = _needs(one, device)
    samples = _interleaved(wanted, device, max_s, seed, say)
    return [_row(one, samples, seed) | needs[one.name] for one in wanted]


def _task(shape: Shape, device: str, seed: int) -> Task:
    if shape.n_tokens < 1:
        raise UsageError(f"n_tokens={shape.n_tokens} must be a whole number of at least 1")
    stream = corpora.load(CORPUS, vocab_size=shape.vocab_size).stream()
    ids = np.resize(stream, shape.n_tokens).astype(np.int64)
    return Task.of(ids, shape.adaptive, shape.partitions, device=device, seed=seed)


def compared_document(
    names: Sequence[str], shape: Shape, device: str, *, max_s: float, command: str, say: Say
) -> dict[str, object]:
    """The JSON document of a comparison."""
    load = load_average()
    rows = compare(names, shape, device=device, max_s=max_s, say=say)
    conditions = asdict(provenance(command, device, load_average=load))
    sizes = {name: getattr(shape, name) for name in SIZES}
    return document("compare", conditions, rows, cutoffs=list(shape.cutoffs), **sizes)


def run_missing(
    plan: Sizes,
    *,
    device: str,
    command: str,
    study: str = NAME,
    max_s: float = 30.0,
    say: Say = lambda text: None,
) -> Path:
    """Compare at every shape of a plan that has no rows yet; their file, `<study>.jsonl`.

    Two calls for one device at a time are refused, and RETURNED where pages are kept already.
    """
    if study == RETURNED and are_kept():
        raise UsageError("this process keeps pages, which cannot be undone: start another for them")
    folder = results_root() / device_folder(device)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{study}.jsonl"
    with alone_on(device):
        for i, (hidden_size, n_tokens, names) in enumerate(plan, 1):
            shape = Shape(hidden_size, n_tokens=n_tokens)
            sizes = {name: getattr(shape, name) for name in SIZES}
            title = f"{study} {i}/{len(plan)}: hidden {hidden_size}, {n_tokens} tokens"
            known = {r["layer"] for r in read_jsonl(path) if sizes.items() <= r.items()}
            if known.issuperset(names):
                say(f"{title}: already compared")
                continue
            say(title)
            load = load_average()
            rows = compare(names, shape, device=device, max_s=max_s, say=say)
            conditions = provenance(command, device, load_average=load)
            append_jsonl(folder / "provenance.jsonl", [asdict(conditions)])
            more = {"run_id": conditions.run_id, "device_name": conditions.device_name}
            more |= {"device": device, "n_threads": conditions.n_threads}
            append_jsonl(path, [{**more, **sizes, **row} for row in rows])
    return path


Samples = dict[str, dict[int, float]]  # {layer: {round: ms}}


def _needs(one: Contestant, device: str) -> dict[str, int]:
    """Memory and work of a step; its calls also warm the layer up."""
    ownership = Ownership(one.layer, {}, None)
    flops = count(one.step, ownership).total.flops
    traced = trace(one.step, ownership, device=device).rows()
    one.clear()
    return {
        "peak_bytes": peak_bytes(one.step, device),
        "gradient_bytes": one.gradient_bytes,
        "flops": flops,
        "kernels": sum(row["kernels"] for row in traced),
        "syncs": sum(row["syncs"] for row in traced) + one.hidden_waits * (device == "cpu"),
    }


def _interleaved(
    wanted: Sequence[Contestant], device: str, max_s: float, seed: int, say: Say
) -> Samples:
    """Every layer and its products once a round, in a new order each; slow ones in some rounds."""
    clock, rng = clock_for(device), np.random.default_rng(seed)
    products = {_products_of(one): one.products for one in wanted}
    for step in products.values():
        step()
    steps = {one.name: one.step for one in wanted} | products
    found: Samples = {name: {} for name in steps}
    slow, every, start = [], 1, time.monotonic()
    for i in range(N_ROUNDS[1]):
        turn = [name for name in steps if name not in slow or i % every == 0]
        for j in rng.permutation(len(turn)):
            found[turn[j]][i] = time_once(steps[turn[j]], clock)
        say(f"round {i + 1}")
        if i == 0:
            once = {name: ms[0] for name, ms in found.items()}
            slow = [name for name, ms in once.items() if ms > SLOW_MS]
            every = _rounds_between(once, slow, max_s)
        enough = all(len(ms) >= N_ROUNDS[0] for ms in found.values())
        if enough and time.monotonic() - start > max_s:
            break
    return found


def _rounds_between(once: dict[str, float], slow: Sequence[str], max_s: float) -> int:
    """Slow layers take half of the time: every so many rounds."""
    slow_ms = sum(once[name] for name in slow)
    quick_ms = sum(once.values()) - slow_ms
    n_slow = max(N_ROUNDS[0], 500 * max_s / slow_ms) if slow_ms else N_ROUNDS[1]
    n_quick = min(N_ROUNDS[1], max(N_ROUNDS[0], 500 * max_s / max(quick_ms, 1e-9)))
    return max(int(n_quick // n_slow), 1)


def _products_of(one: Contestant) -> str:
    """A name that layers share whose products are the same."""
    return f"products {id(one.products)}"


def _row(one: Contestant, samples: Samples, seed: int) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    own = samples[one.name]
    summary = stats.summarise(np.array(list(own.values())), rng)
    to_torch = _ratio(own, samples[ADAPTIVE], rng)
    to_products = _ratio(own, samples[_products_of(one)], rng)
    return {
        "layer": one.name,
        "exact": one.same_as == ADAPTIVE,
        "same_as": one.same_as,
        "latency_ms": summary.median,
        "latency_ms_low": summary.low,
        "latency_ms_high": summary.high,
        "n": summary.n,
        "ratio_to_torch_adaptive": to_torch.ratio,
        "ratio_low": to_torch.low,
        "ratio_high": to_torch.high,
        "difference_shown": summary.n >= stats.MIN_PAIRS and not to_torch.low <= 1 <= to_torch.high,
        "ratio_to_gemm": to_products.ratio,
        "ratio_to_gemm_low": to_products.low,
        "ratio_to_gemm_high": to_products.high,
    }


def _ratio(a: dict[int, float], b: dict[int, float], rng: np.random.Generator) -> stats.Ratio:
    """Of the samples of the rounds that both have."""
    both = sorted(a.keys() & b.keys())
    return stats.paired_ratio(np.array([a[i] for i in both]), np.array([b[i] for i in both]), rng)
