"""A colour bar: a strip 8 px wide, the values of its two ends, and what it counts. Plotly's own costs the browser 4 ms each."""

import html

from ._base import NOTE
from ._pixels import ramp
from .labels import text_width
from .palette import Colourscale, Palette

SIZE = 10
"""px of its numbers and title."""


def colour_bar(
    colours: Colourscale,
    limits: tuple[str, str],
    *,
    x: float,
    y: tuple[float, float],
    width: float,
    height: float,
    palette: Palette,
    title: str = "",
) -> tuple[dict, list[dict]]:
    """The strip as an image, and its texts as annotations.

    Args:
        colours: from the lower to the upper end.
        limits: what stands at the two ends.
        x: the right edge of what it belongs to, y: its lower and upper end, in fractions of the plot area.
        width, height: of the plot area and of the bar, in px.
        palette: of the texts.
        title: written upwards between the numbers, where it fits.
    """
    image = {
        "source": ramp(colours),
        "xref": "paper",
        "yref": "paper",
        "x": x + 8 / width,
        "y": y[0],
        "sizex": 8 / width,
        "sizey": y[1] - y[0],
        "sizing": "stretch",
        "xanchor": "left",
        "yanchor": "bottom",
        "layer": "above",
    }
    end = {**NOTE, "x": x + 20 / width, "xanchor": "left", "font": {"size": SIZE, "color": palette.muted}}
    notes = [
        {**end, "text": limits[1], "y": y[1], "yanchor": "top"},
        {**end, "text": limits[0], "y": y[0], "yanchor": "bottom"},
    ]
    if title and text_width(title, SIZE) <= height - 34:
        text = {"text": html.escape(title, quote=False), "textangle": -90, "yanchor": "middle"}
        notes.append({**end, **text, "y": (y[0] + y[1]) / 2})
    return image, notes
