"""How our attention gets into a model: the library's own registry of attention functions, and its registry of masks.

A model is loaded with our name and never switched. Outside a session its attention modules run the library's fused
function, bit for bit; inside one, the session says what they do.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..errors import AttentionError
from ..layer import masks
from ..layer.attention import AttentionSteps, attention_steps
from .session import before_attention, before_stack, masks_are_written, session_of

NAME = "attention_core"
OUTPUT = "output embedding"
KINDS = ("encoder", "decoder", "cross")
_CROSS_NAMES = ("encoder_attn", "crossattention", "EncDec")
# Keywords that reach every attention function and say nothing about what it computes.
_BYSTANDERS = {
    "cache", "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "max_length_k", "max_length_q", "num_items_in_batch",
    "output_attentions", "output_hidden_states", "past_key_values", "position_ids", "return_dict", "use_cache",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the attention function, as the library makes it.

    query: (batch, heads, query_len, head_dim); key, value: (batch, key_heads, key_len, head_dim);
    attention_mask: what the library made of the mask; options: every other keyword; is_cut: whether query, key and value
    hold only the heads that ``steps`` will be asked for (mask and options hold all).
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    attention_mask: Tensor | None
    dropout: float
    scaling: float | None
    is_causal: bool | None
    options: dict
    is_cut: bool = False

    def fused(self) -> Tensor:
        """The library's own fused attention: (batch, query_len, heads, head_dim)."""
        context, _ = sdpa_attention_forward(
            self.module,
            self.query,
            self.key,
            self.value,
            self.attention_mask,
            dropout=self.dropout,
            scaling=self.scaling,
            is_causal=self.is_causal,
            **self.options,
        )
        return context

    def steps(self, heads: list[int] | None = None) -> AttentionSteps:
        """Every stage of this attention, for the named heads only (None = all)."""
        query, key, value, mask, bias = self.parts(heads)
        return attention_steps(query, key, value, mask, self.scaling, bias=bias)

    def parts(self, heads: list[int] | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """Query, key, value, mask and bias of the named heads (None = all): all that ``steps`` computes with."""
        self._refuse_unknown()
        query, key, value = self.query, self.key, self.value
        groups = query.shape[1] // key.shape[1]
        if groups > 1:  # several heads share one key and value
            key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        mask, bias = self.mask(), self.options.get("position_bias")
        if not self.is_cut:
            query, key, value = (_chosen(x, heads) for x in (query, key, value))
        return query, key, value, _chosen(mask, heads), _chosen(bias, heads)

    def of_text(self, text: int) -> "Call":
        """The same call for one text of the batch."""

        def row(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.shape[0] == 1 else x[text : text + 1]

        options = {name: row(x) if name == "position_bias" else x for name, x in self.options.items()}
        query, key, value, mask = (row(x) for x in (self.query, self.key, self.value, self.attention_mask))
        return replace(self, query=query, key=key, value=value, attention_mask=mask, options=options)

    def mask(self) -> Tensor:
        """(batch or 1, 1 or heads, query_len, key_len), boolean, True = may attend.

        Where the library made no mask, its fused attention goes by the same rule: causal from the upper left if the module
        says so, else everything is visible.
        """
        if self.attention_mask is not None:
            masks.check_boolean(self.attention_mask)
            return self.attention_mask
        causal = self.is_causal if self.is_causal is not None else getattr(self.module, "is_causal", True)
        batch, _, query_len, _ = self.query.shape
        made = masks.causal if causal and query_len > 1 else masks.full
        mask = made(query_len, self.key.shape[2]).to(self.query.device)
        return mask.expand(batch, 1, *mask.shape)

    def _refuse_unknown(self) -> None:
        known = _BYSTANDERS | {"position_bias"} | ({"sliding_window"} if self.attention_mask is not None else set())
        unknown = sorted(name for name, value in self.options.items() if value is not None and name not in known)
        if unknown:
            raise AttentionError(
                "{module} computes its attention with {names}, which is not supported here: the numbers would differ from "
                "what the model computes",
                module=type(self.module).__name__,
                names=", ".join(unknown),
            )


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options,
) -> tuple[Tensor, None]:
    """What a model runs: the library's fused attention, or what the open session makes of it."""
    call = Call(module, query, key, value, attention_mask, dropout, scaling, is_causal, options)
    session = session_of(module)
    return (call.fused() if session is None else session.attend(module, call)), None


def _mask(**arguments) -> Tensor | None:
    """The library's mask; written out for a session that asks for it, else None where is_causal or nothing says the same."""
    if masks_are_written():
        arguments |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(**arguments)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)


