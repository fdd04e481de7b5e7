"""Horizontal bars: the likeliest next tokens, the numbers of a few heads; where wanted, before and after a change."""

import html
from collections.abc import Collection, Sequence

import numpy as np
import plotly.graph_objects as go

from ..errors import AttentionError
from ._base import AXIS, base_layout, key_line
from .labels import shown, text_width, tick_label
from .palette import Palette
from .panels import three

LONGEST = 24
"""Characters of a bar's name."""
PAIR_SHIFT, PAIR_WIDTH = 0.19, 0.34
"""Of the two bars of a pair, in rows."""


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
    pair: tuple[str, str] | None = None,
) -> go.Figure:
    """One bar a name, the first on top, its number beside it; or a pair of bars, before and after.

    Args:
        names: any texts, also equal ones.
        values: one number a name; what is not finite has no bar.
        palette: the colours.
        before: a second number a name (the value before a change), drawn as a tick across the bar, or as a bar of its own.
        limits: ends of the axis; None fits the values and 0.
        selected: positions drawn in the accent colour; the others are paler. Empty: all alike.
        color: of the bars, else the palette's accent.
        height: px; None gives 24 px a bar, 38 px a pair.
        pair: names of before and after. Each value then has its own bar, the grey upper one for before, and its own number;
            a line on top says which is which.

    Raises:
        AttentionError: not one value a name, or names of a pair without values before.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (len(names),) or (before is not None and np.shape(before) != (len(names),)):
        raise AttentionError("{values} values for {names} names", values=values.shape, names=len(names))
    if pair is not None and before is None:
        raise AttentionError("a pair of bars needs the values before")
    drawn = np.where(np.isfinite(values), values, np.nan)
    earlier = None if before is None else np.asarray(before, dtype=np.float64)
    ends = _limits(drawn, earlier) if limits is None else (float(limits[0]), float(limits[1]))
    room = (ends[1] - ends[0]) * 0.14
    spread = [ends[0] - (room if ends[0] < 0 else 0.0), ends[1] + room]
    colour = color or palette.accent
    positions = np.arange(len(names), dtype=np.uint16)
    strong = np.array([not selected or index in selected for index in range(len(names))], dtype=bool)
    opacity = np.where(strong, 1.0, 0.45).astype(np.float32)
    hover = np.array(_hover(names, values, earlier))
    if pair is not None:
        upper, lower = positions - PAIR_SHIFT, positions + PAIR_SHIFT
        was = np.where(np.isfinite(earlier), earlier, np.nan)
        traces = [
            _bars(drawn, lower, PAIR_WIDTH, colour, opacity, hover),
            _numbers(values, np.nan_to_num(drawn), lower, palette.text),
            _bars(was, upper, PAIR_WIDTH, palette.muted, 0.7 * opacity, hover),
            _numbers(earlier, np.nan_to_num(was), upper, palette.muted),
        ]
    else:
        # The number stands beyond the bar and beyond the tick of the value before.
        reach = np.nan_to_num(drawn)
        if earlier is not None:
            ticks = np.nan_to_num(earlier)
            reach = np.where(reach < 0, np.minimum(reach, ticks), np.maximum(reach, ticks))
        traces = [
            _bars(drawn, positions, 0.62, colour, opacity, hover),
            _numbers(values, reach, positions, palette.text, left=np.nan_to_num(drawn) < 0),
        ]
        if earlier is not None:
            traces.append(_ticks(earlier, positions, palette))
    left = 12 + max((text_width(shown(name, LONGEST), 12) for name in names), default=0)
    top = 8 if pair is None else 28
    layout = base_layout(palette, "bars", clickable=False) | {
        "dragmode": False,
        "height": 8 + top + (24 if pair is None else 38) * max(1, len(names)) if height is None else int(height),
        "margin": {"l": round(left), "r": 12, "t": top, "b": 8, "pad": 4},
        "annotations": [] if pair is None else [key_line({pair[0]: palette.muted, pair[1]: colour}, palette)],
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


def _bars(
    values: np.ndarray, places: np.ndarray, width: float, colour: str, opacity: np.ndarray, hover: np.ndarray
) -> dict:
    return {
        "type": "bar",
        "orientation": "h",
        "x": values.astype(np.float32),
        "y": places,
        "width": width,
        "marker": {"color": colour, "opacity": opacity.astype(np.float32), "line": {"width": 0}},
        "customdata": hover,
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    }


def _numbers(values, reach: np.ndarray, places: np.ndarray, colour: str, left: np.ndarray | None = None) -> dict:
    """The number of each value at ``reach``, on the far side of its bar."""
    left = reach < 0 if left is None else left
    return {
        "type": "scatter",
        "mode": "text",
        "x": reach.astype(np.float32),
        "y": places,
        "text": [f" {three(value)} " if np.isfinite(value) else " – " for value in values],
        "textposition": ["middle left" if each else "middle right" for each in left],
        "textfont": {"size": 12, "color": colour},
        "cliponaxis": False,
        "hoverinfo": "skip",
    }


def _ticks(values: np.ndarray, places: np.ndarray, palette: Palette) -> dict:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": values.astype(np.float32),
        "y": places,
        "marker": {"symbol": "line-ns-open", "size": 16, "color": palette.text, "line": {"width": 2}},
        "hoverinfo": "skip",
    }


def _hover(names: Sequence[str], values: np.ndarray, before) -> list[list[str]]:
    numbers = [f"{value:.9g}" for value in values]
    if before is not None:
        numbers = [f"{earlier:.9g} → {number}" for earlier, number in zip(before, numbers)]
    return [[html.escape(shown(name, 60), quote=False), number] for name, number in zip(names, numbers)]


def _limits(drawn: np.ndarray, before) -> tuple[float, float]:
    both = np.concatenate([drawn, np.asarray([] if before is None else before, dtype=np.float64), [0.0]])
    both = both[np.isfinite(both)]
    low, high = float(both.min()), float(both.max())
    return (low, high) if high > low else (low, low + 1.0)
