"""Laws of the trace pass: every moment and every kernel has one owner, and nothing counts twice.

What a GPU does is told by hand-written profiles; what a CPU does is profiled.
"""

import itertools
import json
import sys
import time

import pytest
import torch
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from lmtime.timing import OPTIMIZER, OUTSIDE, Ownership, region
from lmtime.timing.attribution import MARK, Event, attribute
from lmtime.timing.counters import count
from lmtime.timing.kinds import (
    ELEMENTWISE,
    INDEXING,
    KINDS,
    NO_OPERATOR,
    PRODUCTS,
    SOFTMAX,
    WAITING,
    does_work,
    kind_of,
)
from lmtime.timing.ownership import MARKS
from lmtime.timing.trace import Trace, read, trace

pytestmark = pytest.mark.alone  # it sleeps, or ends what takes too long

A, B, WALK = ("a", "forward"), ("b", "backward"), (MARKS, "backward")


# Profiles of a GPU, written by hand. One unit of time is a nanosecond.


def mark(start, end=None, thread=1):
    return Event(MARK, "user_annotation", start, end or start + 1, thread)


def operator(name, start, end, thread=1):
    return Event(name, "cpu_op", start, end, thread)


def call(start, number, name="cudaLaunchKernel", thread=1):
    return Event(name, "cuda_runtime", start, start + 1, thread, number)


def kernel(start, end, number, stream=7, category="kernel"):
    return Event("some_kernel", category, start, end, stream, number)


def on_gpu(events, owners):
    segments, slices = attribute(events, owners, on_gpu=True)
    return Trace(tuple(segments), tuple(slices))


def ns(milliseconds):
    return round(1e6 * milliseconds)


def parts(traced):
    return {(row["owner"], row["phase"]): row for row in traced.rows()}


def busy_and_idle(traced):
    return {p: (ns(r["busy_ms"]), ns(r["idle_ms"])) for p, r in parts(traced).items()}


def test_a_kernel_that_runs_late_is_the_owners_who_launched_it():
    events = [mark(0), call(2, 1), kernel(10, 30, 1), mark(5), call(7, 2), kernel(30, 40, 2)]
    traced = on_gpu([*events, mark(12)], [A, B])
    assert [(s.start_ns, s.end_ns) for s in traced.segments] == [(1, 30), (30, 40)]
    assert busy_and_idle(traced) == {A: (20, 9), B: (10, 0)}
    assert [row["kernels"] for row in traced.rows()] == [1, 1]
    assert ns(traced.total_ms) == 39


def test_a_device_that_waits_for_the_host_is_idle_and_the_marks_cost_nobody():
    events = [mark(0, 5), call(6, 1), kernel(8, 12, 1), mark(20, 50), call(52, 2)]
    traced = on_gpu([*events, kernel(60, 70, 2), mark(90, 99)], [A, B])
    assert busy_and_idle(traced) == {A: (4, 11), B: (10, 30)}
    assert ns(traced.total_ms) == 55, "without the marks"


def test_annotations_on_the_device_are_not_work():
    """Of a range's annotation and its kernels only the kernels take time (pytorch #130730)."""
    events = [mark(0), call(2, 1), kernel(10, 20, 1), mark(30)]
    more = kernel(2, 29, 1, category="gpu_user_annotation")
    assert on_gpu([*events, more], [A]).segments == on_gpu(events, [A]).segments


def test_streams_that_overlap_are_busy_once():
    events = [mark(0), call(2, 1), call(3, 2), kernel(10, 30, 1), kernel(20, 40, 2, stream=8)]
    traced = on_gpu([*events, kernel(22, 24, 2, stream=8), mark(50)], [A])
    assert busy_and_idle(traced) == {A: (30, 19)}
    assert parts(traced)[A]["kernels"] == 3


def test_work_hidden_behind_that_of_the_owner_before_takes_no_time():
    events = [mark(0), call(2, 1), kernel(5, 40, 1), mark(10), call(12, 2)]
    traced = on_gpu([*events, kernel(20, 30, 2, stream=8), mark(15)], [A, B])
    assert busy_and_idle(traced) == {A: (35, 4), B: (0, 0)}
    assert parts(traced)[B]["kernels"] == 1, "it is seen all the same"


