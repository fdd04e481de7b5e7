"""Scaled dot-product attention, step by step, in the order of the maths.

    scores  = (query @ key^T) * scale        scaled dot products
    weights = softmax(scores where mask)     over the keys that a query may see
    context = weights @ value                weighted sum of the values

Vaswani et al. 2017, "Attention Is All You Need", equation 1. This one function computes the playground layer and is what
a real model runs when we look inside it.

Shapes leave no axis out: (batch, heads, len, head_dim) for vectors, (batch, heads, query_len, key_len) for maps.
"""

from dataclasses import dataclass
from math import isfinite, sqrt

import torch
from torch import Tensor

from ..errors import AttentionError
from .masks import check_boolean

# A chunk of scores of about this many numbers (2 MB in float32) stays in a core's cache.
_CHUNK_NUMBERS = 1 << 19

_HIDDEN = float("-inf")


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """Every stage of one attention, as computed: what all views, metrics and exports read.

    Attributes:
        query: (batch, heads, query_len, head_dim).
        key: (batch, heads, key_len, head_dim).
        value: (batch, heads, key_len, head_dim).
        scores: (batch, heads, query_len, key_len), scaled dot products before the mask; float32 or wider. The raw
            products are ``scores / scale``, to one rounding.
        mask: boolean, broadcastable to the scores, True = may attend; None = all visible.
        weights: (batch, heads, query_len, key_len), probabilities; each row sums to 1, or is all 0 where the query sees
            no key; float32 or wider.
        dropped_weights: the weights after dropout, same shape; None in eval mode.
        context: (batch, heads, query_len, head_dim), in the input's dtype.
        output: (batch, query_len, d_model) after the output projection; None unless all heads of a layer were computed.
        scale: what the dot products were multiplied with; finite and above 0.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scores: Tensor
    mask: Tensor | None
    weights: Tensor
    dropped_weights: Tensor | None
    context: Tensor
    output: Tensor | None
    scale: float

    def full_mask(self) -> Tensor:
        """The mask, broadcast to (batch, heads, query_len, key_len); all True where there is none. A view: do not write."""
        mask = self.mask if self.mask is not None else torch.ones((), dtype=torch.bool, device=self.scores.device)
        return mask.expand(self.scores.shape)

    def masked_scores(self) -> Tensor:
        """(batch, heads, query_len, key_len): the scores, -inf where the mask hides a key."""
        return self.scores if self.mask is None else self.scores.masked_fill(~self.mask, float("-inf"))

    def with_output(self, output: Tensor) -> "AttentionSteps":
        """The same steps with an output (batch, query_len, d_model)."""
        return AttentionSteps(
            self.query,
            self.key,
            self.value,
            self.scores,
            self.mask,
            self.weights,
            self.dropped_weights,
            self.context,
            output,
            self.scale,
        )


def attention_scores(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """Scaled dot products, ``(query @ key^T) * scale``, before any mask.

    The scale comes after the product, in float32 or wider: in that order the numbers are bit-equal to what transformers'
    eager attention computes in float32.

    Args:
        query: (batch, heads, query_len, head_dim).
        key: (batch, heads, key_len, head_dim).
        scale: a finite number above 0; None = 1 / sqrt(head_dim).

    Returns:
        (batch, heads, query_len, key_len), float32 or wider.

    Raises:
        AttentionError: shapes that do not fit, or a scale that is not finite and above 0.
    """
    _check_shapes(query, key, key)
    return _scores(query, key, _checked_scale(scale, query))


def attention_weights(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax of the scores over the keys that each query may see.

    w_ij = exp(s_ij) / sum over visible j of exp(s_ij); 0 where masked; a row that sees no key is all 0.

    Args:
        scores: (batch, heads, query_len, key_len); left as they are.
        mask: boolean, True = may attend, broadcastable to the scores; None = all visible.

    Returns:
        (batch, heads, query_len, key_len), probabilities, in the scores' dtype (float32 for a half-precision one).

    Raises:
        AttentionError: a mask that is not boolean or does not broadcast to the scores.
    """
    return _weights(_wide(scores), _checked_mask(mask, scores, scores.shape))


def attention_steps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    *,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
) -> AttentionSteps:
    """Scaled dot-product attention with every stage kept.

    Args:
        query: (batch, heads, query_len, head_dim).
        key: (batch, heads, key_len, head_dim).
        value: (batch, heads, key_len, value_dim).
        mask: boolean, True = may attend, broadcastable to (batch, heads, query_len, key_len); None = all visible.
        scale: a finite number above 0; None = 1 / sqrt(head_dim).
        bias: added to the scaled scores before the mask, broadcastable to them (T5's relative positions); None = none.
        dropout: probability in [0, 1) with which a weight is set to 0, the others being divided by 1 - dropout.
        generator: draws the dropout; None = torch's global one.

    Returns:
        AttentionSteps without output. Context has the dtype of the value; scores and weights are float32 or wider.

    Raises:
        AttentionError: shapes, mask or scale that cannot be; the message names both sides.
    """
    _check_shapes(query, key, value)
    scale = _checked_scale(scale, query)
    mask = _checked_mask(mask, query, (*query.shape[:3], key.shape[2]))
    scores = _scores(query, key, scale)
    if bias is not None:
        scores = scores + bias
    weights = _weights(scores, mask)
    dropped = dropped_out(weights, dropout, generator) if dropout > 0 else None
    context = _weighted_sum(weights if dropped is None else dropped, value)
    return AttentionSteps(query, key, value, scores, mask, weights, dropped, context, None, scale)


