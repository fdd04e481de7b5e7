"""The colours of every picture, in a light and a dark theme.

Zero is the colour of the page and more weight is more ink, so that an attention map reads like print. Signed values
run from orange over the page's colour to blue. Both stay readable for the common kinds of colour blindness.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from ..errors import AttentionError

Colourscale = tuple[tuple[float, str], ...]

_THEMES = {
    "light": {
        "page": "#FFFFFF",
        "panel": "#F6F7F9",
        "text": "#1F2430",
        "muted": "#6B7183",
        "accent": "#5B4BD6",
        "hairline": "#D9DCE4",
        "masked": "rgba(128,128,128,0.18)",
        "query": "#2F6FDE",
        "key": "#C77700",
        "value": "#1E8E6E",
    },
    "dark": {
        "page": "#12141A",
        "panel": "#1B1F28",
        "text": "#E7E9EE",
        "muted": "#949BAD",
        "accent": "#9D8CFF",
        "hairline": "#343A48",
        "masked": "rgba(150,150,150,0.16)",
        "query": "#7FB0FF",
        "key": "#F0A64A",
        "value": "#5CCFAE",
    },
}

_WEIGHTS = {
    ("ink", "light"): (
        (0.0, "#FFFFFF"),
        (0.05, "#F1EFFC"),
        (0.25, "#C9C1F3"),
        (0.5, "#9282E3"),
        (0.75, "#5F4BCB"),
        (1.0, "#2C1C7A"),
    ),
    # The low end rises faster than in the light theme: on a dark page 0.1 has to be seen.
    ("ink", "dark"): (
        (0.0, "#171A22"),
        (0.05, "#2B2A57"),
        (0.25, "#54469F"),
        (0.5, "#7C66D6"),
        (0.75, "#AE9BF7"),
        (1.0, "#F4EEFF"),
    ),
    "cividis": (
        (0.0, "#00224E"),
        (0.25, "#434E6C"),
        (0.5, "#7D7C78"),
        (0.75, "#BCAF6F"),
        (1.0, "#FEE838"),
    ),
    "viridis": (
        (0.0, "#440154"),
        (0.25, "#3B528B"),
        (0.5, "#21918C"),
        (0.75, "#5EC962"),
        (1.0, "#FDE725"),
    ),
}

_SIGNED = {
    "light": ((0.0, "#C2561A"), (0.5, "#FFFFFF"), (1.0, "#2458B8")),
    "dark": ((0.0, "#F08A4B"), (0.5, "#171A22"), (1.0, "#6FA3FF")),
}


@dataclass(frozen=True)
class Palette:
    """Colours of one theme, as CSS texts.

    ``weights`` is a colourscale from 0 (the page's colour, for "ink") to 1; ``signed`` one from -max over 0 to +max.
    A colourscale is a tuple of (position in [0, 1], "#RRGGBB"), as plotly takes it. ``masked`` is a translucent grey
    that shows on either page. ``query``, ``key`` and ``value`` colour these three words wherever they stand.
    """

    theme: str
    scale: str
    page: str
    panel: str
    text: str
    muted: str
    accent: str
    hairline: str
    masked: str
    query: str
    key: str
    value: str
    weights: Colourscale
    signed: Colourscale


@cache
def palette(theme: Literal["light", "dark"] = "light", scale: Literal["ink", "cividis", "viridis"] = "ink") -> Palette:
    """The colours of a theme; ``scale`` chooses how weights are coloured.

    Raises:
        AttentionError: a theme or scale that does not exist.
    """
    if theme not in _THEMES:
        raise AttentionError("theme ({theme}) must be one of: {known}", theme=theme, known=", ".join(_THEMES))
    if scale not in ("ink", "cividis", "viridis"):
        raise AttentionError("scale ({scale}) must be one of: {known}", scale=scale, known="ink, cividis, viridis")
    weights = _WEIGHTS[scale, theme] if scale == "ink" else _WEIGHTS[scale]
    return Palette(theme=theme, scale=scale, weights=weights, signed=_SIGNED[theme], **_THEMES[theme])


def rgb(colour: str) -> tuple[int, int, int]:
    """``#RRGGBB`` as three numbers from 0 to 255."""
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def sample(colourscale: Colourscale, positions: np.ndarray) -> np.ndarray:
    """Colours of a colourscale, linear in sRGB between its stops, as plotly draws them.

    Args:
        colourscale: (position, colour) pairs, positions rising from 0 to 1.
        positions: (n,), from 0 to 1.

    Returns:
        uint8, (n, 3): red, green, blue.
    """
    stops = [position for position, _ in colourscale]
    channels = np.array([rgb(colour) for _, colour in colourscale], dtype=np.float64)
    mixed = np.stack([np.interp(positions, stops, channels[:, channel]) for channel in range(3)], axis=-1)
    return np.rint(mixed).astype(np.uint8)
