"""Searching sub-networks whose layers differ: predict latency, evaluate scores, measure the front.

Latencies of a few dozen sub-networks of this device make a predictor; scores are those of a
super-network that was trained here, each sub-network evaluated once. What the search finds is
then measured, and prediction and measurement stand side by side in `encoder_search.jsonl`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any, Self

import numpy as np
from filelock import FileLock

from lmtime import tasks
from lmtime.config import SubNetwork
from lmtime.encoders import fronts, supernets
from lmtime.encoders.fronts import Place
from lmtime.encoders.layer_latency import (
    Judged,
    case_of,
    judged_predictor,
    layer_space,
    measure_missing,
)
from lmtime.encoders.plans import SEARCH, USUAL, Case, Rounds
from lmtime.errors import Busy, UsageError
from lmtime.metrics import score
from lmtime.models.batches import Tokenised, tokenise
from lmtime.models.checkpoint import WEIGHTS, load_encoder
from lmtime.models.encoder import Encoder
from lmtime.models.finetuning import evaluate
from lmtime.pareto.claims import Claims
from lmtime.pareto.dominance import constrained_front, non_dominated
from lmtime.pareto.front import Budget
from lmtime.pareto.predictor import LatencyPredictor
from lmtime.pareto.search import Found, Objectives, search
from lmtime.records import append_jsonl, document
from lmtime.sources import file_sha256
from lmtime.timing.conditions import load_average, provenance

WAIT_S = 5.0
DIRECTIONS = {"latency_ms": "min", "score": "max"}
Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(eq=False)
class Scorer:
    """Scores of sub-networks on labelled examples, each computed once."""

    network: Encoder
    data: Tokenised
    metric: str
    predicted: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, job: supernets.Job) -> Self:
        """Of the super-network that was trained here, on the whole development set."""
        if not (job.folder / WEIGHTS).is_file():
            raise UsageError(
                f"no super-network of {job.network} was trained here on {job.task} with seed "
                f"{job.seed}: `lmtime pareto train --network {job.network} --task {job.task}`"
            )
        text = tasks.load(job.task)
        return cls(load_encoder(job.folder), tokenise(job.folder, text.dev), text.metric)

    def halves(self, n_examples: int | None = None) -> tuple[Scorer, Scorer]:
        """To search with, and to judge what was found: no example in both, n_examples at most."""
        order = np.random.default_rng(0).permutation(len(self.data))
        middle = (len(order) + 1) // 2
        parts = order[:middle][:n_examples], order[middle:][:n_examples]
        return tuple(Scorer(self.network, self.data.part(np.sort(p)), self.metric) for p in parts)

    def score(self, sub: SubNetwork) -> float:
        """In points."""
        if sub.key not in self.predicted:
            self.predicted[sub.key] = evaluate(self.network, self.data, [sub])[0]
        return score(self.metric, self.data.labels, self.predicted[sub.key])


@dataclass(frozen=True)
class Plan:
    """A search. n_examples: the most of either half of the development set.

    rounds: of the measurement at the end. storage: shared by workers, see `pareto.claims`; where
    there is none, a journal beside the super-network: a search that broke off goes on.
    """

    job: supernets.Job
    place: Place
    n_evaluations: int = 150
    n_examples: int | None = None
    rounds: Rounds = USUAL
    storage: str | None = None
    seed: int = 0  # of the search: workers of one storage take different ones

    def claims(self) -> Claims | None:
        """What the workers of this search share: scores of this super-network on these examples."""
        trained = file_sha256(self.job.folder / WEIGHTS)[:12]
        parts = (self.job.task, trained, self.n_examples or "all", *astuple(self.place))
        study = "-".join(map(str, parts))
        try:
            return Claims(self.storage or self.job.folder / "search.journal", study, DIRECTIONS)
        except UsageError:
            if self.storage is not None:
                raise
            return None  # Optuna is not installed: nothing is kept until the end


def run(plan: Plan, *, command: str, say: Say = lambda text: None) -> tuple[Row, list[Row]]:
    """Search, measure the front, keep both: the conditions, and a row a sub-network of the front.

    The front is chosen by predicted latency and by the score on one half of the development set:
    chosen as the best of many, that score is too high. `score_held_out` is of the other half.
    """
    judged = judged_predictor(plan.job.network, plan.place)
    chosen_by, held_out = Scorer.of(plan.job).halves(plan.n_examples)

    def values(sub: SubNetwork) -> tuple[float, float]:
        return judged.predictor.predict(sub), chosen_by.score(sub)

    found = search(
        layer_space(plan.job.network),
        Objectives(DIRECTIONS, values, claims=plan.claims()),
        n_evaluations=plan.n_evaluations,
        seed=plan.seed,
        say=say,
    )
    found = _repriced(found, judged.predictor)
    members = [sub for sub, _ in found.front()]
    say(f"measuring the {len(members)} sub-networks of the front")
    cases = [case_of(plan.job.network, sub, plan.place) for sub in members]
    _measure_in_turn(cases, plan, command, say)
    scores = {sub.key: held_out.score(sub) for sub in members}
    return _kept(plan, found, judged, scores, command)


def _measure_in_turn(cases: list[Case], plan: Plan, command: str, say: Say) -> None:
    """Measures when no other worker measures the device."""
    while True:
        try:
            measure_missing(cases, plan.place, plan.rounds, command, say)
            return
        except Busy:
            say("waiting for another worker to end its measurement")
            time.sleep(WAIT_S)


def _repriced(found: Found, predictor: LatencyPredictor) -> Found:
    """With latencies by this predictor, where an earlier or another worker's told them."""
    values = found.values.copy()
    values[:, 0] = [predictor.predict(sub) for sub in found.sub_networks]
    on_front = non_dominated(values, list(DIRECTIONS.values()))
    return replace(found, values=values, on_front=on_front)


