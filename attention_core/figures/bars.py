"""Horizontal bars: the likeliest next tokens, the numbers of a few heads."""

import html
from collections.abc import Collection, Sequence

import numpy as np
import plotly.graph_objects as go

from ..errors import AttentionError
from ._base import AXIS, base_layout
from .labels import shown, text_width, tick_label
from .palette import Palette
from .panels import three

LONGEST = 24
"""Characters of a bar's name."""


def bars_figure(
    names: Sequence[str],
    values: Sequence[float] | np.ndarray,
    *,
    palette: Palette,
    before: Sequence[float] | np.ndarray | None = None,
    limits: tuple[float, float] | None = (0.0, 1.0),
    selected: Collection[int] = (),
    color: str | None = None,
    height: int | None = None,
) -> go.Figure:
    """One bar a name, the first on top, its number beside it.

    Args:
        names: any texts, also equal ones.
        values: one number a name; what is not finite has no bar.
        palette: the colours.
        before: a second number a name, drawn as a tick across the bar (the value before a change).
        limits: ends of the axis; None fits the values and 0.
        selected: positions drawn in the accent colour; the others are paler. Empty: all alike.
        color: of the bars, else the palette's accent.
        height: px; None gives 24 px a bar.

    Raises:
        AttentionError: not one value a name.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (len(names),) or (before is not None and np.shape(before) != (len(names),)):
        raise AttentionError("{values} values for {names} names", values=values.shape, names=len(names))
    drawn = np.where(np.isfinite(values), values, np.nan)
    ends = _limits(drawn, before) if limits is None else (float(limits[0]), float(limits[1]))
    room = (ends[1] - ends[0]) * 0.14
    spread = [ends[0] - (room if ends[0] < 0 else 0.0), ends[1] + room]
    colour = color or palette.accent
    positions = np.arange(len(names), dtype=np.uint16)
    strong = [not selected or index in selected for index in range(len(names))]
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": drawn.astype(np.float32),
        "y": positions,
        "width": 0.62,
        "marker": {"color": colour, "opacity": np.where(strong, 1.0, 0.45).astype(np.float32), "line": {"width": 0}},
        "customdata": np.array(_hover(names, values, before)),
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    }
    # The number stands beyond the bar and beyond the tick of the value before.
    reach = np.nan_to_num(drawn)
    left_of = reach < 0
    if before is not None:
        earlier = np.nan_to_num(np.asarray(before, dtype=np.float64))
        reach = np.where(left_of, np.minimum(reach, earlier), np.maximum(reach, earlier))
    numbers = {
        "type": "scatter",
        "mode": "text",
        "x": reach.astype(np.float32),
        "y": positions,
        "text": [f" {three(value)} " if np.isfinite(value) else " – " for value in values],
        "textposition": ["middle left" if left else "middle right" for left in left_of],
        "textfont": {"size": 12, "color": palette.text},
        "cliponaxis": False,
        "hoverinfo": "skip",
    }
    traces = [bars, numbers]
    if before is not None:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": np.asarray(before, dtype=np.float32),
                "y": positions,
                "marker": {"symbol": "line-ns-open", "size": 16, "color": palette.text, "line": {"width": 2}},
                "hoverinfo": "skip",
            }
        )
    left = 12 + max((text_width(shown(name, LONGEST), 12) for name in names), default=0)
    layout = base_layout(palette, "bars", clickable=False) | {
        "dragmode": False,
        "height": 16 + 24 * max(1, len(names)) if height is None else int(height),
        "margin": {"l": round(left), "r": 12, "t": 8, "b": 8, "pad": 4},
        "xaxis": {**AXIS, "range": spread, "showticklabels": False},
        "yaxis": {
            **AXIS,
            "range": [len(names) - 0.5, -0.5],
            "tickvals": positions.tolist(),
            "ticktext": [tick_label(name, LONGEST) for name in names],
            "tickfont": {"size": 12, "color": palette.text},
        },
    }
    return go.Figure({"data": traces, "layout": layout}, _validate=False)


def _hover(names: Sequence[str], values: np.ndarray, before) -> list[list[str]]:
    numbers = [f"{value:.9g}" for value in values]
    if before is not None:
        numbers = [f"{earlier:.9g} → {number}" for earlier, number in zip(np.asarray(before, np.float64), numbers)]
    return [[html.escape(shown(name, 60), quote=False), number] for name, number in zip(names, numbers)]


def _limits(drawn: np.ndarray, before) -> tuple[float, float]:
    both = np.concatenate([drawn, np.asarray([] if before is None else before, dtype=np.float64), [0.0]])
    both = both[np.isfinite(both)]
    low, high = float(both.min()), float(both.max())
    return (low, high) if high > low else (low, low + 1.0)
