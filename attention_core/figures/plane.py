"""Heads as points of a plane: alike ones stand close together."""

import html
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..errors import AttentionError
from ._base import AXIS, base_layout, key_line
from ._colour_bar import colour_bar
from .labels import shown, text_width
from .palette import Palette
from .panels import three

SYMBOLS = {"circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲"}
"""The shape of each group's points, and the letter that stands for it."""
LABEL_SIZE = 11
"""px of a point's label."""


def plane_figure(
    points: np.ndarray,
    names: Sequence[str],
    groups: Sequence[str],
    *,
    palette: Palette,
    values: Sequence[float] | np.ndarray | None = None,
    measure: str = "",
    signed: bool = False,
    selected: int | None = None,
    height: int = 460,
    width: int = 720,
) -> go.Figure:
    """One point an item, equal px for equal distances; what an axis means is not said, since it means nothing.

    Points of different groups have different shapes, and colours where no values are given. A name is printed where it
    does not lie over another point's; it is always in the hover.

    Args:
        points: (items, 2); an item that is not finite is left out.
        names: one an item ("2.5" for layer 2, head 5).
        groups: one an item (its kind); at most four different ones.
        palette: the colours.
        values: one number an item, which colours the points instead.
        measure: what the number is, with its unit; written along its colour bar.
        signed: colours of the values run from -max over 0 to max, else from the smallest to the largest.
        selected: the item to mark.
        height: px of the figure.
        width: px that the figure will about have; which names fit follows from it.

    Raises:
        AttentionError: not two coordinates, a name, a group and (where given) a value an item, or more than four groups.
    """
    points = np.asarray(points, dtype=np.float64)
    count = len(names)
    if points.shape != (count, 2) or len(groups) != count or (values is not None and len(values) != count):
        raise AttentionError(
            "points must have the shape (items, 2), with a name, a group and a value an item: got {shape}, {names} names, "
            "{groups} groups, {values} values",
            shape=points.shape,
            names=count,
            groups=len(groups),
            values="no" if values is None else len(values),
        )
    kinds = list(dict.fromkeys(groups))
    if len(kinds) > len(SYMBOLS):
        raise AttentionError("a plane shows at most {most} groups, not {groups}", most=len(SYMBOLS), groups=len(kinds))
    there = np.isfinite(points).all(1)
    colours = dict(zip(kinds, (palette.query, palette.key, palette.value, palette.accent)))
    low, high = _limits(values, signed)
    x_range, y_range, per_px = _ranges(points[there], width - (70 if values is not None else 16), height - 44)
    printed = _printed(points, there, names, selected, per_px)
    traces = []
    for kind, symbol in zip(kinds, SYMBOLS):
        chosen = np.array([n for n in range(count) if groups[n] == kind and there[n]], dtype=int)
        colour = colours[kind] if values is None else np.asarray(values, dtype=np.float64)[chosen]
        marker = {"symbol": symbol, "size": 11, "opacity": 0.9, "color": colour}
        marker["line"] = {"width": 1, "color": palette.page if values is None else palette.muted}
        if values is not None:
            marker |= {"colorscale": palette.signed if signed else palette.weights, "cmin": low, "cmax": high}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "x": points[chosen, 0],
                "y": points[chosen, 1],
                "marker": marker,
                "text": [
                    html.escape(str(names[n]), quote=False) if n in printed and n != selected else "" for n in chosen
                ],
                "textposition": "top center",
                "textfont": {"size": LABEL_SIZE, "color": palette.muted},
                "cliponaxis": False,
                "customdata": np.array([_hover(n, names[n], kind, values, measure) for n in chosen]).reshape(-1, 4),
                "hovertemplate": "<b>%{customdata[1]}</b> %{customdata[2]}<br>%{customdata[3]}<extra></extra>",
                "selected": {"marker": {"opacity": 0.9}},
                "unselected": {"marker": {"opacity": 0.9}},
            }
        )
    if selected is not None and 0 <= selected < count and there[selected]:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "x": points[[selected], 0],
                "y": points[[selected], 1],
                "marker": {"symbol": "circle-open", "size": 20, "color": palette.accent, "line": {"width": 2}},
                "text": [f"<b>{html.escape(str(names[selected]), quote=False)}</b>"],
                "textposition": "top center",
                "textfont": {"size": LABEL_SIZE, "color": palette.text},
                "cliponaxis": False,
                "hoverinfo": "skip",
            }
        )
    letters = [SYMBOLS[symbol] for _, symbol in zip(kinds, SYMBOLS)]
    named = {kind: colours[kind] if values is None else palette.muted for kind in kinds}
    layout = base_layout(palette, "plane", background=palette.panel) | {
        "height": int(height),
        "margin": {"l": 8, "r": 8 if values is None else 62, "t": 28, "b": 16, "pad": 0},
        "annotations": [key_line(named, palette, letters)],
        "xaxis": {**AXIS, "range": x_range, "showticklabels": False, "constrain": "domain"},
        "yaxis": {**AXIS, "range": y_range, "showticklabels": False, "scaleanchor": "x", "constrain": "domain"},
    }
    if values is not None:
        image, notes = colour_bar(
            palette.signed if signed else palette.weights,
            (f"{low:.2g}".replace("-", "−"), f"{high:.2g}".replace("-", "−")),
            x=1,
            y=(0, 1),
            width=width - 70,
            height=height - 44,
            palette=palette,
            title=measure,
        )
        layout["images"] = [image]
        layout["annotations"] += notes
    return go.Figure({"data": traces, "layout": layout}, _validate=False)


