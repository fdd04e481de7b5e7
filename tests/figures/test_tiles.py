"""The tiled picture: its pixels are the maps, its markers are the tiles."""

import base64
import io
import json
import re

import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image

from attention_core.errors import AttentionError
from attention_core.figures._pixels import BETWEEN, MASKED, pooled
from attention_core.figures.palette import palette, sample
from attention_core.figures.tiles import clicked_tile, tiles_figure

LIGHT = palette("light")
rng = np.random.default_rng(11)


def picture(fig):
    """The palette entries, the palette (256, 3) and the alpha (256,) of the PNG in a figure."""
    kind, data = fig.data[0].source.split(",")
    assert kind == "data:image/png;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert image.mode == "P"
    return (
        np.asarray(image),
        np.array(image.getpalette()).reshape(-1, 3),
        np.frombuffer(image.info["transparency"], np.uint8),
    )


def draw(maps, columns=3, **options):
    options = {"palette": LIGHT, "tile_names": [f"head {i}" for i in range(len(maps))], **options}
    return tiles_figure(maps, columns=columns, **options)


def tile(fig, number, shape, columns=3):
    """One tile's palette entries, one a cell, found through the axes as a browser places them."""
    entries, _, _ = picture(fig)
    trace = fig.to_dict()["data"][0]
    rows, cols = shape
    out = np.empty(shape, dtype=int)
    pitch_x, pitch_y = 1 / trace["dx"], 1 / trace["dy"]
    half_x, half_y = map(float, re.match(r"M-([\d.]+),-([\d.]+)H", fig.layout.shapes[0].path).groups())  # the frame
    edges = (trace["x0"] - trace["dx"] / 2, trace["y0"] - trace["dy"] / 2)
    assert edges == pytest.approx((-half_x, -half_y), abs=1e-4)
    for r in range(rows):
        for c in range(cols):
            x = number % columns - half_x + (c + 0.5) / cols * 2 * half_x
            y = number // columns - half_y + (r + 0.5) / rows * 2 * half_y
            out[r, c] = entries[round((y - trace["y0"]) * pitch_y), round((x - trace["x0"]) * pitch_x)]
    return out


def test_every_cell_of_every_tile_has_its_level_and_row_0_is_on_top():
    maps = rng.uniform(size=(5, 7, 11))
    fig = draw(maps)
    for number, values in enumerate(maps):
        assert np.array_equal(tile(fig, number, (7, 11)), np.rint(253 * values))
    assert fig.layout.yaxis.range[0] > fig.layout.yaxis.range[1]


def test_levels_are_the_colours_of_the_scale():
    _, colours, alpha = picture(draw(rng.uniform(size=(2, 3, 5))))
    assert np.array_equal(colours[:254], sample(LIGHT.weights, np.linspace(0, 1, 254)))
    assert (alpha[:254] == 255).all()
    assert alpha[MASKED] not in (0, 255) and alpha[BETWEEN] == 0


def test_limits_span_the_levels_and_what_is_outside_is_held():
    maps = np.array([[[-4.0, -2.0, 0.0, 2.0, 3.0]]])
    fig = draw(maps, limits=(-2, 2))
    assert tile(fig, 0, (1, 5)).tolist() == [[0, 0, 126, 253, 253]]
    assert np.array_equal(picture(fig)[1][:254], sample(LIGHT.signed, np.linspace(0, 1, 254)))


@pytest.mark.parametrize("each", [False, True])
def test_masked_and_not_finite_cells_are_grey(each):
    maps = rng.uniform(size=(2, 3, 5))
    maps[1, 2, 0] = np.nan
    hidden = ~np.tri(3, 5, dtype=bool)
    fig = draw(maps, hidden=np.stack([hidden, hidden]) if each else hidden)
    assert np.array_equal(tile(fig, 0, (3, 5)) == MASKED, hidden)
    assert np.array_equal(tile(fig, 1, (3, 5)) == MASKED, hidden | np.isnan(maps[1]))


