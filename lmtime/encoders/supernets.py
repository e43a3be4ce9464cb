"""Super-networks: one network that is trained to run at every width and depth, and its scores.

A teacher is fine-tuned on the task, its heads and neurons are put in order of importance, then
width and depth are made adaptive, as DynaBERT does it (Hou et al. 2020). Rows stand in
`results/<device>/encoder_scores.jsonl`, networks in `results/<device>/supernets/`.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
from filelock import FileLock

from lmtime import plans, tasks
from lmtime.config import (
    DEPTHS,
    WIDTHS,
    EncoderConfig,
    find_encoder,
    name_of,
    sub_network,
    whole_network,
)
from lmtime.config.checks import require_positive
from lmtime.encoders.plans import SCORES
from lmtime.encoders.score_rows import FINE_TUNED, described, digits
from lmtime.errors import UsageError
from lmtime.metrics import score, score_interval
from lmtime.models.batches import TOKENIZER, Tokenised, batches, tokenise
from lmtime.models.checkpoint import WEIGHTS, load_encoder, minilm_folder, save_encoder, weights_of
from lmtime.models.encoder import Encoder
from lmtime.models.finetuning import (
    DepthSchedule,
    Run,
    Schedule,
    evaluate,
    fine_tune,
    train_depth,
    train_width,
)
from lmtime.models.progress import Checkpoint, Progress
from lmtime.models.supernet import importance, rewire
from lmtime.records import append_jsonl, read_jsonl, results_root, write_jsonl
from lmtime.sources import file_sha256
from lmtime.tasks import Examples, LabelledText
from lmtime.timing.conditions import device_folder, load_average, provenance

NETWORK = "minilm-l6"
Say = Callable[[str], None]
Row = dict[str, object]


@dataclass(frozen=True)
class Budget:
    """What a super-network may spend. n_train, n_dev: examples that are used, None for all.

    n_importance: training examples that importance is judged by, so that the development set
    stays unseen (DynaBERT takes that). n_teacher: examples that the teacher meets at least: where
    a task has few, two passes teach it next to nothing.
    """

    teacher: Schedule
    width: Schedule
    depth: DepthSchedule
    _: dataclasses.KW_ONLY
    n_importance: int = 512
    n_teacher: int = 0
    n_train: int | None = None
    n_dev: int | None = None

    def __post_init__(self) -> None:
        limits = ("n_importance", "n_train", "n_dev")
        require_positive(self, tuple(n for n in limits if getattr(self, n) is not None))

    def n_examples(self, n_train: int) -> int:
        """Passes of an example through training, of n_train that the task has."""
        n = min(n_train, self.n_train or n_train)
        return n * (self.teacher_of(n).epochs + self.width.epochs + self.depth.epochs)

    def teacher_of(self, n_train: int) -> Schedule:
        """The teacher's schedule on a task of so many examples."""
        epochs = max(self.teacher.epochs, math.ceil(self.n_teacher / n_train))
        return dataclasses.replace(self.teacher, epochs=epochs)


_BRIEF, _BRIEF_DEPTH = Schedule(1, batch_size=16), DepthSchedule(1, batch_size=16, n_random=1)
BUDGETS = {
    "smoke": Budget(_BRIEF, _BRIEF, _BRIEF_DEPTH, n_importance=16, n_train=32, n_dev=16),
    "quick": Budget(
        Schedule(2, 2e-4, 16),
        Schedule(1, 3e-4, 16),
        DepthSchedule(1, 3e-4, 16, n_random=1),
        n_importance=128,
        n_train=512,
        n_dev=256,
    ),
    "paper": Budget(
        Schedule(2, 5e-5),
        Schedule(1, 1e-4),
        DepthSchedule(2, 1e-4, n_random=2),
        n_importance=512,
        n_teacher=14_000,
    ),
}


def budget_of(preset: str) -> Budget:
    """Of smoke, quick (a part of the data, a minute or two) or paper (half an hour)."""
    plans.check(preset)
    return BUDGETS[preset]


