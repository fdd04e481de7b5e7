"""Every number of every head: as a table, as an atlas, and heads arranged by how alike their maps are."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import streamlit as st

from attention_core.analysis.head_metrics import BY_NAME, COLUMNS
from attention_core.analysis.profile_sums import Profile
from attention_core.analysis.scaling import classical_scaling
from attention_core.figures.alt import describe_plane
from attention_core.figures.plane import clicked_item, plane_figure
from pages.ui.atlas import show_atlas
from pages.ui.cells import number, show_table
from pages.ui.diagnose_findings import example_of, open_buttons
from pages.ui.diagnose_settings import choose_head
from pages.ui.explore_pictures import narrow
from pages.ui.explore_views import Table
from pages.ui.head_controls import kind_names
from pages.ui.layout import current_palette, show_figure
from pages.ui.text import _
from pages.ui.whatif_words import place_words

if TYPE_CHECKING:
    from pages.ui.diagnose_job import Texts


def heads_table(profile: Profile, *, spreads: bool = False) -> pd.DataFrame:
    """A row a head: kind, layer, head, then every column that was measured; with ``spreads`` the standard deviation over texts."""
    rows = []
    for kind, (layers, heads) in profile.shapes.items():
        names = profile.columns()
        tables = {name: (profile.mean(kind, name), profile.spread(kind, name)) for name in names}
        for layer, head in np.ndindex(layers, heads):
            row: dict[str, object] = {"kind": kind, "layer": layer, "head": head}
            for name in names:
                mean, spread = (float(table[layer, head]) for table in tables[name])
                row[name] = mean
                if spreads:
                    row[f"{name} ±"] = spread
            rows.append(row)
    return pd.DataFrame(rows)


def show_table_view(profile: Profile, texts: "Texts") -> Table:
    """The table, sorted by a click on a header, filtered by kind and by a number; a row chooses a head."""
    state = st.session_state
    names, kinds = list(profile.columns()), kind_names()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="table_row"):
        st.pills(_("Kinds"), profile.kinds, selection_mode="multi", format_func=kinds.get, key="kinds_shown")
        _number_box(names)
        st.toggle(_("Spread over texts"), key="spreads")
    table = heads_table(profile, spreads=state["spreads"])
    table = table[table["kind"].isin(state["kinds_shown"] or profile.kinds)]
    chosen = state["number"]
    values = table[chosen].dropna()
    if len(values) and float(values.min()) < float(values.max()):
        low, high = float(values.min()), float(values.max())
        least, most = st.slider(
            _("Heads whose {number} is between").format(number=_(BY_NAME[chosen].label)),
            low,
            high,
            (low, high),
            key=f"between_{chosen}",
        )
        if (least, most) != (low, high):
            table = table[(table[chosen] >= least) & (table[chosen] <= most)]
    # The number that the table goes by stands first.
    ahead = ["kind", "layer", "head", chosen]
    table = table[[*ahead, *(name for name in table.columns if name not in ahead)]]
    table = table.sort_values(chosen, ascending=False, na_position="last", kind="stable").reset_index(drop=True)
    shown = table.assign(kind=table["kind"].map(kinds))
    config = {"kind": _("attention"), "layer": _("layer"), "head": _("head")}
    for name in table.columns[3:]:
        column = BY_NAME[name.removesuffix(" ±")]
        label = _(column.label) + (" ±" if name.endswith("±") else "")
        config[name] = st.column_config.NumberColumn(label, help=f"{_(column.says)} ({_(column.unit)})", format="%.4g")

    def take() -> None:
        rows = st.session_state["heads_table"].selection.rows
        if rows:
            row = table.iloc[rows[0]]
            choose_head(row["kind"], int(row["layer"]), int(row["head"]))

    st.dataframe(
        shown,
        key="heads_table",
        column_config=config,
        hide_index=True,
        placeholder="–",
        width="stretch",
        height=min(560, 38 + 35 * max(1, len(shown))),
        on_select=take,
        selection_mode="single-row",
    )
    text = _("{count} heads. Means over texts; point at a header for what a number is. Choose a row to open its head.")
    st.caption(text.format(count=len(shown)))
    _chosen_head(profile, texts)
    labels = [f"{kind} {layer}.{head}" for kind, layer, head in zip(table["kind"], table["layer"], table["head"])]
    return Table("heads", table.iloc[:, 3:].to_numpy(float), labels, list(table.columns[3:]))


def show_atlas_view(profile: Profile, texts: "Texts") -> Table:
    """One number of all heads as one figure."""
    state = st.session_state
    names = list(profile.columns())
    _number_box(names)
    column = BY_NAME[state["number"]]
    values = {kind: profile.mean(kind, column.name) for kind in profile.kinds if kind in column.kinds}
    values = {kind: table for kind, table in values.items() if np.isfinite(table).any()}
    st.caption(
        _("{says}; {unit}. A click chooses a head.").format(says=_(column.says).capitalize(), unit=_(column.unit))
    )
    show_atlas(
        values,
        "atlas",
        _(column.label),
        _(column.unit),
        chosen=choose_head,
        selected=(state["d_kind"], state["d_layer"], state["d_head"]),
        signed=column.low is None or column.low < 0,
        width=1000,
    )
    _chosen_head(profile, texts)
    labels = [f"{kind} {layer}" for kind, table in values.items() for layer in range(len(table))]
    wide = max(table.shape[1] for table in values.values())
    padded = [np.pad(table, ((0, 0), (0, wide - table.shape[1])), constant_values=np.nan) for table in values.values()]
    return Table(column.name, np.concatenate(padded), labels, [str(head) for head in range(wide)])


def show_alike(profile: Profile, texts: "Texts") -> Table:
    """Heads of a kind in a plane: near each other where their maps are alike."""
    state, kinds = st.session_state, [kind for kind in profile.kinds if kind in profile.pairs]
    if state["alike_kind"] not in kinds:
        state["alike_kind"] = kinds[0]
    names = list(profile.columns())
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="alike_row"):
        st.selectbox(_("Attention"), kinds, format_func=kind_names().get, key="alike_kind", width=230)
        _number_box(names)
    kind, column = state["alike_kind"], BY_NAME[state["number"]]
    layers, heads = profile.shapes[kind]
    distances = profile.distances(kind)
    # The root of a Jensen-Shannon divergence is a metric (Endres and Schindelin 2003), which scaling asks for.
    placed = classical_scaling(np.sqrt(distances))
    labels = [f"{layer}.{head}" for layer in range(layers) for head in range(heads)]
    groups = [_("layer {layer}").format(layer=layer) for layer in range(layers) for _head in range(heads)]
    if layers > 4:  # as many shapes as there are
        groups = [kind_names()[kind]] * len(labels)
    values = profile.mean(kind, column.name).reshape(-1)
    coloured = np.isfinite(values).any()
    place = labels.index(f"{state['d_layer']}.{state['d_head']}") if kind == state["d_kind"] else None

    def take() -> None:
        item = clicked_item(st.session_state["plane"].selection.points)
        if item is not None:
            choose_head(kind, item // heads, item % heads)

    show_figure(
        plane_figure(
            placed.points,
            labels,
            groups,
            palette=current_palette(),
            values=values if coloured else None,
            measure=f"{_(column.label)} ({_(column.unit)})",
            signed=coloured and (column.low is None or column.low < 0),
            selected=place,
            width=400 if narrow() else 900,
        ),
        "plane",
        describe_plane(placed.points, labels, groups),
        take,
        picture=state["picture"],
    )
    st.caption(
        _(
            "Heads whose maps are alike stand together (Jensen-Shannon divergence, classical scaling of its root; after Clark et "
            "al. 2019). The plane holds {kept} of the spread: below about one half, neighbours may lie far apart. Alike maps may "
            "carry different values."
        ).format(kept=_("all") if placed.kept != placed.kept else f"{placed.kept:.0%}")
    )
    _chosen_head(profile, texts)
    return Table("distances", distances, labels, labels)


def _number_box(names: list[str]) -> None:
    if st.session_state["number"] not in names:
        st.session_state["number"] = names[0]
    st.selectbox(_("Number"), names, format_func=lambda name: _(BY_NAME[name].label), key="number", width=230)


def _chosen_head(profile: Profile, texts: "Texts") -> None:
    """The chosen head: all its numbers, and the ways to look at it."""
    state = st.session_state
    kind, layer, head = state["d_kind"], state["d_layer"], state["d_head"]
    if kind not in profile.shapes or layer >= profile.shapes[kind][0] or head >= profile.shapes[kind][1]:
        return
    st.markdown(f"**{place_words(kind, layer, (head,))}**")
    chosen = state["number"]
    example = (
        example_of(texts, profile.worst(kind, chosen, layer, head, high=True))
        if kind in BY_NAME[chosen].kinds
        else None
    )
    with st.container(horizontal=True, gap="small", key="chosen_row"):
        open_buttons(kind, layer, (head,), example, "chosen")
    rows = []
    for column in COLUMNS:
        value, spread = (float(read(kind, column.name)[layer, head]) for read in (profile.mean, profile.spread))
        if value == value:
            rows.append(
                (_(column.label), number(value, 3), "–" if spread != spread else number(spread, 2), _(column.unit))
            )
    show_table((_("number"), _("mean"), "±", _("unit")), rows)
