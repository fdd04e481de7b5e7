"""Which head of a run is looked at: the select boxes of kind, layer and head, and of the window into a long map."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import streamlit as st

from pages.ui.explore_head import EXACT
from pages.ui.explore_settings import KINDS, clamp
from pages.ui.text import _

if TYPE_CHECKING:
    from attention_core.extract.trace import Trace


@dataclass(frozen=True)
class HeadKeys:
    """Names of the three settings that choose a head."""

    kind: str
    layer: str
    head: str


def kind_names() -> dict[str, str]:
    """The three kinds of attention."""
    return {
        "encoder": _("Encoder self-attention"),
        "decoder": _("Decoder self-attention"),
        "cross": _("Cross-attention"),
    }


def settle_head(run: "Trace", keys: HeadKeys, said: list[str]) -> None:
    """Brings the chosen head into what this run has, and says what gave way. Call it before the select boxes are drawn."""
    state, names = st.session_state, kind_names()
    kinds = _kinds(run)
    if state[keys.kind] not in kinds:
        said.append(
            _("This model has no {old}; {new} is shown.").format(
                old=names[state[keys.kind]].lower(), new=names[kinds[0]].lower()
            )
        )
        state[keys.kind] = kinds[0]
    kind = state[keys.kind]
    clamp(keys.layer, run.num_layers(kind), said, _("Layer {old} is not there; layer {new} is shown."))
    clamp(keys.head, run.num_heads(kind), said, _("Head {old} is not there; head {new} is shown."))


def head_selectors(run: "Trace", keys: HeadKeys, *, second: bool = False) -> None:
    """Three select boxes, side by side where the container is horizontal; ``second`` names those beside a first head."""
    kind = st.session_state[keys.kind]
    labels = (_("Attention"), _("Layer"), _("Head"))
    if second:
        labels = (_("Second attention"), _("Second layer"), _("Second head"))
    layer, head = _("Layer {number}"), _("Head {number}")
    _box(labels[0], _kinds(run), kind_names().get, keys.kind, 210)
    _box(labels[1], range(run.num_layers(kind)), lambda n: layer.format(number=n), keys.layer, 115)
    _box(labels[2], range(run.num_heads(kind)), lambda n: head.format(number=n), keys.head, 115)


def window_controls(run: "Trace", kind: str) -> None:
    """Where the exact part of a long map begins."""
    for key, label, count in (
        ("from_q", _("First query"), len(run.query_tokens(kind))),
        ("from_k", _("First key"), len(run.key_tokens(kind))),
    ):
        if count > EXACT:
            st.session_state[key] = min(st.session_state[key], count - 1)
            st.number_input(label, 0, count - 1, step=16, key=key, width=130)


def _kinds(run: "Trace") -> list[str]:
    return [kind for kind in KINDS if kind in run.kinds]


def _box(label: str, options, name, key: str, width: int) -> None:
    st.selectbox(label, options, format_func=name, key=key, width=width, label_visibility="collapsed")
