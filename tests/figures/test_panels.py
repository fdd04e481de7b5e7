"""The panels of one figure: exact values, honest labels, masked cells, clicks."""

import base64
import io
import json
import re

import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image

from attention_core.errors import AttentionError
from attention_core.figures.palette import palette, rgb
from attention_core.figures.panels import Panel, clicked_cell, panels_figure

LIGHT = palette("light")
rng = np.random.default_rng(7)


def figure(*lines, **options):
    options.setdefault("palette", LIGHT)
    return panels_figure(lines, **options)


def maps(fig):
    return [trace for trace in fig.to_dict()["data"] if trace["type"] == "heatmap"]


def clicks(fig):
    return [trace for trace in fig.to_dict()["data"] if trace["type"] == "scatter"]


def decoded(array):
    """An array as plotly's JavaScript reads it."""
    values = np.frombuffer(base64.b64decode(array["bdata"]), array["dtype"])
    return values.reshape([int(n) for n in array["shape"].split(",")]) if "shape" in array else values


def axes(fig, number):
    layout, suffix = fig.to_dict()["layout"], "" if number == 0 else str(number + 1)
    return layout["xaxis" + suffix], layout["yaxis" + suffix]


def stages(queries=5, keys=7, dim=3):
    """The stages of one head, with different primes for every size."""
    q, k, v = rng.normal(size=(queries, dim)), rng.normal(size=(keys, dim)), rng.normal(size=(keys, dim))
    scores = q @ k.T
    hidden = ~np.tri(queries, keys, dtype=bool)
    weights = np.where(hidden, 0, np.exp(scores))
    weights /= weights.sum(-1, keepdims=True)
    rows, columns = [f"q{i}" for i in range(queries)], [f"k{i}" for i in range(keys)]
    token = {"row_labels": rows, "column_labels": columns, "row_title": "query", "column_title": "key"}
    return [
        [Panel("query", q, row_labels=rows, group="qkv"), Panel("key", k, row_labels=columns, group="qkv"), None],
        [
            Panel("scores", scores, "Scores", "5 × 7", **token, group="scores"),
            Panel("masked", scores, "Masked", **token, group="scores", hidden=hidden),
            Panel("weights", weights, "Weights", **token, scale="weights", hidden=hidden),
        ],
        [Panel("context", weights @ v, row_labels=rows)],
    ]


def test_values_are_exact_and_row_0_is_on_top():
    values = rng.normal(size=(5, 7)).astype(np.float32)
    fig = figure([Panel("a", values)])
    sent = maps(fig)[0]["z"]
    assert sent["dtype"] == "f4"
    assert np.array_equal(decoded(sent), values)
    x, y = axes(fig, 0)
    assert list(x["range"]) == [-0.5, 6.5]
    assert list(y["range"]) == [4.5, -0.5]


def test_the_causal_triangle_stands_as_readers_expect():
    """Tokens a b c d, equal scores, causal: query a on the top row sees only a."""
    hidden = ~np.tri(4, dtype=bool)
    weights = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
    tokens = list("abcd")
    fig = figure([Panel("w", weights, "", "", tokens, tokens, "query", "key", "weights", hidden=hidden)])
    z = decoded(maps(fig)[0]["z"])
    assert np.isnan(z[0, 1:]).all() and z[0, 0] == 1
    assert z[3].tolist() == [0.25] * 4
    x, y = axes(fig, 0)
    assert list(y["range"]) == [3.5, -0.5]
    assert y["ticktext"] == x["ticktext"] == tokens
    assert "query ↓" in fig.layout.annotations[0].text and "key →" in fig.layout.annotations[0].text


