"""The built book: it loads nothing from outside, and what it shows everyone can read and move.

`jupyter-book build . --all -n -W --keep-going` comes first; LMTIME_BOOK names another built book.
"""

import json
import os
import re
import shutil
import statistics
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BOOK = Path(os.environ.get("LMTIME_BOOK", ROOT / "_build" / "html"))
PAGES = sorted(path for path in BOOK.rglob("*.html") if "_static" not in path.parts)
BUNDLE = "lmtime/vega.js"
MAX_PAGE_BYTES = 400_000
OUTSIDE = re.compile(r"^\s*(https?:)?//", re.IGNORECASE)
CDNS = ("mathjax", "unpkg", "jsdelivr", "cdnjs", "googleapis")
LOADED = {  # attributes by which a browser loads something without being asked
    "src": ("script", "img", "iframe", "embed", "source", "video", "audio", "track", "input"),
    "href": ("link", "image", "use"),
    "data": ("object",),
    "srcset": ("img", "source"),
    "poster": ("video",),
}

bs4 = pytest.importorskip("bs4")
pytestmark = [
    pytest.mark.page,
    pytest.mark.skipif(not PAGES, reason=f"no built book in {BOOK}: run `make book` first"),
]


def page_name(path):
    return path.relative_to(BOOK).as_posix()


@pytest.fixture(params=PAGES, ids=page_name)
def page(request):
    return request.param


@pytest.fixture
def tree(page):
    return bs4.BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


def resources(tree):
    """Addresses that the page loads."""
    for attribute, tags in LOADED.items():
        for element in tree.find_all(tags, attrs={attribute: True}):
            yield element[attribute]
    for element in tree.find_all(style=True):
        yield from css_addresses(element["style"])
    for element in tree.find_all("style"):
        yield from css_addresses(element.get_text())


def css_addresses(css):
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)
    yield from re.findall(r"""url\(\s*["']?([^"')]+)""", css)
    yield from re.findall(r"""@import\s+["']([^"']+)""", css)


# The files --------------------------------------------------------------------------------------


def test_a_page_loads_nothing_from_outside(tree):
    loaded = list(resources(tree))
    assert not [address for address in loaded if OUTSIDE.match(address)]
    assert not [address for address in loaded if any(cdn in address.lower() for cdn in CDNS)]


def test_what_a_page_loads_is_there(page, tree):
    local = [re.split(r"[?#]", address)[0] for address in resources(tree)]
    missing = [a for a in local if a and ":" not in a and not (page.parent / a).exists()]
    assert not missing


def test_no_style_of_the_book_loads_from_outside():
    for path in (BOOK / "_static").rglob("*.css"):
        outside = [a for a in css_addresses(path.read_text("utf-8")) if OUTSIDE.match(a)]
        assert not outside, path


def test_no_inline_script_of_a_page_names_a_cdn(tree):
    code = "".join(s.get_text() for s in tree.find_all("script") if "json" not in s.get("type", ""))
    assert not [cdn for cdn in CDNS if cdn in code.lower()]


def test_a_page_is_light_and_loads_the_bundle_only_for_charts(page, tree):
    assert page.stat().st_size <= MAX_PAGE_BYTES
    loads = any(BUNDLE in script.get("src", "") for script in tree.find_all("script"))
    assert loads == bool(tree.select("figure.lmtime-chart"))


def test_every_image_has_a_text(tree):
    assert not [str(image) for image in tree.find_all("img") if not image.get("alt", "").strip()]


def test_every_chart_has_data_a_description_a_table_and_labels(tree):
    for chart in tree.select("figure.lmtime-chart"):
        spec = json.loads(chart.select_one("script[type='application/json']").string)
        assert spec["$schema"] and spec["description"].strip()
        assert chart.figcaption.text.strip() == spec["description"].strip()
        table = chart.select_one("details table")
        assert table.caption.text.strip() and table.select("th") and table.select("tbody tr")
        for control in chart.select("input, select"):
            assert control.find_parent("label").span.text.strip(), control


def test_no_output_of_a_notebook_is_an_error(tree):
    assert not tree.select(".cell_output .traceback, .output.error, .system-message")


# The browser ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    binary = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("no Chromium with its chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


def wait_for(browser, script, *arguments, seconds=30):
    """The first true value of a script, which is asked again and again."""
    end = time.monotonic() + seconds
    while not (value := browser.execute_script(script, *arguments)):
        assert time.monotonic() < end, f"never true: {script}"
        time.sleep(0.02)
    return value


def open_page(browser, path, width):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(path.as_uri())
    wait_for_charts(browser)


def wait_for_charts(browser):
    """Wait until every chart is drawn, and drawn after the last change of theme."""
    script = """return [...document.querySelectorAll("figure.lmtime-chart")].every((figure) => {
        const svg = figure.querySelector(".lmtime-view svg[aria-label]");
        return svg && !svg.dataset.old; })"""
    wait_for(browser, script)


