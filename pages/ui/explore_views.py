"""The pictures of the Explore page: all heads, one head, lines, norms, two texts."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import streamlit as st

from attention_core.analysis.norms import head_norms, layer_norms, value_norms
from attention_core.errors import AttentionError
from attention_core.figures.alt import describe, describe_grid
from attention_core.figures.lines import clicked_query, lines_figure
from attention_core.figures.panels import Panel, clicked_cell, panels_figure
from attention_core.layer.arithmetic import cell_arithmetic
from pages.ui.cells import number, show_cell
from pages.ui.explore_head import (
    KEY_ROWS,
    MAPS,
    Head,
    Window,
    block_of,
    member_of,
    read_head,
    read_panel,
    reading_title,
    whole_panel,
    window_of,
    windowed,
)
from pages.ui.explore_overview import show_overview
from pages.ui.layout import current_palette, narrow_screen, show_figure
from pages.ui.stages import array, head_panels, linked, panel, stage_info
from pages.ui.text import _

WIDE = 1060


@dataclass(frozen=True, eq=False)
class Table:
    """The numbers of a view, for csv and for those who read tables."""

    name: str
    values: np.ndarray
    rows: list[str]
    columns: list[str]


def narrow() -> bool:
    """Whether pictures stand one below the other."""
    shape = st.session_state["shape2"]
    return narrow_screen() if shape == "auto" else shape == "narrow"


def words() -> dict[str, str]:
    return {"masked": _("masked"), "not_finite": _("not a number"), "row": _("row"), "column": _("column")}


def show_all(head: Head) -> Table:
    """Every head of the kind as one tiled picture, and the chosen one beside it."""
    if narrow():
        show_overview(head, 420)
        return _detail(head, 400)
    left, right = st.columns([6, 5], gap="large")
    with left:
        show_overview(head, 600)
    with right:
        return _detail(head, 500)


def _detail(head: Head, width: int) -> Table:
    """The chosen head's weights as they are read; a click chooses a cell."""
    palette, read = current_palette(), read_head(head)
    window = window_of(*read.weights.shape[-2:])
    grid = [[read_panel(read, palette, window, title=f"A  {title_of(head)}")]]
    if not window.whole:
        grid = [[whole_panel(read, palette)], *grid]
    row, column = (
        member_of(read.row_members, st.session_state["cell_row"]),
        member_of(read.column_members, st.session_state["cell_col"]),
    )
    marks = {} if row is None or column is None else {"weights": (row, column)}

    def chosen(_key: str, row: int, column: int) -> None:
        state = st.session_state
        state["cell_stage"] = "weights"
        state["cell_row"], state["cell_col"] = read.row_members[row][0], read.column_members[column][0]

    show_grid(grid, "explore_detail", window, marks, chosen, width=width, shape=read.weights.shape[-2:])
    if row is not None and column is not None:
        value = float(read.weights[row, column])
        _sentence(read.row_labels[row], read.column_labels[column], value)
    return Table("weights", array(read.weights), read.row_labels, read.column_labels)


def _sentence(query: str, key: str, value: float) -> None:
    """The chosen cell in words; tokens are shown as they are."""
    st.text(
        _("{query} gives {value} of its attention to {key}.").format(query=query, key=key, value=number(value, 3)),
    )


def title_of(head: Head) -> str:
    """Layer, head and reading steps, for a picture's title."""
    place = _("layer {layer}, head {head}").format(layer=head.layer, head=head.head)
    steps = reading_title()
    return f"{place} · {steps}" if steps else place


