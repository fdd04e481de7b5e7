"""The linear maps around one attention: what its queries, keys and values were made from, and what makes its output."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Projections:
    """Inputs and weights of one attention's four projections, as ``x @ weight.T + bias``.

    query = split(query_input @ query_weight.T + query_bias), key and value likewise;
    output = merge(context) @ out_weight.T + out_bias. Vaswani et al. 2017, section 3.2.2.

    A weight shared by all heads (``shared``) is (head_dim, head_dim), and each head applies it to its own slice of the
    input. Cell arithmetic and norms read this; it comes from the playground layer and from a real module alike.

    Attributes:
        num_heads: number of heads.
        query_input: (batch, query_len, d_model).
        key_input: (batch, key_len, key_dim).
        value_input: (batch, key_len, value_dim).
        query_weight: (num_heads * head_dim, d_model), or (head_dim, head_dim) if shared.
        key_weight, value_weight: (num_heads * head_dim, key_dim or value_dim), or (head_dim, head_dim) if shared.
        query_bias, key_bias, value_bias: (num_heads * head_dim,), or None.
        out_weight: (d_model, num_heads * head_dim); None where a module has no output projection.
        out_bias: (d_model,), or None.
        shared: whether one head_dim x head_dim matrix serves all heads.
    """

    num_heads: int
    query_input: Tensor
    key_input: Tensor
    value_input: Tensor
    query_weight: Tensor
    key_weight: Tensor
    value_weight: Tensor
    query_bias: Tensor | None
    key_bias: Tensor | None
    value_bias: Tensor | None
    out_weight: Tensor | None
    out_bias: Tensor | None
    shared: bool = False

    def head(self, head: int) -> "HeadProjections":
        """The slices of one head (0 to num_heads - 1), as views."""
        head_dim = self.query_weight.shape[0] // (1 if self.shared else self.num_heads)
        rows = slice(head * head_dim, (head + 1) * head_dim)

        def of(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
            if self.shared:
                return x[..., rows], weight, bias
            return x, weight[rows], None if bias is None else bias[rows]

        return HeadProjections(
            *of(self.query_input, self.query_weight, self.query_bias),
            *of(self.key_input, self.key_weight, self.key_bias),
            *of(self.value_input, self.value_weight, self.value_bias),
            None if self.out_weight is None else self.out_weight[:, rows],
        )


@dataclass(frozen=True, eq=False)
class HeadProjections:
    """One head's part of the projections: query[head] = query_input @ query_weight.T + query_bias, and so on.

    Attributes:
        query_input: (batch, query_len, in_dim), key_input and value_input: (batch, key_len, in_dim): what the head reads.
        query_weight, key_weight, value_weight: (head_dim, in_dim).
        query_bias, key_bias, value_bias: (head_dim,), or None.
        out_weight: (d_model, head_dim): the head adds context @ out_weight.T to the output; None where there is none.
    """

    query_input: Tensor
    query_weight: Tensor
    query_bias: Tensor | None
    key_input: Tensor
    key_weight: Tensor
    key_bias: Tensor | None
    value_input: Tensor
    value_weight: Tensor
    value_bias: Tensor | None
    out_weight: Tensor | None


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(batch, len, num_heads * head_dim) -> (batch, num_heads, len, head_dim), as a view."""
    batch, length, width = x.shape
    return x.view(batch, length, num_heads, width // num_heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(batch, heads, len, head_dim) -> (batch, len, heads * head_dim): heads side by side, in order."""
    return x.transpose(1, 2).flatten(2)
