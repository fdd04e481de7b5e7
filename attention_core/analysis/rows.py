"""Numbers of the rows of attention maps: entropy, and divergences between two maps, over the cells that a mask leaves.

A row is a distribution over the keys that its query may see. In all of these 0 ln 0 = 0, nothing is smoothed, and a row that
sees no key is no distribution: its numbers are NaN and no mean takes it in. A row that sees one key has no choice, so that
means leave it out too (``counted_rows``).
"""

from math import log

import torch
from torch import Tensor

from attention_core.errors import AttentionError


def full_mask(weights: Tensor, mask: Tensor | None) -> Tensor:
    """A mask (True = may attend; None = all visible) as wide as the weights, (batch, heads, query_len, key_len)."""
    if mask is None:
        return torch.ones((), dtype=torch.bool, device=weights.device).expand(weights.shape)
    if mask.dtype != torch.bool:
        raise AttentionError("mask must be boolean (True = may attend), got {dtype}", dtype=mask.dtype)
    return mask.to(weights.device).expand(weights.shape)


def counted_rows(first: Tensor, second: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
    """The rows that a mean over rows takes in.

    A row counts if at least two keys are visible to it in one of the maps (else the two agree trivially), and at least one
    in each.

    Args:
        first, second: masks as wide as the maps, (batch, heads, query_len, key_len), True = may attend; second None = first.
        rows: True at rows to count (real tokens, not padding), broadcastable to (batch, heads, query_len); None = all.

    Returns:
        (batch, heads, query_len), boolean.
    """
    second = first if second is None else second
    counted = ((first | second).sum(-1) >= 2) & first.any(-1) & second.any(-1)
    return counted if rows is None else counted & rows.to(counted.device)


def mean_of_rows(values: Tensor, counted: Tensor) -> Tensor:
    """The mean over counted rows, all texts together: (batch, heads, query_len) -> (heads,); NaN where none counts."""
    return torch.where(counted, values, 0).sum((0, 2)) / counted.sum((0, 2))


def row_entropy(weights: Tensor, mask: Tensor | None = None, *, normalised: bool = False) -> Tensor:
    """Entropy of each row, H_i = - sum_j w_ij ln w_ij, or H_i / ln n_i with n_i the keys that row i may see.

    Clark et al. 2019, section 3; the division makes rows of a causal map comparable.

    Args:
        weights: (batch, heads, query_len, key_len), probabilities.
        mask: boolean, True = may attend, broadcastable to the weights; None = all visible.
        normalised: whether to divide by ln n_i.

    Returns:
        (batch, heads, query_len), in nats, from 0 to ln n_i; normalised from 0 to 1, NaN for rows that see fewer than two
        keys. NaN for rows that see none.
    """
    seen = full_mask(weights, mask).sum(-1)
    # A weight that rounding has left above 1 would give less than 0.
    entropy = summed_entropy(_wide(weights)).clamp(min=0)
    entropy = torch.minimum(entropy, seen.clamp(min=1).to(entropy.dtype).log())
    if normalised:
        return torch.where(seen >= 2, entropy / seen.clamp(min=2).to(entropy.dtype).log(), torch.nan)
    return torch.where(seen >= 1, entropy, torch.nan)


def summed_entropy(weights: Tensor) -> Tensor:
    """- sum_j w_j ln w_j over the last axis, with 0 ln 0 = 0: (..., key_len) -> (...), nats; rounding may leave -1e-7.

    The smallest normal number stands in for 0 in the logarithm: twice as fast as torch.special.entr.
    """
    # 0 - x, since -x would make -0 of 0.
    return 0 - (weights.clamp(min=torch.finfo(weights.dtype).tiny).log_() * weights).sum(-1)


def row_divergence(first: Tensor, second: Tensor) -> Tensor:
    """Jensen-Shannon divergence of each row, symmetric and always finite.

    JS_i = 1/2 sum_j p_ij ln(p_ij / m_ij) + 1/2 sum_j q_ij ln(q_ij / m_ij), with m = (p + q) / 2. Lin 1991; between heads: Clark
    et al. 2019, section 6 (without their smoothing).

    Args:
        first, second: p and q, probabilities of one shape, (..., key_len); hidden cells hold 0.

    Returns:
        (...), in nats, from 0 (equal rows, exactly) to ln 2 (rows without a common key); NaN where a row of either is all 0.
    """
    first, second = _wide(first), _wide(second)
    middle = (first + second) / 2
    safe = torch.where(middle > 0, middle, 1)
    terms = torch.xlogy(first, first / safe) + torch.xlogy(second, second / safe)
    result = (terms.sum(-1) / 2).clamp(0, log(2))
    return torch.where((first.sum(-1) > 0) & (second.sum(-1) > 0), result, torch.nan)


def row_kl(first: Tensor, second: Tensor) -> Tensor:
    """Kullback-Leibler divergence of each row, KL_i = sum_j p_ij ln(p_ij / q_ij): not symmetric, and infinite where p has
    weight on a key that q gives none.

    Kullback and Leibler 1951.

    Args:
        first, second: p and q, probabilities of one shape, (..., key_len).

    Returns:
        (...), in nats, from 0 to inf; NaN where a row of either is all 0.
    """
    first, second = _wide(first), _wide(second)
    # p ln(p / 0) is inf for p > 0; where p is 0 the term is 0 whatever q is.
    terms = torch.where(first > 0, first * (first / second).log(), 0)
    result = terms.sum(-1).clamp(min=0)
    return torch.where((first.sum(-1) > 0) & (second.sum(-1) > 0), result, torch.nan)


def _wide(x: Tensor) -> Tensor:
    """float32, or the input's own dtype where that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