def show_one(head: Head) -> Table:
    """Every stage of one head in one figure, and how a chosen number came about."""
    palette, steps, state = current_palette(), head.steps, st.session_state
    window = window_of(len(head.query_tokens), len(head.key_tokens))
    panels = head_panels(
        windowed(steps, window),
        palette,
        place=0,
        query_tokens=head.query_tokens[slice(*window.rows)],
        key_tokens=head.key_tokens[slice(*window.columns)],
        raw=state["unscaled"],
    )
    if head.hidden is None:
        del panels["masked_scores"]
    first = [panels.pop("query"), panels.pop("key"), panels.pop("value")]
    second = list(panels.values())
    if not window.whole:
        first.insert(0, whole_panel(replace_read(head), palette))
    if state["reading"]:
        read = read_head(head)
        second.append(
            read_panel(read, palette, window_of(*read.weights.shape[-2:]), title=f"A  {reading_title()}", key="read")
        )
    width = max(len(first), len(second))
    first += [None] * (width - len(first))
    second += [None] * (width - len(second))
    if state["cell_stage"] == "masked_scores" and head.hidden is None:
        state["cell_stage"] = "scores"
    values, rows, columns = _stage(head, state["cell_stage"])
    state["cell_row"] = min(state["cell_row"], values.shape[0] - 1)
    state["cell_col"] = min(state["cell_col"], values.shape[1] - 1)
    show_grid(
        [first, second],
        "explore_head",
        window,
        linked(state["cell_stage"], state["cell_row"], state["cell_col"]),
        _choose_stage,
        width=WIDE,
        shape=steps.weights.shape[-2:],
    )
    st.caption(_head_note(head))
    _show_arithmetic(head, values, rows, columns)
    labels = columns if columns is not None else [str(n) for n in range(values.shape[1])]
    return Table(state["cell_stage"], values, rows, labels)


def replace_read(head: Head):
    """The head's weights as the model computed them, in the form of a read map."""
    from attention_core.analysis.reading import read_map

    visible = None if head.hidden is None else head.steps.full_mask()[0, 0]
    return read_map(head.trace, head.kind, head.steps.weights[0, 0], visible)


def _head_note(head: Head) -> str:
    scale = number(head.steps.scale, 6)
    note = _("Q is shown before the scale; scores are Q·K times {scale} (1 / √head_dim).").format(scale=scale)
    if st.session_state["unscaled"]:
        note = _("Raw scores are Q·K; the scale {scale} (1 / √head_dim) comes after.").format(scale=scale)
    if head.hidden is None:
        return note + " " + _("No key is masked here.")
    return note + " " + _("Grey cells are masked: {count} of {all}.").format(
        count=f"{int(head.hidden.sum()):,}", all=f"{head.hidden.size:,}"
    )  # fmt: skip


def _choose_stage(key: str, row: int, column: int) -> None:
    if key == "read":
        return
    state = st.session_state
    state["cell_stage"], state["cell_row"], state["cell_col"] = key, row, column


def _stage(head: Head, stage: str) -> tuple[np.ndarray, list[str], list[str] | None]:
    """The matrix of a stage, its row labels, and its column labels (None = dimensions)."""
    steps = head.steps
    values = steps.masked_scores() if stage == "masked_scores" else getattr(steps, stage)
    rows = head.key_tokens if stage in KEY_ROWS else head.query_tokens
    return array(values[0, 0]), rows, head.key_tokens if stage in MAPS else None


