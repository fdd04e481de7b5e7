"""The start page: `streamlit run app.py` opens it."""

import streamlit as st

from attention_core.figures.panels import panels_figure
from pages.ui.layout import begin_page, current_palette, end_page, show_figure
from pages.ui.playground import SETTINGS, compute
from pages.ui.stages import head_panels
from pages.ui.text import _

begin_page("start", _("Start"))

words, picture = st.columns([5, 6], gap="large", vertical_alignment="center")
with words:
    st.title(_("Look inside attention"), anchor=False)
    st.markdown(
        _(
            "A Transformer reads by letting every word look at others. Each **head** of an attention layer decides, for each "
            "word, how its look is shared out. Here you see every number of that decision, from the first product to the last sum."
        )
    )
    st.markdown(
        _(
            "On the right, one head of a small layer reads a sentence, word by word and never ahead. Rows look, columns are "
            "looked at, and the darker a cell, the larger its share. Find the repeated words."
        )
    )
    if st.button(_("Build your own layer"), type="primary", icon=":material/tune:"):
        st.switch_page("pages/build.py")
    st.caption(_("Everything runs on this machine. Nothing that you type leaves it."))
with picture:
    built = compute({key: setting.default for key, setting in SETTINGS.items()})
    panels = head_panels(
        built.steps, current_palette(), place=0, query_tokens=built.query_tokens, key_tokens=built.key_tokens
    )
    figure = panels_figure([[panels["weights"]]], palette=current_palette(), clickable=False, width=560, height=520)
    show_figure(
        figure,
        "welcome",
        _("Weights of one causal head over “{text}”: repeated words look at each other.").format(
            text=SETTINGS["text"].default
        ),
    )
end_page()
