"""Three ways of reading a map: without its control tokens, with its rows made to sum to 1 again, by words.

They are steps on a finished map, in this order, and change nothing in the model. A map read so is not what the model
computed: whoever shows it names the steps.

    hidden         rows and columns of control tokens (<s>, </s>, ...) are left out
    renormalised   w_ij / sum_j w_ij over the columns that are left; a row without any weight stays 0
    by words       the columns of a word's pieces are summed, its rows averaged (Clark et al. 2019, section 4.1)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..extract.tokens import Token
from ..extract.trace import Trace

STEPS = ("special", "renormalise", "words")


@dataclass(frozen=True, eq=False)
class ReadMap:
    """A map as it is read.

    Attributes:
        weights: (..., rows, columns), in the dtype of the map that was read.
        visible: boolean, (..., rows, columns): whether any cell behind a cell may be attended to; None = all.
        row_labels, column_labels: one a row and a column.
        row_members, column_members: which tokens each row and column stands for.
    """

    weights: Tensor
    visible: Tensor | None
    row_labels: list[str]
    column_labels: list[str]
    row_members: list[tuple[int, ...]]
    column_members: list[tuple[int, ...]]


def read_map(
    run: Trace, kind: str, weights: Tensor, visible: Tensor | None = None, *, steps: Sequence[str] = (), text: int = 0
) -> ReadMap:
    """Reads maps of one kind of a run.

    Args:
        run: from ``trace``.
        kind: "encoder", "decoder" or "cross".
        weights: (..., query_len, key_len), of one text.
        visible: boolean, broadcastable to the weights, True = may be attended to; None = all.
        steps: any of STEPS; they are done in the order of STEPS.
        text: which text of the batch.
    """
    rows, row_labels = _groups(run.query_pieces(kind, text), run.side(kind, "query").texts[text], steps)
    columns, column_labels = _groups(run.key_pieces(kind, text), run.side(kind, "key").texts[text], steps)
    seen = None if visible is None else visible.expand(weights.shape)
    if "special" in steps:
        weights, seen = _chosen(weights, rows, columns), None if seen is None else _chosen(seen, rows, columns)
    if "renormalise" in steps:
        total = weights.sum(-1, keepdim=True)
        weights = torch.where(total > 0, weights / total, 0.0)
    if "words" in steps:
        weights = _summed(_summed(weights, columns, -1), rows, -2)
        weights = weights / torch.tensor([[float(len(members))] for members in rows], device=weights.device)
        seen = None if seen is None else _summed(_summed(seen.float(), columns, -1), rows, -2) > 0
    return ReadMap(weights, seen, row_labels, column_labels, rows, columns)


def has_split_words(run: Trace, kind: str, text: int = 0) -> bool:
    """Whether the step "words" merges anything: a query's or a key's word has two pieces or more.

    Args:
        run: from ``trace``.
        kind: "encoder", "decoder" or "cross".
        text: which text of the batch.
    """
    sides = (run.query_pieces(kind, text), run.key_pieces(kind, text))
    return any(
        one.word is not None and one.word == next_one.word for pieces in sides for one, next_one in pairwise(pieces)
    )


def _groups(pieces: Sequence[Token], text: str, steps: Sequence[str]) -> tuple[list[tuple[int, ...]], list[str]]:
    """The tokens that each row or column stands for, and what it is called."""
    kept = [place for place, piece in enumerate(pieces) if not (piece.special and "special" in steps)]
    groups: list[list[int]] = []
    for place in kept:
        word = pieces[place].word
        same = groups and word is not None and pieces[groups[-1][-1]].word == word
        if "words" in steps and same:
            groups[-1].append(place)
        else:
            groups.append([place])
    return [tuple(group) for group in groups], [_name([pieces[place] for place in group], text) for group in groups]


def _name(group: Sequence[Token], text: str) -> str:
    if len(group) == 1:
        return group[0].label
    spans = [piece.span for piece in group]
    if None in spans:
        return "".join(piece.label for piece in group)
    lead = "·" if group[0].label.startswith("·") else ""
    return lead + text[spans[0][0] : spans[-1][1]].strip()


def _chosen(maps: Tensor, rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]]) -> Tensor:
    """Only the tokens that some row or column stands for."""
    keep = [
        torch.tensor([place for group in groups for place in group], device=maps.device) for groups in (rows, columns)
    ]
    return maps.index_select(-2, keep[0].long()).index_select(-1, keep[1].long())


def _summed(maps: Tensor, groups: Sequence[Sequence[int]], axis: int) -> Tensor:
    """Sums over each group along an axis that holds the groups' tokens in order."""
    owner = torch.tensor([number for number, group in enumerate(groups) for _ in group], device=maps.device)
    shape = list(maps.shape)
    shape[axis] = len(groups)
    return maps.new_zeros(shape).index_add(axis, owner.long(), maps)
