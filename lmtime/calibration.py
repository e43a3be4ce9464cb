"""What a device was measured to do: the rates of large calls, and tables of rates by size.

Standard library only. `lmtime.timing.calibrate` measures what stands here.
"""

from __future__ import annotations

import dataclasses
import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from lmtime.errors import UsageError, unknown
from lmtime.hardware import PRECISIONS
from lmtime.records import SCHEMA, document, write_text

CACHES = ("hot", "cold")


@dataclass(frozen=True)
class Product:
    """Rate of one size of matrix product, (rows, inner) @ (inner, columns), in n samples.

    flops_per_s is the median. hot: repeated on the same operands; cold: the caches were flushed.
    """

    dtype: str
    rows: int
    inner: int
    columns: int
    flops_per_s: float
    best_flops_per_s: float
    n: int
    cache: str

    def __post_init__(self) -> None:
        for name, value, known in (
            ("dtype", self.dtype, PRECISIONS),
            ("cache", self.cache, CACHES),
        ):
            if value not in known:
                raise unknown(name, value, list(known))
        _require_counts(self, "rows", "inner", "columns", "n")
        _require_rates(self, "flops_per_s", "best_flops_per_s")


@dataclass(frozen=True)
class Pass:
    """Rate at which an operator that only moves values reads and writes n_bytes, in n samples.

    n_bytes is the traffic that cannot be avoided, as `cost.operators` counts it, and bytes_per_s
    the median. A call is launched as a step launches it: small sizes include what that costs.
    """

    operator: str
    n_bytes: int
    bytes_per_s: float
    best_bytes_per_s: float
    n: int

    def __post_init__(self) -> None:
        _require_text(self, "operator")
        _require_counts(self, "n_bytes", "n")
        _require_rates(self, "bytes_per_s", "best_bytes_per_s")


TABLES = {"gemm": Product, "copies": Pass, "passes": Pass}
TIMES = ("launch_s", "host_s_per_operator", "sync_s")


