"""The Diagnose page's view of whole stacks: which input tokens a top token can have come from, by rollout or by flow."""

import html
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from attention_core.analysis.flow import (
    FLOW_TOKENS,
    NOTE,
    cross_graph,
    flow,
    flow_to_source,
    rollout,
    rollout_to_source,
    stack_graph,
)
from attention_core.analysis.reading import ReadMap
from attention_core.figures.painted import painted_html
from pages.ui import cache, jobs
from pages.ui.cells import number
from pages.ui.explore_head import read_panel, window_of
from pages.ui.explore_painted import PAINTED_STYLE, written_pieces
from pages.ui.explore_pictures import narrow, show_panels, show_whole
from pages.ui.explore_run import Explored
from pages.ui.explore_settings import MOST_TOKENS
from pages.ui.explore_views import Table
from pages.ui.head_controls import window_controls
from pages.ui.layout import current_palette
from pages.ui.state import Setting, choice, whole
from pages.ui.text import _

if TYPE_CHECKING:
    import torch

    from attention_core.extract.tokens import Token
    from attention_core.extract.trace import Trace

STACKS = ("encoder", "decoder", "source")
HOW = ("rollout", "flow")
SETTINGS: tuple[Setting, ...] = (
    choice("flow_of", "encoder", STACKS),
    choice("flow_how", "rollout", HOW),
    whole("flow_row", 4, 0, MOST_TOKENS),
)


@dataclass(frozen=True, eq=False)
class Flowing:
    """A map of a stack, as far as it is computed.

    Attributes:
        values: (rows, columns), NaN in rows that are not there yet.
        done: rows that are.
        share: (rows,), how much of each row comes from the source at all; None where that is no question.
        seconds_left: about; None = not known.
    """

    values: "torch.Tensor"
    done: int
    share: np.ndarray | None = None
    seconds_left: float | None = None


@dataclass(frozen=True, eq=False)
class _Side:
    """Rows or columns of the map: places in the text, pieces, labels, the text itself and what it is called."""

    places: list[int]
    pieces: "list[Token]"
    labels: list[str]
    text: str
    name: str


def show_flow(explored: Explored) -> Table:
    """The controls, the map, the chosen row on the text, and what the method means."""
    run, state = explored.trace, st.session_state
    rows, columns = _controls(run)
    longest = max(len(rows.places), len(columns.places))
    if state["flow_how"] == "flow" and longest > FLOW_TOKENS:
        text = _(
            "Flow is computed for at most {limit} tokens, one largest flow for each pair of them, and this text has {count}: "
            "rollout is shown. Shorten the text to see the flow."
        )
        st.info(text.format(limit=FLOW_TOKENS, count=longest), icon=":material/info:")
        found = _rolled(explored)
    else:
        found = _flowed(explored) if state["flow_how"] == "flow" else _rolled(explored)
    flowing = state["flow_how"] == "flow" and longest <= FLOW_TOKENS
    if found is None:
        _meaning(flowing)
        return Table("flow", np.zeros((0, len(columns.labels))), [], columns.labels)
    left, right = (st.container(), st.container()) if narrow() else st.columns([7, 5], gap="large")
    with left:
        _map(found, rows, columns, flowing)
    with right:
        _row(found, rows, columns)
        _meaning(flowing)
    return Table("flow" if flowing else "rollout", found.values.numpy(), rows.labels, columns.labels)


