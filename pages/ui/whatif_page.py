"""The frame of the What-if page: toolbar, edits on the left, what they do on the right."""

import streamlit as st

from attention_core.errors import AttentionError
from pages.ui.explore_controls import Places, missing_sentence
from pages.ui.explore_page import model_and_run
from pages.ui.explore_pictures import narrow
from pages.ui.explore_views import show_numbers
from pages.ui.head_controls import settle_head
from pages.ui.layout import show_error
from pages.ui.page_tools import not_understood, say, toolbar
from pages.ui.text import _, error_text
from pages.ui.whatif_edits import show_edits
from pages.ui.whatif_experiments import settle
from pages.ui.whatif_export import show_export
from pages.ui.whatif_run import Experiment, experiment
from pages.ui.whatif_settings import SETTINGS, edits, readable_edits, remove_all
from pages.ui.whatif_sweep import show_sweep
from pages.ui.whatif_views import KEYS, show_cells, show_heads, show_says
from pages.ui.whatif_words import edit_words, watch_words, without_effect


def show_page(page: str, ignored: list[str], places: Places) -> None:
    """Everything right of the sidebar."""
    said = not_understood(ignored)
    opened = model_and_run(said, places)
    if opened is None:
        say(said)
        return
    model, before = opened
    settle_head(before.trace, KEYS, said)
    export = _toolbar(page)
    left, right = (st.container(), st.container()) if narrow() else st.columns([5, 12], gap="large")
    made = None
    with right:
        try:
            settle(before)
            made = experiment(before, edits())
        except AttentionError as error:
            show_error(error)
            st.button(_("Take all changes back"), key="take_back", on_click=remove_all, type="primary")
    with left:
        # Those that do not fit this model can be taken back one by one.
        show_edits(before.trace, readable_edits())
    if made is None:
        say(said)
        return
    said += [error_text(notice) for notice in made.after.trace.notices[len(before.trace.notices) :]]
    for edit in made.edits:
        labels = before.trace.query_tokens(edit.kind), before.trace.key_tokens(edit.kind)
        if without_effect(edit, *map(len, labels)):
            said.append(
                _("{change}. This text has no such position, so nothing changes.").format(
                    change=edit_words(edit, *labels)
                )
            )
    if model.report.missing:
        said.append(missing_sentence(model))
    with right:
        say(said)
        _show(made, export)


def _show(made: Experiment, export) -> None:
    state = st.session_state
    if state["experiment"] and made.edits:
        st.info(watch_words(state["experiment"]), icon=":material/visibility:")
    views = {"says": show_says, "heads": show_heads, "cells": show_cells}
    try:
        table = show_sweep(made.before) if state["if_view"] == "sweep" else views[state["if_view"]](made)
    except AttentionError as error:
        show_error(error)
        return
    if state["as_table"]:
        show_numbers(table)
    with export:
        show_export(made, table)


def _toolbar(page: str):
    """Views, and what acts on the whole page; returns the place of the export."""
    views = {
        "says": _("What it says"),
        "heads": _("Heads"),
        "cells": _("Click cells away"),
        "sweep": _("Sweep"),
    }
    return toolbar(page, SETTINGS, views, "if_view")
