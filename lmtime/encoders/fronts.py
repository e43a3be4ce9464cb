"""Fronts from committed and own records: which sub-network for a task, on a device, in a budget.

Latencies are rows of `encoder_latency`, scores rows of `encoder_scores` or those that DynaBERT's
authors published for BERT-base. Nothing is measured here, and torch is not imported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from lmtime import tasks
from lmtime.config import ENCODERS, SubNetwork, find_encoder, name_of, sub_network
from lmtime.encoders import published_scores
from lmtime.encoders.plans import LATENCY, SCORES, SEQ_LEN, place_in_words, threads_of
from lmtime.encoders.score_rows import FINE_TUNED, is_learnt
from lmtime.errors import UsageError, unknown
from lmtime.pareto.front import Budget, FrontTable, front_table
from lmtime.records import document, row_sets

Row = dict[str, Any]

PUBLISHED = "bert-base"  # the network that DynaBERT's scores are of
PUBLISHED_BY = "published (Hou et al. 2020)"
N_RESAMPLES = 1000
SURE = 0.95  # of resamples


@dataclass(frozen=True)
class Place:
    """Where a latency was taken. device: `cpu-1-thread`, `cpu-2-threads`, ... or `cuda`."""

    device: str
    engine: str = "torch"
    batch_size: int = 1
    seq_len: int = SEQ_LEN

    @property
    def in_words(self) -> str:
        """Engine and device."""
        return place_in_words(self.device, self.engine)

    @property
    def is_usual(self) -> bool:
        """Whether it is one sequence of 128 tokens."""
        return (self.batch_size, self.seq_len) == (1, SEQ_LEN)

    @property
    def options(self) -> str:
        """Of the command that measures there."""
        options = f"--device {self.device} --engine {self.engine}"
        if self.is_usual:
            return options
        return f"{options} --batch-size {self.batch_size} --seq-len {self.seq_len}"

    def has(self, row: Row) -> bool:
        """Whether a row was taken there."""
        return all(row[f.name] == getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True)
class Measured:
    """Usable latency rows of one network on one device. whose: "this machine" or "reference"."""

    whose: str
    device_name: str
    place: Place
    rows: tuple[Row, ...]

    def has_most(self, keys: Collection[str]) -> bool:
        """Whether more than half of these sub-networks, if any, are among them."""
        return not keys or len(keys_of(self.rows).intersection(keys)) > len(keys) / 2


@dataclass(frozen=True)
class TaskFront:
    """A front and what it is made of."""

    task: str
    network: str
    place: Place
    table: FrontTable
    latencies_of: str  # "this machine" or "reference"
    device_name: str
    scores_of: str

    def document(self) -> Row:
        """The JSON document: whose the latencies and scores are, and a row a sub-network."""
        facts = {"latencies": self.latencies_of, "scores": self.scores_of}
        return document(
            "pareto front",
            {**facts, "device_name": self.device_name},
            list(self.table.rows),
            task=self.task,
            network=self.network,
            **asdict(self.place),
        )


def task_front(
    task: str,
    place: Place,
    *,
    network: str | None = None,
    budget: Budget | None = None,
    n_resamples: int = N_RESAMPLES,
) -> TaskFront:
    """The front of a task; network: BERT-base where its scores were published, else MiniLM."""
    network = network or default_network(task)
    find_encoder(network)
    scored, scores_of = scores(task, network)
    timed, latencies_of = latencies(network, place, keys_of(scored))
    table = front_table(timed, scored, budget=budget or Budget(), n_resamples=n_resamples)
    return TaskFront(task, network, place, table, latencies_of, timed[0]["device_name"], scores_of)


def all_fronts(network: str, *, n_resamples: int = N_RESAMPLES) -> list[TaskFront]:
    """Of each task that a network has scores on, at each place where most of it was measured.

    One sequence of 128 tokens; every task at the same places, and none where nothing is known.
    """
    names = scored_tasks(network)
    keys = [keys_of(scores(task, network)[0]) for task in names]
    sets = [s for s in measured(network) if s.place.is_usual]
    at = [{s.place for s in sets if s.has_most(of_task)} for of_task in keys]
    places = [p for p in dict.fromkeys(s.place for s in sets) if all(p in of for of in at)]
    return [
        task_front(task, place, network=network, n_resamples=n_resamples)
        for task in names
        for place in places
    ]


def keys_of(rows: Iterable[Row]) -> set[str]:
    """The sub-networks of rows."""
    return {SubNetwork.of_row(row).key for row in rows}


def scored_tasks(network: str) -> list[str]:
    """Tasks that sub-networks of a network have scores on: trained, then published.

    What was trained and not learnt is left out: its front would be one of chance.
    """
    rows = (row for _, found in row_sets(SCORES) for row in found if row["network"] == network)
    trained = [r["task"] for r in rows if r["name"] == FINE_TUNED and is_learnt(r)]
    return list(
        dict.fromkeys([*trained, *(published_scores.TASKS if network == PUBLISHED else ())])
    )


def default_network(task: str) -> str:
    """The one whose scores are at hand for everybody; unknown tasks are refused."""
    known = dict.fromkeys([*tasks.TASKS, *published_scores.TASKS])
    if task not in known:
        raise unknown("task", task, list(known))
    return PUBLISHED if task in published_scores.TASKS else "minilm-l6"


def scores(task: str, network: str) -> tuple[list[Row], str]:
    """Score rows of the sub-networks of a network, of every seed, and whose they are."""
    default_network(task)
    for whose, rows in row_sets(SCORES):
        found = [r for r in rows if (r["task"], r["network"]) == (task, network)]
        found = [r for r in found if r["name"] != FINE_TUNED]
        if found:
            return found, whose
    if network == PUBLISHED and task in published_scores.TASKS:
        return published_rows(task), PUBLISHED_BY
    known = sorted({(r["network"], r["task"]) for _, rows in row_sets(SCORES) for r in rows})
    told = ", ".join(f"{task} with {network}" for network, task in known) or "nothing"
    raise UsageError(
        f"no sub-network of {network} has a score on {task}: {told} has been trained, and "
        f"`lmtime pareto train --network {network} --task {task}` trains it"
    )


def published_rows(task: str) -> list[Row]:
    """DynaBERT's published scores as rows; samples stand for the outcomes of examples."""
    full = ENCODERS[PUBLISHED]
    return [
        {
            "network": PUBLISHED,
            "task": task,
            "name": name_of(score.width, score.depth),
            "width": float(score.width),
            "depth": float(score.depth),
            **sub_network(full, score.width, score.depth).fields(),
            "metric": score.metric,
            "score": score.score,
            "samples": _with_mean(score.samples(), score.score),
        }
        for score in published_scores.dynabert(task)
    ]