def test_copies_and_fills_are_busy_and_no_kernels():
    events = [mark(0), call(2, 1), kernel(5, 9, 1, category="gpu_memcpy"), call(3, 2)]
    traced = on_gpu([*events, kernel(9, 11, 2, category="gpu_memset"), mark(20)], [A])
    assert busy_and_idle(traced) == {A: (6, 13)}
    assert parts(traced)[A]["kernels"] == 0


def test_host_waits_are_the_owners_in_whose_segment_they_begin():
    events = [
        mark(0),
        call(2, 1, name="cudaStreamSynchronize"),
        call(4, 2, name="cudaMemcpyAsync"),
        mark(10),
        call(12, 3, name="cudaDeviceSynchronize"),
        call(14, 4, name="cudaEventSynchronize"),
        call(16, 5, name="cudaMemcpy"),
        call(18, 6, name="cudaEventRecord"),
        mark(20),
        call(25, 7, name="cudaDeviceSynchronize"),  # after the step: the measurement's own
    ]
    rows = on_gpu(events, [A, (OPTIMIZER, OPTIMIZER)]).rows()
    assert [row["syncs"] for row in rows] == [1, 3]


def test_kernels_of_a_cuda_graph_are_one_labelled_span_and_keep_their_time():
    """None has an operator, and the launch's would be wrong for them (HTA #290)."""
    events = [
        mark(0),
        operator("aten::mm", 1, 9),
        call(3, 1, name="cudaGraphLaunch"),
        kernel(10, 20, 1),
        kernel(20, 35, 1),
        kernel(30, 50, 1, stream=8),
        mark(60),
    ]
    traced = on_gpu(events, [A])
    (row,) = traced.rows()
    assert (row["kernels"], row["by_kind"]) == (3, {NO_OPERATOR: row["busy_ms"]})
    assert ns(row["busy_ms"]) == 40
    (span,) = [s for s in traced.slices if s.name == "CUDA graph"]
    assert (span.start_ns, span.end_ns) == (10, 50)
    assert span.args == {"owner": "a", "phase": "forward", "kind": NO_OPERATOR, "kernels": 3} | {
        "operator": "CUDA graph"
    }
    assert len([s for s in traced.slices if s.category == "kernel"]) == 3


def test_a_kernel_whose_launch_is_lost_is_not():
    events = [mark(0), kernel(5, 9, 1), mark(10), kernel(40, 60, 2), mark(20)]
    traced = on_gpu(events, [A, B])
    assert [row["kernels"] for row in traced.rows()] == [1, 1]
    assert busy_and_idle(traced) == {A: (4, 5), B: (20, 29)}


def test_the_walk_over_the_graph_is_left_out_and_the_device_works_on_meanwhile():
    events = [mark(0), call(2, 1), kernel(5, 40, 1), mark(10), mark(100), call(102, 2)]
    events += [operator("aten::add", 50, 60), call(52, 3, name="cudaStreamSynchronize")]
    traced = on_gpu([*events, kernel(105, 110, 2), mark(110)], [A, WALK, B])
    assert busy_and_idle(traced) == {A: (35, 4), B: (5, 4)}
    assert ns(traced.total_ms) == 48
    assert [row["syncs"] for row in traced.rows()] == [0, 0]
    assert {s.name for s in traced.slices} == {"some_kernel"}


def test_a_backward_pass_in_a_thread_of_its_own_has_its_owner():
    events = [
        mark(0),
        mark(10, thread=2),
        operator("aten::mm", 12, 20, thread=2),
        call(13, 1, thread=2),
        kernel(30, 50, 1),
        mark(25),
    ]
    row = parts(on_gpu(events, [A, B]))[B]
    assert (row["kernels"], row["by_kind"]) == (1, {PRODUCTS: 20 / 1e6})


