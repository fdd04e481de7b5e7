"""The Diagnose page's settings. Those of the model, the text and the drawing are Explore's own, the edits are What if's."""

from collections.abc import Mapping

import streamlit as st

from attention_core.analysis.diagnosis import RULES
from attention_core.analysis.head_metrics import COLUMNS
from pages.ui import compare_settings, diagnose_flow, diagnose_reading, whatif_settings
from pages.ui.explore_settings import KINDS
from pages.ui.state import Setting, choice, choices, flag, real, text, whole

VIEWS = ("findings", "table", "atlas", "alike", "reading", "flow")
TEXTS = ("stories", "one", "typed", "file")
REFERENCES = ("shipped", "neighbours", "own")
NAMES = tuple(column.name for column in COLUMNS)
MOST_STORIES = 400
DEFAULT_TYPED = (
    "The wolf ran through the dark wood to the house.\n"
    "The queen took the child by the hand, and she led her into the garden.\n"
    "An old man had three sons, and the youngest of them was called Hans."
)


def threshold_key(rule: str, name: str) -> str:
    """The setting of one threshold of one rule."""
    return f"t_{rule}_{name}"


def _thresholds() -> list[Setting]:
    return [
        real(threshold_key(rule.name, name), float(value), 0.0, 100.0)
        for rule in RULES
        for name, value in rule.thresholds.items()
    ]


SETTINGS: dict[str, Setting] = {key: compare_settings.SETTINGS[key] for key in compare_settings.SHARED} | {
    s.key: s
    for s in (
        whatif_settings.SETTINGS["edits"],
        flag("with_edits"),
        choice("diag_view", "findings", VIEWS),
        choice("texts_from", "stories", TEXTS),
        text("typed_texts", DEFAULT_TYPED),
        whole("story_count", 40, 1, MOST_STORIES),
        flag("with_gradients", True),
        flag("with_ablation", True),
        whole("ablation_texts", 2, 1, 64),
        choice("against", "shipped", REFERENCES),
        choice("number", "output_share", NAMES),
        flag("spreads"),
        choices("kinds_shown", KINDS, KINDS),
        choice("alike_kind", "encoder", KINDS),
        choice("d_kind", "encoder", KINDS),
        whole("d_layer", 0, 0, 999),
        whole("d_head", 0, 0, 999),
        *_thresholds(),
        *diagnose_reading.SETTINGS,
        *diagnose_flow.SETTINGS,
    )
}


def thresholds() -> Mapping[str, Mapping[str, float]]:
    """Every rule's thresholds, as they are set."""
    state = st.session_state
    return {rule.name: {name: state[threshold_key(rule.name, name)] for name in rule.thresholds} for rule in RULES}


def default_thresholds() -> None:
    """Sets every threshold back to what it is calibrated at (a callback)."""
    for rule in RULES:
        for name, value in rule.thresholds.items():
            st.session_state[threshold_key(rule.name, name)] = float(value)


def choose_head(kind: str, layer: int, head: int) -> None:
    """The head that is looked at."""
    state = st.session_state
    state["d_kind"], state["d_layer"], state["d_head"] = kind, layer, head
