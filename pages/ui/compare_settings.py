"""The Compare page's settings. Those of the model, the texts and the drawing are Explore's own: one model, one text, two pages."""

from math import sqrt

import streamlit as st

from attention_core.analysis.changes import MATRICES, Change
from pages.ui import explore_settings
from pages.ui.explore_settings import KINDS, LISTED, OWN
from pages.ui.state import Setting, choice, choices, flag, real, text, whole

VIEWS = ("prove", "change", "untrained", "heads")
THINGS = ("scale", "temperature", "mask", "preset", "cut", "biases", "weights", "half")
PAIRS = ("heads", "texts", "models", "matrix", "match")
SHARED = (
    "source", "mode", "target", "beams", "cut", "model", "name", "revision", "device",
    "from_q", "from_k", "as_table", "picture", "shape2", "colours",
)  # fmt: skip

SETTINGS: dict[str, Setting] = {key: explore_settings.SETTINGS[key] for key in SHARED} | {
    s.key: s
    for s in (
        choice("compare", "prove", VIEWS),
        choice("kind_a", "cross", KINDS),
        whole("layer_a", 2, 0, 999),
        whole("head_a", 7, 0, 999),
        flag("whole_model"),
        choice("thing", "scale", THINGS),
        choice("rule", "d_model", ("head_dim", "d_model", "none", "own")),
        real("rule_by", 0.5, 1e-6, 1e6),
        real("heat", 2.0, 0.1, 10.0),
        choice("seen", "window", ("full", "causal", "window", "block")),
        whole("seen_width", 2, 0, 64),
        choice("other_preset", "bart_simplified", ("bert", "cabm", "bart_simplified")),
        whole("other_cut", 4, 1, 1024),
        choices("no_bias", ("query", "key", "value", "out"), MATRICES),
        choice("other_weights", "shuffled", ("shuffled", "random")),
        whole("other_seed", 0, 0, 999_999),
        choice("other_format", "float16", ("float16", "bfloat16", "float64")),
        choice("pair", "matrix", PAIRS),
        choice("kind_b", "cross", KINDS),
        whole("layer_b", 2, 0, 999),
        whole("head_b", 6, 0, 999),
        text("source_b", explore_settings.DEFAULT_SECOND),
        text("target_b", "The queen gave her daughter a cup."),
        choice("model_b", "embedded", (*LISTED, *OWN)),
        text("name_b"),
        flag("by_words"),
        choice("custom", "untrained", ("untrained", "change")),
    )
}


def change() -> Change:
    """The one thing that is changed, as the settings have it."""
    state = st.session_state
    return {
        "scale": lambda: Change(scale=state["rule_by"] if state["rule"] == "own" else state["rule"]),
        "temperature": lambda: Change(temperature=state["heat"]),
        "mask": lambda: Change(
            mask=state["seen"], width=max(state["seen_width"], 1 if state["seen"] == "block" else 0)
        ),
        "preset": lambda: Change(preset=state["other_preset"]),
        "cut": lambda: Change(num_heads=state["other_cut"]),
        "biases": lambda: Change(without_bias=tuple(state["no_bias"])),
        "weights": lambda: Change(weights=state["other_weights"], seed=state["other_seed"]),
        "half": lambda: Change(dtype=state["other_format"]),
    }[state["thing"]]()


def untrained() -> Change:
    """A new layer of the same form."""
    return Change(weights="random", seed=st.session_state["other_seed"])


def possible_cuts(width: int) -> list[int]:
    """Numbers of heads that cut a width evenly."""
    return [n for n in range(1, width + 1) if width % n == 0]


def flattening(num_heads: int) -> float:
    """How many times smaller 1/sqrt(d_model) is than 1/sqrt(head_dim), where the heads make up d_model."""
    return sqrt(num_heads)
