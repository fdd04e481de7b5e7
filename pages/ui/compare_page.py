"""The frame of the Compare page: sidebar, toolbar, which attention, and which view is shown."""

from typing import TYPE_CHECKING

import streamlit as st

from attention_core.errors import AttentionError
from pages.ui.compare_export import show_export
from pages.ui.compare_heads import show_heads
from pages.ui.compare_run import Place
from pages.ui.compare_settings import SETTINGS
from pages.ui.compare_views import show_change, show_proof, show_untrained
from pages.ui.explore_controls import Places, fill, missing_sentence, model_control, sample_texts, target_control
from pages.ui.explore_page import display_controls
from pages.ui.explore_run import Explored, explored, model_key, opened_model
from pages.ui.explore_views import show_numbers
from pages.ui.head_controls import HeadKeys, head_selectors, settle_head, window_controls
from pages.ui.layout import show_error
from pages.ui.page_tools import not_understood, page_tools
from pages.ui.text import _

if TYPE_CHECKING:
    from attention_core.extract.models import LoadedModel


def sidebar() -> Places:
    """Text and model; the controls are Explore's."""
    places: Places = {}
    with st.sidebar:
        with st.expander(_("Text"), expanded=True):
            sample_texts()
            st.text_area(_("Source"), key="source", height=110, help=_("What the encoder reads."))
            places["source"] = st.empty()
            target_control(places)
            places["cut"] = st.empty()
        with st.expander(_("Model"), expanded=True):
            model_control()
            places["model"] = st.container()
    return places


def show_page(page: str, ignored: list[str], places: Places) -> None:
    """Everything right of the sidebar."""
    said: list[str] = []
    said += not_understood(ignored)
    opened = _opened(said, places)
    if opened is None:
        _say(said)
        return
    model, first = opened
    export = _toolbar(page, first, said)
    if model.report.missing:
        said.append(missing_sentence(model))
    _say(said)
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


def _opened(said: list[str], places: Places) -> "tuple[LoadedModel, Explored] | None":
    """The model and its run on the text, or None after a sentence that says why not."""
    state, key = st.session_state, model_key()
    model = opened_model(key)
    if model is None:
        return None
    fill(places, model)
    try:
        return model, explored(key, model, state["source"], state["target"], said)
    except AttentionError as error:
        show_error(error)
        return None


def _say(lines: list[str]) -> None:
    for line in dict.fromkeys(lines):
        st.warning(line, icon=":material/info:")


def _toolbar(page: str, first: Explored, said: list[str]):
    """Views, and which attention; returns the place of the export."""
    run, keys = first.trace, HeadKeys("kind_a", "layer_a", "head_a")
    settle_head(run, keys, said)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="toolbar"):
        views = {
            "prove": _("Prove it"),
            "change": _("Change one thing"),
            "untrained": _("Untrained and trained"),
            "heads": _("Head against head"),
        }
        st.segmented_control(
            _("View"), list(views), format_func=views.get, key="compare", required=True, label_visibility="collapsed"
        )
        with st.popover(_("Display")):
            display_controls(raw=False)
        export = st.popover(_("Export"))
        page_tools(page, SETTINGS)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="which"):
        head_selectors(run, keys)
        window_controls(run, st.session_state["kind_a"])
    return export