def set_theme(browser, theme):
    script = """
        for (const svg of document.querySelectorAll(".lmtime-view svg")) svg.dataset.old = 1;
        document.documentElement.dataset.theme = "";
        document.documentElement.dataset.theme = arguments[0];"""
    browser.execute_script(script, theme)
    wait_for_charts(browser)


def picture_and_words(chart):
    view, words = (
        [part.get_attribute("innerHTML") for part in chart.find_elements("css selector", selector)]
        for selector in (".lmtime-view", ".lmtime-value, .lmtime-sentence")
    )
    return view, words


def press_an_arrow(slider):
    """Move a slider by one step with the keyboard; to where there is room."""
    at_end = float(slider.get_attribute("value")) >= float(slider.get_attribute("max"))
    slider.send_keys("\ue012" if at_end else "\ue014")  # left, right


def check_slider(browser, chart):
    """One arrow key on the chart's first slider changes the drawing and the words."""
    sliders = chart.find_elements("css selector", "input[type=range]")
    if not sliders:
        return
    assert sliders[0].accessible_name and sliders[0].get_attribute("aria-valuetext")
    view, words = picture_and_words(chart)
    press_an_arrow(sliders[0])
    end = time.monotonic() + 5
    now = picture_and_words(chart)
    while time.monotonic() < end and (now[0] == view or now[1] == words):
        now = picture_and_words(chart)
    assert now[0] != view, "the slider left the drawing as it was"
    assert now[1] != words, "the slider left the words as they were"


def test_a_page_works_with_no_network_in_both_themes(browser, page):
    browser.get_log("browser"), browser.get_log("performance")  # of the page before
    open_page(browser, page, width=400)
    for theme in ("light", "dark"):
        before = [slider.get_attribute("value") for slider in sliders_of(browser)]
        set_theme(browser, theme)
        assert [slider.get_attribute("value") for slider in sliders_of(browser)] == before
        for chart in browser.find_elements("css selector", "figure.lmtime-chart"):
            svg = chart.find_element("css selector", ".lmtime-view svg")
            assert svg.get_attribute("role") == "img" and svg.get_attribute("aria-label")
            check_slider(browser, chart)
    script = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(script) <= 0, "the page is wider than a phone of 400 px"
    errors = [e["message"] for e in browser.get_log("browser") if e["level"] == "SEVERE"]
    assert not errors
    assert not outside_requests(browser)


def sliders_of(browser):
    return browser.find_elements("css selector", ".lmtime-chart input[type=range]")


def outside_requests(browser):
    """Addresses outside the book that the browser asked for."""
    entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e["params"] for e in entries if e["method"] == "Network.requestWillBeSent"]
    return [p["request"]["url"] for p in sent if OUTSIDE.match(p["request"]["url"])]


# One frame of a screen that draws 60 a second; longer, and the chart lags behind the hand.
MAX_FRAME_MS, N_MOVES, N_TRIES = 16, 31, 8
MOVE = """
    const [slider, nMoves, done] = arguments;
    const view = slider.closest("figure").querySelector(".lmtime-view");
    const [min, max] = [Number(slider.min), Number(slider.max)];
    const step = Number(slider.step) || (max - min) / 20;
    const times = [];
    let start = 0;
    const observer = new MutationObserver(() => {
        if (!start) return;
        view.getBoundingClientRect(); // lay out now what was drawn
        times.push(performance.now() - start);
        start = 0;
        requestAnimationFrame(times.length < nMoves ? move : () => {
            observer.disconnect();
            done(times);
        });
    });
    observer.observe(view, { subtree: true, childList: true, attributes: true });
    function move() {
        const next = Number(slider.value) + step;
        slider.value = next > max ? min : next;
        start = performance.now();
        slider.dispatchEvent(new Event("input", { bubbles: true }));
    }
    requestAnimationFrame(move);"""


def moved_ms(browser, slider):
    """Median from the input event to the drawing, laid out; the first moves warm the code up."""
    times = browser.execute_async_script(MOVE, slider, N_MOVES)
    return statistics.median(times[N_MOVES // 3 :])


def least_moved_ms(browser, slider):
    """Other work only adds to it: the least of the tries, of which a quick one is enough."""
    least = float("inf")
    for _ in range(N_TRIES):
        least = min(least, moved_ms(browser, slider))
        if least <= MAX_FRAME_MS:
            break
    return least


def test_a_slider_moves_its_chart_within_one_frame(browser, page):
    open_page(browser, page, width=1_000)
    browser.set_script_timeout(30)
    for chart in browser.find_elements("css selector", "figure.lmtime-chart"):
        for slider in chart.find_elements("css selector", "input[type=range]"):
            least = least_moved_ms(browser, slider)
            name = slider.get_attribute("data-param")
            assert least <= MAX_FRAME_MS, f"{name}: {least:.1f} ms"
