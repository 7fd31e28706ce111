"""Charts as inline SVG: well-formed, inside their frame, with gaps where nothing finite was
measured."""

import math
import re
from xml.etree import ElementTree

import pytest

from rl_core.reporting.charts import (
    HEIGHT,
    NUM_COLOURS,
    WIDTH,
    Point,
    Series,
    line_chart,
    ticks,
)
from rl_core.reporting.hover import MOST_COLUMNS


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def test_lines_bands_and_dots_lie_inside_the_frame():
    line = Series(
        "reward", [Point(1, 0.2, 0.1, 0.3), Point(2, 0.6, 0.5, 0.7), Point(3, 0.4, 0.3, 0.5)]
    )
    dots = Series("held out", [Point(0, -2.0, -3.0, -1.0), Point(3, 5.0, 4.0, 6.0)], dots=True)
    root = parsed(line_chart("Reward & accuracy", [line, dots]))
    assert [element.tag for element in root].count("polyline") == 1
    assert [element.tag for element in root].count("polygon") == 1
    assert [element.tag for element in root].count("circle") == 2
    pairs = [pair for e in root.iter() for pair in e.get("points", "").split()]
    for x, y in (map(float, pair.split(",")) for pair in pairs):
        assert 0 <= x <= WIDTH and 0 <= y <= HEIGHT
    labels = [element.text for element in root if element.tag == "text"]
    assert {"Reward & accuracy", "reward", "held out", "step"} <= set(labels)


def test_a_higher_value_lies_higher():
    root = parsed(line_chart("t", [Series("s", [Point(1, 0.0), Point(2, 1.0)])]))
    points = next(element.get("points", "") for element in root if element.tag == "polyline")
    (x1, y1), (x2, y2) = (map(float, pair.split(",")) for pair in points.split())
    assert x2 > x1 and y2 < y1


def test_what_is_not_finite_is_left_out_and_nothing_at_all_is_said():
    root = parsed(
        line_chart("t", [Series("s", [Point(1, 1.0), Point(2, math.nan), Point(3, 2.0)])])
    )
    assert len(next(e.get("points", "") for e in root if e.tag == "polyline").split()) == 2
    assert "nothing was measured" in line_chart("t", [Series("s", [Point(1, math.nan)])])
    assert "nan" not in line_chart("t", [Series("s", [Point(1, 3.0)])]), (
        "one point has a frame, too"
    )


def test_names_are_text_and_never_markup():
    svg = line_chart("<script>", [Series('"><b>', [Point(1, 1.0)])])
    assert not re.search("<script>|<b>", svg)
    parsed(svg)


def test_each_step_has_its_values_under_the_pointer_and_a_long_run_some_of_them():
    line = Series("a", [Point(1, 0.25, 0.2, 0.3), Point(3, 1.0)])
    other = Series("b", [Point(1, 2.0), Point(2, math.nan)])
    root = parsed(line_chart("t", [line, other]))
    said = [[one.text for one in group.iter("text")] for group in root.iter("g")]
    assert said == [["step 1", "a: 0.25 (0.2 to 0.3)", "b: 2"], ["step 3", "a: 1"]]
    bounds = [(float(r.get("x", "")), float(r.get("width", ""))) for r in root.iterfind("g/rect")]
    assert bounds[0][0] + bounds[0][1] == pytest.approx(bounds[1][0]), "without a gap"
    long = parsed(line_chart("t", [Series("a", [Point(step, 1.0) for step in range(5000)])]))
    assert len(list(long.iter("g"))) == MOST_COLUMNS


def test_the_seventh_line_has_dashes_and_a_page_may_name_the_lines_itself():
    lines = [Series(f"run {n}", [Point(1, n), Point(2, n)]) for n in range(NUM_COLOURS + 1)]
    svg = line_chart("t", lines, legend=False)
    assert svg.count("stroke-dasharray") == 1
    names = [one.text for one in parsed(svg) if one.tag == "text"]
    assert not {"run 0", "run 6"} & set(names)


def test_ticks_are_round_numbers_inside():
    assert ticks(0.0, 1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(-3.0, 47.0) == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert ticks(0.0011, 0.0019) == pytest.approx([0.0012, 0.0014, 0.0016, 0.0018])
