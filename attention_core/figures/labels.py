"""Token labels that stay what they are: repeated, numeric, empty, or looking like markup."""

import html
from collections.abc import Iterable, Sequence
from unicodedata import east_asian_width

LONGEST = 14
"""Characters of a tick label; a longer token is cut and ends in …"""


def tick_label(token: object, longest: int = LONGEST) -> str:
    """A token as a tick label that plotly shows to the letter.

    Plotly reads tags and entities in labels, so that ``<s>`` would vanish: they are escaped here. An empty token is
    shown as ∅, a newline as ⏎, a tab as ⇥, a leading space as ·, and a long token is shortened with ….

    Args:
        token: any text (or number).
        longest: the most characters to keep, at least 2.
    """
    return html.escape(shown(token, longest), quote=False)


def shown(token: object, longest: int | None = None) -> str:
    """The same marks as in :func:`tick_label`, unescaped; ``longest`` None keeps all characters."""
    text = str(token)
    if not text:
        return "∅"
    text = text.replace("\r\n", "⏎").replace("\n", "⏎").replace("\r", "⏎").replace("\t", "⇥")
    if text[0] == " ":
        text = "·" + text[1:]
    if longest is not None and len(text) > longest:
        text = text[: longest - 1] + "…"
    return text


def text_width(label: str, size: float = 11) -> float:
    """About how wide an unescaped label is, in px, at a font size in px."""
    wide = sum(east_asian_width(letter) in "WF" for letter in label)
    return size * (0.54 * (len(label) - wide) + 1.0 * wide)


def positions(count: int, room: float, keep: Iterable[int] = ()) -> list[int]:
    """Which of ``count`` labels to show where ``room`` fit: evenly spaced from 0, and always those in ``keep``.

    The steps are round (1, 2, 5, 10, ...). A label that would touch a kept one makes way for it.
    """
    step = 1
    for step in (base * 10**power for power in range(7) for base in (1, 2, 5)):
        if count / step <= max(room, 1):
            break
    kept = sorted({index for index in keep if 0 <= index < count})
    if step == 1 or not kept:
        return list(range(0, count, step))
    near = -(-count // max(int(room), 1))
    return sorted({*kept, *(i for i in range(0, count, step) if all(abs(i - k) >= near for k in kept))})


def thinned(labels: Sequence[object], room: float, keep: Iterable[int] = ()) -> tuple[list[int], list[str]]:
    """Tick positions and texts for as many labels as fit.

    Args:
        labels: one token for each position 0, 1, 2, ...; equal ones stay apart, since positions are numbers.
        room: how many labels fit beside each other.
        keep: positions that are always labelled (the selected ones).

    Returns:
        ``(tickvals, ticktext)``, of equal length; texts as in :func:`tick_label`.
    """
    places = positions(len(labels), room, keep)
    return places, [tick_label(labels[place]) for place in places]
