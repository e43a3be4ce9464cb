"""Charts and formulas on static pages: what is mounted is readable, and says what is true."""

import io
import json
import random
import re
import subprocess
import sys
from types import SimpleNamespace

import altair as alt
import pytest
import vl_convert
from docutils import nodes
from myst_nb.core.render import WIDGET_VIEW_MIMETYPE, MimeData

from lmtime.errors import UsageError
from lmtime.publishing import figure as figure_module
from lmtime.publishing import renderer, sphinx_ext
from lmtime.publishing.figure import figure
from lmtime.publishing.mathml import to_mathml
from lmtime.publishing.vega_eval import evaluate, signal_texts

bs4 = pytest.importorskip("bs4")


def chart_spec(**lmtime):
    """A chart with two sliders and a menu, as a chart's author writes it."""
    rows = [{"hidden_size": 2**k, "work": 3.0} for k in range(6, 10)]
    slider = alt.binding_range(min=6, max=12, step=1, name="Hidden size (features)")
    speed = alt.binding_range(min=0.5, max=4, step=0.5, name="Speed")
    menu = alt.binding_select(options=["adaptive", "full"], labels=["two", "one"], name="Layer")
    chart = (
        alt.Chart(alt.Data(values=rows))
        .transform_calculate(latency_ms="datum.hidden_size * datum.work / speed")
        .mark_line()
        .encode(
            x=alt.X("hidden_size:Q", title="Hidden size"),
            y=alt.Y("latency_ms:Q", title="Time (ms)"),
        )
        .add_params(
            alt.param("k", value=9, bind=slider),
            alt.param("speed", value=2, bind=speed),
            alt.param("layer", value="full", bind=menu),
        )
        .properties(description="Time <grows> with the hidden size.", usermeta={"lmtime": lmtime})
    )
    return chart.to_dict()


def parsed(spec):
    return bs4.BeautifulSoup(figure(spec), "html.parser").find("figure")


# The renderer ---------------------------------------------------------------------------------


def test_a_chart_shows_its_specification_and_its_description(monkeypatch):
    before = alt.renderers.active
    renderer.enable()
    try:
        chart = alt.Chart(alt.Data(values=[{"a": 1}])).mark_point().encode(x="a:Q")
        bundle = chart.properties(description="One point.")._repr_mimebundle_()
    finally:
        alt.renderers.enable(before)
    assert set(bundle) == {"application/vnd.vegalite.v5+json", "text/plain"}
    assert bundle["text/plain"] == "One point."
    assert bundle["application/vnd.vegalite.v5+json"]["mark"]["type"] == "point"


