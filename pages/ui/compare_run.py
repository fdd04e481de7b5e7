"""What the Compare page computes, kept by values: the recorded attention, the layer made of it, and the two compared."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st
import torch

from attention_core.analysis.changes import Change, OutputEffect, changed_steps, output_effect
from attention_core.analysis.compare import compare_maps, head_distances, row_step
from attention_core.analysis.equality import Equality
from attention_core.analysis.proof import ModelEquality, prove_attention, prove_model, recorded
from attention_core.layer.attention import AttentionSteps
from pages.ui import cache
from pages.ui.explore_run import Explored

if TYPE_CHECKING:
    from attention_core.extract.trace import Trace


@dataclass(frozen=True)
class Place:
    """One attention of a run: its kind and layer."""

    explored: Explored
    kind: str
    layer: int

    @property
    def trace(self) -> "Trace":
        return self.explored.trace

    @property
    def key(self) -> tuple[cache.TraceKey, str, int]:
        """Names it by values."""
        return self.explored.key, self.kind, self.layer

    @property
    def tokens(self) -> tuple[list[str], list[str]]:
        """Labels of its queries and of its keys."""
        return self.trace.query_tokens(self.kind), self.trace.key_tokens(self.kind)


@dataclass(frozen=True, eq=False)
class Changed:
    """The real attention and the changed layer on one input.

    Attributes:
        before, after: of all heads.
        effect: on the output.
    """

    before: AttentionSteps
    after: AttentionSteps
    effect: OutputEffect


@dataclass(frozen=True, eq=False)
class Proof:
    """The verdict, and both sides' steps of all heads."""

    equality: Equality
    ours: AttentionSteps
    theirs: AttentionSteps


def proof(place: Place) -> Proof:
    """The layer with the real weights beside the real attention."""
    return _proof(place.key, _run=place.trace)


@st.cache_resource(max_entries=2, show_spinner=False)
def _proof(key: tuple, _run: "Trace") -> Proof:
    return Proof(*prove_attention(_run, *key[1:]))


def whole_model(explored: Explored) -> ModelEquality:
    """The whole model, fused and step by step."""
    return _whole_model(explored.key, _run=explored.trace)


@st.cache_resource(max_entries=16, show_spinner=False)
def _whole_model(key: cache.TraceKey, _run: "Trace") -> ModelEquality:
    return prove_model(_run)


def changed(place: Place, change: Change) -> Changed:
    """The layer with one thing changed beside the real attention."""
    return _changed(place.key, change, _run=place.trace)


@st.cache_resource(max_entries=2, show_spinner=False)
def _changed(key: tuple, change: Change, _run: "Trace") -> Changed:
    before, projections = recorded(_run, *key[1:])
    _, after = changed_steps(projections, before.scale, before.mask, change)
    return Changed(before, after, output_effect(before.output, after.output.to(before.output.dtype)))


def weights_of_kind(explored: Explored, kind: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Weights of all heads of a kind, layer after layer, (1, layers * heads, rows, key_len), their mask, and the step of rows.

    Of maps so long that all pairs of heads would take too long, every so manieth row is kept.
    """
    run = explored.trace
    layers, heads = run.num_layers(kind), run.num_heads(kind)
    parts, seen, step = [], None, 1
    for layer in range(layers):
        steps = run.steps(kind, layer, list(range(heads)))
        if seen is None:
            step = row_step(layers * heads, layers * heads, *steps.weights.shape[-2:])
            seen = steps.full_mask()[:, :1, ::step]
        parts.append(steps.weights[:, :, ::step].clone() if step > 1 else steps.weights)
    return torch.cat(parts, dim=1), seen, step


def distances(explored: Explored, kind: str) -> tuple[np.ndarray, int]:
    """Every head of a kind against every other, in nats, and every how manieth row was compared."""
    return _distances(explored.key, kind, _explored=explored)


@st.cache_data(max_entries=16, show_spinner=False)
def _distances(key: cache.TraceKey, kind: str, _explored: Explored) -> tuple[np.ndarray, int]:
    weights, mask, step = weights_of_kind(_explored, kind)
    return head_distances(weights, mask=mask), step


def custom_distances(place: Place, change: Change) -> np.ndarray:
    """Every head of the changed layer against every real head of the kind, in nats."""
    return _custom_distances(place.key, change, _place=place)


@st.cache_data(max_entries=16, show_spinner=False)
def _custom_distances(key: tuple, change: Change, _place: Place) -> np.ndarray:
    weights, mask, step = weights_of_kind(_place.explored, _place.kind)
    custom = changed(_place, change).after.weights[:, :, ::step].to(weights.dtype)
    return head_distances(custom, weights, mask)


def moved_heads(first: Explored, second: Explored, kind: str) -> np.ndarray | None:
    """How far each head lies from its namesake in another model, (layers * heads,), nats; None where there is none."""
    return _moved_heads(first.key, second.key, kind, _runs=(first.trace, second.trace))


@st.cache_data(max_entries=16, show_spinner=False)
def _moved_heads(first: cache.TraceKey, second: cache.TraceKey, kind: str, _runs: tuple) -> np.ndarray | None:
    shapes = [
        (run.num_layers(kind), run.num_heads(kind), run.query_tokens(kind), run.key_tokens(kind)) for run in _runs
    ]
    if shapes[0] != shapes[1]:
        return None
    found = []
    for layer in range(shapes[0][0]):
        one, two = (run.steps(kind, layer, list(range(shapes[0][1]))) for run in _runs)
        found.append(compare_maps(one.weights, two.weights.to(one.weights.dtype), one.mask, two.mask).mean_divergence)
    return torch.cat(found).cpu().numpy()
