"""What the What-if page computes, kept by values: the edited run, and what the model writes with and without edits."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from attention_core.analysis.effects import TokenEffects, changed_heads, token_effects
from pages.ui import cache
from pages.ui.explore_run import Explored
from pages.ui.text import _

if TYPE_CHECKING:
    from attention_core.extract.trace import Trace


@dataclass(frozen=True)
class Experiment:
    """One text, read by the model as it is and by the edited one.

    Attributes:
        before, after: the two runs, on the same tokens.
        edits: what was changed.
    """

    before: Explored
    after: Explored
    edits: tuple

    @property
    def key(self) -> tuple[cache.TraceKey, cache.TraceKey]:
        return self.before.key, self.after.key


def experiment(before: Explored, edits: tuple) -> Experiment:
    """Runs the model with edits on what it read before.

    Raises:
        AttentionError: edits of what this model does not have.
    """
    if not edits:
        return Experiment(before, before, ())
    return Experiment(before, edited(before, edits, again=before.key.beams is not None), edits)


def edited(before: Explored, edits: tuple, *, again: bool = False) -> Explored:
    """The run with edits; ``again``: on the target that the unedited model wrote, instead of one written under the edits.

    Raises:
        AttentionError: edits of what this model does not have.
    """
    from attention_core.extract.interventions import edits_to_text

    _means_shown(before.key.model, edits)
    key = replace(before.key, edits=edits_to_text(edits), again=again)
    place = st.empty()
    run = cache.run(key, lambda *_done: place.progress(0, _("The edited model reads the text…")))
    place.empty()
    return Explored(key, run)


def _means_shown(key: cache.ModelKey, edits: tuple) -> None:
    """Takes the means that the edits need, and says how far that is."""
    if not any(getattr(edit, "by", "") == "mean" for edit in edits):
        return
    place = st.empty()

    def show(done: int, total: int | None) -> None:
        share = done / total if total else 0.0
        place.progress(
            share, _("Mean contexts over the stories: {done} of {total}").format(done=done, total=total or "…")
        )

    cache.mean_contexts(key, show)
    place.empty()


def effects(made: Experiment) -> TokenEffects:
    """How likely each token of the target is, before and after."""
    return _effects(made.key, _runs=(made.before.trace, made.after.trace))


@st.cache_resource(max_entries=16, show_spinner=False)
def _effects(key: tuple, _runs: "tuple[Trace, Trace]") -> TokenEffects:
    return token_effects(*_runs)


def moved(made: Experiment) -> dict[str, np.ndarray]:
    """How far each head's map moved, by kind: (layers, heads), nats."""
    return _moved(made.key, _runs=(made.before.trace, made.after.trace))


@st.cache_data(max_entries=16, show_spinner=False)
def _moved(key: tuple, _runs: "tuple[Trace, Trace]") -> dict[str, np.ndarray]:
    return {kind: changed_heads(*_runs, kind).numpy() for kind in _runs[0].kinds}


def writings(made: Experiment) -> tuple[str, str] | None:
    """What the model writes for the source without and with the edits; None where it cannot write."""
    if not made.before.trace.model.report.can_generate:
        return None
    place, texts = st.empty(), []
    for edits in ("", made.after.key.edits):
        key = replace(made.before.key, target=None, beams=made.before.key.beams or 1, edits=edits)
        run = cache.run(
            key,
            lambda done, _total: place.progress(
                min(1.0, done / 128), _("The model writes: {count} tokens").format(count=done)
            ),
        )
        texts.append(run.generated_text[0])
    place.empty()
    return texts[0], texts[1]
