"""A number token by token: every token keeps its place, what changed is seen and told."""

import base64
import json

import numpy as np
import plotly.graph_objects as go
import pytest

from attention_core.errors import AttentionError
from attention_core.figures.alt import describe_pairs, describe_series
from attention_core.figures.palette import palette
from attention_core.figures.series import clicked_token, series_figure

LIGHT = palette("light")
LABELS = ["<s>", "a", "a", "b"]
TWO = {"before": [-1.0, -2.0, np.nan, -4.0], "after": [-1.0, -5.0, -3.0, -3.0]}


def array(packed):
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"]).tolist()


def draw(series=TWO, **options):
    return series_figure(LABELS, series, **{"palette": LIGHT, "measure": "log-likelihood", "unit": "nats", **options})


def test_values_stand_at_their_token_and_equal_tokens_apart():
    fig = draw()
    lines = fig.to_dict()["data"]
    assert array(lines[1]["y"]) == TWO["after"] and array(lines[1]["x"]) == [0, 1, 2, 3]
    assert np.isnan(array(lines[0]["y"])[2]) and lines[0]["connectgaps"] is False
    assert fig.layout.xaxis.ticktext == ("&lt;s&gt;", "a", "a", "b")
    go.Figure(json.loads(fig.to_json()))


def test_the_last_stands_out_and_is_named():
    fig = draw()
    assert fig.data[1].line.color == LIGHT.accent and fig.data[0].line.color == LIGHT.muted
    texts = [note.text for note in fig.layout.annotations]
    assert texts[0] == "log-likelihood (nats)" and "before" in texts[1] and "after" in texts[1]
    alone = draw({"coverage": [0.0, 1, 2, 3]}, unit="")
    assert [note.text for note in alone.layout.annotations] == ["log-likelihood"]
    assert alone.data[0].line.color == LIGHT.accent


def test_hover_has_all_numbers_and_the_change_and_a_click_is_a_token():
    hover = draw().data[-1]
    assert hover.customdata[1].tolist() == ["a", "before -2<br>after -5<br>−3"]
    assert hover.customdata[3].tolist() == ["b", "before -4<br>after -3<br>+1"]
    assert clicked_token([{"x": 2, "y": -3}]) == 2 and clicked_token([]) is None


def test_the_axis_holds_everything_or_what_it_is_told():
    low, high = draw().layout.yaxis.range
    assert low < -5 and high > -1
    assert draw(limits=(-10, 0)).layout.yaxis.range == pytest.approx((-10.6, 0.6))
    assert np.isfinite(draw({"x": [np.nan] * 4}).layout.yaxis.range).all()


def test_marked_tokens_and_thinned_labels():
    fig = draw(marked=[2, 99])
    assert fig.layout.xaxis.ticktext[2] == f'<b style="color:{LIGHT.text}">a</b>' and len(fig.layout.shapes) == 1
    many = series_figure([f"t{n}" for n in range(100)], {"x": np.zeros(100)}, palette=LIGHT, measure="m", width=420)
    assert len(many.layout.xaxis.tickvals) < 30 and many.data[0].mode == "lines"


def test_series_and_pairs_in_words():
    assert describe_series(LABELS, TWO) == (
        "before: 3 tokens, from -4 at 3 (b) to -1 at 0 (<s>), -2.33 on average. "
        "after: 4 tokens, from -5 at 1 (a) to -1 at 0 (<s>), -3 on average. "
        "The largest change from before to after is -3 at 1 (a)."
    )
    assert describe_pairs([" king"], [0.5], [0.25]) == "·king: 0.5 before, 0.25 after."


def test_wrong_counts_are_refused():
    with pytest.raises(AttentionError, match="after: 3 values for 4 tokens"):
        draw({"after": [1, 2, 3]})
    with pytest.raises(AttentionError, match="one or two series are drawn, not 0"):
        draw({})
