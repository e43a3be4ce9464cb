"""The Altair renderer: one output that JupyterLab and the static page both draw.

JupyterLab 4 knows the Vega-Lite 5 media type only, and draws today's charts under it; the
Sphinx extension mounts the same output on the page. No Sphinx here: charts import this module.
"""

from __future__ import annotations

import altair as alt

NAME = "lmtime"
MIME_TYPE = "application/vnd.vegalite.v5+json"


def mime_bundle(spec: dict, **_: object) -> dict[str, object]:
    """The chart's specification, and its description for whoever cannot see it."""
    return {MIME_TYPE: spec, "text/plain": spec.get("description") or "A chart."}


def enable() -> None:
    """Make every Altair chart of this process show itself through this renderer."""
    alt.renderers.register(NAME, mime_bundle)
    alt.renderers.enable(NAME)