def test_the_renderer_needs_no_sphinx():
    code = (
        "import sys; import lmtime.publishing.renderer;"
        "sys.exit(any(m in sys.modules for m in ('sphinx', 'myst_nb', 'vl_convert', 'torch')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Vega with no browser ---------------------------------------------------------------------------


def test_vega_computes_what_python_computes_at_a_thousand_points():
    draw = random.Random(1)
    points = [
        {"h": draw.randint(1, 9999), "n": draw.random(), "e5": draw.random()} for _ in range(1000)
    ]
    expressions = {
        "a": "2*h*n + 1e5*e5 - max(h, 'h'.length)",
        "b": "ceil(h / 128) * 128 > h ? 1 : 0",
        "c": "h > 5000",
    }
    for point, row in zip(points, evaluate(expressions, points), strict=True):
        h, n, e5 = point.values()
        assert row["a"] == 2 * h * n + 1e5 * e5 - max(h, 1)
        assert row["b"] == (-(-h // 128) * 128 > h)
        assert row["c"] == (h > 5000)


def test_evaluating_nothing_yields_nothing():
    assert evaluate({}, [{"h": 1}]) == [{}]
    assert evaluate({"a": "1"}, []) == []


def test_numbers_beyond_all_bounds_come_back():
    (row,) = evaluate({"a": "1/h", "b": "-1/h", "c": "h/h"}, [{"h": 0}])
    assert row["a"] == float("inf") and row["b"] == float("-inf") and row["c"] != row["c"]


# The figure -------------------------------------------------------------------------------------


def test_each_control_has_a_label_and_its_value_in_words():
    spec = chart_spec(show={"k": "format(pow(2, k), ',')"})
    controls = parsed(spec).select(".lmtime-control")
    labels = [control.label.span.text for control in controls]
    values = [control.select_one(".lmtime-value") for control in controls]
    assert labels == ["Hidden size", "Speed", "Layer"]
    assert [value.text for value in values[:2]] == ["512 features", "2"] and values[2] is None
    assert controls[2].select_one("option[selected]").text == "one"
    assert json.loads(controls[2].select_one("option[selected]")["value"]) == "full"


def test_the_sentence_is_true_before_a_control_is_moved():
    spec = chart_spec(
        show={"k": "pow(2, k)"},
        sentence=[
            'At "size" ',
            {"show": "k"},
            " the ",
            {"show": "layer"},
            " takes ",
            {"signal": "100 * speed / 7", "format": ".1f"},
            " % of ",
            {"signal": "k + 1"},
            " <b>.",
        ],
    )
    sentence = parsed(spec).select_one("p.lmtime-sentence")
    assert sentence.text == 'At "size" 512 features the one takes 28.6 % of 10 <b>.'
    assert sentence["aria-live"] == "polite"


def test_the_sentence_follows_its_signals():
    spec = chart_spec(sentence=["k is ", {"show": "k"}])
    mounted = json.loads(parsed(spec).script.string)
    expression = mounted["usermeta"]["lmtime"]["signals"][figure_module.SENTENCE]
    for k in (6, 12):
        vega = vl_convert.vegalite_to_vega(mounted)
        signals = [{**s, "value": k} if s["name"] == "k" else s for s in vega["signals"]]
        assert signal_texts({**vega, "signals": signals}, [expression]) == [f"k is {k} features"]


def test_the_mounted_specification_has_no_controls_of_vega_and_the_width_of_the_page():
    spec = chart_spec()
    mounted = json.loads(parsed(spec).script.string)
    assert mounted["width"] == "container"
    assert [param["name"] for param in mounted["params"]] == ["k", "speed", "layer"]
    assert not any("bind" in param for param in mounted["params"])
    assert mounted["transform"] == spec["transform"]
    assert "bind" in spec["params"][0], "the chart's own specification was changed"


def test_the_table_holds_the_computed_values_at_the_starting_position():
    table = parsed(chart_spec()).select_one("details table")
    assert "starting position" in table.caption.text
    assert [cell.text for cell in table.select("th")] == ["Hidden size", "Time (ms)"]
    rows = [[cell.text for cell in row.select("td")] for row in table.select("tbody tr")]
    assert rows == [["64", "96"], ["128", "192"], ["256", "384"], ["512", "768"]]


def test_the_table_is_capped_and_says_so():
    rows = [{"x": i, "y": i / 7} for i in range(812)]
    chart = alt.Chart(alt.Data(values=rows)).mark_point().encode(x="x:Q", y="y:Q")
    table = parsed(chart.properties(description="Many.").to_dict()).select_one("table")
    assert table.caption.text == "The first 100 of 812 rows."
    assert len(table.select("tbody tr")) == 100
    assert [cell.text for cell in table.select("tbody tr")[1].select("td")] == ["1", "0.1429"]


def test_layers_over_the_same_rows_make_one_table_with_distinct_titles():
    rows = [{"n": 1, "low": 1, "mid": 2, "high": 3, "kind": "a"}, {"n": 2, "low": 2, "mid": 3}]
    base = alt.Chart(alt.Data(values=rows)).encode(x="n:O")
    band = base.mark_area().encode(y=alt.Y("low:Q", title="Time"), y2="high:Q")
    chart = band + base.mark_line().encode(y=alt.Y("mid:Q", title="Time"))
    (table,) = parsed(chart.properties(description="A band.").to_dict()).select("table")
    titles = [cell.text for cell in table.select("th")]
    assert titles == ["n", "Time, low", "high", "Time, mid"]


@pytest.mark.parametrize("compose", [alt.hconcat, alt.vconcat])
def test_each_panel_has_its_table_under_its_own_titles(compose):
    def panel(title, rows):
        share = alt.Y("share:Q", axis=alt.Axis(format="%"))
        order = alt.Order("place:Q")
        chart = alt.Chart(alt.Data(values=rows)).mark_bar()
        return chart.encode(x=alt.X("width:N", title=title), y=share, order=order)

    rule = alt.Chart(alt.Data(values=[{}])).mark_rule().transform_calculate(at="1").encode(x="at:Q")
    left = panel("left", [{"width": 1, "share": 0.123, "place": 0}, {"width": 2, "share": 1}])
    right = panel("right", [{"width": 3, "share": 0.5}, {"width": 4, "share": 0.5}])
    spec = compose(left + rule, right).properties(description="Two.").to_dict()
    tables = parsed(spec).select("table")
    assert [[cell.text for cell in t.select("th")] for t in tables] == [
        ["left", "share"],
        ["right", "share"],
    ]
    assert [cell.text for cell in tables[0].select("td")] == ["1", "12.3%", "2", "100.0%"]


def test_a_chart_with_no_rows_says_so_and_is_not_drawn():
    chart = (
        alt.Chart(alt.Data(values=[])).mark_point().encode(x=alt.X("a:Q", scale={"type": "log"}))
    )
    html = parsed(chart.properties(description="Measured here.").to_dict())
    assert html["class"] == ["lmtime-empty"] and html.figcaption.text == "Measured here."
    assert "no rows" in html.p.text and not html.script


def test_markup_in_a_chart_stays_text():
    rows = [{"a": "</script><b>"}]
    chart = alt.Chart(alt.Data(values=rows)).mark_point().encode(x="a:N")
    html = parsed(chart.properties(description="<i>").to_dict())
    assert html.figcaption.text == "<i>" and html.td.text == "</script><b>"
    assert json.loads(html.script.string)["data"]["values"] == rows


@pytest.mark.parametrize(
    "change, word",
    [
        ({"description": " "}, "description"),
        ({"data": {"url": "rows.csv"}}, "address"),
        ({"usermeta": {"lmtime": {"show": {"z": "1"}}}}, "'z'"),
        ({"usermeta": {"lmtime": {"sentence": [{"shown": "k"}]}}}, "sentence part"),
        ({"usermeta": {"lmtime": {"sentence": [{"show": "z"}]}}}, "sentence part"),
        ({"params": [{"name": "k", "value": 1, "bind": {"input": "text"}}]}, "range"),
        ({"params": [{"name": "k", "bind": {"input": "range"}}]}, "starts"),
        ({"params": [{"name": "k", "value": 4, "bind": {"input": "range", "step": 3}}]}, "starts"),
        ({"params": [{"name": "k", "value": 4, "bind": {"input": "range", "max": 3}}]}, "starts"),
        (
            {"params": [{"name": "k", "value": 4, "bind": {"input": "select", "options": [3]}}]},
            "starts",
        ),
    ],
)
def test_a_chart_that_cannot_be_mounted_says_why(change, word):
    with pytest.raises(UsageError, match=word):
        figure({**chart_spec(), **change})


# What MyST-NB calls -----------------------------------------------------------------------------


def notebook_renderer(builder):
    app = SimpleNamespace(builder=SimpleNamespace(format=builder))
    files, warnings, images = {}, [], []

    def render_image(data):
        images.append(data)
        return [nodes.image(uri="chart.png", alt=data.cell_metadata["mystnb"]["image"]["alt"])]

    return SimpleNamespace(
        renderer=SimpleNamespace(sphinx_env=SimpleNamespace(app=app)),
        logger=SimpleNamespace(warning=lambda text, line: warnings.append(text)),
        add_js_file=lambda key, uri, kwargs: files.setdefault(uri, kwargs),
        render_image=render_image,
        files=files,
        warnings=warnings,
        images=images,
    )


def rendered(nb, mime_type, content):
    return sphinx_ext.ChartRenderer.handle_mime(nb, MimeData(mime_type, content), False)


def test_a_page_mounts_the_chart_and_loads_the_scripts():
    nb = notebook_renderer("html")
    (node,) = rendered(nb, renderer.MIME_TYPE, chart_spec())
    assert node["format"] == "html" and "<figure" in node.astext()
    assert list(nb.files) == ["lmtime/vega.js", "lmtime/chart.js"] and not nb.warnings


def test_a_printed_book_has_the_chart_as_an_image_with_its_description():
    nb = notebook_renderer("latex")
    image, text = rendered(nb, renderer.MIME_TYPE, chart_spec())
    assert image["alt"] == text.astext() == "Time <grows> with the hidden size."
    assert nb.images[0].mime_type == "image/png" and not nb.files


@pytest.mark.parametrize(
    "spec",
    [
        {**chart_spec(), "description": ""},
        {**chart_spec(), "transform": [{"calculate": "datum. +", "as": "latency_ms"}]},
        {**chart_spec(), "usermeta": {"lmtime": {"sentence": [{"signal": "nobody + 1"}]}}},
    ],
)
def test_a_chart_that_fails_is_a_warning_of_the_build(spec):
    nb = notebook_renderer("html")
    assert rendered(nb, renderer.MIME_TYPE, spec) == []
    assert len(nb.warnings) == 1


def test_a_panel_of_the_live_kernel_is_a_note_and_other_output_is_not_ours():
    nb = notebook_renderer("html")
    (note,) = rendered(nb, WIDGET_VIEW_MIMETYPE, {"model_id": "1"})
    assert "live kernel" in note.astext()
    assert rendered(nb, "text/html", "<b>") is None


# Formulas ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "latex, element",
    [
        (r"\frac{F}{P}", "mfrac"),
        (r"\sum_{i=1}^{n} t_i", "munderover"),
        (r"\begin{align} a &= b \\ c &= d \end{align}", "mtable"),
        (r"\begin{aligned} a &= b \\ c &= d \end{aligned}", "mtable"),
        (r"a &= b \\ c &= d", "mtable"),
        (r"\begin{cases} 1 & x > 0 \\ 0 & \text{else} \end{cases}", "mtable"),
        (r"\max\left(\frac{F}{P}, \frac{Q}{B}\right)", "mfrac"),
        (r"\left\lceil \frac{d}{4^i} \right\rceil", "msup"),
    ],
)
def test_a_formula_is_mathml(latex, element):
    mathml = to_mathml(latex, display=True)
    assert f"<{element}" in mathml and 'display="block"' in mathml
    assert not re.search(r">\s*(&amp;|\\)", mathml)
    assert bs4.BeautifulSoup(mathml, "html.parser").math["alttext"] == latex


def test_letters_that_are_a_word_stand_upright_and_unescaped():
    assert "<mtext>d</mtext>" in to_mathml(r"\mathrm{d}x")
    assert "<mtext>hidden_size</mtext>" in to_mathml(r"\text{hidden\_size}")


@pytest.mark.parametrize(
    "latex",
    [
        r"\frac{1}",
        r"\left( x",
        r"\nosuchcommand{x}",
        "a_b_c",
        "{",
        "x^",
        "a & b",
        r"\begin{foo}x\end{foo}",
    ],
)
def test_a_formula_that_cannot_be_read_is_an_error(latex):
    with pytest.raises(UsageError):
        to_mathml(latex)


def test_a_bad_formula_warns_and_the_page_is_built(tmp_path):
    from sphinx.application import Sphinx

    (tmp_path / "index.md").write_text(
        "# Title\n\nGood $a^2$, bad $\\frac{1}$.\n\n$$\nb = c\n$$ (label)\n\nSee {eq}`label`.\n"
    )
    overrides = {
        "extensions": ["myst_parser", "lmtime.publishing.sphinx_ext"],
        "myst_enable_extensions": ["dollarmath"],
        "html_math_renderer": "mathml",
    }
    warnings = io.StringIO()
    out = tmp_path / "out"
    app = Sphinx(
        tmp_path, None, out, tmp_path / "trees", "html", overrides, status=None, warning=warnings
    )
    app.build()
    page = bs4.BeautifulSoup((out / "index.html").read_text(), "html.parser")
    assert warnings.getvalue().count("WARNING") == 1 and r"\\frac{1}" in warnings.getvalue()
    assert page.select_one("span.math msup") and page.select_one("code").text == r"\frac{1}"
    assert page.select_one("div.math .eqno").text.startswith("(1)")
    assert page.select_one("div.math math")["display"] == "block"
    assert "mathjax" not in str(page.select("script")).lower()
    assert (out / "_static/lmtime/vega.js").stat().st_size > 500_000
    assert "vega.js" not in str(page), "a page with no chart loads the bundle"


# Colours ----------------------------------------------------------------------------------------

PAGE = {"light": "#ffffff", "dark": "#121212"}  # background of the theme's pages


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_marks_stand_out_in_both_themes(theme):
    css = (sphinx_ext.HERE / "chart.css").read_text()
    block = css.split('html[data-theme="dark"]')[theme == "dark"].partition("}")[0]
    colours = dict(re.findall(r"--lmtime-([\w-]+): (#\w{6})", block))
    for name in ("ink", "muted", "accent", "colour-2"):  # colour-2 is a takeaway's title
        for background in (PAGE[theme], colours["surface"]):
            assert contrast(colours[name], background) >= 4.5, (name, background)
    for number in range(1, 9):
        assert contrast(colours[f"colour-{number}"], PAGE[theme]) >= 3.0, number
