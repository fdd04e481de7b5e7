"""The atlas: every head has its cell, all kinds one range, a click is a head."""

import base64
import json

import numpy as np
import plotly.graph_objects as go
import pytest

from attention_core.errors import AttentionError
from attention_core.figures.alt import describe_grid
from attention_core.figures.atlas import atlas_figure, atlas_panels, clicked_head
from attention_core.figures.palette import palette

LIGHT = palette("light")
rng = np.random.default_rng(11)
VALUES = {"encoder": rng.uniform(size=(5, 3)), "decoder": rng.uniform(size=(2, 7)), "cross": rng.uniform(size=(2, 7))}
VALUES["cross"][1, 4] = np.nan


def draw(**options):
    return atlas_figure(**{"values": VALUES, "palette": LIGHT, "measure": "entropy", **options})


def cells(trace):
    packed = trace["z"]
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"]).reshape(
        *map(int, packed["shape"].split(","))
    )


def maps(fig):
    return [trace for trace in fig.to_dict()["data"] if trace["type"] == "heatmap"]


def test_every_head_has_its_cell_in_the_panel_of_its_kind():
    fig = draw()
    for trace, values in zip(maps(fig), VALUES.values(), strict=True):
        np.testing.assert_array_equal(cells(trace), values.astype(np.float32))
    axes = [fig.layout[f"yaxis{n}"].range for n in ("", 2, 3)]
    assert axes == [(4.5, -0.5), (1.5, -0.5), (1.5, -0.5)]
    go.Figure(json.loads(fig.to_json()))


def test_all_kinds_share_one_range():
    high = max(np.nanmax(v) for v in VALUES.values())
    assert {(trace["zmin"], trace["zmax"]) for trace in maps(draw())} == {(0.0, high)}
    signed = {"encoder": np.array([[-3.0, 1.0]]), "cross": np.array([[2.0, 0.0]])}
    assert {(trace["zmin"], trace["zmax"]) for trace in maps(draw(values=signed))} == {(-3.0, 2.0)}
    both = maps(draw(values=signed, signed=True))
    assert {(trace["zmin"], trace["zmax"]) for trace in both} == {(-3.0, 3.0)}
    assert both[0]["colorscale"] == LIGHT.signed
    assert {(t["zmin"], t["zmax"]) for t in maps(draw(limits=(0.25, 0.5)))} == {(0.25, 0.5)}
    assert maps(draw(values={"encoder": np.full((2, 3), np.nan)}))[0]["zmax"] == 1


def test_a_click_is_kind_layer_and_head():
    layers = [trace for trace in draw().to_dict()["data"] if trace["type"] == "scatter"]
    assert len(layers) == 3 and layers[1]["customdata"][8].tolist()[1:] == ["1", "1"]
    assert clicked_head(VALUES, [{"curve_number": 4, "x": 6, "y": 1}]) == ("decoder", 1, 6)
    assert clicked_head(VALUES, [{"curve_number": 3, "x": 2, "y": 4}]) == ("encoder", 4, 2)
    assert clicked_head(VALUES, [{"curve_number": 3, "x": 6, "y": 1}]) is None
    assert clicked_head(VALUES, []) is None


def test_hover_names_axes_and_says_where_there_is_no_value():
    layers = [trace for trace in draw().to_dict()["data"] if trace["type"] == "scatter"]
    assert layers[0]["meta"] == ["layer", "head"]
    assert layers[2]["customdata"][7 + 4][0] == "no value"


def test_what_is_counted_stands_over_the_panels_and_along_a_bar_that_has_room():
    tall = {"encoder": rng.uniform(size=(12, 16))}
    texts = [note.text for note in draw(values=tall, measure="<ablation>", unit="nats").layout.annotations]
    assert "&lt;ablation&gt; (nats)" in texts and "&lt;ablation&gt; (nats)" in texts[0]
    short = [note.text for note in draw(measure="a very long name of a number").layout.annotations]
    assert "a very long name of a number" not in short and "a very long name of a number" in short[0]


def test_numbers_are_printed_where_they_fit():
    assert all("texttemplate" in trace for trace in maps(draw()))
    assert not any("texttemplate" in trace for trace in maps(draw(width=200)))
    big = {"encoder": rng.uniform(size=(12, 16)) * 0.05}
    assert maps(draw(values=big))[0]["texttemplate"] == "%{z:.3f}"
    assert maps(draw(values={"encoder": rng.uniform(size=(2, 3)) * 1e-7}))[0]["texttemplate"] == "%{z:.0e}"


def test_panels_side_by_side_and_a_selected_head():
    fig = draw(columns=2, selected=("cross", 1, 4), titles={"cross": "Cross-attention"})
    assert (
        fig.layout.xaxis.domain[1] < fig.layout.xaxis2.domain[0]
        and fig.layout.yaxis3.domain[1] < fig.layout.yaxis.domain[0]
    )
    outline = fig.layout.shapes[-1]
    assert (outline.xref, outline.x0, outline.x1, outline.y0, outline.y1) == ("x3", 3.5, 4.5, 0.5, 1.5)
    assert any("Cross-attention" in note.text for note in fig.layout.annotations)


def test_an_atlas_in_words():
    told = describe_grid(atlas_panels({"encoder": np.array([[0.25, 0.5]])}, measure="entropy"))
    assert told == (
        "encoder, entropy: 1 rows (layer) by 2 columns (head), from 0.25 to 0.5; the largest value is 0.5 at layer 0, head 1."
    )


def test_an_atlas_of_nothing_is_refused():
    with pytest.raises(AttentionError, match="at least one kind and one column, got 0 and 1"):
        draw(values={})
    with pytest.raises(AttentionError, match=r"panel encoder: values must have the axes \(rows, columns\)"):
        draw(values={"encoder": np.zeros(3)})