def test_the_kind_of_a_kernel_is_told_by_the_innermost_operator_that_tells():
    events = [
        mark(0),
        operator("aten::cross_entropy_loss", 1, 40),
        operator("aten::log_softmax", 2, 9),
        operator("aten::_log_softmax", 3, 8),
        operator("aten::mul", 20, 30),
        operator("aten::addmm", 50, 60),
        operator("aten::copy_", 52, 56),
        operator("aten::add", 61, 62),
        operator("MyFunctionBackward", 63, 69),
        mark(70),
    ]
    launched = {
        3: SOFTMAX,
        25: SOFTMAX,  # a product within a cross-entropy
        53: PRODUCTS,  # the bias
        57: PRODUCTS,
        61: ELEMENTWISE,
        65: NO_OPERATOR,
        69: NO_OPERATOR,
    }
    events += [call(start, start) for start in launched]
    events += [kernel(100 + start, 101 + start, start) for start in launched]
    slices = [s for s in on_gpu(events, [A]).slices if s.category == "kernel"]
    assert [s.args["kind"] for s in slices] == list(launched.values())
    assert [s.args["operator"] for s in slices][-2:] == ["MyFunctionBackward", ""]


def test_another_threads_operator_has_not_launched_a_kernel():
    events = [mark(0), operator("aten::mm", 1, 9, thread=2), call(3, 1), kernel(10, 20, 1)]
    (row,) = on_gpu([*events, mark(30)], [A]).rows()
    assert row["by_kind"].keys() == {NO_OPERATOR}


def test_marks_that_the_profile_lacks_are_told():
    with pytest.raises(RuntimeError, match="2 of 3 marks"):
        on_gpu([mark(0), mark(10)], [A, B])


@st.composite
def profiles(draw):
    """Owners that change at random, and kernels launched at random on three streams."""
    n_owners = draw(st.integers(1, 5))
    owners = [draw(st.sampled_from([A, B, WALK])) for _ in range(n_owners)]
    lengths = draw(st.lists(st.integers(1, 30), min_size=2 * n_owners, max_size=2 * n_owners))
    times = [0, *itertools.accumulate(lengths)]
    marks = [
        mark(start, end)
        for start, end in zip(times[::2], [*times[1::2], times[-1] + 3], strict=True)
    ]
    events, inside = list(marks), [(m.end_ns, n.start_ns) for m, n in itertools.pairwise(marks)]
    for number in range(draw(st.integers(0, 12))):
        place = draw(st.sampled_from([i for i, o in enumerate(owners) if o != WALK] or [None]))
        if place is not None:
            launch = draw(st.integers(inside[place][0], inside[place][1] - 1))
            start = launch + draw(st.integers(0, 60))
            end = start + draw(st.integers(0, 40))
            stream = draw(st.integers(7, 9))
            events += [call(launch, number), kernel(start, end, number, stream=stream)]
    return events, owners


@given(profiles())
def test_busy_and_idle_are_the_segments_and_no_kernel_is_lost(profile):
    events, owners = profile
    traced = on_gpu(events, owners)
    for before, after in itertools.pairwise(traced.segments):
        assert before.start_ns <= before.end_ns <= after.start_ns <= after.end_ns
    for segment in traced.segments:
        assert 0 <= sum(segment.busy_ns.values()) <= segment.end_ns - segment.start_ns
    rows = traced.rows()
    assert sum(ns(r["busy_ms"]) + ns(r["idle_ms"]) for r in rows) == ns(traced.total_ms)
    kernels = [e for e in events if e.category == "kernel"]
    assert sum(row["kernels"] for row in rows) == len(kernels)
    moments = {t for k in kernels for t in range(k.start_ns, k.end_ns)}
    assert sum(ns(row["busy_ms"]) for row in rows) <= len(moments)


# Names


