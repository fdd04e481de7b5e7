"""Token-to-token lines: each weight that counts has its line, in few traces."""

import base64
import json

import numpy as np
import plotly.graph_objects as go
import pytest

from attention_core.errors import AttentionError
from attention_core.figures.lines import CLASSES, clicked_query, lines_figure
from attention_core.figures.palette import palette

LIGHT = palette("light")
rng = np.random.default_rng(5)


def draw(weights, **options):
    labels = {
        "query_labels": [f"q{i}" for i in range(len(weights))],
        "key_labels": [f"k{i}" for i in range(weights.shape[1])],
    }
    return lines_figure(weights, palette=LIGHT, **{**labels, **options})


def drawn(fig):
    """{(query, key): trace} of all lines."""
    found = {}
    for trace in fig.to_dict()["data"]:
        if trace["mode"] == "lines":
            y = np.frombuffer(base64.b64decode(trace["y"]["bdata"]), trace["y"]["dtype"]).reshape(-1, 3)
            x = np.frombuffer(base64.b64decode(trace["x"]["bdata"]), trace["x"]["dtype"]).reshape(-1, 3)
            assert (x[:, :2] == [0, 1]).all() and np.isnan(x[:, 2]).all() and np.isnan(y[:, 2]).all()
            found |= {(int(q), int(k)): trace for q, k, _ in y}
    return found


def test_each_weight_above_the_threshold_has_one_line():
    weights = rng.uniform(size=(5, 7))
    fig = draw(weights, threshold=0.3)
    assert set(drawn(fig)) == set(zip(*(axis.tolist() for axis in np.nonzero(weights >= 0.3))))
    assert sum(trace.mode == "lines" for trace in fig.data) <= CLASSES
    go.Figure(json.loads(fig.to_json()))


def test_a_stronger_weight_has_a_stronger_line():
    lines = drawn(draw(np.array([[0.1, 0.5, 1.0]])))
    opacity, width = [lines[0, k]["opacity"] for k in range(3)], [lines[0, k]["line"]["width"] for k in range(3)]
    assert opacity[0] < opacity[1] < opacity[2] and width[0] < width[1] < width[2]


def test_masked_and_not_finite_weights_have_no_line():
    weights = np.array([[0.5, np.nan], [0.5, 0.5]])
    assert set(drawn(draw(weights, hidden=np.array([[False, False], [True, False]])))) == {(0, 0), (1, 1)}
    assert drawn(draw(np.zeros((2, 2)), threshold=0)) == {}


def test_the_selected_query_stands_out():
    fig = draw(np.full((3, 2), 0.5), selected_query=1)
    lines = drawn(fig)
    assert lines[1, 0]["line"]["color"] == LIGHT.accent and lines[0, 0]["line"]["color"] == LIGHT.muted
    assert lines[1, 0]["opacity"] > 4 * lines[0, 0]["opacity"]
    assert fig.layout.yaxis.ticktext[1] == f'<b style="color:{LIGHT.text}">q1</b>'


def test_labels_are_escaped_and_repeated_ones_stay_apart():
    tokens = ["<s>", "10", "10"]
    fig = draw(np.eye(3), query_labels=tokens, key_labels=tokens)
    assert list(fig.layout.yaxis.tickvals) == list(fig.layout.yaxis2.tickvals) == [0, 1, 2]
    assert list(fig.layout.yaxis2.ticktext) == ["&lt;s&gt;", "10", "10"]
    assert fig.layout.yaxis.range == fig.layout.yaxis2.range == (2.5, -0.5)
    hover = next(trace for trace in fig.data if trace.customdata is not None)
    assert hover.customdata[0].tolist() == ["&lt;s&gt;", "1  0 · &lt;s&gt;"]


def test_a_click_on_a_token_is_its_query():
    assert clicked_query([{"x": 0, "y": 2}]) == 2
    assert clicked_query([{"x": 1, "y": 2}]) is None
    assert clicked_query([]) is None


def test_labels_that_do_not_match_are_refused():
    with pytest.raises(AttentionError, match=r"shape \(2, 3\); labels: 1 queries, 3 keys"):
        draw(np.zeros((2, 3)), query_labels=["a"])
