"""How things are drawn: the controls of every page's Display button. They change no number."""

import streamlit as st

from pages.ui.layout import SCALES
from pages.ui.state import place
from pages.ui.text import _


def display_controls(shape: str, *, raw: str | None = None, table: str | None = None) -> None:
    """Colours, arrangement, and what else the page has.

    Args:
        shape: key of the arrangement: "auto", "wide" or "narrow".
        raw: key of whether scores are shown before the scale; None = the page has no such choice.
        table: key of whether the numbers stand in a table below; None = likewise.
    """
    state = st.session_state
    scales = {"ink": _("Ink"), "cividis": "Cividis", "viridis": "Viridis"}
    st.selectbox(_("Colours of weights"), SCALES, index=place(SCALES, "colours"), format_func=scales.get, key="colours")
    if raw is not None:
        st.toggle(_("Raw scores, before the scale"), value=state[raw], key=raw)
    shapes = {"auto": _("Fit the screen"), "wide": _("Side by side"), "narrow": _("One below the other")}
    st.selectbox(_("Arrangement"), list(shapes), index=place(list(shapes), shape), format_func=shapes.get, key=shape)
    if table is not None:
        st.toggle(_("Numbers as a table"), value=state[table], key=table)
