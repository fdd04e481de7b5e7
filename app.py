"""The start page: `streamlit run app.py` opens it."""

import streamlit as st

from pages.ui.layout import begin_page, end_page
from pages.ui.text import _

begin_page("start", _("Start"))
st.title(_("Look inside attention"), anchor=False)
st.page_link("pages/build.py", label=_("Build an attention layer"), icon=":material/tune:")
end_page()
