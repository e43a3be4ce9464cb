"""Laws of timing encoders: rounds, the gate, and what a run leaves behind."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import FakeClock

from lmtime import stats
from lmtime.config import SubNetwork
from lmtime.encoders import measuring, plans
from lmtime.encoders.measuring import measure, run_missing, throughput_per_s, unsteady
from lmtime.encoders.plans import TINY, Case, Rounds, first_layers, network_config
from lmtime.errors import UsageError
from lmtime.models.encoder import Encoder
from lmtime.study import alone_on
from lmtime.timing import gates, rounds
from lmtime.timing.conditions import threads
from lmtime.timing.encoder_calls import encoder_calls, held_bytes, tokens_of
from lmtime.timing.rounds import HOT_MS, MIN_OTHERS, SLOW_MS, interleaved, paces

NARROW = SubNetwork((0, 2), (2, 1), (40, 10))
PLAN = [
    Case(engine, TINY, sub, batch, 8)
    for batch in (1, 2)
    for sub in (first_layers(TINY, 2), NARROW)
    for engine in plans.ENGINES
]
PLAN_OF_EIGHT = [
    Case("torch", TINY, SubNetwork((0,), (1,), (width,)), 1, 8) for width in range(1, 9)
]


class Steps:
    """Steps that take given times by a fake clock, and write down who was called."""

    def __init__(self, *times_ms):
        self.clock, self.called = FakeClock(), []
        self.steps = [lambda i=i, ms=ms: self._run(i, ms) for i, ms in enumerate(times_ms)]

    def _run(self, i, ms):
        self.called.append(i)
        self.clock.take(next(ms) if hasattr(ms, "__next__") else ms)

    def rounds(self, n, seed=0, kinds=None):
        kinds = kinds or ["torch"] * len(self.steps)
        return interleaved(self.steps, kinds, self.clock, n, np.random.default_rng(seed))


# Rounds


def test_each_step_is_called_once_a_round_in_an_order_that_changes():
    many = Steps(*range(100, 108))
    samples = many.rounds(12)
    assert samples.shape == (12, 8)
    assert (samples == np.arange(100, 108)).all()
    orders = [tuple(many.called[16 + 8 * n : 24 + 8 * n]) for n in range(12)]
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert len(set(orders)) > 10
    assert Steps(*range(100, 108)).rounds(1).shape == (1, 8)


def test_the_steps_of_an_engine_stand_together_behind_an_untimed_call():
    many = Steps(*range(100, 106))
    kinds = ["torch", "onnx"] * 3
    assert (many.rounds(8, kinds=kinds) == np.arange(100, 106)).all()
    called, first = many.called[12:], set()
    for n in range(8):
        of_round = called[8 * n : 8 * n + 8]
        assert of_round[0] == of_round[1] and of_round[4] == of_round[5]
        parts = of_round[1:4], of_round[5:]
        assert {i % 2 for i in parts[0]} != {i % 2 for i in parts[1]}
        assert sorted(of_round[1:4] + of_round[5:]) == list(range(6))
        first.add(of_round[0] % 2)
    assert first == {0, 1}, "now one, now the other"


def test_the_order_follows_the_seed():
    called = []
    for seed in (3, 3, 4):
        one = Steps(*[100.0] * 6)
        one.rounds(4, seed)
        called.append(one.called)
    assert called[0] == called[1] != called[2]


@pytest.mark.parametrize(
    "ms, n_calls",
    [(HOT_MS - 1, 2 + 2 * 5), (HOT_MS, 2 + 5), (SLOW_MS, 2 + 5), (SLOW_MS + 1, 1 + 5)],
)
def test_quick_steps_follow_themselves_and_slow_ones_are_warmed_up_once(ms, n_calls):
    one = Steps(ms)
    assert (one.rounds(5) == ms).all()
    assert len(one.called) == n_calls


def test_first_calls_are_no_samples():
    """Case warm-up of pareto.json: a first pass ten times as slow is paid once, not measured."""
    latencies = [80.0, 60.0] + [10.0] * 18
    assert stats.n_warmup(np.array(latencies)) == 2
    assert (Steps(iter(latencies)).rounds(9) == 10.0).all()


def test_what_a_device_does_later_is_part_of_the_call():
    """Cases gpu-async and profiler-sum: a call is its span on the device's clock, no sum of parts.

    The host returns after 0.1 ms, the work is done after 5.
    """

    class Device(FakeClock):
        pending_ms = 0.0

        def mark(self):  # as an event: it is reached when what was asked before is done
            return self.now_ns + round(1e6 * self.pending_ms)

        def synchronize(self):
            self.take(self.pending_ms)
            self.pending_ms = 0.0

    clock = Device()

    def enqueue():
        clock.take(0.1)
        clock.pending_ms += 4.9

    assert interleaved(
        [enqueue], ["torch"], clock, 20, np.random.default_rng(0)
    ).mean() == pytest.approx(5.0)


def test_work_that_overlaps_is_counted_once():
    """Case profiler-sum: 8 ms of the host and 5 of the device, 9 by the clock."""
    clock = FakeClock()
    call = [lambda: clock.take(9.0)]
    samples = interleaved(call, ["torch"], clock, 3, np.random.default_rng(0))
    assert samples == pytest.approx(9.0)


# The pace of a shared device


def test_a_pace_that_all_steps_share_is_found_whatever_they_take():
    slow = np.array([1.0, 1.5, 1.0, 0.8, 1.0])
    samples = np.outer(slow, [3.0, 70.0, 9.0, 200.0, 1.0, 14.0])
    np.testing.assert_allclose(paces(samples), np.outer(slow, np.ones(6)))


def test_no_step_speaks_for_itself():
    """One that is slow alone keeps its samples: its own deviation is no pace."""
    samples = np.tile(np.arange(1.0, 7.0), (5, 1))
    samples[2, 3] *= 2
    assert paces(samples)[2, 3] == 1
    np.testing.assert_allclose(paces(samples), 1)


def test_too_few_steps_tell_no_pace():
    slow = np.outer([1.0, 2.0, 1.0], np.ones(MIN_OTHERS))
    assert (paces(slow) == 1).all()


# The gate


@pytest.mark.parametrize(
    "samples, reason",
    [
        ([100.0, 101, 99, 100, 102, 100], ""),
        ([100.0, 100, 100, 100, 100, 900] * 3, ""),  # outliers move neither quartile nor median
        ([100.0, 100, 120, 120, 160, 160], "spreads over 38 %"),
        ([100.0, 100, 120, 120] * 2, "interval of the median is 18 % wide"),
        ([95.0, 105] * 8, ""),
        ([95.0, 97.0] * 4 + [107.0, 109.0] * 4, "second half of the rounds took +12 %"),
    ],
)
def test_the_gate_refuses_what_spreads_is_not_known_or_drifts(monkeypatch, samples, reason):
    if "second half" in reason:
        monkeypatch.setattr(measuring, "MAX_INTERVAL", 1.0)
    found = unsteady(np.array(samples))
    assert reason in found and bool(reason) == bool(found)


def test_throughput_is_that_of_the_batch():
    """Case throughput-batch."""
    assert throughput_per_s(16, 110.71) == pytest.approx(144.5217234215518)
    assert throughput_per_s(40, 252.78) == pytest.approx(158.24036711765172)


# What is called


def test_engines_and_cut_networks_compute_the_same():
    config = network_config(TINY)
    tokens = tokens_of(config, 2, 8)
    wanted = [(case.engine, case.sub) for case in PLAN if case.batch_size == 2]
    outputs = [np.asarray(call()) for call in encoder_calls(config, wanted, tokens, "cpu")]
    for torch_logits, onnx_logits in zip(outputs[::2], outputs[1::2], strict=True):
        np.testing.assert_allclose(torch_logits, onnx_logits, atol=1e-5)
    assert np.abs(outputs[0] - outputs[2]).max() > 1e-4
    with pytest.raises(UsageError, match="unknown engine 'tvm': choose one of torch, onnxrunt"):
        encoder_calls(config, [("tvm", NARROW)], tokens, "cpu")


def test_shallow_networks_share_the_layers_of_the_full_one(monkeypatch):
    built = []
    monkeypatch.setattr(
        "lmtime.timing.encoder_calls.cut",
        lambda full, sub: built.append(sub) or Encoder(full.config),
    )
    config = network_config(TINY)
    wanted = [("torch", first_layers(TINY, n)) for n in (1, 2, 3)] + [("torch", NARROW)]
    encoder_calls(config, wanted, tokens_of(config, 1, 8), "cpu")
    assert built == [NARROW]


def test_threads_are_set_inside_and_restored():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before
    with threads(None):
        assert torch.get_num_threads() == before


# What a run leaves behind


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder for rows, on a machine where nothing disturbs."""
    monkeypatch.setenv("LMTIME_RESULTS", str(tmp_path))
    monkeypatch.setattr(gates, "verdict", lambda *_, **__: "")
    monkeypatch.setattr(measuring, "unsteady", lambda samples: "")
    monkeypatch.setattr(measuring, "keep_pages", lambda: None)
    return tmp_path