@pytest.mark.parametrize(
    "text",
    [
        "<s> the cat sat on the mat because the cat was tired </s>",
        "<s> In 2020 2021 10 10 12 </s>",
        "<b>x</b> &lt; %{z} $x^2$ <br>",
    ],
)
def test_repeated_numeric_and_markup_tokens_keep_their_rows(text):
    tokens = text.split()
    count = len(tokens)
    values = rng.normal(size=(count, count))
    fig = figure([Panel("a", values, row_labels=tokens, column_labels=tokens)])
    assert decoded(maps(fig)[0]["z"]).shape == (count, count)
    for axis in axes(fig, 0):
        assert axis["tickmode"] == "array"
        assert list(axis["tickvals"]) == list(range(count))
        assert all("<" not in label for label in axis["ticktext"])
        assert [
            label.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for label in axis["ticktext"]
        ] == tokens
    assert axes(fig, 0)[0]["tickangle"] == -90
    assert not any("x" in trace or "y" in trace for trace in maps(fig))


def test_hover_says_position_tokens_and_exact_value():
    values = rng.normal(size=(2, 3)).astype(np.float32)
    fig = figure(
        [
            Panel(
                "a",
                values,
                row_labels=["<s>", "%{x}"],
                column_labels=list("xyz"),
                row_title="query",
                column_title="key",
            )
        ]
    )
    layer = clicks(fig)[0]
    assert decoded(layer["x"]).tolist() == [0, 1, 2, 0, 1, 2]
    assert decoded(layer["y"]).tolist() == [0, 0, 0, 1, 1, 1]
    value, row, column = layer["customdata"][4]
    assert np.float32(value) == values[1, 1]
    assert (row, column) == ("1 · %{x}", "1 · y")
    assert layer["customdata"][0][1] == "0 · &lt;s&gt;"
    assert layer["meta"] == ["query", "key"]
    assert "x}" not in layer["hovertemplate"]


def test_masked_cells_are_gaps_and_do_not_stretch_the_range():
    values = np.array([[1.0, -1e20], [2.0, -3.0]])
    hidden = np.array([[False, True], [False, False]])
    fig = figure([Panel("a", values, hidden=hidden)], words={"masked": "verdeckt"})
    trace = maps(fig)[0]
    assert np.isnan(decoded(trace["z"])).tolist() == hidden.tolist()
    assert (trace["zmin"], trace["zmax"]) == (-3.0, 3.0)
    assert [cell[0] for cell in clicks(fig)[0]["customdata"]] == ["1.0", "verdeckt", "2.0", "-3.0"]
    assert fig.layout.plot_bgcolor == LIGHT.masked
    assert values[0, 1] == -1e20


def test_cells_that_are_not_finite_are_gaps_named_so():
    values = np.array([[np.nan, np.inf, -np.inf, 0.5]])
    fig = figure([Panel("a", values)])
    trace = maps(fig)[0]
    assert np.isnan(decoded(trace["z"])).tolist() == [[True, True, True, False]]
    assert (trace["zmin"], trace["zmax"]) == (-0.5, 0.5)
    assert [cell[0] for cell in clicks(fig)[0]["customdata"]] == ["not a number"] * 3 + ["0.5"]


def test_values_beyond_float32_are_held_at_its_end():
    fig = figure([Panel("a", np.array([[1e300, -1.0]]))])
    assert np.isfinite(decoded(maps(fig)[0]["z"])).all()
    assert np.isfinite(maps(fig)[0]["zmax"])
    json.loads(fig.to_json(), parse_constant=pytest.fail)


@pytest.mark.parametrize("value, limits", [(0.0, (-1, 1)), (np.nan, (-1, 1)), (-2.0, (-2, 2))])
def test_the_signed_range_is_symmetric_and_never_empty(value, limits):
    trace = maps(figure([Panel("a", np.full((2, 2), value))]))[0]
    assert (trace["zmin"], trace["zmax"]) == limits


def test_weights_run_from_0_to_1_and_limits_can_be_given():
    fig = figure([Panel("a", np.full((1, 2), 0.3), scale="weights"), Panel("b", np.ones((1, 2)), limits=(-4, 5))])
    assert [(trace["zmin"], trace["zmax"]) for trace in maps(fig)] == [(0, 1), (-4, 5)]
    assert [stop[1] for stop in maps(fig)[0]["colorscale"]] == [colour for _, colour in LIGHT.weights]


