"""What Sphinx and MyST-NB load: charts and formulas on static pages, from files of the book alone.

Vega's scripts are written into the built book from `vl_convert`; only pages that have a chart
load them.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import vl_convert
from docutils import nodes
from myst_nb.core.render import WIDGET_VIEW_MIMETYPE, MimeData

from lmtime.publishing import figure, mathml
from lmtime.publishing.renderer import MIME_TYPE

if TYPE_CHECKING:
    from myst_nb.core.render import NbElementRenderer
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
STATIC = "lmtime"  # folder under _static
BUNDLE = f"{STATIC}/vega.js"
SCRIPT = f"{STATIC}/chart.js"
_NOTICE = """\
/* Vega, Vega-Lite, Vega-Embed and their dependencies, as bundled by vl-convert.
   Copyright (c) University of Washington Interactive Data Lab and contributors.
   BSD 3-Clause License, https://github.com/vega/vega/blob/main/LICENSE */
"""
_LIVE_ONLY = "This panel works in a live kernel only: open this notebook in JupyterLab to use it."


class ChartRenderer:
    """The MyST-NB plugin that mounts our charts, and says what stands in place of widgets."""

    mime_priority_overrides: ClassVar = [("*", MIME_TYPE, 1)]

    @staticmethod
    def handle_mime(
        renderer: NbElementRenderer, data: MimeData, inline: bool
    ) -> list[nodes.Element] | None:
        """The nodes of one output, or None for a kind that is not ours."""
        if data.mime_type == WIDGET_VIEW_MIMETYPE:
            return [nodes.note("", nodes.paragraph(text=_LIVE_ONLY))]
        if inline or data.mime_type != MIME_TYPE:
            return None
        spec = json.loads(json.dumps(data.content))
        try:
            figure.check(spec)
            return _mount(renderer, spec) if _is_html(renderer) else _picture(renderer, spec)
        except ValueError as error:  # UsageError, and what vl_convert raises with its whole stack
            reason = " ".join(str(error).splitlines()[:2])
            renderer.logger.warning(f"{reason} [lmtime]", line=data.line)
            return []


def _is_html(renderer: NbElementRenderer) -> bool:
    env = renderer.renderer.sphinx_env
    return env is None or env.app.builder.format == "html"


def _mount(renderer: NbElementRenderer, spec: dict) -> list[nodes.Element]:
    html = figure.figure(spec)
    for uri in (BUNDLE, SCRIPT) if "<script" in html else ():
        renderer.add_js_file(uri, uri, {"defer": "defer"})
    return [nodes.raw(text=html, format="html")]


def _picture(renderer: NbElementRenderer, spec: dict) -> list[nodes.Element]:
    """The chart as an image and its description, for a builder that knows no script."""
    png = base64.b64encode(vl_convert.vegalite_to_png(spec, scale=2)).decode("ascii")
    options = {"mystnb": {"image": {"alt": spec["description"], "width": "100%"}}}
    images = renderer.render_image(MimeData("image/png", png, cell_metadata=options))
    return [*images, nodes.paragraph(text=spec["description"])]


def write_static(app: Sphinx) -> None:
    """Write the scripts and the style into the built book."""
    if app.builder.format != "html":
        return
    folder = Path(app.outdir) / "_static" / STATIC
    folder.mkdir(parents=True, exist_ok=True)
    # As a classic script the bundle's names would collide with Sphinx's own, hence the function.
    bundle = f"{_NOTICE}(function () {{\n{vl_convert.javascript_bundle()}\n}})();\n"
    (folder / "vega.js").write_text(bundle, encoding="utf-8")
    for name in ("chart.js", "chart.css"):
        (folder / name).write_text((HERE / name).read_text("utf-8"), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, object]:
    """Register the extension."""
    app.connect("builder-inited", write_static)
    app.add_css_file(f"{STATIC}/chart.css")
    app.add_html_math_renderer("mathml", (mathml.visit_inline, None), (mathml.visit_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
