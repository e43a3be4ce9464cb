"""The panel of the live kernel, driven from Python: no browser, a corpus and rates at hand."""

import subprocess
import sys

import numpy as np
import pytest

from lmtime import corpora, study, widgets
from lmtime.calibration import Calibration
from lmtime.config import GCNConfig, configure
from lmtime.corpora import Corpus
from lmtime.cost.predict import predict
from lmtime.hardware import GPUS
from lmtime.publishing.renderer import MIME_TYPE

pytestmark = pytest.mark.usefixtures("one_thread")

RATES = Calibration(
    device="cpu", device_name="A processor", n_threads=1, matmul_flops_per_s={"fp32": 1e11},
    bytes_per_s=1e10,
)  # fmt: skip


@pytest.fixture
def panel(tmp_path, monkeypatch):
    ids = np.random.default_rng(0).geometric(0.001, 20_000) % 11_000
    corpus = Corpus(
        "movie-reviews", tuple(map(str, range(11_000))), {"train": ids.astype(np.int32)}, sha256="5"
    )
    monkeypatch.setattr(corpora, "load", lambda name, **options: corpus)
    monkeypatch.setenv("LMTIME_ROOT", str(tmp_path))
    monkeypatch.setattr(widgets, "N_STEPS", 6)
    panel = widgets.explore()
    panel.rates = RATES
    return panel


def drawn(panel):
    """The values of the one chart."""
    (shown,) = panel.output.outputs
    assert set(shown["data"]) == {MIME_TYPE, "text/plain"}
    spec = shown["data"][MIME_TYPE]
    return spec["data"]["values"] if "data" in spec else spec["layer"][0]["data"]["values"]


def make_tiny(panel):
    panel.hidden_size.value, panel.vocab_size.value, panel.n_tokens.value = 32, 11_000, 128


def test_it_starts_with_the_preset_and_its_prediction(panel):
    assert panel.config == GCNConfig()
    *parts, step = predict("gcn", GCNConfig(), GPUS["v100-sxm2"])
    assert panel.rows == [record.to_row() for record in parts]
    assert [bar["share"] for bar in drawn(panel)] == [record.share for record in parts]
    ends = f"2.31 to {step.latency_ms_high:.3g} ms a step"
    assert panel.text.value.startswith(f"Predicted for Tesla V100 SXM2: {ends}")
    assert "162 MB at the peak" in panel.text.value


@pytest.mark.parametrize(
    "name, value, options",
    [
        ("hidden_size", 1024, dict(hidden_size=1024)),
        ("vocab_size", 100_000, dict(vocab_size=100_000)),
        ("n_tokens", 4096, dict(batch_size=32)),
        ("output_layer", "full", dict(output_layer="full")),
    ],
)
def test_a_control_moves_the_prediction(panel, name, value, options):
    getattr(panel, name).value = value
    config = configure("gcn", **options)
    assert panel.config == config
    wanted = [record.share for record in predict("gcn", config, GPUS["v100-sxm2"])[:-1]]
    assert [bar["share"] for bar in drawn(panel)] == wanted


def test_another_gpu_is_another_prediction(panel):
    before = panel.text.value
    panel.gpu.value = "h100-sxm"
    assert panel.text.value.startswith("Predicted for H100 SXM5")
    assert panel.text.value != before


def test_an_impossible_shape_shows_its_sentence_and_recovers(panel):
    panel.vocab_size.value = 5_000
    assert "cutoffs 2000,10000 do not fit a vocabulary of 5000 words" in panel.text.value
    assert (panel.rows, panel.output.outputs, panel.button.disabled) == ([], (), True)
    panel.output_layer.value = "full"
    assert panel.text.value.startswith("Predicted")
    assert drawn(panel) and not panel.button.disabled


def test_the_button_measures_and_draws_the_prediction_beside(panel):
    make_tiny(panel)
    panel.button.click()
    assert panel.text.value.startswith("Measured on")
    assert "Output layer and loss:" in panel.text.value
    assert {row["kind"] for row in panel.rows} == {"measured"}
    assert {row["phase"] for row in panel.rows} == {"forward", "backward", "optimizer"}
    assert sum(row["share"] for row in panel.rows) == pytest.approx(1)
    for bar in drawn(panel):
        assert bar["low"] <= bar["share"] <= bar["high"]
        assert 0 <= bar["predicted"] <= 1
    assert not panel.button.disabled


def test_rates_of_the_machine_are_measured_once(panel, monkeypatch):
    from lmtime.timing import calibrate as module

    calls = []
    monkeypatch.setattr(module, "calibrate", lambda device, say: calls.append(device) or RATES)
    monkeypatch.setattr(study, "profile", refusing(RuntimeError("not today")))
    panel.rates = None
    panel.button.click()
    panel.button.click()
    assert len(calls) == 1


def refusing(error):
    def profile(*given, **options):
        raise error

    return profile


def test_what_does_not_fit_is_told_in_a_sentence(panel, monkeypatch):
    make_tiny(panel)
    monkeypatch.setattr(study.models.memory, "available_bytes", lambda device: 0)
    panel.button.click()
    assert panel.text.value.startswith("this step needs about")
    assert (panel.rows, panel.output.outputs, panel.button.disabled) == ([], (), False)


def test_what_fails_is_told_and_escaped(panel, monkeypatch):
    monkeypatch.setattr(study, "profile", refusing(RuntimeError("measured <b>nonsense</b>")))
    panel.button.click()
    assert panel.text.value == "measured &lt;b&gt;nonsense&lt;/b&gt;"


def test_predicting_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; from lmtime.widgets import explore;"
        "p = explore(); p.hidden_size.value = 512; assert p.rows"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
