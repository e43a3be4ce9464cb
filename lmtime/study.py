"""From a configuration to records: build, measure, count, predict, and put the rows together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

from lmtime import corpora, cost, models, stats
from lmtime.config import GCNConfig
from lmtime.cost import predict
from lmtime.errors import unknown
from lmtime.hardware import Calibration
from lmtime.records import (
    GROUPS,
    STEP,
    Provenance,
    Record,
    Study,
    document,
    group_of,
    project_root,
)
from lmtime.timing import Breakdown, Ownership, StopRule, clock_for, measure, region
from lmtime.timing.breakdown import INFLATION_TOLD
from lmtime.timing.calibrate import calibrate
from lmtime.timing.conditions import device_folder, find_device, provenance
from lmtime.timing.timer import Step

PHASES = {"train": predict.TRAIN_PHASES, "forward": predict.FORWARD_PHASES}
DTYPES = ("fp32", "bf16")
N_BATCHES = 16  # taken in turn: one batch's cluster hits are not a corpus's


@dataclass(frozen=True)
class Setup:
    """How a configuration is measured."""

    device: str = "auto"
    dtype: str = "fp32"
    phase: str = "train"
    corpus: str = "movie-reviews"
    seed: int = 0
    rule: StopRule = field(default_factory=StopRule)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, list(DTYPES))
        if self.phase not in PHASES:
            raise unknown("phase", self.phase, list(PHASES))
        object.__setattr__(self, "device", find_device(self.device))


@dataclass(frozen=True)
class Profile:
    """One measured configuration: samples, and the rows made from them."""

    breakdown: Breakdown
    records: list[Record]
    provenance: Provenance


def profile(
    model: str,
    config: GCNConfig,
    setup: Setup | None = None,
    *,
    command: str,
    calibration: Calibration | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Measure one configuration on real text, and set the prediction for this device beside it.

    calibration: the rates of this device; measured first where none is given.
    """
    setup = setup or Setup()
    batches, hits, corpus = _batches(config, setup, say)
    if calibration is None:
        calibration = calibrate(setup.device, say=say)
    network = models.build(config, seed=setup.seed, device=setup.device)
    optimizer = models.nesterov(network) if setup.phase == "train" else None
    conditions = provenance(
        command, setup.device, project_root(), corpus=corpus, notes=_rates(calibration)
    )
    breakdown = measure(
        _steps(network, optimizer, batches, setup),
        Ownership(network, network.owners, optimizer),
        clock_for(setup.device),
        setup.rule,
        say=lambda n, spread: say(f"{n} pairs of steps, spread {100 * spread:.1f} %"),
    )
    conditions = dataclasses.replace(
        conditions, notes=conditions.notes | _notes(breakdown, config, hits)
    )
    rows = _records(model, config, setup, breakdown, conditions)
    return Profile(breakdown, _with_work(rows, config, setup, hits, calibration), conditions)


def profile_document(done: Profile) -> dict:
    """The JSON document of a profile: rows, inflation, and the shares of the groups."""
    notes = done.provenance.notes
    return document(
        "profile",
        dataclasses.asdict(done.provenance),
        [record.to_row() for record in done.records],
        inflation=notes["inflation"],
        groups=notes["groups"],
        quality=done.breakdown.quality,
        summary=_summary(done),
    )


def _summary(done: Profile) -> list[str]:
    """Sentences on how far the rows can be trusted."""
    inflation = done.breakdown.inflation
    lines = [
        f"Marks cost {100 * (inflation.ratio - 1):.1f} % "
        f"({100 * (inflation.low - 1):.1f} to {100 * (inflation.high - 1):.1f})."
    ]
    if inflation.low > INFLATION_TOLD:
        lines.append("That is above 5 %: read the shares, not the milliseconds.")
    if not done.breakdown.warmed_up:
        lines.append("The step never became steady while warming up.")
    return lines


