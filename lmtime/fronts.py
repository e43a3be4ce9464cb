"""Fronts from committed and own records: which sub-network for a task, on a device, in a budget.

Latencies are rows of `encoder_latency`, scores rows of `encoder_scores` or those that DynaBERT's
authors published for BERT-base. Nothing is measured here, and torch is not imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from lmtime import published_scores, tasks
from lmtime.config import ENCODERS, SubNetwork, find_encoder, name_of, sub_network
from lmtime.errors import UsageError, unknown
from lmtime.pareto.front import Budget, FrontTable, front_table
from lmtime.records import document, row_sets
from lmtime.score_rows import FINE_TUNED

Row = dict[str, Any]

LATENCY, SCORES = "encoder_latency", "encoder_scores"
PUBLISHED = "bert-base"  # the network that DynaBERT's scores are of
PUBLISHED_BY = "published (Hou et al. 2020)"
N_RESAMPLES = 1000


@dataclass(frozen=True)
class Place:
    """Where a latency was taken. device: `cpu-1-thread`, `cpu-2-threads`, ... or `cuda`."""

    device: str
    engine: str = "torch"
    batch_size: int = 1
    seq_len: int = 128

    def has(self, row: Row) -> bool:
        """Whether a row was taken there."""
        return all(row[f.name] == getattr(self, f.name) for f in fields(self))


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
    timed, latencies_of = latencies(network, place)
    table = front_table(timed, scored, budget=budget or Budget(), n_resamples=n_resamples)
    if scores_of == PUBLISHED_BY:
        table = _as_published(table, scored)
    return TaskFront(task, network, place, table, latencies_of, timed[0]["device_name"], scores_of)


def _as_published(table: FrontTable, scored: list[Row]) -> FrontTable:
    """Scores with the digits that were published: the samples that stand for them are shares."""
    scores = {row["name"]: row["score"] for row in scored}
    rows = tuple(row | {"score": scores[row["name"]]} for row in table.rows)
    nearest = tuple(row | {"score": scores[row["name"]]} for row in table.nearest)
    return replace(table, rows=rows, nearest=nearest)


def default_network(task: str) -> str:
    """The one whose scores are at hand for everybody; unknown tasks are refused."""
    known = dict.fromkeys([*tasks.TASKS, *published_scores.TASKS])
    if task not in known:
        raise unknown("task", task, list(known))
    return PUBLISHED if task in published_scores.TASKS else "minilm-l6"


def scores(task: str, network: str) -> tuple[list[Row], str]:
    """Score rows of the sub-networks of a network, and whose they are."""
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
            "samples": score.samples(),
        }
        for score in published_scores.dynabert(task)
    ]


def latencies(network: str, place: Place) -> tuple[list[Row], str]:
    """Usable latency rows of a network at a place: this machine's where it has any."""
    known: list[Row] = []
    for whose, rows in row_sets(LATENCY):
        usable = [r for r in rows if not r["quality"]]
        found = [r for r in usable if r["network"] == network and place.has(r)]
        if found:
            return found, whose
        known += usable
    raise UsageError(
        f"no latency of {network} was measured on {place.device} with {place.engine}, batch "
        f"{place.batch_size} and {place.seq_len} tokens: there are {_places(known)}; "
        f"`lmtime pareto measure --network {network}` measures it"
    )


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


def places(network: str) -> list[tuple[str, Place, str]]:
    """(whose, place, device name) of all that a network was measured at, this machine's first."""
    found = {
        (whose, _place(row), row["device_name"]): None
        for whose, rows in row_sets(LATENCY)
        for row in rows
        if row["network"] == network and not row["quality"]
    }
    return list(found)


def _place(row: Row) -> Place:
    return Place(*(row[f.name] for f in fields(Place)))


def _places(rows: Iterable[Row]) -> str:
    found = dict.fromkeys(
        f"{r['network']} on {r['device']} with {r['engine']}, {r['batch_size']} x {r['seq_len']}"
        for r in rows
    )
    return "; ".join(found) or "none at all"
