"""Scaled dot-product attention, step by step, in the order of the maths.

    scores  = (query @ key^T) * scale        scaled dot products
    weights = softmax(scores where mask)     over the keys that a query may see
    context = weights @ value                weighted sum of the values

Vaswani et al. 2017, "Attention Is All You Need", equation 1. This one function computes the playground layer and is what
a real model runs when we look inside it.

Shapes leave no axis out: (batch, heads, len, head_dim) for vectors, (batch, heads, query_len, key_len) for maps.
"""

from dataclasses import dataclass
from itertools import product
from math import isfinite, sqrt

import torch
from torch import Tensor

from ..errors import AttentionError
from .checks import check_dropout, check_tensor
from .masks import check_boolean

# A chunk of scores of about this many numbers (1 MB in float32) stays in a core's cache.
_CHUNK_NUMBERS = 1 << 18

# What a hidden score becomes; a tensor, since making one from a number costs as much as filling a small map with it.
_HIDDEN = torch.tensor(float("-inf"))


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
        scale: what the dot products were multiplied with; finite and above 0. A tensor (1, heads, 1, 1) where edits of a
            model's heads give them different ones.
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
    scale: float | Tensor

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
    check_shapes(query, key, key)
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
    check_tensor("scores", scores)
    if not scores.is_floating_point():
        raise AttentionError("{name} must hold floating-point numbers, not {dtype}", name="scores", dtype=scores.dtype)
    if mask is not None:
        mask = _fitted(mask, scores.shape, scores.device)
    return _weights(_wide(scores), mask)


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
    check_shapes(query, key, value)
    scale = _checked_scale(scale, query)
    mask = checked_mask(mask, query, key)
    if bias is not None:
        _check_bias(bias, (*query.shape[:3], key.shape[2]))
    scores, weights, dropped, context = attend(query, key, value, mask, scale, bias, dropout, generator)
    return AttentionSteps(query, key, value, scores, mask, weights, dropped, context, None, scale)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """(scores, weights, dropped_weights, context): the computation of attention_steps, for arguments checked already."""
    scores = _scores(query, key, scale)
    if bias is not None:
        scores = scores + bias
    weights = _weights(scores, mask)
    dropped = dropped_out(weights, dropout, generator) if dropout != 0 else None
    context = (weights if dropped is None else dropped) @ _wide(value)
    return scores, weights, dropped, context if context.dtype is value.dtype else context.to(value.dtype)


