"""Heads in a plane: each has its point, alike px mean alike distances, names do not lie on each other."""

import json

import numpy as np
import plotly.graph_objects as go
import pytest

from attention_core.errors import AttentionError
from attention_core.figures.alt import describe_plane
from attention_core.figures.palette import palette
from attention_core.figures.plane import clicked_item, plane_figure

LIGHT = palette("light")
POINTS = np.array([[0.0, 0.0], [3.0, 1.0], [np.nan, np.nan], [-2.0, 0.5], [0.0, 2.0]])
NAMES, GROUPS = ["0.0", "0.1", "<b>", "0.0", "1.1"], ["encoder", "encoder", "encoder", "cross", "cross"]


def draw(**options):
    return plane_figure(**{"points": POINTS, "names": NAMES, "groups": GROUPS, "palette": LIGHT, **options})


def test_each_item_has_its_point_in_the_shape_of_its_group():
    first, second = draw().data
    assert (list(first.x), list(first.y)) == ([0, 3], [0, 1])
    assert (list(second.x), list(second.y)) == ([-2, 0], [0.5, 2])
    assert first.marker.symbol != second.marker.symbol and first.marker.color != second.marker.color
    go.Figure(json.loads(draw().to_json()))


def test_equal_px_for_equal_distances_with_room_around():
    fig = draw(width=616, height=444)
    (x0, x1), (y0, y1) = fig.layout.xaxis.range, fig.layout.yaxis.range
    assert fig.layout.yaxis.scaleanchor == "x"
    assert (x1 - x0) / 600 == pytest.approx((y1 - y0) / 400)
    assert x0 < -2 and x1 > 3 and y0 < 0 and y1 > 2


def test_a_click_is_the_number_of_the_item():
    second = draw().data[1]
    assert clicked_item([{"customdata": second.customdata[1].tolist()}]) == 4
    assert clicked_item([{"customdata": {"0": "3"}}]) == 3
    assert clicked_item([]) is None and clicked_item([{"x": 1}]) is None


def test_values_colour_the_points_and_their_bar_says_what_they_are():
    fig = draw(values=[1.0, 2.0, 9.0, -3.0, np.nan], measure="importance <nats>")
    assert list(fig.data[0].marker.color) == [1, 2] and fig.data[0].marker.cmin == -3 and fig.data[0].marker.cmax == 9
    assert {"9", "−3", "importance &lt;nats&gt;"} <= {note.text for note in fig.layout.annotations}
    assert fig.data[0].customdata[1].tolist() == ["1", "0.1", "encoder", "importance &lt;nats&gt; 2"]
    signed = draw(values=[1.0, 2.0, 0.0, -3.0, 0.0], signed=True).data[0].marker
    assert (signed.cmin, signed.cmax) == (-3, 3) and signed.colorscale[0][1] == LIGHT.signed[0][1]


def test_names_that_would_lie_on_each_other_are_left_to_the_hover():
    points = np.array([[0.0, 0.0], [0.001, 0.0], [1.0, 1.0]])
    fig = draw(points=points, names=["a", "b", "<i>"], groups=["g"] * 3)
    assert sum(bool(text) for text in fig.data[0].text[:2]) <= 1 and fig.data[0].text[2] == "&lt;i&gt;"
    chosen = draw(points=points, names=["a", "b", "<i>"], groups=["g"] * 3, selected=1)
    assert chosen.data[0].text[0] == "" and list(chosen.data[-1].text) == ["<b>b</b>"]


def test_points_on_one_place_or_none_at_all():
    for points in (np.zeros((5, 2)), np.full((5, 2), np.nan)):
        low, high = draw(points=points).layout.xaxis.range
        assert np.isfinite([low, high]).all() and low < 0 < high


def test_a_plane_in_words():
    assert describe_plane(POINTS, NAMES, GROUPS) == (
        "4 points (encoder 2, cross 2); closest together are encoder 0.0 and cross 1.1."
    )


def test_wrong_counts_are_refused():
    with pytest.raises(AttentionError, match=r"got \(5, 2\), 5 names, 4 groups, no values"):
        draw(groups=GROUPS[:4])
    with pytest.raises(AttentionError, match="at most 4 groups, not 5"):
        draw(groups=list("abcde"))
