"""The frame of the Compare page: sidebar, toolbar, which attention, and which view is shown."""

import streamlit as st

from attention_core.errors import AttentionError
from pages.ui import explore_controls
from pages.ui.compare_export import show_export
from pages.ui.compare_heads import show_heads
from pages.ui.compare_run import Place
from pages.ui.compare_settings import SETTINGS
from pages.ui.compare_views import show_change, show_proof, show_untrained
from pages.ui.explore_controls import Places, missing_sentence
from pages.ui.explore_page import model_and_run
from pages.ui.explore_run import Explored
from pages.ui.explore_views import show_numbers
from pages.ui.head_controls import HeadKeys, head_selectors, settle_head, window_controls
from pages.ui.layout import show_error
from pages.ui.page_tools import not_understood, say, toolbar
from pages.ui.text import _


def sidebar() -> Places:
    """Text and model; the controls are Explore's."""
    return explore_controls.sidebar()


def show_page(page: str, ignored: list[str], places: Places) -> None:
    """Everything right of the sidebar."""
    said: list[str] = []
    said += not_understood(ignored)
    opened = model_and_run(said, places)
    if opened is None:
        say(said)
        return
    model, first = opened
    export = _toolbar(page, first, said)
    if model.report.missing:
        said.append(missing_sentence(model))
    say(said)
    state = st.session_state
    place = Place(first, state["kind_a"], state["layer_a"])
    views = {"prove": show_proof, "change": show_change, "untrained": show_untrained, "heads": show_heads}
    try:
        table = views[state["compare"]](place, state["head_a"])
    except AttentionError as error:
        show_error(error)
        return
    if state["as_table"]:
        show_numbers(table)
    with export:
        show_export(place, state["head_a"], table)


def _toolbar(page: str, first: Explored, said: list[str]):
    """Views, and which attention; returns the place of the export."""
    run, keys = first.trace, HeadKeys("kind_a", "layer_a", "head_a")
    settle_head(run, keys, said)
    views = {
        "prove": _("Prove it"),
        "change": _("Change one thing"),
        "untrained": _("Untrained and trained"),
        "heads": _("Head against head"),
    }
    export = toolbar(page, SETTINGS, views, "compare")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="which"):
        head_selectors(run, keys)
        window_controls(run, st.session_state["kind_a"])
    return export
