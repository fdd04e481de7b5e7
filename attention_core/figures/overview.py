"""One map too large for cells: pooled to a picture, with the window whose exact numbers are shown beside it."""

import html
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..errors import AttentionError
from ._base import AXIS, INVISIBLE, NOTE, base_layout
from ._pixels import block_size, checked_hidden, encoded, levels, pooled, visible_cells
from .labels import positions
from .palette import Palette
from .panels import three

LARGEST = 256
"""Pixels of the picture's longer side; a larger map is pooled by block maximum."""
REGIONS = 24
"""The picture is clicked in at most this many regions along each axis."""
WORDS = {"row": "query", "column": "key", "largest": "largest", "masked": "masked"}


def overview_figure(
    values: np.ndarray,
    *,
    palette: Palette,
    limits: tuple[float, float] = (0.0, 1.0),
    hidden: np.ndarray | None = None,
    window: tuple[int, int, int, int] | None = None,
    width: int = 480,
    words: Mapping[str, str] | None = None,
) -> go.Figure:
    """A whole map as one picture, its axes counting rows and columns of the map itself.

    A pixel is the maximum of its block: ceil(count / 256) rows by as many columns, so that a single strong cell among
    a thousand tokens is still seen.

    Args:
        values: (rows, columns), e.g. (query_len, key_len), any size.
        palette: the colours; ``signed`` where the lower limit is below 0, else ``weights``.
        limits: values at the ends of the colours.
        hidden: bool (rows, columns), True where masked.
        window: ``(first row, end row, first column, end column)``, ends exclusive: framed.
        width: px that the figure will about have; the height follows from it.
        words: replaces any of :data:`WORDS`.

    Raises:
        AttentionError: values that are not a map, or a mask that does not match them.
    """
    values = np.asarray(values)
    if values.ndim != 2 or 0 in values.shape:
        raise AttentionError("a map must have the axes (rows, columns), not the shape {shape}", shape=values.shape)
    words = {**WORDS, **(words or {})}
    rows, columns = values.shape
    visible = visible_cells(values, checked_hidden(hidden, values.shape, values.shape))
    tall, wide = block_size(rows, LARGEST), block_size(columns, LARGEST)
    picture = {
        "type": "image",
        "source": encoded(
            levels(*pooled(values, visible, LARGEST), limits),
            palette.signed if limits[0] < 0 else palette.weights,
            palette,
        ),
        "x0": (wide - 1) / 2,
        "dx": wide,
        "y0": (tall - 1) / 2,
        "dy": tall,
        "hoverinfo": "skip",
    }
    shapes = [_frame(0, rows, 0, columns, palette.hairline, 1)]
    if window is not None:
        shapes.append(_frame(*window, palette.accent, 2))
    left = 44
    inner = max(40, width - left - 8)
    font = {"size": 11, "color": palette.muted}
    across, down = positions(columns, 7), positions(rows, 9)
    names = [html.escape(words[name], quote=False) for name in ("row", "column")]
    layout = base_layout(palette, "overview") | {
        "height": round(min(max(inner * rows / columns, 80), 620)) + 48,
        "margin": {"l": left, "r": 8, "t": 40, "b": 8, "pad": 0},
        "shapes": shapes,
        "annotations": [
            {
                "text": f"{names[0]} ↓   {names[1]} →",
                **NOTE,
                "x": 0,
                "y": 1,
                "xanchor": "left",
                "yanchor": "bottom",
                "yshift": 18,
                "font": font,
            }
        ],
        "xaxis": {
            **AXIS,
            "range": [-0.5, columns - 0.5],
            "side": "top",
            "tickvals": across,
            "ticktext": [str(place) for place in across],
            "tickfont": font,
        },
        "yaxis": {
            **AXIS,
            "range": [rows - 0.5, -0.5],
            "scaleanchor": False,
            "tickvals": down,
            "ticktext": [str(place) for place in down],
            "tickfont": font,
        },
    }
    return go.Figure({"data": [picture, _regions(values, visible, words)], "layout": layout}, _validate=False)


def clicked_place(points: Sequence[Mapping]) -> tuple[int, int] | None:
    """Row and column in the middle of the clicked region, from a selection's points; None if none was clicked."""
    for point in points:
        x, y = point.get("x"), point.get("y")
        if isinstance(x, int | float) and isinstance(y, int | float) and x >= 0 and y >= 0:
            return int(y), int(x)
    return None


def _regions(values: np.ndarray, visible: np.ndarray, words: Mapping[str, str]) -> dict:
    """One marker a region, which takes the clicks around it and names what is in it."""
    maxima, seen = pooled(values, visible, REGIONS)
    spans = [_spans(count, block_size(count, REGIONS)) for count in values.shape]
    texts = [
        [
            f"{words['largest']} {three(maxima[r, c])}" if seen[r, c] else words["masked"],
            f"{words['row']} {down[1]}",
            f"{words['column']} {across[1]}",
        ]
        for r, down in enumerate(spans[0])
        for c, across in enumerate(spans[1])
    ]
    middles = [np.array([middle for middle, _ in span], dtype=np.uint32) for span in spans]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": np.tile(middles[1], len(middles[0])),
        "y": np.repeat(middles[0], len(middles[1])),
        "customdata": np.array([[html.escape(text, quote=False) for text in three_lines] for three_lines in texts]),
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
    } | INVISIBLE


def _spans(count: int, block: int) -> list[tuple[int, str]]:
    """For each block: its middle position, and its positions in words ("32–63")."""
    ends = [(first, min(first + block, count) - 1) for first in range(0, count, block)]
    return [((a + b) // 2, f"{a}–{b}" if b > a else str(a)) for a, b in ends]


def _frame(first_row: int, end_row: int, first_column: int, end_column: int, colour: str, width: int) -> dict:
    return {
        "type": "rect",
        "xref": "x",
        "yref": "y",
        "x0": first_column - 0.5,
        "x1": end_column - 0.5,
        "y0": first_row - 0.5,
        "y1": end_row - 0.5,
        "line": {"color": colour, "width": width},
        "fillcolor": "rgba(0,0,0,0)",
    }