@pytest.mark.parametrize(
    "kind, names",
    {
        PRODUCTS: "mm addmm bmm convolution convolution_backward linear conv_tbc "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_cudnn_attention_backward",
        SOFTMAX: "log_softmax _log_softmax _softmax logsumexp nll_loss_forward nll_loss_backward "
        "_log_softmax_backward_data cross_entropy_loss _masked_softmax",
        INDEXING: "index_select gather index_copy_ nonzero scatter_add_ masked_fill masked_select "
        "embedding embedding_dense_backward index index_put_ _index_put_impl_ _unique2",
        WAITING: "item _local_scalar_dense is_nonzero equal",
        None: "add mul_ copy_ clone _to_copy native_layer_norm gelu sum mean cat min minimum "
        "maximum mul_ linspace item_like",
    }.items(),
)
def test_an_operators_name_tells_its_kind(kind, names):
    names = names.replace("item_like", "").split()
    assert {kind_of(f"aten::{name}") for name in names} == {kind}


def test_views_allocations_and_composed_operators_do_no_work():
    idle = "t transpose view expand as_strided detach empty resize_ linear matmul reshape to item"
    work = "mm add_ copy_ zero_ index nonzero _local_scalar_dense embedding convolution"
    assert [name for name in idle.split() if does_work(f"aten::{name}")] == []
    assert [name for name in work.split() if not does_work(f"aten::{name}")] == []
    others = ("MmBackward0", "autograd::engine::evaluate_function: MmBackward0", "detach")
    assert not any(map(does_work, others))


# Profiles of a CPU


def test_an_operator_that_runs_on_over_a_change_of_owner_is_split_at_the_mark():
    events = [mark(0), operator("aten::add", 2, 50), mark(20, 25), mark(60)]
    segments, _ = attribute(events, [A, B], on_gpu=False)
    assert [s.busy_ns for s in segments] == [{ELEMENTWISE: 18}, {ELEMENTWISE: 25}]
    assert [s.kernels for s in segments] == [1, 0]
    assert [(s.start_ns, s.end_ns) for s in segments] == [(1, 20), (25, 60)]


class Sleepy(torch.autograd.Function):
    """Identity that sleeps, 30 ms forward and 60 ms backward: time with no operator in it."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(0.03)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.06)
        return grad.clone()


class Sleeper(nn.Module):
    def forward(self, x):
        return Sleepy.apply(x)


class Model(nn.Module):
    """An embedding, a body and torch's adaptive softmax with two tail clusters."""

    N_CLUSTERS = 3

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(60, 16)
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.out = nn.AdaptiveLogSoftmaxWithLoss(16, 60, [10, 30])

    def forward(self, tokens):
        return self.out(self.body(self.embedding(tokens)), tokens).loss


OWNERS = {name: name for name in ("embedding", "body", "out")}


@pytest.fixture(scope="module")
def training(one_thread):
    """A step of training and who owns it."""
    torch.manual_seed(0)
    model, tokens = Model(), torch.arange(60)
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad()
        model(tokens).backward()
        optimizer.step()

    for _ in range(2):  # from the second step on the optimizer has its state
        step()
    return step, Ownership(model, OWNERS, optimizer)


@pytest.fixture(scope="module")
def traced(training):
    return trace(*training, device="cpu")


def test_every_owner_shows_in_every_phase_it_works_in(traced):
    assert set(parts(traced)) == {
        (owner, phase) for owner in (*OWNERS, OUTSIDE) for phase in ("forward", "backward")
    } | {(OPTIMIZER, OPTIMIZER)}


def test_the_parts_are_the_step(traced):
    rows = traced.rows()
    whole = sum(ns(row["busy_ms"]) + ns(row["idle_ms"]) for row in rows)
    assert whole == sum(s.end_ns - s.start_ns for s in traced.segments) == ns(traced.total_ms)
    for row in rows:
        assert row["busy_ms"] >= 0 and row["idle_ms"] >= 0
        assert sum(row["by_kind"].values()) == pytest.approx(row["busy_ms"])
        assert set(row["by_kind"]) <= set(KINDS)
        assert row["busy_ms"] > 0 or row["owner"] == OUTSIDE


