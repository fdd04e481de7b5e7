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
from pages.ui.explore_head import EXACT
from pages.ui.explore_page import display_controls, kind_names
from pages.ui.explore_run import Explored, explored, model_key, opened_model
from pages.ui.explore_settings import KINDS, clamp
from pages.ui.explore_views import show_numbers
from pages.ui.layout import show_error
from pages.ui.page_tools import page_tools
from pages.ui.text import _, verbatim

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
    if ignored:
        names = ", ".join(verbatim(name[:30]) for name in ignored[:6])
        said.append(_("Not understood in the link, so left at its default: {names}.").format(names=names))
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
    state, run, names = st.session_state, first.trace, kind_names()
    kinds = [kind for kind in KINDS if kind in run.kinds]
    if state["kind_a"] not in kinds:
        said.append(
            _("This model has no {old}; {new} is shown.").format(
                old=names[state["kind_a"]].lower(), new=names[kinds[0]].lower()
            )
        )
        state["kind_a"] = kinds[0]
    clamp("layer_a", run.num_layers(state["kind_a"]), said, _("Layer {old} is not there; layer {new} is shown."))
    clamp("head_a", run.num_heads(state["kind_a"]), said, _("Head {old} is not there; head {new} is shown."))
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
    hidden = {"label_visibility": "collapsed"}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="which"):
        st.selectbox(_("Attention"), kinds, format_func=names.get, key="kind_a", width=210, **hidden)
        st.selectbox(
            _("Layer"),
            range(run.num_layers(state["kind_a"])),
            format_func=lambda n: _("Layer {layer}").format(layer=n),
            key="layer_a",
            width=115,
            **hidden,
        )
        st.selectbox(
            _("Head"),
            range(run.num_heads(state["kind_a"])),
            format_func=lambda n: _("Head {head}").format(head=n),
            key="head_a",
            width=115,
            **hidden,
        )
        for key, label, count in (
            ("from_q", _("First query"), len(run.query_tokens(state["kind_a"]))),
            ("from_k", _("First key"), len(run.key_tokens(state["kind_a"]))),
        ):
            if count > EXACT:
                state[key] = min(state[key], count - 1)
                st.number_input(label, 0, count - 1, step=16, key=key, width=130)
    return export