def _controls(run: "Trace") -> tuple[_Side, _Side]:
    """What is followed, how, and which row; gives the rows and the columns."""
    state = st.session_state
    stacks = [kind for kind in ("encoder", "decoder") if kind in run.kinds]
    if {"encoder", "decoder", "cross"} <= set(run.kinds):
        stacks.append("source")
    if state["flow_of"] not in stacks:
        state["flow_of"] = stacks[0]
    names = {"encoder": _("Encoder"), "decoder": _("Decoder"), "source": _("Decoder → source (ours)")}
    ways = {"rollout": _("Rollout"), "flow": _("Flow")}
    rows = _side(run, "encoder" if state["flow_of"] == "encoder" else "decoder")
    columns = _side(run, "decoder" if state["flow_of"] == "decoder" else "encoder")
    state["flow_row"] = min(state["flow_row"], len(rows.labels) - 1)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="flow_controls"):
        st.segmented_control(_("Stack"), stacks, format_func=names.get, key="flow_of", required=True)
        st.segmented_control(_("Method"), HOW, format_func=ways.get, key="flow_how", required=True)
        st.selectbox(
            _("Token of the top layer"),
            range(len(rows.labels)),
            format_func=lambda n: f"{rows.places[n]} {rows.labels[n]}",
            key="flow_row",
            width=200,
            help=_("A click on the map chooses one too."),
        )
        window_controls(run, "cross" if state["flow_of"] == "source" else state["flow_of"])
    return rows, columns


def _side(run: "Trace", kind: str) -> _Side:
    side = run.side(kind, "query")
    places = side.real[0].nonzero().flatten().tolist()
    pieces, labels = run.query_pieces(kind), run.query_tokens(kind)
    name = _("Source") if side is run.source else _("Target")
    return _Side(places, [pieces[n] for n in places], [labels[n] for n in places], side.texts[0], name)


def _rolled(explored: Explored) -> Flowing:
    with st.spinner(_("Layer by layer…")):
        return _rolled_kept(explored.key, st.session_state["flow_of"], explored.trace)


@st.cache_resource(max_entries=8, show_spinner=False)
def _rolled_kept(key: cache.TraceKey, of: str, _run: "Trace") -> Flowing:
    if of == "source":
        found = rollout_to_source(cross_graph(_run))
        return Flowing(found.to_source, len(found.to_source), found.share.numpy())
    top = rollout(stack_graph(_run, of).layers)[-1].clone()
    return Flowing(top, len(top))


def _flowed(explored: Explored) -> Flowing | None:
    """The flow, as far as its job has come; it begins by itself, since the person asked for it."""
    of = st.session_state["flow_of"]
    key = ("flow", explored.key, of)
    job = jobs.job(key)
    if job is None:
        job = jobs.start(key, lambda earlier: _steps(explored.trace, of, earlier))
        # A short one is there at once, without a bar that flickers.
        deadline = time.monotonic() + 0.4
        while job.running and time.monotonic() < deadline:
            time.sleep(0.02)
    if job.stopped:
        with st.container(horizontal=True, vertical_alignment="center", key="flow_stopped"):
            done, total = _count(job.latest)
            st.caption(_("Stopped: {done} of {total} tokens are done.").format(done=done, total=total))
            if st.button(_("Go on"), key="flow_go", icon=":material/play_arrow:"):
                jobs.start(key, lambda earlier: _steps(explored.trace, of, earlier))
                st.rerun()
    jobs.show_job(key, _part, "flow_job")
    return job.latest


def _steps(run: "Trace", of: str, earlier: jobs.Job | None) -> Iterator[Flowing]:
    """The flow token by token, so that it can be watched and stopped; a stopped one goes on."""
    import torch

    graph = cross_graph(run) if of == "source" else stack_graph(run, of)
    if of == "source":
        rows, columns = graph.cross.shape[1:]
    else:
        rows = columns = graph.layers.shape[-1]
    latest = None if earlier is None else earlier.latest
    values = torch.full((rows, columns), torch.nan, dtype=torch.float64) if latest is None else latest.values
    first, began = 0 if latest is None else latest.done, time.monotonic()
    for row in range(first, rows):
        found = flow_to_source(graph, queries=[row]).to_source if of == "source" else flow(graph.layers, queries=[row])
        # A new one each time: a page may be drawing the last.
        values = values.clone()
        values[row] = found[0]
        left = (time.monotonic() - began) / (row + 1 - first) * (rows - row - 1)
        yield Flowing(values, row + 1, None, left)


def _count(latest: Flowing | None) -> tuple[int, int | str]:
    return (0, "…") if latest is None else (latest.done, len(latest.values))


def _part(latest: Flowing) -> tuple[float, str]:
    done, total = _count(latest)
    text = _("Flow of {done} of {total} tokens").format(done=done, total=total)
    left = jobs.time_left(latest.seconds_left)
    return done / total, f"{text}, {left}" if left else text


