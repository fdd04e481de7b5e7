"""The left side of the What-if page: the edits, one more edit, and ready experiments."""

from typing import TYPE_CHECKING

import streamlit as st

from attention_core.errors import AttentionError
from pages.ui.explore_pictures import narrow
from pages.ui.head_controls import kind_names
from pages.ui.layout import show_error
from pages.ui.text import _
from pages.ui.whatif_experiments import experiment_buttons
from pages.ui.whatif_settings import WHAT, add, made, remove, remove_all
from pages.ui.whatif_words import edit_words, what_means, what_names

if TYPE_CHECKING:
    from attention_core.extract.trace import Trace

# Tokens up to which each is a button; longer texts have a list to type in.
_MOST_BUTTONS = 40


def show_edits(run: "Trace", edits: tuple) -> None:
    """What is changed, and how to change more."""
    st.markdown(_("**Changed in the model**"))
    if not edits:
        st.caption(_("Nothing yet: the model runs as it is."))
    for place, edit in enumerate(edits):
        there = edit.kind in run.kinds
        labels = (run.query_tokens(edit.kind), run.key_tokens(edit.kind)) if there else ((), ())
        st.button(
            edit_words(edit, *labels),
            key=f"remove_{place}",
            on_click=remove,
            args=(place,),
            icon=":material/close:",
            icon_position="right",
            width="stretch",
            wrap=True,
            help=_("Take this change back"),
        )
    if len(edits) > 1:
        st.button(_("Take all back"), key="remove_all", on_click=remove_all, type="tertiary")
    # On a phone the results come below: they should not be far down.
    with st.expander(_("Change something"), expanded=not narrow()):
        _form(run)
    with st.expander(_("Start from an experiment"), expanded=not narrow()):
        experiment_buttons(run)


def _form(run: "Trace") -> None:
    from attention_core.extract.interventions import EDITS

    state, names = st.session_state, kind_names()
    whats = what_names()
    st.selectbox(_("What"), WHAT, format_func=whats.get, key="what", label_visibility="collapsed")
    kinds = [kind for kind in EDITS[state["what"]].kinds if kind in run.kinds]
    if not kinds:
        st.caption(_("This model has no attention that this could be done to."))
        return
    if state["on_kind"] not in kinds:
        state["on_kind"] = kinds[0]
    st.selectbox(_("Attention"), kinds, format_func=names.get, key="on_kind", label_visibility="collapsed")
    kind = state["on_kind"]
    layers, heads = run.num_layers(kind), run.num_heads(kind)
    state["on_layer"] = min(state["on_layer"], layers - 1)
    # Never from some heads to none, which means all.
    state["on_heads"] = [head for head in state["on_heads"] if head < heads] or [0] * bool(state["on_heads"])
    layer = _("Layer {number}")
    st.selectbox(
        _("Layer"),
        [-1, *range(layers)],
        format_func=lambda n: _("Every layer") if n < 0 else layer.format(number=n),
        key="on_layer",
        label_visibility="collapsed",
    )
    if heads <= _MOST_BUTTONS:
        st.pills(_("Heads (none chosen: all)"), range(heads), selection_mode="multi", key="on_heads")
    else:
        st.multiselect(_("Heads (none chosen: all)"), range(heads), key="on_heads")
    _more(run, kind)
    st.caption(what_means(state["what"], kind))
    try:
        edit = made()
    except AttentionError as error:
        edit = None
        if state["what"] not in ("Forbid", "Force") or state["on_keys"]:
            show_error(error)
    st.button(
        _("Change it"),
        key="add_edit",
        on_click=add,
        args=(edit,),
        disabled=edit is None,
        type="primary",
        width="stretch",
        icon=":material/add:",
    )


def _more(run: "Trace", kind: str) -> None:
    """What else this edit needs to know."""
    state = st.session_state
    what = state["what"]
    if what == "SwitchOff":
        ways = {"zero": _("by zeros"), "mean": _("by its mean")}
        st.segmented_control(
            _("Its context is replaced"), list(ways), format_func=ways.get, key="off_by", required=True
        )
    elif what in ("Forbid", "Force"):
        tokens = run.key_tokens(kind)
        state["on_keys"] = [place for place in state["on_keys"] if place < len(tokens)]
        _tokens(_("Hidden words") if what == "Forbid" else _("Visible words"), tokens, "on_keys")
        st.toggle(_("and everything after the last of them"), key="and_after")
        queries = run.query_tokens(kind)
        state["on_queries"] = [place for place in state["on_queries"] if place < len(queries)]
        st.multiselect(
            _("For these queries"),
            range(len(queries)),
            format_func=lambda place: f"{place} {queries[place]}",
            key="on_queries",
            placeholder=_("all"),
        )
    elif what == "Window":
        st.slider(_("Tokens on each side"), 0, 64, key="on_width")
    elif what == "Temperature":
        st.slider(_("Temperature"), 0.1, 20.0, step=0.1, key="on_heat")
    elif what == "Scale":
        rules = {"d_model": "1 / √d_model", "head_dim": "1 / √head_dim", "none": _("None (1)"), "own": _("A number")}
        st.selectbox(_("Scale"), list(rules), format_func=rules.get, key="on_rule", label_visibility="collapsed")
        if state["on_rule"] == "own":
            st.number_input(_("Scale"), 1e-6, 1e6, key="on_scale", format="%g")
    elif what == "Untrained":
        st.number_input(_("Seed"), 0, 999_999, key="on_seed")


def _tokens(label: str, tokens: list[str], key: str) -> None:
    """The words of a text, to be chosen by a click."""
    if len(tokens) <= _MOST_BUTTONS:
        # A space that means nothing on the screen keeps a token from being read as markup.
        st.pills(
            label, range(len(tokens)), selection_mode="multi", format_func=lambda place: _plain(tokens[place]), key=key
        )
    else:
        st.multiselect(label, range(len(tokens)), format_func=lambda place: f"{place} {tokens[place]}", key=key)


def _plain(token: str) -> str:
    """A token for a label that Streamlit reads as markdown: every mark that could mean something is escaped."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]()<>#+-.!|~$:&" else c for c in token)
