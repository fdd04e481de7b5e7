"""Masks: which key each query may attend to. Boolean, and **True means "may attend"**, everywhere in this project.

Three other conventions exist, and this is the only place where they are converted:

    additive float masks      0 = may attend, -inf (or a very large negative number) = hidden; added to the scores
    0/1 numbers               1 = may attend, as tokenizers return
    nn.MultiheadAttention     boolean, True = hidden: the opposite of ours

Masks combine with ``combine`` (a key is visible where every mask shows it), never by adding.
"""

from collections.abc import Iterable, Sequence
from operator import index

import torch
from torch import Tensor

from ..errors import AttentionError
from .checks import as_tensor, check_tensor, whole

# Additive masks in the wild hide with -inf, with the dtype's minimum, or with -1e4 and below (the largest that float16 holds
# is 65504). exp(-1e4) is 0 in every dtype; anything nearer to 0 biases the scores instead of hiding a key.
_HIDES_AT = -1e4


def full(query_len: int, key_len: int | None = None) -> Tensor:
    """Every query sees every key.

    Args:
        query_len: number of queries, in tokens, at least 1.
        key_len: number of keys; None = query_len.

    Returns:
        (query_len, key_len), boolean, all True.
    """
    query_len, key_len = _lengths(query_len, key_len)
    return torch.ones(query_len, key_len, dtype=torch.bool)


def causal(query_len: int, key_len: int | None = None, *, align: str = "upper_left") -> Tensor:
    """No query sees a key after its own position.

    For unequal lengths the two diagonals in use differ:
    ``upper_left``: query i sees keys 0..i (training, and scaled_dot_product_attention's is_causal).
    ``lower_right``: the last query sees every key, query i sees keys 0..i + key_len - query_len (decoding with a cache);
    with more queries than keys, the first query_len - key_len queries see none.

    Args:
        query_len, key_len: as in ``full``.
        align: "upper_left" or "lower_right".

    Returns:
        (query_len, key_len), boolean.
    """
    query_len, key_len = _lengths(query_len, key_len)
    if align not in ("upper_left", "lower_right"):
        raise AttentionError('align must be "upper_left" or "lower_right", not {align!r}', align=align)
    offset = key_len - query_len if align == "lower_right" else 0
    return _distance(query_len, key_len) <= offset


def window(query_len: int, key_len: int | None = None, *, width: int) -> Tensor:
    """Sliding window: query i sees the keys within ``width`` positions on each side, |i - j| <= width.

    Beltagy et al. 2020 (Longformer), section 3.1, whose window w is 2 * width here. Combined with ``causal`` it looks back only.

    Args:
        query_len, key_len: as in ``full``.
        width: positions on each side, at least 0 (0 = its own position alone).

    Returns:
        (query_len, key_len), boolean.
    """
    query_len, key_len = _lengths(query_len, key_len)
    width = whole("width", width, 0)
    return _distance(query_len, key_len).abs() <= width