def attention_context(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """The same context as attention_steps, without ever holding all the weights.

    Queries are taken in chunks; a row's softmax needs only that row, so each chunk is computed exactly as the whole
    would be (equal up to the order in which the matrix product of this chunk size sums).

    Args: as for attention_steps.

    Returns:
        context: (batch, heads, query_len, value_dim), in the value's dtype. Memory beyond inputs and result is about
        2 MB a chunk, whatever query_len is.
    """
    _check_shapes(query, key, value)
    scale = _checked_scale(scale, query)
    batch, heads, query_len, _ = query.shape
    mask = _checked_mask(mask, query, (batch, heads, query_len, key.shape[2]))
    if mask is not None:
        # The query axis is cut below; an axis of 1 broadcasts to every chunk instead.
        mask = (
            mask.expand(*mask.shape[:-2], query_len, mask.shape[-1]) if mask.dim() > 1 else mask.expand(query_len, -1)
        )
    chunk = chunk_rows(batch, heads, key.shape[-2])
    parts = []
    for start in range(0, query_len, chunk):
        rows = slice(start, start + chunk)
        scores = _scores(query[..., rows, :], key, scale)
        weights = _weights(scores, None if mask is None else mask[..., rows, :])
        parts.append(_weighted_sum(weights, value))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)


def chunk_rows(batch: int, heads: int, key_len: int) -> int:
    """How many queries attention_context takes at a time: about 2 MB of scores, and at least one."""
    return max(1, _CHUNK_NUMBERS // max(1, batch * heads * key_len))


def dropped_out(weights: Tensor, dropout: float, generator: torch.Generator | None = None) -> Tensor:
    """Weights with each one set to 0 with probability ``dropout`` and the others divided by 1 - dropout.

    Srivastava et al. 2014; applied to attention weights as Vaswani et al. 2017 do. Rows no longer sum to 1.

    Args:
        weights: any shape.
        dropout: probability in [0, 1).
        generator: draws what is dropped; None = torch's global one.
    """
    if not 0 <= dropout < 1:
        raise AttentionError("dropout ({dropout}) must be at least 0 and below 1", dropout=dropout)
    keep = torch.empty_like(weights).bernoulli_(1 - dropout, generator=generator)
    return weights * keep / (1 - dropout)


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    products = _wide(query) @ _wide(key).transpose(-2, -1)
    return products * scale if _needs_grad(products) else products.mul_(scale)


def _weights(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.softmax(scores, dim=-1)
    sees_any = mask.any(dim=-1, keepdim=True)
    all_see = bool(sees_any.all())
    # A row without a visible key stays unmasked through the softmax, so that no NaN arises, not even in the gradient.
    masked = torch.where(mask if all_see else mask | ~sees_any, scores, _HIDDEN)
    weights = torch.softmax(masked, dim=-1, out=None if _needs_grad(masked) else masked)
    return weights if all_see else torch.where(sees_any, weights, 0.0)


def _weighted_sum(weights: Tensor, value: Tensor) -> Tensor:
    context = weights @ _wide(value)
    return context if context.dtype == value.dtype else context.to(value.dtype)


def _wide(x: Tensor) -> Tensor:
    """float32, or the input's own dtype where that is wider."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _needs_grad(x: Tensor) -> bool:
    """Whether autograd still needs x as it is; otherwise the next stage may be written into it."""
    return x.requires_grad and torch.is_grad_enabled()


def _checked_scale(scale: float | None, query: Tensor) -> float:
    if scale is None:
        return 1 / sqrt(query.shape[-1])
    if not (isfinite(scale) and scale > 0):
        raise AttentionError("the scale ({scale}) must be a finite number above 0", scale=scale)
    return float(scale)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    q, k, v = query.shape, key.shape, value.shape
    if (
        len(q) == len(k) == len(v) == 4
        and q[:2] == k[:2] == v[:2]
        and q[3] == k[3]
        and k[2] == v[2]
        and query.dtype == key.dtype == value.dtype
        and query.is_floating_point()
    ):
        return
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 4:
            raise AttentionError(
                "{name} must have four axes (batch, heads, len, head_dim), not {axes}: its shape is {shape}",
                name=name,
                axes=x.dim(),
                shape=tuple(x.shape),
            )
        if not x.is_floating_point():
            raise AttentionError("{name} must hold floating-point numbers, not {dtype}", name=name, dtype=x.dtype)
        if x.shape[:2] != query.shape[:2]:
            raise AttentionError(
                "{name} has (batch, heads) = {theirs}, but query has {ours}: they must be equal",
                name=name,
                theirs=tuple(x.shape[:2]),
                ours=tuple(query.shape[:2]),
            )
        if x.dtype != query.dtype:
            raise AttentionError(
                "{name} is {theirs}, but query is {ours}: they must have one dtype",
                name=name,
                theirs=x.dtype,
                ours=query.dtype,
            )
    if query.shape[-1] != key.shape[-1]:
        raise AttentionError(
            "query and key must have one head_dim: query has {query_dim}, key has {key_dim}",
            query_dim=query.shape[-1],
            key_dim=key.shape[-1],
        )
    if value.shape[-2] != key.shape[-2]:
        raise AttentionError(
            "key and value must have one key_len: key has {key_len}, value has {value_len}",
            key_len=key.shape[-2],
            value_len=value.shape[-2],
        )


def _checked_mask(mask: Tensor | None, beside: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """The mask, on the device of the tensor beside it."""
    if mask is None:
        return None
    check_boolean(mask)
    fits = mask.dim() <= 4 and all(m in (1, s) for m, s in zip(reversed(mask.shape), reversed(shape)))
    if not fits:
        raise AttentionError(
            "a mask of shape {mask_shape} does not broadcast to (batch, heads, query_len, key_len) = {shape}",
            mask_shape=tuple(mask.shape),
            shape=tuple(shape),
        )
    return mask if mask.device == beside.device else mask.to(beside.device)