def test_a_group_shares_its_range_and_one_colour_bar_in_each_row():
    one, two = np.array([[1.0, -2.0]]), np.array([[5.0, 0.0]])
    fig = figure(
        [Panel("a", one, group="g"), Panel("b", two, group="g")], [Panel("c", one, group="g"), Panel("d", one)]
    )
    assert [(trace["zmin"], trace["zmax"]) for trace in maps(fig)] == [(-5, 5), (-5, 5), (-5, 5), (-2, 2)]
    bars = fig.layout.images
    edges = [(axes(fig, n)[0]["domain"][1], axes(fig, n)[1]["domain"][0]) for n in (1, 2, 3)]
    assert [(bar.x - 8 / 894, bar.y) for bar in bars] == [pytest.approx(edge, abs=0.002) for edge in edges]
    assert [note.text for note in fig.layout.annotations] == ["5", "−5", "5", "−5", "2", "−2"]


def test_panels_and_colour_bars_do_not_overlap():
    fig = figure(*stages())
    boxes = [tuple(tuple(axis["domain"]) for axis in axes(fig, n)) for n in range(6)]
    for n, (x, y) in enumerate(boxes):
        assert 0 <= x[0] < x[1] <= 1 and 0 <= y[0] < y[1] <= 1
        for other_x, other_y in boxes[n + 1 :]:
            assert x[1] <= other_x[0] or other_x[1] <= x[0] or y[1] <= other_y[0] or other_y[1] <= y[0]
    assert boxes[0][1] == boxes[1][1] and boxes[2][1] == boxes[3][1]  # one row, one height
    assert boxes[0][0] == boxes[2][0] == boxes[5][0]  # one column, one width
    assert boxes[0][1][0] > boxes[2][1][1] > boxes[5][1][1]  # rows from the top
    bars = fig.layout.images
    assert len(bars) == 4
    for bar in bars:
        assert all(
            bar.x + bar.sizex <= x[0] or x[1] <= bar.x or bar.y + bar.sizey <= y[0] or y[1] <= bar.y for x, y in boxes
        )
        assert any((bar.y, bar.y + bar.sizey) == pytest.approx(y) for _, y in boxes)


def test_a_colour_bar_is_8_px_wide_and_runs_from_the_lower_end_up():
    fig = figure([Panel("a", np.eye(3), scale="weights")])
    bar = fig.layout.images[0]
    width = 960 - fig.layout.margin.l - fig.layout.margin.r
    assert bar.sizex * width == pytest.approx(8, abs=0.1)
    strip = np.asarray(Image.open(io.BytesIO(base64.b64decode(bar.source.split(",")[1]))))
    assert tuple(strip[0, 0]) == rgb(LIGHT.weights[-1][1]) and tuple(strip[-1, 0]) == rgb(LIGHT.weights[0][1])
    ends = {note.text: note.y for note in fig.layout.annotations}
    assert ends == {"1": pytest.approx(bar.y + bar.sizey), "0": pytest.approx(bar.y)}


def test_cells_are_parted_by_lines_at_their_edges():
    fig = figure(
        [Panel("a", np.zeros((2, 4))), Panel("b", np.zeros((2, 4)))], [Panel("large", np.zeros((200, 200))), None]
    )
    path = fig.layout.shapes[0].path
    upright = [float(x) for x in re.findall(r"M([\d.]+),[\d.]+V", path)]
    assert len(upright) == 6 and path.count("H") == 2
    left, right = axes(fig, 0)[0]["domain"]
    assert upright[:3] == pytest.approx([left + (right - left) * share for share in (0.25, 0.5, 0.75)], abs=1e-4)
    assert fig.layout.shapes[0].line.color == LIGHT.page and fig.layout.shapes[0].line.width == 1


def test_neighbours_with_the_same_row_labels_share_them():
    fig = figure(*stages())
    assert [axes(fig, n)[1]["showticklabels"] for n in range(6)] == [True, True, True, False, False, True]


