"""Many workers, one list of work: each sub-network is claimed by its key, and done by one alone.

The store is an Optuna storage: a journal file that all machines can reach, or a database. A claim
is a trial with the key as attribute, written at once with its number; of several claims to one
key, the lowest number owns it and the others withdraw. Optuna is imported on demand.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from lmtime.errors import UsageError

Values = tuple[float, ...]

STALE_AFTER_S = 3600.0  # longer than any evaluation: a claim of that age is a dead worker's
POLL_S = 1.0
KEY, SINCE, FAILED = "key", "claimed_at", "failed"


def import_optuna() -> ModuleType:
    """Optuna with its own messages silenced."""
    try:
        import optuna
    except ImportError:
        raise UsageError(
            "this needs Optuna, which is not installed: pip install 'lmtime[search]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


class Claims:
    """The evaluations of one study, shared by all workers that name the same storage and study.

    storage: the path of a journal file, or a URL such as postgresql://user@host/name.
    directions: name of an objective -> "min" or "max".
    """

    def __init__(
        self,
        storage: str | Path,
        study: str,
        directions: Mapping[str, str],
        *,
        stale_after_s: float = STALE_AFTER_S,
    ) -> None:
        self._optuna = import_optuna()
        self._name = str(storage)
        self._n_values, self._stale_after_s = len(directions), stale_after_s
        with self._reachable():
            self._storage = self._opened()
            self._study = self._created(study, directions)
            stored = len(self._storage.get_study_directions(self._study))
        if stored != len(directions):
            raise UsageError(
                f"study {study!r} in {self._shown()} has {stored} objectives, not "
                f"{len(directions)}: choose another name for this one"
            )

    def finished(self) -> dict[str, Values]:
        """Key -> values of all that was evaluated, by any worker; NaN where that failed."""
        found: dict[str, Values] = {}
        for trial in self._trials():
            if trial.state.name == "COMPLETE":
                found.setdefault(trial.user_attrs[KEY], tuple(trial.values))
            elif FAILED in trial.user_attrs:
                found.setdefault(trial.user_attrs[KEY], (math.nan,) * self._n_values)
        return found

    def claim(self, key: str) -> int | None:
        """The claim's id where this worker is to evaluate it; None where another does or did."""
        trials = [trial for trial in self._trials() if trial.user_attrs[KEY] == key]
        if any(self._is_done(trial) or self._is_alive(trial) for trial in trials):
            return None
        for trial in trials:
            if trial.state.name == "RUNNING":  # its worker is dead
                self._end(trial._trial_id, "FAIL")
        create = self._optuna.trial.create_trial
        running = self._optuna.trial.TrialState.RUNNING
        attributes = {KEY: key, SINCE: datetime.now(UTC).isoformat()}
        with self._reachable():
            own = self._storage.create_new_trial(
                self._study, template_trial=create(state=running, user_attrs=attributes)
            )
        standing = [t for t in self._trials() if t.user_attrs[KEY] == key and self._stands(t)]
        if standing and min(standing, key=lambda t: t.number)._trial_id == own:
            return own
        self.release(own)
        return None

    def finish(self, claim: int, values: Sequence[float]) -> bool:
        """Keeps the values; False where it took so long that another took the claim over."""
        if any(math.isnan(value) for value in values):
            with self._reachable():
                try:
                    self._storage.set_trial_user_attr(claim, FAILED, True)
                except self._optuna.exceptions.UpdateFinishedTrialError:
                    return False
            return self._end(claim, "FAIL")
        return self._end(claim, "COMPLETE", [float(value) for value in values])

    def release(self, claim: int) -> None:
        """Leaves it to others."""
        self._end(claim, "FAIL")

    def _opened(self) -> Any:
        storages = self._optuna.storages
        if "://" in self._name:
            waits = {"connect_args": {"timeout": 60}} if self._name.startswith("sqlite") else {}
            return _again(lambda: storages.RDBStorage(self._name, engine_kwargs=waits))
        folder = Path(self._name).absolute().parent
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder} for the journal: make it first")
        return storages.JournalStorage(storages.journal.JournalFileBackend(self._name))

    def _created(self, study: str, directions: Mapping[str, str]) -> int:
        named = {"min": "MINIMIZE", "max": "MAXIMIZE"}
        wanted = [self._optuna.study.StudyDirection[named[d]] for d in directions.values()]
        try:
            return self._storage.create_new_study(wanted, study)
        except self._optuna.exceptions.DuplicatedStudyError:
            return self._storage.get_study_id_from_name(study)

    def _trials(self) -> list[Any]:
        with self._reachable():
            trials = self._storage.get_all_trials(self._study, deepcopy=False)
        return [trial for trial in trials if KEY in trial.user_attrs]

    def _is_done(self, trial: Any) -> bool:
        return trial.state.name == "COMPLETE" or FAILED in trial.user_attrs

    def _stands(self, trial: Any) -> bool:
        return trial.state.name == "RUNNING" or self._is_done(trial)

    def _is_alive(self, trial: Any) -> bool:
        age = datetime.now(UTC) - datetime.fromisoformat(trial.user_attrs[SINCE])
        return trial.state.name == "RUNNING" and age.total_seconds() < self._stale_after_s

    def _end(self, claim: int, state: str, values: Sequence[float] | None = None) -> bool:
        """False where it was ended before: a slow worker's claim that another took over."""
        try:
            with self._reachable():
                end = self._optuna.trial.TrialState[state]
                return self._storage.set_trial_state_values(claim, end, values)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            return False

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        """A storage that is down, or no storage, is told in one sentence."""
        from sqlalchemy.exc import SQLAlchemyError  # Optuna needs it, and so it is there

        down = (self._optuna.exceptions.StorageInternalError, SQLAlchemyError, OSError)
        damaged = (ImportError, ValueError, KeyError, TypeError)
        try:
            yield
        except UsageError:
            raise
        except (*down, *damaged) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(
                f"the storage {self._shown()} cannot be used ({why}): start it, or give the path "
                f"of a journal file or the URL of a database"
            ) from error

    def _shown(self) -> str:
        """Its name without the password."""
        return re.sub(r"(://[^:/@]*):.*@", r"\1:***@", self._name)


def _again(open_it: Callable[[], Any], n_tries: int = 5) -> Any:
    """Two workers that make the tables of a new database at once are in each other's way."""
    for _ in range(n_tries - 1):
        try:
            return open_it()
        except Exception:  # each database has its own
            time.sleep(0.2)
    return open_it()


def evaluate_all(
    keys: Sequence[str],
    evaluate: Callable[[str], Sequence[float]],
    claims: Claims,
    *,
    poll_s: float = POLL_S,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Values]:
    """Key -> values of every key, shared among all workers that call it, each evaluated once.

    At the end it waits for the others, and takes over from those whose claims are stale.
    """
    wanted = dict.fromkeys(keys)
    while True:
        for key in wanted:
            share(key, evaluate, claims)
        done = claims.finished()
        n_open = sum(key not in done for key in wanted)
        if not n_open:
            return {key: done[key] for key in wanted}
        say(f"waiting for {n_open} that other workers evaluate")
        time.sleep(poll_s)


def share(
    key: str, evaluate: Callable[[str], Sequence[float]], claims: Claims
) -> tuple[float, ...] | None:
    """Evaluates a key unless another worker does or did; its values, or None then.

    What is interrupted or fails with an error is left to others.
    """
    claim = claims.claim(key)
    if claim is None:
        return None
    try:
        values = tuple(float(value) for value in evaluate(key))
    except BaseException:
        claims.release(claim)
        raise
    return values if claims.finish(claim, values) else None
