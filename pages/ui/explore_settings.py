"""The Explore page's settings, the models that it lists, and the texts that it starts from."""

import json
import os
from pathlib import Path

import streamlit as st

from attention_core.analysis.reading import STEPS
from pages.ui.layout import COLOUR_SCALE
from pages.ui.state import Setting, choice, choices, flag, text, whole
from pages.ui.text import _

VIEWS = ("all", "one", "lines", "painted", "norms", "two")
KINDS = ("encoder", "decoder", "cross")
MODES = ("shift", "typed", "greedy", "beam")
DEVICES = ("auto", "cpu", "cuda", "mps")
STAGES = ("query", "key", "value", "scores", "masked_scores", "weights", "context")

# Models by hub id, with the megabytes of their download. "folder" and "hub" take a name that the person types.
LISTED = {
    "embedded": 14,
    "facebook/bart-base": 560,
    "facebook/bart-large": 1020,
    "facebook/bart-large-cnn": 1630,
    "sshleifer/distilbart-cnn-12-6": 1220,
    "bert-base-uncased": 440,
}
OWN = ("folder", "hub")

DEFAULT_SOURCE = "The old king gave his youngest son a golden ring, and the ring was lost in the sea."
DEFAULT_SECOND = "The old queen gave her youngest daughter a silver cup, and the cup was lost in the wood."
MASKED = 'The fox said to the<mask>, "What a beautiful voice you have!"'
MOST_TOKENS = 1 << 16

SETTINGS: dict[str, Setting] = {
    s.key: s
    for s in (
        text("source", DEFAULT_SOURCE),
        choice("mode", "shift", MODES),
        text("target", "The king gave his son a ring."),
        whole("beams", 4, 2, 8),
        flag("cut"),
        choice("model", "embedded", (*LISTED, *OWN)),
        text("name"),
        text("revision"),
        choice("device", "auto", DEVICES),
        choice("show", "all", VIEWS),
        choice("kind", "cross", KINDS),
        whole("layer", 2, 0, 999),
        whole("h", 1, 0, 999),
        choices("reading", (), STEPS),
        flag("unscaled"),
        flag("printed"),
        choice("cell_stage", "weights", STAGES),
        whole("cell_row", 4, 0, MOST_TOKENS),
        whole("cell_col", 4, 0, MOST_TOKENS),
        whole("from_q", 0, 0, MOST_TOKENS),
        whole("from_k", 0, 0, MOST_TOKENS),
        choice("side", "from", ("from", "into")),
        Setting("chosen", [4], lambda text: [int(n) for n in text.split(".")][:64] if text else [],
                lambda places: ".".join(map(str, places))),
        whole("least", 5, 1, 50),
        flag("as_table"),
        choice("norm_of", "head", ("head", "layer")),
        text("source2", DEFAULT_SECOND),
        text("target2", "The queen gave her daughter a cup."),
        choice("picture", "png", ("png", "svg")),
        choice("shape2", "auto", ("auto", "wide", "narrow")),
        COLOUR_SCALE,
    )
}  # fmt: skip


def samples() -> dict[str, tuple[str, dict]]:
    """Ready texts: key -> (name, settings that differ from the defaults)."""
    found = {
        "ring": (_("A sentence, read and copied"), {}),
        "masked": (
            _("Let the model fill in a masked word"),
            {"source": MASKED, "mode": "beam", "show": "painted", "chosen": [6]},
        ),
        "given": (
            _("A source with its own target"),
            {"source": "The wolf ran through the dark wood to the house.", "mode": "typed", "target": "The wolf ran to the house."},
        ),
        "pronoun": (
            _("Who is “she”?"),
            {"source": "The queen took the child by the hand, and she led her into the garden.", "kind": "encoder"},
        ),
    }  # fmt: skip
    for number, (title, author, passage) in enumerate(held_out()):
        found[f"held_out_{number}"] = (
            _("Held out in training: {title}, {author}").format(title=title, author=author),
            {"source": passage},
        )
    return found


@st.cache_data(show_spinner=False)
def held_out() -> list[tuple[str, str, str]]:
    """(title, author, a short passage) of each story that the embedded model has not seen."""
    import attention_core

    file = Path(attention_core.__file__).parent / "embedded" / "stories.jsonl"
    if not file.is_file():
        return []
    stories = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line]
    passages = []
    for story in stories:
        fitting = [p for p in story["paragraphs"] if 90 <= len(p) <= 220]
        if fitting:
            passages.append((story["title"], story["author"], fitting[0]))
    return passages


def apply_sample(name: str) -> None:
    """Brings in a text (a callback); model, device and how things are drawn stay."""
    kept = ("model", "name", "revision", "device", "picture", "shape2", COLOUR_SCALE.key)
    changes = samples()[name][1]
    for key, setting in SETTINGS.items():
        if key not in kept:
            value = changes.get(key, setting.default)
            st.session_state[key] = list(value) if isinstance(value, list) else value


def model_name() -> str:
    """What ``load_model`` is given: the listed model, or the typed folder or hub id."""
    state = st.session_state
    return typed_name(state.model, state["name"]) if state.model in OWN else state.model


def typed_name(kind: str, name: str) -> str:
    """A typed "folder" or "hub" name. A folder's is made absolute: anything else might be taken for a name on the hub."""
    name = name.strip()
    return os.path.abspath(os.path.expanduser(name)) if kind == "folder" and name else name


def clamp(key: str, count: int, said: list[str], sentence: str) -> None:
    """Brings a chosen number into 0 .. count - 1, and says so."""
    if st.session_state[key] >= count:
        said.append(sentence.format(old=st.session_state[key], new=count - 1))
        st.session_state[key] = count - 1
