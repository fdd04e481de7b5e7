"""The sweep: each head switched off in turn, and ranked by what that does to the target."""

from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from pages.ui import cache, jobs
from pages.ui.atlas import show_atlas
from pages.ui.cells import number, show_table
from pages.ui.explore_run import Explored
from pages.ui.explore_views import Table
from pages.ui.text import _
from pages.ui.whatif_settings import add, choose_head
from pages.ui.whatif_words import place_words

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_ROWS = 12


def swept(explored: Explored, way: str) -> dict[str, np.ndarray] | None:
    """By kind, how much switching off each head costs, (layers, heads), nats a token; None before a sweep has run to its end."""
    found = jobs.job(_key(explored, way))
    if found is None or found.running or found.stopped or found.latest is None:
        return None
    return _losses(found, way)


def show_sweep(explored: Explored) -> Table:
    """The button, the progress, and what has been found."""
    state, run = st.session_state, explored.trace
    if not run.model.is_encoder_decoder:
        st.info(
            _(
                "A sweep asks how likely the target still is, and this model has none: that needs a decoder beside an encoder."
            ),
            icon=":material/info:",
        )
        return Table("sweep", np.zeros((0, 1)), [], [_("nats a token")])
    count = sum(run.num_layers(kind) * run.num_heads(kind) for kind in run.kinds)
    ways = {"zero": _("by zeros"), "mean": _("by its mean")}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="sweep_row"):
        st.segmented_control(_("Switched off"), list(ways), format_func=ways.get, key="sweep_by", required=True)
        way = state["sweep_by"]
        key = _key(explored, way)
        job = jobs.job(key)
        idle = job is None or not job.running
        again = _("Go on") if job is not None and job.stopped else _("Switch off each of the {count} heads in turn")
        if idle and (job is None or job.stopped or job.error is not None):
            pressed = st.button(again.format(count=count), key="sweep_go", type="primary", icon=":material/play_arrow:")
            if pressed:
                means = cache.mean_contexts(explored.key.model) if way == "mean" else None
                jobs.start(key, lambda earlier: _steps(explored, way, means, earlier))
                st.rerun()
    jobs.show_job(key, _share, "sweep")
    if job is None or job.latest is None:
        st.caption(
            _(
                "Each head is switched off alone, in the model as it is (the edits on the left are not applied), and the target is "
                "read again. The rise of its negative log-likelihood says what the head is worth for this text. Heads that can "
                "stand in for each other show little, each by itself."
            )
        )
        return Table("sweep", np.zeros((0, 1)), [], [_("nats a token")])
    return _results(explored, _losses(job, way), way, job)


def _results(explored: Explored, losses: dict[str, np.ndarray], way: str, job: jobs.Job) -> Table:
    ranked = [
        (float(value), kind, layer, head)
        for kind, found in losses.items()
        for (layer, head), value in np.ndenumerate(found)
        if np.isfinite(value)
    ]
    if not ranked:
        return Table("sweep", np.zeros((0, 1)), [], [_("nats a token")])
    ranked.sort(key=lambda each: -each[0])
    labels = [place_words(kind, layer, (head,)) for _value, kind, layer, head in ranked]
    values = np.array([value for value, *_place in ranked])
    _value, kind, layer, head = ranked[0]
    text = _("**{name}** costs most: without it the target's negative log-likelihood rises by {value} nats a token.")
    text += " " + _("{idle} of {count} heads change it by less than 0.01.")
    if job.running or job.stopped:
        text = _("So far:") + " " + text
    idle = int((np.abs(values) < 0.01).sum())
    st.markdown(text.format(name=labels[0], value=number(values[0], 3), idle=idle, count=len(values)))
    state = st.session_state
    show_atlas(
        losses,
        "sweep_atlas",
        _("rise of the negative log-likelihood"),
        _("nats a token"),
        chosen=choose_head,
        selected=(state["if_kind"], state["if_layer"], state["if_head"]),
        signed=True,
    )
    chosen = (state["if_kind"], state["if_layer"], state["if_head"])
    with st.container(horizontal=True, gap="small", key="sweep_take_row"):
        _take_button((kind, layer, head), way, "sweep_take")
        if chosen != (kind, layer, head):
            _take_button(chosen, way, "sweep_take_chosen")
    show_table((_("head"), _("rise")), [(label, number(value, 3)) for label, value in zip(labels[:_MOST_ROWS], values)])
    st.caption(
        _(
            "Rise of the target's negative log-likelihood, nats a token; below 0 the target becomes likelier without the head."
        )
    )
    return Table("sweep", values[:, None], labels, [_("nats a token")])


def _take_button(place: tuple[str, int, int], way: str, key: str) -> None:
    kind, layer, head = place
    label = _("Switch off {head}").format(head=place_words(kind, layer, (head,)))
    st.button(label, key=key, on_click=_take, args=(kind, layer, head, way), icon=":material/add:")


def _take(kind: str, layer: int, head: int, way: str) -> None:
    from attention_core.extract.interventions import SwitchOff

    add(SwitchOff(kind=kind, layer=layer, heads=(head,), by=way))
    st.session_state["if_view"] = "says"


def _key(explored: Explored, way: str) -> tuple:
    return "sweep", explored.key, way


def _steps(explored: Explored, way: str, means, earlier: jobs.Job | None) -> "Iterable":
    from attention_core.analysis.importance import ablation_effects

    run = explored.trace
    target = explored.key.target if run.generated_text is None else run.generated_text[0]
    latest = None if earlier is None else earlier.latest
    went_on = {} if latest is None else {"into": latest.profile, "done": latest.done}
    return ablation_effects(
        run.model,
        [explored.key.source],
        targets=None if target is None else [target],
        by=(way,),
        means=means,
        **went_on,
    )


def _share(latest) -> tuple[float, str]:
    total = latest.total or 1
    text = _("{done} of {total} heads").format(done=latest.done, total=total)
    left = jobs.time_left(latest.seconds_left)
    return latest.done / total, f"{text}, {left}" if left else text


def _losses(job: jobs.Job, way: str) -> dict[str, np.ndarray]:
    profile = job.latest.profile
    return {kind: profile.mean(kind, f"loss_{way}") for kind in profile.kinds}
