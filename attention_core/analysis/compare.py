"""Head against head: how far two attention maps lie apart, which heads of a model are alike, and which fit best.

Maps are (batch, heads, query_len, key_len), probabilities; masks are boolean, True = may attend. Distances are
Jensen-Shannon divergences in nats, from 0 to ln 2, means over the rows that have a choice (see ``rows``). They say how alike two
maps are, not whether two heads do the same: their values may differ. Weights are no explanation (Jain and Wallace 2019).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform
from torch import Tensor

from attention_core.errors import AttentionError

from .rows import counted_rows, full_mask, mean_of_rows, row_divergence, row_entropy, row_kl, summed_entropy

# All pairs of heads are compared on so many cells at most; longer maps give evenly spaced rows.
_MOST_CELLS = 1 << 29


@dataclass(frozen=True, eq=False)
class MapComparison:
    """Two sets of maps, head by head.

    Attributes:
        difference: (batch, heads, query_len, key_len), second - first, from -1 to 1.
        visible: the cells that either side shows, of the same shape, boolean.
        divergence: (batch, heads, query_len), Jensen-Shannon, nats; NaN for a row that sees no key on one side.
        kl: as divergence, KL(first || second); may be infinite.
        kl_back: KL(second || first).
        entropy, entropy_after: (batch, heads, query_len) of first and second, divided by ln n_i, from 0 to 1; NaN for rows
            that see fewer than two keys.
        counted: (batch, heads, query_len), rows that the means take in.
        mean_divergence: (heads,), nats; NaN without a counted row.
        mean_entropy, mean_entropy_after: (heads,), from 0 to 1.
        correlation: (heads,), see ``correlation``.
    """

    difference: Tensor
    visible: Tensor
    divergence: Tensor
    kl: Tensor
    kl_back: Tensor
    entropy: Tensor
    entropy_after: Tensor
    counted: Tensor
    mean_divergence: Tensor
    mean_entropy: Tensor
    mean_entropy_after: Tensor
    correlation: Tensor


def compare_maps(
    first: Tensor,
    second: Tensor,
    first_mask: Tensor | None = None,
    second_mask: Tensor | None = None,
    *,
    rows: Tensor | None = None,
) -> MapComparison:
    """Compares two sets of maps, head h with head h.

    Args:
        first, second: (batch, heads, query_len, key_len), probabilities, of one shape.
        first_mask, second_mask: True = may attend, broadcastable to the maps; None = all visible.
        rows: (batch, query_len), True at rows to count (real tokens, not padding); None = all.

    Raises:
        AttentionError: maps of different shapes; a mask that is not boolean.
    """
    _check_maps(first, second)
    one, two = full_mask(first, first_mask), full_mask(second, second_mask)
    counted = counted_rows(one, two, None if rows is None else rows[:, None])
    entropy, after = row_entropy(first, one, normalised=True), row_entropy(second, two, normalised=True)
    divergence = row_divergence(first, second)
    choice = counted & ~(entropy.isnan() | after.isnan())
    return MapComparison(
        difference=second.to(first.dtype) - first,
        visible=one | two,
        divergence=divergence,
        kl=row_kl(first, second),
        kl_back=row_kl(second, first),
        entropy=entropy,
        entropy_after=after,
        counted=counted,
        mean_divergence=mean_of_rows(divergence, counted),
        mean_entropy=mean_of_rows(entropy, choice),
        mean_entropy_after=mean_of_rows(after, choice),
        correlation=correlation(first, second, one & two),
    )


def correlation(first: Tensor, second: Tensor, mask: Tensor | None = None) -> Tensor:
    """Pearson's correlation of two maps over their visible cells; hidden cells, zero on both sides, would raise it.

    Args:
        first, second: (batch, heads, query_len, key_len).
        mask: True = may attend, broadcastable to the maps; None = all visible.

    Returns:
        (heads,), from -1 to 1, all texts together; NaN where one side is constant or nothing is visible.
    """
    _check_maps(first, second)
    mask = full_mask(first, mask).transpose(0, 1).flatten(1)
    result = torch.full((first.shape[1],), torch.nan, dtype=torch.float64)
    first, second = (x.transpose(0, 1).flatten(1).double().cpu() for x in (first, second))
    for head, seen in enumerate(mask.cpu()):
        a, b = (x[head][seen] for x in (first, second))
        # What rounding leaves of a constant map is not a shape.
        if a.numel() >= 2 and all(x.max() - x.min() > 1e-7 * x.abs().max() for x in (a, b)):
            result[head] = torch.corrcoef(torch.stack([a, b]))[0, 1].clamp(-1, 1)
    return result


def head_distances(first: Tensor, second: Tensor | None = None, mask: Tensor | None = None) -> np.ndarray:
    """Jensen-Shannon divergence between every head of one set and every head of another.

    D_hg = mean over rows i with n_i >= 2 of JS(p_hi, q_gi), computed as H(m) - (H(p) + H(q)) / 2 with m = (p + q) / 2. Clark
    et al. 2019, section 6.

    Args:
        first: (batch, heads, query_len, key_len), probabilities; heads of several layers one after the other.
        second: (batch, other_heads, query_len, key_len); None = first against itself (symmetric, 0 on the diagonal).
        mask: True = may attend, one for all heads, broadcastable to (batch, 1, query_len, key_len); None = all visible.

    Returns:
        (heads, other_heads), float64, nats, from 0 to ln 2; NaN where no row counts. Of large maps evenly spaced rows are
        compared (``row_step``).

    Raises:
        AttentionError: maps of different lengths, or a mask that differs between heads.
    """
    alone = second is None
    second = first if alone else second
    _check_maps(first[:, :1], second[:, :1])
    if mask is not None and mask.dim() == 4 and mask.shape[1] != 1:
        if not bool((mask == mask[:, :1]).all()):
            raise AttentionError("distances between heads need one mask for all of them")
        mask = mask[:, :1]
    counted = counted_rows(full_mask(first[:, :1], mask))[:, 0]
    # (heads, rows, key_len), the rows of all texts one after the other.
    left, right = (x.transpose(0, 1)[:, counted].float() for x in (first, second))
    step = row_step(len(left), len(right), *left.shape[1:])
    left, right = left[:, ::step], right[:, ::step]
    own = [summed_entropy(x).sum(1) for x in (left, right)]
    result = np.full((len(left), len(right)), np.nan)
    if left.shape[1]:
        for h, p in enumerate(left):
            start = h if alone else 0
            middle = summed_entropy((p + right[start:]) / 2).sum(1)
            row = (middle - (own[0][h] + own[1][start:]) / 2) / left.shape[1]
            result[h, start:] = row.double().clamp(0, log(2)).cpu().numpy()
            if alone:
                result[h, h] = 0.0
                result[h:, h] = result[h, h:]
    return result


def row_step(heads: int, other_heads: int, rows: int, key_len: int) -> int:
    """Every how manieth row ``head_distances`` compares: 1 = all, more where all pairs would cost more than 2^29 cells."""
    return max(1, -(-heads * other_heads * rows * key_len // _MOST_CELLS))


def cluster_order(distances: np.ndarray) -> list[int]:
    """An order of heads in which alike ones stand together: average linkage, its leaves ordered for the shortest way.

    Bar-Joseph et al. 2001, as scipy has it.

    Args:
        distances: (heads, heads), symmetric, 0 on the diagonal, finite.
    """
    if len(distances) < 3:
        return list(range(len(distances)))
    tree = linkage(squareform(distances, checks=False), method="average", optimal_ordering=True)
    return [int(head) for head in leaves_list(tree)]


@dataclass(frozen=True)
class Match:
    """A custom head and the real head it is paired with; distance in the unit of the matrix."""

    head: int
    real: int
    distance: float


def match_heads(distances: np.ndarray) -> list[Match]:
    """The pairing of custom heads with real heads, each used once, of the smallest total distance.

    Kuhn 1955, as scipy's linear_sum_assignment has it.

    Args:
        distances: (custom heads, real heads), finite.

    Returns:
        one Match for each custom head, or for each real head where those are fewer; in the order of custom heads.
    """
    if not np.isfinite(distances).all():
        raise AttentionError("heads are matched by finite distances: these maps have no row with a choice")
    rows, columns = linear_sum_assignment(distances)
    return [Match(int(r), int(c), float(distances[r, c])) for r, c in zip(rows, columns)]


def check_tokens(first: Sequence[str], second: Sequence[str], *, by_position: bool = False) -> None:
    """Refuses to lay maps over different token lists on each other.

    Args:
        first, second: the labels of one axis of two maps.
        by_position: allow different tokens where there are equally many, so that position is compared with position.

    Raises:
        AttentionError: says what differs.
    """
    if len(first) != len(second):
        raise AttentionError(
            "these maps stand over different tokens: {first} on one side, {second} on the other. Cells of maps of different "
            "size have nothing to be compared with; align them by words, or give texts with equally many tokens",
            first=len(first),
            second=len(second),
        )
    apart = [place for place, pair in enumerate(zip(first, second)) if pair[0] != pair[1]]
    if apart and not by_position:
        raise AttentionError(
            "these maps stand over different tokens: at position {place}, {first!r} on one side and {second!r} on the other. "
            "Align them by words",
            place=apart[0],
            first=first[apart[0]],
            second=second[apart[0]],
        )


def _check_maps(first: Tensor, second: Tensor) -> None:
    for x in (first, second):
        if x.dim() != 4:
            raise AttentionError(
                "maps must have 4 axes (batch, heads, query_len, key_len), got {shape}", shape=tuple(x.shape)
            )
    if first.shape != second.shape:
        raise AttentionError(
            "only maps of one size can be compared: {first} and {second} (batch, heads, query_len, key_len)",
            first=tuple(first.shape),
            second=tuple(second.shape),
        )


def largest_of_blocks(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """A map in which every cell holds the value of largest size, with its sign, of the block that it lies in.

    Pooled by maximum, a difference would lose all that became less; so it is evened out before it is pooled.

    Args:
        values: (query_len, key_len); NaN counts as 0.
        rows, columns: cells of a block, at least 1; blocks at the ends may be smaller.

    Returns:
        (query_len, key_len), constant within each block.
    """
    values = np.nan_to_num(values)
    for axis, size in ((0, rows), (1, columns)):
        starts = np.arange(0, values.shape[axis], size)
        most = np.maximum.reduceat(values, starts, axis=axis)
        least = np.minimum.reduceat(values, starts, axis=axis)
        pooled = np.where(-least > most, least, most)
        values = pooled.repeat(size, axis=axis).take(range(values.shape[axis]), axis=axis)
    return values
