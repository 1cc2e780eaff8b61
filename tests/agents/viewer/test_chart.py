import re
import xml.etree.ElementTree as ElementTree

import pytest

from turntree.agents.viewer.chart import HEIGHT, WIDTH, Series, line_chart, moving_average

LINE = Series(name="rate", style="main", points=((1, 0.0), (2, 0.5), (3, 1.0)))


def drawn_points(chart: str) -> list[tuple[float, float]]:
    points = re.search(r'<polyline points="([^"]+)"', chart).group(1)
    return [tuple(map(float, point.split(","))) for point in points.split()]


def test_higher_values_lie_higher_and_equal_distances_stay_equal():
    (x1, y1), (x2, y2), (x3, y3) = drawn_points(line_chart([LINE], title="rate", top=1.0))
    assert y1 > y2 > y3
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)


@pytest.mark.parametrize(
    "points",
    [
        LINE.points,
        ((1, 2.0),),
        ((1, 0.0), (2, 0.0)),
        ((1, 3e-5), (60, 4e-5)),
        ((1, 1e7), (2, 3e7)),
        ((1, -0.75), (2, -0.5)),
        ((1, -3.0), (2, 2.0)),
        ((1, -1e300), (2**53, 1e300)),
        ((1, -5e-324), (2, 0.0)),
    ],
    ids=["usual", "one point", "zero", "tiny", "huge", "negative", "of both signs", "the largest", "next to nothing"],
)
def test_a_chart_is_well_formed_and_its_points_lie_inside_whatever_they_are(points):
    chart = line_chart([Series(name="n", style="main", points=points)], title="t")
    ElementTree.fromstring(chart)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in drawn_points(chart))
    assert 2 <= len(re.findall('class="grid"', chart)) <= 12


def test_the_moving_average_looks_back_only():
    assert moving_average([4.0, 0.0, 2.0], 2) == [4.0, 2.0, 1.0]
    assert moving_average([], 3) == []


def test_the_horizontal_axis_is_labelled_and_names_are_escaped():
    assert ">training step<" in line_chart([LINE], title="t")
    chart = line_chart([LINE], title="t", across="requests & more")
    assert ">requests &amp; more<" in chart
    assert "training step" not in chart
    evil = '<script>"&'
    chart = line_chart([Series(name=evil, style="main", points=((1, 1.0),))], title=evil)
    ElementTree.fromstring(chart)
    assert "<script" not in chart


def test_a_band_lies_between_its_edges_inside_the_chart_and_under_the_lines():
    banded = Series(name="rate", style="main", points=LINE.points, band=((1, 0.0, 0.5), (2, 0.25, 1.0), (3, 0.5, 2.0)))
    chart = line_chart([banded], title="rate")
    corners = re.search(r'<polygon class="band main" points="([^"]+)"', chart).group(1).split()
    heights = [float(corner.split(",")[1]) for corner in corners]
    assert all(low > high for low, high in zip(heights[:3], reversed(heights[3:]), strict=True))
    assert min(heights) >= 0, "the axis reaches what the band reaches"
    assert chart.index("<polygon") < chart.index("<polyline")
    assert "<polygon" not in line_chart([LINE], title="rate")
