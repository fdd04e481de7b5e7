"""A number of every head, as one figure of layers and heads whose cells can be clicked."""

from collections.abc import Callable, Mapping

import numpy as np
import streamlit as st

from attention_core.figures.alt import describe_grid
from attention_core.figures.atlas import atlas_figure, atlas_panels, clicked_head
from pages.ui.explore_pictures import narrow
from pages.ui.head_controls import kind_names
from pages.ui.layout import current_palette, show_figure
from pages.ui.text import _


def show_atlas(
    values: Mapping[str, np.ndarray],
    key: str,
    measure: str,
    unit: str = "",
    *,
    chosen: Callable[[str, int, int], None] | None = None,
    selected: tuple[str, int, int] | None = None,
    signed: bool = False,
    width: int = 720,
) -> None:
    """Draws it.

    Args:
        values: kind -> (layers, heads); what is not finite is a gap.
        key: of the figure.
        measure, unit: what the number is.
        chosen: called with kind, layer and head of a clicked cell.
        selected: the head that is outlined.
        signed: whether the colours run through 0.
        width: px that the figure will about have.
    """
    names = kind_names()
    figure = atlas_figure(
        values,
        palette=current_palette(),
        measure=measure,
        unit=unit,
        titles=names,
        signed=signed,
        selected=selected,
        width=400 if narrow() else width,
        words={"row": _("layer"), "column": _("head")},
    )

    def take() -> None:
        place = clicked_head(values, st.session_state[key].selection.points)
        if place is not None:
            chosen(*place)

    show_figure(
        figure,
        key,
        describe_grid(atlas_panels(values, titles=names, measure=measure)),
        take if chosen else None,
        picture=st.session_state["picture"],
    )
