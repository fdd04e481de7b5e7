"""One large map as a picture: exact blocks, its own axes, a window, clicks by region."""

import base64
import io
import json

import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image

from attention_core.errors import AttentionError
from attention_core.figures._pixels import MASKED
from attention_core.figures.overview import clicked_place, overview_figure
from attention_core.figures.palette import palette

LIGHT = palette("light")
rng = np.random.default_rng(3)


def entries(fig):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(fig.data[0].source.split(",")[1]))))


def array(packed):
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"])


def test_a_pixel_is_the_maximum_of_the_cells_that_it_covers():
    values = rng.uniform(size=(600, 1000))
    fig = overview_figure(values, palette=LIGHT)
    pixels, trace = entries(fig), fig.data[0]
    assert pixels.shape == (200, 250)

    def covered(first, step, number):
        middle = first + number * step
        return slice(round(middle - step / 2 + 0.5), round(middle + step / 2 + 0.5))

    for r, c in [(0, 0), (7, 100), (199, 249)]:
        block = values[covered(trace.y0, trace.dy, r), covered(trace.x0, trace.dx, c)]
        assert block.shape == (3, 4)
        assert pixels[r, c] == np.rint(253 * block.max())
    assert list(fig.layout.yaxis.range) == [599.5, -0.5] and list(fig.layout.xaxis.range) == [-0.5, 999.5]


def test_a_small_map_is_not_pooled():
    values = rng.uniform(size=(5, 7))
    assert np.array_equal(entries(overview_figure(values, palette=LIGHT)), np.rint(253 * values))


def test_masked_blocks_are_grey():
    hidden = ~np.tri(512, dtype=bool)
    pixels = entries(overview_figure(np.full((512, 512), 0.5), palette=LIGHT, hidden=hidden))
    assert np.array_equal(pixels == MASKED, ~np.tri(256, dtype=bool))


def test_a_map_of_1024_tokens_is_at_most_120_kb():
    fig = overview_figure(rng.uniform(size=(1024, 1024)), palette=LIGHT)
    assert len(fig.to_json()) < 120_000
    go.Figure(json.loads(fig.to_json()))


def test_clicks_fall_into_the_region_under_them():
    values = rng.uniform(size=(70, 100))
    layer = overview_figure(values, palette=LIGHT).to_dict()["data"][1]
    xs, ys = array(layer["x"]), array(layer["y"])
    assert len(xs) == 24 * 20
    for number in (0, 31, 479):
        r, c = divmod(number, 20)
        block = values[3 * r : 3 * r + 3, 5 * c : 5 * c + 5]
        place = (3 * r + (block.shape[0] - 1) // 2, 5 * c + 2)
        assert clicked_place([{"x": int(xs[number]), "y": int(ys[number])}]) == place
        assert layer["customdata"][number][0] == f"largest {block.max():.3g}"
    assert layer["customdata"][31].tolist()[1:] == ["query 3–5", "key 55–59"]
    assert clicked_place([]) is None and clicked_place([{"x": None, "y": 2}]) is None


def test_the_window_is_framed():
    shapes = overview_figure(np.zeros((70, 100)), palette=LIGHT, window=(10, 20, 30, 45)).to_dict()["layout"]["shapes"]
    assert [shapes[1][name] for name in ("y0", "y1", "x0", "x1")] == [9.5, 19.5, 29.5, 44.5]


def test_what_is_no_map_is_refused():
    with pytest.raises(AttentionError, match=r"not the shape \(2, 3, 4\)"):
        overview_figure(np.zeros((2, 3, 4)), palette=LIGHT)