@dataclass(frozen=True)
class Calibration:
    """What a device was measured to do. Rates are positive and finite.

    matmul_flops_per_s: rate of large matrix products by dtype. bytes_per_s: rate of large
    copies, bytes read and written together. The rest is there after a full calibration only.
    """

    device: str  # "cpu" or "cuda"
    device_name: str
    n_threads: int | None
    matmul_flops_per_s: dict[str, float]
    bytes_per_s: float
    provenance: dict[str, object] = field(default_factory=dict)
    gemm: tuple[Product, ...] = ()
    copies: tuple[Pass, ...] = ()  # copy, add and sum, from the caches to the memory
    passes: tuple[Pass, ...] = ()  # operators of a step, and optimizers
    launch_s: float | None = None  # one operator of a chain of tiny ones, on the device
    host_s_per_operator: float | None = None  # forward, recorded for its gradient, or backward
    sync_s: float | None = None  # one `.item()` of a device that has nothing else to do
    in_step: dict[str, float] = field(default_factory=dict)  # coefficients of `cost.in_step`

    def __post_init__(self) -> None:
        _require_text(self, "device", "device_name")
        threads = self.n_threads
        if threads is not None and (type(threads) is not int or threads < 1):
            raise UsageError(f"n_threads={threads!r} must be a whole number of at least 1, or null")
        if not self.matmul_flops_per_s:
            raise UsageError("flops_per_s is missing: at least one dtype must have been measured")
        for dtype, rate in self.matmul_flops_per_s.items():
            if dtype not in PRECISIONS:
                raise unknown("dtype", dtype, list(PRECISIONS))
            _require_rate(f"flops_per_s of {dtype}", rate)
        _require_rates(self, "bytes_per_s", *(t for t in TIMES if getattr(self, t) is not None))
        for name, value in self.in_step.items():
            if not _is_number(value) or value < 0:
                raise UsageError(f"in_step {name}={value!r} must be a finite number, 0 or more")

    def flops_per_s(self, dtype: str) -> float:
        """Measured rate of large matrix products in `dtype`."""
        if dtype not in self.matmul_flops_per_s:
            has = ", ".join(self.matmul_flops_per_s)
            raise UsageError(
                f"the calibration of {self.device_name} has no {dtype} rate: choose {has}, "
                f"or measure again with lmtime calibrate"
            )
        return self.matmul_flops_per_s[dtype]

    def gemm_flops_per_s(self, dtype: str, rows: float, inner: float, columns: float) -> float:
        """Median rate of (rows, inner) @ (inner, columns), operands in the cache where they fit.

        Linear in the logarithm of each size between those measured, constant beyond them. Without
        a table, the rate of large products.
        """
        table = self._trees.get(dtype)
        return _looked_up(table, (rows, inner, columns)) if table else self.flops_per_s(dtype)

    def copy_bytes_per_s(self, n_bytes: float) -> float:
        """Median rate of a copy that reads and writes n_bytes together, interpolated likewise."""
        return self._moved_per_s("copy", n_bytes) or self.bytes_per_s

    def pass_bytes_per_s(self, operator: str, n_bytes: float) -> float:
        """Median rate of an operator that moves n_bytes; that of a copy where it has none."""
        return self._moved_per_s(operator, n_bytes) or self.copy_bytes_per_s(n_bytes)

    def has_pass(self, operator: str) -> bool:
        """Whether there is a table of rates for this operator."""
        return operator in self._trees

    def _moved_per_s(self, operator: str, n_bytes: float) -> float | None:
        table = self._trees.get(operator)
        return _looked_up(table, (n_bytes,)) if table else None

    @cached_property
    def _trees(self) -> dict[str, _Tree]:
        """The tables of rates, made ready once: by dtype those of products, by operator others."""
        tables: defaultdict[str, dict] = defaultdict(dict)
        for p in self.gemm:
            if p.cache == "hot":
                tables[p.dtype][p.rows, p.inner, p.columns] = p.flops_per_s
        for p in self.copies + self.passes:
            tables[p.operator][(p.n_bytes,)] = p.bytes_per_s
        return {name: _tree(table) for name, table in tables.items()}

    def to_json(self) -> str:
        """The document of `lmtime calibrate`: one row a dtype, and the tables beside them."""
        rows = [{"dtype": d, "flops_per_s": r} for d, r in self.matmul_flops_per_s.items()]
        facts = {
            "device": self.device,
            "device_name": self.device_name,
            "n_threads": self.n_threads,
            "bytes_per_s": self.bytes_per_s,
            **{name: value for name in TIMES if (value := getattr(self, name)) is not None},
            **({"in_step": self.in_step} if self.in_step else {}),
            **{
                name: [dataclasses.asdict(row) for row in table]
                for name in TABLES
                if (table := getattr(self, name))
            },
        }
        whole = document("calibrate", self.provenance, rows, **facts)
        return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, origin: str = "calibration") -> Calibration:
        """The inverse of `to_json`; a mistake names `origin` (the file) and the field."""
        try:
            return cls._from_document(json.loads(text))
        except json.JSONDecodeError as error:
            raise UsageError(
                f"{origin}, line {error.lineno} is not JSON ({error.msg}): "
                f"measure again with lmtime calibrate"
            ) from None
        except UsageError as error:
            raise UsageError(f"{origin}: {error}") from None

    @classmethod
    def _from_document(cls, whole: object) -> Calibration:
        if not isinstance(whole, dict):
            raise UsageError("must be a JSON object, as lmtime calibrate writes it")
        if (schema := whole.get("schema")) != SCHEMA:
            raise UsageError(f"schema={schema!r} is not known: this version reads {SCHEMA!r}")
        rows = _require(whole, "rows", list)
        for row in rows:
            if not isinstance(row, dict) or not isinstance(row.get("dtype"), str):
                raise UsageError("rows must be objects with a dtype and its flops_per_s")
        return cls(
            device=_require(whole, "device", str),
            device_name=_require(whole, "device_name", str),
            n_threads=whole.get("n_threads"),
            matmul_flops_per_s={row["dtype"]: row.get("flops_per_s") for row in rows},
            bytes_per_s=whole.get("bytes_per_s"),
            provenance=_require(whole, "provenance", dict),
            **{name: _table(whole, name, kind) for name, kind in TABLES.items()},
            **{name: whole.get(name) for name in TIMES},
            in_step=_require({"in_step": {}, **whole}, "in_step", dict),
        )


