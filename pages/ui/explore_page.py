"""The frame of the Explore page: toolbar, notices, and which view is shown."""

import html
from typing import TYPE_CHECKING

import streamlit as st

from attention_core.errors import AttentionError
from pages.ui.explore_controls import Places, fill, missing_sentence
from pages.ui.explore_export import show_export
from pages.ui.explore_head import EXACT, Head, head_of, reading_names
from pages.ui.explore_painted import show_painted
from pages.ui.explore_run import Explored, explored, model_key, opened_model
from pages.ui.explore_settings import KINDS, SETTINGS, clamp
from pages.ui.explore_views import Table, show_all, show_lines, show_norms, show_numbers, show_one, show_two
from pages.ui.layout import SCALES, show_error
from pages.ui.page_tools import page_tools
from pages.ui.text import _, verbatim

if TYPE_CHECKING:
    from attention_core.extract.models import LoadedModel


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
    model, first, second = opened
    export = _toolbar(page, model, first, said)
    if model.report.missing:
        said.append(missing_sentence(model))
    _say(said)
    _about_target(first)
    state = st.session_state
    head = _head(first)
    table = _view(head, None if second is None else second)
    if state["as_table"]:
        show_numbers(table)
    with export:
        show_export(head, table)


def _opened(said: list[str], places: Places) -> "tuple[LoadedModel, Explored, Explored | None] | None":
    """Model and traces, or None after a sentence that says why not."""
    state = st.session_state
    key = model_key()
    model = opened_model(key)
    if model is None:
        return None
    fill(places, model)
    try:
        first = explored(key, model, state["source"], state["target"], said)
        second = explored(key, model, state["source2"], state["target2"], said) if state["show"] == "two" else None
    except AttentionError as error:
        show_error(error)
        return None
    return model, first, second


def _say(lines: list[str]) -> None:
    for line in dict.fromkeys(lines):
        st.warning(line, icon=":material/info:")


def _toolbar(page: str, model: "LoadedModel", first: Explored, said: list[str]):
    """Views and what acts on the whole page; then which head. Returns the place of the export."""
    state, run = st.session_state, first.trace
    kinds = [kind for kind in KINDS if kind in run.kinds]
    if state["kind"] not in kinds:
        names = kind_names()
        said.append(
            _("This model has no {old}; {new} is shown.").format(
                old=names[state["kind"]].lower(), new=names[kinds[0]].lower()
            )
        )
        state["kind"] = kinds[0]
    clamp("layer", run.num_layers(state["kind"]), said, _("Layer {old} is not there; layer {new} is shown."))
    clamp("h", run.num_heads(state["kind"]), said, _("Head {old} is not there; head {new} is shown."))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="toolbar"):
        views = {
            "all": _("All heads"),
            "one": _("One head"),
            "lines": _("Lines"),
            "painted": _("On the text"),
            "norms": _("Norms"),
            "two": _("Two texts"),
        }
        st.segmented_control(
            _("View"), list(views), format_func=views.get, key="show", required=True, label_visibility="collapsed"
        )
        with st.popover(_("Display")):
            display_controls()
        export = st.popover(_("Export"))
        page_tools(page, SETTINGS)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="which"):
        names = kind_names()
        st.selectbox(_("Attention"), kinds, format_func=names.get, key="kind", width=210, label_visibility="collapsed")
        st.selectbox(
            _("Layer"),
            range(run.num_layers(state["kind"])),
            format_func=lambda n: _("Layer {layer}").format(layer=n),
            key="layer",
            width=115,
            label_visibility="collapsed",
        )
        st.selectbox(
            _("Head"),
            range(run.num_heads(state["kind"])),
            format_func=lambda n: _("Head {head}").format(head=n),
            key="h",
            width=115,
            label_visibility="collapsed",
        )
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
        _window_controls(run, state["kind"])
    return export


def kind_names() -> dict[str, str]:
    """The three kinds of attention."""
    return {
        "encoder": _("Encoder self-attention"),
        "decoder": _("Decoder self-attention"),
        "cross": _("Cross-attention"),
    }


def _window_controls(run, kind: str) -> None:
    """Where the exact part of a long map begins."""
    for key, label, count in (
        ("from_q", _("First query"), len(run.query_tokens(kind))),
        ("from_k", _("First key"), len(run.key_tokens(kind))),
    ):
        if count > EXACT:
            st.session_state[key] = min(st.session_state[key], count - 1)
            st.number_input(label, 0, count - 1, step=16, key=key, width=130)


def display_controls(*, raw: bool = True) -> None:
    """How things are drawn; changes no number. ``raw``: whether scores before the scale can be shown."""
    scales = {"ink": _("Ink"), "cividis": "Cividis", "viridis": "Viridis"}
    st.selectbox(_("Colours of weights"), SCALES, format_func=scales.get, key="colours")
    if raw:
        st.toggle(_("Raw scores, before the scale"), key="unscaled")
    shapes = {"auto": _("Fit the screen"), "wide": _("Side by side"), "narrow": _("One below the other")}
    st.selectbox(_("Arrangement"), list(shapes), format_func=shapes.get, key="shape2")
    st.toggle(_("Numbers as a table"), key="as_table")


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
