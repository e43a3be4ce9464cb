"""From a configuration to records: build, measure, count, predict, and put the rows together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lmtime import corpora, models, report
from lmtime.config import GCNConfig
from lmtime.hardware import Calibration
from lmtime.records import Provenance, Record, Study, document, project_root, results_root
from lmtime.report import Setup
from lmtime.timing import Breakdown, Ownership, clock_for, measure
from lmtime.timing.breakdown import INFLATION_TOLD
from lmtime.timing.calibrate import calibrate
from lmtime.timing.conditions import device_folder, provenance
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
    batches, hits, corpus = _batches(config, setup, say)
    if calibration is None:
        calibration = calibrate(setup.device, say=say)
    network = models.build(config, seed=setup.seed, device=setup.device)
    optimizer = models.nesterov(network) if setup.phase == "train" else None
    conditions = provenance(
        command, setup.device, project_root(), corpus=corpus, notes=report.rates(calibration)
    )
    breakdown = measure(
        steps(network, optimizer, batches, setup.device, dtype=setup.dtype),
        Ownership(network, network.owners, optimizer),
        clock_for(setup.device),
        setup.rule,
        say=lambda n, spread: say(f"{n} pairs of steps, spread {100 * spread:.1f} %"),
    )
    conditions = dataclasses.replace(
        conditions, notes=conditions.notes | report.notes(breakdown, hits)
    )
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
    kept = Study(results_root() / device_folder(setup.device), study)
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
) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray, dict[str, object]]:
    """Token batches, mean targets in each tail cluster (n_tails,), and facts of the corpus."""
    corpus = corpora.load(setup.corpus, vocab_size=config.vocab_size)
    corpus.n_batches(config.batch_size, config.seq_len)  # refuses a batch beyond the corpus
    if corpus.note:
        say(corpus.note)
    stream = corpus.batches(config.batch_size, config.seq_len)
    batches = list(itertools.islice(stream, N_BATCHES))
    edges = (*config.cutoffs, config.vocab_size)
    hits = [
        [((low <= targets) & (targets < high)).sum() for low, high in pairwise(edges)]
        for _, targets in batches
    ]
    facts = {"name": corpus.name, "sha256": corpus.sha256, "vocab_size": corpus.vocab_size}
    return batches, np.mean(hits, axis=0), facts
