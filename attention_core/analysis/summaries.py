"""How a target reads its source: numbers of cross-attention maps whose rows are target tokens.

Maps are ``(..., target_len, source_len)``: one map, or one a head. a_tj is the weight that target token t gives to source
token j. Only ordinary tokens should stand in them: rows and columns of control tokens and of padding are taken out
beforehand and nothing is divided again (``target_reading.read_target`` does so), so that a row may sum to less than 1; what
is missing went to control tokens. Which row of a decoder belongs to which token is also settled there.

Each number is for one map and says nothing of why. A mean over heads is a map that no head has, and weights are no
explanation (Jain and Wallace 2019): an ablation belongs beside them.
"""

from math import ceil

import torch
from scipy.stats import kendalltau
from torch import Tensor

from attention_core.errors import AttentionError

LEAD = 0.2
"""The share of a source that counts as its beginning."""


def coverage(weights: Tensor) -> Tensor:
    """How much attention each source token got in all, c_j = sum_t a_tj.

    Tu et al. 2016; See et al. 2017, section 2.3.

    Args:
        weights: (..., target_len, source_len), probabilities.

    Returns:
        (..., source_len), in target tokens, from 0 to target_len. Where each source token is read once it is 1.
    """
    return _wide(weights).sum(-2)


def coverage_before(weights: Tensor) -> Tensor:
    """What each source token got before each step, c_tj = sum_{t' < t} a_t'j; row 0 is 0. See et al. 2017, equation 10.

    Args, Returns: as ``coverage``, but (..., target_len, source_len).
    """
    weights = _wide(weights)
    return weights.cumsum(-2) - weights


def coverage_loss(weights: Tensor) -> Tensor:
    """How much of each step's attention falls where attention has been: sum_j min(a_tj, c_tj). Repetition raises it.

    See et al. 2017, equation 12.

    Args:
        weights: (..., target_len, source_len), probabilities.

    Returns:
        (..., target_len), probability, from 0 to 1; row 0 is 0.
    """
    weights = _wide(weights)
    return torch.minimum(weights, coverage_before(weights)).sum(-1)


def omission_penalty(weights: Tensor) -> Tensor:
    """Wu et al. 2016 (GNMT), equation 14 with beta = 1: cp = sum_j ln min(sum_t a_tj, 1).

    Args:
        weights: (..., target_len, source_len), probabilities.

    Returns:
        (...), at most 0 (every source token got all of one step's attention or more); -inf where one got none at all. It
        grows with the source: compare targets of one source.
    """
    return coverage(weights).clamp(max=1).log().sum(-1)


def coverage_deviation(weights: Tensor) -> Tensor:
    """Rikters and Fishel 2017: CDP = -(1/J) sum_j ln(1 + (1 - sum_t a_tj)^2); both too little and too much lower it.

    Args:
        weights: (..., target_len, source_len), probabilities.

    Returns:
        (...), at most 0 (every source token got 1); NaN without a source token.
    """
    return -(1 - coverage(weights)).square().log1p().mean(-1)


def absentmindedness(weights: Tensor, *, of: str = "target") -> Tensor:
    """How scattered attention is, -(1/T) sum_t sum_j p_tj ln p_tj. Rikters and Fishel 2017, who take it with a minus sign.

    Args:
        weights: (..., target_len, source_len), probabilities.
        of: "target": each target token's row; "source": each source token's column. Either is divided by its sum, p = a / sum a.

    Returns:
        (...), nats, from 0 to ln source_len (or ln target_len). Rows (columns) without any weight are left out; NaN where
        there are only such.

    Raises:
        AttentionError: another ``of``.
    """
    if of not in ("target", "source"):
        raise AttentionError("absent-mindedness is of target or source, not of {of}", of=of)
    weights = _wide(weights)
    weights = weights if of == "target" else weights.transpose(-2, -1)
    total = weights.sum(-1, keepdim=True)
    entropy = torch.special.entr(weights / torch.where(total > 0, total, 1)).sum(-1)
    return torch.where(total[..., 0] > 0, entropy, torch.nan).nanmean(-1)


def lead_bias(weights: Tensor) -> Tensor:
    """Share of the attention that falls on the first fifth of the source: sum_t sum_{j < m} a_tj / sum_tj a_tj.

    m = ceil(0.2 source_len); an even spread gives ``lead_share(source_len)``.

    Args:
        weights: (..., target_len, source_len), probabilities.

    Returns:
        (...), probability, from 0 to 1; NaN for a map without any weight.
    """
    got = coverage(weights)
    return got[..., : ceil(LEAD * got.shape[-1])].sum(-1) / got.sum(-1)


def lead_share(source_len: int) -> float:
    """``lead_bias`` of attention that is spread evenly: ceil(0.2 source_len) / source_len."""
    return ceil(LEAD * source_len) / source_len