def test_an_operator_inside_another_takes_no_further_time(traced):
    """Busy time is that in outermost operators, found here by painting moments."""
    for segment in traced.segments:
        busy, reach = 0, segment.start_ns
        inside = (
            s
            for s in traced.slices
            if segment.start_ns <= s.start_ns and s.end_ns <= segment.end_ns
        )
        for s in sorted(inside, key=lambda s: s.start_ns):
            busy, reach = busy + max(0, s.end_ns - max(s.start_ns, reach)), max(reach, s.end_ns)
        assert sum(segment.busy_ns.values()) == busy


def test_kernels_are_the_operators_that_the_counter_counts(training, traced):
    counts = count(*training)
    assert sum(row["kernels"] for row in traced.rows()) == sum(counts.by_operator.values())
    for name in ("mm", "addmm", "bmm"):
        seen = [s for s in traced.slices if s.name == f"aten::{name}"]
        assert len(seen) == counts.by_operator.get(f"aten.{name}", 0), name


def test_torchs_adaptive_softmax_waits_twice_a_cluster(traced):
    found = {part: row["syncs"] for part, row in parts(traced).items() if row["syncs"]}
    assert found == {("out", "forward"): 2 * Model.N_CLUSTERS}


def test_kinds_of_work_are_where_they_belong(traced):
    found = {part: row["by_kind"] for part, row in parts(traced).items()}
    assert set(found["embedding", "forward"]) == {INDEXING}
    assert found["body", "forward"].keys() == {PRODUCTS, ELEMENTWISE}
    for phase in ("forward", "backward"):
        assert {PRODUCTS, SOFTMAX, INDEXING} <= found["out", phase].keys()


def cpu_trace(step, model=None, owners=None):
    """The second step, so that no first call of anything is in it."""
    ownership = Ownership(model or nn.Module(), owners or {})
    step()
    return trace(step, ownership, device="cpu")


WAITS = {
    "item": (lambda x: x.sum().item(), 1),
    "a condition": (lambda x: bool(x.sum() > 0), 1),
    "nonzero": (lambda x: x.nonzero(), 1),
    "a boolean index": (lambda x: x[x > 0], 1),
    "a boolean index that is written to": (lambda x: x.clone().index_put_((x > 0,), x[0, :1]), 1),
    "masked_select": (lambda x: x.masked_select(x > 0), 1),
    "unique": (lambda x: x.unique(), 1),
    "equal": (lambda x: torch.equal(x, x), 1),
    "an index": (lambda x: x[torch.tensor([0, 1])], 0),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 0.0), 0),
    "where": (lambda x: torch.where(x > 0, x, 0.0), 0),
    "products": (lambda x: x @ x.T, 0),
}


@pytest.mark.parametrize("case", WAITS)
def test_what_would_wait_on_a_gpu_counts_once(case):
    wait, n_syncs = WAITS[case]
    x = torch.randn(4, 5)

    def step():
        with region("here"):
            wait(x)

    rows = parts(cpu_trace(step))
    assert rows["here", "forward"]["syncs"] == n_syncs


def test_time_without_operators_is_idle_forward_and_backward(one_thread):
    net = nn.Sequential(nn.Linear(4, 4), Sleeper())

    def step():
        net(torch.ones(2, 4)).sum().backward()

    steps = [cpu_trace(step, net, {"1": "sleeper"}) for _ in range(3)]
    rows = parts(min(steps, key=lambda traced: traced.total_ms))  # the least disturbed
    for phase, least_ms in (("forward", 30), ("backward", 60)):
        row = rows["sleeper", phase]
        assert least_ms <= row["idle_ms"] <= least_ms + 15
        assert row["kernels"] == 1
        assert row["busy_ms"] < 5
    assert sum(row["idle_ms"] for part, row in rows.items() if part[0] != "sleeper") < 15


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputation_is_the_recomputed_layers_and_its_backward(use_reentrant):
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    x = torch.ones(4, 8, requires_grad=True)

    def step():
        checkpoint(net, x, use_reentrant=use_reentrant).sum().backward()

    rows = parts(cpu_trace(step, net, {"0": "linear", "1": "relu"}))
    assert rows["linear", "forward"]["kernels"] == 1
    assert rows["linear", "backward"]["kernels"] >= 4, "addmm again, two products and a sum"