@dataclass(frozen=True)
class Job:
    """A network on a task with a seed. weights: a folder with its weights and tokenizer."""

    network: str = NETWORK
    task: str = tasks.DEFAULT
    seed: int = 0
    weights: Path | None = None

    def __post_init__(self) -> None:
        find_encoder(self.network)

    @property
    def source(self) -> Path:
        """The folder of the weights; MiniLM's own where none was given."""
        if self.weights is None and self.network != NETWORK:
            raise UsageError(
                f"no weights of {self.network} come with the package: give a folder that has some"
            )
        return self.weights or minilm_folder()

    @property
    def folder(self) -> Path:
        """Where the super-network of this machine is kept, as `load_encoder` reads it.

        One that was trained on another number of threads is the same.
        """
        name = f"{self.network}-{self.task}-{self.seed}"
        there = sorted(results_root().glob(f"*/supernets/{name}/{WEIGHTS}"))
        own = results_root() / device_folder("cpu") / "supernets" / name
        return own if own / WEIGHTS in there or not there else there[0].parent

    @property
    def path(self) -> Path:
        """The file of the rows."""
        return self.folder.parents[1] / f"{SCORES}.jsonl"

    def has(self, row: Row) -> bool:
        """Whether a row is of this network, task and seed."""
        return (row["network"], row["task"], row["seed"]) == (self.network, self.task, self.seed)


@dataclass(frozen=True)
class Trained:
    """stages: how each stage went."""

    network: Encoder
    teacher: Encoder
    stages: dict[str, Progress]


def run(job: Job, budget: Budget, *, command: str, say: Say = lambda text: None) -> Path:
    """Train and judge, unless there are rows of as long a training; the file of the rows."""
    text, weights = tasks.load(job.task), file_sha256(weights_of(job.source))
    job.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(job.folder / ".lock"):
        if _stands(job, budget.n_examples(len(text.train)), text.sha256, weights):
            say(f"{job.folder.name}: already trained")
            return job.path
        load = load_average()
        trained = train(job, text, budget, say=say)
        say("scoring every width and depth")
        dev = tokenise(job.source, _part(text.dev, budget.n_dev))
        judged = judge(trained, text.metric, dev, DEPTHS[job.network])
        conditions = provenance(
            command,
            "cpu",
            corpus={"name": text.name, "sha256": text.sha256, "note": text.note},
            load_average=load,
            notes=_notes(trained, budget, len(text.train)) | {"weights_sha256": weights},
        )
        _keep(trained, job)
        _replace(job, judged, dataclasses.asdict(conditions))
    return job.path


def rows_of(job: Job) -> tuple[list[Row], Row]:
    """Its rows, and the conditions that they were taken under."""
    rows = [row for row in read_jsonl(job.path) if job.has(row)]
    found = read_jsonl(job.path.parent / "provenance.jsonl")
    return rows, next(row for row in found if row["run_id"] == rows[0]["run_id"])


def train(job: Job, text: LabelledText, budget: Budget, *, say: Say = lambda text: None) -> Trained:
    """All stages, from where they stand in the job's folder."""
    data = tokenise(job.source, _part(text.train, budget.n_train, job.seed))
    network = load_encoder(job.source, n_classes=text.n_classes, seed=job.seed)
    _require_same(network.config, find_encoder(job.network), job)
    of: list[object] = [text.sha256, str(job.source), job.seed, budget.n_train]
    stages: dict[str, Progress] = {}

    def kept(name: str, schedule: Schedule) -> Run:
        of.append(dataclasses.asdict(schedule))
        path = job.folder / "stages" / f"{name}.safetensors"
        return Run(job.seed, Checkpoint(path, json.dumps(of)), say)

    schedule = budget.teacher_of(len(data))
    stages["fine-tuning"] = fine_tune(network, data, schedule, run=kept("fine-tuning", schedule))
    teacher = copy.deepcopy(network)
    of.append(budget.n_importance)
    drawn = np.random.default_rng(job.seed).permutation(len(data))[: budget.n_importance]
    rewire(network, importance(network, batches(data.part(drawn), budget.teacher.batch_size)))
    stages["width"] = train_width(
        network, teacher, data, budget.width, run=kept("width", budget.width)
    )
    stages["depth"] = train_depth(
        network, data, budget.depth, depths=DEPTHS[job.network], run=kept("depth", budget.depth)
    )
    return Trained(network, teacher, stages)