def measure_missing(
    study: str,
    configs: Iterable[tuple[str, GCNConfig]],
    setup: Setup,
    *,
    command: str,
    say: Callable[[str], None] = lambda text: None,
) -> Study:
    """Measure each (model, configuration) that has no row yet; every one is saved when done.

    Rows go to `results/<device>/<study>.jsonl` of the project. An interrupted call resumes at the
    first configuration without rows.
    """
    kept = Study(project_root() / "results" / device_folder(setup.device), study)
    wanted = list(configs)
    calibration = None
    for i, (model, config) in enumerate(wanted, 1):
        title = f"{study} {i}/{len(wanted)}: {_title(model, config)}"
        conditions = {"dtype": setup.dtype, "study": study}
        if kept.has(model, dataclasses.asdict(config), **conditions):
            say(f"{title}: already measured")
            continue
        say(title)
        calibration = calibration or calibrate(setup.device, say=say)
        done = profile(model, config, setup, command=command, calibration=calibration, say=say)
        kept.add([dataclasses.replace(r, study=study) for r in done.records], done.provenance)
    return kept


def _title(model: str, config: GCNConfig) -> str:
    return (
        f"{model}, hidden size {config.hidden_size}, final {config.final_hidden_size}, "
        f"{config.output_layer} softmax, {config.n_tokens} tokens"
    )


def _batches(
    config: GCNConfig, setup: Setup, say: Callable[[str], None]
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], np.ndarray, dict[str, object]]:
    """Batches on the device, mean targets in each tail cluster (n_tails,), and the corpus."""
    corpus = corpora.load(setup.corpus, vocab_size=config.vocab_size)
    corpus.n_batches(config.batch_size, config.seq_len)  # refuses a batch beyond the corpus
    if corpus.note:
        say(corpus.note)
    stream = corpus.batches(config.batch_size, config.seq_len)
    batches = [
        tuple(torch.from_numpy(ids).to(setup.device) for ids in pair)
        for pair in itertools.islice(stream, N_BATCHES)
    ]
    edges = (*config.cutoffs, config.vocab_size)
    hits = [
        [((low <= targets) & (targets < high)).sum().item() for low, high in pairwise(edges)]
        for _, targets in batches
    ]
    facts = {"name": corpus.name, "sha256": corpus.sha256, "vocab_size": corpus.vocab_size}
    return batches, np.asarray(hits, dtype=float).mean(axis=0), facts


def _steps(network, optimizer, batches, setup: Setup) -> Callable[[], Step]:
    """Gives the step on the next batch: as in training, or forward only."""
    turn = itertools.cycle(batches)
    autocast = (
        (lambda: torch.autocast(setup.device, dtype=torch.bfloat16))
        if setup.dtype == "bf16"
        else nullcontext
    )

    def train(tokens: torch.Tensor, targets: torch.Tensor) -> None:
        with region("optimizer", "optimizer"):
            optimizer.zero_grad()
        with autocast():
            loss = network(tokens, targets)
        loss.backward()
        optimizer.step()

    def forward(tokens: torch.Tensor, targets: torch.Tensor) -> None:
        with torch.no_grad(), autocast():
            network(tokens, targets)

    network.train(setup.phase == "train")
    run = train if setup.phase == "train" else forward

    def next_step() -> Step:
        tokens, targets = next(turn)
        return lambda: run(tokens, targets)

    return next_step


def _records(
    model: str, config: GCNConfig, setup: Setup, breakdown: Breakdown, conditions: Provenance
) -> list[Record]:
    """The measured columns: one row a part, then the step."""
    rng = np.random.default_rng(setup.seed)
    shares = stats.share_intervals(breakdown.samples_ms, rng)
    common = dict(
        run_id=conditions.run_id,
        study="profile",
        kind="measured",
        model=model,
        config=dataclasses.asdict(config),
        device=setup.device,
        device_name=conditions.device_name,
        dtype=setup.dtype,
        n_threads=conditions.n_threads,
        quality=breakdown.quality,
    )
    rows = []
    for i, (owner, phase) in enumerate(breakdown.parts):
        summary = stats.summarise(breakdown.samples_ms[:, i], rng)
        rows.append(
            Record(
                owner=owner,
                phase=phase,
                share=float(shares.shares[i]),
                share_low=float(shares.low[i]),
                share_high=float(shares.high[i]),
                **_latency(summary),
                **common,
            )
        )
    whole = stats.summarise(breakdown.totals_ms, rng)
    step = dict(owner=STEP, phase=STEP, share=1.0, share_low=1.0, share_high=1.0)
    latency = _latency(whole) | {
        "latency_ms": sum(r.latency_ms for r in rows),
        "latency_ms_low": shares.total_low,
        "latency_ms_high": shares.total_high,
    }
    return [*rows, Record(**step, **latency, **common)]


