"""Build: a person tunes an attention layer written from scratch and sees every stage."""

import streamlit as st

from attention_core.errors import AttentionError
from pages.ui import build_controls, build_views
from pages.ui.build_cost import show_cost
from pages.ui.layout import begin_page, end_page, show_error
from pages.ui.playground import SETTINGS, compute
from pages.ui.state import close_settings, open_settings
from pages.ui.text import _

PAGE = "build"

begin_page(PAGE, _("Build attention from scratch"))
ignored = open_settings(PAGE, SETTINGS)
clamped = build_controls.settle()
build_controls.sidebar()
build_views.toolbar(PAGE)
built = None
try:
    built = compute({key: st.session_state[key] for key in SETTINGS})
except AttentionError as error:
    show_error(error)
build_views.notices(ignored, clamped, built)
if built is not None:
    if st.session_state.view == "all":
        build_views.show_all_heads(built)
    elif st.session_state.view == "layer":
        build_views.show_layer(built)
    else:
        build_views.show_one_head(built)
    if st.session_state.view != "all":
        build_views.show_chosen_cell(built)
    show_cost(built)
close_settings(PAGE, SETTINGS)
end_page()
