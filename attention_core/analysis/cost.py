"""What an attention layer costs: parameters, multiply-adds and bytes, counted from its configuration."""

from dataclasses import dataclass

import torch

from ..errors import AttentionError
from ..layer.attention import chunk_sizes
from ..layer.multihead import AttentionConfig


@dataclass(frozen=True)
class LayerCost:
    """The cost of computing one layer once.

    Attributes:
        parameters: numbers in each matrix and bias ("query_weight", "query_bias", ... "out_bias"; biases that the layer does
            not have are left out).
        multiply_adds: one multiplication and one addition each, by stage: "query", "key", "value", "scores", "context",
            "output". Twice as many floating-point operations (FLOPs). Biases, scale and softmax are not counted: they grow
            with the number of cells alone, not with cells times width.
        hidden_multiply_adds: those of scores and context that are spent on cells which the mask hides: the layer computes
            all cells.
        bytes: what each intermediate holds: "query", "key", "value", "scores", "weights", "context", "output".
        chunked_bytes: what scores and weights hold at most, at any one time, where the layer's output alone is asked for:
            texts, heads and queries are then taken in chunks.
    """

    parameters: dict[str, int]
    multiply_adds: dict[str, int]
    hidden_multiply_adds: int
    bytes: dict[str, int]
    chunked_bytes: int

    @property
    def total_parameters(self) -> int:
        """All numbers that training changes."""
        return sum(self.parameters.values())

    @property
    def total_multiply_adds(self) -> int:
        """Of all stages."""
        return sum(self.multiply_adds.values())

    @property
    def total_bytes(self) -> int:
        """Of all intermediates, as ``layer.steps`` keeps them."""
        return sum(self.bytes.values())


def layer_cost(
    config: AttentionConfig,
    query_len: int,
    key_len: int | None = None,
    *,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    unmasked: int | None = None,
) -> LayerCost:
    """Parameters, multiply-adds and bytes of one layer at one size.

    With b = batch, h = num_heads, d = head_dim, n = query_len, m = key_len, D = d_model, and c = bytes of one number (4 in
    float32; for scores and weights w = max(c, 4), since they are float32 or wider):

        parameters      query: h d (D + 1), key: h d (key_dim + 1), value: h d (value_dim + 1), out: D (h d + 1);
                        one less in a bracket without bias; query, key and value d (d + 1) each where all heads share
        multiply-adds   query: b n h d D, key: b m h d key_dim, value: b m h d value_dim (d for D where heads share),
                        scores: b h n m d, context: b h n m d, output: b n h d D
        bytes           query, context: b h n d c, key, value: b h m d c, scores, weights: b h n m w, output: b n D c

    So projections grow with len * width^2, and the attention itself with len^2 * width.

    Args:
        config: the layer.
        query_len, key_len: in tokens, at least 1; key_len None = query_len (self-attention).
        batch: texts computed together, at least 1.
        dtype: of inputs and weights, floating point.
        unmasked: the (query, key) pairs that the mask leaves visible to one head, counted over the batch, from 0 to
            batch * query_len * key_len; None = all.

    Returns:
        LayerCost.

    Raises:
        AttentionError: a size below 1, a dtype that is not floating point, more visible pairs than there are.
    """
    key_len = query_len if key_len is None else key_len
    for name, size in (("query_len", query_len), ("key_len", key_len), ("batch", batch)):
        if size < 1:
            raise AttentionError("{name} ({size}) must be at least 1", name=name, size=size)
    if not dtype.is_floating_point:
        raise AttentionError("a layer computes in floating-point numbers, not {dtype}", dtype=dtype)
    pairs = batch * query_len * key_len
    unmasked = pairs if unmasked is None else unmasked
    if not 0 <= unmasked <= pairs:
        raise AttentionError(
            "unmasked ({unmasked}) must be from 0 to batch * query_len * key_len ({pairs})",
            unmasked=unmasked,
            pairs=pairs,
        )
    inner = config.inner_dim
    shared = config.projection == "shared"
    # A shared matrix is head_dim wide; each head applies it to its own slice, so inner_dim rows are computed all the same.
    in_dims = (config.head_dim,) * 3 if shared else (config.d_model, config.key_dim, config.value_dim)
    lengths = (query_len, key_len, key_len)
    names = ("query", "key", "value")

    parameters = {}
    out_dim = config.head_dim if shared else inner
    for name, in_dim in zip(names, in_dims):
        parameters[f"{name}_weight"] = out_dim * in_dim
        if config.qkv_bias:
            parameters[f"{name}_bias"] = out_dim
    parameters["out_weight"] = config.d_model * inner
    if config.out_bias:
        parameters["out_bias"] = config.d_model

    multiply_adds = {name: batch * length * inner * in_dim for name, length, in_dim in zip(names, lengths, in_dims)} | {
        "scores": pairs * inner,
        "context": pairs * inner,
        "output": batch * query_len * inner * config.d_model,
    }

    narrow, wide = dtype.itemsize, max(dtype.itemsize, torch.float32.itemsize)
    maps = pairs * config.num_heads * wide
    texts, heads, rows = chunk_sizes(batch, config.num_heads, query_len, key_len)
    return LayerCost(
        parameters=parameters,
        multiply_adds=multiply_adds,
        hidden_multiply_adds=2 * (pairs - unmasked) * inner,
        bytes={name: batch * length * inner * narrow for name, length in zip(names, lengths)}
        | {
            "scores": maps,
            "weights": maps,
            "context": batch * query_len * inner * narrow,
            "output": batch * query_len * config.d_model * narrow,
        },
        chunked_bytes=2 * texts * heads * rows * key_len * wide,
    )
