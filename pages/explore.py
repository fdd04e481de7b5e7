"""Explore: every attention head of a real model, as it computed them."""

import streamlit as st

from pages.ui import explore_controls, explore_page
from pages.ui.explore_settings import SETTINGS
from pages.ui.layout import begin_page, end_page
from pages.ui.state import close_settings, open_settings
from pages.ui.text import _

PAGE = "explore"

begin_page(PAGE, _("Explore a real model"))
ignored = open_settings(PAGE, SETTINGS)
places = explore_controls.sidebar(second=st.session_state["show"] == "two")
explore_page.show_page(PAGE, ignored, places)
close_settings(PAGE, SETTINGS)
end_page()
