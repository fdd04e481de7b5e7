"""One matrix to draw: what it is, which of its cells are seen, and its colour range."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import AttentionError


@dataclass(frozen=True, eq=False)
class Panel:
    """One matrix to draw.

    Args:
        key: names the panel in clicks and selections; unique in a grid.
        values: (rows, columns), any real dtype. Row 0 is drawn on top. Cells that are not finite are gaps.
        title, caption: shown over the map, the caption small and muted (say, the shape).
        row_labels, column_labels: one token each, or None for the numbers 0, 1, 2, ...
        row_title, column_title: what the rows and columns are ("query", "key").
        scale: "weights" runs from 0 up, "signed" is centred on 0.
        limits: the colour range; None is (0, 1) for weights and ±max of the finite visible cells for signed values.
        group: panels of one group share one range and, in each row of the grid, one colour bar.
        bar_title: written along the colour bar where it fits: what it counts, and in which unit.
        hidden: bool (rows, columns), True where a cell is masked: a gap that does not stretch the range.
        padded: rows at the end that are padding: they keep their numbers and are greyed.
        color: of the title, say the palette's colour for queries.
    """

    key: str
    values: np.ndarray
    title: str = ""
    caption: str = ""
    row_labels: Sequence[str] | None = None
    column_labels: Sequence[str] | None = None
    row_title: str = ""
    column_title: str = ""
    scale: str = "signed"
    limits: tuple[float, float] | None = None
    group: str | None = None
    bar_title: str = ""
    hidden: np.ndarray | None = None
    padded: int = 0
    color: str | None = None

    def __post_init__(self) -> None:
        if np.ndim(self.values) != 2:
            raise AttentionError(
                "panel {key}: values must have the axes (rows, columns), not the shape {shape}",
                key=self.key,
                shape=np.shape(self.values),
            )
        if self.scale not in ("weights", "signed"):
            raise AttentionError(
                "panel {key}: scale must be weights or signed, not {scale}", key=self.key, scale=self.scale
            )
        if self.hidden is not None and np.shape(self.hidden) != np.shape(self.values):
            raise AttentionError(
                "panel {key}: hidden has the shape {hidden}, values {values}",
                key=self.key,
                hidden=np.shape(self.hidden),
                values=np.shape(self.values),
            )
        for labels, count in zip((self.row_labels, self.column_labels), np.shape(self.values)):
            if labels is not None and len(labels) != count:
                raise AttentionError(
                    "panel {key}: {labels} labels for {count} positions", key=self.key, labels=len(labels), count=count
                )


def drawn(panel: Panel) -> np.ndarray:
    """What the heatmap of a panel gets: float32 (rows, columns), NaN where a cell is masked or not finite."""
    values = np.asarray(panel.values)
    largest = np.finfo(np.float32).max
    with np.errstate(over="ignore", invalid="ignore"):
        cells = np.clip(values, -largest, largest).astype(np.float32)
    gaps = ~np.isfinite(values)
    if panel.hidden is not None:
        gaps |= np.asarray(panel.hidden, dtype=bool)
    cells[gaps] = np.nan
    return cells


def ranges(panels: Mapping[object, Panel], cells: Mapping[object, np.ndarray]) -> dict[object, tuple[float, float]]:
    """The colour range of each panel; panels of one group share the widest.

    Args:
        panels: panels by place.
        cells: :func:`drawn` of each; gaps do not count.

    Returns:
        ``(low, high)`` for each place, low < high always.
    """
    found = {}
    for at, panel in panels.items():
        if panel.limits is not None:
            found[at] = (float(panel.limits[0]), float(panel.limits[1]))
        elif panel.scale == "weights":
            found[at] = (0.0, 1.0)
        else:
            visible = np.abs(cells[at][np.isfinite(cells[at])])
            largest = float(visible.max()) if visible.size else 0.0
            found[at] = (-largest, largest)
    for group in {panel.group for panel in panels.values()} - {None}:
        members = [at for at, panel in panels.items() if panel.group == group]
        shared = min(found[at][0] for at in members), max(found[at][1] for at in members)
        found.update(dict.fromkeys(members, shared))
    return {at: (low, high) if high > low else (low - 1.0, low + 1.0) for at, (low, high) in found.items()}
