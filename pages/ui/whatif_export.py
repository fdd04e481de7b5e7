"""Taking an experiment away: its table, and the Python that gives the same."""

import streamlit as st

from attention_core import export
from pages.ui.explore_export import picture_choice, table_button
from pages.ui.explore_views import Table
from pages.ui.text import _
from pages.ui.whatif_run import Experiment


def show_export(made: Experiment, table: Table) -> None:
    """What the Export button opens."""
    table_button(table, f"what_if_{table.name}", "whatif_csv")
    picture_choice()
    st.markdown(_("**Python that gives the same numbers**"))
    st.code(snippet(made), language="python", wrap_lines=True)


def snippet(made: Experiment) -> str:
    """The Python of this experiment."""
    key, report, state = made.before.key, made.before.trace.model.report, st.session_state
    lines = export.python_lines(
        model=key.model.name,
        revision=report.revision,
        device=report.device,
        dtype=report.dtype,
        source=key.source,
        target=key.target,
        beams=key.beams,
        kind=state["if_kind"],
        layer=state["if_layer"],
        head=state["if_head"],
    ).rstrip()
    names = sorted({type(edit).__name__ for edit in made.edits})
    more = []
    if names:
        more.append(f"from attention_core.extract.interventions import {', '.join(names)}")
    means = any(getattr(edit, "by", "") == "mean" for edit in made.edits)
    if means:
        more += ["from attention_core.extract.means import mean_contexts", "means = mean_contexts(model)"]
    more.append("edits = [" + ", ".join(map(repr, made.edits)) + "]")
    fed = "" if key.target is None else ", target=target"
    if key.beams is not None:  # the edited model reads what the unedited one wrote
        fed = ", target=run.target_ids, target_mask=run.target.mask"
    more.append(f"edited = trace(model, source{fed}, edits=edits{', means=means' if means else ''})")
    if made.before.trace.labels is not None:
        more += [
            "from attention_core.analysis.effects import token_effects",
            "effects = token_effects(run, edited)",
            "print(effects.loss_before, effects.loss_after)",
        ]
    return "\n".join([lines, *more]) + "\n"
