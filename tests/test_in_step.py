"""Laws of the coefficients that say what operators take inside a step."""

import dataclasses
import random

import pytest
from test_accuracy import TABLES

from lmtime.calibration import Calibration
from lmtime.config import configure
from lmtime.cost import in_step
from lmtime.cost import operators as op
from lmtime.cost.calibrated import time_ms
from lmtime.cost.predict import costs, predict
from lmtime.errors import UsageError

TRUE = {
    "launch": 40e-6, "product": 1.2, "conv": 1.1, "conv_backward": 1.4, "operands": 3e-11,
    "log_softmax": 2e-10, "log_softmax_backward": 1e-10, "elementwise": 5e-11, "update": 3e-11,
}  # fmt: skip
KNOWN = dataclasses.replace(TABLES, in_step=TRUE)


def groups(n, seed=0):
    """Groups of operators of many sizes, as parts of steps are."""
    draw = random.Random(seed)
    size = lambda: draw.choice([16, 48, 128, 300, 1024])  # noqa: E731
    found = []
    for _ in range(n):
        conv = op.Conv(2, size() + 3, size(), size(), size(), 4)
        found.append(
            draw.sample(
                [
                    op.matmul(size(), size(), size(), 4),
                    op.conv(conv, 4),
                    *op.conv_backward(conv, 4),
                    op.traffic(size() * size(), 4, kind="log_softmax"),
                    op.traffic(size() * size(), 4, kind="log_softmax_backward"),
                    op.traffic(size() * size(), 4),
                    op.traffic(11 * size() * size(), 4, kind="sgd_nesterov", launches=4),
                ],
                k=draw.randint(1, 7),
            )
        )
    return found


def test_coefficients_of_steps_that_follow_the_model_are_found():
    samples = [(ops, in_step.seconds(ops, KNOWN)) for ops in groups(60)]
    found = in_step.fit(samples, TABLES)
    for name, value in TRUE.items():
        assert found[name] == pytest.approx(value, rel=1e-3), name
    told = dataclasses.replace(TABLES, in_step=found)
    for ops in groups(20, seed=1):
        assert time_ms(ops, told) == pytest.approx(1e3 * in_step.seconds(ops, KNOWN), rel=1e-3)


def test_a_few_disturbed_steps_bend_nothing():
    samples = [(ops, in_step.seconds(ops, KNOWN)) for ops in groups(60)]
    for i in (5, 17, 40):
        samples[i] = samples[i][0], 3 * samples[i][1]
    told = dataclasses.replace(TABLES, in_step=in_step.fit(samples, TABLES))
    errors = [
        time_ms(ops, told) / (1e3 * in_step.seconds(ops, KNOWN)) - 1 for ops in groups(30, seed=2)
    ]
    assert max(map(abs, errors)) < 0.05


def test_nothing_takes_negative_time_whatever_was_measured():
    draw = random.Random(3)
    found = in_step.fit([(ops, draw.uniform(1e-5, 1e-1)) for ops in groups(30)], TABLES)
    assert min(found.values()) >= 0


def test_amounts_are_launches_seconds_alone_and_bytes():
    product, moved = op.matmul(1024, 1024, 1024, 4), op.traffic(1000, 4, kind="fill")
    found = in_step.amounts([product, moved, op.traffic(0, 4)], TABLES)
    assert found == {
        "launch": product.launches + moved.launches,
        "product": pytest.approx(2 * 1024**3 / 8e10),
        "operands": product.bytes,
        "log_softmax_backward": 4000,
    }


def test_what_no_step_had_counts_as_what_is_nearest():
    few = dataclasses.replace(TABLES, in_step={"launch": 0.0, "product": 2.0, "elementwise": 1e-9})
    conv = dataclasses.replace(op.conv(op.Conv(1, 19, 16, 16, 16, 4), 4), bytes=1.0)
    assert in_step.seconds([conv], few) == pytest.approx(2 * in_step.alone_s(conv, TABLES) + 1e-9)
    assert in_step.seconds([op.traffic(250, 4, kind="embedding")], few) == pytest.approx(1e-6)


def test_without_steps_there_is_nothing_to_fit():
    with pytest.raises(ValueError, match="no steps"):
        in_step.fit([], TABLES)


def test_a_file_keeps_the_coefficients_and_refuses_what_is_none():
    assert Calibration.from_json(KNOWN.to_json()).in_step == TRUE
    for value in (-1.0, float("nan"), True, "fast"):
        with pytest.raises(UsageError, match="in_step conv"):
            dataclasses.replace(TABLES, in_step={"conv": value})


def test_a_prediction_by_such_a_calibration_is_what_its_steps_say():
    config = configure("gcn")
    rows = predict("gcn", config, KNOWN)
    operators = costs(config)
    for row in rows[:-1]:
        assert row.latency_ms == pytest.approx(time_ms(operators[row.owner, row.phase], KNOWN))
        assert row.latency_ms_low <= row.latency_ms <= row.latency_ms_high
    roofline = predict("gcn", config, TABLES)
    assert rows[-1].latency_ms != pytest.approx(roofline[-1].latency_ms, rel=0.01)
