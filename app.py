"""The start page: `streamlit run app.py` opens it."""

from math import ceil

import streamlit as st

from attention_core.figures.panels import panels_figure
from pages.ui.layout import MENU, begin_page, current_palette, end_page, show_figure
from pages.ui.playground import SETTINGS, compute
from pages.ui.stages import head_panels
from pages.ui.text import _

# What each page is for, as the menu names them.
about = {
    "build": _("An attention layer from scratch, on your own words. Turn its heads, sizes and masks, and click any number to see "
               "how it came about."),
    "explore": _("Every head of a real BART on your text: what it looks at, and what it makes of it. The embedded model is ready."),
    "compare": _("The layer from scratch with a real model's weights: proved equal, then with one thing changed."),
    "whatif": _("Switch off, sharpen or mask a head inside the running model, and read what it says then."),
    "diagnose": _("Which heads are idle, which repeat others, and which the model cannot do without."),
}  # fmt: skip

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
            "In the picture, one head of a small layer reads a sentence, word by word and never ahead. Rows look, columns are "
            "looked at, and the darker a cell, the larger its share. Find the repeated words."
        )
    )
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
ways = {page: way for page, way in MENU.items() if page != "start"}
# Rows of up to four, as even as they can be; on a phone they stand one below the other.
in_a_row = ceil(len(ways) / ceil(len(ways) / 4))
with st.container(key="ways"):
    for first in range(0, len(ways), in_a_row):
        row = list(ways.items())[first : first + in_a_row]
        for column, (page, (path, label, icon)) in zip(st.columns(in_a_row), row):
            with column.container(border=True, gap="xxsmall", height="stretch"):
                st.page_link(path, label=f"**{label()}**", icon=icon)
                if page in about:
                    st.caption(about[page])
st.caption(_("Everything runs on this machine. Nothing that you type leaves it."))
end_page()
