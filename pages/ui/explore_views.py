"""The views of the Explore page: all heads, one head, lines, norms, two texts."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import streamlit as st

from attention_core.analysis.metrics import first_mass, next_mass, previous_mass
from attention_core.analysis.norms import head_norms, layer_norms, value_norms
from attention_core.analysis.reading import ReadMap, read_map
from attention_core.errors import AttentionError
from attention_core.figures.alt import describe
from attention_core.figures.lines import clicked_query, lines_figure
from attention_core.layer.arithmetic import cell_arithmetic
from pages.ui.cells import number, show_cell, show_table
from pages.ui.explore_head import (
    KEY_ROWS,
    MAPS,
    Head,
    member_of,
    read_head,
    read_panel,
    reading_title,
    window_of,
    windowed,
)
from pages.ui.explore_overview import show_overview
from pages.ui.explore_pictures import narrow, show_panels, show_whole
from pages.ui.layout import current_palette, show_figure
from pages.ui.stages import array, head_panels, linked, panel, stage_info
from pages.ui.text import _

WIDE = 1060
_MOST_TABLE_ROWS = 256


@dataclass(frozen=True, eq=False)
class Table:
    """The numbers of a view, for csv and for those who read tables."""

    name: str
    values: np.ndarray
    rows: list[str]
    columns: list[str]


def title_of(head: Head) -> str:
    """Layer, head and reading steps, for a picture's title."""
    place = _("layer {layer}, head {head}").format(layer=head.layer, head=head.head)
    steps = reading_title()
    return f"{place} · {steps}" if steps else place


def show_all(head: Head) -> Table:
    """Every head of the kind as one tiled picture, and the chosen one beside it."""
    left, right = (st.container(), st.container()) if narrow() else st.columns([6, 5], gap="large")
    with left:
        show_overview(head, 420 if narrow() else 600)
        if not narrow():
            _in_numbers(head)
    with right:
        table = _detail(head)
    if narrow():
        _in_numbers(head)
    return table


def _detail(head: Head) -> Table:
    """The chosen head's weights as they are read; a click chooses a cell."""
    state, read = st.session_state, read_head(head)
    window = window_of(*read.weights.shape[-2:])
    if not window.whole:
        show_whole(read, "explore_whole", window, width=500)
    row, column = member_of(read.row_members, state["cell_row"]), member_of(read.column_members, state["cell_col"])

    def chosen(_key: str, row: int, column: int) -> None:
        state["cell_stage"] = "weights"
        state["cell_row"], state["cell_col"] = read.row_members[row][0], read.column_members[column][0]

    marks = {} if row is None or column is None else {"weights": (row, column)}
    grid = [[read_panel(read, current_palette(), window, f"A  {title_of(head)}")]]
    show_panels(grid, "explore_detail", window, width=500, marks=marks, chosen=chosen)
    if marks:
        # Tokens are shown as they are: st.text interprets nothing.
        st.text(
            _("{query} gives {value} of its attention to {key}.").format(
                query=read.row_labels[row], value=number(float(read.weights[row, column]), 3), key=read.column_labels[column]
            )
        )  # fmt: skip
    return Table("weights", array(read.weights), read.row_labels, read.column_labels)


