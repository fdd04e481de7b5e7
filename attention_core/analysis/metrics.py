"""How much of a head's attention follows a simple pattern: previous, next, first, aligned token.

A pattern is a boolean **target**, (batch, query_len, key_len), True at the keys that the pattern means. Two measures
read it: ``mean_mass`` (how much weight falls there) and ``argmax_hits`` (how often the largest weight does). Both
return one number a head, (heads,), in [0, 1], NaN for a head without a row to count.

A row counts if the caller counts it, if it sees at least two keys (a row that sees one has no choice) and if the
pattern has a visible key for it (the first token has no previous one). Means are over rows, all texts together.

Source of the patterns: Clark et al. 2019, "What Does BERT Look At?", section 3. Weights are no explanation (Jain and
Wallace 2019): a sharp pattern may do nothing for the output, so an ablation belongs beside it.
"""

import torch
from torch import Tensor

from attention_core.errors import AttentionError


def _counted(weights: Tensor, target: Tensor, rows: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Check shapes -> visible target (batch, heads, query_len, key_len), rows that count (batch, heads, query_len)."""
    if weights.ndim != 4:
        raise AttentionError(
            "weights must have 4 axes (batch, heads, query_len, key_len), got {shape}", shape=tuple(weights.shape)
        )
    batch, _, query_len, key_len = weights.shape
    for name, tensor, shape in (("target", target, (batch, query_len, key_len)), ("rows", rows, (batch, query_len))):
        if tensor is not None and (tensor.dtype != torch.bool or tensor.shape not in (shape, (1, *shape[1:]))):
            raise AttentionError(
                "{name} must be boolean of shape {expected}, got {dtype} of {shape}",
                name=name,
                expected=shape,
                dtype=str(tensor.dtype),
                shape=tuple(tensor.shape),
            )
    if mask is not None and mask.dtype != torch.bool:
        raise AttentionError("mask must be boolean (True = may attend), got {dtype}", dtype=str(mask.dtype))
    visible = weights.new_ones(1, dtype=torch.bool) if mask is None else mask
    visible = visible.expand_as(weights)
    wanted = target[:, None] & visible
    counted = wanted.any(-1) & (visible.sum(-1) >= 2)
    if rows is not None:
        counted = counted & rows[:, None]
    return wanted, counted


def _mean_over_rows(values: Tensor, counted: Tensor) -> Tensor:
    """values, counted: (batch, heads, query_len) -> (heads,), NaN where nothing counts."""
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    return torch.where(counted, values, 0).sum((0, 2)) / counted.sum((0, 2))


def mean_mass(weights: Tensor, target: Tensor, *, rows: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Mean attention mass on a pattern.

    mean over counted rows i of sum_j weights[i, j] target[i, j]

    Args:
        weights: probabilities, (batch, heads, query_len, key_len), rows sum to 1.
        target: True at the keys of the pattern, (batch, query_len, key_len); a batch of 1 serves all texts.
        rows: True at the rows to count (real tokens, not padding), (batch, query_len). If None, all.
        mask: True = may attend, broadcastable to weights. If None, every key is visible.

    Returns:
        Probability in [0, 1], (heads,); NaN for a head without a counted row.

    Raises:
        AttentionError: for other shapes, or a target, rows or mask that is not boolean.
    """
    wanted, counted = _counted(weights, target, rows, mask)
    return _mean_over_rows(torch.where(wanted, weights, 0).sum(-1), counted)


def argmax_hits(weights: Tensor, target: Tensor, *, rows: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Share of counted rows whose largest weight lies on the pattern; of equal weights the first is the largest.

    Args, Returns and Raises are those of mean_mass; the result is a share of rows in [0, 1], (heads,).
    """
    wanted, counted = _counted(weights, target, rows, mask)
    largest = weights.argmax(-1, keepdim=True)
    return _mean_over_rows(wanted.gather(-1, largest).squeeze(-1), counted)


def offset_target(query_len: int, key_len: int, offset: int) -> Tensor:
    """The key at a fixed distance: target[0, i, j] = (j == i + offset), (1, query_len, key_len).

    offset in tokens: -1 is the previous token, 0 the token itself, 1 the next one.
    """
    return (torch.arange(key_len) == torch.arange(query_len)[:, None] + offset)[None]


def column_target(columns: Tensor, query_len: int) -> Tensor:
    """The same keys for every row: columns (batch, key_len) boolean -> (batch, query_len, key_len)."""
    return columns[:, None].expand(-1, query_len, -1)


def aligned_target(columns: Tensor, key_len: int) -> Tensor:
    """One given key a row: columns (batch, query_len), a key position or -1 for none -> (batch, query_len, key_len)."""
    return columns[..., None] == torch.arange(key_len, device=columns.device)


def same_token_target(query_ids: Tensor, key_ids: Tensor, *, same_sequence: bool) -> Tensor:
    """Keys that hold the row's own token: ids (batch, query_len), (batch, key_len) -> (batch, query_len, key_len).

    same_sequence: whether queries and keys are one text; then the row's own position is no repetition and left out.
    """
    same = query_ids[..., None] == key_ids[:, None]
    return same & ~offset_target(*same.shape[1:], 0).to(same.device) if same_sequence else same


def induction_target(ids: Tensor) -> Tensor:
    """What followed the row's token earlier: target[i, j] = (ids[j - 1] == ids[i] and j <= i), from (batch, length).

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads".
    """
    length = ids.shape[1]
    target = torch.zeros(ids.shape[0], length, length, dtype=torch.bool, device=ids.device)
    target[:, :, 1:] = ids[:, :, None] == ids[:, None, :-1]
    return target & torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()


def previous_mass(weights: Tensor, *, rows: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Mean mass on the token before the row's own, (heads,); see mean_mass."""
    target = offset_target(*weights.shape[-2:], -1).to(weights.device)
    return mean_mass(weights, target, rows=rows, mask=mask)


def next_mass(weights: Tensor, *, rows: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Mean mass on the token after the row's own, (heads,); see mean_mass."""
    target = offset_target(*weights.shape[-2:], 1).to(weights.device)
    return mean_mass(weights, target, rows=rows, mask=mask)


def first_mass(weights: Tensor, *, rows: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Mean mass on the first key, a usual resting place (Xiao et al. 2023), (heads,); see mean_mass."""
    columns = torch.arange(weights.shape[-1], device=weights.device)[None] == 0
    return mean_mass(weights, column_target(columns, weights.shape[-2]), rows=rows, mask=mask)


def aligned_mass(weights: Tensor, columns: Tensor, *, rows: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Mean mass of cross-attention on the aligned source position, (heads,); see mean_mass.

    columns: (batch, query_len), for each row the position in the source of its token, -1 where it has none.
    """
    return mean_mass(weights, aligned_target(columns, weights.shape[-1]), rows=rows, mask=mask)


def aligned_hits(weights: Tensor, columns: Tensor, *, rows: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Share of rows whose largest weight is the aligned source position, (heads,); see argmax_hits, aligned_mass."""
    return argmax_hits(weights, aligned_target(columns, weights.shape[-1]), rows=rows, mask=mask)