def test_the_selection_is_outlined_and_its_labels_are_strong():
    fig = figure(*stages(), selected={"scores": (2, 3), "query": (2, None), "key": (None, 1), "gone": (0, 0)})
    boxes = {
        s["xref"]: (s["x0"], s["x1"], s["y0"], s["y1"])
        for s in fig.to_dict()["layout"]["shapes"]
        if s["type"] == "rect"
    }
    assert boxes == {"x": (-0.5, 2.5, 1.5, 2.5), "x2": (0.5, 1.5, -0.5, 6.5), "x3": (2.5, 3.5, 1.5, 2.5)}
    x, y = axes(fig, 2)
    assert y["ticktext"][2] == f'<b style="color:{LIGHT.text}">q2</b>' and y["ticktext"][1] == "q1"
    assert x["ticktext"][3] == f'<b style="color:{LIGHT.text}">k3</b>'
    single = figure(*stages(), selected=("scores", 2, 3))
    assert [s["xref"] for s in single.to_dict()["layout"]["shapes"] if s["type"] == "rect"] == ["x3"]


@pytest.mark.parametrize("cell", [(9, 0), (0, 9), (-1, 0), (None, None)])
def test_a_selection_outside_the_panel_marks_nothing(cell):
    fig = figure([Panel("a", np.ones((2, 3)))], selected={"a": cell})
    assert not [s for s in fig.to_dict()["layout"]["shapes"] if s["type"] == "rect"]


def test_a_click_finds_its_cell_in_every_panel():
    grid = stages()
    fig = panels_figure(grid, palette=LIGHT)
    panels = {panel.key: panel for line in grid for panel in line if panel is not None}
    found = set()
    for curve, trace in enumerate(fig.to_dict()["data"]):
        if trace["type"] == "scatter":
            for x, y, (value, _, _) in zip(decoded(trace["x"]), decoded(trace["y"]), trace["customdata"]):
                point = {"curve_number": curve, "point_index": 0, "x": int(x), "y": int(y)}
                key, row, column = clicked_cell(grid, [point])
                panel = panels[key]
                masked = panel.hidden is not None and panel.hidden[row, column]
                assert value == "masked" if masked else np.float64(value) == panel.values[row, column]
                found.add((key, row, column))
    assert len(found) == sum(panel.values.size for panel in panels.values())


def test_large_panels_have_no_click_layer_and_others_keep_theirs():
    grid = [[Panel("large", np.zeros((65, 64))), Panel("small", np.zeros((2, 3)))]]
    fig = panels_figure(grid, palette=LIGHT)
    assert [trace["xaxis"] for trace in clicks(fig)] == ["x2"]
    assert clicked_cell(grid, [{"curve_number": 2, "x": 2, "y": 1}]) == ("small", 1, 2)
    assert not clicks(panels_figure(grid, palette=LIGHT, clickable=False))


@pytest.mark.parametrize(
    "points", [[], [{}], [{"curve_number": 0, "x": 0, "y": 0}], [{"curve_number": 9, "x": 0, "y": 0}],
               [{"curve_number": 1, "x": 3, "y": 0}], [{"curve_number": 1, "x": None, "y": 0}]]
)  # fmt: skip
def test_a_click_that_is_no_cell_gives_none(points):
    assert clicked_cell([[Panel("a", np.zeros((2, 3)))]], points) is None


def test_the_click_layer_is_not_seen_and_takes_the_nearest_click():
    fig = figure([Panel("a", np.zeros((3, 2)))])
    trace = clicks(fig)[0]
    assert trace["marker"]["size"] == 6
    assert {
        trace["marker"]["opacity"],
        trace["selected"]["marker"]["opacity"],
        trace["unselected"]["marker"]["opacity"],
    } == {0.001}
    assert (fig.layout.hovermode, fig.layout.hoverdistance) == ("closest", -1)
    assert maps(fig)[0]["hoverinfo"] == "skip"
    assert fig.layout.uirevision


def test_numbers_are_printed_in_small_panels_only():
    fig = figure([Panel("a", np.zeros((4, 5))), Panel("b", np.zeros((11, 10)))])
    assert ["texttemplate" in trace for trace in maps(fig)] == [True, False]
    assert not any("texttemplate" in trace for trace in maps(figure([Panel("a", np.zeros((2, 2)))], numbers=False)))
    assert "texttemplate" in maps(figure([Panel("b", np.zeros((11, 10)))], numbers=True))[0]