def _require_same(found: EncoderConfig, wanted: EncoderConfig, job: Job) -> None:
    """Refuse weights of another network than the one that was named."""
    for name in ("hidden_size", "head_size", "heads", "ffn_sizes"):
        if getattr(found, name) != getattr(wanted, name):
            raise UsageError(
                f"{job.source} is no {job.network}: its {name} is {getattr(found, name)}, not "
                f"{getattr(wanted, name)}"
            )


def _part(examples: Examples, n: int | None, seed: int = 0) -> Examples:
    """All, or n of them that the seed draws, in their order."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(examples))[:n])
    return Examples([examples.texts[i] for i in rows], examples.labels[rows])


def judge(trained: Trained, metric: str, dev: Tokenised, depths: tuple[Fraction, ...]) -> list[Row]:
    """A row for the teacher and for each depth and width: what it is, its score in points."""
    config = trained.network.config
    grid = list(product(depths, WIDTHS))
    subs = [sub_network(config, width, depth) for depth, width in grid]
    predicted = [
        evaluate(trained.teacher, dev, [None])[0],
        *evaluate(trained.network, dev, subs),
    ]
    what = [
        described(FINE_TUNED, None, None, whole_network(config), config),
        *(
            described(name_of(width, depth), float(width), float(depth), sub, config)
            for (depth, width), sub in zip(grid, subs, strict=True)
        ),
    ]
    rows = []
    for row, guess in zip(what, predicted, strict=True):
        low, high = score_interval(metric, dev.labels, guess, np.random.default_rng(0))
        rows.append(
            row
            | {"metric": metric, "score": round(score(metric, dev.labels, guess), 4)}
            | {"score_low": round(low, 4), "score_high": round(high, 4), "n_examples": len(dev)}
            | {"labels": digits(dev.labels), "predicted": digits(guess)}
        )
    return rows


def _notes(trained: Trained, budget: Budget, n_train: int) -> dict[str, object]:
    return {
        "budget": dataclasses.asdict(budget),
        "examples_trained": budget.n_examples(n_train),
        "importance": f"of {budget.n_importance} training examples",
        "stages": {name: dataclasses.asdict(p) for name, p in trained.stages.items()},
    }


def _stands(job: Job, least: int, text: str, weights: str) -> bool:
    """Whether there is this training, or a longer one of the same text and weights, with its rows.

    least: examples trained on. text, weights: hashes.
    """
    runs = {row["run_id"] for row in read_jsonl(job.path) if job.has(row)}
    return (job.folder / WEIGHTS).is_file() and any(
        row["notes"]["examples_trained"] >= least
        and (row["corpus"]["sha256"], row["notes"].get("weights_sha256")) == (text, weights)
        for row in read_jsonl(job.path.parent / "provenance.jsonl")
        if row["run_id"] in runs
    )


def _replace(job: Job, judged: list[Row], conditions: Row) -> None:
    """In place of what there was of this network, task and seed; the conditions go first."""
    own = {name: getattr(job, name) for name in ("network", "task", "seed")}
    own = {"run_id": conditions["run_id"]} | own
    with FileLock(job.path.parent / ".scores.lock"):
        append_jsonl(job.path.parent / "provenance.jsonl", [conditions])
        kept = [row for row in read_jsonl(job.path) if not job.has(row)]
        write_jsonl(job.path, [*kept, *(own | row for row in judged)])


def _keep(trained: Trained, job: Job) -> None:
    """Both networks with their tokenizer; what was needed to resume goes."""
    for network, place in (
        (trained.network, job.folder),
        (trained.teacher, job.folder / FINE_TUNED),
    ):
        save_encoder(network, place)
        shutil.copyfile(job.source / TOKENIZER, place / TOKENIZER)
    shutil.rmtree(job.folder / "stages")
