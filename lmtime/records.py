"""Measurements as rows: the only thing that passes from measuring to analysing.

A study is a JSON Lines file, one row a Record; the conditions it was taken under stand in
`provenance.jsonl` beside it, one object a run, joined by `run_id`. Standard library only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lmtime.errors import UsageError

SCHEMA = "lmtime/1"
STEP = "step"  # owner and phase of the row for the whole step
PHASES = ("forward", "backward", "optimizer", STEP)

GROUPS = ("embedding", "body", "output layer", "optimizer", "outside")


def group_of(owner: str) -> str:
    """The group of a report that an owner is folded into; the loss goes with the output layer."""
    if owner == "loss":
        return "output layer"
    return owner if owner in GROUPS else "body"


@dataclass(frozen=True)
class Record:
    """One owner and phase of one configuration: how long, how sure, how much work.

    `latency_ms` is a median and `_low`, `_high` its 95 % bootstrap interval; in a prediction
    they are the roofline band and the quantiles are None. In the row of the step `latency_ms`
    is the sum of the parts and `latency_ms_p50` the median of whole steps. `share` is the part
    of the step. What was not measured is None, never 0. `quality` is empty, or says why this
    row must not be used as a result.
    """

    run_id: str
    study: str
    kind: str  # "measured" or "predicted"
    model: str  # a key of config.PRESETS, or the folder of a config.json
    config: dict[str, object]  # the fields of the model's configuration
    device: str  # "cpu", "cuda", or the key of hardware.GPUS that was predicted for
    device_name: str
    dtype: str
    n_threads: int | None
    owner: str
    phase: str
    latency_ms: float
    latency_ms_low: float
    latency_ms_high: float
    share: float
    share_low: float
    share_high: float
    latency_ms_p05: float | None = None
    latency_ms_p25: float | None = None
    latency_ms_p50: float | None = None
    latency_ms_p75: float | None = None
    latency_ms_p95: float | None = None
    n: int | None = None
    flops: float | None = None  # executed
    useful_flops: float | None = None  # without masked pairs and padding
    recomputed_flops: float | None = None  # the part of `flops` that was done before
    bytes: float | None = None
    parameters: int | None = None
    predicted_ms_low: float | None = None
    predicted_ms_high: float | None = None
    predicted_share: float | None = None
    kernels: int | None = None
    syncs: int | None = None
    page_faults: int | None = None
    busy_ms: float | None = None  # of one traced step, not of the samples
    idle_ms: float | None = None
    cache: str = "as in training"  # or "hot", "cold"
    quality: str = ""

    def to_row(self) -> dict[str, object]:
        """A flat dictionary: the configuration's fields stand beside the record's own."""
        row = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        config = row.pop("config")
        return {**row, **{k: list(v) if isinstance(v, tuple) else v for k, v in config.items()}}

    @classmethod
    def from_row(cls, row: dict[str, object]) -> Record:
        """The inverse of `to_row`: fields that Record does not know are the configuration's."""
        own = {f.name for f in dataclasses.fields(cls)} - {"config"}
        config = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items() if k not in own}
        return cls(config=config, **{k: v for k, v in row.items() if k in own})


@dataclass(frozen=True)
class Provenance:
    """The conditions of one run: where, with what, how, when."""

    run_id: str
    command: str
    time_utc: str
    device: str
    device_name: str
    n_threads: int | None
    versions: dict[str, str]
    flags: dict[str, object] = field(default_factory=dict)
    load_average: float | None = None  # of the last minute, before the run
    driver: str | None = None
    git_commit: str | None = None
    corpus: dict[str, object] = field(default_factory=dict)
    notes: dict[str, object] = field(default_factory=dict)  # inflation, warm-up, batches, ...


def document(command: str, provenance: dict, rows: list[dict], **more: object) -> dict:
    """The JSON document that a command prints."""
    return {"schema": SCHEMA, "command": command, "provenance": provenance, **more, "rows": rows}


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to: it takes its place at the end, and goes on an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write_text(path: Path, text: str) -> None:
    """Write the whole file or nothing.

    A link is followed, and what is no regular file (`/dev/stdout`) is written to, not replaced.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8")


def read_jsonl(path: Path) -> list[dict]:
    """Rows of a JSON Lines file; no file is no rows."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise UsageError(
                f"{path}, line {number} is not JSON ({error.msg}): delete that line or the file"
            ) from None
    return rows


