"""The frame of every page: set-up, menu, figures, errors."""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import streamlit as st

from attention_core.errors import AttentionError
from attention_core.figures.palette import Palette, palette
from pages.ui.state import Setting, choice, note_page
from pages.ui.text import _, error_text

# The one line for a new page.
MENU = {
    "start": ("app.py", lambda: _("Start"), ":material/home:"),
    "build": ("pages/build.py", lambda: _("Build"), ":material/tune:"),
    "explore": ("pages/explore.py", lambda: _("Explore"), ":material/travel_explore:"),
    "compare": ("pages/compare.py", lambda: _("Compare"), ":material/compare:"),
    "whatif": ("pages/whatif.py", lambda: _("What if"), ":material/science:"),
    "diagnose": ("pages/diagnose.py", lambda: _("Diagnose"), ":material/troubleshoot:"),
}

SCALES = ("ink", "cividis", "viridis")
COLOUR_SCALE: Setting = choice("colours", "ink", SCALES)

# No toolbar over the figures: a click means a cell, and the picture has its own export.
FIGURE_CONFIG = {"displayModeBar": False, "doubleClick": False, "scrollZoom": False}

# Drawn here: Streamlit fetches a Material page icon from an outside host.
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" fill="#7866D7">'
    '<path d="M1 1h4v4H1z M1 6h4v4H1z M6 6h4v4H6z M1 11h4v4H1z M6 11h4v4H6z M11 11h4v4h-4z"/></svg>'
)

# All but the camera. (Naming the camera alone takes a list of lists, which plotly finds changed at every update and then draws
# the figure anew.)
_OTHER_BUTTONS = ["zoom2d", "pan2d", "select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"]

_BUTTONS = 26
"""px of the buttons over a figure"""
_WITH_ROOM = "room for buttons"

_freeze_lock = threading.Lock()
_frozen_modules = 0


def begin_page(page: str, title: str) -> None:
    """Sets the page up and draws the menu. Call it first."""
    st.set_page_config(page_title=f"{title} · Attention", page_icon=_ICON, layout="wide")
    note_page(page)
    st.html(_STYLE)
    with st.sidebar, st.container(gap=None, key="menu"):
        for path, label, icon in MENU.values():
            st.page_link(path, label=label(), icon=icon, width="stretch")
    if page != "start":
        st.header(title, anchor=False)


def end_page() -> None:
    """Takes what the page has imported out of Streamlit's collection after every run. Call it last.

    Streamlit collects all garbage after each run, which walks every object of torch and its kind (75 to 180 ms). Frozen
    objects are not walked. Imports happen late (the first table brings in pyarrow), hence the look at every end.
    """
    global _frozen_modules
    if len(sys.modules) > _frozen_modules + 20 and _freeze_lock.acquire(blocking=False):
        try:
            gc.collect()
            gc.freeze()
            _frozen_modules = len(sys.modules)
        finally:
            _freeze_lock.release()


def current_palette() -> Palette:
    """Colours for the visitor's theme and chosen scale."""
    theme = "dark" if st.context.theme.type == "dark" else "light"
    return palette(theme, st.session_state.get(COLOUR_SCALE.key, COLOUR_SCALE.default))


def narrow_screen() -> bool:
    """Whether the browser says that it is a phone's. (The width of the window is not told to the server.)"""
    return "Mobi" in (st.context.headers.get("User-Agent") or "")


def show_figure(
    figure, key: str, alt: str, on_click: Callable | None = None, *, picture: str | None = None, wide: bool = False
) -> None:
    """Draws a figure at its own height.

    Args:
        figure: a plotly figure.
        key: unique on the page.
        alt: says what is seen, for those who cannot see it.
        on_click: called after a click, before the page runs again; reads st.session_state[key].selection.points.
        picture: "png" or "svg" puts a camera over the figure that saves it so; None leaves it out.
        wide: whether it is made for a wide screen and must not be pressed together.
    """
    config = FIGURE_CONFIG
    if picture is not None:
        # A saved picture stands on its own page.
        figure.layout.paper_bgcolor = current_palette().page
        if narrow_screen():
            make_room_for_buttons(figure)
        config = FIGURE_CONFIG | {
            "displayModeBar": "hover",
            "displaylogo": False,
            "modeBarButtonsToRemove": _OTHER_BUTTONS,
            "toImageButtonOptions": {"format": picture, "filename": key, "scale": 2 if picture == "png" else 1},
        }
    with st.container(key=f"wide_{key}") if wide else nullcontext():
        st.plotly_chart(
            figure,
            key=key,
            theme=None,
            alt=alt,
            config=config,
            on_select=on_click or "ignore",
            selection_mode="points",
        )


def make_room_for_buttons(figure) -> None:
    """Moves the figure down, once: on a phone the buttons over it stand always, and would cover its titles."""
    if figure.layout.meta != _WITH_ROOM:
        figure.layout.meta = _WITH_ROOM
        figure.layout.margin.t += _BUTTONS
        figure.layout.height += _BUTTONS


@contextmanager
def errors_shown() -> Iterator[None]:
    """Shows the core's error as a sentence and ends the page there; what was set stays."""
    try:
        yield
    except AttentionError as error:
        show_error(error)
        st.stop()


def show_error(error: AttentionError) -> None:
    """One sentence that says what must hold, what came and what to do."""
    st.error(error_text(error), icon=":material/error:")


_STYLE = """
<style>
.stMainBlockContainer { padding-top: 2.2rem; padding-bottom: 3rem; max-width: 1500px; }
@media (max-width: 640px) { .stMainBlockContainer { padding-top: 3.6rem; } }
/* A figure made for a wide screen is scrolled sideways in a narrow window, which the server knows nothing of. */
@media (max-width: 960px) {
  [class*="st-key-wide_"] { overflow-x: auto; }
  [class*="st-key-wide_"] > .stElementContainer { min-width: 60rem; }
}
.stButtonGroup > div { flex-wrap: wrap; row-gap: .25rem; }
.katex-display { overflow-x: auto; overflow-y: hidden; padding: .2rem 0; }
.stSidebar [data-testid="stSidebarHeader"] { height: 2.6rem; }
.stSidebar [data-testid="stSidebarUserContent"] { padding-top: 0; }
.st-key-menu { padding-bottom: .6rem; }
.stMarkdown, .stPlotlyChart { font-variant-numeric: tabular-nums; }
.st-key-ways [data-testid="stPageLink-NavLink"] { padding-left: 0; }
h1, h2, h3 { letter-spacing: -0.01em; }
h2 { padding-top: 0; }
.st-key-formulas p { font-size: .92rem; line-height: 2; }
table.sums { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; width: 100%; max-width: 30rem; }
table.sums th { text-align: right; font-weight: 500; opacity: .65; padding: .15rem .6rem; }
table.sums td { text-align: right; padding: .13rem .6rem; border-top: 1px solid rgba(128,128,128,.18); }
table.sums th:first-child, table.sums td:first-child { text-align: left; padding-left: 0; white-space: pre; }
table.sums tr.strong td { font-weight: 650; }
table.sums tr.total td { font-weight: 600; border-top: 1px solid rgba(128,128,128,.55); }
</style>
"""
