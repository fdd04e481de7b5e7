"""The What-if page's settings. Those of the model, the texts and the drawing are Explore's own: one model, one text."""

import streamlit as st

from attention_core.errors import AttentionError
from pages.ui import compare_settings
from pages.ui.explore_settings import KINDS, MOST_TOKENS
from pages.ui.state import Setting, choice, flag, real, text, whole

VIEWS = ("says", "heads", "cells", "sweep")
WHAT = (
    "SwitchOff", "Forbid", "Force", "Window", "Uniform", "Previous", "Identity", "Temperature", "Scale", "Untrained",
    "FromScratch",
)  # fmt: skip
EXPERIMENTS = ("", "strongest", "blind", "scale", "previous")
SCOPES = ("head", "layer", "kind")
WAYS = ("zero", "mean")


def _numbers(key: str, *default: int) -> Setting:
    """Any whole numbers, in order."""

    def read(written: str) -> list[int]:
        return [int(number) for number in written.split(".")][:256] if written else []

    return Setting(key, list(default), read, lambda numbers: ".".join(map(str, numbers)))


SETTINGS: dict[str, Setting] = {key: compare_settings.SETTINGS[key] for key in compare_settings.SHARED} | {
    s.key: s
    for s in (
        text("edits"),
        choice("experiment", "", EXPERIMENTS),
        choice("if_view", "says", VIEWS),
        choice("if_kind", "cross", KINDS),
        whole("if_layer", 2, 0, 999),
        whole("if_head", 0, 0, 999),
        whole("if_row", -1, -1, MOST_TOKENS),
        choice("what", "SwitchOff", WHAT),
        choice("on_kind", "cross", KINDS),
        whole("on_layer", 2, -1, 999),
        _numbers("on_heads", 4),
        choice("off_by", "zero", WAYS),
        _numbers("on_keys"),
        flag("and_after"),
        _numbers("on_queries"),
        whole("on_width", 8, 0, 64),
        real("on_heat", 2.0, 0.1, 20.0),
        choice("on_rule", "d_model", ("d_model", "head_dim", "none", "own")),
        real("on_scale", 0.5, 1e-6, 1e6),
        whole("on_seed", 0, 0, 999_999),
        choice("scope", "head", SCOPES),
        choice("sweep_by", "zero", WAYS),
    )
}


def edits() -> tuple:
    """The edits that are set.

    Raises:
        AttentionError: a link that holds no list of edits.
    """
    from attention_core.extract.interventions import edits_from_text

    written = st.session_state["edits"]
    return edits_from_text(written) if written else ()


def readable_edits() -> tuple:
    """The edits that are set; none where a link holds no list of edits (which the page says)."""
    try:
        return edits()
    except AttentionError:
        return ()


def set_edits(made: tuple) -> None:
    """Sets the edits; what an experiment asked to watch is then no longer the matter."""
    from attention_core.extract.interventions import edits_to_text

    st.session_state["edits"] = edits_to_text(made) if made else ""
    st.session_state["experiment"] = ""


def add(edit) -> None:
    """One more edit, and its head is the one looked at. The same one twice would be one."""
    set_edits((*(each for each in readable_edits() if each != edit), edit))
    look_at(edit)


def look_at(edit) -> None:
    """The head that an edit changes is the one that is looked at."""
    choose_head(edit.kind, edit.layer or 0, 0 if edit.heads is None else edit.heads[0])


def choose_head(kind: str, layer: int, head: int) -> None:
    """The head that is looked at."""
    state = st.session_state
    state["if_kind"], state["if_layer"], state["if_head"] = kind, layer, head


def remove(place: int) -> None:
    """One edit fewer (a callback)."""
    kept = list(readable_edits())
    if place < len(kept):
        del kept[place]
    set_edits(tuple(kept))


def remove_all() -> None:
    """The model as it is (a callback)."""
    set_edits(())


def made() -> object:
    """The edit that the form describes.

    Raises:
        AttentionError: one that cannot be.
    """
    from attention_core.extract.interventions import EDITS

    state = st.session_state
    kind = EDITS[state["what"]]
    if state["on_kind"] not in kind.kinds:
        raise AttentionError("this change means nothing for cross-attention, whose keys are another text")
    place = {
        "kind": state["on_kind"],
        "layer": None if state["on_layer"] < 0 else state["on_layer"],
        "heads": tuple(state["on_heads"]) or None,
    }
    keys = sorted(state["on_keys"])
    after = keys[-1] if keys and state["and_after"] else None
    extra = {
        "SwitchOff": lambda: {"by": state["off_by"]},
        "Forbid": lambda: {"keys": tuple(keys), "after": after, "queries": tuple(state["on_queries"]) or None},
        "Force": lambda: {"keys": tuple(keys), "after": after, "queries": tuple(state["on_queries"]) or None},
        "Window": lambda: {"width": state["on_width"]},
        "Temperature": lambda: {"value": state["on_heat"]},
        "Scale": lambda: {"rule": state["on_scale"] if state["on_rule"] == "own" else state["on_rule"]},
        "Untrained": lambda: {"seed": state["on_seed"]},
    }.get(state["what"], dict)()
    if state["what"] in ("Forbid", "Force") and not keys:
        raise AttentionError("choose at least one word of the text that is looked at")
    return kind(**place, **extra)