def test_an_operator_that_encloses_a_change_of_owner_is_split_there():
    @torch.library.custom_op("lmtime_tests::wrapper", mutates_args=())
    def wrapper(x: torch.Tensor) -> torch.Tensor:
        with region("inner"):
            return x @ x

    rows = parts(cpu_trace(lambda: wrapper(torch.ones(64, 64))))
    assert rows["inner", "forward"]["by_kind"].keys() == {PRODUCTS, ELEMENTWISE}
    assert rows[OUTSIDE, "forward"]["busy_ms"] > 0
    assert sum(row["kernels"] for row in rows.values()) == 2, "ones, and the operator as a whole"


def test_neither_rank_nor_a_process_group_is_needed(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    (row,) = cpu_trace(lambda: torch.ones(3)).rows()
    assert (row["owner"], row["phase"], row["kernels"]) == (OUTSIDE, "forward", 1)


def test_the_device_is_idle_before_the_step_and_done_before_the_profile_ends(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr("lmtime.timing.trace.clock_for", lambda device: clock)
    trace(lambda: clock.asked.append("step"), Ownership(nn.Module(), {}), device="cpu")
    assert clock.asked == ["synchronize", "step", "synchronize"]


def test_a_step_that_does_nothing_is_idle():
    (row,) = cpu_trace(lambda: None).rows()
    assert (row["kernels"], row["syncs"], row["busy_ms"], row["by_kind"]) == (0, 0, 0, {})


def test_an_error_in_the_step_leaves_no_hook_and_no_profiler():
    net = nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError):
        trace(lambda: 1 / 0, Ownership(nn.Sequential(net), {"0": "a"}), device="cpu")
    assert not net._forward_pre_hooks
    assert len(cpu_trace(lambda: torch.ones(3)).rows()) == 1


def test_times_are_read_to_the_nanosecond():
    text = """{"traceEvents": [
        {"ph": "M", "name": "process_name", "ts": 1, "pid": 1},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans",
         "tid": "PyTorch Profiler", "ts": 5188340067194.503, "dur": 4803.368},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 9188340067525.777,
         "dur": 2, "args": {"External id": 3, "stream": 13, "correlation": 41}}]}"""
    _, event = read(text)
    start = 9_188_340_067_525_777
    assert event == Event("k", "kernel", start, start + 2000, 13, 41)


# The file


def assert_slices_nest(slices):
    ends = []
    for slice in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        while ends and ends[-1] <= slice["ts"] + 1e-6:
            ends.pop()
        end = slice["ts"] + slice["dur"]
        assert not ends or end <= ends[-1] + 1e-6
        ends.append(end)


def written(traced, path):
    """{track: slices}, all of them well formed."""
    traced.write(path)
    events = json.loads(path.read_text())["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    tracks = {}
    for event in events:
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            tracks.setdefault(event["tid"], []).append(event)
    for slices in tracks.values():
        assert_slices_nest(slices)
    return [(named[number], slices) for number, slices in tracks.items()]


def test_the_file_has_owners_over_operators_in_microseconds(traced, tmp_path):
    (owners, own), (operators, slices) = written(traced, tmp_path / "trace.json")
    assert (owners, operators.split(",")[0]) == ("owners", "operators")
    assert sum(e["dur"] for e in own) == pytest.approx(1e3 * traced.total_ms)
    assert {(e["name"], e["cat"]) for e in own} == set(parts(traced))
    assert {"owner", "phase", "kind"} == set().union(*(e["args"] for e in slices))
    for e in slices:  # an operator lies in a span of its owner
        assert any(
            (o["name"], o["cat"]) == (e["args"]["owner"], e["args"]["phase"])
            and o["ts"] - 1e-6 <= e["ts"]
            and e["ts"] + e["dur"] <= o["ts"] + o["dur"] + 1e-6
            for o in own
        )


def test_kernels_are_drawn_with_their_owners_and_those_that_cross_on_a_lane_of_their_own(tmp_path):
    events = [mark(0), operator("aten::mm", 1, 9), call(2, 1)]
    events += [kernel(10, 30, 1), kernel(20, 40, 1), mark(50)]
    tracks = written(on_gpu(events, [A]), tmp_path / "trace.json")
    labels = ["owners", "operators, thread 1", "stream 7", "stream 7"]
    assert sorted(name for name, _ in tracks) == sorted(labels)
    drawn = [e for name, slices in tracks for e in slices if name == "stream 7"]
    assert [e["args"]["owner"] for e in drawn] == ["a", "a"]
    assert {e["args"]["operator"] for e in drawn} == {"aten::mm"}


def test_a_file_that_cannot_be_written_leaves_nothing(traced, tmp_path):
    (tmp_path / "trace.json").mkdir()
    with pytest.raises(OSError):
        traced.write(tmp_path / "trace.json")
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


# On a GPU

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.cuda
@needs_cuda
def test_on_a_gpu_owners_have_the_kernels_and_waits_of_their_layers():
    torch.manual_seed(0)
    model, tokens = Model().cuda(), torch.arange(60, device="cuda")
    step = lambda: model(tokens).backward()  # noqa: E731
    step()
    traced = trace(step, Ownership(model, OWNERS), device="cuda")
    rows = parts(traced)
    for owner in OWNERS:
        for phase in ("forward", "backward"):
            assert rows[owner, phase]["kernels"] > 0
            assert rows[owner, phase]["busy_ms"] > 0
    assert rows["out", "forward"]["syncs"] >= 2 * Model.N_CLUSTERS
    assert rows["body", "forward"]["syncs"] == rows["body", "backward"]["syncs"] == 0
    assert PRODUCTS in rows["body", "backward"]["by_kind"]
    whole = sum(row["busy_ms"] + row["idle_ms"] for row in traced.rows())
    assert whole == pytest.approx(traced.total_ms)


@pytest.mark.cuda
@needs_cuda
def test_on_a_gpu_busy_time_is_that_of_a_known_kernel():
    def step():
        with region("spin"):
            torch.cuda._sleep(20_000_000)
        torch.ones(3, device="cuda")

    step()
    rows = parts(trace(step, Ownership(nn.Module(), {}), device="cuda"))
    spin = rows["spin", "forward"]
    assert spin["kernels"] == 1
    assert spin["busy_ms"] > 20 * spin["idle_ms"]
    assert spin["by_kind"].keys() == {NO_OPERATOR}


@pytest.mark.cuda
@needs_cuda
def test_on_a_gpu_the_replay_of_a_graph_is_one_labelled_span():
    x, graph = torch.ones(64, 64, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        (x @ x).relu()
    graph.replay()
    traced = trace(graph.replay, Ownership(nn.Module(), {}), device="cuda")
    (row,) = traced.rows()
    assert row["kernels"] >= 2
    assert row["by_kind"].keys() == {NO_OPERATOR}
    assert len([s for s in traced.slices if s.name == "CUDA graph"]) == 1


# Memory


class Fresh(nn.Module):
    """Takes new memory beyond what the C library keeps for the next call, and gives it back."""

    def forward(self, x):
        return x + torch.ones(2**25)[0]  # 128 MiB


@pytest.mark.skipif(sys.platform != "linux", reason="how memory is given out is Linux's")
def test_pages_touched_for_the_first_time_are_their_owners(one_thread):
    model = nn.Sequential(Fresh(), nn.Linear(8, 8))
    ownership = Ownership(model, {"0": "fresh", "1": "layer"})
    data = torch.randn(4, 8)

    def step():
        model(data).sum().backward()

    step()
    rows = {(r["owner"], r["phase"]): r for r in trace(step, ownership, device="cpu").rows()}
    assert 2**27 / 2**21 <= rows["fresh", "forward"]["page_faults"] <= 2**27 / 2**12 + 100
    assert rows["layer", "forward"]["page_faults"] < 50