def _kept(
    plan: Plan, found: Found, judged: Judged, held_out: dict[str, float], command: str
) -> tuple[Row, list[Row]]:
    """Conditions first, then a row for every sub-network that was scored."""
    notes = {"median_error_held_out": judged.median_error, "n_held_out": len(judged.errors)}
    notes |= {"predictor": judged.predictor.to_dict(), "n_scored": len(found.values)}
    notes |= {"space_size": str(layer_space(plan.job.network).size)}
    device = "cuda" if plan.place.device == "cuda" else "cpu"
    run = asdict(provenance(command, device, load_average=load_average(), notes=notes))
    own = {"run_id": run["run_id"], "network": plan.job.network, "task": plan.job.task}
    own |= {"seed": plan.job.seed, **asdict(plan.place)}
    measured = {
        SubNetwork.of_row(r).key: r for r in fronts.latencies(plan.job.network, plan.place)[0]
    }
    rows = [
        own | _row(sub, values, bool(on_front), measured.get(sub.key), held_out.get(sub.key))
        for sub, values, on_front in zip(
            found.sub_networks, found.values, found.on_front, strict=True
        )
    ]
    path = plan.job.path.parent / f"{SEARCH}.jsonl"
    with FileLock(path.parent / ".search.lock"):
        append_jsonl(path.parent / "provenance.jsonl", [run])
        append_jsonl(path, rows)
    return run, sorted((r for r in rows if r["on_front"]), key=lambda r: r["predicted_ms"])


def _row(
    sub: SubNetwork,
    values: np.ndarray,
    on_front: bool,
    measured: Row | None,
    held_out: float | None,
) -> Row:
    times = {name: None for name in ("latency_ms", "latency_ms_low", "latency_ms_high")}
    if on_front and measured:
        times = {name: measured[name] for name in times}
    return {
        "name": sub.key,
        **{name: list(sizes) for name, sizes in sub.fields().items()},
        "predicted_ms": round(float(values[0]), 4),
        **times,
        "score": round(float(values[1]), 4),
        "score_held_out": held_out,
        "on_front": on_front,
    }


def search_document(
    plan: Plan, budget: Budget, *, command: str, say: Say = lambda text: None
) -> Row:
    """The JSON document of a search: the rows of its front within the budget, as measured.

    The budget's score is that of the examples that nothing was chosen by.
    """
    conditions, rows = run(plan, command=command, say=say)
    usable = [r for r in rows if r["latency_ms"] is not None]
    if not usable:
        raise RuntimeError(
            "no sub-network of the front could be measured: end other work, try again"
        )
    points = np.array([(r["latency_ms"], r["score_held_out"]) for r in usable])
    kept = constrained_front(points, list(DIRECTIONS.values()), budget.limits())
    if not kept.feasible:
        nearest = usable[kept.least_violation[0]]
        raise budget.refusal(nearest | {"score": nearest["score_held_out"]})
    excess = sum(limit.excess(points) for limit in budget.limits())
    within = [row for row, over in zip(usable, excess, strict=True) if over == 0]
    return document("pareto search", conditions, within, task=plan.job.task, **asdict(plan.place))