def _latency(summary: stats.Summary) -> dict[str, object]:
    return {
        "latency_ms": summary.median,
        "latency_ms_low": summary.low,
        "latency_ms_high": summary.high,
        "latency_ms_p05": summary.p05,
        "latency_ms_p25": summary.p25,
        "latency_ms_p50": summary.median,
        "latency_ms_p75": summary.p75,
        "latency_ms_p95": summary.p95,
        "n": summary.n,
    }


def _with_work(
    rows: list[Record],
    config: GCNConfig,
    setup: Setup,
    hits: np.ndarray,
    calibration: Calibration,
) -> list[Record]:
    """FLOPs, bytes and parameters of each part, and the roofline prediction for this device.

    The analytic bytes are those of fp32 steps; in other precisions they and the prediction stay
    unknown.
    """
    operators = predict.costs(config, hits.tolist(), PHASES[setup.phase])
    owned = cost.parameters(config)
    owned |= dict.fromkeys((predict.OPTIMIZER, STEP), sum(owned.values()))
    bands = predict.bands(operators, calibration, "fp32")
    whole = (STEP, STEP)
    operators[whole] = list(itertools.chain(*operators.values()))
    shares = cost.shares(bands) | {whole: (1.0, 1.0, 1.0)}
    bands[whole] = sum(bands.values(), cost.Band(0, 0))
    done = []
    for row in rows:
        part = (row.owner, row.phase)
        work = sum(operators.get(part, []), cost.Cost(0, 0))
        row = dataclasses.replace(row, flops=work.flops, parameters=owned.get(row.owner, 0))
        if setup.dtype == "fp32":
            band = bands.get(part, cost.Band(0, 0))
            row = dataclasses.replace(
                row,
                bytes=work.bytes,
                predicted_ms_low=band.low,
                predicted_ms_high=band.high,
                predicted_share=shares.get(part, (0.0,))[0],
            )
        done.append(row)
    return done


def _rates(calibration: Calibration) -> dict[str, object]:
    return {
        "matmul_flops_per_s": calibration.matmul_flops_per_s,
        "bytes_per_s": calibration.bytes_per_s,
    }


def _notes(breakdown: Breakdown, config: GCNConfig, hits: np.ndarray) -> dict[str, object]:
    """What the reader of the rows should know of the run."""
    inflation = breakdown.inflation
    return {
        "inflation": inflation.ratio,
        "inflation_low": inflation.low,
        "inflation_high": inflation.high,
        "plain_ms_median": float(np.median(breakdown.plain_ms)),
        "n_warmup": breakdown.n_warmup,
        "warmed_up": breakdown.warmed_up,
        "n_outliers": int(stats.outliers(breakdown.totals_ms).sum()),
        "tail_hits": [float(h) for h in hits],
        "groups": _groups(breakdown),
    }


def _groups(breakdown: Breakdown) -> dict[str, dict[str, float]]:
    """Share of the step of each group of owners, all phases together, with its interval."""
    columns = {
        name: [i for i, (owner, _) in enumerate(breakdown.parts) if group_of(owner) == name]
        for name in GROUPS
    }
    rng = np.random.default_rng(0)
    found = stats.share_intervals(breakdown.samples_ms, rng, groups=list(columns.values()))
    return {
        name: {"share": float(share), "share_low": float(low), "share_high": float(high)}
        for name, share, low, high in zip(columns, found.shares, found.low, found.high, strict=True)
    }