def _with_mean(samples: list[float], mean: float) -> list[float]:
    """Moved so that their mean has the digits that were published: they are shares of examples."""
    moved = mean - sum(samples) / len(samples)
    return [sample + moved for sample in samples]


def latencies(network: str, place: Place, keys: Collection[str] = ()) -> tuple[list[Row], str]:
    """Usable latency rows of a network at a place, this machine's first, and whose they are.

    keys: sub-networks of which most must have been measured.
    """
    sets = measured(network)
    found = next((s for s in sets if s.place == place and s.has_most(keys)), None)
    if found:
        return list(found.rows), found.whose
    if place.device != "cuda":
        threads_of(place.device)  # refuses what is no device at all
    some = any(s.place == place for s in sets)
    there = "; ".join(dict.fromkeys(_in_words(s.place) for s in sets if s.has_most(keys)))
    raise UsageError(
        f"{'less than half of the sub-networks' if some else 'no latency'} of {network} "
        f"{'were' if some else 'was'} measured on {_in_words(place)}: there are latencies on "
        f"{there or 'none at all'}; `lmtime pareto measure --network {network} {place.options}` "
        f"measures them"
    )


def measured(network: str) -> list[Measured]:
    """All that there is of a network: by device and engine, this machine's sets first."""
    sets: dict[tuple[str, str, Place], list[Row]] = {}
    for whose, rows in row_sets(LATENCY):
        for row in rows:
            if row["network"] == network and not row["quality"]:
                place = Place(*(row[f.name] for f in fields(Place)))
                sets.setdefault((whose, row["device_name"], place), []).append(row)
    found = [Measured(*of, tuple(rows)) for of, rows in sets.items()]
    return sorted(found, key=lambda s: (s.place.device, s.place.engine != "torch"))


def _in_words(place: Place) -> str:
    size = f"batch {place.batch_size} of {place.seq_len} tokens"
    return f"{place.device} with {place.engine}, {size}"


def as_device(scored: Iterable[Row], network: str, cost: str) -> list[Row]:
    """Latency rows of a device that is only a rule: cost "flops" in GFLOP, or "layers".

    What a budget of work would choose, beside what a budget of time does.
    """
    rows = {SubNetwork.of_row(row).key: row for row in scored}
    full = find_encoder(network)
    found = []
    for row in rows.values():
        config = SubNetwork.of_row(row).config(full)
        value = config.flops(1, 128) / 1e9 if cost == "flops" else config.n_layers
        shape = {name: row[name] for name in ("name", "width", "depth", "layers", "heads")}
        shape |= {"ffn_sizes": row["ffn_sizes"], "network": network, "device": cost}
        found.append(shape | {"latency_ms": float(value), "parameters": config.parameters})
    return found
