"""From a configuration to records: build, measure, count, predict, and put the rows together."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from filelock import FileLock, Timeout

from lmtime import accuracy, corpora, models, plans, report
from lmtime.calibration import Calibration, read_calibration, write_calibration
from lmtime.config import HuggingFaceConfig, ModelConfig, may_be_band_sizes
from lmtime.cost import in_step
from lmtime.cost.predict import optimizer_name, optimizer_of
from lmtime.errors import Busy, TooLarge
from lmtime.models.memory import require_memory
from lmtime.records import Provenance, Record, Study, document, results_root
from lmtime.report import Setup
from lmtime.stats import MIN_PAIRS
from lmtime.timing import Ownership, StopRule
from lmtime.timing.breakdown import INFLATION_TOLD
from lmtime.timing.calibrate import SMOKE, calibrate, calibrate_fully, check_step
from lmtime.timing.conditions import (
    device_folder,
    device_slug,
    load_average,
    precision,
    provenance,
)
from lmtime.timing.observation import Observation, observe
from lmtime.timing.steps import Batches, steps

CALIBRATION = "calibration.json"  # beside the rows of its device
N_BATCHES = 16  # taken in turn: one batch's cluster hits are not a corpus's


@dataclass(frozen=True)
class Profile:
    """One measured configuration: what its steps told, and the rows made from it."""

    measured: Observation
    records: list[Record]
    provenance: Provenance

    def records_of(self, study: str) -> list[Record]:
        """The rows as those of a study."""
        return [dataclasses.replace(r, study=study) for r in self.records]


def profile(
    model: str,
    config: ModelConfig,
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
    update = optimizer_of(config, setup.optimizer, setup.device)
    require_memory(config, setup.device, phase=setup.phase, optimizer=update)
    if calibration is None:
        calibration = calibrate(setup.device, dtype=report.rated(setup.dtype), say=say)
    network = models.build(config, seed=setup.seed, device=setup.device)
    with precision(setup.dtype):
        conditions = provenance(command, setup.device, corpus=corpus, load_average=load)
        optimizer = None
        if setup.phase == "train":
            optimizer = models.optimizer_for(network, config, setup.optimizer)
        measured = observe(
            steps(network, optimizer, batches, setup.device, dtype=setup.dtype),
            steps(network, optimizer, batches[:1], setup.device, dtype=setup.dtype)(),
            Ownership(network, network.owners, optimizer),
            setup.device,
            setup.rule,
            say,
        )
    breakdown = measured.breakdown
    flops, step_ms = breakdown.counts.total.useful_flops, float(np.median(breakdown.plain_ms))
    check_step(flops, step_ms, setup.device, setup.dtype)
    notes = report.rates(calibration) | report.notes(measured)
    notes |= {"rule": dataclasses.asdict(setup.rule)}
    notes |= {"optimizer": setup.optimizer or optimizer_name(config)}
    notes |= {"tail_hits": hits.mean(axis=0).tolist(), "counted_hits": hits[0].tolist()}
    conditions = dataclasses.replace(conditions, notes=notes)
    rows = report.records_of(model, config, setup, measured, conditions)
    rows = report.with_prediction(rows, config, setup, notes["tail_hits"], calibration)
    return Profile(measured, rows, conditions)


def profile_document(done: Profile) -> dict:
    """The JSON document of a profile: rows, inflation, and the shares of the groups."""
    notes = done.provenance.notes
    return document(
        "profile",
        dataclasses.asdict(done.provenance),
        [record.to_row() for record in done.records],
        inflation=notes["inflation"],
        groups=notes["groups"],
        quality=done.measured.quality,
        summary=_summary(done),
    )


def _summary(done: Profile) -> list[str]:
    """Sentences on how far the rows can be trusted."""
    breakdown = done.measured.breakdown
    inflation = breakdown.inflation
    lines = [
        f"Marks cost {100 * (inflation.ratio - 1):.1f} % "
        f"({100 * (inflation.low - 1):.1f} to {100 * (inflation.high - 1):.1f})."
    ]
    if inflation.ratio > INFLATION_TOLD:
        lines.append("That is above 5 %: read the shares, not the milliseconds.")
    if not breakdown.warmed_up:
        lines.append("The step never became steady while warming up.")
    return [*lines, *_work_in_words(done), *done.provenance.corpus["notes"]]


def _work_in_words(done: Profile) -> list[str]:
    """The output layer's part of the arithmetic, and what could not be counted."""
    group = done.provenance.notes["groups"]["output layer"]
    useful, executed = (100 * group[f"forward_{kind}_share"] for kind in ("useful_flops", "flops"))
    lines = [f"Of the forward FLOPs the output layer has {useful:.1f} %"]
    if abs(useful - executed) > 0.05:
        lines[0] += f" by causal attention, {executed:.1f} % of those that the shapes ask for"
    lines[0] += "."
    for row in done.measured.uncounted:
        lines.append(
            f"No formula for {row['operator']} ({row['calls']} calls, "
            f"{100 * row['share']:.1f} % of the traced step): its FLOPs are missing."
        )
    return lines