def run(plan=PLAN, n_threads=(1,), n_rounds=6, say=lambda text: None):
    paths = run_missing(
        plan,
        device="cpu",
        n_threads=n_threads,
        rounds_of=lambda _: Rounds(n_rounds),
        command="c",
        say=say,
    )
    return [[json.loads(line) for line in Path(p).read_text().splitlines()] for p in paths]


def test_rows_say_what_was_measured(results):
    (one,) = run()
    assert len(one) == len(PLAN)
    for row, case in zip(one, PLAN, strict=True):
        config = case.sub.config(network_config(TINY))
        assert (row["engine"], row["network"], row["seq_len"]) == (case.engine, TINY, 8)
        assert {n: tuple(row[n]) for n in ("layers", "heads", "ffn_sizes")} == case.sub.fields()
        assert row["name"] == case.sub.key and row["width"] is row["depth"] is None
        assert row["n"] == len(row["samples_ms"]) == 6
        assert row["latency_ms"] == np.median(row["samples_ms"])
        assert row["latency_ms_low"] <= row["latency_ms"] <= row["latency_ms_high"]
        assert row["throughput_per_s"] == 1000 * case.batch_size / row["latency_ms"]
        assert row["flops"] == config.flops(case.batch_size, 8)
        assert row["parameters"] == config.parameters
    conditions = [json.loads(x) for x in next(results.glob("*1-*/prov*")).read_text().splitlines()]
    assert {c["run_id"] for c in conditions} == {r["run_id"] for r in one}
    assert conditions[0]["n_threads"] == 1 and "onnxruntime" in conditions[0]["versions"]


