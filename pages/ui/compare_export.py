"""Taking a comparison away: its table, the custom layer's numbers, and the Python that gives the same."""

from dataclasses import MISSING, fields

import streamlit as st

from attention_core import export
from attention_core.analysis.changes import Change
from attention_core.layer.attention import AttentionSteps
from pages.ui.compare_run import Place, changed, proof
from pages.ui.compare_settings import change, untrained
from pages.ui.explore_export import picture_choice, table_button
from pages.ui.explore_views import Table
from pages.ui.text import _


def show_export(place: Place, head: int, table: Table) -> None:
    """What the Export button opens."""
    name = f"compare_{place.kind}_layer{place.layer}_head{head}"
    table_button(table, name, "compare_csv")
    if st.session_state["compare"] != "heads":
        st.download_button(
            _("The custom layer, all stages (npz)"),
            lambda: _npz(place),
            f"{name}.npz",
            "application/octet-stream",
            key="compare_npz",
            on_click="ignore",
            width="stretch",
        )
    picture_choice()
    st.markdown(_("**Python that gives the same numbers**"))
    st.code(snippet(place, head), language="python", wrap_lines=True)


def snippet(place: Place, head: int) -> str:
    """The Python of this view, for the first text and model."""
    key, report = place.explored.key, place.trace.model.report
    lines = export.python_lines(
        model=key.model.name,
        revision=report.revision,
        device=report.device,
        dtype=report.dtype,
        source=key.source,
        target=key.target,
        beams=key.beams,
        kind=place.kind,
        layer=place.layer,
        head=head,
    )
    return lines + "\n" + "\n".join(_lines(place)) + "\n"


def _lines(place: Place) -> list[str]:
    view, at = st.session_state["compare"], f"{place.kind!r}, {place.layer}"
    if view == "prove":
        return [
            "from attention_core.analysis.proof import prove_attention, prove_model",
            f"equality, ours, theirs = prove_attention(run, {at})",
            'print(*equality.stages, sep="\\n")',
            "print(prove_model(run))",
        ]
    if view == "heads":
        return [
            "import torch",
            "from attention_core.analysis.compare import cluster_order, head_distances",
            f"layers = [run.steps({place.kind!r}, layer) for layer in range(run.num_layers({place.kind!r}))]",
            "distances = head_distances(torch.cat([s.weights for s in layers], dim=1), mask=layers[0].mask)",
            "print(cluster_order(distances), distances)",
        ]
    return [
        "from attention_core.analysis.changes import Change, changed_steps, output_effect",
        "from attention_core.analysis.compare import compare_maps",
        "from attention_core.analysis.proof import recorded",
        f"before, projections = recorded(run, {at})",
        f"change = {_written(untrained() if view == 'untrained' else change())}",
        "layer, after = changed_steps(projections, before.scale, before.mask, change)",
        "print(output_effect(before.output, after.output))",
        "if before.weights.shape == after.weights.shape:",
        "    print(compare_maps(before.weights, after.weights, before.mask, after.mask).mean_divergence)",
    ]


def _written(made: Change) -> str:
    """A change as Python, with only what differs from the defaults."""
    said = [
        f"{field.name}={getattr(made, field.name)!r}"
        for field in fields(made)
        if field.default is MISSING or getattr(made, field.name) != field.default
    ]
    return f"Change({', '.join(said)})"


def _npz(place: Place) -> bytes:
    view = st.session_state["compare"]
    steps = _custom(place, view)
    rows, columns = place.tokens
    key, report = place.explored.key, place.trace.model.report
    settings = {
        "model": report.name,
        "revision": report.revision,
        "source": key.source,
        "target": key.target,
        "kind": place.kind,
        "layer": place.layer,
        "layer_from_scratch": "real weights"
        if view == "prove"
        else _written(untrained() if view == "untrained" else change()),
    }
    heads = range(steps.weights.shape[1])
    return export.steps_npz(steps, heads=heads, query_tokens=rows, key_tokens=columns, settings=settings)


def _custom(place: Place, view: str) -> AttentionSteps:
    if view == "prove":
        return proof(place).ours
    return changed(place, untrained() if view == "untrained" else change()).after
