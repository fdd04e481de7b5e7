"""What every page with settings has: undo, reset, its link, and the lines that say what came of them."""

from collections.abc import Iterable, Mapping

import streamlit as st

from pages.ui.display_controls import display_controls
from pages.ui.state import Setting, can_undo, link, reset, undo
from pages.ui.text import _, verbatim


class Information(str):
    """A sentence that informs and warns of nothing."""


def say(lines: Iterable[str]) -> None:
    """Each sentence once, in a line of its own: as information, or as a warning that something gave way."""
    for line in dict.fromkeys(lines):
        (st.info if isinstance(line, Information) else st.warning)(line, icon=":material/info:")


def toolbar(page: str, settings: Mapping[str, Setting], views: Mapping[str, str], key: str, *, raw: str | None = None):
    """The line above a page of a real model: its views, how they are drawn, the export, undo, reset and the link.

    Args:
        page, settings: as everywhere.
        views: name -> what it is called.
        key: of the setting that holds the view.
        raw: as in ``display_controls``.

    Returns:
        the popover of the export, to be filled.
    """
    with st.container(horizontal=True, vertical_alignment="bottom", gap="xsmall", key="toolbar"):
        st.segmented_control(
            _("View"), list(views), format_func=views.get, key=key, required=True, label_visibility="collapsed"
        )
        with st.popover(_("Display")):
            display_controls("shape2", raw=raw, table="as_table")
        export = st.popover(_("Export"))
        page_tools(page, settings)
    return export


def page_tools(page: str, settings: Mapping[str, Setting]) -> None:
    """Three buttons, side by side where the container is horizontal."""
    st.button(_("Undo"), on_click=undo, args=(page, settings), disabled=not can_undo(page), key="undo")
    st.button(_("Reset"), on_click=reset, args=(settings,), key="reset")
    with st.popover(_("Copy link")):
        address, left = link(page, settings)
        st.code(address, language=None, wrap_lines=True)
        st.caption(_("The link opens this page as it is now."))
        if left:
            st.caption(_("Too long for a link, so it stays here: {names}.").format(names=", ".join(left)))


def not_understood(ignored: list[str]) -> list[str]:
    """A sentence about what a link says and the page cannot use; none where there is nothing."""
    if not ignored:
        return []
    names = ", ".join(verbatim(name[:30]) for name in ignored[:6])
    return [_("Not understood in the link, so left at its default: {names}.").format(names=names)]
