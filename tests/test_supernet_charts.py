"""Charts of super-networks show every row, in order, with what a reader needs."""

from lmtime import supernet_charts

ROWS = [
    {"name": f"w{w} d{d}", "width": w, "depth": d, "score": 90.0 - 3 * i - j,
     "score_low": 80.0, "score_high": 95.0, "flops": 1 / (1 + i + j)}
    for i, d in enumerate(("1", "1/2"))
    for j, w in enumerate(("1", "3/4", "1/4"))
]  # fmt: skip


def test_scores_have_a_cell_and_a_number_for_each_part():
    rects, texts = supernet_charts.scores(ROWS, "what").to_dict()["layer"]
    assert rects["mark"]["type"] == "rect" and texts["mark"]["type"] == "text"
    assert rects["encoding"]["x"]["sort"] == ["1", "1/2"]
    assert rects["encoding"]["y"]["sort"] == ["1", "3/4", "1/4"], "the widest on top"
    ink = texts["encoding"]["color"]["condition"]["test"]
    assert ink == "datum.score > 87.5", "light ink where the cell is dark"


def test_scores_against_work_have_a_line_for_the_network_trained_alone():
    chart = supernet_charts.score_and_work(ROWS, 91.0, "what").to_dict()
    alone, lines, intervals, points = chart["layer"]
    assert alone["data"]["values"] == [{"alone": 91.0}]
    assert [part["mark"]["type"] for part in (lines, intervals, points)] == [
        "line",
        "rule",
        "point",
    ]
    assert lines["encoding"]["color"]["scale"]["domain"] == ["1", "1/2"]
    assert chart["description"] == "what"


def test_importances_stand_side_by_side():
    rows = [
        {"panel": panel, "layer": 1, "place": place, "importance": 1 / place}
        for panel in ("before", "after")
        for place in (1, 2)
    ]
    chart = supernet_charts.importances(rows, "what").to_dict()
    assert chart["facet"]["column"]["sort"] == ["before", "after"]
    assert chart["description"] == "what"
