"""What differs from family to family of models, in tables: where projections are, and how many positions there are."""

import copy
import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import AttentionError
from ..layer.projections import Projections

# Names of the query, key and value projections inside an attention module.
_QKV = (
    ("q_proj", "k_proj", "v_proj"),  # BART, mBART, Marian, Pegasus, M2M100, Blenderbot, Llama
    ("query", "key", "value"),  # BERT, RoBERTa, ELECTRA, ALBERT
    ("q_lin", "k_lin", "v_lin"),  # DistilBERT
    ("q", "k", "v"),  # T5
)
# The output projection: in the module, or (BERT's kind) in the module around it.
_OUT = ("out_proj", "out_lin", "o_proj", "o", "dense", "c_proj")
_OUTSIDE = "output.dense"
# Narrower projections are computed whole (cut_to_heads).
_CUT_FROM = 512


def out_projection(model: nn.Module, name: str) -> nn.Module | None:
    """The output projection of the attention module of that name; None if its family is not in the table."""
    module = model.get_submodule(name)
    for out in _OUT:
        if hasattr(module, out):
            return getattr(module, out)
    try:
        return model.get_submodule(f"{name.rpartition('.')[0]}.{_OUTSIDE}")
    except AttributeError:
        return None


def projections(model: nn.Module, name: str, num_heads: int, query_input: Tensor, key_input: Tensor) -> Projections:
    """The four projections of one attention module, with what went into them.

    Raises:
        AttentionError: a family whose projections are not separate linear layers of a known name.
    """
    module = model.get_submodule(name)
    names = _qkv_names(module)
    if names is None:
        raise AttentionError(
            "the projections of {module} are not known here: only its attention can be shown",
            module=type(module).__name__,
        )
    query, key, value = (getattr(module, part) for part in names)
    if key.out_features != query.out_features:
        raise AttentionError(
            "several heads of {module} share one key and value: its projections cannot be cut into heads",
            module=type(module).__name__,
        )
    out = out_projection(model, name)
    return Projections(
        num_heads=num_heads,
        query_input=query_input,
        key_input=key_input,
        value_input=key_input,
        query_weight=query.weight.detach(),
        key_weight=key.weight.detach(),
        value_weight=value.weight.detach(),
        query_bias=_detached(query.bias),
        key_bias=_detached(key.bias),
        value_bias=_detached(value.bias),
        out_weight=out.weight.detach() if isinstance(out, nn.Linear) else None,
        out_bias=_detached(out.bias) if isinstance(out, nn.Linear) else None,
    )


def cut_to_heads(module: nn.Module, heads: list[int]) -> nn.Module | None:
    """A shallow copy of an attention module that projects the named heads only; None where all must be projected.

    That is where the projections are not known, where heads share keys or anything else in the module is learned, and at
    small widths: there a product with fewer columns rounds differently, and costs nothing anyway. The module itself is left
    as it is.
    """
    names = _qkv_names(module)
    if names is None or module._parameters or module._buffers:
        return None
    known = {*names, *_OUT}
    if any(name not in known for name, child in module.named_children() if not isinstance(child, nn.Dropout)):
        return None
    linears = [getattr(module, part) for part in names]
    head_dim = getattr(module, "head_dim", getattr(module, "attention_head_size", None))
    width = linears[0].out_features
    if head_dim is None or width < _CUT_FROM or any(linear.out_features != width for linear in linears):
        return None
    cut = copy.copy(module)
    cut._modules = dict(module._modules)
    rows = torch.cat([torch.arange(head * head_dim, (head + 1) * head_dim) for head in heads])
    if heads == list(range(heads[0], heads[-1] + 1)):
        rows = slice(heads[0] * head_dim, (heads[-1] + 1) * head_dim)
    for part, linear in zip(names, linears):
        cut._modules[part] = _Rows(linear, rows)
    return cut


class _Rows(nn.Module):
    """Some rows of a linear layer, that is, some of its outputs."""

    def __init__(self, linear: nn.Linear, rows: slice | Tensor) -> None:
        super().__init__()
        self.rows_weight = linear.weight.detach()[rows]
        self.rows_bias = None if linear.bias is None else linear.bias.detach()[rows]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.rows_weight, self.rows_bias)


def _qkv_names(module: nn.Module) -> tuple[str, str, str] | None:
    for names in _QKV:
        if all(isinstance(getattr(module, part, None), nn.Linear) for part in names):
            return names
    return None


def attention_inputs(module: nn.Module, args: tuple, kwargs: dict) -> tuple[Tensor, Tensor]:
    """What the queries and what the keys and values of an attention module are made from, whatever they are called."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    named = bound | bound.get("kwargs", {})
    hidden = named["hidden_states"] if "hidden_states" in named else next(iter(bound.values()))
    for name in ("key_value_states", "encoder_hidden_states"):
        if named.get(name) is not None:
            return hidden, named[name]
    return hidden, hidden


def position_limit(model: nn.Module, side: str) -> int | None:
    """How many tokens the encoder ("source") or decoder ("target") of a model has positions for; None = no limit.

    Read from the table of positions itself: BART keeps two rows of it unused, RoBERTa those up to its padding id.
    """
    limits = []
    for name, module in model.named_modules():
        leaf = name.rpartition(".")[2]
        if not isinstance(module, nn.Embedding) or not ("position" in leaf or leaf == "wpe"):
            continue
        if side != ("target" if "decoder." in name else "source"):
            continue
        unused = getattr(module, "offset", None)
        if unused is None:
            unused = 0 if module.padding_idx is None else module.padding_idx + 1
        limits.append(module.num_embeddings - unused)
    return min(limits) if limits else getattr(model.config, "max_position_embeddings", None)


def _detached(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach()
