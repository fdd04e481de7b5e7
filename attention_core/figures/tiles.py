"""Many maps as one small picture: every head of a layer, or every layer and head of a model.

One chart for each head costs the browser 40 ms and more; here all maps are one palette PNG in one ``go.Image``, with one
near-invisible marker a tile that takes the clicks. Masked cells and the space between tiles are two transparent palette
entries, so that one picture fits the light and the dark page.
"""

import html
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..errors import AttentionError
from ._base import AXIS, INVISIBLE, base_layout
from ._pixels import BETWEEN, checked_hidden, encoded, levels, pooled, visible_cells
from .labels import text_width
from .palette import Palette
from .panels import three

LARGEST_SIDE = 96
"""Pixels of a tile's longer side; larger maps are pooled by block maximum. Where tiles are drawn small, 64."""
TITLE_ROOM = 18
"""px over each tile for its name, where names are printed."""
WORDS = {"largest": "largest"}


def tiles_figure(
    maps: np.ndarray,
    *,
    tile_names: Sequence[str],
    columns: int,
    palette: Palette,
    row_names: Sequence[str] | None = None,
    column_names: Sequence[str] | None = None,
    titled: bool = False,
    limits: tuple[float, float] = (0.0, 1.0),
    hidden: np.ndarray | None = None,
    selected: int | None = None,
    width: int = 960,
    words: Mapping[str, str] | None = None,
) -> go.Figure:
    """All maps as tiles of one picture.

    Args:
        maps: (tiles, rows, columns), e.g. weights of shape (heads, query_len, key_len), probabilities in [0, 1].
        tile_names: one name a tile, shown on hover ("layer 0, head 3").
        columns: tiles in a row of the picture.
        palette: the colours; maps are coloured by its ``weights``, or by ``signed`` where the lower limit is below 0.
        row_names, column_names: names at the left of rows and over columns of tiles.
        titled: print each tile's name over it; for tiles that are no grid of named rows and columns.
        limits: values at the two ends of the colours; what lies outside is drawn as the end.
        hidden: bool, (rows, columns) or (tiles, rows, columns), True where masked.
        selected: the tile to frame.
        width: px that the figure will about have; the height follows from it.
        words: replaces any of :data:`WORDS`.

    Raises:
        AttentionError: maps that are not three-dimensional, names or masks that do not match them.
    """
    maps = np.asarray(maps)
    if maps.ndim != 3 or 0 in maps.shape:
        raise AttentionError("maps must have the axes (tiles, rows, columns), not the shape {shape}", shape=maps.shape)
    if len(tile_names) != len(maps):
        raise AttentionError("{names} tile names for {tiles} tiles", names=len(tile_names), tiles=len(maps))
    if columns < 1:
        raise AttentionError("columns ({columns}) must be at least 1", columns=columns)
    words = {**WORDS, **(words or {})}
    hidden = checked_hidden(hidden, maps.shape, maps.shape, maps.shape[1:])
    left = 12 + max((text_width(name, 11) for name in row_names or ()), default=0) if row_names else 4
    top = 22 if column_names else 4
    tile_width = min(180.0, (width - left - 4) / columns)
    tiles, peaks = tile_pixels(maps, hidden, limits, 64 if tile_width <= 72 else LARGEST_SIDE)
    lines = -(-len(maps) // columns)
    tall, wide = tiles.shape[1:]

    tile_height = min(max(tile_width * tall / wide, 40.0), 220.0)
    room = round(TITLE_ROOM * tall / tile_height) if titled else 0
    tile_height += TITLE_ROOM if titled else 0
    top += TITLE_ROOM if titled else 0
    mosaic, gap = arrange(tiles, columns, room)
    used = min(1.0, tile_width * columns / max(1.0, width - left - 4))
    pitch_x, pitch_y = wide + gap, tall + gap + room
    half_x, half_y = wide / pitch_x / 2, tall / pitch_y / 2

    number = np.arange(len(maps))
    names = [
        [html.escape(str(name), quote=False), f"{words['largest']} {three(peak)}" if np.isfinite(peak) else ""]
        for name, peak in zip(tile_names, peaks)
    ]
    picture = {
        "type": "image",
        "source": encoded(mosaic, palette.signed if limits[0] < 0 else palette.weights, palette),
        "x0": -half_x + 0.5 / pitch_x,
        "dx": 1 / pitch_x,
        "y0": -half_y + 0.5 / pitch_y,
        "dy": 1 / pitch_y,
        "hoverinfo": "skip",
    }
    clicks = {
        "type": "scatter",
        "mode": "markers",
        "x": (number % columns).astype(np.uint16),
        "y": (number // columns).astype(np.uint16),
        "customdata": np.array(names),
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    } | INVISIBLE
    font = {"size": 11, "color": palette.muted}
    titles = {
        "type": "scatter",
        "mode": "text",
        "x": number % columns - half_x,
        "y": number // columns - half_y,
        "text": [html.escape(str(name), quote=False) for name in tile_names],
        "textposition": "top right",
        "textfont": font,
        "hoverinfo": "skip",
        "cliponaxis": False,
    }
    frames = [_frames(number, columns, half_x, half_y, palette.hairline, 1)]
    if selected is not None and 0 <= selected < len(maps):
        frames.append(_frames([selected], columns, half_x, half_y, palette.accent, 2))
    layout = base_layout(palette, "tiles") | {
        "height": round(top + tile_height * lines + 4),
        "margin": {"l": round(left), "r": 4, "t": top, "b": 4, "pad": 0},
        "shapes": frames,
        "xaxis": {
            **AXIS,
            "domain": [0.0, used],
            "range": [-half_x - 0.01, columns - 1 + half_x + 0.01],
            "side": "top",
            "tickfont": font,
            **_named(column_names, columns, max(1, int(60 / tile_width + 0.5))),
        },
        "yaxis": {
            **AXIS,
            "range": [lines - 1 + half_y + 0.01, -half_y - 0.01],
            "scaleanchor": False,
            "tickfont": font,
            **_named(row_names, lines, 1),
        },
    }
    return go.Figure({"data": [picture, clicks, *([titles] if titled else [])], "layout": layout}, _validate=False)


def clicked_tile(points: Sequence[Mapping]) -> int | None:
    """The number of the clicked tile, from a selection's points (``st.plotly_chart``); None if none was."""
    for point in points:
        number = point.get("point_index", point.get("point_number"))
        if isinstance(number, int) and number >= 0 and point.get("curve_number", 1) == 1:
            return number
    return None


def tile_pixels(
    maps: np.ndarray, hidden: np.ndarray | None, limits: tuple[float, float], largest: int = LARGEST_SIDE
) -> tuple[np.ndarray, np.ndarray]:
    """Maps as palette entries, pooled where large, whole pixels a cell where small.

    Args:
        maps: (tiles, rows, columns).
        hidden: bool, (rows, columns) or (tiles, rows, columns), or None.
        limits: values at the ends of the colours.
        largest: the most pixels of a tile's side.

    Returns:
        uint8 (tiles, tall, wide), and the largest visible value of each tile, (tiles,), -inf where there is none.
    """
    tiles, peaks = [], []
    for number, values in enumerate(maps):
        mask = hidden[number] if hidden is not None and hidden.ndim == 3 else hidden
        maxima, seen = pooled(values, visible_cells(values, mask), largest)
        tiles.append(levels(maxima, seen, limits))
        peaks.append(maxima[seen].max() if seen.any() else -np.inf)
    stacked = np.stack(tiles)
    times = max(1, 64 // max(stacked.shape[1:]))
    return stacked.repeat(times, axis=1).repeat(times, axis=2), np.array(peaks)


def arrange(tiles: np.ndarray, columns: int, room: int = 0) -> tuple[np.ndarray, int]:
    """Tiles side by side in one picture, ``columns`` in a row: uint8 (height, width), and the px between tiles.

    ``room`` is what stays free between two rows beyond that, in px of the picture.
    """
    count, tall, wide = tiles.shape
    lines = -(-count // columns)
    gap = max(2, round(0.08 * min(tall, wide)))
    pitch = tall + gap + room
    mosaic = np.full((lines * pitch - gap - room, columns * (wide + gap) - gap), BETWEEN, dtype=np.uint8)
    for number, tile in enumerate(tiles):
        y, x = number // columns * pitch, number % columns * (wide + gap)
        mosaic[y : y + tall, x : x + wide] = tile
    return mosaic, gap


def _named(names: Sequence[str] | None, count: int, step: int) -> dict:
    if names is None:
        return {"showticklabels": False}
    places = list(range(0, min(count, len(names)), step))
    return {"tickvals": places, "ticktext": [html.escape(str(names[place]), quote=False) for place in places]}


def _frames(numbers, columns: int, half_x: float, half_y: float, colour: str, width: int) -> dict:
    """Rectangles around tiles, all in one path."""
    path = "".join(
        f"M{x - half_x:.4f},{y - half_y:.4f}H{x + half_x:.4f}V{y + half_y:.4f}H{x - half_x:.4f}Z"
        for y, x in (divmod(int(number), columns) for number in numbers)
    )
    return {"type": "path", "path": path, "xref": "x", "yref": "y", "line": {"color": colour, "width": width}}
