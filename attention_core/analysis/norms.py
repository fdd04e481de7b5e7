"""How much each key really adds to a query's output: weights times the length of what they carry.

    f_h(x_j)  = (x_j W_V,h + b_V,h) W_O,h        the vector that head h moves from key j
    head map  : || a_h,ij f_h(x_j) || = a_h,ij || f_h(x_j) ||
    layer map : || sum_h a_h,ij f_h(x_j) ||

A large weight on a short vector moves next to nothing (Kobayashi et al. 2020, "Attention is Not Only a Weight", equations 5
to 8). Lengths are Euclidean, in the units of the layer's output; the output's bias belongs to no key and is left out.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import AttentionError
from ..layer.attention import AttentionSteps
from ..layer.projections import Projections


def moved_vectors(steps: AttentionSteps, projections: Projections, heads: Sequence[int] | None = None) -> Tensor:
    """f_h(x_j): (batch, heads, key_len, d_model), float32 or wider.

    Args:
        steps: of the same attention as the projections.
        projections: its four projections.
        heads: the heads that ``steps`` holds, where it does not hold all of them.

    Raises:
        AttentionError: no output projection is known, or the heads do not match the steps.
    """
    if projections.out_weight is None:
        raise AttentionError("norms need the output projection, which this module does not show")
    heads = range(projections.num_heads) if heads is None else heads
    if len(heads) != steps.value.shape[1]:
        raise AttentionError(
            "these steps hold {held} heads, not {named}: name them in heads",
            held=steps.value.shape[1],
            named=len(heads),
        )
    out = torch.stack([projections.head(head).out_weight for head in heads])  # (heads, d_model, head_dim)
    dtype = torch.promote_types(steps.value.dtype, torch.float32)
    return steps.value.to(dtype) @ out.to(dtype).transpose(-2, -1)


def value_norms(steps: AttentionSteps, projections: Projections, heads: Sequence[int] | None = None) -> Tensor:
    """|| f_h(x_j) ||: (batch, heads, key_len), from 0 up; arguments as in ``moved_vectors``."""
    return moved_vectors(steps, projections, heads).norm(dim=-1)


def head_norms(steps: AttentionSteps, projections: Projections, heads: Sequence[int] | None = None) -> Tensor:
    """|| a_ij f(x_j) || of each head: (batch, heads, query_len, key_len), from 0 up; arguments as in ``moved_vectors``."""
    return steps.weights * value_norms(steps, projections, heads)[..., None, :]


def layer_norms(steps: AttentionSteps, projections: Projections) -> Tensor:
    """|| sum_h a_h,ij f_h(x_j) || of a whole layer: (batch, query_len, key_len), from 0 up.

    The vectors of all heads for every query and key would take query_len x key_len x d_model numbers. The square of a sum's
    length needs only the products of the heads' vectors with each other: sum_gh a_g a_h (f_g . f_h), taken in float64.
    """
    vectors = moved_vectors(steps, projections).double()
    products = torch.einsum("bhjd,bgjd->bjhg", vectors, vectors)
    weights = steps.weights.double()
    partial = torch.einsum("bhij,bjhg->bgij", weights, products)
    # Rounding may leave a square of -1e-17 where the vectors cancel.
    return (weights * partial).sum(1).clamp_(min=0).sqrt_().to(steps.weights.dtype)
