"""Charts: marks stand where their values are, and nothing that has no place on an axis is left out."""

import math
import re

import pytest

from layertap.report.charts import Point, errors, heat_map, histogram, intervals, lines, svg
from layertap.report.charts.frame import shortened
from layertap.report.charts.palette import RAMP, VERMILLION
from layertap.report.charts.scales import Band, Continuous, colour_at, log_domain
from layertap.report.charts.spec import matrix


def circles(drawn):
    """Title → the place of its circle."""
    found = re.findall(r"<circle cx='([\d.]+)' cy='([\d.]+)'[^>]*><title>([^<]*)</title>", drawn)
    return {title.partition(":")[0]: (float(x), float(y)) for x, y, title in found}


def said(drawn):
    return re.findall(r"<text[^>]*>(?:<title>[^<]*</title>)?([^<]*)</text>", drawn)


POINTS = [
    Point(name="a", total=3e-3, floor=1e-2, verdict="noise"),
    Point(name="b", total=3e-2, floor=1e-2, own=0.05, verdict="fault"),
    Point(name="c", total=0.0, floor=1e-2, verdict="identical"),
    Point(name="d", total=math.nan, floor=1e-2, verdict="fault"),
    Point(name="e", total=math.inf, floor=1e-2, verdict="fault"),
]


def test_errors_lie_on_one_log_axis_and_names_in_order():
    drawn = svg(errors(POINTS, "t"))
    found = circles(drawn)
    assert set(found) == {"a", "b"}
    assert log_domain([3e-3, 3e-2]) == [1e-3, 1e-1]
    assert found["b"][0] - found["a"][0] == pytest.approx(720 / 2, abs=0.2), "one decade of two"
    assert found["b"][1] - found["a"][1] == pytest.approx(18)


def test_zero_nan_and_inf_are_written_where_the_axis_has_no_place():
    words = said(svg(errors(POINTS, "t")))
    assert {"0", "NaN", "Inf"} <= set(words)
    assert {"a", "b", "c", "d", "e"} <= set(words)
    assert "◇" in "".join(words), "the module's own error is in the legend"


def test_many_sites_are_drawn_over_depth():
    many = [Point(name=f"layers.{n}", total=10.0 ** -(n % 5), floor=1e-3, verdict="noise") for n in range(300)]
    found = circles(svg(errors(many, "t")))
    assert len(found) == 300
    assert found["layers.1"][0] < found["layers.299"][0]
    assert found["layers.1"][1] > found["layers.0"][1], "the smaller error is lower"


def test_a_line_stops_at_nan_and_says_so_once():
    values = [(n, math.nan if 3 <= n < 6 else 1.0 + n) for n in range(9)]
    drawn = svg(lines({"loss": values}, "t", across="step"))
    assert said(drawn).count("NaN") == 1
    path = next(path for path in re.findall(r"<path d='([^']*)'[^>]*stroke-linejoin", drawn))
    assert path.count("M") == 2
    assert path.count("L") == 4


def test_a_log_axis_is_for_what_spans_it():
    wide = lines({"x": [(0, 1.0), (1, 1e6)]}, "t", across="step", log=True)
    narrow = lines({"x": [(0, 1.0), (1, 2.0)]}, "t", across="step", log=True)
    below = lines({"x": [(0, -1.0), (1, 1e6)]}, "t", across="step", log=True)
    kinds = [spec["layer"][1]["encoding"]["y"]["scale"].get("type") for spec in (wide, narrow, below)]
    assert kinds == ["log", None, None]


def test_a_heat_map_has_one_path_a_colour_and_one_colour_for_what_is_not_finite():
    cells = [(str(x), str(y), x / 99 if x != y else "NaN") for x in range(100) for y in range(30)]
    names = [str(n) for n in range(100)]
    drawn = svg(heat_map(cells, "t", columns=names, rows=names[:30], domain=(0.0, 1.0)))
    assert len(drawn) < 60_000
    assert f"fill='{VERMILLION}' shape-rendering" in drawn
    assert drawn.count("shape-rendering") <= 33
    nan = re.search(rf"<path d='([^']*)' fill='{VERMILLION}'", drawn)
    assert nan is not None
    assert nan[1].count("M") == 30


def test_a_matrix_says_equal_and_nan():
    cells = [("a", "b", 0.0), ("b", "a", math.nan), ("a", "c", 0.01)]
    words = said(svg(matrix(cells, "t", names=["a", "b", "c"], equal="=")))
    assert {"=", "NaN", "0.01"} <= set(words)


def test_intervals_and_histograms_keep_every_row():
    rows = [("a", 0.1, 0.05, 0.2, "mlp"), ("b", math.inf, 0.1, math.nan, "mlp")]
    drawn = svg(intervals(rows, "t", across="KL"))
    assert {"a", "b", "Inf"} <= set(said(drawn))
    spec = histogram([-1.0, 0.0, 1.0, math.inf], [3, 4, 1], "t")
    assert [row["count"] for row in spec["data"]["values"]] == [3, 4], "an infinite bin is told in words, not drawn"


def test_nothing_breaks_on_nothing():
    for spec in (
        errors([], "t"),
        errors([Point(name="a", total=math.nan)], "t"),
        lines({}, "t", across="step"),
        lines({"x": []}, "t", across="step", log=True),
        histogram([], [], "t"),
        heat_map([], "t", columns=[], rows=[], domain=(0, 1)),
        matrix([], "t", names=[], equal="="),
        intervals([], "t", across="KL"),
    ):
        assert svg(spec).startswith("<svg")
        assert "nan" not in svg(spec)


def test_ticks_are_round():
    assert [label for _, label in Continuous("linear", 0, 97, 0, 100).ticks()] == ["0", "20", "40", "60", "80"]
    assert [label for _, label in Continuous("log", 1e-6, 1e2, 0, 100).ticks()][:2] == ["1e-6", "1e-4"]
    assert [label for _, label in Continuous("linear", 0, 3, 0, 1, 1).ticks()] == ["0", "1", "2", "3"]
    assert list(Band(("x", "y"), 0, 10).places().values()) == [2.5, 7.5]


def test_colours_and_names():
    assert colour_at(RAMP, 0) == RAMP[0]
    assert colour_at(RAMP, 1) == RAMP[-1]
    assert len(shortened("层" * 80)) < 46
    assert shortened("short") == "short"


def test_a_page_follows_the_readers_colours_and_a_file_has_its_own():
    assert "var(--blue" in svg(errors(POINTS, "t"))
    assert "var(" not in svg(errors(POINTS, "t"), page=False)
    assert "<script>" not in svg(errors([Point(name="<script>", total=1.0)], "<script>"))
