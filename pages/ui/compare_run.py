"""What the Compare page computes, kept by values: the recorded attention, the layer made of it, and the two compared."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st
import torch

from attention_core.analysis.changes import Change, OutputEffect, changed_steps, output_effect
from attention_core.analysis.compare import head_distances
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


@st.cache_resource(max_entries=4, show_spinner=False)
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


@st.cache_resource(max_entries=4, show_spinner=False)
def _changed(key: tuple, change: Change, _run: "Trace") -> Changed:
    before, projections = recorded(_run, *key[1:])
    _, after = changed_steps(projections, before.scale, before.mask, change)
    return Changed(before, after, output_effect(before.output, after.output.to(before.output.dtype)))


def weights_of_kind(explored: Explored, kind: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weights of all heads of a kind, layer after layer, (1, layers * heads, query_len, key_len), and their mask."""
    run = explored.trace
    steps = [run.steps(kind, layer, range(run.num_heads(kind))) for layer in range(run.num_layers(kind))]
    return torch.cat([each.weights for each in steps], dim=1), steps[0].mask


def distances(explored: Explored, kind: str) -> np.ndarray:
    """Every head of a kind against every other, in nats."""
    return _distances(explored.key, kind, _explored=explored)


@st.cache_data(max_entries=16, show_spinner=False)
def _distances(key: cache.TraceKey, kind: str, _explored: Explored) -> np.ndarray:
    weights, mask = weights_of_kind(_explored, kind)
    return head_distances(weights, mask=mask)


def custom_distances(place: Place, change: Change) -> np.ndarray:
    """Every head of the changed layer against every real head of the kind, in nats."""
    return _custom_distances(place.key, change, _place=place)


@st.cache_data(max_entries=16, show_spinner=False)
def _custom_distances(key: tuple, change: Change, _place: Place) -> np.ndarray:
    weights, mask = weights_of_kind(_place.explored, _place.kind)
    return head_distances(changed(_place, change).after.weights.to(weights.dtype), weights, mask)
