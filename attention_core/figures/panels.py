"""Heatmaps of one figure: the stages of a head side by side, to the letter and to the number.

Rows are queries from the top, columns are keys. Positions are integers and tokens are tick texts, so that repeated and
numeric tokens keep their own rows. Masked cells are gaps. A near-invisible marker in each cell takes the clicks, since
a heatmap cannot be selected.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from math import floor, log10

import numpy as np
import plotly.graph_objects as go

from ..errors import AttentionError
from ._base import AXIS, INVISIBLE, NOTE, base_layout
from ._colour_bar import colour_bar
from ._places import LABEL_SIZE, Place, place
from .labels import positions, shown, text_width, thinned
from .palette import Palette
from .panel import Panel, drawn, ranges

WORDS = {"masked": "masked", "not_finite": "not a number", "row": "row", "column": "column"}
"""The words of a figure; pages pass translated ones."""
CLICKABLE = 64 * 64
"""Cells of a panel up to which it has a click layer."""
PRINTED = 100
"""Cells of a panel up to which numbers are printed in it."""
Grid = Sequence[Sequence["Panel | None"]]
Selection = tuple[str, int | None, int | None] | Mapping[str, tuple[int | None, int | None]] | None


def panels_figure(
    grid: Grid,
    *,
    palette: Palette,
    selected: Selection = None,
    clickable: bool = True,
    numbers: bool | None = None,
    height: int | None = None,
    width: int = 960,
    words: Mapping[str, str] | None = None,
) -> go.Figure:
    """All panels of a grid in one figure.

    Every value is sent (4 bytes and a third a cell); a map of more than about 256 tokens is for
    :func:`~attention_core.figures.overview.overview_figure`, with a window of it here.

    Args:
        grid: rows of panels; None leaves a place empty. Panels with the row labels of their left neighbour share them.
        palette: the colours.
        selected: ``(key, row, column)``, or for each key its ``(row, column)``; None for either marks a whole row or
            column. The cell is outlined, its labels are strong.
        clickable: give panels of up to 64 x 64 cells a click layer, read by :func:`clicked_cell`.
        numbers: print numbers in cells; None prints where a panel has at most 100 cells and they fit.
        height: px of the figure; None follows the number of cells. The same shapes always give the same height.
        width: px that the figure will about have; only how many labels fit, and the height, follow from it.
        words: replaces any of :data:`WORDS`.

    Raises:
        AttentionError: two panels with one key.
    """
    words = {**WORDS, **(words or {})}
    panels = _panels(grid)
    keys = [panel.key for panel in panels.values()]
    if len(set(keys)) < len(keys):
        raise AttentionError("panel keys must differ: {keys}", keys=", ".join(keys))
    marks = _marks(selected)
    cells = {at: drawn(panel) for at, panel in panels.items()}
    limits = ranges(panels, cells)
    bars = _bars(grid)
    heads = {r: max((_head_lines(p) for p in line if p is not None), default=0) for r, line in enumerate(grid)}
    places = place(grid, bars, heads, width, height)

    layout = base_layout(palette, "panels", clickable=clickable, background=palette.masked) | {
        "height": places.height,
        "margin": places.margin,
        "shapes": [_grid_lines(panels, places.at, palette), _frames(places.at.values(), palette)],
        "annotations": [],
        "images": [],
    }
    maps, clicks = [], []
    for number, (at, panel) in enumerate(panels.items()):
        spot, axis = places.at[at], str(number + 1) if number else ""
        mark = marks.get(panel.key)
        layout[f"xaxis{axis}"], layout[f"yaxis{axis}"] = _axes(panel, spot, axis, mark, palette, clickable)
        maps.append(_heatmap(panel, axis, cells[at], limits[at], palette, _printed(panel, spot, numbers)))
        if panel.title or panel.caption or panel.row_title or panel.column_title:
            layout["annotations"].append(_head(panel, spot, palette))
        if at in bars:
            image, ends = _bar(panel, spot, limits[at], palette, places.width)
            layout["images"].append(image)
            layout["annotations"].extend(ends)
        if clickable and panel.values.size <= CLICKABLE:
            clicks.append(_click_layer(panel, axis, cells[at], words))
        if panel.padded:
            layout["shapes"].append(_veil(panel, axis, palette))
        if mark is not None:
            layout["shapes"].extend(_outline(panel, axis, mark, palette))
    # The figure is built from known-good parts; a test validates it. Validating here would cost 15 ms a figure.
    return go.Figure({"data": maps + clicks, "layout": layout}, _validate=False)


def clicked_cell(grid: Grid, points: Sequence[Mapping]) -> tuple[str, int, int] | None:
    """The cell that was clicked, from a selection's points.

    Args:
        grid: the grid that the figure was made of.
        points: dicts with ``curve_number``, ``x`` (column) and ``y`` (row), as ``st.plotly_chart`` returns them.

    Returns:
        ``(key, row, column)``, or None: nothing selected, or not a cell of this grid (any more).
    """
    panels = list(_panels(grid).values())
    layers = [panel for panel in panels if panel.values.size <= CLICKABLE]
    for point in points:
        try:
            layer = int(point["curve_number"]) - len(panels)
            row, column = round(point["y"]), round(point["x"])
        except (KeyError, TypeError, ValueError):
            continue
        if 0 <= layer < len(layers):
            rows, columns = layers[layer].values.shape
            if 0 <= row < rows and 0 <= column < columns:
                return layers[layer].key, row, column
    return None


def _panels(grid: Grid) -> dict[tuple[int, int], Panel]:
    return {(r, c): panel for r, line in enumerate(grid) for c, panel in enumerate(line) if panel is not None}


def _marks(selected: Selection) -> dict[str, tuple[int | None, int | None]]:
    if selected is None:
        return {}
    if isinstance(selected, Mapping):
        return {key: cell for key, cell in selected.items() if cell is not None}
    key, row, column = selected
    return {key: (row, column)}


def _bars(grid: Grid) -> set[tuple[int, int]]:
    """Places with a colour bar: each panel without a group, and the last of a group in each row."""
    bars = set()
    for r, line in enumerate(grid):
        last = {}
        for c, panel in enumerate(line):
            if panel is not None:
                last[panel.group if panel.group is not None else (panel.key,)] = (r, c)
        bars.update(last.values())
    return bars


def _axes(panel: Panel, spot: Place, axis: str, mark, palette: Palette, clickable: bool) -> tuple[dict, dict]:
    rows, columns = panel.values.shape
    row, column = mark if mark is not None else (None, None)
    common = {
        **AXIS,
        "fixedrange": clickable and panel.values.size <= CLICKABLE,
        "tickfont": {"size": LABEL_SIZE, "color": palette.muted},
    }
    across = _ticks(panel.column_labels, columns, spot.width, column, palette, upright=panel.column_labels is not None)
    down = _ticks(panel.row_labels, rows, spot.height, row, palette, upright=True)
    x = {
        **common,
        "domain": list(spot.x),
        "anchor": f"y{axis}",
        "range": [-0.5, columns - 0.5],
        "side": "top",
        "tickangle": -90 if panel.column_labels is not None else 0,
        "tickvals": across[0],
        "ticktext": across[1],
    }
    y = {
        **common,
        "domain": list(spot.y),
        "anchor": f"x{axis}",
        "range": [rows - 0.5, -0.5],
        "tickvals": down[0],
        "ticktext": down[1],
        "showticklabels": spot.rows_labelled,
    }
    return x, y


def _ticks(labels, count: int, room: float, strong: int | None, palette: Palette, upright: bool):
    keep = () if strong is None else (strong,)
    if labels is None:
        step = LABEL_SIZE + 2 if upright else 10 + text_width(str(count), LABEL_SIZE)
        places = positions(count, min(room / step, 9), keep)
        texts = [str(spot) for spot in places]
    else:
        places, texts = thinned(labels, room / (LABEL_SIZE + 1), keep)
    if strong is not None and strong in places:
        at = places.index(strong)
        texts[at] = f'<b style="color:{palette.text}">{texts[at]}</b>'
    return places, texts


def _heatmap(panel, axis, cells, limits, palette, printed: bool) -> dict:
    trace = {
        "type": "heatmap",
        "z": cells,
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
        "zmin": limits[0],
        "zmax": limits[1],
        "colorscale": palette.weights if panel.scale == "weights" else palette.signed,
        "hoverinfo": "skip",
        "hoverongaps": False,
        "showscale": False,
    }
    if printed:
        trace["texttemplate"] = _number_format(max(abs(limits[0]), abs(limits[1])))
        trace["textfont"] = {"size": 11}
    return trace


def _number_format(largest: float) -> str:
    """Two decimals, or as many as leave the largest number two digits, up to five."""
    if largest >= 10:
        return "%{z:.3~g}"
    decimals = 2 if largest >= 0.1 else 1 - floor(log10(largest))
    return f"%{{z:.{decimals}f}}" if decimals <= 5 else "%{z:.0e}"


def _printed(panel: Panel, spot: Place, numbers: bool | None) -> bool:
    if numbers is not None:
        return numbers
    rows, columns = panel.values.shape
    fits = spot.width / max(columns, 1) >= 30 and spot.height / max(rows, 1) >= 14
    return panel.values.size <= PRINTED and fits


def _click_layer(panel: Panel, axis: str, cells: np.ndarray, words: Mapping[str, str]) -> dict:
    rows, columns = panel.values.shape
    texts = np.asarray(panel.values).astype("U")
    texts = np.where(np.isfinite(cells), texts, words["not_finite"])
    if panel.hidden is not None:
        texts = np.where(panel.hidden, words["masked"], texts)
    down = _named(panel.row_labels, rows)
    across = _named(panel.column_labels, columns)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": np.tile(np.arange(columns, dtype=np.uint16), rows),
        "y": np.repeat(np.arange(rows, dtype=np.uint16), columns),
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
        "customdata": np.stack([texts.ravel(), np.repeat(down, columns), np.tile(across, rows)], axis=-1),
        "meta": [
            html.escape(panel.row_title or words["row"], quote=False),
            html.escape(panel.column_title or words["column"], quote=False),
        ],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{meta[0]} %{customdata[1]}<br>%{meta[1]} %{customdata[2]}<extra></extra>",
    } | INVISIBLE


def _named(labels, count: int) -> np.ndarray:
    if labels is None:
        return np.array([str(i) for i in range(count)], dtype="U")
    return np.array(
        [f"{i} · {html.escape(shown(label, 60), quote=False)}" for i, label in enumerate(labels)], dtype="U"
    )


def _head_lines(panel: Panel) -> int:
    return bool(panel.title or panel.caption) + bool(panel.row_title or panel.column_title)


def _head(panel: Panel, spot: Place, palette: Palette) -> dict:
    lines = []
    if panel.title or panel.caption:
        title = (
            f'<b style="color:{panel.color or palette.text};font-size:14px">{html.escape(panel.title, quote=False)}</b>'
        )
        lines.append(f"{title}&nbsp; {html.escape(panel.caption, quote=False)}")
    if panel.row_title or panel.column_title:
        names = [
            f"{panel.row_title} ↓" if panel.row_title else "",
            f"{panel.column_title} →" if panel.column_title else "",
        ]
        lines.append(html.escape("   ".join(name for name in names if name), quote=False))
    return {
        **NOTE,
        "text": "<br>".join(lines),
        "x": spot.x[0],
        "y": spot.y[1],
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": spot.label_room + 2,
        "align": "left",
        "font": {"size": LABEL_SIZE, "color": palette.muted},
    }


def _bar(panel: Panel, spot: Place, limits, palette: Palette, width: float) -> tuple[dict, list[dict]]:
    return colour_bar(
        palette.weights if panel.scale == "weights" else palette.signed,
        (three(limits[0]), three(limits[1])),
        x=spot.x[1],
        y=spot.y,
        width=width,
        height=spot.height,
        palette=palette,
        title=panel.bar_title,
    )


def _grid_lines(panels: Mapping, spots: Mapping, palette: Palette) -> dict:
    """The 1 px gaps between cells, of all panels in one path of the page's colour.

    As gaps of the heatmaps they would make plotly paint and encode each map at its full size (2 ms a map).
    """
    parts = []
    for at, panel in panels.items():
        rows, columns = panel.values.shape
        (left, right), (low, high) = spots[at].x, spots[at].y
        if min(spots[at].width / max(columns, 1), spots[at].height / max(rows, 1)) >= 5:
            parts += [f"M{left + (right - left) * c / columns:.5f},{low}V{high}" for c in range(1, columns)]
            parts += [f"M{left},{low + (high - low) * r / rows:.5f}H{right}" for r in range(1, rows)]
    return {
        "type": "path",
        "path": "".join(parts) or "M0,0Z",
        "xref": "paper",
        "yref": "paper",
        "line": {"color": palette.page, "width": 1},
    }


def _frames(spots: Iterable[Place], palette: Palette) -> dict:
    """Hairlines around all panels, in one path: as axis lines they would cost the browser 15 ms more."""
    path = "".join(f"M{s.x[0]},{s.y[0]}H{s.x[1]}V{s.y[1]}H{s.x[0]}Z" for s in spots)
    return {
        "type": "path",
        "path": path,
        "xref": "paper",
        "yref": "paper",
        "line": {"color": palette.hairline, "width": 1},
    }


def _veil(panel: Panel, axis: str, palette: Palette) -> dict:
    """The colour of the page, half clear, over the rows that are padding."""
    rows, columns = panel.values.shape
    return {
        "type": "rect",
        "xref": f"x{axis}",
        "yref": f"y{axis}",
        "x0": -0.5,
        "x1": columns - 0.5,
        "y0": rows - 0.5 - panel.padded,
        "y1": rows - 0.5,
        "line": {"width": 0},
        "fillcolor": palette.page,
        "opacity": 0.65,
    }


def _outline(panel: Panel, axis: str, mark, palette: Palette) -> list[dict]:
    rows, columns = panel.values.shape
    row, column = mark
    if (row is None and column is None) or not (row is None or 0 <= row < rows):
        return []
    if not (column is None or 0 <= column < columns):
        return []
    return [
        {
            "type": "rect",
            "xref": f"x{axis}",
            "yref": f"y{axis}",
            "x0": -0.5 if column is None else column - 0.5,
            "x1": columns - 0.5 if column is None else column + 0.5,
            "y0": -0.5 if row is None else row - 0.5,
            "y1": rows - 0.5 if row is None else row + 0.5,
            "line": {"color": palette.accent, "width": 2},
            "fillcolor": "rgba(0,0,0,0)",
        }
    ]


def three(value: float) -> str:
    """A number at three significant digits, with a true minus."""
    return f"{value:.3g}".replace("-", "−")


__all__ = ["WORDS", "Panel", "clicked_cell", "panels_figure", "three"]
