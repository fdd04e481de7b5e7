"""Named variants of multi-head attention: each is a configuration of the one layer, not a copy of it.

``standard``, ``bert`` and ``cabm`` compute the same numbers in eval mode (difference 0); they differ in dropout and in what
calling the layer returns. ``bart_simplified`` differs in substance, as its docstring says. All compute in this project's
order: scale, mask, softmax. The published steps of each are written out in the tests, as the reference; they agree on
every row that sees a key.
"""

from .multihead import AttentionConfig


def standard(d_model: int, num_heads: int, **changes) -> AttentionConfig:
    """Four full projections with bias, scale 1/sqrt(head_dim): Vaswani et al. 2017, section 3.2.2.

    Args:
        d_model: width of input and output.
        num_heads: number of heads; d_model must be divisible by it unless head_dim is given.
        **changes: any other field of AttentionConfig.
    """
    return AttentionConfig(d_model, num_heads, **changes)


def bert(d_model: int, num_heads: int, **changes) -> AttentionConfig:
    """Bidirectional self-attention of the BERT kind: ``standard`` with dropout 0.1 on the weights after the softmax.

    Devlin et al. 2019. Refuses a d_model that the heads do not divide and an input of another width; gives the output.

    Args: as for ``standard``, without head_dim.
    """
    return AttentionConfig(d_model, num_heads, **({"dropout": 0.1} | changes))


def cabm(d_model: int, num_heads: int, **changes) -> AttentionConfig:
    """Masked self-attention ("CABM"): ``standard`` without dropout; calling the layer gives the output AND the weights.

    Its published form takes a 0/1 mask; ``masks.from_numbers`` converts one.

    Args: as for ``standard``.
    """
    return AttentionConfig(d_model, num_heads, **({"return_weights": True} | changes))


def bart_simplified(d_model: int, num_heads: int, **changes) -> AttentionConfig:
    """The simplified BART layer: heads first, one small bias-free matrix for all, scale 1/sqrt(d_model).

    The embedding is split into heads, and each head goes through the same head_dim x head_dim matrix (one for Q, one for K,
    one for V); the output projection is d_model x d_model with bias. What that does: the weights are flatter, since
    sqrt(d_model) > sqrt(head_dim), and no head sees another's features. The published code fills masked scores with -1e20,
    which fails in half precision, and gives a query that sees no key a uniform row; here that row is 0.

    Args: as for ``standard``, without head_dim.
    """
    shared = {"projection": "shared", "scale": "d_model", "qkv_bias": False}
    return AttentionConfig(d_model, num_heads, **(shared | changes))


PRESETS = {"standard": standard, "bert": bert, "cabm": cabm, "bart_simplified": bart_simplified}
