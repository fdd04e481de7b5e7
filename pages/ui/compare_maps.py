"""Two maps side by side with one colour range, what differs between them, and the divergence of each row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import streamlit as st
import torch
from torch import Tensor

from attention_core.analysis.compare import MapComparison, compare_maps
from attention_core.analysis.reading import ReadMap
from attention_core.figures.bars import bars_figure
from attention_core.figures.panels import Panel
from pages.ui.cells import number, show_table
from pages.ui.explore_head import Window, window_of
from pages.ui.explore_pictures import narrow, show_panels, show_whole
from pages.ui.explore_views import WIDE, Table
from pages.ui.layout import current_palette, show_figure
from pages.ui.stages import array, panel
from pages.ui.text import _

MOST_BARS = 48
"""Rows up to which each has a bar; longer maps show those of the window."""


@dataclass(frozen=True, eq=False)
class Sides:
    """Two maps over the same rows and columns.

    Attributes:
        first, second: (1, 1, query_len, key_len).
        first_mask, second_mask: of the same shape; None = all visible.
        names: what the two are called.
        rows, columns: labels.
    """

    first: Tensor
    second: Tensor
    first_mask: Tensor | None
    second_mask: Tensor | None
    names: tuple[str, str]
    rows: Sequence[str]
    columns: Sequence[str]


def side_by_side(
    sides: Sides, key: str, *, rows: bool = True, width: int = WIDE, stacked: bool = False
) -> tuple[MapComparison, Table]:
    """Draws both maps, their difference and, where ``rows`` are asked for, how far each row moved; gives the numbers.

    ``stacked``: the difference stands below the two, where there is no room for three.
    """
    compared = compare_maps(sides.first, sides.second, sides.first_mask, sides.second_mask)
    shape = sides.first.shape[-2:]
    window = window_of(*shape)
    if not window.whole:
        _show_wholes(sides, compared, key, window)
    panels = _panels(sides, compared, window)
    show_panels([panels[:2], [panels[2], None]] if stacked else [panels], key, window, width=width)
    difference = array(compared.difference[0, 0])
    if rows:
        _rows(sides, compared, window, key)
    return compared, Table(_("difference"), difference, list(sides.rows), list(sides.columns))


def numbers_table(compared: MapComparison, names: tuple[str, str]) -> None:
    """The comparison of one pair in a few numbers."""
    kl, back = (_mean_kl(values, compared.counted) for values in (compared.kl, compared.kl_back))
    rows = [
        (_("Jensen-Shannon divergence, mean of rows"), _nats(float(compared.mean_divergence[0]))),
        (_("largest difference of a weight"), number(float(compared.difference.abs().max()), 3)),
        (_("correlation over visible cells"), number(float(compared.correlation[0]), 3)),
        (_("entropy, {name}").format(name=names[0]), number(float(compared.mean_entropy[0]), 3)),
        (_("entropy, {name}").format(name=names[1]), number(float(compared.mean_entropy_after[0]), 3)),
        (_("Kullback-Leibler, {first} from {second}").format(first=names[0], second=names[1]), kl),
        (_("Kullback-Leibler, {first} from {second}").format(first=names[1], second=names[0]), back),
    ]
    show_table((_("number"), ""), rows)
    st.caption(
        _(
            "Divergences are in nats, from 0 (equal) to ln 2 = 0.693 (no key in common); entropies are "
            "divided by ln of the keys that a row may see, so 1 is uniform. Hidden cells are left out, and "
            "so are rows that see one key: they agree trivially."
        )
    )


def _panels(sides: Sides, compared: MapComparison, window: Window) -> list[Panel]:
    palette = current_palette()
    labels = {
        "row_labels": sides.rows[slice(*window.rows)],
        "column_labels": sides.columns[slice(*window.columns)],
    }
    made = []
    for key, name, weights, mask in (
        ("first", sides.names[0], sides.first, sides.first_mask),
        ("second", sides.names[1], sides.second, sides.second_mask),
    ):
        hidden = None if mask is None else ~mask.expand(weights.shape)[0, 0].cpu().numpy()
        one = panel(
            "weights",
            window.cut(array(weights[0, 0])),
            palette,
            hidden=window.cut(hidden),
            group="w",
            title=name,
            **labels,
        )
        made.append(replace(one, key=key))
    hidden = ~compared.visible[0, 0].cpu().numpy()
    difference = panel(
        "scores",
        window.cut(array(compared.difference[0, 0])),
        palette,
        hidden=window.cut(hidden) if hidden.any() else None,
        title=_("Difference"),
        **labels,
    )
    return [*made, replace(difference, key="difference", caption=_("second − first"))]


def _show_wholes(sides: Sides, compared: MapComparison, key: str, window: Window) -> None:
    """All of two long maps and of their difference; a click moves the window."""
    seen = (sides.first_mask, sides.second_mask, compared.visible)
    maps = (sides.first, sides.second, compared.difference)
    for place, name, title, values, mask in zip(
        st.columns(3), ("first", "second", "difference"), (*sides.names, _("Difference")), maps, seen
    ):
        visible = None if mask is None else mask.expand(values.shape)[0, 0]
        read = ReadMap(values[0, 0], visible, list(sides.rows), list(sides.columns), [], [])
        with place:
            st.markdown(f"**{title}**")
            if name == "difference":
                top = float(values.abs().max())
                show_whole(read, f"{key}_whole_{name}", window, width=310, top=top, signed=True)
            else:
                show_whole(read, f"{key}_whole_{name}", window, width=310)


def _rows(sides: Sides, compared: MapComparison, window: Window, key: str) -> None:
    """Divergence and entropy of each row, as bars."""
    first, last = window.rows if not window.whole else (0, min(len(sides.rows), MOST_BARS))
    names = [f"{n} · {sides.rows[n]}" for n in range(first, last)]
    palette = current_palette()
    counted = compared.counted[0, 0, first:last].cpu().numpy()
    divergence = np.where(counted, array(compared.divergence[0, 0, first:last]), np.nan)
    before, after = (array(x[0, 0, first:last]) for x in (compared.entropy, compared.entropy_after))
    left, right = (st.container(), st.container()) if narrow() else st.columns(2, gap="large")
    with left:
        st.markdown(_("**Divergence of each row**, nats"))
        limits = (0.0, max(0.05, float(np.nanmax(divergence, initial=0.0))))
        show_figure(
            bars_figure(names, divergence, palette=palette, limits=limits),
            f"{key}_divergence",
            _("Jensen-Shannon divergence of each row, from 0 to {top} nats; the mean is {mean}.").format(
                top=number(limits[1], 3), mean=_nats(float(compared.mean_divergence[0]))
            ),
            picture=st.session_state["picture"],
        )
    with right:
        st.markdown(
            _("**Entropy of each row.** Bar: {second}. Tick: {first}.").format(
                first=sides.names[0], second=sides.names[1]
            )
        )
        show_figure(
            bars_figure(names, after, palette=palette, before=before),
            f"{key}_entropy",
            _("Normalised entropy of each row: mean {before} for {first}, {after} for {second}.").format(
                before=number(float(compared.mean_entropy[0]), 3),
                after=number(float(compared.mean_entropy_after[0]), 3),
                first=sides.names[0],
                second=sides.names[1],
            ),
            picture=st.session_state["picture"],
        )
    if last - first < len(sides.rows):
        st.caption(_("Rows {first} to {last} of {count}.").format(first=first, last=last - 1, count=len(sides.rows)))


def _nats(value: float) -> str:
    return number(value, 3)


def _mean_kl(values: Tensor, counted: Tensor) -> str:
    """The mean over rows that count; where one is infinite the mean is, and that is said."""
    seen = values[counted]
    infinite = int(torch.isinf(seen).sum())
    if infinite:
        return _("∞ ({count} rows give weight where the other gives none)").format(count=infinite)
    return number(float(seen.mean()), 3) if seen.numel() else "NaN"
