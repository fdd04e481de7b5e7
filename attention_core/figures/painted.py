"""A text with each token painted by a weight: what a token looks at, who looks at it, or how much it was read in all."""

import html
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import AttentionError
from .labels import shown
from .palette import Palette, rgb, sample
from .panels import three


@dataclass(frozen=True)
class Mark:
    """A passage under one line, with a small word before it: what is said of it without the paint.

    Attributes:
        first, end: which pieces, end exclusive.
        label: the word, shown as it is.
        color: of the line and the word, a CSS colour.
        dashed: the line is broken, to be told from others without colour.
    """

    first: int
    end: int
    label: str
    color: str
    dashed: bool = False


def painted_html(
    pieces: Sequence[str],
    values: Sequence[float] | np.ndarray,
    *,
    palette: Palette,
    selected: Collection[int] = (),
    spaces: Sequence[bool] | None = None,
    full: float = 1.0,
    numbers: bool = False,
    marks: Sequence[Mark] = (),
) -> str:
    """Escaped HTML of a text whose tokens have their weight as background.

    The colour is never alone: the exact number is in each token's title, and under the token if ``numbers`` is set;
    a selected token is outlined and underlined.

    Args:
        pieces: the text token by token, any characters. A leading space of a piece is kept outside its background.
        values: one weight (or coverage) a piece, from 0 up; one that is not finite is left unpainted.
        palette: the colours; the writing is its ``text`` or its opposite, whichever reads better on the background.
        selected: positions to mark.
        spaces: whether a space goes before each piece; None: as the pieces have it.
        full: the weight that gets the strongest colour, as all above it do; above 0.
        numbers: print each weight under its token, three significant digits.
        marks: passages to underline as a whole; where two overlap the later one's line is seen.

    Raises:
        AttentionError: not one value (or space) a piece, a mark beyond the pieces, or ``full`` not above 0.
    """
    if len(values) != len(pieces) or (spaces is not None and len(spaces) != len(pieces)):
        raise AttentionError("{values} values for {pieces} pieces of text", values=len(values), pieces=len(pieces))
    if not full > 0:
        raise AttentionError("full ({full}) must be above 0", full=full)
    for mark in marks:
        if not 0 <= mark.first < mark.end <= len(pieces):
            raise AttentionError(
                "a mark from {first} to {end} does not lie in {pieces} pieces of text",
                first=mark.first,
                end=mark.end,
                pieces=len(pieces),
            )
    values = np.asarray(values, dtype=np.float64)
    colours = sample(palette.weights, np.clip(np.nan_to_num(values, posinf=full) / full, 0.0, 1.0))
    parts, around = [], []
    for index, (piece, value, colour) in enumerate(zip(pieces, values, colours)):
        text = str(piece)
        space = text.startswith(" ") if spaces is None else spaces[index]
        text = text[1:] if text.startswith(" ") and len(text) > 1 else text
        space = " " if space and parts else ""
        now = [mark for mark in marks if mark.first <= index < mark.end]
        if now != around:
            # The space before a passage does not belong to it, one within it does.
            parts += ["</mark>" if around else "", space, _begin(now, index) if now else ""]
            around, space = now, ""
        parts.append(space + _token(text, value, colour, palette, index in selected, numbers))
        if text.endswith("\n"):
            parts.append("<br>")
    if around:
        parts.append("</mark>")
    height = 2.6 if numbers else 1.9
    return (
        f'<div dir="auto" style="color:{palette.text};line-height:{height};overflow-wrap:anywhere;white-space:pre-wrap;'
        f'font-variant-numeric:tabular-nums">{"".join(parts)}</div>'
    )


def _begin(marks: Sequence[Mark], index: int) -> str:
    """Opens the underlined part of a text, with the words of the marks that begin here."""
    last = marks[-1]
    line = f"{'dashed' if last.dashed else 'solid'} {html.escape(last.color)}"
    words = "".join(
        f'<b style="font-size:.68em;color:{html.escape(mark.color)};vertical-align:.5em;white-space:nowrap;'
        f'padding-right:4px;user-select:none">{html.escape(shown(mark.label), quote=False)}</b>'
        for mark in marks
        if mark.first == index
    )
    return f'<mark style="background:none;color:inherit;border-bottom:3px {line};padding-bottom:4px">{words}'


def _token(text: str, value: float, colour: np.ndarray, palette: Palette, chosen: bool, numbers: bool) -> str:
    style = "padding:2px 3px;margin:0 1px;border-radius:3px;"
    finite = math.isfinite(value)
    if finite:
        style += "background:#{:02x}{:02x}{:02x};color:{};".format(*colour, writing_on(colour, palette))
    if chosen:
        style += f"box-shadow:0 0 0 2px {palette.accent};text-decoration:underline;"
    title = f"{shown(text)}: {value:.9g}" if finite else shown(text)
    under = f'<sub style="font-size:0.65em;margin-left:2px">{three(value)}</sub>' if numbers and finite else ""
    return f'<span title="{html.escape(title)}" style="{style}">{html.escape(shown(text), quote=False)}{under}</span>'


def writing_on(background: np.ndarray, palette: Palette) -> str:
    """The page's writing where it reads well (contrast 7), else black or white, whichever has more contrast.

    ``background`` is red, green, blue, 0 to 255 each.
    """
    if contrast(rgb(palette.text), background) >= 7:
        return palette.text
    return max("#000000", "#FFFFFF", key=lambda colour: contrast(rgb(colour), background))


def luminance(colour: Sequence[float]) -> float:
    """Relative luminance of an sRGB colour (0 to 255 each), from 0 to 1 (WCAG 2.2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (float(c) / 255 for c in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """Contrast ratio of two sRGB colours, from 1 to 21 (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
