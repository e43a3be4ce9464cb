"""Latency of encoders and their sub-networks, each set of rows behind its quality gate.

A group, all configurations of one network and batch, is measured in interleaved rounds while its
models are alive at once, and saved as a whole. Rows are those of the study `encoder_latency`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from lmtime import stats
from lmtime.encoders.plans import (
    LATENCY,
    THREADS,
    Case,
    Rounds,
    device_called,
    name_in_network,
    network_config,
    part_of,
)
from lmtime.errors import TooLarge
from lmtime.models.memory import GIB, available_bytes
from lmtime.records import Provenance, append_jsonl, read_jsonl, results_root, write_jsonl
from lmtime.study import alone_on
from lmtime.timing import gates, rounds
from lmtime.timing.clock import clock_for
from lmtime.timing.conditions import device_folder, load_average, n_cpus, provenance, threads
from lmtime.timing.encoder_calls import encoder_calls, held_bytes, tokens_of
from lmtime.timing.pages import keep_pages, release_pages

MAX_SPREAD = 0.25  # interquartile range over the median
MAX_INTERVAL = 0.10  # of the median, from end to end
MAX_DRIFT = 0.10  # of the median, from the first half of the rounds to the second
N_TRIES = 4  # as many rounds again, thrice, while one is not steady
Say = Callable[[str], None]


def throughput_per_s(batch_size: int, latency_ms: float) -> float:
    """Sequences a second; the latency is that of the whole batch."""
    return 1000 * batch_size / latency_ms


def unsteady(samples_ms: np.ndarray) -> str:
    """Empty, or why samples in the order they were taken are no result. samples_ms: (n,)."""
    found = stats.summarise(samples_ms, np.random.default_rng(0))
    if found.spread > MAX_SPREAD:
        return (
            f"the middle half of the samples spreads over {100 * found.spread:.0f} % of the median"
        )
    if (width := (found.high - found.low) / found.median) > MAX_INTERVAL:
        return f"the interval of the median is {100 * width:.0f} % wide"
    half = (len(samples_ms) + 1) // 2
    first, second = np.median(samples_ms[:half]), np.median(samples_ms[-half:])
    if abs(drift := second / first - 1) > MAX_DRIFT:
        return f"the second half of the rounds took {100 * drift:+.0f} % of the first"
    return ""


def devices(preset: str, device: str) -> list[str]:
    """What a preset measures, as rows name it: each number of threads of a CPU, or the GPU."""
    if device == "cuda":
        return [device_called(None)]
    return [device_called(n) for n in usable_threads(preset)]


def usable_threads(preset: str) -> tuple[int, ...]:
    """Numbers of threads that a preset measures; none is above the CPUs of this process."""
    cpus = n_cpus("cpu")["n_cpus"] or 1
    return tuple(sorted({min(n, cpus) for n in THREADS[preset]}))


def run_missing(
    plan: Iterable[Case],
    *,
    device: str,
    n_threads: Sequence[int] = (),
    rounds_of: Callable[[int], Rounds],
    command: str,
    say: Say = lambda text: None,
) -> list[Path]:
    """Measure what has no usable rows yet, on each number of threads; the files of the rows.

    n_threads: of a CPU, absent torch's own; a GPU is measured once, and by torch alone. rounds_of:
    a batch size; rows with fewer are measured again. Two calls at once are refused.
    """
    keep_pages()
    if device == "cuda":
        n_threads, plan = (), [case for case in plan if case.engine == "torch"]
    plan, paths = list(plan), []
    with alone_on(device):
        for n in n_threads or (None,):
            with threads(n):
                folder = results_root() / device_folder(device)
                folder.mkdir(parents=True, exist_ok=True)
                _run_missing(folder, plan, device, rounds_of, command, say)
            paths.append(folder / f"{LATENCY}.jsonl")
    return paths


def _run_missing(
    folder: Path,
    plan: Sequence[Case],
    device: str,
    rounds_of: Callable[[int], Rounds],
    command: str,
    say: Say,
) -> None:
    path = folder / f"{LATENCY}.jsonl"
    groups: dict[tuple[str, int, int], list[Case]] = {}
    for case in plan:
        groups.setdefault((case.network, case.batch_size, case.seq_len), []).append(case)
    for i, ((network, batch_size, seq_len), group) in enumerate(groups.items(), 1):
        wanted = rounds_of(batch_size)
        title = f"{LATENCY} {i}/{len(groups)}, {folder.name}: {network}, {batch_size} x {seq_len}"
        known = {_identity(r) for r in read_jsonl(path) if not r["quality"] and r["n"] >= wanted.n}
        missing = [case for case in dict.fromkeys(group) if _key(case) not in known]
        if not missing:
            say(f"{title}: already measured")
            continue
        say(f"{title}: {len(missing)} configurations")
        conditions = _conditions(command, device, wanted, {case.engine for case in missing})
        rows = measure(missing, device=device, wanted=wanted, say=say)
        _save(path, rows, conditions)


def _conditions(command: str, device: str, wanted: Rounds, engines: set[str]) -> Provenance:
    notes = {"n_rounds": wanted.n, "gated": wanted.gated}
    notes |= {"max_spread": MAX_SPREAD, "max_drift": MAX_DRIFT}
    notes |= {"slow_ms": rounds.SLOW_MS, "hot_ms": rounds.HOT_MS}
    found = provenance(command, device, load_average=load_average(), notes=notes)
    more = {name: version(name) for name in engines & {"onnxruntime"} if find_spec(name)}
    return dataclasses.replace(found, versions=found.versions | more)


def _save(path: Path, rows: list[dict], conditions: Provenance) -> None:
    """Conditions first, then all rows of a group at once, in place of what there was of them.

    A row that may be used is not given up for one that may not.
    """
    append_jsonl(path.parent / "provenance.jsonl", [dataclasses.asdict(conditions)])
    facts = {"run_id": conditions.run_id, "device": device_called(conditions.n_threads)}
    facts |= {"device_name": conditions.device_name, "n_threads": conditions.n_threads}
    there = read_jsonl(path)
    good = {_identity(row) for row in there if not row["quality"]}
    rows = [row for row in rows if not row["quality"] or _identity(row) not in good]
    new = {_identity(row) for row in rows}
    kept = [row for row in there if _identity(row) not in new]
    write_jsonl(path, [*kept, *(facts | row for row in rows)])


def measure(
    group: Sequence[Case],
    *,
    device: str,
    wanted: Rounds,
    seed: int = 0,
    say: Say = lambda text: None,
) -> list[dict[str, object]]:
    """One row a configuration of one network and batch, on torch's present threads.

    All are in as many rounds again while the gate refuses one, up to N_TRIES times in all; rounds
    that other work disturbed are not kept. Samples are at the usual pace of the device, see
    `rounds.paces`. `quality` says what the gate refuses in the end.
    """
    case = group[0]
    config = network_config(case.network)
    tokens = tokens_of(config, case.batch_size, case.seq_len, seed)
    kinds, subs = [c.engine for c in group], [(c.engine, c.sub) for c in group]
    _require_memory(case.network, len(group), held_bytes(config, subs), device)
    calls = encoder_calls(config, subs, tokens, device, seed)
    rng, clock = np.random.default_rng(seed), clock_for(device)

    def take() -> np.ndarray:
        return rounds.interleaved(calls, kinds, clock, wanted.n, rng, say)

    found = _until_steady(take, device, say) if wanted.gated else _Samples(take())
    return [_row(case, found, i, rng) for i, case in enumerate(group)]


def _require_memory(network: str, n: int, needed: int, device: str) -> None:
    """Refuse what would not fit: all sub-networks that take turns are alive at once.

    What groups before this one left to the process, see `keep_pages`, is given back first.
    """
    release_pages()
    available = available_bytes(device)
    if needed > available:
        raise TooLarge(
            f"{n} sub-networks of {network} that take turns need about {needed / GIB:.1f} GiB, and "
            f"there are {available / GIB:.1f} GiB available on this {device}: choose a smaller "
            f"network or a smaller space"
        )


class _Samples:
    """Of a group, (n_rounds, n_configurations), their paces, and why each is no result, or ""."""

    def __init__(self, samples_ms: np.ndarray) -> None:
        self.paces = rounds.paces(samples_ms)
        self.at_usual_pace_ms = samples_ms / self.paces
        self.qualities = [""] * samples_ms.shape[1]

    def judge(self, spoilt: str) -> list[str]:
        """The reasons of those that the gate refuses; spoilt: one that holds for all."""
        restless = spoilt or _restless(self.paces)
        self.qualities = [restless or unsteady(column) for column in self.at_usual_pace_ms.T]
        return [reason for reason in self.qualities if reason]


def _until_steady(take: Callable[[], np.ndarray], device: str, say: Say) -> _Samples:
    """Rounds and more rounds until the gate refuses none, or the tries are used up."""
    kept: list[np.ndarray] = []
    for _ in range(N_TRIES):
        before = gates.state(device)
        samples = take()
        spoilt = gates.verdict(before, gates.state(device), **n_cpus(device))
        kept += [] if spoilt else [samples]
        found = _Samples(np.concatenate(kept) if kept else samples)
        if not (refused := found.judge("" if kept else spoilt)):
            break
        say(f"{len(refused)} refused by the quality gate ({refused[0]}): more rounds")
    return found


def _restless(paces: np.ndarray) -> str:
    """Empty, or why the device's pace spoils a group. paces: (n_rounds, n_configurations)."""
    p25, p75 = np.quantile(np.median(paces, axis=1), (0.25, 0.75))
    if p75 - p25 > MAX_SPREAD:
        return f"the pace of the device spreads over {100 * (p75 - p25):.0f} %"
    return ""


