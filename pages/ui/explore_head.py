"""What is looked at on the Explore page: one head of a trace, its map as it is read, and the window of a long one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from attention_core.analysis.reading import ReadMap, read_map
from attention_core.figures.palette import Palette
from attention_core.figures.panels import Panel
from attention_core.layer.attention import AttentionSteps
from pages.ui.explore_run import Explored
from pages.ui.stages import array, panel
from pages.ui.text import _

if TYPE_CHECKING:
    from attention_core.extract.trace import Trace

EXACT = 64
"""Rows and columns up to which a map is sent cell by cell."""
SPAN = 32
"""Rows and columns of the window into a longer map."""
KEY_ROWS = ("key", "value")
MAPS = ("scores", "masked_scores", "weights")


@dataclass(frozen=True, eq=False)
class Head:
    """One head of a trace.

    Attributes:
        explored: where it comes from.
        kind, layer, head: which it is.
        steps: its stages, (1, 1, ...).
        query_tokens, key_tokens: labels.
    """

    explored: Explored
    kind: str
    layer: int
    head: int
    steps: AttentionSteps
    query_tokens: list[str]
    key_tokens: list[str]

    @property
    def trace(self) -> "Trace":
        return self.explored.trace

    @property
    def hidden(self) -> np.ndarray | None:
        """(query_len, key_len), True where masked; None where every key is seen."""
        mask = None if self.steps.mask is None else self.steps.full_mask()[0, 0]
        return None if mask is None or bool(mask.all()) else ~mask.cpu().numpy()


def head_of(explored: Explored, kind: str, layer: int, head: int) -> Head:
    """Computes one head from the recorded inputs; the model does not run."""
    run = explored.trace
    steps = run.steps(kind, layer, [head])
    return Head(explored, kind, layer, head, steps, run.query_tokens(kind), run.key_tokens(kind))


def read_head(head: Head, values=None) -> ReadMap:
    """The head's weights, or other values of its shape (a tensor), with the reading steps that are on."""
    values = head.steps.weights[0, 0] if values is None else values
    visible = None if head.hidden is None else head.steps.full_mask()[0, 0]
    return read_map(head.trace, head.kind, values, visible, steps=st.session_state["reading"])


def reading_names() -> dict[str, str]:
    """The reading steps, as buttons say them."""
    return {
        "special": _("Hide special tokens"),
        "renormalise": _("Renormalise rows"),
        "words": _("Merge pieces into words"),
    }


def reading_title() -> str:
    """The steps that are on, for a title; empty where the map is as the model computed it."""
    done = {
        "special": _("special tokens hidden"),
        "renormalise": _("rows renormalised"),
        "words": _("pieces merged into words"),
    }
    return ", ".join(text for name, text in done.items() if name in st.session_state["reading"])


@dataclass(frozen=True)
class Window:
    """Which part of a map is shown cell by cell.

    Attributes:
        rows, columns: (first, one after the last).
        whole: whether that is all of it.
    """

    rows: tuple[int, int]
    columns: tuple[int, int]
    whole: bool

    def cut(self, values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[slice(*self.rows), slice(*self.columns)]

    def local(self, row: int | None, column: int | None) -> tuple[int, int] | None:
        """A cell of the map as one of the window; None outside."""
        row = None if row is None else row - self.rows[0]
        column = None if column is None else column - self.columns[0]
        inside = (row is None or 0 <= row < self.rows[1] - self.rows[0]) and (
            column is None or 0 <= column < self.columns[1] - self.columns[0]
        )
        return (row, column) if inside else None


def window_of(rows: int, columns: int) -> Window:
    """The window that the settings ask for, brought into the map."""
    if max(rows, columns) <= EXACT:
        return Window((0, rows), (0, columns), True)
    state = st.session_state
    first_row, first_column = (
        max(0, min(state[key], count - SPAN)) for key, count in (("from_q", rows), ("from_k", columns))
    )
    return Window((first_row, min(first_row + SPAN, rows)), (first_column, min(first_column + SPAN, columns)), False)


def read_panel(
    read: ReadMap, palette: Palette, window: Window, title: str = "", key: str = "weights", top: float | None = None
) -> Panel:
    """The exact part of a read map, as a panel; ``top`` is the end of the colours where that is not 1."""
    hidden = None if read.visible is None else ~read.visible.cpu().numpy()
    made = panel(
        "weights",
        window.cut(array(read.weights)),
        palette,
        row_labels=read.row_labels[slice(*window.rows)],
        column_labels=read.column_labels[slice(*window.columns)],
        hidden=window.cut(hidden),
        limits=None if top is None else (0.0, top or 1.0),
        title=title or None,
    )
    return replace(made, key=key)


def windowed(steps: AttentionSteps, window: Window) -> AttentionSteps:
    """The part of the stages that the window shows, for drawing only."""
    if window.whole:
        return steps
    rows, columns = slice(*window.rows), slice(*window.columns)
    return AttentionSteps(
        steps.query[:, :, rows],
        steps.key[:, :, columns],
        steps.value[:, :, columns],
        steps.scores[..., rows, columns],
        None if steps.mask is None else steps.full_mask()[..., rows, columns],
        steps.weights[..., rows, columns],
        None,
        steps.context[:, :, rows],
        None,
        steps.scale,
    )


def member_of(members: Sequence[Sequence[int]], place: int) -> int | None:
    """The row or column of a read map that a token is in; None where it is hidden."""
    return next((number for number, group in enumerate(members) if place in group), None)