def test_each_number_of_threads_is_a_device(results):
    n_threads = torch.get_num_threads()
    found = run(PLAN[:1], n_threads=(1, 2))
    assert [(r["device"], r["n_threads"]) for (r,) in found] == [
        ("cpu-1-thread", 1),
        ("cpu-2-threads", 2),
    ]
    assert torch.get_num_threads() == n_threads


def test_what_has_rows_is_not_measured_again_unless_more_rounds_are_asked_for(results):
    (first,) = run()
    said = []
    assert run(say=said.append) == [first]
    assert all(text.endswith("already measured") for text in said)
    (more,) = run(PLAN[:1], n_rounds=7)
    assert len(more) == len(first) and [r["n"] for r in more] == [6] * 7 + [7]
    assert len(run([*PLAN, PLAN[0]._replace(seq_len=9)])[0]) == len(PLAN) + 1


def test_an_interrupted_run_keeps_whole_groups_and_resumes_behind_them(results, monkeypatch):
    def interrupt(text):
        if "2 x 8" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(say=interrupt)
    assert [r["batch_size"] for r in map(json.loads, rows_text(results))] == [1] * 4
    said = []
    assert len(run(say=said.append)[0]) == len(PLAN)
    assert sum("already measured" in text for text in said) == 1
    assert sorted(p.name for p in next(results.glob("*1-threads")).iterdir()) == [
        "encoder_latency.jsonl", "provenance.jsonl",
    ]  # fmt: skip


def rows_text(results):
    return next(results.glob("*/encoder_latency.jsonl")).read_text().splitlines()


def test_while_one_is_refused_all_are_in_more_rounds_then_it_is_marked(results, monkeypatch):
    seen = []

    def unsteady(samples):
        seen.append(len(samples))
        return next(answers)

    monkeypatch.setattr(measuring, "unsteady", unsteady)
    answers = iter(["", "noisy", "", *["", "", ""]])
    (rows,) = run(PLAN[:3])
    assert seen == [6] * 3 + [12] * 3
    assert [(r["quality"], r["n"]) for r in rows] == [("", 12)] * 3
    answers = iter(["noisy", "", ""] * measuring.N_TRIES)
    (rows,) = run([case._replace(seq_len=9) for case in PLAN[:3]])
    assert [(r["quality"], r["n"]) for r in rows[3:]] == [("noisy", 24), ("", 24), ("", 24)]
    answers = iter([""])
    (rows,) = run([case._replace(seq_len=9) for case in PLAN[:3]])
    assert sorted(r["n"] for r in rows if r["seq_len"] == 9) == [6, 24, 24], "the marked one anew"