def clicked_item(points: Sequence[Mapping]) -> int | None:
    """The number of the item that was clicked, from a selection's points; None if none was."""
    for point in points:
        data = point.get("customdata")
        try:
            # A list, or (as the browser sends an array) a mapping from "0" on.
            return int(data["0"] if isinstance(data, Mapping) else data[0])
        except (KeyError, IndexError, TypeError, ValueError):
            continue
    return None


def _hover(number: int, name: str, kind: str, values, measure: str) -> list[str]:
    line = "" if values is None else f"{measure} {three(values[number])}".strip()
    return [str(number), *(html.escape(shown(text, 60), quote=False) if text else "" for text in (name, kind, line))]


def _limits(values, signed: bool) -> tuple[float, float]:
    finite = np.asarray([] if values is None else values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if signed:
        high = max(abs(low), abs(high))
        low = -high
    return (low, high) if high > low else (low - 1.0, low + 1.0)


def _ranges(points: np.ndarray, width: float, height: float) -> tuple[list[float], list[float], float]:
    """Axis ranges that hold all points and their names, and how far one px reaches."""
    middle, span = np.zeros(2), np.zeros(2)
    if len(points):
        middle, span = (points.max(0) + points.min(0)) / 2, points.max(0) - points.min(0)
    # 40 px at every side for a name; equal px on both axes, so that the axis that is short of room decides.
    per_px = max(span[0] / max(width - 80, 40), span[1] / max(height - 80, 40)) or 1.0
    half = np.array([width, height]) / 2 * per_px
    x, y = (([float(m - h), float(m + h)]) for m, h in zip(middle, half))
    return x, y, float(per_px)


def _printed(
    points: np.ndarray, there: np.ndarray, names: Sequence[str], selected: int | None, per_px: float
) -> set[int]:
    """Items whose name lies over no other printed name and no point; the selected one first."""
    order = [n for n in ([selected] if selected is not None else []) if 0 <= n < len(names)]
    order += [n for n in range(len(names)) if n not in order]
    places = np.where(there[:, None], points, np.nan) / per_px
    boxes, printed = [], set()
    for number in order:
        if not there[number]:
            continue
        half = text_width(str(names[number]), LABEL_SIZE) / 2
        x, y = places[number]
        left, right, low, high = x - half, x + half, y + 6, y + 6 + LABEL_SIZE + 3
        over = [left < r and right > a and low < h and high > b for a, r, b, h in boxes]
        inside = (np.abs(places[:, 0] - x) < half + 5) & (places[:, 1] > low - 4) & (places[:, 1] < high + 5)
        if number == selected or not (any(over) or inside.any()):
            boxes.append((left, right, low, high))
            printed.add(number)
    return printed