def measure_missing(
    study: str,
    configs: Iterable[tuple[str, ModelConfig]],
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
    with alone_on(setup.device):
        _measure_missing(kept, list(configs), setup, command, say)
    return kept


def calibration_of(
    device: str, preset: str, *, command: str, say: Callable[[str], None]
) -> Calibration:
    """The full calibration of this device, with steps: read, or measured and kept beside its rows.

    The steps are kept as the study `reference`.
    """
    folder = results_root() / device_folder(device)
    path = folder / CALIBRATION
    if path.exists():
        say("already calibrated")
        return read_calibration(path)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_on(device):
        plan = SMOKE if preset == "smoke" else None
        alone = calibrate_fully(device, plan=plan, command=command, say=say)
        kept = Study(folder, "reference")
        found = with_steps(alone, kept, preset, command=command, say=say)
        write_calibration(path, found)
    return found


def with_steps(
    alone: Calibration,
    kept: Study,
    preset: str = "quick",
    *,
    command: str,
    say: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """A calibration that ends with the steps of `plans.reference_plan`, whose rows are kept."""
    setup = Setup(device=alone.device, rule=StopRule(**plans.brief_rule(preset)))
    for model, config in plans.reference_plan(preset):
        say(_title(model, config))
        done = profile(model, config, setup, command=command, calibration=alone, say=say)
        kept.add(done.records_of(kept.name), done.provenance)
    samples = accuracy.samples(kept)
    if not samples:
        raise RuntimeError("no step was quiet enough to calibrate with: end other work, try again")
    return dataclasses.replace(alone, in_step=in_step.fit(samples, alone))


@contextlib.contextmanager
def alone_on(device: str) -> Iterator[None]:
    """Two measurements of one device at a time are refused, whatever threads they use of a CPU."""
    name = device_slug(device)
    results_root().mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(results_root() / f".{name}.lock", timeout=0):
            yield
    except Timeout:
        raise Busy(
            f"{name} is being measured by another run: wait for it, since two at once would slow "
            f"each other"
        ) from None


def _measure_missing(
    kept: Study,
    wanted: list[tuple[str, ModelConfig]],
    setup: Setup,
    command: str,
    say: Callable[[str], None],
) -> None:
    calibration, measured = None, []
    for i, (model, config) in enumerate(wanted, 1):
        title = f"{kept.name} {i}/{len(wanted)}: {_title(model, config)}"
        if _is_measured(kept, model, config, setup):
            say(f"{title}: already measured")
            continue
        say(title)
        if calibration is None:
            calibration = calibrate(setup.device, dtype=report.rated(setup.dtype), say=say)
        options = dict(command=command, calibration=calibration, say=say)
        try:
            done = profile(model, config, setup, **options)
        except TooLarge as error:
            say(f"{title}: left out, {error}")
            continue
        kept.add(done.records_of(kept.name), done.provenance)
        measured.append((model, config, done))
    if len(measured) > 1:
        say(f"{kept.name}: the first configuration again, to see whether the device drifted")
        _note_drift(kept, setup, measured[0], **options)


def _note_drift(
    kept: Study, setup: Setup, first: tuple[str, ModelConfig, Profile], **options: object
) -> None:
    """Measure the first configuration again, last; the ratio of its times stands in its notes."""
    model, config, before = first
    rule = StopRule(n_min=MIN_PAIRS, n_max=MIN_PAIRS)
    again = profile(model, config, dataclasses.replace(setup, rule=rule), **options)
    ratio = np.median(again.measured.breakdown.plain_ms) / np.median(
        before.measured.breakdown.plain_ms
    )
    kept.annotate(before.provenance.run_id, drift_of_study=float(ratio))


def _is_measured(kept: Study, model: str, config: ModelConfig, setup: Setup) -> bool:
    """Whether there are usable rows, taken under a rule that asked for as many steps at least."""
    runs = kept.runs(model, dataclasses.asdict(config), dtype=setup.dtype)
    conditions = kept.provenance()
    return any(
        conditions[run]["notes"].get("rule", {}).get("n_min", 0) >= setup.rule.n_min
        for run in runs
        if run in conditions
    )


def _title(model: str, config: ModelConfig) -> str:
    final = config.final_hidden_size
    grown = f", final {final}" if final != config.hidden_size else ""
    return (
        f"{model}, hidden size {config.hidden_size}{grown}, "
        f"{config.output_layer} softmax, {config.n_tokens} tokens"
    )


def _batches(
    config: ModelConfig, setup: Setup, say: Callable[[str], None]
) -> tuple[Batches, np.ndarray, dict[str, object]]:
    """Token batches, targets in each tail cluster (n_batches, n_tails), and facts of the corpus."""
    name = setup.corpus or corpora.at_hand(config.corpus)
    corpus = corpora.load(
        name,
        vocab_size=config.vocab_size,
        progress=lambda part: say(f"{name}: {100 * part:.0f} % read"),
    )
    corpus.n_batches(config.batch_size, config.seq_len)  # refuses a batch beyond the corpus
    notes = [corpus.note] if corpus.note else []
    if corpus.vocab_size < config.vocab_size:
        notes.append(f"{corpus.name} has {corpus.vocab_size} words: rarer ones are never met.")
    if may_be_band_sizes(getattr(config, "cutoffs", ()), config.vocab_size):
        notes.append("The cutoffs add up to the vocabulary: for sizes of bands use --band-sizes.")
    if isinstance(config, HuggingFaceConfig):
        notes.append("Token ids are ranks of the corpus's words, not those of a tokenizer.")
    stream = corpus.batches(config.batch_size, config.seq_len)
    batches = list(itertools.islice(stream, N_BATCHES))
    cutoffs = getattr(config, "cutoffs", ())
    hits = [corpora.tail_hits(targets, cutoffs, config.vocab_size) for _, targets in batches]
    facts = {"name": corpus.name, "sha256": corpus.sha256, "vocab_size": corpus.vocab_size}
    facts["notes"] = notes
    return batches, np.array(hits, dtype=float), facts