def _in_numbers(head: Head) -> None:
    """A few numbers that tell heads apart at a glance, over the rows that have a choice."""
    steps = head.steps
    rows = [(_("largest weight of a row, on average"), float(steps.weights.max(-1).values.mean()))]
    rows.append((_("on the first token"), float(first_mass(steps.weights, mask=steps.mask))))
    if head.kind != "cross":
        rows.append((_("on the token before"), float(previous_mass(steps.weights, mask=steps.mask))))
        if head.kind == "encoder":
            rows.append((_("on the token after"), float(next_mass(steps.weights, mask=steps.mask))))
    title = _("layer {layer}, head {head}").format(layer=head.layer, head=head.head)
    show_table((title, _("share")), [(name, number(value, 3)) for name, value in rows if value == value])


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
        # Without a mask the masked scores are the scores.
        del panels["masked_scores"]
        if state["cell_stage"] == "masked_scores":
            state["cell_stage"] = "scores"
    first = [panels.pop("query"), panels.pop("key"), panels.pop("value")]
    second = list(panels.values())
    if state["reading"]:
        read = read_head(head)
        part = window_of(*read.weights.shape[-2:])
        second.append(read_panel(read, palette, part, f"A  {reading_title()}", "read"))
    first += [None] * (len(second) - len(first))
    values, rows, columns = _stage(head, state["cell_stage"])
    state["cell_row"] = min(state["cell_row"], values.shape[0] - 1)
    state["cell_col"] = min(state["cell_col"], values.shape[1] - 1)
    if not window.whole:
        show_whole(_as_computed(head), "explore_whole", window, width=420)
    show_panels(
        [first, second],
        "explore_head",
        window,
        width=WIDE,
        marks=linked(state["cell_stage"], state["cell_row"], state["cell_col"]),
        chosen=_choose_stage,
    )
    st.caption(_head_note(head))
    _show_arithmetic(head, values, rows, columns)
    return Table(state["cell_stage"], values, rows, columns or [str(n) for n in range(values.shape[1])])


def _as_computed(head: Head) -> ReadMap:
    """The head's weights as the model computed them, in the form of a read map."""
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
    if key != "read":
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
    stage = state["cell_stage"]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.selectbox(
            _("Stage"), names, format_func=lambda s: f"{info[s].symbol}  {info[s].title}", key="cell_stage", width=210
        )
        st.selectbox(
            info[stage].rows.capitalize(),
            range(values.shape[0]),
            format_func=lambda i: f"{i} · {rows[i]}",
            key="cell_row",
            width=190,
        )
        st.selectbox(
            info[stage].columns.capitalize(),
            range(values.shape[1]),
            format_func=lambda i: f"{i} · {columns[i]}" if columns else str(i),
            key="cell_col",
            width=190,
        )
    projections = None
    if stage in ("query", "key", "value"):
        try:
            projections = head.trace.projections(head.kind, head.layer)
        except AttentionError:
            # Some families keep their projections in a form of their own; everything after them has its arithmetic.
            value = float(values[state["cell_row"], state["cell_col"]])
            st.caption(_("{value}: this model does not show what made it.").format(value=number(value, 9)))
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
    query = member_of(read.row_members, state["chosen"][0]) if state["chosen"] else None
    local = None if query is None else window.local(query, None)
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
    places = [group[0] for group in read.row_members]

    def take() -> None:
        row = clicked_query(state["explore_lines"].selection.points)
        if row is not None and row + window.rows[0] < len(places):
            place = places[row + window.rows[0]]
            state["chosen"] = [] if state["chosen"][:1] == [place] else [place]

    def take_query() -> None:
        state["chosen"] = [] if state["lines_query"] is None else [state["lines_query"]]

    left, right = (st.container(), st.container()) if narrow() else st.columns([3, 2], gap="large")
    with left:
        made = read_panel(read, palette, window, title_of(head))
        show_figure(figure, "explore_lines", describe(made), take, picture=state["picture"])
    with right:
        st.markdown(f"**{title_of(head)}**")
        st.caption(
            _("Each line is a weight: stronger and wider is more. Click a token on the left to keep only its lines.")
        )
        state["lines_query"] = None if query is None else places[query]
        st.selectbox(
            _("Query"),
            [None, *places],
            format_func=lambda p: _("All") if p is None else f"{p} · {read.row_labels[places.index(p)]}",
            key="lines_query",
            on_change=take_query,
        )
        st.slider(_("Smallest weight with a line, %"), 1, 50, key="least")
        if not window.whole:
            show_whole(read, "explore_whole", window, width=400)
    return Table("weights", array(read.weights), read.row_labels, read.column_labels)