def test_columns_that_do_not_fit_are_thinned():
    tokens = [f"t{i}" for i in range(60)]
    wide, narrow = (figure([Panel("a", np.zeros((3, 60)), column_labels=tokens)], width=w) for w in (1200, 380))
    assert len(axes(wide, 0)[0]["tickvals"]) == 60
    assert len(axes(narrow, 0)[0]["tickvals"]) == 12
    assert axes(narrow, 0)[0]["ticktext"][1] == "t5"


def test_the_height_follows_from_the_shapes_alone():
    one, two = (panels_figure(stages(), palette=palette(theme)) for theme in ("light", "dark"))
    assert one.layout.height == two.layout.height
    assert figure(*stages(), height=777).layout.height == 777


def test_arrays_are_sent_as_arrays_and_the_whole_is_valid_and_small():
    fig = figure(*stages(16, 16, 16), selected=("scores", 1, 1))
    for trace in fig.to_dict()["data"]:
        for name in ("z", "x", "y"):
            assert not isinstance(trace.get(name), list)
    assert len(fig.to_json()) < 120_000
    go.Figure(json.loads(fig.to_json()))  # plotly's own validation


def test_titles_are_escaped():
    fig = figure([Panel("a", np.zeros((2, 2)), "<b>T</b>", "<i>", row_title="<u>", column_title="&")])
    text = fig.layout.annotations[0].text
    assert "&lt;b&gt;T&lt;/b&gt;" in text and "&lt;i&gt;" in text and "&lt;u&gt; ↓" in text and "&amp; →" in text


@pytest.mark.parametrize("shape", [(1, 1), (1, 60), (60, 1), (0, 3)])
def test_odd_shapes_are_drawn(shape):
    fig = figure([Panel("a", np.zeros(shape), row_labels=["x"] * shape[0])])
    go.Figure(json.loads(fig.to_json()))
    assert 80 < fig.layout.height < 700


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int64, bool])
def test_any_number_type_is_drawn(dtype):
    values = np.array([[0, 1], [1, 0]], dtype=dtype)
    assert decoded(maps(figure([Panel("a", values)]))[0]["z"]).tolist() == [[0, 1], [1, 0]]


def test_what_cannot_be_is_refused_in_one_sentence():
    with pytest.raises(
        AttentionError, match=r"panel a: values must have the axes \(rows, columns\), not the shape \(3,\)"
    ):
        Panel("a", np.zeros(3))
    with pytest.raises(AttentionError, match=r"panel a: hidden has the shape \(3, 2\), values \(2, 3\)"):
        Panel("a", np.zeros((2, 3)), hidden=np.zeros((3, 2), bool))
    with pytest.raises(AttentionError, match="panel a: 3 labels for 2 positions"):
        Panel("a", np.zeros((2, 3)), row_labels=list("abc"))
    with pytest.raises(AttentionError, match="scale must be weights or signed, not heat"):
        Panel("a", np.zeros((2, 3)), scale="heat")
    with pytest.raises(AttentionError, match="panel keys must differ: a, a"):
        figure([Panel("a", np.zeros((2, 3))), Panel("a", np.zeros((2, 3)))])


def test_rows_of_padding_keep_their_numbers_under_a_veil():
    values = rng.random((5, 3))
    plain = figure([Panel("weights", values, scale="weights")])
    padded = figure([Panel("weights", values, scale="weights", padded=2)])
    assert np.array_equal(decoded(maps(padded)[0]["z"]), decoded(maps(plain)[0]["z"]))
    before, after = plain.to_dict()["layout"]["shapes"], padded.to_dict()["layout"]["shapes"]
    (veil,) = [shape for shape in after if shape.get("fillcolor") == LIGHT.page]
    assert (veil["y0"], veil["y1"], veil["x0"], veil["x1"]) == (2.5, 4.5, -0.5, 2.5)
    assert len(after) == len(before) + 1
