"""One sentence for those who cannot see a picture: its size and the numbers that matter."""

from collections.abc import Mapping, Sequence

import numpy as np

from .labels import shown
from .panel import Panel

WORDS = {
    "panel": "{title}: {rows} rows ({row_title}) by {columns} columns ({column_title}), from {low} to {high}; "
    "the largest value is {high} at {row_title} {row}, {column_title} {column}.",
    "nothing": "{title}: {rows} rows ({row_title}) by {columns} columns ({column_title}), no cell with a value.",
    "masked": "Masked cells: {count}.",
    "not_finite": "Cells that are not numbers: {count}.",
    "tiles": "{tiles} maps of {rows} rows by {columns} columns; the largest value is {high} in {name}.",
    "row": "row",
    "column": "column",
}
"""Sentences with named places; pages pass translated ones."""


def describe(panel: Panel, words: Mapping[str, str] | None = None) -> str:
    """A panel in one sentence or two: its shape, range, where its largest value is, and how many cells are masked.

    The text is plain (no markup, not escaped); values have three significant digits, positions count from 0.

    Args:
        panel: what is drawn.
        words: replaces any of :data:`WORDS`.
    """
    words = {**WORDS, **(words or {})}
    values = np.asarray(panel.values)
    hidden = np.zeros(values.shape, bool) if panel.hidden is None else np.asarray(panel.hidden, bool)
    finite = np.isfinite(values)
    seen = finite & ~hidden
    places = {
        "title": panel.title or panel.key,
        "rows": values.shape[0],
        "columns": values.shape[1],
        "row_title": panel.row_title or words["row"],
        "column_title": panel.column_title or words["column"],
    }
    if seen.any():
        row, column = np.unravel_index(np.where(seen, values, -np.inf).argmax(), values.shape)
        places |= {"low": f"{values[seen].min():.3g}", "high": f"{values[row, column]:.3g}"}
        places |= {"row": _place(row, panel.row_labels), "column": _place(column, panel.column_labels)}
        sentences = [words["panel"].format(**places)]
    else:
        sentences = [words["nothing"].format(**places)]
    for name, count in (("masked", hidden.sum()), ("not_finite", (~finite & ~hidden).sum())):
        if count:
            sentences.append(words[name].format(count=int(count)))
    return " ".join(sentences)


def describe_grid(grid: Sequence[Sequence[Panel | None]], words: Mapping[str, str] | None = None) -> str:
    """All panels of a figure, each as :func:`describe` says it."""
    return " ".join(describe(panel, words) for line in grid for panel in line if panel is not None)


def describe_tiles(maps: np.ndarray, tile_names: Sequence[str], words: Mapping[str, str] | None = None) -> str:
    """Many maps in one sentence: how many, their size, and which holds the largest value.

    Args:
        maps: (tiles, rows, columns); values that are not finite do not count.
        tile_names: one name a tile.
        words: replaces any of :data:`WORDS`.
    """
    words = {**WORDS, **(words or {})}
    maps = np.asarray(maps)
    values = np.where(np.isfinite(maps), maps, -np.inf)
    at = np.unravel_index(values.argmax(), maps.shape)
    return words["tiles"].format(
        tiles=maps.shape[0],
        rows=maps.shape[1],
        columns=maps.shape[2],
        high=f"{values[at]:.3g}",
        name=tile_names[at[0]],
    )


def _place(index: int, labels: Sequence[str] | None) -> str:
    return str(index) if labels is None else f"{index} ({shown(labels[index], 40)})"
