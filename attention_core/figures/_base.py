"""What all figures share: fonts, hover labels, bare axes, and the marker that takes clicks without being seen."""

import html
from collections.abc import Mapping, Sequence

from .palette import Palette

FONT = '"Source Sans", "Source Sans Pro", "Source Sans 3", sans-serif'

AXIS = {
    "showgrid": False,
    "zeroline": False,
    "showline": False,
    "ticks": "",
    "fixedrange": True,
    "tickmode": "array",
    "tickangle": 0,
    "ticklabelstandoff": 3,
    # By default plotly measures every label, to hide those that stick out: half the time of a figure with many.
    "ticklabeloverflow": "allow",
}

NOTE = {"xref": "paper", "yref": "paper", "showarrow": False, "borderpad": 0}
"""An annotation placed in fractions of the plot area."""

INVISIBLE = {
    # One drawn marker in a trace is enough: hover and clicks look at all points, drawn or not.
    "marker": {"size": 6, "opacity": 0.001, "color": "#808080", "maxdisplayed": 1},
    "selected": {"marker": {"opacity": 0.001}},
    "unselected": {"marker": {"opacity": 0.001}},
}


def key_line(colours: Mapping[str, str], palette: Palette, symbols: Sequence[str] = ()) -> dict:
    """A line over the plot area that says what the colours mean; plotly's own legend would take clicks.

    Args:
        colours: the colour of each name.
        palette: of the names.
        symbols: a letter that stands for each name, else a square.
    """
    symbols = symbols or ["■"] * len(colours)
    parts = [
        f'<span style="color:{colour}">{symbol}</span> {html.escape(name, quote=False)}'
        for (name, colour), symbol in zip(colours.items(), symbols)
    ]
    return {
        **NOTE,
        "text": "&nbsp;&nbsp;&nbsp;".join(parts),
        "x": 0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 6,
        "font": {"size": 12, "color": palette.text},
    }


def base_layout(palette: Palette, revision: str, *, clickable: bool = True, background: str = "rgba(0,0,0,0)") -> dict:
    """The layout that every figure starts from; ``revision`` keeps what the visitor did (zoom) between updates."""
    return {
        "template": {},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": background,
        "font": {"family": FONT, "size": 11, "color": palette.muted},
        "hovermode": "closest",
        "hoverdistance": -1,
        "hoverlabel": {
            "bgcolor": palette.panel,
            "bordercolor": palette.hairline,
            "font": {"family": FONT, "size": 13, "color": palette.text},
            "align": "left",
        },
        "dragmode": False if clickable else "zoom",
        "clickmode": "event+select" if clickable else "none",
        "showlegend": False,
        "uirevision": revision,
    }
