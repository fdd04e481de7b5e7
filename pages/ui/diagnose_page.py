"""The frame of the Diagnose page: which texts, the job that examines them, and the views of what it found."""

from typing import TYPE_CHECKING

import streamlit as st

from attention_core.analysis.diagnosis import diagnose
from attention_core.analysis.profile_sums import Profile
from attention_core.errors import AttentionError
from pages.ui import diagnose_job as job
from pages.ui.diagnose_export import show_export, show_profile_export
from pages.ui.diagnose_findings import show_findings
from pages.ui.diagnose_flow import show_flow
from pages.ui.diagnose_job import Texts
from pages.ui.diagnose_reading import show_reading
from pages.ui.diagnose_settings import MOST_STORIES, REFERENCES, SETTINGS, TEXTS, thresholds
from pages.ui.diagnose_tables import show_alike, show_atlas_view, show_table_view
from pages.ui.explore_controls import Places, missing_sentence
from pages.ui.explore_page import model_and_run
from pages.ui.explore_run import Explored
from pages.ui.explore_views import Table, show_numbers
from pages.ui.layout import show_error
from pages.ui.page_tools import not_understood, say, toolbar
from pages.ui.text import _, error_text, verbatim
from pages.ui.whatif_run import edited

if TYPE_CHECKING:
    from attention_core.extract.models import LoadedModel

_OWN_REFERENCE = "_diagnose_reference"
OVER_TEXTS = ("findings", "table", "atlas", "alike")


def show_page(page: str, ignored: list[str], places: Places) -> None:
    """Everything right of the sidebar."""
    said = not_understood(ignored)
    opened = model_and_run(said, places)
    if opened is None:
        say(said)
        return
    model, explored = opened
    export = _toolbar(page)
    if model.report.missing:
        said.append(missing_sentence(model))
    try:
        if st.session_state["diag_view"] in OVER_TEXTS:
            _over_texts(model, explored, said, export)
        else:
            _of_this_text(explored, said, export)
    except AttentionError as error:
        say(said)
        show_error(error)


def _toolbar(page: str):
    """Views, and what acts on the whole page; returns the place of the export."""
    views = {
        "findings": _("Findings"),
        "table": _("Numbers"),
        "atlas": _("Atlas"),
        "alike": _("Alike"),
        "reading": _("Target"),
        "flow": _("Flow"),
    }
    return toolbar(page, SETTINGS, views, "diag_view")


def _over_texts(model: "LoadedModel", explored: Explored, said: list[str], export) -> None:
    """The views that need numbers over texts."""
    texts = _texts_control(model, explored)
    plan = job.plan(explored, texts)
    running = job.job_of(plan)
    profile, of = _profile(model, plan, texts)
    _examine_button(model, plan, texts, profile, of)
    job.show_progress(plan)
    latest = None if running is None else running.latest
    if latest is not None:
        if latest.skipped:
            said.append(
                _("Left out: {count} of {total} texts. The first: {what}").format(
                    count=len(latest.skipped), total=len(texts.sources), what=verbatim(latest.skipped[0])
                )
            )
    said += [
        _("Line {line} of the file was skipped: {reason}.").format(line=n, reason=verbatim(why))
        for n, why in texts.broken[:4]
    ]
    say(said)
    if profile is None:
        st.info(
            _("Press the button: each text is read once, and every head's numbers are taken on the way."),
            icon=":material/info:",
        )
        return
    if of == "shipped":
        # Its worst examples are counted in all the stories.
        texts = job.all_stories()
    table = _view(profile, texts, model, plan)
    if st.session_state["as_table"]:
        show_numbers(table)
    with export:
        show_profile_export(profile, table, plan, st.session_state["texts_from"])


def _view(profile: Profile, texts: Texts, model: "LoadedModel", plan: job.Plan) -> Table:
    view = st.session_state["diag_view"]
    if view == "findings":
        reference, name = _reference(profile, model, plan)
        return show_findings(diagnose(profile, reference, thresholds()), texts, name)
    return {"table": show_table_view, "atlas": show_atlas_view, "alike": show_alike}[view](profile, texts)


def _of_this_text(explored: Explored, said: list[str], export) -> None:
    """The views of the text on the left."""
    state = st.session_state
    _edits_toggle()
    if state["with_edits"] and state["edits"]:
        from attention_core.extract.interventions import edits_from_text

        # A target that the model writes is written under the edits too.
        explored = edited(explored, edits_from_text(state["edits"]))
        said += [error_text(notice) for notice in explored.trace.notices]
    say(said)
    table = {"reading": show_reading, "flow": show_flow}[state["diag_view"]](explored)
    if state["as_table"]:
        show_numbers(table)
    with export:
        show_export(table)