def write_jsonl(path: Path, rows: Iterable[dict]) -> None:
    """Replace a JSON Lines file, wholly or not at all."""
    write_text(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def append_jsonl(path: Path, rows: Iterable[dict]) -> None:
    """Add rows to a JSON Lines file, all of them or none."""
    lines = [json.dumps(row, allow_nan=False) for row in rows]
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if old and not old.endswith("\n"):  # as an editor may leave it
        old += "\n"
    write_text(path, old + "".join(line + "\n" for line in lines))


@dataclass(frozen=True)
class Study:
    """The rows of one study on one device, kept in `folder`."""

    folder: Path
    name: str

    @property
    def path(self) -> Path:
        """The JSON Lines file of the rows."""
        return self.folder / f"{self.name}.jsonl"

    @property
    def provenance_path(self) -> Path:
        """The JSON Lines file of the conditions, shared by the studies of a device."""
        return self.folder / "provenance.jsonl"

    def records(self) -> list[Record]:
        """All rows that have been measured so far."""
        return [Record.from_row(row) for row in read_jsonl(self.path)]

    def runs(self, model: str, config: dict[str, object], **conditions: object) -> list[str]:
        """Runs with usable rows of this configuration, taken under these conditions."""
        return [
            r.run_id
            for r in self.records()
            if r.owner == STEP
            and not r.quality
            and r.model == model
            and r.config == config
            and all(getattr(r, name) == value for name, value in conditions.items())
        ]

    def provenance(self) -> dict[str, dict]:
        """{run_id: conditions} of the runs that this study's rows come from."""
        runs = {row["run_id"] for row in read_jsonl(self.path)}
        found = read_jsonl(self.provenance_path)
        return {row["run_id"]: row for row in found if row["run_id"] in runs}

    def group_rows(self) -> list[dict]:
        """One row a configuration and group of owners: measured share and interval, predicted.

        Only rows that pass their quality gate.
        """
        conditions, steps, predicted = self.provenance(), {}, {}
        for r in self.records():
            if r.quality or r.run_id not in conditions:
                continue
            if r.owner == STEP:
                steps[r.run_id] = r
            elif r.predicted_share is not None:
                part = (r.run_id, group_of(r.owner))
                predicted[part] = predicted.get(part, 0.0) + r.predicted_share
        return [
            {
                **step.to_row(),
                "owner": group,
                "predicted_share": predicted.get((run_id, group)),
                **conditions[run_id]["notes"]["groups"][group],
            }
            for run_id, step in steps.items()
            for group in GROUPS
        ]

    def kind_rows(self, group: str) -> list[dict]:
        """One row a configuration and kind of work of a group: its part of the traced step.

        Only rows that pass their quality gate.
        """
        conditions, rows = self.provenance(), []
        for r in self.records():
            if r.owner != STEP or r.quality or r.run_id not in conditions:
                continue
            kinds = conditions[r.run_id]["notes"].get("kinds")
            if kinds is None:  # measured before there was a trace
                continue
            total = sum(ms for of_group in kinds.values() for ms in of_group.values())
            rows += [
                {**r.to_row(), "kind": kind, "ms": ms, "share": ms / total}
                for kind, ms in kinds[group].items()
            ]
        return rows

    def add(self, records: Sequence[Record], provenance: Provenance) -> None:
        """Keep one measured configuration in place of what there was of it.

        The conditions go first: no row is ever without its own.
        """
        new = records[0]
        kept = [
            r.to_row()
            for r in self.records()
            if (r.model, r.config, r.dtype) != (new.model, new.config, new.dtype)
        ]
        append_jsonl(self.provenance_path, [dataclasses.asdict(provenance)])
        write_jsonl(self.path, [*kept, *(record.to_row() for record in records)])

    def annotate(self, run_id: str, **notes: object) -> None:
        """Add to the notes of a run's conditions what was learnt later."""
        rows = read_jsonl(self.provenance_path)
        for row in rows:
            if row["run_id"] == run_id:
                row["notes"] |= notes
        write_jsonl(self.provenance_path, rows)


def project_root(start: Path | None = None) -> Path:
    """The folder of the study: the nearest one above `start` that holds `_toc.yml`, else `start`.

    LMTIME_ROOT overrides `start`; without either: above the working directory, or this clone.
    """
    given = os.environ.get("LMTIME_ROOT") or start
    starts = [Path(p).resolve() for p in ([given] if given else [Path.cwd(), __file__])]
    above = (folder for first in starts for folder in (first, *first.parents))
    return next((folder for folder in above if (folder / "_toc.yml").exists()), starts[0])


def data_file(*names: str) -> Path:
    """A file of the study's `data/`."""
    if not (path := project_root().joinpath("data", *names)).is_file():
        raise UsageError(f"there is no {path}: set LMTIME_ROOT to the folder of the study, a clone")
    return path


def results_root() -> Path:
    """Where this machine's rows go: `results` of the project, or LMTIME_RESULTS."""
    return (project_root() / (os.environ.get("LMTIME_RESULTS") or "results")).resolve()


def studies(name: str) -> list[tuple[str, Study]]:
    """Every set of rows of one study: ("this machine", ...) first, then the reference sets."""
    bases = {"this machine": results_root(), "reference": project_root() / "data" / "results"}
    return [
        (label, Study(path.parent, name))
        for label, base in bases.items()
        for path in sorted(base.glob(f"*/{name}.jsonl"))
    ]


def row_sets(name: str) -> list[tuple[str, list[dict]]]:
    """(whose, rows) of the files of this name, of this machine first: rows that are no Records."""
    return [(whose, read_jsonl(study.path)) for whose, study in studies(name)]
