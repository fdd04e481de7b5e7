"""How the Explore page puts panels on the screen: one figure, its clicks, and the whole of a map that is too long for cells."""

from collections.abc import Callable

import streamlit as st

from attention_core.analysis.compare import largest_of_blocks
from attention_core.analysis.reading import ReadMap
from attention_core.figures.alt import describe_grid
from attention_core.figures.overview import LARGEST, clicked_place, overview_figure
from attention_core.figures.panels import Panel, clicked_cell, panels_figure
from pages.ui.cells import number
from pages.ui.explore_head import KEY_ROWS, SPAN, Window
from pages.ui.layout import current_palette, narrow_screen, show_figure
from pages.ui.stages import array
from pages.ui.text import _

Grid = list[list[Panel | None]]


def narrow() -> bool:
    """Whether pictures stand one below the other."""
    shape = st.session_state["shape2"]
    return narrow_screen() if shape == "auto" else shape == "narrow"


def show_panels(
    grid: Grid,
    key: str,
    window: Window,
    *,
    width: int,
    marks: dict[str, tuple[int | None, int | None]] | None = None,
    chosen: Callable[[str, int, int], None] | None = None,
) -> None:
    """One figure of panels.

    Args:
        grid: panels, of the part that the window shows.
        key: of the figure.
        window: where that part lies; marks and clicks count in the whole map.
        width: px that the figure will about have.
        marks: the marked cell of each panel, by the panel's key.
        chosen: called with panel, row and column when a cell is clicked.
    """
    if narrow():
        grid, width = [[p] for line in grid for p in line if p is not None], 400
    shown = {p.key for line in grid for p in line if p is not None}
    selected = {name: _local(window, name, *cell) for name, cell in (marks or {}).items() if name in shown}
    figure = panels_figure(
        grid,
        palette=current_palette(),
        selected={name: cell for name, cell in selected.items() if cell is not None},
        clickable=True,
        width=width,
        words={"masked": _("masked"), "not_finite": _("not a number"), "row": _("row"), "column": _("column")},
    )

    def take() -> None:
        cell = clicked_cell(grid, st.session_state[key].selection.points)
        if cell is None:
            return
        name, row, column = cell
        row += window.columns[0] if name in KEY_ROWS else window.rows[0]
        column += 0 if name in (*KEY_ROWS, "query", "context") else window.columns[0]
        chosen(name, row, column)

    show_figure(
        figure,
        key,
        describe_grid(grid),
        take if chosen is not None else None,
        picture=st.session_state["picture"],
        wide=max(map(len, grid)) > 1,
    )


def show_whole(read: ReadMap, key: str, window: Window, *, width: int, top: float = 1.0, signed: bool = False) -> None:
    """All of a long map as a small picture; a click on it moves the window.

    Args:
        read: the map.
        key: of the figure.
        window: framed.
        width: px that the figure will about have.
        top: value at the end of the colours.
        signed: whether they run from -top, as for a difference; a pixel then keeps the value of largest size.
    """
    values = array(read.weights)
    shown = largest_of_blocks(values, *(-(-count // LARGEST) for count in values.shape)) if signed else values
    hidden = None if read.visible is None else ~read.visible.cpu().numpy()
    figure = overview_figure(
        shown,
        palette=current_palette(),
        limits=(-(top or 1.0) if signed else 0.0, top or 1.0),
        hidden=hidden,
        window=(*window.rows, *window.columns),
        width=width,
        words={"row": _("query"), "column": _("key"), "largest": _("largest"), "masked": _("masked")},
    )

    def move() -> None:
        place = clicked_place(st.session_state[key].selection.points)
        if place is not None:
            # The clicked place comes to stand in the middle.
            st.session_state["from_q"], st.session_state["from_k"] = (max(0, n - SPAN // 2) for n in place)

    rows, columns = values.shape
    alt = _("The whole map of {rows} queries and {columns} keys, the largest weight of each block.")
    if signed:
        alt = _("The whole difference of {rows} queries and {columns} keys, the value of largest size of each block.")
    show_figure(figure, key, alt.format(rows=rows, columns=columns), move, picture=st.session_state["picture"])
    if signed:
        st.caption(
            _("The whole difference, {rows} × {columns}; a pixel is what is largest in its block, up or down, from −{top} to "
              "{top}.").format(rows=f"{rows:,}", columns=f"{columns:,}", top=number(top, 3))
        )  # fmt: skip
        return
    st.caption(
        _("The whole map, {rows} × {columns}; a pixel is the largest weight of its block. Click to move the frame, whose exact "
          "numbers are shown.").format(rows=f"{rows:,}", columns=f"{columns:,}")
    )  # fmt: skip


def _local(window: Window, stage: str, row: int | None, column: int | None) -> tuple[int | None, int | None] | None:
    """A marked cell of the whole stage as one of what is shown; None outside."""
    if stage in KEY_ROWS:
        moved = window.local(None, row)
        return None if moved is None else (moved[1], column)
    if stage in ("query", "context"):
        moved = window.local(row, None)
        return None if moved is None else (moved[0], column)
    return window.local(row, column)
