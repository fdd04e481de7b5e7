"""The frame of the Explore page: toolbar, notices, and which view is shown."""

import html
from typing import TYPE_CHECKING

import streamlit as st

from attention_core.analysis.reading import has_split_words
from attention_core.errors import AttentionError
from pages.ui.explore_controls import Places, fill, missing_sentence
from pages.ui.explore_export import show_export
from pages.ui.explore_head import Head, head_of, reading_names
from pages.ui.explore_painted import show_painted
from pages.ui.explore_run import Explored, explored, model_key, opened_model
from pages.ui.explore_settings import SETTINGS
from pages.ui.explore_views import Table, show_all, show_lines, show_norms, show_numbers, show_one, show_two
from pages.ui.head_controls import HeadKeys, head_selectors, settle_head, window_controls
from pages.ui.layout import show_error
from pages.ui.page_tools import Information, not_understood, say, toolbar
from pages.ui.text import _

if TYPE_CHECKING:
    from attention_core.extract.models import LoadedModel


def show_page(page: str, ignored: list[str], places: Places) -> None:
    """Everything right of the sidebar."""
    said: list[str] = []
    said += not_understood(ignored)
    opened = model_and_run(said, places)
    two = st.session_state["show"] == "two"
    second = _second(opened[1], opened[0], said) if opened is not None and two else None
    if opened is None or (two and second is None):
        say(said)
        return
    model, first = opened
    export = _toolbar(page, model, first, said)
    if model.report.missing:
        said.append(missing_sentence(model))
    if "words" in st.session_state["reading"] and not has_split_words(first.trace, st.session_state["kind"]):
        said.append(Information(_("No word here has two pieces, so merging them into words changes nothing.")))
    say(said)
    _about_target(first)
    state = st.session_state
    head = _head(first)
    table = _view(head, None if second is None else second)
    if state["as_table"]:
        show_numbers(table)
    with export:
        show_export(head, table)


def model_and_run(said: list[str], places: Places) -> "tuple[LoadedModel, Explored] | None":
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


def _second(first: Explored, model: "LoadedModel", said: list[str]) -> Explored | None:
    """The run on the second text, or None after a sentence that says why not."""
    try:
        return explored(first.key.model, model, st.session_state["source2"], st.session_state["target2"], said)
    except AttentionError as error:
        show_error(error)
        return None


def _toolbar(page: str, model: "LoadedModel", first: Explored, said: list[str]):
    """Views and what acts on the whole page; then which head. Returns the place of the export."""
    run, keys = first.trace, HeadKeys("kind", "layer", "h")
    settle_head(run, keys, said)
    views = {
        "all": _("All heads"),
        "one": _("One head"),
        "lines": _("Lines"),
        "painted": _("On the text"),
        "norms": _("Norms"),
        "two": _("Two texts"),
    }
    export = toolbar(page, SETTINGS, views, "show", raw="unscaled")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="which"):
        head_selectors(run, keys)
        steps = reading_names()
        st.pills(
            _("Reading"),
            list(steps),
            selection_mode="multi",
            format_func=steps.get,
            key="reading",
            label_visibility="collapsed",
            help=_("Steps on the finished map: the model's numbers stay what they are."),
        )
        window_controls(run, st.session_state["kind"])
    return export


def _about_target(first: Explored) -> None:
    """What the decoder was fed: written by the model, shifted, or typed and shifted."""
    run = first.trace
    if run.target is None:
        return
    if run.generated_text is not None:
        st.html(
            f'<p style="margin:0"><span style="opacity:.65">{html.escape(_("The model wrote"))}</span>&ensp;'
            f"{html.escape(run.generated_text[0])}</p>"
        )
    if st.session_state["kind"] == "encoder":
        return
    notes = {
        "shifted source": _("The decoder reads the source, shifted right by the library."),
        "text": _("The decoder reads your target, shifted right by the library."),
        "generated": _("The decoder reads again what the model wrote."),
        "ids": _("The decoder reads the given ids as they are."),
    }
    st.caption(
        notes[run.target.origin] + " " + _("Row t is the step that predicts token t + 1; row 0 holds the start token.")
    )


def _head(first: Explored) -> Head:
    state = st.session_state
    return head_of(first, state["kind"], state["layer"], state["h"])


def _view(head: Head, second: Explored | None) -> Table:
    state = st.session_state
    views = {"all": show_all, "one": show_one, "lines": show_lines, "painted": show_painted, "norms": show_norms}
    if second is not None:
        return show_two(head, _head(second))
    return views[state["show"]](head)