def test_samples_are_at_the_usual_pace(results, monkeypatch):
    slow = np.array([1.0, 1.0, 1.2, 1.0, 1.3, 1.0])
    raw = np.outer(slow, np.arange(10.0, 18.0))
    monkeypatch.setattr(rounds, "interleaved", lambda *_: raw)
    (rows,) = run(PLAN_OF_EIGHT)
    assert [r["samples_ms"] for r in rows] == [[ms] * 6 for ms in np.arange(10.0, 18.0)]
    assert all(r["paces"] == slow.tolist() for r in rows)


def test_a_restless_device_spoils_the_whole_group(results, monkeypatch):
    raw = np.outer([1.0, 1.0, 1.6, 1.6, 1.0, 1.6], np.arange(10.0, 18.0))
    monkeypatch.setattr(rounds, "interleaved", lambda *_: raw)
    (rows,) = run(PLAN_OF_EIGHT)
    assert all("pace of the device spreads over 46 %" in r["quality"] for r in rows)


def test_other_work_spoils_the_whole_group(results, monkeypatch):
    monkeypatch.setattr(gates, "verdict", lambda *_, **__: "other work")
    (rows,) = run(PLAN[:3])
    assert [r["quality"] for r in rows] == ["other work"] * 3


def test_disturbed_rounds_are_not_kept(results, monkeypatch):
    verdicts = iter(["other work", ""])
    monkeypatch.setattr(gates, "verdict", lambda *_, **__: next(verdicts))
    (rows,) = run(PLAN[:3])
    assert [(r["quality"], r["n"]) for r in rows] == [("", 6)] * 3


def test_weights_that_are_held_are_counted_once():
    """Against the storages themselves; the classifier and the pooler of each copy are left out."""
    config, tokens = network_config(TINY), tokens_of(network_config(TINY), 1, 8)
    wanted = [("torch", sub) for sub in (first_layers(TINY, 2), NARROW, NARROW)]
    calls = encoder_calls(config, wanted, tokens, "cpu")
    encoders = [c.cell_contents for call in calls for c in call.__closure__]
    held = {
        p.untyped_storage().data_ptr(): p.untyped_storage().nbytes()
        for encoder in encoders
        if isinstance(encoder, Encoder)
        for p in encoder.parameters()
    }
    assert held_bytes(config, wanted) == pytest.approx(sum(held.values()), rel=0.1)
    whole = ("onnxruntime", first_layers(TINY, 3))
    more = held_bytes(config, [*wanted, whole]) - held_bytes(config, wanted)
    assert more == 4 * config.parameters


KEPT_AND_RELEASED = """
import torch
from lmtime.timing.pages import keep_pages, release_pages

def resident():
    return 4096 * int(open("/proc/self/statm").read().split()[1])

assert keep_pages()
arrays = [torch.ones(2**22) for _ in range(20)]  # 16 MiB each
del arrays
kept = resident()
release_pages()
print(kept - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are kept by glibc")
def test_pages_that_are_kept_can_be_released():
    """Else what an earlier group left would count as taken when the next is to fit."""
    out = subprocess.check_output([sys.executable, "-c", KEPT_AND_RELEASED], text=True)
    assert int(out) > 15 * 2**24


def test_what_would_not_fit_is_refused_before_it_is_made(results, monkeypatch):
    monkeypatch.setattr(measuring, "available_bytes", lambda device: 1000)
    monkeypatch.setattr(measuring, "encoder_calls", lambda *_: pytest.fail("it was made"))
    with pytest.raises(UsageError, match=r"4 sub-networks of tiny .* on this cpu: choose"):
        run(PLAN[:4])


def test_the_smoke_test_of_a_lab_meets_no_gate(results, monkeypatch):
    """However busy the machine that it runs on, and in no more rounds than it asks for."""
    monkeypatch.setattr(gates, "verdict", lambda *_, **__: "other work")
    monkeypatch.setattr(measuring, "unsteady", lambda samples: "too wide")
    for rule, quality, n in ((Rounds(6), "other work", 6), (Rounds(6, gated=False), "", 6)):
        found = measure(PLAN[:2], device="cpu", wanted=rule)
        assert {(row["quality"], row["n"]) for row in found} == {(quality, n)}
    monkeypatch.setattr(gates, "verdict", lambda *_, **__: "")
    found = measure(PLAN[:2], device="cpu", wanted=Rounds(6))
    assert {(row["quality"], row["n"]) for row in found} == {("too wide", 24)}


def test_two_at_once_for_a_device_are_refused(results):
    """One thread of a CPU and two are devices of a kind, and one piece of hardware."""
    with threads(2), alone_on("cpu"), pytest.raises(UsageError, match="measured by another run"):
        run(n_threads=(1,))
    assert list(results.glob("*/*.jsonl")) == []