def test_between_tiles_and_where_no_tile_is_the_picture_is_clear():
    fig = draw(np.zeros((4, 8, 8)))
    entries, _, _ = picture(fig)
    half = entries[entries.shape[0] // 2 :]
    assert (half[-64:, -64:] == BETWEEN).all()
    assert (entries[0] == BETWEEN).sum() == 2 * round(0.08 * 64)


def test_pooling_is_the_block_maximum_of_what_is_visible():
    values, visible = rng.normal(size=(13, 5)), rng.uniform(size=(13, 5)) > 0.4
    visible[3:6, 0:2] = False
    maxima, seen = pooled(values, visible, 5)
    assert maxima.shape == (5, 5) and maxima.dtype == np.float32
    for r in range(5):
        for c in range(5):
            block = values[3 * r : 3 * r + 3, c][visible[3 * r : 3 * r + 3, c]]
            assert seen[r, c] == bool(block.size)
            assert maxima[r, c] == (np.float32(block.max()) if block.size else 0)


def test_large_maps_are_pooled_and_a_single_strong_cell_survives():
    maps = np.zeros((2, 300, 200), dtype=np.float32)
    maps[1, 123, 45] = 1.0
    fig = draw(maps, columns=2)
    entries, _, _ = picture(fig)
    assert entries.shape[0] <= 96
    assert (entries == 253).sum() == 1
    assert len(fig.to_json()) < 6000


def test_small_maps_are_scaled_by_whole_pixels():
    entries, _, _ = picture(draw(rng.uniform(size=(1, 3, 5)), columns=1))
    assert entries.shape == (3 * 12, 5 * 12)
    assert np.array_equal(entries, entries[::12, ::12].repeat(12, axis=0).repeat(12, axis=1))


def test_a_click_finds_its_tile():
    fig = draw(np.zeros((7, 2, 2)))
    layer = fig.to_dict()["data"][1]
    xs, ys = (np.frombuffer(base64.b64decode(layer[a]["bdata"]), layer[a]["dtype"]) for a in "xy")
    for number, (x, y) in enumerate(zip(xs, ys)):
        assert (x, y) == (number % 3, number // 3)
        point = {"curve_number": 1, "point_number": number, "point_index": number, "x": int(x), "y": int(y)}
        assert clicked_tile([point]) == number
    assert clicked_tile([]) is None
    assert clicked_tile([{"curve_number": 1}]) is None
    assert clicked_tile([{"curve_number": 0, "point_index": 3}]) is None


def test_the_selected_tile_is_framed():
    shapes = draw(np.zeros((5, 2, 2)), selected=4).to_dict()["layout"]["shapes"]
    assert len(shapes) == 2
    assert shapes[1]["line"]["color"] == LIGHT.accent
    assert shapes[1]["path"].startswith("M0.5") and ",0.5" in shapes[1]["path"]
    assert shapes[0]["path"].count("M") == 5
    assert len(draw(np.zeros((5, 2, 2)), selected=5).layout.shapes) == 1


def test_names_are_escaped_and_hover_names_the_largest_weight():
    maps = np.zeros((2, 2, 2))
    maps[0, 1, 0] = 0.756
    maps[1] = np.nan
    fig = draw(
        maps,
        tile_names=["<b>", "b"],
        columns=2,
        row_names=["<s>"],
        column_names=["head 0", "&"],
        words={"largest": "max"},
    )
    assert fig.data[1].customdata.tolist() == [["&lt;b&gt;", "max 0.756"], ["b", ""]]
    assert draw(maps).data[1].customdata[0].tolist() == ["head 0", "largest 0.756"]
    assert fig.layout.yaxis.ticktext == ("&lt;s&gt;",)
    assert fig.layout.xaxis.ticktext == ("head 0", "&amp;")


def test_twelve_heads_of_64_tokens_are_a_small_message():
    tokens = np.arange(64)
    maps = np.stack([np.exp(-np.abs(tokens[:, None] - tokens - shift)) for shift in range(12)])
    maps /= maps.sum(-1, keepdims=True)
    fig = draw(maps, columns=6, hidden=~np.tri(64, dtype=bool))
    assert len(fig.to_json()) < 20_000
    assert len(fig.data) == 2
    go.Figure(json.loads(fig.to_json()))


def test_the_height_has_no_empty_room():
    two, four = (draw(np.zeros((n, 9, 9)), columns=6, width=960).layout.height for n in (12, 24))
    assert 1.9 < (four - 8) / (two - 8) < 2.1


def test_what_cannot_be_is_refused_in_one_sentence():
    with pytest.raises(
        AttentionError, match=r"maps must have the axes \(tiles, rows, columns\), not the shape \(2, 3\)"
    ):
        draw(np.zeros((2, 3)))
    with pytest.raises(AttentionError, match="1 tile names for 2 tiles"):
        draw(np.zeros((2, 3, 3)), tile_names=["a"])
    with pytest.raises(AttentionError, match=r"columns \(0\) must be at least 1"):
        draw(np.zeros((2, 3, 3)), columns=0)
    with pytest.raises(AttentionError, match=r"hidden has the shape \(3, 2\), the values \(2, 2, 3\)"):
        draw(np.zeros((2, 2, 3)), hidden=np.zeros((3, 2), bool))


def test_titled_tiles_print_every_name_over_its_own_tile():
    maps = np.random.default_rng(0).random((5, 7, 11))
    names = [f"head <{h}>" for h in range(5)]
    plain = tiles_figure(maps, tile_names=names, columns=3, palette=palette())
    figure = tiles_figure(maps, tile_names=names, columns=3, palette=palette(), titled=True)
    titles = figure.data[2]
    assert list(titles.text) == [f"head &lt;{h}&gt;" for h in range(5)]
    # At the upper left corner of each tile, inside its own place of the grid.
    assert [round(float(x)) for x in titles.x] == [0, 1, 2, 0, 1]
    assert [round(float(y)) for y in titles.y] == [0, 0, 0, 1, 1]
    assert figure.layout.height == plain.layout.height + 3 * 18
    assert len(plain.data) == 2
