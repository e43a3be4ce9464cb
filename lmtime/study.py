"""From a configuration to records: build, measure, count, predict, and put the rows together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from filelock import FileLock, Timeout

from lmtime import corpora, models, report
from lmtime.config import GCNConfig
from lmtime.errors import UsageError
from lmtime.hardware import Calibration
from lmtime.records import Provenance, Record, Study, document, results_root
from lmtime.report import Setup
from lmtime.timing import Breakdown, Ownership, clock_for, measure
from lmtime.timing.breakdown import INFLATION_TOLD
from lmtime.timing.calibrate import calibrate
from lmtime.timing.conditions import device_folder, load_average, precision, provenance
from lmtime.timing.steps import steps

N_BATCHES = 16  # taken in turn: one batch's cluster hits are not a corpus's


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
    load = load_average()
    batches, hits, corpus = _batches(config, setup, say)
    if calibration is None:
        calibration = calibrate(setup.device, dtype=report.rated(setup.dtype), say=say)
    network = models.build(config, seed=setup.seed, device=setup.device)
    optimizer = models.nesterov(network) if setup.phase == "train" else None
    with precision(setup.dtype):
        conditions = provenance(command, setup.device, corpus=corpus, load_average=load)
        breakdown = measure(
            steps(network, optimizer, batches, setup.device, dtype=setup.dtype),
            Ownership(network, network.owners, optimizer),
            clock_for(setup.device),
            setup.rule,
            say=lambda n, spread: say(f"{n} pairs of steps, spread {100 * spread:.1f} %"),
        )
    notes = report.rates(calibration) | report.notes(breakdown, hits)
    notes["rule"] = dataclasses.asdict(setup.rule)
    conditions = dataclasses.replace(conditions, notes=notes)
    rows = report.records_of(model, config, setup, breakdown, conditions)
    return Profile(breakdown, report.with_work(rows, config, setup, hits, calibration), conditions)


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
    if inflation.ratio > INFLATION_TOLD:
        lines.append("That is above 5 %: read the shares, not the milliseconds.")
    if not done.breakdown.warmed_up:
        lines.append("The step never became steady while warming up.")
    return lines + done.provenance.corpus["notes"]


def measure_missing(
    study: str,
    configs: Iterable[tuple[str, GCNConfig]],
    setup: Setup,
    *,
    command: str,
    say: Callable[[str], None] = lambda text: None,
) -> Study:
    """Measure each (model, configuration) that has no usable rows yet, and save it when done.

    Rows go to `results/<device>/<study>.jsonl` of the project. An interrupted call resumes at the
    first configuration without rows; rows that were refused, or taken under a rule that asks for
    fewer steps, are measured again. Two calls for one device at a time are refused.
    """
    folder = results_root() / device_folder(setup.device)
    folder.mkdir(parents=True, exist_ok=True)
    kept = Study(folder, study)
    try:
        with FileLock(folder / ".lock", timeout=0):
            _measure_missing(kept, list(configs), setup, command, say)
    except Timeout:
        raise UsageError(
            f"{folder.name} is being measured by another run: wait for it, since two at once "
            f"would slow each other"
        ) from None
    return kept


def _measure_missing(
    kept: Study,
    wanted: list[tuple[str, GCNConfig]],
    setup: Setup,
    command: str,
    say: Callable[[str], None],
) -> None:
    calibration = None
    for i, (model, config) in enumerate(wanted, 1):
        title = f"{kept.name} {i}/{len(wanted)}: {_title(model, config)}"
        if _is_measured(kept, model, config, setup):
            say(f"{title}: already measured")
            continue
        say(title)
        if calibration is None:
            calibration = calibrate(setup.device, dtype=report.rated(setup.dtype), say=say)
        done = profile(model, config, setup, command=command, calibration=calibration, say=say)
        records = [dataclasses.replace(r, study=kept.name) for r in done.records]
        kept.add(records, done.provenance)


def _is_measured(kept: Study, model: str, config: GCNConfig, setup: Setup) -> bool:
    """Whether there are usable rows, taken under a rule that asked for as many steps at least."""
    runs = kept.runs(model, dataclasses.asdict(config), dtype=setup.dtype)
    conditions = kept.provenance()
    return any(
        conditions[run]["notes"].get("rule", {}).get("n_min", 0) >= setup.rule.n_min
        for run in runs
        if run in conditions
    )


def _title(model: str, config: GCNConfig) -> str:
    return (
        f"{model}, hidden size {config.hidden_size}, final {config.final_hidden_size}, "
        f"{config.output_layer} softmax, {config.n_tokens} tokens"
    )


def _batches(
    config: GCNConfig, setup: Setup, say: Callable[[str], None]
) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray, dict[str, object]]:
    """Token batches, mean targets in each tail cluster (n_tails,), and facts of the corpus."""
    corpus = corpora.load(
        setup.corpus,
        vocab_size=config.vocab_size,
        progress=lambda part: say(f"{setup.corpus}: {100 * part:.0f} % read"),
    )
    corpus.n_batches(config.batch_size, config.seq_len)  # refuses a batch beyond the corpus
    notes = [corpus.note] if corpus.note else []
    if corpus.vocab_size < config.vocab_size:
        notes.append(f"{corpus.name} has {corpus.vocab_size} words: rarer ones are never met.")
    stream = corpus.batches(config.batch_size, config.seq_len)
    batches = list(itertools.islice(stream, N_BATCHES))
    edges = (*config.cutoffs, config.vocab_size)
    hits = [
        [((low <= targets) & (targets < high)).sum() for low, high in pairwise(edges)]
        for _, targets in batches
    ]
    facts = {"name": corpus.name, "sha256": corpus.sha256, "vocab_size": corpus.vocab_size}
    facts["notes"] = notes
    return batches, np.mean(hits, axis=0), facts