def _map(found: Flowing, rows: _Side, columns: _Side, flowing: bool) -> None:
    """Rows are tokens of the top layer, columns those of the input; a click chooses a row."""
    state = st.session_state
    visible = None
    if state["flow_of"] == "decoder":
        visible = found.values.new_ones(found.values.shape, dtype=bool).tril()
    read = ReadMap(found.values, visible, rows.labels, columns.labels, [], [])
    window = window_of(*found.values.shape)
    top = float(np.nanmax(found.values.numpy(), initial=0.0)) or 1.0
    if not window.whole:
        show_whole(read, "flow_whole", window, width=500, top=top)

    def chosen(_key: str, row: int, _column: int) -> None:
        state["flow_row"] = row

    title = _("Flow through the stack") if flowing else _("Rollout of the stack")
    drawn = read_panel(read, current_palette(), window, title, top=top)
    grid = [[replace(drawn, row_title=_("top layer"), column_title=_("input"))]]
    show_panels(
        grid, "flow_map", window, width=620, marks={"weights": (state["flow_row"], None)},
        chosen=chosen,
    )  # fmt: skip


def _row(found: Flowing, rows: _Side, columns: _Side) -> None:
    """The chosen row, painted on the text that it draws on."""
    at = st.session_state["flow_row"]
    values = found.values[at].numpy()
    if np.isnan(values).all():
        st.caption(_("This token's row is not computed yet."))
        return
    top = float(values.max()) or 1.0
    same = rows.places == columns.places and rows.name == columns.name
    parts = [PAINTED_STYLE]
    if not same:
        parts.append(_painted(rows, np.full(len(rows.labels), np.nan), {at}, 1.0))
    parts.append(_painted(columns, values, {at} if same else (), top))
    st.html("".join(parts))
    best = int(values.argmax())
    st.text(
        _("{token} draws most on {key}: {value} of its row.").format(
            token=f"{rows.places[at]} {rows.labels[at]}",
            key=f"{columns.places[best]} {columns.labels[best]}",
            value=number(float(values[best]), 3),
        )
    )
    if found.share is not None:
        st.caption(
            _(
                "{share} of what this token holds comes from the source, the rest from the decoder's own inputs. Where every token "
                "sees the source this is 1 − 2^−layers by construction; only less would say something."
            ).format(share=number(float(found.share[at]), 4))
        )
    seen = values[: at + 1] if st.session_state["flow_of"] == "decoder" else values
    st.caption(
        _(
            "The strongest colour is {top}, the row's largest share; its smallest is {low}, an even one would be {even}."
        ).format(top=number(top, 3), low=number(float(seen.min()), 3), even=number(1 / len(seen), 3))
    )


def _painted(side: _Side, values: np.ndarray, selected, full: float) -> str:
    texts, spaces = written_pieces(side.pieces, side.text, side.labels, [[n] for n in range(len(side.labels))])
    body = painted_html(texts, values, palette=current_palette(), selected=selected, spaces=spaces, full=full)
    return f'<div class="painted"><p>{html.escape(side.name)}</p>{body}</div>'


def _meaning(flowing: bool) -> None:
    """What the method computes, and what it leaves out."""
    state = st.session_state
    if flowing:
        text = _(
            "**Flow**: the layers are pipes as wide as their weights (mean over heads, half of each layer being the residual); the "
            "largest flow that a token of the top layer can draw from an input token, over its row's sum. Where the "
            "narrowest pipes are the token's own, all inputs get the same."
        )
    else:
        text = _(
            "**Rollout**: all paths from a token of the top layer down to an input token, each the product of its weights (mean "
            "over heads, half of each layer being the residual), summed."
        )
    st.markdown(text)
    if state["flow_of"] == "source":
        st.markdown(_("**Our extension**:") + " " + _(NOTE) + ".")
    st.caption(
        _(
            "Abnar and Zuidema 2020. Values, norms and feed-forward layers are not in it: this says where vectors could have come "
            "from, not what they did there."
        )
    )
