"""Laws of a step that the host launches: who waits for whom, and counts against what torch runs."""

import altair as alt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cost import SHAPES as GCN_SHAPES
from test_cost import tail_tokens
from test_cost import training_step as gcn_step
from test_transformer_cost import SHAPES as TRANSFORMER_SHAPES
from test_transformer_cost import training_step as transformer_step

from lmtime.calibration import Calibration
from lmtime.config import GCNConfig, TransformerConfig
from lmtime.cost.gcn import gcn
from lmtime.cost.operators import Cost
from lmtime.cost.predict import costs
from lmtime.cost.segments import (
    Host,
    host_bound_share,
    host_of,
    in_order,
    part_s,
    segments,
    step_s,
)
from lmtime.cost.transformer import transformer
from lmtime.hardware import GPUS
from lmtime.publishing.vega_eval import evaluate
from lmtime.timing import Ownership
from lmtime.timing.counters import count
from lmtime.timing.trace import trace

pytestmark = pytest.mark.usefixtures("one_thread")


def seconds(op):
    """A device that moves one byte a second."""
    return op.bytes


def moves(n_bytes, *, launches=1, syncs=0):
    return Cost(0, n_bytes, launches=launches, syncs=syncs)


def test_the_host_runs_ahead_until_it_waits():
    operators = [moves(5), moves(1, syncs=1), moves(1), moves(1, launches=4), moves(30)]
    host = Host(launch_s=2, sync_s=10)
    found = segments(operators, seconds, host)
    assert [(s.device_s, s.host_s, s.syncs) for s in found] == [(6, 4, 1), (32, 12, 0)]
    assert step_s(found, host) == 6 + 10 + 32
    late = segments(operators[:4], seconds, host)
    assert step_s(late, host) == 6 + 10 + 10  # 2 of the device, 8 of waiting for the host
    assert host_bound_share(late, host) == pytest.approx(18 / 26)


def test_on_a_cpu_nothing_runs_ahead():
    host = Host(launch_s=2, sync_s=0, overlaps=False)
    found = segments([moves(5, syncs=1), moves(1, launches=3)], seconds, host)
    assert step_s(found, host) == 5 + 2 + 1 + 6


def test_the_idle_time_is_theirs_who_launch_longer_than_they_run():
    rows = {("a", "forward"): [moves(9)], ("b", "forward"): [moves(1), moves(0, launches=2)]}
    assert part_s(rows, seconds, Host(launch_s=4)) == {("a", "forward"): 9, ("b", "forward"): 7}


@given(
    st.lists(st.tuples(*[st.floats(0, 9)] * 2, st.integers(0, 4), st.integers(0, 2)), min_size=1),
    st.booleans(),
)
def test_parts_sum_to_the_step_and_lie_between_the_device_alone_and_all_in_turn(table, overlaps):
    host = Host(launch_s=1.5, sync_s=3.0 * overlaps, overlaps=overlaps)
    rows = {
        (f"{i}", "forward"): [moves(a, launches=n), moves(b, syncs=k)]
        for i, (a, b, n, k) in enumerate(table)
    }
    found = part_s(rows, seconds, host)
    whole = segments([op for _, op in in_order(rows)], seconds, host)
    assert sum(found.values()) == pytest.approx(step_s(whole, host))
    for part, ops in rows.items():
        total = sum(ops)
        fixed = total.launches * host.launch_s + total.syncs * host.sync_s
        assert total.bytes - 1e-9 <= found[part] <= total.bytes + fixed + 1e-9


def test_the_backward_pass_goes_the_other_way():
    parts = list(dict.fromkeys(part for part, _ in in_order(costs(GCNConfig(n_layers=1)))))
    names = ["embedding", "input projection", "conv 1", "output layer", "loss"]
    forward = [(name, "forward") for name in names]
    backward = [(name, "backward") for name in ("outside", *reversed(names))]
    assert parts == [*forward, *backward, ("optimizer", "optimizer")]


def test_a_device_that_was_measured_has_its_own_host():
    rates = dict(matmul_flops_per_s={"fp32": 1e12}, bytes_per_s=1e11, n_threads=None)
    times = dict(host_s_per_operator=8e-6, sync_s=1e-5)
    assert host_of(GPUS["h100-sxm"]) == Host()
    assert host_of(Calibration("cuda", "A GPU", **rates)) == Host()
    assert host_of(Calibration("cuda", "A GPU", **rates, **times)) == Host(8e-6, 1e-5)
    cpu = Calibration("cpu", "A processor", **rates, **times)
    assert host_of(cpu) == Host(8e-6, 0, overlaps=False)


def test_a_page_computes_what_python_does():
    host = Host(alt.param(name="launch"), 3)
    operators = [moves(alt.param(name="x"), syncs=1), moves(9, launches=4)]
    found = step_s(segments(operators, seconds, host), host, maximum=alt.expr.max)
    for x, launch in ((1, 2), (50, 2), (1, 7)):
        plain = Host(launch, 3)
        wanted = step_s(segments([moves(x, syncs=1), operators[1]], seconds, plain), plain)
        row = {"x": x, "launch": launch}
        assert evaluate({"s": str(found.expr)}, [row]) == [{"s": pytest.approx(wanted)}]


CASES = {
    **{f"gcn, {name}": config for name, config in GCN_SHAPES.items()},
    **{f"transformer, {name}": config for name, config in TRANSFORMER_SHAPES.items()},
}


@pytest.mark.parametrize("output_layer", ["adaptive", "full"])
@pytest.mark.parametrize("name", CASES)
def test_launches_and_waits_are_those_of_torch(name, output_layer):
    """Operators that move something as they are counted; waits as the trace of a CPU names them."""
    if isinstance(CASES[name], TransformerConfig):
        config, model, optimizer, step, inputs, targets = transformer_step(
            CASES[name], output_layer
        )
        rows = transformer(config, targets, input_tail_tokens=inputs)
    else:
        config, model, optimizer, step, targets = gcn_step(CASES[name], output_layer)
        rows = gcn(config, tail_tokens(targets, config))
    ownership = Ownership(model, model.owners, optimizer)
    traced = {(r["owner"], r["phase"]): r for r in trace(step, ownership, device="cpu").rows()}
    predicted = {part: sum(ops) for part, ops in rows.items()}
    assert {p: c.syncs for p, c in predicted.items()} == {p: traced[p]["syncs"] for p in predicted}
    executed = sum(count(step, ownership).by_operator.values())
    assert sum(c.launches for c in predicted.values()) == executed
