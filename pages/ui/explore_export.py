"""Taking a view away: tensors, table, picture, and the Python that gives the same numbers."""

import re

import streamlit as st

from attention_core import export
from pages.ui.explore_head import Head
from pages.ui.explore_views import Table
from pages.ui.text import _


def show_export(head: Head, table: Table) -> None:
    """What the Export button opens."""
    name = file_name(head)
    st.markdown(_("**Numbers**"))
    st.download_button(
        _("This head, all stages (npz)"),
        lambda: head_npz(head),
        f"{name}.npz",
        "application/octet-stream",
        key="export_head",
        on_click="ignore",
        width="stretch",
    )
    st.download_button(
        _("All heads of this layer (npz)"),
        lambda: head_npz(head, whole_layer=True),
        f"{name.rsplit('_', 1)[0]}.npz",
        "application/octet-stream",
        key="export_layer",
        on_click="ignore",
        width="stretch",
    )
    table_button(table, name, "export_table")
    picture_choice()
    st.markdown(_("**Python that gives the same numbers**"))
    st.code(snippet(head), language="python", wrap_lines=True)


def table_button(table: Table, name: str, key: str) -> None:
    """Downloads the numbers of a view as a formula-safe csv."""
    st.download_button(
        _("The table of this view (csv)"),
        lambda: export.table_csv(table.values, table.rows, table.columns).encode("utf-8-sig"),
        f"{name}.csv",
        "text/csv",
        key=key,
        on_click="ignore",
        width="stretch",
    )


def picture_choice() -> None:
    """PNG or SVG, for the camera over each picture."""
    st.segmented_control(
        _("Picture"),
        ["png", "svg"],
        default=st.session_state["picture"],
        format_func=str.upper,
        key="picture",
        required=True,
    )
    st.caption(_("Point at a picture and press its camera."))


def head_npz(head: Head, *, whole_layer: bool = False) -> bytes:
    """The stages of the head, or of all heads of its layer, with tokens and settings inside."""
    run = head.trace
    steps = run.steps(head.kind, head.layer) if whole_layer else head.steps
    heads = range(run.num_heads(head.kind)) if whole_layer else [head.head]
    key, report = head.explored.key, run.model.report
    settings = {
        "model": report.name,
        "revision": report.revision,
        "dtype": report.dtype,
        "device": report.device,
        "source": key.source,
        "target": key.target,
        "beams": key.beams,
        "target_origin": None if run.target is None else run.target.origin,
        "target_text": None if run.target is None else run.target.texts[0],
        "kind": head.kind,
        "layer": head.layer,
    }
    return export.steps_npz(
        steps, heads=heads, query_tokens=head.query_tokens, key_tokens=head.key_tokens, settings=settings
    )


def snippet(head: Head) -> str:
    """The Python of this head; texts are those that were read, already cut where the person agreed to that."""
    key, report = head.explored.key, head.trace.model.report
    return export.python_lines(
        model=key.model.name,
        revision=report.revision,
        device=report.device,
        dtype=report.dtype,
        source=key.source,
        target=key.target,
        beams=key.beams,
        kind=head.kind,
        layer=head.layer,
        head=head.head,
        reading=st.session_state["reading"],
    )


def file_name(head: Head) -> str:
    """Model, kind, layer and head, in letters that every file system takes."""
    model = re.sub(r"[^A-Za-z0-9.-]+", "-", head.explored.key.model.name).strip("-.")[-40:] or "model"
    return f"{model}_{head.kind}_layer{head.layer}_head{head.head}"