def _row(case: Case, found: _Samples, i: int, rng: np.random.Generator) -> dict:
    samples_ms = [round(float(ms), 4) for ms in found.at_usual_pace_ms[:, i]]
    summary = stats.summarise(np.array(samples_ms), rng)
    config = case.sub.config(network_config(case.network))
    part = part_of(case.network, case.sub)
    width, depth = map(float, part) if part else (None, None)
    return {
        "engine": case.engine,
        "network": case.network,
        "name": name_in_network(case.network, case.sub),
        "width": width,
        "depth": depth,
        **{name: list(sizes) for name, sizes in case.sub.fields().items()},
        "batch_size": case.batch_size,
        "seq_len": case.seq_len,
        "latency_ms": summary.median,
        "latency_ms_low": summary.low,
        "latency_ms_high": summary.high,
        "n": summary.n,
        "samples_ms": samples_ms,
        "paces": [round(float(pace), 4) for pace in found.paces[:, i]],
        "throughput_per_s": throughput_per_s(case.batch_size, summary.median),
        "flops": config.flops(case.batch_size, case.seq_len),
        "parameters": config.parameters,
        "quality": found.qualities[i],
    }


def _key(case: Case) -> tuple[object, ...]:
    return (*case[:2], *map(tuple, case.sub.fields().values()), *case[3:])


def _identity(row: dict) -> tuple[object, ...]:
    """What `_key` gives for the configuration of a row."""
    sizes = (tuple(row[name]) for name in ("layers", "heads", "ffn_sizes"))
    return row["engine"], row["network"], *sizes, row["batch_size"], row["seq_len"]