def monotonicity(weights: Tensor) -> Tensor:
    """Kendall's tau-b of (t, argmax_j a_tj): does the target go through the source in order?

    Args:
        weights: (..., target_len, source_len), probabilities. Rows without any weight are left out.

    Returns:
        (...), from -1 (backwards) over 0 to 1 (always onwards); NaN where fewer than two rows count or all look at one place.
    """
    flat = weights.detach().reshape(-1, *weights.shape[-2:])
    result = torch.full((len(flat),), torch.nan, dtype=torch.float64)
    for number, each in enumerate(flat):
        rows = torch.nonzero(each.sum(-1) > 0).flatten().cpu().numpy()
        places = each.argmax(-1).cpu().numpy()[rows] if len(rows) else rows
        # Of a constant scipy would warn before it says NaN.
        if len(set(places.tolist())) > 1:
            result[number] = float(kendalltau(rows, places).statistic)
    return result.reshape(weights.shape[:-2])


def reading_scores(weights: Tensor) -> dict[str, Tensor]:
    """All numbers of a map that need nothing but the map, by name; each (...), as its own function says.

    "coverage_loss" is the mean over target tokens, "omission" is ``omission_penalty`` over the number of source tokens (so that
    sources of different length can be compared; still -inf where a token got nothing).

    Args:
        weights: (..., target_len, source_len), probabilities.
    """
    return {
        "coverage_loss": coverage_loss(weights).mean(-1),
        "omission": omission_penalty(weights) / weights.shape[-1],
        "coverage_deviation": coverage_deviation(weights),
        "absentminded_target": absentmindedness(weights),
        "absentminded_source": absentmindedness(weights, of="source"),
        "lead_bias": lead_bias(weights),
        "monotonicity": monotonicity(weights),
    }


def copy_hits(weights: Tensor, row_ids: Tensor, key_ids: Tensor, *, rows: Tensor | None = None, k: int = 1) -> Tensor:
    """Of the rows whose token occurs in the source, the share with that token among the k largest weights (our measure).

    No gold alignment is needed; a common word that occurs often is hit by chance, see ``copy_chance``.

    Args:
        weights: (..., target_len, source_len), probabilities; here control tokens keep their columns, so that a head that
            rests on one misses.
        row_ids: (target_len,), the token that each row is about.
        key_ids: (source_len,), the tokens of the source; -1 for a column that no row may count as a hit.
        rows: (target_len,), boolean, True at rows to count; None = all.
        k: how many of the largest weights are looked at, at least 1. Of equal weights the first is the largest.

    Returns:
        (...), share of rows, from 0 to 1; NaN where no counted row's token occurs in the source.

    Raises:
        AttentionError: ids that do not match the map, or k below 1.
    """
    same = _same(weights, row_ids, key_ids, rows, k)
    counted = same.any(-1)
    # torch.topk promises no order among equal weights.
    best = weights.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    hits = torch.gather(same.expand(weights.shape), -1, best).any(-1)
    return (hits & counted).sum(-1) / counted.sum()


def copy_chance(row_ids: Tensor, key_ids: Tensor, *, rows: Tensor | None = None, k: int = 1) -> float:
    """``copy_hits`` of k columns drawn at random: mean over counted rows of 1 - C(J - m, k) / C(J, k), with m of J columns
    holding the row's token.

    Arguments and NaN as in ``copy_hits``.
    """
    same = _same(torch.empty(len(row_ids), len(key_ids)), row_ids.cpu(), key_ids.cpu(), rows, k)
    same = same[same.any(-1)]
    if not len(same):
        return float("nan")
    columns, found = same.shape[1], same.sum(-1).double()
    missed = torch.ones_like(found)
    for drawn in range(min(k, columns)):
        missed *= ((columns - found - drawn) / (columns - drawn)).clamp(min=0)
    return float((1 - missed).mean())


def _same(weights: Tensor, row_ids: Tensor, key_ids: Tensor, rows: Tensor | None, k: int) -> Tensor:
    """(target_len, source_len): whether a counted row's token stands in a column."""
    expected = tuple(weights.shape[-2:])
    if (len(row_ids), len(key_ids)) != expected or (rows is not None and len(rows) != expected[0]):
        raise AttentionError(
            "a map of {shape} (target_len, source_len) needs as many ids, got {rows} and {keys}",
            shape=expected,
            rows=len(row_ids),
            keys=len(key_ids),
        )
    if k < 1:
        raise AttentionError("k ({k}) must be at least 1: the largest weights that are looked at", k=k)
    row_ids, key_ids = row_ids.to(weights.device), key_ids.to(weights.device)
    same = (row_ids[:, None] == key_ids) & (key_ids >= 0)
    return same if rows is None else same & rows.to(same.device)[:, None]


def _wide(x: Tensor) -> Tensor:
    """float32, or the input's own dtype where that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