def attention_context(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """The same context as attention_steps, without ever holding all the weights.

    Texts, heads and queries are taken in chunks; a row's softmax needs only that row, so each chunk is computed exactly as
    the whole would be (equal up to the order in which a matrix product of its size sums).

    Args: as for attention_steps.

    Returns:
        context: (batch, heads, query_len, value_dim), in the value's dtype. Memory beyond inputs and result is about
        2 MB (scores and weights of a chunk, in float32), whatever query_len is.
    """
    check_shapes(query, key, value)
    scale = _checked_scale(scale, query)
    mask = checked_mask(mask, query, key)
    batch, heads, query_len, _ = query.shape
    sizes = chunk_sizes(batch, heads, query_len, key.shape[2])
    if sizes == (batch, heads, query_len):
        return attend(query, key, value, mask, scale)[-1]
    if mask is not None:
        mask = mask.expand(batch, heads, query_len, -1)
    positions = torch.arange(key.shape[2], device=query.device)
    context = value.new_empty(batch, heads, query_len, value.shape[3])
    starts = (range(0, length, size) for length, size in zip((batch, heads, query_len), sizes))
    for place in product(*starts):
        part = tuple(slice(start, start + size) for start, size in zip(place, sizes))
        of_keys, visible = part[:2], None
        if mask is not None:
            # What lies beyond the last key that this chunk sees is left out: for a causal mask, half of the work.
            # (amax over bytes is "any", twenty times faster.)
            visible = mask[part]
            last = (visible.view(torch.uint8).amax((0, 1, 2)) * positions).amax()
            of_keys = (*of_keys, slice(int(last) + 1))
            visible = visible[..., of_keys[2]]
        context[part] = attend(query[part], key[of_keys], value[of_keys], visible, scale)[-1]
    return context


def chunk_sizes(batch: int, heads: int, query_len: int, key_len: int) -> tuple[int, int, int]:
    """How many (texts, heads, queries) attention_context takes at a time: about 1 MB of float32 scores, at least one row.

    Many queries of one head come before many heads: that is what a matrix product is fast at.
    """
    rows = max(1, min(query_len, _CHUNK_NUMBERS // max(1, key_len)))
    some = max(1, min(heads, _CHUNK_NUMBERS // max(1, rows * key_len)))
    texts = max(1, min(batch, _CHUNK_NUMBERS // max(1, some * rows * key_len)))
    return texts, some, rows


def dropped_out(weights: Tensor, dropout: float, generator: torch.Generator | None = None) -> Tensor:
    """Weights with each one set to 0 with probability ``dropout`` and the others divided by 1 - dropout.

    Srivastava et al. 2014; applied to attention weights as Vaswani et al. 2017 do. Rows no longer sum to 1.

    Args:
        weights: any shape.
        dropout: probability in [0, 1).
        generator: draws what is dropped; None = torch's global one.
    """
    check_tensor("weights", weights)
    check_dropout(dropout)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise AttentionError("generator must be a torch.Generator, not {type}", type=type(generator).__name__)
    keep = torch.empty_like(weights).bernoulli_(1 - dropout, generator=generator)
    return weights * keep / (1 - dropout)


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    products = _wide(query) @ _wide(key).transpose(-2, -1)
    return products * scale if _needs_grad(products) else products.mul_(scale)


def _weights(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.softmax(scores, -1)
    weights = _softmax(torch.where(mask, scores, _HIDDEN))
    # A row without a visible key has become NaN. One sum over all weights is the cheapest way to find out.
    total = weights.sum().item()
    if total == total:
        return weights
    # Such a row stays unmasked through the softmax, so that no NaN arises, not even in the gradient, and is 0 after it.
    sees_any = mask.any(dim=-1, keepdim=True)
    return torch.where(sees_any, _softmax(torch.where(mask | ~sees_any, scores, _HIDDEN)), 0.0)


def _softmax(masked: Tensor) -> Tensor:
    """Over the last axis, in place where autograd allows it: a large map costs more to allocate than to normalise."""
    return torch.softmax(masked, -1) if _needs_grad(masked) else torch.softmax(masked, -1, out=masked)


def _wide(x: Tensor) -> Tensor:
    """float32, or the input's own dtype where that is wider."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _needs_grad(x: Tensor) -> bool:
    """Whether autograd still needs x as it is; otherwise the next stage may be written into it."""
    return x.requires_grad and torch.is_grad_enabled()


def _checked_scale(scale: float | None, query: Tensor) -> float:
    if scale is None:
        return 1 / sqrt(query.shape[-1])
    try:
        fits = not isinstance(scale, bool) and isfinite(scale) and scale > 0
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise AttentionError("the scale ({scale}) must be a finite number above 0", scale=scale)
    return float(scale)


def check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raises AttentionError unless these can attend: (batch, heads, len, head_dim) each, of one floating dtype."""
    try:
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
    except AttributeError:
        pass  # no tensors: which of them, and what it is, is said below
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, x)
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


def checked_mask(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The mask, if it fits the scores of (batch, heads, len, head_dim) query and key, on their device."""
    if mask is None:
        return None
    check_tensor("a mask", mask)
    axes, batch, heads, query_len, key_len = mask.shape, *query.shape[:3], key.shape[2]
    # The usual mask is looked at without the cost of looking at every mask.
    if axes == (query_len, key_len) and mask.dtype is torch.bool and mask.device == query.device:
        return mask
    return _fitted(mask, (batch, heads, query_len, key_len), query.device)


def _check_bias(bias: Tensor, shape: tuple[int, ...]) -> None:
    check_tensor("bias", bias)
    if bias.dim() > 4 or any(b not in (1, s) for b, s in zip(reversed(bias.shape), reversed(shape))):
        raise AttentionError(
            "a bias of shape {bias_shape} does not broadcast to (batch, heads, query_len, key_len) = {shape}",
            bias_shape=tuple(bias.shape),
            shape=tuple(shape),
        )


def _fitted(mask: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    check_boolean(mask)
    axes = mask.shape
    if len(axes) > 4 or any(m not in (1, s) for m, s in zip(reversed(axes), reversed(shape))):
        raise AttentionError(
            "a mask of shape {mask_shape} does not broadcast to (batch, heads, query_len, key_len) = {shape}",
            mask_shape=tuple(axes),
            shape=tuple(shape),
        )
    mask = mask if mask.device == device else mask.to(device)
    return mask if len(axes) > 1 else mask.expand(1, shape[-1])
