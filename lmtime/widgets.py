"""A panel for the live kernel: move a shape, read the prediction, measure the same here.

Predicting needs no PyTorch; it is imported when the button is pressed.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import ipywidgets as ipw

from lmtime import charts
from lmtime.calibration import Calibration
from lmtime.config import OUTPUT_LAYER_NAMES, PRESETS, GCNConfig, configure
from lmtime.cost.memory import training_bytes
from lmtime.cost.predict import optimizer_of, predict
from lmtime.errors import UsageError
from lmtime.hardware import GPUS
from lmtime.records import group_of

MODEL = "gcn"
SEQ_LEN = PRESETS[MODEL].seq_len
N_STEPS, MAX_S = 10, 20.0  # of the short rule: enough for an interval, not for a study


class Panel(ipw.VBox):
    """Sliders of a shape, a button, one line of text and one chart; `rows` are those it draws."""

    def __init__(self) -> None:
        start = PRESETS[MODEL]
        self.hidden_size = _slider("hidden size", start.hidden_size, 32, 4096, 32)
        self.vocab_size = _slider("vocabulary", start.vocab_size, 1_000, 200_000, 1)
        self.n_tokens = _slider("tokens", start.n_tokens, SEQ_LEN, 128 * SEQ_LEN, SEQ_LEN)
        self.output_layer = ipw.Dropdown(options=OUTPUT_LAYER_NAMES, description="output layer")
        titles = [(gpu.title, name) for name, gpu in GPUS.items()]
        self.gpu = ipw.Dropdown(options=titles, value="v100-sxm2", description="GPU")
        self.button = ipw.Button(description="Measure on this machine", icon="clock")
        self.text, self.output = ipw.HTML(), ipw.Output()
        self.rows: list[dict[str, Any]] = []
        self.rates: Calibration | None = None  # of this machine, measured once
        controls = (
            self.hidden_size,
            self.vocab_size,
            self.n_tokens,
            self.output_layer,
            self.gpu,
        )
        for control in controls:
            control.style.description_width = "7em"
            control.observe(lambda change: self.predict(), "value")
        self.button.layout.width = "auto"
        self.button.on_click(lambda button: self.measure())
        super().__init__([*controls, self.button, self.text, self.output])
        self.predict()

    @property
    def config(self) -> GCNConfig:
        """The shape that the sliders say; tokens are whole sequences."""
        return configure(
            MODEL,
            hidden_size=self.hidden_size.value,
            vocab_size=self.vocab_size.value,
            batch_size=max(1, self.n_tokens.value // SEQ_LEN),
            output_layer=self.output_layer.value,
        )

    def predict(self) -> None:
        """Draw the roofline of the shape for the chosen GPU: bar and band."""
        try:
            gpu, config = GPUS[self.gpu.value], self.config
            *parts, step = predict(MODEL, config, gpu)
        except UsageError as error:
            self._refuse(error)
            return
        self.button.disabled = False
        memory = training_bytes(config, optimizer=optimizer_of(config, device=gpu.name))
        self._draw(
            [record.to_row() for record in parts],
            f"Predicted for {gpu.title}: {step.latency_ms_low:.3g} to {step.latency_ms_high:.3g} ms"
            f" a step, without launches or with nothing overlapped; {memory.total / 1e6:,.0f} MB"
            f" at the peak.",
        )

    def measure(self) -> None:
        """Time the shape on this machine: bar and interval, and the prediction as a tick."""
        from lmtime import study
        from lmtime.timing import StopRule
        from lmtime.timing.calibrate import calibrate

        self.button.disabled = True
        try:
            setup = study.Setup(rule=StopRule(n_min=N_STEPS, n_max=N_STEPS, max_s=MAX_S))
            self.rates = self.rates or calibrate(setup.device, say=self._say)
            done = study.profile(
                MODEL,
                self.config,
                setup,
                command="lmtime.widgets.explore()",
                calibration=self.rates,
                say=self._say,
            )
        except (UsageError, RuntimeError, OSError) as error:
            self._refuse(error)
            return
        finally:
            self.button.disabled = False
        *parts, step = (record.to_row() for record in done.records)
        words = [
            f"Measured on {step['device_name']}: {step['latency_ms']:.3g} ms a step, predicted "
            f"{step['predicted_ms_low']:.3g} to {step['predicted_ms_high']:.3g} (ticks).",
            *study.profile_document(done)["summary"],
        ]
        if step["quality"]:
            words.append(f"Not a result: {step['quality']}.")
        self._draw(parts, " ".join(words))

    def _draw(self, parts: Sequence[dict[str, Any]], text: str) -> None:
        self.rows = list(parts)
        share = sum(row["share"] for row in parts if group_of(row["owner"]) == "output layer")
        text = f"{text} Output layer and loss: {100 * share:.1f} % of the step."
        self._say(text)
        bundle = charts.step_parts(parts, text)._repr_mimebundle_()
        shown = {"output_type": "display_data", "data": bundle, "metadata": {}}
        self.output.outputs = (shown,)  # a callback has no cell to print into

    def _refuse(self, error: Exception) -> None:
        """The sentence in place of the chart, and nothing to measure."""
        self.rows, self.output.outputs = [], ()
        self.button.disabled = True
        self._say(str(error))

    def _say(self, text: str) -> None:
        self.text.value = html.escape(text)


def explore() -> Panel:
    """The panel, to be shown as the last line of a cell."""
    return Panel()


def _slider(name: str, value: int, low: int, high: int, step: int) -> ipw.IntSlider:
    """A slider that speaks when it is let go."""
    return ipw.IntSlider(
        value=value, min=low, max=high, step=step, description=name, continuous_update=False
    )