def _texts_control(model: "LoadedModel", explored: Explored) -> Texts:
    """Which texts are examined, and how thoroughly."""
    state = st.session_state
    names = {
        "stories": _("The held-out stories"),
        "one": _("The text on the left"),
        "typed": _("Several texts"),
        "file": _("A file"),
    }
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="texts_row"):
        st.selectbox(_("Texts"), TEXTS, format_func=names.get, key="texts_from", width=210)
        if state["texts_from"] == "stories":
            st.number_input(_("How many"), 1, MOST_STORIES, key="story_count", width=120)
        if model.is_encoder_decoder:
            st.toggle(
                _("Gradients"),
                key="with_gradients",
                help=_("One backward pass a text: how steeply the likelihood changes with each head."),
            )
            st.toggle(
                _("Switch heads off"),
                key="with_ablation",
                help=_("Each head in turn, by zeros and by its mean. Takes longest."),
            )
            if state["with_ablation"]:
                st.number_input(_("on so many texts"), 1, 64, key="ablation_texts", width=120)
    if state["texts_from"] == "typed":
        st.text_area(_("One text a line"), key="typed_texts", height=120)
    if state["texts_from"] == "file":
        uploaded = st.file_uploader(
            _("A .txt with one text a line, a .csv with the columns text and target, or a .jsonl with such objects"),
            type=["txt", "csv", "jsonl"],
            key="texts_file",
        )
        if uploaded is not None:
            job.take_file(uploaded)
        job.say_file()
    _edits_toggle()
    return job.chosen_texts(explored)


def _edits_toggle() -> None:
    if st.session_state["edits"]:
        st.toggle(_("With the changes made on the What-if page"), key="with_edits")
        if st.session_state["with_edits"]:
            st.code(st.session_state["edits"], language=None, wrap_lines=True)


def _profile(model: "LoadedModel", plan: job.Plan, texts: Texts) -> tuple[Profile | None, str]:
    """What has been found, and whose it is: "job", "shipped", or "" where there is none yet."""
    running = job.job_of(plan)
    if running is not None and running.latest is not None and running.latest.profile.texts:
        return running.latest.profile, "job"
    if st.session_state["texts_from"] == "stories" and not plan.edits and job.is_the_shipped_model(plan.model, model):
        return job.shipped(), "shipped"
    return None, ""


def _examine_button(model: "LoadedModel", plan: job.Plan, texts: Texts, profile: Profile | None, of: str) -> None:
    running = job.job_of(plan)
    if running is not None and running.running:
        if of == "job":
            st.caption(_("Shown: what has been read so far."))
        return
    finished = running is not None and not running.stopped and running.error is None
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="examine_row"):
        if not finished:
            label = (
                _("Go on")
                if running is not None and running.stopped
                else _("Examine {count} texts").format(count=len(texts.sources))
            )
            if st.button(
                label, key="examine", type="secondary" if of == "shipped" else "primary", icon=":material/play_arrow:"
            ):
                job.begin(plan, texts, model)
                st.rerun()
        if profile is not None:
            told = _("{texts} texts, {tokens} tokens").format(texts=f"{profile.texts:,}", tokens=f"{profile.tokens:,}")
            st.caption(
                _("Shown: the profile that comes with the model, over {told}.").format(told=told)
                if of == "shipped"
                else told
            )


def _reference(profile: Profile, model: "LoadedModel", plan: job.Plan) -> tuple[Profile | None, str]:
    """What failures are compared with, and what that is called."""
    state = st.session_state
    names = {
        "shipped": _("the sound embedded model"),
        "neighbours": _("the other heads of the layer"),
        "own": _("a profile of my own"),
    }
    fits = job.shipped().shapes == profile.shapes
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="reference_row"):
        st.selectbox(_("Compared with"), REFERENCES, format_func=names.get, key="against", width=260)
    if state["against"] == "own":
        uploaded = st.file_uploader(_("A profile saved under Export (.json)"), type=["json"], key="reference_file")
        if uploaded is not None:
            state[_OWN_REFERENCE] = uploaded.getvalue().decode("utf-8", errors="replace")
        if _OWN_REFERENCE in state:
            return Profile.from_json(state[_OWN_REFERENCE]), names["own"]
        st.caption(_("No profile yet, so the other heads of the layer serve."))
        return None, names["neighbours"]
    if state["against"] == "neighbours" or not fits:
        if state["against"] == "shipped":
            st.caption(
                _("This model has other layers or heads than the embedded one, so the other heads of the layer serve.")
            )
        return None, names["neighbours"]
    return job.shipped(), names["shipped"]
