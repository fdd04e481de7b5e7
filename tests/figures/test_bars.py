"""Bars: the first on top, equal names apart, numbers beside them."""

import base64
import json

import numpy as np
import plotly.graph_objects as go
import pytest

from attention_core.errors import AttentionError
from attention_core.figures.bars import bars_figure
from attention_core.figures.palette import palette

LIGHT = palette("light")


def array(packed):
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"]).tolist()


def test_bars_are_in_order_from_the_top_with_equal_names_apart():
    fig = bars_figure(["<s>", "10", "10", "\n"], [0.5, 0.25, 0.125, 0.0625], palette=LIGHT)
    bar = fig.to_dict()["data"][0]
    assert array(bar["x"]) == [0.5, 0.25, 0.125, 0.0625]
    assert array(bar["y"]) == [0, 1, 2, 3]
    assert list(fig.layout.yaxis.range) == [3.5, -0.5]
    assert fig.layout.yaxis.ticktext == ("&lt;s&gt;", "10", "10", "⏎")
    assert [text.strip() for text in fig.data[1].text] == ["0.5", "0.25", "0.125", "0.0625"]
    go.Figure(json.loads(fig.to_json()))


def test_a_value_before_is_a_tick_and_the_number_stands_beyond_it():
    fig = bars_figure(["a", "b"], [0.25, 0.5], before=[0.75, 0.125], palette=LIGHT)
    numbers, ticks = fig.to_dict()["data"][1:]
    assert array(ticks["x"]) == [0.75, 0.125]
    assert array(numbers["x"]) == [0.75, 0.5]
    assert fig.data[0].customdata.tolist() == [["a", "0.75 → 0.25"], ["b", "0.125 → 0.5"]]


def test_negative_values_point_left_and_free_limits_hold_everything():
    fig = bars_figure(["a", "b"], [-2.0, 3.0], palette=LIGHT, limits=None)
    low, high = fig.layout.xaxis.range
    assert -4 < low < -2 and 3 < high < 5
    assert list(fig.data[1].textposition) == ["middle left", "middle right"]


def test_what_is_not_finite_has_no_bar():
    fig = bars_figure(["a", "b"], [np.nan, 0.5], palette=LIGHT, limits=None)
    assert np.isnan(array(fig.to_dict()["data"][0]["x"])[0])
    assert fig.data[1].text[0].strip() == "–"


def test_selected_bars_are_strong():
    opacity = array(
        bars_figure(["a", "b"], [0.5, 0.5], palette=LIGHT, selected=[1]).to_dict()["data"][0]["marker"]["opacity"]
    )
    assert opacity[1] == 1 and opacity[0] < 0.6
    assert array(bars_figure(["a"], [0.5], palette=LIGHT).to_dict()["data"][0]["marker"]["opacity"]) == [1]


def test_no_bars_and_wrong_counts():
    go.Figure(json.loads(bars_figure([], [], palette=LIGHT, limits=None).to_json()))
    with pytest.raises(AttentionError, match=r"values for 1 names"):
        bars_figure(["a"], [0.5, 0.5], palette=LIGHT)


def test_a_pair_has_two_bars_two_numbers_and_their_names():
    fig = bars_figure(["a", "b"], [0.25, 0.5], before=[0.75, np.nan], palette=LIGHT, pair=("before", "<after>"))
    after, after_numbers, before, before_numbers = fig.to_dict()["data"]
    assert array(after["x"]) == [0.25, 0.5] and array(before["x"])[0] == 0.75 and np.isnan(array(before["x"])[1])
    assert all(high < low for high, low in zip(array(before["y"]), array(after["y"])))
    assert [text.strip() for text in before_numbers["text"]] == ["0.75", "–"]
    assert [text.strip() for text in after_numbers["text"]] == ["0.25", "0.5"]
    assert "before" in fig.layout.annotations[0].text and "&lt;after&gt;" in fig.layout.annotations[0].text
    go.Figure(json.loads(fig.to_json()))
    with pytest.raises(AttentionError, match="a pair of bars needs the values before"):
        bars_figure(["a"], [0.5], palette=LIGHT, pair=("before", "after"))