def interpolate(table: Mapping[tuple[float, ...], float], at: tuple[float, ...]) -> float:
    """Value of a table at a point: linear in the logarithm of each coordinate, one after the other.

    The table need not be complete: for each first coordinate it uses the others that there are.
    Beyond the ends it is constant. The table's coordinates are positive.
    """
    return _looked_up(_tree(table), at)


@dataclass(frozen=True)
class _Tree:
    """A table by its first coordinate: at each place a table of the others, or a value."""

    places: list[float]
    logs: list[float]
    below: list[_Tree | float]


def _tree(table: Mapping[tuple[float, ...], float]) -> _Tree | float:
    if () in table:
        return table[()]
    parts: defaultdict[float, dict] = defaultdict(dict)
    for (first, *rest), value in table.items():
        parts[first][tuple(rest)] = value
    places = sorted(parts)
    return _Tree(places, [math.log(p) for p in places], [_tree(parts[p]) for p in places])


def _looked_up(tree: _Tree, at: tuple[float, ...]) -> float:
    first, rest = at[0], at[1:]
    i = bisect_right(tree.places, first)
    if i in (0, len(tree.places)):
        end = tree.below[max(i - 1, 0)]
        return _looked_up(end, rest) if rest else end
    low, high = tree.below[i - 1], tree.below[i]
    if rest:
        low, high = _looked_up(low, rest), _looked_up(high, rest)
    low_log, high_log = tree.logs[i - 1], tree.logs[i]
    return low + (math.log(first) - low_log) / (high_log - low_log) * (high - low)


def _table(whole: dict, name: str, kind: type) -> tuple:
    """The rows of an optional table; a mistake names the table."""
    wanted = {f.name for f in dataclasses.fields(kind)}
    rows = _require({name: [], **whole}, name, list)
    if not all(isinstance(row, dict) and set(row) == wanted for row in rows):
        raise UsageError(f"{name} must be rows of {', '.join(sorted(wanted))}")
    try:
        return tuple(kind(**row) for row in rows)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def _require(whole: dict, name: str, kind: type) -> object:
    if not isinstance(whole.get(name), kind):
        plain = {str: "a text", list: "a list", dict: "an object"}[kind]
        raise UsageError(f"{name}={whole.get(name)!r} must be {plain}")
    return whole[name]


def _require_text(row: object, *names: str) -> None:
    for name in names:
        value = getattr(row, name)
        if not isinstance(value, str) or not value:
            raise UsageError(f"{name}={value!r} must be a text that is not empty")


def _require_counts(row: object, *names: str) -> None:
    for name in names:
        value = getattr(row, name)
        if type(value) is not int or value < 1:
            raise UsageError(f"{name}={value!r} must be a whole number of at least 1")


def _require_rates(row: object, *names: str) -> None:
    for name in names:
        _require_rate(name, getattr(row, name))


def _require_rate(name: str, rate: object) -> None:
    if not _is_number(rate) or rate <= 0:
        raise UsageError(f"{name}={rate!r} must be a finite number greater than 0")


def _is_number(value: object) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and math.isfinite(value)


def read_calibration(path: Path) -> Calibration:
    """The calibration that `write_calibration` put into the file `path`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read ({error}): write it with lmtime calibrate --out"
        ) from None
    return Calibration.from_json(text, origin=str(path))


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the calibration as one JSON document, the whole file or nothing."""
    write_text(Path(path), calibration.to_json())
