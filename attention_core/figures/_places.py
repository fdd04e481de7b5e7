"""Where the panels of one figure stand: px counted once, handed to plotly as axis domains and margins."""

from collections.abc import Sequence
from dataclasses import dataclass

from .labels import shown, text_width

TITLE = 20
"""px of a title line"""
BAR = 58
"""px right of a panel for its colour bar and the numbers beside it"""
GAP = 18
"""px between panels without a colour bar, and under each row"""
LABEL_SIZE = 11
"""px of tick labels"""
LONGEST_ROOM = 92
"""px: tick labels take no more than this"""


@dataclass(frozen=True)
class Place:
    """One panel's place: domains in fractions of the plot area (y from the bottom), sizes in px at nominal width."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float
    height: float
    rows_labelled: bool
    label_room: float


@dataclass(frozen=True)
class Places:
    """All places by (grid row, grid column), the figure's height and margins in px, the plot area's nominal width in px."""

    at: dict[tuple[int, int], Place]
    width: float
    height: int
    margin: dict[str, int]


def label_room(labels: Sequence[object] | None, count: int) -> float:
    """px that the longest tick label takes; labels None are the numbers 0 .. count - 1."""
    if labels is None:
        return 9 + text_width(str(max(count - 1, 0)), LABEL_SIZE)
    return min(LONGEST_ROOM, 11 + max((text_width(shown(label, 14), LABEL_SIZE) for label in labels), default=0))


def place(grid, bars: set[tuple[int, int]], head_lines: dict[int, int], width: int, height: int | None) -> Places:
    """Lay the grid out.

    Args:
        grid: rows of panels or None.
        bars: places (row, column) that have a colour bar at their right.
        head_lines: lines of text over each row's panels.
        width: nominal px of the figure; the real width only stretches the panels.
        height: px of the figure, or None to follow the cells.
    """
    columns = max((len(line) for line in grid), default=0)
    panels = {(r, c): p for r, line in enumerate(grid) for c, p in enumerate(line) if p is not None}
    labelled = {at: _labelled(grid, *at) for at in panels}

    left = [0.0] * columns
    right = [float(GAP) if c < columns - 1 else 6.0 for c in range(columns)]
    for (r, c), panel in panels.items():
        if labelled[r, c]:
            left[c] = max(left[c], label_room(panel.row_labels, panel.values.shape[0]))
        if (r, c) in bars:
            right[c] = float(BAR)
    panel_width = max(24.0, (width - sum(left) - sum(right)) / max(columns, 1))
    plot_width = panel_width * columns + sum(left[1:]) + sum(right[:-1])

    tops, heights = [], []
    for r in range(len(grid)):
        line = [panel for (row, _), panel in panels.items() if row == r]
        room = max((label_room(panel.column_labels, panel.values.shape[1]) for panel in line), default=0)
        tops.append((room, room + 4 + TITLE * head_lines.get(r, 0)))
        heights.append(max((_panel_height(panel, panel_width) for panel in line), default=40.0))
    outside = sum(top for _, top in tops) + GAP * (len(grid) - 1) + 8
    if height is None:
        height = round(outside + sum(heights))
    else:
        stretch = max(0.1, (height - outside) / max(sum(heights), 1))
        heights = [one * stretch for one in heights]
    plot_height = max(1.0, height - tops[0][1] - 8) if tops else 1.0

    at = {}
    x = 0.0
    starts = []
    for c in range(columns):
        x += left[c] if c else 0.0
        starts.append(x)
        x += panel_width + right[c]
    y = 0.0
    for r in range(len(grid)):
        y += tops[r][1] if r else 0.0
        for c in range(columns):
            if (r, c) in panels:
                at[r, c] = Place(
                    x=(_unit(starts[c] / plot_width), _unit((starts[c] + panel_width) / plot_width)),
                    y=(_unit(1 - (y + heights[r]) / plot_height), _unit(1 - y / plot_height)),
                    width=panel_width,
                    height=heights[r],
                    rows_labelled=labelled[r, c],
                    label_room=tops[r][0],
                )
        y += heights[r] + GAP
    margin = {
        "l": round(left[0]) if columns else 0,
        "r": round(right[-1]) if columns else 0,
        "t": round(tops[0][1]) if tops else 0,
        "b": 8,
        "pad": 0,
    }
    return Places(at=at, width=plot_width, height=int(height), margin=margin)


def _labelled(grid, row: int, column: int) -> bool:
    """Whether a panel shows its row labels: not where its left neighbour already shows the same ones."""
    panel = grid[row][column]
    for before in reversed(grid[row][:column]):
        if before is None:
            return True
        same_size = before.values.shape[0] == panel.values.shape[0]
        return not (same_size and _texts(before.row_labels) == _texts(panel.row_labels))
    return True


def _texts(labels) -> list[str] | None:
    return None if labels is None else [str(label) for label in labels]


def _panel_height(panel, width: float) -> float:
    """px: near square cells, rows high enough for a label as long as the panel stays on a screen."""
    rows, columns = panel.values.shape
    cell = min(max(width / max(columns, 1), 15.0), 34.0)
    return min(max(rows * cell, 72.0), 460.0)


def _unit(fraction: float) -> float:
    return min(1.0, max(0.0, round(fraction, 5)))
