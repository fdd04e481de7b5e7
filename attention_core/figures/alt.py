"""One sentence for those who cannot see a picture: its size and the numbers that matter."""

from collections import Counter
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
    "plane": "{count} points ({groups}); closest together are {first} and {second}.",
    "series": "{name}: {count} tokens, from {low} at {low_place} to {high} at {high_place}, {mean} on average.",
    "series_change": "The largest change from {before} to {after} is {change} at {place}.",
    "pairs": "{name}: {before} before, {after} after.",
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


def describe_plane(
    points: np.ndarray, names: Sequence[str], groups: Sequence[str], words: Mapping[str, str] | None = None
) -> str:
    """A plane of points in one sentence: how many of each group, and which two stand closest.

    Args:
        points: (items, 2); items that are not finite do not count.
        names, groups: one an item.
        words: replaces any of :data:`WORDS`.
    """
    words = {**WORDS, **(words or {})}
    there = [number for number, point in enumerate(np.asarray(points)) if np.isfinite(point).all()]
    counts = Counter(groups[number] for number in there)
    first = second = "–"
    if len(there) > 1:
        places = np.asarray(points)[there]
        apart = np.linalg.norm(places[:, None] - places, axis=-1) + np.diag(np.full(len(there), np.inf))
        at = np.unravel_index(apart.argmin(), apart.shape)
        first, second = (f"{groups[there[n]]} {names[there[n]]}" for n in at)
    told = ", ".join(f"{group} {count}" for group, count in counts.items())
    return words["plane"].format(count=len(there), groups=told, first=first, second=second)


def describe_series(
    labels: Sequence[str], series: Mapping[str, Sequence[float] | np.ndarray], words: Mapping[str, str] | None = None
) -> str:
    """One sentence a series (range, where its ends are, mean), and of two the largest change.

    Args:
        labels: one token a position.
        series: values a token for each name; those that are not finite do not count.
        words: replaces any of :data:`WORDS`.
    """
    words = {**WORDS, **(words or {})}
    drawn = {name: np.asarray(values, dtype=np.float64) for name, values in series.items()}
    sentences = []
    for name, values in drawn.items():
        finite = np.flatnonzero(np.isfinite(values))
        if len(finite):
            low, high = finite[values[finite].argmin()], finite[values[finite].argmax()]
            numbers = {"low": values[low], "high": values[high], "mean": values[finite].mean()}
            places = {"low_place": _place(low, labels), "high_place": _place(high, labels)}
            told = {key: f"{number:.3g}" for key, number in numbers.items()}
            sentences.append(words["series"].format(name=name, count=len(finite), **told, **places))
    if len(drawn) == 2:
        change = np.subtract(*reversed(drawn.values()))
        finite = np.flatnonzero(np.isfinite(change))
        if len(finite):
            at = finite[np.abs(change[finite]).argmax()]
            before, after = drawn
            told = {"before": before, "after": after, "change": f"{change[at]:+.3g}", "place": _place(at, labels)}
            sentences.append(words["series_change"].format(**told))
    return " ".join(sentences)


def describe_pairs(names: Sequence[str], before, after, words: Mapping[str, str] | None = None) -> str:
    """Bars before and after, name by name, three significant digits; ``words`` replaces any of :data:`WORDS`."""
    words = {**WORDS, **(words or {})}
    return " ".join(
        words["pairs"].format(name=shown(name, 40), before=f"{was:.3g}", after=f"{now:.3g}")
        for name, was, now in zip(names, before, after)
    )


def _place(index: int, labels: Sequence[str] | None) -> str:
    return str(index) if labels is None else f"{index} ({shown(labels[index], 40)})"
