"""What two latencies say together, from published figures."""

import pytest

from lmtime.errors import UsageError
from lmtime.pareto.latency import Remeasured, Speedup, throughput_per_s


def test_faster_is_not_time_saved():  # case speedup
    found = Speedup(before_ms=110.71, after_ms=69.62)  # PaddleNLP, T4, FP32, 16 sentences
    assert found.ratio == pytest.approx(1.5902039643780521)
    assert found.faster_percent == pytest.approx(59.02039643780521)
    assert found.time_saved_percent == pytest.approx(37.11498509619726)
    with pytest.raises(UsageError, match="must be above 0"):
        Speedup(1.0, 0.0)


def test_a_throughput_counts_the_batch():  # case throughput-batch
    assert throughput_per_s(16, 110.71) == pytest.approx(144.5217234215518)
    assert throughput_per_s(40, 252.78) == pytest.approx(158.24036711765172)


def test_a_prediction_is_not_accepted_for_a_measurement():  # case predictor-drift
    found = Remeasured(predicted_ms=199, measured_ms=270, max_latency_ms=200)
    assert not found.accepted
    assert found.sentence() == "predicted 199 ms, measured 270 ms, above 200 ms"
    assert found.relative_error == pytest.approx(199 / 270 - 1)
    assert Remeasured(199, 198, 200).accepted
    assert Remeasured(199, 270).sentence() == "predicted 199 ms, measured 270 ms"
