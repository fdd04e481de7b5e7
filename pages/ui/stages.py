"""The stages of an attention as panels: titles, formulas and shapes beside the numbers. For custom and real layers alike."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from attention_core.figures.palette import Palette
from attention_core.figures.panels import Panel
from attention_core.layer.attention import AttentionSteps
from pages.ui.text import _


@dataclass(frozen=True)
class Stage:
    """What a person is told about one stage.

    Attributes:
        symbol: as in the formulas.
        title: a name in words.
        formula: KaTeX.
        rows, columns: what they are.
    """

    symbol: str
    title: str
    formula: str
    rows: str
    columns: str


def stage_info() -> dict[str, Stage]:
    """Every stage by name, in the order of the computation, in the visitor's language."""
    query, key, dim = _("query"), _("key"), _("dimension")
    feature = _("feature")
    return {
        "input": Stage("X", _("Input"), r"X", query, feature),
        "key_input": Stage("X₂", _("Second input"), r"X_2", key, feature),
        "query_weight": Stage("W_Q", _("Query weight"), r"W_Q", dim, feature),
        "key_weight": Stage("W_K", _("Key weight"), r"W_K", dim, feature),
        "value_weight": Stage("W_V", _("Value weight"), r"W_V", dim, feature),
        "out_weight": Stage("W_O", _("Output weight"), r"W_O", feature, dim),
        "query": Stage("Q", _("Queries"), r"Q = X\,W_Q^{\top} + b_Q", query, dim),
        "key": Stage("K", _("Keys"), r"K = X\,W_K^{\top} + b_K", key, dim),
        "value": Stage("V", _("Values"), r"V = X\,W_V^{\top} + b_V", key, dim),
        "scores": Stage("S", _("Scores"), r"S = Q K^{\top} \cdot s", query, key),
        "masked_scores": Stage("S′", _("Masked scores"), r"S'_{ij} = -\infty \text{ if hidden}", query, key),
        "weights": Stage("A", _("Weights"), r"A = \mathrm{softmax}_{\mathrm{row}}(S')", query, key),
        "dropped_weights": Stage("A′", _("After dropout"), r"A' = A \odot \mathrm{keep} / (1 - p)", query, key),
        "context": Stage("C", _("Context"), r"C = A V", query, dim),
        "concatenation": Stage("concat", _("Concatenation"), r"\mathrm{concat}(C_0, \ldots, C_{h-1})", query, dim),
        "output": Stage("O", _("Output"), r"O = \mathrm{concat}\,W_O^{\top} + b_O", query, feature),
    }


def array(x: Tensor) -> np.ndarray:
    """A tensor's numbers for a figure: float32, or float64 where that is its dtype."""
    x = x.detach().cpu()
    return x.numpy() if x.dtype.itemsize > 2 else x.float().numpy()


def panel(
    stage: str,
    values: np.ndarray,
    palette: Palette,
    *,
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    hidden: np.ndarray | None = None,
    padded: int = 0,
    group: str | None = None,
    limits: tuple[float, float] | None = None,
    title: str | None = None,
) -> Panel:
    """One stage as a panel, with its title, shape and axes."""
    info = stage_info()[stage]
    colours = {"query": palette.query, "key": palette.key, "value": palette.value}
    return Panel(
        key=stage,
        values=values,
        title=title or f"{info.symbol}  {info.title}",
        caption=f"{values.shape[0]} × {values.shape[1]}",
        row_labels=row_labels,
        column_labels=column_labels,
        row_title=info.rows,
        column_title=info.columns,
        scale="weights" if stage in ("weights", "dropped_weights") else "signed",
        limits=limits,
        group=group,
        hidden=hidden,
        padded=padded,
        color=colours.get(stage),
    )


def head_panels(
    steps: AttentionSteps,
    palette: Palette,
    *,
    place: int,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    raw: bool = False,
    batch: int = 0,
    padded_queries: int = 0,
) -> dict[str, Panel]:
    """The panels of one head, by stage.

    Args:
        steps: of a layer or of a real module.
        palette: colours.
        place: which of the heads that the steps hold.
        query_tokens, key_tokens: labels.
        raw: show the scores before the scale.
        batch: which text.
        padded_queries: rows at the end that are padding, and greyed.

    Returns:
        query, key, value, scores, masked_scores, weights, dropped_weights (in training mode only), context.
    """
    hidden = None if steps.mask is None else ~steps.full_mask()[batch, place].cpu().numpy()
    of = {
        name: array(getattr(steps, name)[batch, place])
        for name in ("query", "key", "value", "scores", "weights", "context")
    }
    if raw:
        of["scores"] = of["scores"] / steps.scale
    rows = {"row_labels": query_tokens, "padded": padded_queries}
    maps = rows | {"column_labels": key_tokens}
    panels = {
        "query": panel("query", of["query"], palette, **rows),
        "key": panel("key", of["key"], palette, row_labels=key_tokens),
        "value": panel("value", of["value"], palette, row_labels=key_tokens),
        "scores": panel(
            "scores",
            of["scores"],
            palette,
            title=f"QKᵀ  {_('Raw scores')}" if raw else None,
            **maps,
            **({} if raw else {"group": "s"}),
        ),
        "masked_scores": panel(
            "masked_scores", array(steps.scores[batch, place]), palette, hidden=hidden, group="s", **maps
        ),
        "weights": panel("weights", of["weights"], palette, hidden=hidden, group="w", **maps),
    }
    if steps.dropped_weights is not None:
        dropped = array(steps.dropped_weights[batch, place])
        panels["dropped_weights"] = panel(
            "dropped_weights", dropped, palette, hidden=hidden, limits=(0.0, max(1.0, float(dropped.max()))), **maps
        )
    panels["context"] = panel("context", of["context"], palette, **rows)
    return panels


def linked(stage: str, row: int, column: int) -> dict[str, tuple[int | None, int | None]]:
    """What a selected cell marks on every panel: the cell, and the rows and columns it was made from."""
    maps = ("scores", "masked_scores", "weights", "dropped_weights")
    if stage in maps:
        return {
            **dict.fromkeys(maps, (row, column)),
            "query": (row, None),
            "key": (column, None),
            "value": (column, None),
            "context": (row, None),
        }
    if stage == "context":
        return {"context": (row, column), "value": (None, column), **dict.fromkeys(maps, (row, None))}
    if stage in ("output", "concatenation"):
        return {stage: (row, column), "concatenation" if stage == "output" else "output": (row, None)}
    marks = {stage: (row, column)}
    if stage in ("query", "key", "value"):
        source = "input" if stage == "query" else "key_input"
        marks |= {source: (row, None)}
    return marks
