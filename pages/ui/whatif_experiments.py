"""Ready experiments: edits that this model's own heads decide."""

import numpy as np
import streamlit as st

from attention_core.analysis.metrics import previous_mass
from attention_core.errors import AttentionError
from pages.ui.explore_run import Explored
from pages.ui.text import _
from pages.ui.whatif_settings import look_at
from pages.ui.whatif_sweep import swept

# Clark et al. 2019 call a head positional from this mass on.
_PREVIOUS = 0.5


def experiment_names() -> dict[str, str]:
    """What can be started from."""
    return {
        "previous": _("Remove all previous-token heads"),
        "blind": _("Blind the decoder to half of the source"),
        "strongest": _("Remove the strongest cross-attention head"),
        "scale": _("Scale by √d_model everywhere"),
    }


def experiment_buttons(run) -> None:
    """One button each; those that this model has no heads for cannot be pressed."""
    names = experiment_names()
    for name, label in names.items():
        st.button(
            label,
            key=f"experiment_{name}",
            on_click=_begin,
            args=(name,),
            disabled=name in ("strongest", "blind") and "cross" not in run.kinds,
            width="stretch",
            icon=":material/check:" if st.session_state["experiment"] == name else None,
        )


def _begin(name: str) -> None:
    # The edits are worked out when the page runs, as for a link that names the experiment alone.
    st.session_state["experiment"], st.session_state["edits"] = name, ""


def settle(explored: Explored) -> None:
    """Works out the edits of an experiment that was asked for by its name, anew for every text and model.

    Raises:
        AttentionError: no head of this model is of the kind that the experiment is about.
    """
    from attention_core.extract.interventions import edits_to_text

    state = st.session_state
    if not state["experiment"]:
        return
    made = edits_of(state["experiment"], explored)
    if state["edits"] != edits_to_text(made):
        state["edits"] = edits_to_text(made)
        look_at(made[0])


def edits_of(name: str, explored: Explored) -> tuple:
    """The edits of an experiment on this text."""
    from attention_core.extract.interventions import Forbid, Scale, SwitchOff

    run = explored.trace
    if name in ("strongest", "blind") and "cross" not in run.kinds:
        raise AttentionError(
            "this experiment needs cross-attention, and this model has none: choose a model with a decoder"
        )
    if name == "strongest":
        _number, layer, head, _by = strongest(explored)
        return (SwitchOff(kind="cross", layer=layer, heads=(head,)),)
    if name == "blind":
        half = int(run.source.real[0].sum()) // 2
        return (Forbid(kind="cross", after=half - 1),)
    if name == "scale":
        return tuple(Scale(kind=kind, rule="d_model") for kind in run.kinds)
    found = previous_heads(explored)
    if not found:
        raise AttentionError(
            "no head of this model gives more than half of its weight to the token before, on this text: there is none to remove"
        )
    return tuple(SwitchOff(kind=kind, layer=layer, heads=heads) for (kind, layer), heads in found.items())


def strongest(explored: Explored) -> tuple[float, int, int, str]:
    """The strongest cross-attention head: (number, layer, head, "effect" or "share").

    That with the largest effect, once a sweep has run on this text, else that with the largest share of its layer's output.
    """
    effects = swept(explored, "zero")
    if effects is not None and "cross" in effects:
        values, by = effects["cross"], "effect"
    else:
        values, by = _shares(explored), "share"
    layer, head = np.unravel_index(np.nanargmax(values), values.shape)
    return float(values[layer, head]), int(layer), int(head), by


def _shares(explored: Explored) -> np.ndarray:
    return _shares_of(explored.key, _explored=explored)


@st.cache_data(max_entries=32, show_spinner=False)
def _shares_of(key: object, _explored: Explored) -> np.ndarray:
    """Of each cross-attention head: the mean length of what it adds to its layer's output, over the sum of the layer."""
    run = _explored.trace
    rows = []
    for layer in range(run.num_layers("cross")):
        steps, projections = run.steps("cross", layer), run.projections("cross", layer)
        if projections.out_weight is None:
            raise AttentionError("the output projection of this attention is not known, so its heads cannot be weighed")
        out = projections.out_weight.unflatten(1, (steps.query.shape[1], -1))  # (d_model, heads, head_dim)
        lengths = [(steps.context[0, head] @ out[:, head].T).norm(dim=-1).mean() for head in range(out.shape[1])]
        rows.append([float(length) for length in lengths])
    lengths = np.array(rows)
    return lengths / lengths.sum(1, keepdims=True)


def previous_heads(explored: Explored) -> dict[tuple[str, int], tuple[int, ...]]:
    """Heads of self-attention whose mean weight on the token before is above one half, by kind and layer."""
    return _previous_of(explored.key, _explored=explored)


@st.cache_data(max_entries=32, show_spinner=False)
def _previous_of(key: object, _explored: Explored) -> dict[tuple[str, int], tuple[int, ...]]:
    run, found = _explored.trace, {}
    for kind in ("encoder", "decoder"):
        for layer in range(run.num_layers(kind)) if kind in run.kinds else ():
            steps = run.steps(kind, layer, list(range(run.num_heads(kind))))
            masses = previous_mass(steps.weights, mask=steps.mask, rows=run.side(kind, "query").real)
            heads = tuple(head for head, mass in enumerate(masses.tolist()) if mass > _PREVIOUS)
            if heads:
                found[kind, layer] = heads
    return found
