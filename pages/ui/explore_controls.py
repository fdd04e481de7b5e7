"""The sidebar of every page with a real model: texts, target, model, device; and the panel of what is loaded."""

from typing import TYPE_CHECKING

import streamlit as st

from pages.ui.cells import show_table
from pages.ui.explore_run import model_choices
from pages.ui.explore_settings import DEVICES, MODES, OWN, apply_sample, samples
from pages.ui.text import _, verbatim

if TYPE_CHECKING:
    from attention_core.extract.models import LoadedModel

Places = dict[str, "st.delta_generator.DeltaGenerator"]


def sidebar(*, second: bool = False) -> Places:
    """Texts and model, with a second text where it is asked for.

    Returns:
        the places that are filled once the model is there: "source", "target", "cut", "model".
    """
    places: Places = {}
    with st.sidebar:
        with st.expander(_("Text"), expanded=True):
            sample_texts()
            st.text_area(_("Source"), key="source", height=110, help=_("What the encoder reads."))
            places["source"] = st.empty()
            target_control(places)
            if second:
                st.text_area(_("Second source"), key="source2", height=90)
                if st.session_state["mode"] == "typed":
                    st.text_area(_("Second target"), key="target2", height=70)
            places["cut"] = st.empty()
        with st.expander(_("Model"), expanded=True):
            model_control()
            places["model"] = st.container()
    return places


def sample_texts() -> None:
    """Ready texts behind one button."""
    with st.popover(_("Sample texts"), width="stretch"):
        for name, (title, _changes) in samples().items():
            st.button(
                title, key=f"sample_{name}", on_click=apply_sample, args=(name,), type="tertiary", width="stretch"
            )


def target_control(places: Places) -> None:
    """Where the decoder's text comes from."""
    names = {
        "shift": _("Source, shifted right"),
        "typed": _("My own text"),
        "greedy": _("Model writes, greedy"),
        "beam": _("Model writes, beams"),
    }
    st.selectbox(
        _("Target"),
        MODES,
        format_func=names.get,
        key="mode",
        help=_(
            "What the decoder reads. With no target the library feeds it the source, shifted right by one and started with the "
            "end token. A model that writes reads its own words again. `<mask>` in the source asks it to fill a gap."
        ),
    )
    if st.session_state["mode"] == "typed":
        st.text_area(_("Target text"), key="target", height=80)
        places["target"] = st.empty()
    elif st.session_state["mode"] == "beam":
        st.slider(_("Beams"), 2, 8, key="beams", help=_("How many unfinished texts the search keeps."))


def model_control() -> None:
    """Which model, and where it runs."""
    labels = model_choices()
    st.selectbox(
        _("Model"),
        list(labels),
        format_func=labels.get,
        key="model",
        label_visibility="collapsed",
        help=_("✓ is on this machine; the others are downloaded once, after you agree."),
    )
    if st.session_state["model"] in OWN:
        own = st.session_state["model"]
        st.text_input(
            _("Folder") if own == "folder" else _("Hub id"),
            key="name",
            placeholder=_("the folder that save_pretrained wrote") if own == "folder" else "facebook/bart-base",
        )
        if own == "hub":
            st.text_input(_("Revision"), key="revision", placeholder="main")
    names = {"auto": _("Fastest device here"), "cpu": "CPU", "cuda": "GPU (CUDA)", "mps": "GPU (Apple)"}
    st.selectbox(
        _("Device"),
        _devices(),
        format_func=names.get,
        key="device",
        label_visibility="collapsed",
        help=_("Where it runs."),
    )


def _devices() -> list[str]:
    """Those of this machine, and the chosen one, so that a link from elsewhere is told what is wrong."""
    import torch

    there = {"auto", "cpu"}
    there |= {"cuda"} if torch.cuda.is_available() else set()
    there |= {"mps"} if torch.backends.mps.is_available() else set()
    return [device for device in DEVICES if device in there or device == st.session_state["device"]]


def fill(places: Places, model: "LoadedModel") -> None:
    """What is known once the model is there: token counts, the cut, and what is loaded."""
    state = st.session_state
    over = False
    for side in ("source", "target"):
        if side in places and (side == "source" or model.is_encoder_decoder):
            text = state[side]
            count, limit = (model.count_tokens(text, side) if text else 0), model.limit(side)
            over |= limit is not None and count > limit
            shown = _("{count} tokens") if limit is None else _("{count} of {limit} tokens")
            places[side].caption(shown.format(count=f"{count:,}", limit=f"{limit or 0:,}"))
    if over or state["cut"]:
        places["cut"].toggle(
            _("Cut what is too long"), key="cut", help=_("Keeps the beginning, and closes it with the end token.")
        )
    with places["model"], st.popover(_("What is loaded"), width="stretch"):
        loaded_panel(model)


def loaded_panel(model: "LoadedModel") -> None:
    """Name, revision, format, device, licence, size, missing weights."""
    report = model.report
    origin = {
        "embedded": _("comes with this project"),
        "hub": _("the hub's cache"),
        "folder": _("a folder"),
        "module": _("memory"),
    }
    limits = [report.source_limit, report.target_limit]
    rows = [
        (_("model"), report.name),
        (_("from"), origin[report.origin]),
        (_("architecture"), report.architecture),
        (_("revision"), report.revision or "–"),
        (_("number format"), report.dtype),
        (_("device"), report.device),
        (_("licence"), report.licence or _("not stated")),
        (_("parameters"), f"{report.parameters:,}"),
        (_("file format"), report.file_format or "–"),
        (_("most tokens"), " / ".join(f"{limit:,}" for limit in limits if limit) or _("no limit")),
        (_("missing weights"), f"{len(report.missing)}"),
        (_("unused weights"), f"{len(report.unexpected)}"),
    ]
    show_table((_("what"), ""), rows)
    if report.missing:
        st.warning(missing_sentence(model), icon=":material/warning:")


def missing_sentence(model: "LoadedModel") -> str:
    """Says which weights are random, so that they do not pass for trained ones."""
    names = ", ".join(verbatim(name) for name in model.report.missing[:4])
    more = len(model.report.missing) - 4
    return _("{count} weights were in no file and are random: {names}{more}. Heads made from them show nothing learnt.").format(
        count=len(model.report.missing), names=names, more=_(" and {count} more").format(count=more) if more > 0 else ""
    )  # fmt: skip
