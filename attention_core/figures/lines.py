"""Token-to-token lines: queries on the left, keys on the right, a line as strong as the weight."""

import html
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..errors import AttentionError
from ._base import AXIS, INVISIBLE, base_layout
from .labels import LONGEST, shown, text_width, thinned
from .palette import Palette
from .panels import three

CLASSES = 8
"""Lines are drawn in this many classes of strength: one trace each, whatever the number of lines."""
WORDS = {"query": "query", "key": "key"}


def lines_figure(
    weights: np.ndarray,
    *,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    palette: Palette,
    selected_query: int | None = None,
    threshold: float = 0.05,
    hidden: np.ndarray | None = None,
    height: int | None = None,
    words: Mapping[str, str] | None = None,
) -> go.Figure:
    """The weights of one head as lines from each query to the keys it attends to.

    Args:
        weights: (query_len, key_len), probabilities in [0, 1]; what is not finite has no line.
        query_labels, key_labels: one token each, drawn from the top with one pitch.
        palette: the colours.
        selected_query: its lines stay strong, all others fade.
        threshold: weights below it have no line.
        hidden: bool (query_len, key_len), True where masked: no line.
        height: px; None follows the number of tokens.
        words: replaces any of :data:`WORDS`.

    Raises:
        AttentionError: labels that do not match the weights.
    """
    weights = np.asarray(weights)
    if weights.ndim != 2 or weights.shape != (len(query_labels), len(key_labels)):
        raise AttentionError(
            "weights have the shape {shape}; labels: {queries} queries, {keys} keys",
            shape=weights.shape,
            queries=len(query_labels),
            keys=len(key_labels),
        )
    words = {**WORDS, **(words or {})}
    drawn = np.where(np.isfinite(weights), weights, 0.0)
    if hidden is not None:
        drawn = np.where(hidden, 0.0, drawn)
    longest = max(1, *weights.shape)
    if height is None:
        height = 40 + longest * (20 if longest <= 32 else 15)
    room = (height - 40) / longest / 13 * longest

    traces = []
    for strength, chosen, rows, columns in _classes(drawn, threshold, selected_query):
        faded = selected_query is not None and not chosen
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": np.tile(np.array([0, 1, np.nan], np.float32), len(rows)),
                "y": np.stack([rows, columns, np.full(len(rows), np.nan)], axis=-1).astype(np.float32).ravel(),
                "line": {"color": palette.muted if faded else palette.accent, "width": 1 + 3 * strength},
                "opacity": _opacity(strength, selected_query is not None, chosen),
                "hoverinfo": "skip",
            }
        )
    traces.append(_click_layer(drawn, query_labels, key_labels))

    queries = thinned(query_labels, room, () if selected_query is None else (selected_query,))
    if selected_query is not None and selected_query in queries[0]:
        at = queries[0].index(selected_query)
        queries[1][at] = f'<b style="color:{palette.text}">{queries[1][at]}</b>'
    keys = thinned(key_labels, room)
    left = 14 + max((text_width(shown(label, LONGEST), 12) for label in query_labels), default=0)
    right = 14 + max((text_width(shown(label, LONGEST), 12) for label in key_labels), default=0)
    font = {"size": 12, "color": palette.muted}
    spread = [longest - 0.5, -0.5]
    layout = base_layout(palette, "lines") | {
        "height": int(height),
        "margin": {"l": round(left), "r": round(right), "t": 28, "b": 12, "pad": 0},
        "xaxis": {
            **AXIS,
            "range": [-0.01, 1.01],
            "side": "top",
            "tickvals": [0, 1],
            "ticktext": [html.escape(words["query"], quote=False), html.escape(words["key"], quote=False)],
            "tickfont": {"size": 11, "color": palette.muted},
        },
        "yaxis": {**AXIS, "range": spread, "tickvals": queries[0], "ticktext": queries[1], "tickfont": font},
        "yaxis2": {
            **AXIS,
            "range": spread,
            "overlaying": "y",
            "side": "right",
            "tickvals": keys[0],
            "ticktext": keys[1],
            "tickfont": font,
        },
    }
    # An axis without a trace is not drawn: this one carries the keys' labels.
    traces.append(
        {"type": "scatter", "x": [1], "y": [0], "yaxis": "y2", "mode": "markers", "hoverinfo": "skip"} | INVISIBLE
    )
    return go.Figure({"data": traces, "layout": layout}, _validate=False)


def clicked_query(points: Sequence[Mapping]) -> int | None:
    """The query whose token was clicked, from a selection's points (``st.plotly_chart``); None if none was."""
    for point in points:
        if point.get("x") == 0 and isinstance(point.get("y"), int | float):
            return round(point["y"])
    return None


def _classes(weights: np.ndarray, threshold: float, selected: int | None):
    """Yield (strength in [0, 1], of the selected query?, rows, columns) for each class that has lines, faint first."""
    rows, columns = np.nonzero((weights >= threshold) & (weights > 0))
    if not len(rows):
        return
    bins = np.clip((weights[rows, columns] * CLASSES).astype(int), 0, CLASSES - 1)
    chosen = rows == selected if selected is not None else np.zeros(len(rows), bool)
    for mark in (False, True):
        for number in range(CLASSES):
            these = (bins == number) & (chosen == mark)
            if these.any():
                yield (number + 0.5) / CLASSES, mark, rows[these], columns[these]


def _opacity(strength: float, selecting: bool, chosen: bool) -> float:
    if not selecting:
        return 0.15 + 0.85 * strength
    return 0.4 + 0.6 * strength if chosen else 0.02 + 0.13 * strength


def _click_layer(weights: np.ndarray, query_labels: Sequence[str], key_labels: Sequence[str]) -> dict:
    """One marker at each query token; its hover names the keys with the largest weights."""
    texts = []
    for label, row in zip(query_labels, weights):
        best = [k for k in np.argsort(-row, kind="stable")[:5] if row[k] > 0]
        lines = [f"{three(row[k])}  {k} · {html.escape(shown(key_labels[k], 40), quote=False)}" for k in best]
        texts.append([html.escape(shown(label, 40), quote=False), "<br>".join(lines)])
    return {
        "type": "scatter",
        "mode": "markers",
        "x": np.zeros(len(weights), np.uint8),
        "y": np.arange(len(weights), dtype=np.uint16),
        "customdata": np.array(texts).reshape(-1, 2),
        "hovertemplate": "<b>%{y} · %{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    } | INVISIBLE
