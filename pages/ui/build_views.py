"""What the Build page shows: toolbar, pictures, the chosen cell, the cost."""

import numpy as np
import pandas as pd
import streamlit as st

from attention_core.figures.panels import Panel, clicked_cell, panels_figure
from attention_core.figures.tiles import clicked_tile, tiles_figure
from attention_core.layer.arithmetic import STAGES, cell_arithmetic
from attention_core.layer.projections import merge_heads
from pages.ui import build_controls
from pages.ui.cells import number, show_cell
from pages.ui.display_controls import display_controls
from pages.ui.layout import current_palette, narrow_screen, show_figure
from pages.ui.page_tools import not_understood, page_tools, say
from pages.ui.playground import SETTINGS, Playground, toggle_cell
from pages.ui.stages import array, head_panels, linked, panel, stage_info
from pages.ui.text import _, error_text

_MAPS = ("scores", "masked_scores", "weights", "dropped_weights")
_FIGURE = "build_figure"
_WIDE = 1060


def toolbar(page: str) -> None:
    """View, head, and what acts on the whole page."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="toolbar"):
        views = {"one": _("One head"), "all": _("All heads"), "layer": _("Whole layer")}
        st.segmented_control(
            _("View"), list(views), format_func=views.get, key="view", required=True, label_visibility="collapsed"
        )
        if st.session_state.view == "one":
            names = [_("Head {head}").format(head=h) for h in range(st.session_state.heads)]
            st.selectbox(
                _("Head"),
                range(st.session_state.heads),
                format_func=names.__getitem__,
                key="head",
                width=110,
                label_visibility="collapsed",
            )
        elif st.session_state.view == "all":
            info = stage_info()
            st.selectbox(
                _("Stage"),
                ("weights", "scores", "query", "key", "value", "context"),
                format_func=lambda s: info[s].title,
                key="tiles",
                width=130,
                label_visibility="collapsed",
            )
        names = {name: text for name, (text, _changes) in build_controls.examples().items()}
        with st.popover(_("Examples")):
            for name, title in names.items():
                st.button(
                    title,
                    key=f"example_{name}",
                    on_click=build_controls.apply_example,
                    args=(name,),
                    type="tertiary",
                    width="stretch",
                )
        with st.popover(_("Display")):
            display_controls("shape", raw="raw")
        page_tools(page, SETTINGS)


def notices(ignored: list[str], clamped: list[str], built: Playground | None) -> None:
    """What was left out, cut or changed, in one quiet line each."""
    lines = [*clamped, *not_understood(ignored)]
    if built is not None:
        lines += [error_text(notice) for notice in built.notices]
        lines += _number_notices(built)
    say(lines)


def _number_notices(built: Playground) -> list[str]:
    steps, lines = built.steps, []
    seen = steps.scores.masked_select(steps.full_mask())
    odd = int((~seen.isfinite()).sum())
    if odd:
        lines.append(
            _("{odd} of {count} visible scores are not finite: the numbers are too large for this format. They are left blank; "
              "choose float32 or float64, or smaller inputs.").format(odd=odd, count=seen.numel())
        )  # fmt: skip
    empty = int((~steps.full_mask()[0, 0].any(-1)).sum())
    if empty:
        lines.append(
            _("Queries that see no key: {count}. Their weights and context are 0, and their rows are blank.").format(
                count=empty
            )
        )
    if built.padded_queries:
        lines.append(
            _("The last {count} rows are padding: they look at others, but nobody reads them.").format(
                count=built.padded_queries
            )
        )
    return lines


def show_one_head(built: Playground) -> None:
    """Every stage of one head in one figure."""
    colours = current_palette()
    panels = head_panels(
        built.steps,
        colours,
        place=st.session_state["head"],
        query_tokens=built.query_tokens,
        key_tokens=built.key_tokens,
        raw=st.session_state.raw,
        padded_queries=built.padded_queries,
    )
    _formulas(built, [name for name in panels])
    first = [panels["query"], panels["key"], panels["value"]]
    second = [panels[name] for name in panels if name in (*_MAPS, "context")]
    first += [None] * (len(second) - len(first))
    _figure([first, second], _one_head_alt(built))


def show_layer(built: Playground) -> None:
    """Input, weight matrices, concatenation and output."""
    colours = current_palette()
    layer, steps, rows = built.layer, built.steps, {"row_labels": built.query_tokens}
    first: list[Panel | None] = []
    if built.x is not None:
        first.append(panel("input", array(built.x[0]), colours, **rows))
        if built.x_key is not built.x:
            first.append(panel("key_input", array(built.x_key[0]), colours, row_labels=built.key_tokens))
    names = ("query", "key", "value") if built.projections is not None else ()
    second = [panel(f"{name}_weight", array(getattr(layer, f"{name}_weight")), colours) for name in (*names, "out")]
    third = [
        panel("concatenation", array(merge_heads(steps.context)[0]), colours, **rows),
        panel("output", array(steps.output[0]), colours, **rows),
    ]
    _formulas(built, ["concatenation", "output"])
    columns = max(len(first), len(second), len(third))
    grid = [[*line, *[None] * (columns - len(line))] for line in (first, second, third) if line]
    _figure(grid, _("The whole layer: its input, its weight matrices, the concatenated heads and the output."))


def show_all_heads(built: Playground) -> None:
    """All heads of one stage as one tiled picture; a click opens the head."""
    colours, stage = current_palette(), st.session_state.tiles
    maps = array(getattr(built.steps, stage)[0])
    hidden = None
    if stage == "weights" and built.steps.mask is not None:
        hidden = ~built.steps.full_mask()[0].cpu().numpy()
    limits = (0.0, 1.0)
    if stage != "weights":
        finite = np.abs(maps[np.isfinite(maps)])
        top = float(finite.max()) if finite.size else 1.0
        limits = (-top or -1.0, top or 1.0)
    _formulas(built, [stage])

    def open_head() -> None:
        tile = clicked_tile(st.session_state[_FIGURE + "_tiles"].selection.points)
        if tile is not None:
            st.session_state["head"] = tile
            st.session_state.view = "one"

    heads = len(maps)
    columns = min(heads, 2 if _narrow() else 4)
    names = [_("head {head}").format(head=h) for h in range(heads)]
    figure = tiles_figure(
        maps,
        tile_names=names,
        columns=columns,
        titled=True,
        palette=colours,
        limits=limits,
        hidden=hidden,
        selected=st.session_state["head"],
        width=420 if _narrow() else _WIDE,
        words={"largest": _("largest")},
    )
    title = stage_info()[stage].title
    show_figure(
        figure,
        _FIGURE + "_tiles",
        _("{title} of all {heads} heads, one small map each; colours run from {low} to {high}.").format(
            title=title, heads=heads, low=number(limits[0], 3), high=number(limits[1], 3)
        ),
        open_head,
        wide=not _narrow(),
    )
    st.caption(
        _("{title} of every head, in the order of the heads from the top left; colours run from {low} to {high} in all. "
          "Click a map to open its head.").format(title=title, low=number(limits[0], 3), high=number(limits[1], 3))
    )  # fmt: skip


def _figure(grid: list[list[Panel | None]], alt: str) -> None:
    if _narrow():
        grid = [[p] for line in grid for p in line if p is not None]
    stage, row, column = _selection(grid)
    figure = panels_figure(
        grid,
        palette=current_palette(),
        selected=linked(stage, row, column),
        width=400 if _narrow() else _WIDE,
        words={"masked": _("masked"), "not_finite": _("not a number"), "row": _("row"), "column": _("column")},
    )

    def take() -> None:
        cell = clicked_cell(grid, st.session_state[_FIGURE].selection.points)
        if cell is None:
            return
        name, row, column = cell
        state = st.session_state
        if state.click == "turn" and "edited" in state.masks and name in _MAPS:
            state.cells = toggle_cell(state.cells, row, column)
        state.stage, state.row, state.col = name, row, column

    show_figure(figure, _FIGURE, alt, take, wide=not _narrow())


def _selection(grid: list[list[Panel | None]]) -> tuple[str, int, int]:
    """The chosen cell, brought into what is shown."""
    shown = {p.key: p for line in grid for p in line if p is not None}
    state = st.session_state
    if state.stage not in shown:
        state.stage = "weights" if "weights" in shown else "output"
    rows, columns = shown[state.stage].values.shape
    state.row, state.col = min(state.row, rows - 1), min(state.col, columns - 1)
    return state.stage, state.row, state.col


def show_chosen_cell(built: Playground) -> None:
    """Selectors for the cell, and its arithmetic."""
    state, info = st.session_state, stage_info()
    one_head = state.view == "one"
    names = [s for s in info if (s in STAGES and s not in ("concatenation", "output")) == one_head]
    if one_head:
        names = [s for s in names if s != "dropped_weights" or built.steps.dropped_weights is not None]
    else:
        kept = [] if built.x is None else ["input", *(["key_input"] if built.x_key is not built.x else [])]
        weights = ["query_weight", "key_weight", "value_weight"] if built.projections is not None else []
        names = [*kept, *weights, "out_weight", "concatenation", "output"]
    values, rows, columns = _stage_values(built, state.stage)
    st.subheader(_("How this number came about"), anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.selectbox(
            _("Stage"), names, format_func=lambda s: f"{info[s].symbol}  {info[s].title}", key="stage", width=210
        )
        st.selectbox(
            info[state.stage].rows.capitalize(),
            range(values.shape[0]),
            format_func=lambda i: f"{i} · {rows[i]}" if rows else str(i),
            key="row",
            width=170,
        )
        st.selectbox(
            info[state.stage].columns.capitalize(),
            range(values.shape[1]),
            format_func=lambda i: f"{i} · {columns[i]}" if columns else str(i),
            key="col",
            width=170,
        )
        st.toggle(_("Numbers as a table"), key="table")
    if state.stage in ("input", "key_input") or state.stage.endswith("_weight"):
        st.caption(
            _("{value}: a number that the layer is given, not one it computes.").format(
                value=number(values[state.row, state.col], 9)
            )
        )
    elif state.stage in ("query", "key", "value") and built.projections is None:
        st.caption(_("{value}: you gave this number yourself.").format(value=number(values[state.row, state.col], 9)))
    elif state.stage == "output" and built.projections is None:
        # Without projections there is no arithmetic of theirs to read.
        st.caption(
            _("{value}: row {row} of the concatenation times row {column} of the output weight.").format(
                value=number(values[state.row, state.col], 9), row=state.row, column=state.col
            )
        )
    else:
        cell = cell_arithmetic(
            built.steps, built.projections, state.stage, head=state["head"], row=state.row, column=state.col
        )
        show_cell(cell, built.query_tokens, built.key_tokens)
    if state.table:
        index = [f"{i} {rows[i]}" if rows else str(i) for i in range(values.shape[0])]
        names = [f"{i} {columns[i]}" if columns else str(i) for i in range(values.shape[1])]
        st.dataframe(
            pd.DataFrame(values, index=index, columns=names),
            alt=_("The numbers of {title}.").format(title=info[state.stage].title),
        )


def _stage_values(built: Playground, stage: str) -> tuple[np.ndarray, list[str] | None, list[str] | None]:
    """The matrix of a stage, and what its rows and columns are called."""
    steps, head = built.steps, st.session_state["head"]
    if stage in ("input", "key_input"):
        x, names = (built.x, built.query_tokens) if stage == "input" else (built.x_key, built.key_tokens)
        return array(x[0]), names, None
    if stage.endswith("_weight"):
        return array(getattr(built.layer, stage)), None, None
    if stage == "concatenation":
        return array(merge_heads(steps.context)[0]), built.query_tokens, None
    if stage == "output":
        return array(steps.output[0]), built.query_tokens, None
    if stage == "masked_scores":
        return array(steps.masked_scores()[0, head]), built.query_tokens, built.key_tokens
    values = array(getattr(steps, stage)[0, head])
    rows = built.key_tokens if stage in ("key", "value") else built.query_tokens
    return values, rows, built.key_tokens if stage in _MAPS else None


def _formulas(built: Playground, stages: list[str]) -> None:
    """The formulas of what is shown, in the order of the computation, each with its shape."""
    info, steps = stage_info(), built.steps
    shapes = {
        name: tuple(getattr(steps, name).shape[-2:])
        for name in ("query", "key", "value", "scores", "weights", "context")
    }
    shapes |= {
        "masked_scores": shapes["scores"],
        "dropped_weights": shapes["weights"],
        "output": tuple(steps.output.shape[1:]),
    }
    shapes["concatenation"] = (shapes["context"][0], built.config.inner_dim)
    parts = []
    for stage in stages:
        formula = info[stage].formula
        if built.projections is None and stage in ("query", "key", "value"):
            formula = formula.split("=")[0]
        elif built.config.projection == "shared" and stage in ("query", "key", "value"):
            formula = formula.replace("X", "X_h", 1)
        if not built.config.qkv_bias and stage in ("query", "key", "value"):
            formula = formula.split(" + ")[0]
        if not built.config.out_bias and stage == "output":
            formula = formula.split(" + ")[0]
        if built.x_key is not built.x and stage in ("key", "value"):
            formula = formula.replace("X", "X_2", 1)
        if stage == "scores":
            formula += rf",\; s = {number(steps.scale).replace('−', '-')}"
        # In one pair of braces: a line never breaks within a formula, nor between it and its shape.
        shape = r"{\times}".join(map(str, shapes[stage]))
        parts.append(rf"${{{formula}\;\;\textcolor{{gray}}{{\scriptstyle {shape}}}}}$")
    with st.container(key="formulas"):
        st.markdown("\u2003 ".join(parts))


def _one_head_alt(built: Playground) -> str:
    weights = built.steps.weights[0, st.session_state["head"]]
    row, column = divmod(int(weights.argmax()), weights.shape[1])
    return _("Queries, keys, values, scores, masked scores, weights and context of head {head}, as heatmaps. The largest weight "
             "is {value}, from query {row} ({row_token}) to key {column} ({column_token}).").format(
        head=st.session_state["head"], value=number(float(weights.max()), 3), row=row, row_token=built.query_tokens[row],
        column=column, column_token=built.key_tokens[column],
    )  # fmt: skip


def _narrow() -> bool:
    shape = st.session_state["shape"]
    return narrow_screen() if shape == "auto" else shape == "narrow"