def _show_arithmetic(head: Head, values: np.ndarray, rows: list[str], columns: list[str] | None) -> None:
    state, info = st.session_state, stage_info()
    names = [s for s in info if s in (*KEY_ROWS, *MAPS, "query", "context")]
    if head.hidden is None:
        names.remove("masked_scores")
    st.subheader(_("How this number came about"), anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.selectbox(
            _("Stage"), names, format_func=lambda s: f"{info[s].symbol}  {info[s].title}", key="cell_stage", width=210
        )
        stage = state["cell_stage"]
        st.selectbox(
            info[stage].rows.capitalize(), range(values.shape[0]), format_func=lambda i: f"{i} · {rows[i]}",
            key="cell_row", width=190,
        )  # fmt: skip
        st.selectbox(
            info[stage].columns.capitalize(), range(values.shape[1]),
            format_func=lambda i: f"{i} · {columns[i]}" if columns else str(i), key="cell_col", width=190,
        )  # fmt: skip
    try:
        projections = head.trace.projections(head.kind, head.layer)
    except AttentionError:
        # Some families hide their projections; everything after Q, K and V has its arithmetic all the same.
        projections = None
    if projections is None and stage in ("query", "key", "value"):
        st.caption(_("{value}: this model does not show what made it.").format(
            value=number(float(values[state["cell_row"], state["cell_col"]]), 9)))  # fmt: skip
        return
    cell = cell_arithmetic(
        head.steps,
        projections,
        stage,
        head=head.head,
        row=state["cell_row"],
        column=state["cell_col"],
        heads=[head.head],
    )
    show_cell(cell, head.query_tokens, head.key_tokens)


def show_lines(head: Head) -> Table:
    """The weights as lines from token to token."""
    palette, read, state = current_palette(), read_head(head), st.session_state
    window = window_of(*read.weights.shape[-2:])
    hidden = None if read.visible is None else ~read.visible.cpu().numpy()
    chosen = member_of(read.row_members, state["chosen"][0]) if state["chosen"] else None
    local = None if chosen is None else window.local(chosen, None)
    figure = lines_figure(
        window.cut(array(read.weights)),
        query_labels=read.row_labels[slice(*window.rows)],
        key_labels=read.column_labels[slice(*window.columns)],
        palette=palette,
        selected_query=None if local is None else local[0],
        threshold=state["least"] / 100,
        hidden=window.cut(hidden),
        words={"query": _("query"), "key": _("key")},
    )

    def take() -> None:
        row = clicked_query(state["explore_lines"].selection.points)
        if row is not None and row + window.rows[0] < len(read.row_members):
            place = read.row_members[row + window.rows[0]][0]
            state["chosen"] = [] if state["chosen"][:1] == [place] else [place]

    made = read_panel(read, palette, window, title=title_of(head))
    left, right = st.columns([3, 2], gap="large") if not narrow() else (st.container(), st.container())
    with left:
        show_figure(figure, "explore_lines", describe(made), take, picture=state["picture"])
    with right:
        st.markdown(f"**{title_of(head)}**")
        st.caption(
            _("Each line is a weight: stronger and wider is more. Click a token on the left to keep only its lines.")
        )
        names = [f"{place} · {label}" for place, label in enumerate(read.row_labels)]
        places = [group[0] for group in read.row_members]
        current = None if chosen is None else places[chosen]
        st.selectbox(
            _("Query"), [None, *places], index=0 if current is None else places.index(current) + 1,
            format_func=lambda p: _("All") if p is None else names[places.index(p)],
            key="lines_query", on_change=_take_query,
        )  # fmt: skip
        st.slider(_("Smallest weight with a line, %"), 1, 50, key="least")
    return Table("weights", array(read.weights), read.row_labels, read.column_labels)


def _take_query() -> None:
    place = st.session_state["lines_query"]
    st.session_state["chosen"] = [] if place is None else [place]


def show_norms(head: Head) -> Table:
    """The weights beside the weights times the length of what they carry."""
    palette, state = current_palette(), st.session_state
    projections = head.trace.projections(head.kind, head.layer)
    if state["norm_of"] == "layer":
        norms = layer_norms(head.trace.steps(head.kind, head.layer), projections)[0]
        title = _("‖Σ α f(x)‖  All heads of layer {layer} together").format(layer=head.layer)
    else:
        norms = head_norms(head.steps, projections, [head.head])[0, 0]
        title = _("‖α f(x)‖  Weights times lengths")
    lengths = value_norms(head.steps, projections, [head.head])[0]
    raw, weighted = read_head(head), read_head(head, norms)
    window = window_of(*raw.weights.shape[-2:])
    top = float(weighted.weights.max())
    steps = reading_title()
    title = f"{title} · {steps}" if steps else title
    grid = [
        [
            read_panel(raw, palette, window, title=f"A  {title_of(head)}"),
            read_panel(weighted, palette, window, title, "norms", top),
        ]
    ]
    carried = panel(
        "weights", array(lengths)[:, slice(*window_of(*head.steps.weights.shape[-2:]).columns)], palette,
        row_labels=["‖f(x)‖"], limits=(0.0, float(lengths.max()) or 1.0), title=_("‖f(x)‖  Length of what each key carries"),
        column_labels=head.key_tokens[slice(*window_of(*head.steps.weights.shape[-2:]).columns)],
    )  # fmt: skip
    grid.append([replace(carried, key="lengths", row_title=""), None])
    if not window.whole:
        grid.insert(0, [whole_panel(raw, palette), whole_panel(weighted, palette, "whole_norms", top)])
    of = {"head": _("This head"), "layer": _("All heads of the layer together")}
    st.segmented_control(
        _("Norms of"), list(of), format_func=of.get, key="norm_of", required=True, label_visibility="collapsed"
    )
    show_grid(grid, "explore_norms", window, {}, lambda *_cell: None, width=WIDE, shape=raw.weights.shape[-2:])
    st.caption(
        _("A weight says how a query shares out its attention, not what that changes. Each key carries the vector f(x) = (x W_V + "
          "b_V) W_O; a large weight on a short vector adds next to nothing (Kobayashi et al. 2020). On the right, weights and "
          "lengths are multiplied; the colours run from 0 to {top}.").format(top=number(top, 3))
    )  # fmt: skip
    return Table("norms", array(weighted.weights), weighted.row_labels, weighted.column_labels)


def show_two(first: Head, second: Head) -> Table:
    """One head on two texts, with one colour range."""
    palette = current_palette()
    panels, wholes = [], []
    for head, key, name in ((first, "weights", _("first text")), (second, "second", _("second text"))):
        read = read_head(head)
        window = window_of(*read.weights.shape[-2:])
        panels.append(read_panel(read, palette, window, f"A  {name} · {title_of(head)}", key))
        if not window.whole:
            wholes.append(whole_panel(read, palette, f"whole_{key}"))
    grid = [wholes, panels] if wholes else [panels]
    show_grid(grid, "explore_two", window, {}, lambda *_cell: None, width=WIDE, shape=read.weights.shape[-2:])
    st.caption(_("The same head reads both texts; the colours mean the same on both sides."))
    read = read_head(first)
    return Table("weights", array(read.weights), read.row_labels, read.column_labels)


def show_grid(
    grid: list[list[Panel | None]],
    key: str,
    window: Window,
    marks: dict,
    chosen: Callable[[str, int, int], None],
    *,
    width: int,
    shape: tuple[int, int],
) -> None:
    """One figure of panels. A click on an exact panel chooses a cell, one on a whole map moves the window there."""
    if narrow():
        grid, width = [[p] for line in grid for p in line if p is not None], 400
    shown = {p.key for line in grid for p in line if p is not None}
    figure = panels_figure(
        grid,
        palette=current_palette(),
        selected={k: local for k, m in marks.items() if k in shown and (local := _local(window, k, *m)) is not None},
        width=width,
        words=words(),
    )

    def take() -> None:
        cell = clicked_cell(grid, st.session_state[key].selection.points)
        if cell is None:
            return
        name, row, column = cell
        if name.startswith("whole"):
            rows, columns = block_of(*shape)
            # The window stands around the clicked block.
            st.session_state["from_q"] = max(0, row * rows - 16)
            st.session_state["from_k"] = max(0, column * columns - 16)
            return
        row += window.columns[0] if name in KEY_ROWS else window.rows[0]
        column += 0 if name in (*KEY_ROWS, "query", "context") else window.columns[0]
        chosen(name, row, column)

    show_figure(figure, key, describe_grid(grid), take, picture=st.session_state["picture"])


def _local(window: Window, stage: str, row: int | None, column: int | None) -> tuple[int | None, int | None] | None:
    """A marked cell of the whole stage as one of what is shown."""
    if stage in KEY_ROWS:
        moved = window.local(None, row)
        return None if moved is None else (moved[1], column)
    if stage in ("query", "context"):
        moved = window.local(row, None)
        return None if moved is None else (moved[0], column)
    return window.local(row, column)


def show_table(table: Table) -> None:
    """The numbers of the view as a table."""
    rows = [f"{n} {label}" for n, label in enumerate(table.rows)]
    columns = [f"{n} {label}" for n, label in enumerate(table.columns)]
    st.dataframe(
        pd.DataFrame(table.values[:EXACT_ROWS], index=rows[:EXACT_ROWS], columns=columns),
        alt=_("The numbers of {title}.").format(title=table.name),
    )


EXACT_ROWS = 256
