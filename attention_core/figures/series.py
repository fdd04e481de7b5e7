"""A number token by token, as a line or two: the log-likelihood of a target before and after a change, its coverage."""

import html
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..errors import AttentionError
from ._base import AXIS, INVISIBLE, NOTE, base_layout, key_line
from .labels import LONGEST, shown, text_width, thinned
from .palette import Palette
from .panels import three


def series_figure(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float] | np.ndarray],
    *,
    palette: Palette,
    measure: str,
    unit: str = "",
    marked: Sequence[int] = (),
    limits: tuple[float, float] | None = None,
    height: int = 260,
    width: int = 960,
) -> go.Figure:
    """One value a token for each name; the last name stands out, the first is its grey background (before, after).

    Args:
        labels: one token a position, from the left; equal ones stay apart.
        series: one or two names, each with a value a token; what is not finite is a gap.
        palette: the colours.
        measure, unit: what the values are, and what they are counted in; written over the axis.
        marked: positions with a strong label and a line through them.
        limits: ends of the axis; None fits the values.
        height: px of the figure.
        width: px that the figure will about have; how many labels fit follows from it.

    Raises:
        AttentionError: no or more than two series, or not one value a token.
    """
    if not 1 <= len(series) <= 2:
        raise AttentionError("one or two series are drawn, not {series}", series=len(series))
    drawn = {name: np.asarray(values, dtype=np.float64) for name, values in series.items()}
    for name, values in drawn.items():
        if values.shape != (len(labels),):
            raise AttentionError(
                "{name}: {values} values for {labels} tokens", name=name, values=values.size, labels=len(labels)
            )
    colours = dict(zip(drawn, (palette.accent,) if len(drawn) == 1 else (palette.muted, palette.accent)))
    places = np.arange(len(labels), dtype=np.uint16)
    many = len(labels) > 60
    traces = []
    for number, (name, values) in enumerate(drawn.items()):
        last = number == len(drawn) - 1
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if many else "lines+markers",
                "x": places,
                "y": np.where(np.isfinite(values), values, np.nan).astype(np.float32),
                "line": {"color": colours[name], "width": 2 if last else 1.5, "dash": "solid" if last else "dot"},
                "marker": {"size": 6, "symbol": "circle" if last else "circle-open", "color": colours[name]},
                "hoverinfo": "skip",
                "connectgaps": False,
            }
        )
    low, high = _limits(drawn.values()) if limits is None else (float(limits[0]), float(limits[1]))
    traces.append(_click_layer(labels, drawn, (low + high) / 2))
    left = 50
    ticks = thinned(labels, (width - left - 12) / 14, marked)
    ticks[1][:] = [
        f'<b style="color:{palette.text}">{text}</b>' if place in marked else text for place, text in zip(*ticks)
    ]
    font = {"size": 11, "color": palette.muted}
    longest = max((text_width(shown(label, LONGEST), 11) for label in labels), default=0)
    foot = 22 + round(longest)
    title = f"{measure} ({unit})" if unit else measure
    notes = [{**_over("left", 0), "text": html.escape(title, quote=False), "font": {"size": 12, "color": palette.text}}]
    if len(drawn) > 1:
        # On a narrow screen the key stands in a line of its own.
        crowded = text_width(title, 12) + sum(text_width(name, 11) + 30 for name in drawn) > width - left
        notes.append({**key_line(colours, palette, ["○", "●"]), **_over("right", 1)})
        if crowded:
            notes[0]["yshift"] += 18
    layout = base_layout(palette, "series") | {
        "height": int(height),
        "margin": {"l": left, "r": 12, "t": 48 if notes[0]["yshift"] > 6 else 30, "b": foot, "pad": 4},
        "annotations": notes,
        "shapes": [_line(place, palette) for place in marked if 0 <= place < len(labels)],
        "xaxis": {
            **AXIS,
            "range": [-0.6, len(labels) - 0.4],
            "tickangle": -90,
            "tickvals": ticks[0],
            "ticktext": ticks[1],
            "tickfont": font,
        },
        "yaxis": {
            **AXIS,
            "range": [low - 0.06 * (high - low), high + 0.06 * (high - low)],
            "showgrid": True,
            "gridcolor": palette.hairline,
            "tickmode": "auto",
            "nticks": 6,
            "tickfont": font,
        },
    }
    return go.Figure({"data": traces, "layout": layout}, _validate=False)


def clicked_token(points: Sequence[Mapping]) -> int | None:
    """The position of the token that was clicked, from a selection's points; None if none was."""
    for point in points:
        place = point.get("x")
        if isinstance(place, int | float) and place >= 0:
            return round(place)
    return None


def _click_layer(labels: Sequence[str], drawn: Mapping[str, np.ndarray], middle: float) -> dict:
    """One marker a token, which takes the clicks and names the values."""
    texts = []
    for place, label in enumerate(labels):
        lines = [f"{html.escape(name, quote=False)} {values[place]:.9g}" for name, values in drawn.items()]
        if len(drawn) == 2:
            before, after = (values[place] for values in drawn.values())
            lines.append(f"{'+' if after >= before else ''}{three(after - before)}")
        texts.append([html.escape(shown(label, 60), quote=False), "<br>".join(lines)])
    return {
        "type": "scatter",
        "mode": "markers",
        "x": np.arange(len(labels), dtype=np.uint16),
        "y": np.full(len(labels), middle, np.float32),
        "customdata": np.array(texts).reshape(-1, 2),
        "hovertemplate": "<b>%{x} · %{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    } | INVISIBLE


def _limits(all_values) -> tuple[float, float]:
    finite = np.concatenate([values[np.isfinite(values)] for values in all_values])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 1.0, low + 1.0)


def _over(side: str, x: float) -> dict:
    return {**NOTE, "x": x, "y": 1, "xanchor": side, "yanchor": "bottom", "yshift": 6}


def _line(place: int, palette: Palette) -> dict:
    line = {"color": palette.accent, "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": place, "x1": place, "y0": 0, "y1": 1, "line": line}
