"""Laws of claims: nothing is missed, nothing done twice, a dead worker's share is taken over."""

import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from claimant import KEYS

from lmtime.errors import UsageError
from lmtime.pareto.claims import Claims, evaluate_all, share

NAMED = {"score": "max", "ms": "min"}
STORAGES = ["journal", "sqlite"]


def storage_in(folder, kind):
    return str(folder / "journal.log") if kind == "journal" else f"sqlite:///{folder / 'all.db'}"


@pytest.fixture(params=STORAGES)
def storage(tmp_path, request):
    return storage_in(tmp_path, request.param)


def started(storage, notes, stall="", stale_after_s=60.0):
    program = str(Path(__file__).with_name("claimant.py"))
    return subprocess.Popen(
        [sys.executable, program, storage, str(notes), stall, str(stale_after_s)]
    )


def lines(path):
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_two_processes_share_twelve_and_do_each_once(storage, tmp_path):
    notes = [tmp_path / "one", tmp_path / "two"]
    workers = [started(storage, path) for path in notes]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    done = lines(notes[0]) + lines(notes[1])
    assert sorted(done) == sorted(KEYS)
    assert set(Claims(storage, "twelve", NAMED).finished()) == set(KEYS)


def test_a_killed_worker_s_claim_is_taken_over(storage, tmp_path):
    killed = started(storage, tmp_path / "killed", stall=KEYS[3])
    until = time.monotonic() + 60
    while KEYS[3] not in lines(tmp_path / "killed") and time.monotonic() < until:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    other = started(storage, tmp_path / "other", stale_after_s=1.0)
    assert other.wait(60) == 0
    assert lines(tmp_path / "killed") == KEYS[:4]
    assert lines(tmp_path / "other")[-1] == KEYS[3] or KEYS[3] in lines(tmp_path / "other")
    assert sorted(lines(tmp_path / "other")) == sorted(KEYS[3:])


def test_of_two_claims_to_one_key_the_first_owns_it(storage):
    one, two = (Claims(storage, "study", NAMED) for _ in range(2))
    first = one.claim("a")
    assert first is not None
    assert two.claim("a") is None
    assert one.claim("a") is None  # not even once more
    assert two.claim("b") is not None
    assert one.finish(first, (1.0, 2.0))
    assert two.claim("a") is None
    assert two.finished() == {"a": (1.0, 2.0)}


def test_claims_made_at_once_are_settled_by_their_number(storage, monkeypatch):
    """Both see nothing; both claim; the one with the higher number withdraws."""
    one, two = (Claims(storage, "study", NAMED) for _ in range(2))
    assert one.claim("a") is not None
    then = two._trials
    looks = iter([list, then])
    monkeypatch.setattr(two, "_trials", lambda: next(looks, then)())
    assert two.claim("a") is None
    assert [t.state.name for t in then()] == ["RUNNING", "FAIL"]


def test_a_slow_worker_whose_claim_was_taken_over_keeps_nothing(storage):
    slow = Claims(storage, "study", NAMED)
    quick = Claims(storage, "study", NAMED, stale_after_s=0.0)
    first = slow.claim("a")
    second = quick.claim("a")
    assert second is not None
    assert not slow.finish(first, (1.0, 1.0))
    assert Claims(storage, "study", NAMED).finish(second, (2.0, 2.0))
    assert slow.finished() == {"a": (2.0, 2.0)}


def test_an_error_leaves_the_key_to_others_and_nan_does_not(storage):
    claims = Claims(storage, "study", NAMED)

    def broken(key):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        share("a", broken, claims)
    assert share("a", lambda key: (math.nan, 1.0), claims) is not None
    assert share("a", broken, claims) is None
    assert all(map(math.isnan, claims.finished()["a"]))
    assert share("b", lambda key: (math.inf, 1.0), claims) == (math.inf, 1.0)
    assert claims.finished()["b"] == (math.inf, 1.0)


def test_a_second_run_reads_what_the_first_evaluated(storage):
    claims = Claims(storage, "study", NAMED)
    first = evaluate_all(["a", "b", "a"], lambda key: (ord(key), 0), claims)
    assert first == {"a": (97, 0), "b": (98, 0)}
    assert evaluate_all(["b", "a"], None, Claims(storage, "study", NAMED)) == first
    assert Claims(storage, "another", NAMED).finished() == {}


def test_a_storage_in_no_folder_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"there is no folder .*none for the journal: make it"):
        Claims(tmp_path / "none" / "journal", "study", NAMED)


@pytest.mark.parametrize(
    "name",
    [
        "sqlite:////no/such/folder/all.db",
        "postgresql://me:secret@127.0.0.1:9/none",
        "ftp://somewhere/else",
    ],
)
def test_a_storage_that_cannot_be_used_is_told_without_its_password(name):
    with pytest.raises(UsageError, match=r"cannot be used .*start it, or give the path") as told:
        Claims(name, "study", NAMED)
    assert "secret" not in str(told.value)


def test_a_damaged_journal_is_told(tmp_path):
    path = tmp_path / "journal"
    path.write_text("this is no journal\n" * 3)
    with pytest.raises(UsageError, match="cannot be used"):
        Claims(path, "study", NAMED)
    with pytest.raises(UsageError, match="cannot be used"):
        Claims(tmp_path, "study", NAMED)


def test_a_study_of_other_objectives_is_told(storage):
    Claims(storage, "study", NAMED)
    with pytest.raises(UsageError, match="has 2 objectives, not 3"):
        Claims(storage, "study", NAMED | {"gpu_ms": "min"})