def block(query_len: int, key_len: int | None = None, *, size: int) -> Tensor:
    """Blocks along the diagonal: query i sees the keys of its own block, i // size == j // size.

    Args:
        query_len, key_len: as in ``full``.
        size: positions in a block, at least 1.

    Returns:
        (query_len, key_len), boolean.
    """
    query_len, key_len = _lengths(query_len, key_len)
    size = whole("size", size, 1)
    return (torch.arange(query_len)[:, None] // size) == (torch.arange(key_len)[None, :] // size)


def prefix(query_len: int, key_len: int | None = None, *, length: int) -> Tensor:
    """Prefix: every query sees the first ``length`` keys; after them it is causal, j < length or j <= i.

    Raffel et al. 2020 (T5), section 3.2.1, "causal with prefix".

    Args:
        query_len, key_len: as in ``full``.
        length: keys that all see, at least 0 (0 = causal).

    Returns:
        (query_len, key_len), boolean.
    """
    query_len, key_len = _lengths(query_len, key_len)
    length = whole("length", length, 0)
    return causal(query_len, key_len) | (torch.arange(key_len) < length)


def padding(lengths: Sequence[int] | Tensor, key_len: int) -> Tensor:
    """Keys after each text's own length are padding and hidden (padding on the right).

    Args:
        lengths: (batch,) number of real tokens of each text, each from 0 to key_len.
        key_len: number of keys.

    Returns:
        (batch, 1, 1, key_len), boolean: broadcasts over heads and queries.
    """
    lengths, key_len = as_tensor("lengths", lengths), whole("key_len", key_len, 1)
    no_counts = lengths.dim() != 1 or lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool
    if no_counts or not bool(((lengths >= 0) & (lengths <= key_len)).all()):
        raise AttentionError(
            "lengths must be one whole number from 0 to key_len ({key_len}) for each text, not {lengths}",
            key_len=key_len,
            lengths=lengths.tolist(),
        )
    return (torch.arange(key_len, device=lengths.device) < lengths[:, None])[:, None, None, :]


def edited(mask: Tensor, toggled: Iterable[tuple[int, int]]) -> Tensor:
    """A copy of a mask with single cells turned over.

    Args:
        mask: (query_len, key_len), boolean; left as it is.
        toggled: (row, column) of each cell to turn; a cell named twice is turned twice.

    Returns:
        (query_len, key_len), boolean.
    """
    check_boolean(mask)
    if mask.dim() != 2:
        raise AttentionError(
            "cells are edited in a mask of two axes (query_len, key_len), not {shape}", shape=tuple(mask.shape)
        )
    result = mask.clone()
    for row, column in _cells(toggled):
        if not (0 <= row < mask.shape[0] and 0 <= column < mask.shape[1]):
            raise AttentionError(
                "cell ({row}, {column}) is outside the mask of {query_len} queries and {key_len} keys",
                row=row,
                column=column,
                query_len=mask.shape[0],
                key_len=mask.shape[1],
            )
        result[row, column] = ~result[row, column]
    return result


def combine(*masks: Tensor | None) -> Tensor | None:
    """A key is visible where every one of the masks shows it.

    Args:
        *masks: boolean masks that broadcast to each other; None = all visible.

    Returns:
        their conjunction, broadcast; None if all were None.
    """
    result = None
    for mask in masks:
        if mask is None:
            continue
        check_boolean(mask)
        try:
            result = mask if result is None else result & mask
        except RuntimeError:
            raise AttentionError(
                "masks of shapes {first} and {second} do not broadcast to each other",
                first=tuple(result.shape),
                second=tuple(mask.shape),
            ) from None
    return result


def from_additive(mask: Tensor) -> Tensor:
    """From a float mask that is added to the scores: 0 = may attend; -inf, or -1e4 and below, = hidden.

    Anything else (a positive number, a small negative one, NaN) is a bias on the scores and not a mask: refused, not guessed.

    Args:
        mask: any shape, floating point.

    Returns:
        the same shape, boolean.
    """
    check_tensor("an additive mask", mask)
    if not mask.is_floating_point():
        raise AttentionError("an additive mask holds floating-point numbers, not {dtype}", dtype=mask.dtype)
    visible = mask == 0
    other = ~(visible | (mask <= _HIDES_AT))
    if bool(other.any()):
        raise AttentionError(
            "an additive mask may hold 0 (may attend) and -inf, or {limit:g} and below (hidden); it holds {value:g}: "
            "if 1 means may attend, use masks.from_numbers",
            limit=_HIDES_AT,
            value=mask[other][0].item(),
        )
    return visible


def from_numbers(mask: Tensor | Sequence) -> Tensor:
    """From the 0/1 numbers that tokenizers return: 1 = may attend, 0 = hidden.

    Args:
        mask: any shape; whole numbers or floats, all 0 or 1 (booleans pass as they are).

    Returns:
        the same shape, boolean.
    """
    mask = as_tensor("a mask of numbers", mask)
    if mask.dtype == torch.bool:
        return mask
    other = (mask != 0) & (mask != 1)
    if bool(other.any()):
        raise AttentionError(
            "a mask of numbers may hold 1 (may attend) and 0 (hidden) only; it holds {value:g}: "
            "if 0 means may attend and -inf hidden, use masks.from_additive",
            value=mask[other][0].item(),
        )
    return mask == 1


def from_torch_mha(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, num_heads: int | None = None
) -> Tensor | None:
    """From the arguments of nn.MultiheadAttention, in which a boolean True means hidden.

    Args:
        attn_mask: (query_len, key_len) or (batch * num_heads, query_len, key_len); boolean (True = hidden) or additive float.
        key_padding_mask: (batch, key_len); boolean (True = hidden) or additive float.
        num_heads: needed for an attn_mask of three axes.

    Returns:
        boolean, True = may attend, broadcastable to (batch, heads, query_len, key_len); None if both are None.
    """
    parts = []
    if attn_mask is not None:
        check_tensor("attn_mask", attn_mask)
        visible = _from_torch(attn_mask)
        if visible.dim() == 3:
            if num_heads is None or visible.shape[0] % whole("num_heads", num_heads, 1):
                raise AttentionError(
                    "attn_mask has {rows} rows on its first axis: name num_heads (now {num_heads}), a divisor of it",
                    rows=visible.shape[0],
                    num_heads=num_heads,
                )
            visible = visible.unflatten(0, (-1, int(num_heads)))
        elif visible.dim() != 2:
            raise AttentionError(
                "attn_mask must have two or three axes, not the shape {shape}", shape=tuple(attn_mask.shape)
            )
        parts.append(visible)
    if key_padding_mask is not None:
        check_tensor("key_padding_mask", key_padding_mask)
        if key_padding_mask.dim() != 2:
            raise AttentionError(
                "key_padding_mask must be (batch, key_len), not the shape {shape}", shape=tuple(key_padding_mask.shape)
            )
        parts.append(_from_torch(key_padding_mask)[:, None, None, :])
    return combine(*parts)


def to_torch_mha(mask: Tensor) -> Tensor:
    """To the boolean attn_mask of nn.MultiheadAttention, in which True means hidden.

    Args:
        mask: boolean, True = may attend; (query_len, key_len), or (batch, num_heads, query_len, key_len).

    Returns:
        (query_len, key_len), or (batch * num_heads, query_len, key_len); boolean, True = hidden.
    """
    check_boolean(mask)
    if mask.dim() not in (2, 4):
        raise AttentionError(
            "nn.MultiheadAttention takes a mask for (query_len, key_len) or for every batch and head, not the shape {shape}",
            shape=tuple(mask.shape),
        )
    return ~mask if mask.dim() == 2 else ~mask.flatten(0, 1)


def to_additive(mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """To a float mask that is added to the scores: 0 = may attend, -inf = hidden (-inf fits every floating dtype).

    Args:
        mask: boolean, True = may attend; any shape.
        dtype: of the result.
    """
    check_boolean(mask)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise AttentionError("dtype must be a floating-point one of torch, not {dtype}", dtype=dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def _from_torch(mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return ~mask
    if not mask.is_floating_point():
        raise AttentionError(
            "nn.MultiheadAttention's masks are boolean (True = hidden) or additive floats; {dtype} is ambiguous",
            dtype=mask.dtype,
        )
    return from_additive(mask)


def _distance(query_len: int, key_len: int) -> Tensor:
    """(query_len, key_len): key position minus query position, in tokens."""
    return torch.arange(key_len)[None, :] - torch.arange(query_len)[:, None]


def _lengths(query_len: int, key_len: int | None) -> tuple[int, int]:
    query_len = whole("query_len", query_len, 1)
    return query_len, query_len if key_len is None else whole("key_len", key_len, 1)


def _cells(toggled: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The cells to turn, as pairs of whole numbers."""
    try:
        pairs = [tuple(cell) for cell in toggled]
        if all(len(pair) == 2 and not any(isinstance(n, bool) for n in pair) for pair in pairs):
            return [(index(row), index(column)) for row, column in pairs]
    except TypeError:
        pass
    raise AttentionError(
        "cells are named by pairs of whole numbers (row, column), such as [(0, 1), (2, 0)], not {given}", given=toggled
    )


def check_boolean(mask: Tensor) -> None:
    """Raises AttentionError, naming the converters, unless the mask is a boolean tensor."""
    check_tensor("a mask", mask)
    if mask.dtype != torch.bool:
        raise AttentionError(
            "a mask must be boolean (True = may attend), not {dtype}: convert with masks.from_additive, "
            "masks.from_numbers or masks.from_torch_mha",
            dtype=mask.dtype,
        )