def show_norms(head: Head) -> Table:
    """The weights beside the weights times the length of what they carry."""
    palette, state = current_palette(), st.session_state
    of = {"head": _("This head"), "layer": _("All heads of the layer together")}
    st.segmented_control(
        _("Norms of"), list(of), format_func=of.get, key="norm_of", required=True, label_visibility="collapsed"
    )
    projections = head.trace.projections(head.kind, head.layer)
    if state["norm_of"] == "layer":
        norms = layer_norms(head.trace.steps(head.kind, head.layer), projections)[0]
        title = _("‖Σ α f(x)‖  All heads of layer {layer}").format(layer=head.layer)
    else:
        norms = head_norms(head.steps, projections, [head.head])[0, 0]
        title = _("‖α f(x)‖  Weights times lengths")
    steps = reading_title()
    title = f"{title} · {steps}" if steps else title
    raw, weighted = read_head(head), read_head(head, norms)
    window = window_of(*raw.weights.shape[-2:])
    top = float(weighted.weights.max()) if weighted.weights.numel() else 1.0
    if not window.whole:
        show_whole(weighted, "explore_whole", window, width=420, top=top)
    grid = [
        [
            read_panel(raw, palette, window, f"A  {title_of(head)}"),
            read_panel(weighted, palette, window, title, "norms", top),
        ]
    ]
    if state["norm_of"] == "head":
        grid.append([_lengths(head, value_norms(head.steps, projections, [head.head])[0]), None])
    show_panels(grid, "explore_norms", window, width=WIDE)
    st.caption(
        _("A weight says how a query shares out its attention, not what that changes. Each key carries the vector f(x) = (x W_V + "
          "b_V) W_O; a large weight on a short vector adds next to nothing (Kobayashi et al. 2020). On the right, weights are "
          "multiplied by the lengths of these vectors; its colours run from 0 to {top}.").format(top=number(top, 3))
    )  # fmt: skip
    return Table("norms", array(weighted.weights), weighted.row_labels, weighted.column_labels)


def _lengths(head: Head, lengths):
    """How long the vector is that each key carries, as a panel of one row."""
    window = window_of(len(head.query_tokens), len(head.key_tokens))
    made = panel(
        "weights",
        array(lengths)[:, slice(*window.columns)],
        current_palette(),
        row_labels=["‖f(x)‖"],
        column_labels=head.key_tokens[slice(*window.columns)],
        limits=(0.0, float(lengths.max()) or 1.0),
        title=_("‖f(x)‖  Length of what each key carries"),
    )
    return replace(made, key="lengths", row_title="")


def show_two(first: Head, second: Head) -> Table:
    """One head on two texts, with one colour range."""
    reads = [(read_head(head), head, key) for head, key in ((first, "weights"), (second, "second"))]
    windows = [window_of(*read.weights.shape[-2:]) for read, _head, _key in reads]
    if not all(window.whole for window in windows):
        for column, (read, _head, key), window in zip(st.columns(2), reads, windows):
            with column:
                show_whole(read, f"explore_whole_{key}", window, width=480)
    names = [_("first text"), _("second text")]
    grid = [
        [
            read_panel(read, current_palette(), window, f"A  {name} · {title_of(head)}", key)
            for (read, head, key), window, name in zip(reads, windows, names)
        ]
    ]
    show_panels(grid, "explore_two", windows[0], width=WIDE)
    st.caption(_("The same head reads both texts; the colours mean the same on both sides."))
    read = reads[0][0]
    return Table("weights", array(read.weights), read.row_labels, read.column_labels)


def show_numbers(table: Table) -> None:
    """The numbers of the view as a table; the csv has all rows of a long one."""
    rows = [f"{n} {label}" for n, label in enumerate(table.rows)][:_MOST_TABLE_ROWS]
    columns = [f"{n} {label}" for n, label in enumerate(table.columns)]
    st.dataframe(
        pd.DataFrame(table.values[:_MOST_TABLE_ROWS], index=rows, columns=columns),
        alt=_("The numbers of {title}.").format(title=table.name),
    )
