"""Multi-head attention, written from scratch.

    query, key, value = the inputs, projected and split into heads
    context           = attention of each head (attention.py)
    output            = the heads' contexts side by side, projected

Vaswani et al. 2017, section 3.2.2.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path
from sys import float_info

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import AttentionError
from .attention import AttentionSteps, attend, attention_context, check_shapes, checked_mask
from .checks import check_dropout, check_tensor, inside, whole
from .other_modules import read_module
from .projections import Projections, merge_heads, split_heads

SCALES = ("head_dim", "d_model", "none")
PROJECTIONS = ("full", "shared")


@dataclass(frozen=True)
class AttentionConfig:
    """What a multi-head attention layer is made of.

    Args:
        d_model: width of the input (queries) and of the output.
        num_heads: number of heads.
        head_dim: width of one head; None = d_model / num_heads, which must then be whole. Need not multiply up to d_model.
        key_dim, value_dim: widths of the inputs that keys and values are made from (cross-attention); None = d_model.
        qkv_bias: whether the query, key and value projections have a bias.
        out_bias: whether the output projection has one.
        dropout: probability in [0, 1) with which a weight is dropped, in training mode.
        scale: what the dot products are multiplied with: "head_dim" = 1/sqrt(head_dim), "d_model" = 1/sqrt(d_model),
            "none" = 1, or a finite number above 0.
        temperature: divides the scale; finite and above 0. Above 1 flattens the weights, below 1 sharpens them.
        projection: "full" = each head has its own rows of d_model x (num_heads * head_dim) matrices; "shared" = the input is
            split into heads first and one head_dim x head_dim matrix serves all heads (then num_heads * head_dim = d_model).
        return_weights: whether calling the layer returns (output, weights) rather than the output alone.

    Raises:
        AttentionError: values that cannot be, naming them.
    """

    d_model: int
    num_heads: int
    head_dim: int | None = None
    key_dim: int | None = None
    value_dim: int | None = None
    qkv_bias: bool = True
    out_bias: bool = True
    dropout: float = 0.0
    scale: str | float = "head_dim"
    temperature: float = 1.0
    projection: str = "full"
    return_weights: bool = False

    def __post_init__(self) -> None:
        for name in ("d_model", "num_heads", "head_dim", "key_dim", "value_dim"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name), 1))
        for name in ("qkv_bias", "out_bias", "return_weights"):
            if not isinstance(getattr(self, name), bool):
                raise AttentionError(
                    "{name} must be True or False, not {value!r}", name=name, value=getattr(self, name)
                )
        if self.head_dim is None:
            if self.d_model % self.num_heads:
                raise AttentionError(
                    "d_model ({d_model}) must be divisible by num_heads ({num_heads})",
                    d_model=self.d_model,
                    num_heads=self.num_heads,
                )
            object.__setattr__(self, "head_dim", self.d_model // self.num_heads)
        for name in ("key_dim", "value_dim"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.d_model)
        check_dropout(self.dropout)
        if not (isinstance(self.scale, str) and self.scale in SCALES) and not _positive(self.scale):
            raise AttentionError(
                'scale must be "head_dim", "d_model", "none" or a finite number above 0, not {scale!r}',
                scale=self.scale,
            )
        if not _positive(self.temperature):
            raise AttentionError(
                "the temperature ({temperature}) must be a finite number above 0", temperature=self.temperature
            )
        if not _positive(self.effective_scale):
            raise AttentionError(
                "scale / temperature ({scale}) must be a finite number above 0", scale=self.effective_scale
            )
        if self.projection not in PROJECTIONS:
            raise AttentionError(
                'projection must be "full" or "shared", not {projection!r}', projection=self.projection
            )
        if self.projection == "shared" and {self.inner_dim, self.key_dim, self.value_dim} != {self.d_model}:
            raise AttentionError(
                "a shared projection splits the input itself into heads: num_heads * head_dim ({inner_dim}), key_dim "
                "({key_dim}) and value_dim ({value_dim}) must equal d_model ({d_model})",
                inner_dim=self.inner_dim,
                key_dim=self.key_dim,
                value_dim=self.value_dim,
                d_model=self.d_model,
            )

    @property
    def inner_dim(self) -> int:
        """Width of all heads side by side, num_heads * head_dim."""
        return self.num_heads * self.head_dim

    @cached_property
    def effective_scale(self) -> float:
        """What the dot products are multiplied with, temperature included; above 0."""
        rules = {"head_dim": 1 / sqrt(self.head_dim), "d_model": 1 / sqrt(self.d_model), "none": 1.0}
        return (rules[self.scale] if isinstance(self.scale, str) else float(self.scale)) / self.temperature


class MultiHeadAttention(nn.Module):
    """Multi-head attention with every stage open to view.

    Calling it gives the output; ``steps`` gives every stage; ``projections`` gives what Q, K and V were made from. Where
    queries, keys and values have one width, the three matrices lie in one, query rows first (as in_proj_weight of
    nn.MultiheadAttention does), so that self-attention projects once; ``query_weight`` and its like name the parts.

    Args:
        config: an AttentionConfig, from attention_core.presets or made by hand.

    Weights start as Xavier-uniform (Glorot and Bengio 2010), biases as 0, drawn from torch's global generator.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        if not isinstance(config, AttentionConfig):
            raise AttentionError(
                "a layer is made from an AttentionConfig, such as presets.standard(64, 4), not {type}",
                type=type(config).__name__,
            )
        self.config = config
        shared = config.projection == "shared"
        in_dims = (config.head_dim,) * 3 if shared else (config.d_model, config.key_dim, config.value_dim)
        out_dim = config.head_dim if shared else config.inner_dim
        self._fused = len(set(in_dims)) == 1
        if self._fused:
            self.qkv_proj = nn.Linear(in_dims[0], 3 * out_dim, bias=config.qkv_bias)
        else:
            self.query_proj, self.key_proj, self.value_proj = (nn.Linear(d, out_dim, config.qkv_bias) for d in in_dims)
        self.out_proj = nn.Linear(config.inner_dim, config.d_model, bias=config.out_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights: Xavier-uniform for each matrix on its own; biases 0."""
        for weight in (self.query_weight, self.key_weight, self.value_weight, self.out_weight):
            nn.init.xavier_uniform_(weight)
        for bias in (self.query_bias, self.key_bias, self.value_bias, self.out_bias):
            if bias is not None:
                nn.init.zeros_(bias)

    query_weight = property(
        lambda self: self._part(0)[0], doc="(inner_dim, d_model), or (head_dim, head_dim) if shared."
    )
    key_weight = property(lambda self: self._part(1)[0], doc="(inner_dim, key_dim), or (head_dim, head_dim) if shared.")
    value_weight = property(
        lambda self: self._part(2)[0], doc="(inner_dim, value_dim), or (head_dim, head_dim) if shared."
    )
    query_bias = property(
        lambda self: self._part(0)[1], doc="(inner_dim,), or (head_dim,) if shared; None if there is none."
    )
    key_bias = property(lambda self: self._part(1)[1], doc="As query_bias.")
    value_bias = property(lambda self: self._part(2)[1], doc="As query_bias.")
    out_weight = property(lambda self: self.out_proj.weight, doc="(d_model, inner_dim).")
    out_bias = property(lambda self: self.out_proj.bias, doc="(d_model,), or None.")

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, *, mask: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The layer's output.

        Args:
            query: (batch, query_len, d_model), the input that looks.
            key: (batch, key_len, key_dim), the input looked at; None = query (self-attention).
            value: (batch, key_len, value_dim), the input that is read; None = key.
            mask: boolean, True = may attend, broadcastable to (batch, heads, query_len, key_len); None = all visible.

        Returns:
            output: (batch, query_len, d_model); with ``return_weights`` the pair (output, weights), weights being
            (batch, heads, query_len, key_len).

        Raises:
            AttentionError: widths, lengths or a mask that do not fit.
        """
        if self.config.return_weights or (self.training and self.config.dropout > 0):
            steps = self.steps(query, key, value, mask=mask)
            return (steps.output, steps.weights) if self.config.return_weights else steps.output
        context = attention_context(*self._project(query, key, value), mask, self.config.effective_scale)
        return self._linear("out_proj", merge_heads(context))

    def steps(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        heads: Sequence[int] | None = None,
        generator: torch.Generator | None = None,
    ) -> AttentionSteps:
        """Every stage of the computation: arguments as for calling the layer.

        Args:
            heads: the heads to compute, counted from 0, in this order; None = all. Their numbers equal those of all
                heads up to the order of summation.
            generator: draws the dropout in training mode; None = torch's global one.

        Returns:
            AttentionSteps with the output (batch, query_len, d_model), or None in its place where heads are named.
        """
        query, key, value = self._project(query, key, value, heads)
        config = self.config
        mask, scale, dropout = checked_mask(mask, query, key), config.effective_scale, config.dropout
        scores, weights, dropped, context = attend(
            query, key, value, mask, scale, dropout=dropout if self.training else 0.0, generator=generator
        )
        output = self._linear("out_proj", merge_heads(context)) if heads is None else None
        return AttentionSteps(query, key, value, scores, mask, weights, dropped, context, output, scale)

    def projections(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Projections:
        """The inputs beside the weights and biases that act on them (no copies): arguments as for calling the layer."""
        query, key, value = self._inputs(query, key, value)
        return Projections(
            num_heads=self.config.num_heads,
            query_input=query,
            key_input=key,
            value_input=value,
            query_weight=self.query_weight,
            key_weight=self.key_weight,
            value_weight=self.value_weight,
            query_bias=self.query_bias,
            key_bias=self.key_bias,
            value_bias=self.value_bias,
            out_weight=self.out_weight,
            out_bias=self.out_bias,
            shared=self.config.projection == "shared",
        )

    def save(self, path: str | Path) -> None:
        """Writes the weights and the configuration to one safetensors file."""
        save_file(self.state_dict(), path, metadata={"config": json.dumps(asdict(self.config))})

    @classmethod
    def load(cls, path: str | Path) -> "MultiHeadAttention":
        """Reads a layer that ``save`` wrote.

        Raises:
            AttentionError: a file that is not there, is no safetensors file, or was not written by ``save``.
        """
        try:
            with safe_open(path, framework="pt") as file:
                config = AttentionConfig(**json.loads((file.metadata() or {})["config"]))
            state = load_file(path)
            layer = cls(config).to(state["out_proj.weight"].dtype)
            layer.load_state_dict(state)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise AttentionError(
                "{path} is not a layer that MultiHeadAttention.save wrote ({reason})", path=path, reason=str(error)
            ) from error
        return layer

    @classmethod
    def from_module(cls, module: nn.Module) -> "MultiHeadAttention":
        """This layer with a copy of another attention module's weights, scale, dropout and mode (eval or training).

        Args:
            module: an nn.MultiheadAttention; a module in the manner of BART (q_proj, k_proj, v_proj, out_proj); or in the
                manner of BERT (self.query, self.key, self.value and output.dense: the module that holds both).

        Raises:
            AttentionError: a module of another form, or one with features that this layer does not have.
        """
        fields, weights, biases = read_module(module)
        layer = cls(AttentionConfig(**fields)).to(weights[0].device, weights[0].dtype).train(module.training)
        with torch.no_grad():
            names = ("query", "key", "value", "out")
            for name, weight, bias in zip(names, weights, biases):
                getattr(layer, f"{name}_weight").copy_(weight)
                if bias is not None:
                    getattr(layer, f"{name}_bias").copy_(bias)
        return layer

    def _part(self, index: int) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the query (0), key (1) or value (2) projection."""
        if not self._fused:
            linear = (self.query_proj, self.key_proj, self.value_proj)[index]
            return linear.weight, linear.bias
        rows = self.qkv_proj.out_features // 3
        rows = slice(index * rows, (index + 1) * rows)
        return self.qkv_proj.weight[rows], None if self.qkv_proj.bias is None else self.qkv_proj.bias[rows]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        """self.name(x) for a linear module, without the cost of calling a module (a tenth of a small layer's time)."""
        parameters = self._modules[name]._parameters
        return F.linear(x, parameters["weight"], parameters["bias"])

    def _inputs(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        key = query if key is None else key
        value = key if value is None else value
        self._check_input("query", query, "d_model", self.config.d_model)
        if not (self._fused and query is key is value):
            self._check_input("key", key, "key_dim", self.config.key_dim)
            self._check_input("value", value, "value_dim", self.config.value_dim)
        return query, key, value

    def _check_input(self, name: str, x: Tensor, width_name: str, width: int) -> None:
        check_tensor(name, x)
        shape, dtype = x.shape, self._modules["out_proj"]._parameters["weight"].dtype
        if len(shape) != 3 or shape[2] != width:
            raise AttentionError(
                "{name} must be (batch, len, {width_name} = {width}), not the shape {shape}",
                name=name,
                width_name=width_name,
                width=width,
                shape=tuple(shape),
            )
        if x.dtype != dtype and not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
            raise AttentionError(
                "{name} is {theirs}, but the layer's weights are {ours}: they must have one dtype",
                name=name,
                theirs=x.dtype,
                ours=dtype,
            )

    def _project(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, heads: Sequence[int] | None = None
    ) -> Sequence[Tensor]:
        """The inputs projected and split: query (batch, heads, query_len, head_dim), key and value with key_len."""
        if heads is not None:
            parts = self._project_heads(self.projections(query, key, value), heads)
            check_shapes(*parts)
            return parts
        query, key, value = self._inputs(query, key, value)
        num_heads = self.config.num_heads
        once, shared = self._fused and query is key is value, self.config.projection == "shared"
        if once and shared:
            # Heads first: each slice of the input goes through the same small matrix.
            return self._linear("qkv_proj", split_heads(query, num_heads)).chunk(3, dim=-1)
        if once:
            # The heads of the queries, then those of the keys, then those of the values.
            return split_heads(self._linear("qkv_proj", query), 3 * num_heads).chunk(3, dim=1)
        parts = [
            F.linear(split_heads(x, num_heads), *self._part(i))
            if shared
            else split_heads(F.linear(x, *self._part(i)), num_heads)
            for i, x in enumerate((query, key, value))
        ]
        check_shapes(*parts)
        return parts

    def _project_heads(self, projections: Projections, heads: Sequence[int]) -> list[Tensor]:
        """As _project, for some heads alone."""
        if isinstance(heads, str) or not isinstance(heads, Iterable):
            raise AttentionError("heads must be a list of whole numbers, or None for all, not {heads!r}", heads=heads)
        heads = [inside("head", head, self.config.num_heads) for head in heads]
        if not heads:
            raise AttentionError("heads is empty: name at least one head, or None for all")
        parts = [projections.head(head) for head in heads]
        return [
            torch.stack(
                [
                    F.linear(*(getattr(part, f"{name}_{what}") for what in ("input", "weight", "bias")))
                    for part in parts
                ],
                dim=1,
            )
            for name in ("query", "key", "value")
        ]


def _positive(number: object) -> bool:
    # A whole number beyond every float is not finite as a float either.
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number <= float_info.max
