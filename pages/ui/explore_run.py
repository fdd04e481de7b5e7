"""From the settings to a trace: the model, its texts counted before it runs, and what must be said on the way."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import streamlit as st

from attention_core.errors import AttentionError
from pages.ui import cache
from pages.ui.explore_settings import LISTED, model_name
from pages.ui.layout import show_error
from pages.ui.page_tools import Information
from pages.ui.text import _, error_text, verbatim

if TYPE_CHECKING:
    from attention_core.extract.models import LoadedModel
    from attention_core.extract.trace import Trace


@dataclass(frozen=True)
class Explored:
    """One text as the page shows it.

    Attributes:
        key: names the trace by values.
        trace: the recorded run.
    """

    key: cache.TraceKey
    trace: "Trace"


def model_key() -> cache.ModelKey:
    """Which model the settings name."""
    state = st.session_state
    revision = state.revision.strip() if state.model == "hub" else ""
    return cache.ModelKey(model_name(), revision or None, state.device)


def may_load(key: cache.ModelKey) -> bool:
    """Whether loading may begin. A download is asked for first, since a link may name any model."""
    from attention_core.extract import hub

    state = st.session_state
    if state.model == "embedded":
        return True
    if not key.name:
        place = _("the folder") if state.model == "folder" else _("the hub id")
        st.info(_("Type {place} of the model on the left.").format(place=place), icon=":material/arrow_back:")
        return False
    if state.model == "hub":
        check_hub_id(key.name, key.revision)
    agreed = state.setdefault("_agreed_models", set())
    if (
        state.model == "folder"
        or key in agreed
        or hub.cached(key.name, key.revision)
        or hub.constants.is_offline_mode()
    ):
        return True
    size = LISTED.get(key.name)
    text = _("{name} is not on this machine yet.").format(name=verbatim(key.name))
    text += " " + (_("The download is about {size}.").format(size=readable_megabytes(size)) if size else "")
    st.info(text, icon=":material/download:")
    if st.button(_("Download and open"), type="primary", key="download_model"):
        agreed.add(key)
        st.rerun()
    st.button(_("Back to the embedded model"), on_click=use_embedded, key="back_to_embedded")
    return False


def check_hub_id(name: str, revision: str | None = None) -> None:
    """What is typed as a hub id must be able to be one, before anything is said of a download.

    Raises:
        AttentionError: a folder, a path, or characters that no hub id has.
    """
    from attention_core.extract import hub

    if os.path.isdir(name):
        raise AttentionError(
            "{name!r} is a folder on this machine and not a hub id: choose “A folder on this machine” and give its path there",
            name=name,
        )
    hub.check_id(name, revision)


def use_embedded() -> None:
    """Sets the model back to the one that needs nothing (a callback)."""
    st.session_state.model = "embedded"


def readable_megabytes(size: float) -> str:
    """MB below 1,000, else GB with one decimal."""
    return f"{size:.0f} MB" if size < 1000 else f"{size / 1000:.1f} GB"


def loaded(key: cache.ModelKey) -> "LoadedModel":
    """The model; a progress bar stands in for it while it is downloaded and read."""
    place = st.empty()

    def show(done: int, total: int | None) -> None:
        if total:
            size, whole = readable_megabytes(done / 1e6), readable_megabytes(total / 1e6)
            place.progress(min(1.0, done / total), _("Downloading: {size} of {whole}").format(size=size, whole=whole))
        else:
            place.progress(0, _("Loading {name}…").format(name=verbatim(key.name)))

    model = cache.model(key, show)
    place.empty()
    return model


def opened_model(key: cache.ModelKey) -> "LoadedModel | None":
    """The model, or None after a sentence that says why not and what to do."""
    try:
        return loaded(key) if may_load(key) else None
    except AttentionError as error:
        show_error(error)
        st.button(_("Use the embedded model"), on_click=use_embedded, type="primary", key="use_embedded")
        return None


def explored(key: cache.ModelKey, model: "LoadedModel", source: str, target: str, said: list[str]) -> Explored:
    """The trace of one text under the settings.

    Raises:
        AttentionError: it is too long and the person has not agreed to a cut; or it cannot be traced.
    """
    state = st.session_state
    mode = state.mode if model.is_encoder_decoder else "shift"
    if mode in ("greedy", "beam") and not model.report.can_generate:
        said.append(_("This model has no language head, so it cannot write; the shifted source is shown."))
        mode = "shift"
    source = fitted(model, source, "source", said)
    typed = fitted(model, target, "target", said) if mode == "typed" else None
    beams = {"greedy": 1, "beam": state.beams}.get(mode)
    trace_key = cache.TraceKey(key, source, typed, beams)
    place = st.empty()

    def show(done: int, total: int | None) -> None:
        if beams is None:
            place.progress(0, _("The model reads the text…"))
        else:
            place.progress(min(1.0, done / 128), _("The model writes: {count} tokens").format(count=done))

    run = cache.run(trace_key, show)
    place.empty()
    # What the reader of the text did with it, such as taking <mask> for a control token: as the person meant it.
    said += [Information(error_text(notice)) for notice in run.notices]
    return Explored(trace_key, run)


def fitted(model: "LoadedModel", text: str, side: str, said: list[str]) -> str:
    """The text, cut to the model's limit where it is longer and the person agrees; counted before the model runs."""
    if not text:
        raise AttentionError("the {side} is empty: type at least one character", side=side)
    count, limit = model.count_tokens(text, side), model.limit(side)
    if limit is None or count <= limit:
        return text
    if not st.session_state.cut:
        raise AttentionError(
            "the {side} has {count} tokens and this model takes at most {limit}: shorten it, or agree to a cut on the left",
            side=side,
            count=count,
            limit=limit,
        )
    cut = model.cut_text(text, side)
    said.append(
        _("The {side} has {count} tokens; the first {left} are read, as you agreed.").format(
            side=side, count=count, left=model.count_tokens(cut, side)
        )
    )
    return cut


def model_choices() -> dict[str, str]:
    """What the model select box offers: name -> label with its size and, for those of the hub, whether it is here."""
    there = on_this_machine()
    labels = {}
    for name, size in LISTED.items():
        here = name == "embedded" or name in there
        title = _("Embedded") if name == "embedded" else name
        labels[name] = f"{title} · {readable_megabytes(there.get(name, size * 1e6) / 1e6)}{' ✓' if here else ''}"
    return labels | {"folder": _("A folder on this machine"), "hub": _("Another model of the hub")}


@st.cache_data(ttl=10, show_spinner=False)
def on_this_machine() -> dict[str, int]:
    """Bytes of the listed models that are in the cache."""
    from attention_core.extract import hub

    sizes = {name: hub.cached_bytes(name) for name in LISTED if name != "embedded"}
    return {name: size for name, size in sizes.items() if size is not None}