@dataclass(frozen=True)
class Site:
    """One attention module of a model.

    Attributes:
        name: where it is, as in ``named_modules``.
        kind: "encoder", "decoder" or "cross".
        layer: counted from 0.
        num_heads: of its queries.
    """

    name: str
    kind: str
    layer: int
    num_heads: int


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that call the registry, by name: those whose forward reads it."""
    return {
        name: module
        for name, module in model.named_modules()
        if "ALL_ATTENTION_FUNCTIONS" in getattr(_code(module), "co_names", ())
    }


def prepare(model: nn.Module) -> dict[str, nn.Module]:
    """Names and hooks the attention modules of a model, once for all (a second call changes nothing).

    Raises:
        AttentionError: a model in which no module calls the registry: nothing could be seen in it.
    """
    found = attention_modules(model)
    if not found:
        raise AttentionError(
            "{model} cannot be looked into: none of its modules computes attention through the library's registry "
            "(BART, mBART, BERT, RoBERTa, T5 and many others do)",
            model=type(model).__name__,
        )
    for name, module in found.items():
        # The name is written on the module, not kept in a table of ids, so that a copy of the model has it too.
        module._attention_name = name
        if before_attention not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(before_attention, with_kwargs=True)
    return found


def with_output(model: nn.Module, modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The attention modules and, under OUTPUT, the output embedding, so that its input can be recorded too."""
    head = model.get_output_embeddings()
    if head is None:
        return modules
    head._attention_name = OUTPUT
    if before_attention not in head._forward_pre_hooks.values():
        head.register_forward_pre_hook(before_attention, with_kwargs=True)
    return modules | {OUTPUT: head}


def stacks(model: nn.Module, found: tuple["Site", ...]) -> dict[str, nn.Module]:
    """The stacks of decoder layers that hold these sites, by name, each with a hook that tells of every step it begins.

    A stack is the module around the list of layers ("model.decoder" of model.decoder.layers.0.self_attn).
    """
    around = {}
    for site in found:
        if site.kind == "encoder":
            continue
        parts = site.name.split(".")
        first_number = next((place for place, part in enumerate(parts) if part.isdigit()), 1)
        around[".".join(parts[: first_number - 1])] = None
    result = {f"stack {name}": model.get_submodule(name) for name in around}
    for name, stack in result.items():
        stack._attention_name = name
        if before_stack not in stack._forward_pre_hooks.values():
            stack.register_forward_pre_hook(before_stack, with_kwargs=True)
    return result


def sites(modules: Mapping[str, nn.Module]) -> tuple[Site, ...]:
    """Kind, layer and number of heads of each attention module, in the model's order.

    Neither ``is_decoder`` (True for BART's cross-attention too) nor ``layer_idx`` (None in many encoders) is relied on.
    """
    found = []
    for name, module in modules.items():
        leaf = name.rsplit("layers.", 1)[-1].rsplit("layer.", 1)[-1].rsplit("block.", 1)[-1]
        if any(part in leaf for part in _CROSS_NAMES):
            kind = "cross"
        else:
            kind = "decoder" if getattr(module, "is_causal", False) else "encoder"
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        found.append(Site(name, kind, numbers[0] if numbers else 0, _num_heads(module)))
    taken = {(site.kind, site.layer) for site in found}
    if len(taken) < len(found):
        raise AttentionError(
            "this model has several attentions of one kind in one layer, which cannot be told apart here: {names}",
            names=", ".join(site.name for site in found[:4]),
        )
    return tuple(found)


def of_heads(steps: AttentionSteps, heads: list[int] | None) -> AttentionSteps:
    """The named heads of steps that were computed for all heads, as copies; None = all, as they are."""
    if heads is None:
        return steps
    index = torch.tensor(heads, device=steps.scores.device)
    names = ("query", "key", "value", "scores", "weights", "context")
    return replace(steps, mask=_chosen(steps.mask, heads), **{name: getattr(steps, name)[:, index] for name in names})


def _num_heads(module: nn.Module) -> int:
    for owner in (module, getattr(module, "config", None)):
        for name in ("num_heads", "n_heads", "num_attention_heads"):
            number = getattr(owner, name, None)
            if isinstance(number, int):
                return number
    raise AttentionError("{module} does not say how many heads it has", module=type(module).__name__)


def _code(module: nn.Module):
    return getattr(inspect.unwrap(type(module).forward), "__code__", None)


def _chosen(x: Tensor | None, heads: list[int] | None) -> Tensor | None:
    """x of some heads only; what is shared by all heads (an axis of 1) stays as it is."""
    if x is None or heads is None or x.dim() < 4 or x.shape[1] == 1:
        return x
    if heads == list(range(heads[0], heads[-1] + 1)):
        return x[:, heads[0] : heads[-1] + 1]  # a view
    return x[:, torch.tensor(heads, device=x.device)]
