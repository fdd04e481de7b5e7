"""Every layer and head of a kind as one picture."""

import numpy as np
import streamlit as st

from attention_core.figures.alt import describe_tiles
from attention_core.figures.tiles import clicked_tile, tiles_figure
from pages.ui import cache
from pages.ui.cells import number
from pages.ui.explore_head import Head
from pages.ui.layout import COLOUR_SCALE, current_palette, make_room_for_buttons, narrow_screen, show_figure
from pages.ui.text import _

_KEY = "explore_overview"
_LIMIT = 64


def show_overview(head: Head, width: int) -> None:
    """The tiled picture; a click chooses the head.

    The picture does not know which head is chosen, so that it is sent once for a text, model and kind; the frame around the
    chosen one is a few bytes of style over it.
    """
    palette = current_palette()
    layers, heads = head.trace.num_layers(head.kind), head.trace.num_heads(head.kind)
    figure, alt = _figure(
        head.explored.key, head.kind, palette.theme, st.session_state[COLOUR_SCALE.key], width, st.session_state.get("language"),
        narrow_screen(), _head=head,
    )  # fmt: skip

    def open_head() -> None:
        tile = clicked_tile(st.session_state[_KEY].selection.points)
        if tile is not None and tile < layers * heads:
            st.session_state["layer"], st.session_state["h"] = divmod(tile, heads)

    with st.container(key="overview"):
        st.html(_frame(figure, head.layer * heads + head.head, heads, layers, palette.accent))
        show_figure(figure, _KEY, alt, open_head, picture=st.session_state["picture"])
    st.caption(
        _("{count} heads, one small map each: rows look, columns are looked at, colours run from 0 to 1. Click a map to open its "
          "head.").format(count=layers * heads)
    )  # fmt: skip


@st.cache_resource(max_entries=32, show_spinner=False)
def _figure(
    key: cache.TraceKey, kind: str, theme: str, scale: str, width: int, language: str | None, phone: bool, _head: Head
):
    """The picture and its alt text; the arguments name everything that it depends on."""
    found = cache.overview(key, kind, _LIMIT, _trace=_head.trace)
    layers, heads, rows, columns = found.weights.shape
    maps = found.weights.reshape(layers * heads, rows, columns)
    names = [_("layer {layer}, head {head}").format(layer=n // heads, head=n % heads) for n in range(len(maps))]
    hidden = None if found.visible.all() else np.repeat(~found.visible, heads, axis=0)
    figure = tiles_figure(
        maps,
        tile_names=names,
        columns=heads,
        palette=current_palette(),
        row_names=[_("layer {layer}").format(layer=n) for n in range(layers)],
        column_names=[str(n) if heads > 9 else _("head {head}").format(head=n) for n in range(heads)],
        hidden=hidden,
        width=width,
        words={"largest": _("largest")},
    )
    if phone:
        # Before the frame around a tile is placed.
        make_room_for_buttons(figure)
    alt = describe_tiles(maps, names)
    if (found.row_block, found.column_block) != (1, 1):
        alt += " " + _("Each cell is the largest weight of {rows} queries and {columns} keys.").format(
            rows=number(found.row_block), columns=number(found.column_block)
        )
    return figure, alt


def _frame(figure, tile: int, columns: int, lines: int, colour: str) -> str:
    """Style that frames one tile, at the tile's place in the figure."""
    layout = figure.layout
    margin, height = layout.margin, layout.height
    (low, high), (bottom, top) = layout.xaxis.range, layout.yaxis.range
    used = layout.xaxis.domain[1] if layout.xaxis.domain else 1.0
    half_x, half_y = -low - 0.01, -top - 0.01
    line, column = divmod(tile, columns)
    x0, x1 = ((column + side * half_x - low) / (high - low) * used for side in (-1, 1))
    y0, y1 = ((line + side * half_y - top) / (bottom - top) for side in (-1, 1))
    wide, tall = f"(100% - {margin.l + margin.r}px)", height - margin.t - margin.b
    return (
        "<style>.st-key-overview .stPlotlyChart{position:relative}.st-key-overview .stPlotlyChart::after{content:'';"
        f"position:absolute;pointer-events:none;border:2px solid {colour};border-radius:2px;box-sizing:border-box;"
        f"left:calc({margin.l}px + {wide} * {x0:.5f} - 2px);width:calc({wide} * {x1 - x0:.5f} + 4px);"
        f"top:{margin.t + tall * y0 - 2:.1f}px;height:{tall * (y1 - y0) + 4:.1f}px}}</style>"
    )
