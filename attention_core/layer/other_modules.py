"""Reading the attention modules of other libraries: nn.MultiheadAttention, and those in the manner of BART and of BERT."""

from math import sqrt

from torch import Tensor, nn

from ..errors import AttentionError


def read_module(module: nn.Module) -> tuple[dict, list[Tensor], list[Tensor | None]]:
    """What an attention module of a known form is made of.

    Returns:
        fields of AttentionConfig; weights (out_dim, in_dim) and biases (out_dim,) or None of query, key, value and output.

    Raises:
        AttentionError: a module of another form, or one with features that this project's layer does not have.
    """
    read = _read_torch if isinstance(module, nn.MultiheadAttention) else _read_transformers
    weights, biases, num_heads, scale, dropout = read(module)
    head_dim = weights[0].shape[0] // num_heads
    if any(weight.shape[0] != num_heads * head_dim for weight in weights[:3]):
        raise AttentionError(
            "queries, keys and values must each have num_heads ({num_heads}) heads of one width; their projections give "
            "{widths} numbers",
            num_heads=num_heads,
            widths=", ".join(str(weight.shape[0]) for weight in weights[:3]),
        )
    fields = dict(
        d_model=weights[0].shape[1],
        num_heads=num_heads,
        head_dim=head_dim,
        key_dim=weights[1].shape[1],
        value_dim=weights[2].shape[1],
        qkv_bias=any(bias is not None for bias in biases[:3]),
        out_bias=biases[3] is not None,
        dropout=dropout,
        scale="head_dim" if scale in (None, head_dim**-0.5, 1 / sqrt(head_dim)) else scale,
    )
    return fields, weights, biases


def _read_torch(module: nn.MultiheadAttention):
    if module.bias_k is not None or module.add_zero_attn:
        raise AttentionError("an nn.MultiheadAttention with add_bias_kv or add_zero_attn has no counterpart here")
    if module.in_proj_weight is not None:
        weights = list(module.in_proj_weight.chunk(3))
    else:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    biases = [None] * 3 if module.in_proj_bias is None else list(module.in_proj_bias.chunk(3))
    out = module.out_proj
    return [*weights, out.weight], [*biases, out.bias], module.num_heads, None, module.dropout


def _read_transformers(module: nn.Module):
    inner = getattr(module, "self", module)
    for owner, names, out in (
        (module, ("q_proj", "k_proj", "v_proj"), getattr(module, "out_proj", None)),
        (inner, ("query", "key", "value"), getattr(getattr(module, "output", None), "dense", None)),
    ):
        linears = [*(getattr(owner, name, None) for name in names), out]
        num_heads = getattr(owner, "num_heads", getattr(owner, "num_attention_heads", None))
        if num_heads is not None and all(isinstance(linear, nn.Linear) for linear in linears):
            break
    else:
        raise AttentionError(
            "{name} is not an attention module of a known form: it must be an nn.MultiheadAttention, have q_proj, k_proj, "
            "v_proj and out_proj (as BART's), or have self.query, self.key, self.value and output.dense (as BERT's "
            "attention, which holds both)",
            name=type(module).__name__,
        )
    known = {id(parameter) for linear in linears for parameter in linear.parameters()}
    others = [name for name, parameter in owner.named_parameters() if id(parameter) not in known]
    if others:
        raise AttentionError(
            "{name} has parameters that this layer has no counterpart for: {others}",
            name=type(module).__name__,
            others=", ".join(others),
        )
    dropout = getattr(owner, "dropout", 0.0)
    return (
        [linear.weight for linear in linears],
        [linear.bias for linear in linears],
        num_heads,
        getattr(owner, "scaling", None),
        dropout.p if isinstance(dropout, nn.Dropout) else dropout,
    )
