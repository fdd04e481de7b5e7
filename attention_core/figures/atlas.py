"""The atlas: one number of every head of a model, layers down and heads across, a panel for each kind of attention."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..errors import AttentionError
from .palette import Palette
from .panel import Panel
from .panels import clicked_cell, panels_figure

WORDS = {"row": "layer", "column": "head", "not_finite": "no value", "masked": "no value"}
"""The words of a figure; pages pass translated ones."""
Values = Mapping[str, np.ndarray]


def atlas_figure(
    values: Values,
    *,
    palette: Palette,
    measure: str,
    unit: str = "",
    titles: Mapping[str, str] | None = None,
    signed: bool = False,
    limits: tuple[float, float] | None = None,
    selected: tuple[str, int, int] | None = None,
    columns: int = 1,
    width: int = 960,
    words: Mapping[str, str] | None = None,
) -> go.Figure:
    """Every head of a model in one figure; all kinds share one colour range.

    Args:
        values: for each kind (layers, heads), in any number of either; what is not finite is a gap.
        palette: the colours.
        measure, unit: what the number is, and what it is counted in; written over the panels and along the colour bars.
        titles: what to call a kind; else its name.
        signed: colours run from -max over 0 to max; else from the smallest value (or 0, where that is smaller) to the largest.
        limits: values at the two ends of the colours, in place of that.
        selected: (kind, layer, head), outlined.
        columns: panels in a row.
        width: px that the figure will about have; how much is printed follows from it.
        words: replaces any of :data:`WORDS`.

    Raises:
        AttentionError: no kind, or values that are no (layers, heads).
    """
    words = {**WORDS, **(words or {})}
    grid = _grid(values, columns, measure, unit, titles or {}, signed, limits, words)
    most = max(panel.values.shape[1] for line in grid for panel in line if panel is not None)
    fits = (width / min(columns, len(values)) - 90) / most >= 30
    return panels_figure(grid, palette=palette, selected=selected, numbers=fits, width=width, words=words)


def clicked_head(values: Values, points: Sequence[Mapping], *, columns: int = 1) -> tuple[str, int, int] | None:
    """(kind, layer, head) of the cell that was clicked, from a selection's points; None if none was.

    Args:
        values, columns: what the figure was made of.
        points: as ``st.plotly_chart`` returns them.
    """
    return clicked_cell(_grid(values, columns, "", "", {}, False, None, WORDS), points)


def atlas_panels(values: Values, *, titles: Mapping[str, str] | None = None, measure: str = "") -> list[list[Panel]]:
    """The panels, for :func:`~attention_core.figures.alt.describe_grid`: their titles name kind and measure."""
    titles = {kind: f"{(titles or {}).get(kind, kind)}, {measure}".removesuffix(", ") for kind in values}
    return _grid(values, 1, "", "", titles, False, None, WORDS)


def _grid(values: Values, columns: int, measure, unit, titles, signed: bool, limits, words) -> list[list[Panel | None]]:
    if not values or columns < 1:
        raise AttentionError(
            "an atlas needs at least one kind and one column, got {kinds} and {columns}",
            kinds=len(values),
            columns=columns,
        )
    finite = np.concatenate([x[np.isfinite(x)] for x in (np.asarray(x, dtype=np.float64) for x in values.values())])
    if limits is None and not signed:
        limits = (min(0.0, float(finite.min())), float(finite.max())) if finite.size else (0.0, 1.0)
    counted = f"{measure} ({unit})" if unit else measure
    panels: list[Panel | None] = [
        Panel(
            key=kind,
            values=np.asarray(table),
            title=titles.get(kind, kind),
            caption=counted,
            row_title=words["row"],
            column_title=words["column"],
            scale="signed" if signed else "weights",
            limits=limits,
            group="atlas",
            bar_title=counted,
        )
        for kind, table in values.items()
    ]
    panels += [None] * (-len(panels) % columns)
    return [panels[start : start + columns] for start in range(0, len(panels), columns)]
