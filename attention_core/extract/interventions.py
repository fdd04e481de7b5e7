"""Edits: what is changed inside the attentions of a model while it runs, in this thread alone.

    edits = [SwitchOff(kind="cross", layer=2, heads=(5,)), Forbid(kind="encoder", keys=(4,))]
    before, after = trace(model, text), trace(model, text, edits=edits)

An edit is a value: it says where it applies (a kind; a layer or all of them; some heads or all) and what becomes of their
attention. It is a pure function of what the attention is given, without a memory of rows or steps, so that it means the same
in one pass, in a generation with a cache, and in a beam search that reorders its rows. The model is never altered.

Edits of one head are applied in the order of the computation, and in the given order at each stage:

    query, key  ->  scale  ->  mask  ->  weights  ->  context

Attentions that no edit names run as the library runs them. The edited ones run step by step, which alone moves a number by
about 1e-6 (``FromScratch`` does that and nothing else). Where an edit hides all keys from a query, its weights and its context are
0; a trace says so in its notices.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache

from ..errors import AttentionError
from ..layer import masks
from ..layer.attention import AttentionSteps, attention_scores, attention_weights
from .models import LoadedModel
from .registry import KINDS, Call
from .session import Session

SELF_ATTENTION = ("encoder", "decoder")
LARGEST = 2**31 - 1
"""The largest position, layer, head, width or seed that an edit may name."""
LOWEST_FACTOR, HIGHEST_FACTOR = 1e-6, 1e6
"""Between these lie temperatures and scales, so that float32 scores stay finite."""
_LOWEST_SCALE, _HIGHEST_SCALE = 1e-15, 1e15
_LONGEST_SAID = 60


@dataclass(frozen=True)
class Where:
    """The heads that an edit is applied to, as they stand in the tensors it is given.

    Attributes:
        heads: their numbers in the layer.
        offset: how many positions come before the first query (what a cache holds already).
        d_model: the width of the model.
        means: (heads, head_dim), their mean contexts; None where none are known.
    """

    heads: tuple[int, ...]
    offset: int
    d_model: int
    means: Tensor | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Edit:
    """One change, of the attentions it names. The base changes nothing.

    Attributes:
        kind: "encoder", "decoder" or "cross".
        layer: from 0; None = every layer of the kind.
        heads: numbers of heads, from 0; None = every head.

    Layers, heads, positions, widths and seeds are whole numbers from 0 to 2147483647.

    Raises:
        AttentionError: a kind for which this edit means nothing, or numbers that cannot be.
    """

    kind: str
    layer: int | None = None
    heads: tuple[int, ...] | None = None

    kinds: ClassVar[tuple[str, ...]] = KINDS

    def __post_init__(self) -> None:
        if self.kind not in self.kinds:
            raise AttentionError(
                "{edit} is defined for {kinds} attention, not for {kind}",
                edit=type(self).__name__,
                kinds=" and ".join(self.kinds),
                kind=_said(self.kind),
            )
        if self.layer is not None:
            _check_positions("layer", (self.layer,))
        if self.heads is not None:
            object.__setattr__(self, "heads", _positions("heads", self.heads))

    def __repr__(self) -> str:
        """The Python that makes this edit, without what is as by default."""
        said = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(said)})"

    def names(self, kind: str, layer: int) -> bool:
        """Whether the edit is about (some heads of) this layer."""
        return self.kind == kind and self.layer in (None, layer)

    def query_key(self, query: Tensor, key: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        """Query and key, (batch, heads, len, head_dim) each."""
        return query, key

    def scale(self, scale: float, head_dim: int, where: Where) -> float:
        """What the dot products are multiplied with."""
        return scale

    def mask(self, mask: Tensor, where: Where) -> Tensor:
        """The mask (batch, heads, query_len, key_len), True = may attend."""
        return mask

    def weights(self, weights: Tensor, mask: Tensor, where: Where) -> Tensor:
        """The weights, (batch, heads, query_len, key_len)."""
        return weights

    def context(self, context: Tensor, where: Where) -> Tensor:
        """The context, (batch, heads, query_len, head_dim)."""
        return context


@dataclass(frozen=True, kw_only=True, repr=False)
class SwitchOff(Edit):
    """The head's context is replaced, at every query: by 0, or by the mean of the contexts it usually has.

    With zeros the head adds nothing to the layer's output, whose bias stays (a whole kind of a layer switched off is that bias
    alone). Zeros are far from what later layers are used to; the mean takes away what the head says about this text, and keeps
    what it always says (Michel et al. 2019 zero heads; for the mean see Wang et al. 2022, "Interpretability in the Wild").

    Attributes:
        by: "zero" or "mean" (see ``mean_contexts``).
    """

    by: str = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_choice("by", self.by, ("zero", "mean"))

    def context(self, context, where):
        if self.by == "zero":
            return torch.zeros_like(context)
        if where.means is None:
            raise AttentionError(
                "switching off a head by its mean needs the mean contexts of its layer: give means=mean_contexts(model, texts)"
            )
        return where.means.to(context)[:, None].expand_as(context)


@dataclass(frozen=True, kw_only=True, repr=False)
class Uniform(Edit):
    """Every query spreads its weight evenly over the keys that it may see: w_ij = 1 / n_i. A query that sees one key keeps it."""

    def weights(self, weights, mask, where):
        return mask.to(weights.dtype) / mask.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True, kw_only=True, repr=False)
class Previous(Edit):
    """All weight on the token before the query's own; on the own token where there is none before it that it may see.

    Row 0 therefore looks at itself. Not for cross-attention, whose keys are another text.
    """

    kinds: ClassVar[tuple[str, ...]] = SELF_ATTENTION

    def weights(self, weights, mask, where):
        before, own = (_at_distance(weights, where.offset, distance) & mask for distance in (-1, 0))
        return torch.where(before.any(-1, keepdim=True), before, own).to(weights.dtype)


@dataclass(frozen=True, kw_only=True, repr=False)
class Identity(Edit):
    """All weight on the query's own token. Not for cross-attention, whose keys are another text."""

    kinds: ClassVar[tuple[str, ...]] = SELF_ATTENTION

    def weights(self, weights, mask, where):
        return (_at_distance(weights, where.offset, 0) & mask).to(weights.dtype)


@dataclass(frozen=True, kw_only=True, repr=False)
class Temperature(Edit):
    """The scores are divided by a temperature before the softmax: above 1 flattens the weights, below 1 sharpens them.

    A query that sees one key keeps it whatever the temperature.

    Attributes:
        value: from 1e-6 to 1e6.
    """

    value: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_factor("the temperature", self.value)

    def scale(self, scale, head_dim, where):
        return scale / self.value


@dataclass(frozen=True, kw_only=True, repr=False)
class Scale(Edit):
    """The dot products are multiplied with another number, whatever the model's own rule is.

    Attributes:
        rule: "d_model" = 1 / sqrt(d_model), "head_dim" = 1 / sqrt(head_dim) (which most models have: then nothing changes),
            "none" = 1, or a number from 1e-6 to 1e6.
    """

    rule: str | float = "d_model"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.rule, str):
            _check_choice("the rule of the scale", self.rule, ("d_model", "head_dim", "none"))
        else:
            _check_factor("the scale", self.rule)

    def scale(self, scale, head_dim, where):
        if isinstance(self.rule, str):
            return {"d_model": 1 / sqrt(where.d_model), "head_dim": 1 / sqrt(head_dim), "none": 1.0}[self.rule]
        return float(self.rule)


@dataclass(frozen=True, kw_only=True, repr=False)
class _Keys(Edit):
    """Some keys, for some queries.

    Attributes:
        keys: positions in the text that is looked at, from 0 (control tokens count too).
        after: every position after this one as well; None = no more.
        queries: positions in the text that looks; None = every query.
    """

    keys: tuple[int, ...] = ()
    after: int | None = None
    queries: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "keys", _positions("keys", self.keys, some=self.after is None))
        if self.after is not None:
            _check_positions("after", (self.after,))
        if self.queries is not None:
            object.__setattr__(self, "queries", _positions("queries", self.queries))

    def _named(self, mask: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        """Whether each key and each query is named: (key_len,) and (query_len, 1)."""
        query_len, key_len = mask.shape[-2:]
        places = torch.arange(key_len, device=mask.device)
        keys = torch.isin(places, torch.tensor(self.keys, dtype=torch.long, device=mask.device))
        if self.after is not None:
            keys = keys | (places > self.after)
        if self.queries is None:
            return keys, torch.ones(query_len, 1, dtype=torch.bool, device=mask.device)
        rows = torch.arange(query_len, device=mask.device) + where.offset
        return keys, torch.isin(rows, torch.tensor(self.queries, device=mask.device))[:, None]


@dataclass(frozen=True, kw_only=True, repr=False)
class Forbid(_Keys):
    """The named keys are hidden from the named queries; the other keys share the weight by the same softmax.

    A query that saw nothing else (row 0 of a decoder sees position 0 alone) sees nothing then.
    """

    def mask(self, mask, where):
        keys, queries = self._named(mask, where)
        return mask & ~(keys & queries)


@dataclass(frozen=True, kw_only=True, repr=False)
class Force(_Keys):
    """The named queries may look at the named keys only, of those that they could see.

    A decoder's query that comes before all of them sees nothing then.
    """

    def mask(self, mask, where):
        keys, queries = self._named(mask, where)
        return mask & (keys | ~queries)


@dataclass(frozen=True, kw_only=True, repr=False)
class Window(Edit):
    """A query sees the keys at most so many tokens before and after its own, of those that it could see. Not for
    cross-attention, where positions of two texts would be compared.

    Attributes:
        width: in tokens, from 0 (the own token alone); row 0 sees itself and what comes after, in a decoder itself alone.
    """

    width: int = 8

    kinds: ClassVar[tuple[str, ...]] = SELF_ATTENTION

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positions("width", (self.width,))

    def mask(self, mask, where):
        query_len, key_len = mask.shape[-2:]
        seen = masks.window(query_len + where.offset, key_len, width=self.width)[where.offset :]
        return mask & seen.to(mask.device)


@dataclass(frozen=True, kw_only=True, repr=False)
class FromScratch(Edit):
    """The head is computed by this project's step-by-step attention, and nothing is changed: the output stays the same, to
    rounding (about 1e-6)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Untrained(Edit):
    """Query and key are each turned by a random orthogonal matrix, R_q q and R_k k, another for each head: the lengths stay, and
    what training made q and k agree on is lost, as in a new head.

    Attributes:
        seed: of the matrices (drawn by QR decomposition of normal numbers); the same seed turns a head in the same way.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positions("seed", (self.seed,))

    def query_key(self, query, key, where):
        return tuple(
            x @ torch.stack([_turn(x.shape[-1], (self.seed, head, side)) for head in where.heads]).to(x)
            for side, x in enumerate((query, key))
        )


EDITS: dict[str, type[Edit]] = {
    edit.__name__: edit
    for edit in (SwitchOff, Uniform, Previous, Identity, Temperature, Scale, Forbid, Force, Window, FromScratch, Untrained)
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Means:
    """Mean contexts of a model's heads, to switch them off by.

    Attributes:
        vectors: (kind, layer) -> (heads, head_dim), float32.
        positions: how many query positions of each kind they are means of.
    """

    vectors: Mapping[tuple[str, int], Tensor]
    positions: Mapping[str, int]


@dataclass(frozen=True, eq=False, kw_only=True)
class EditedCall(Call):
    """A call of the attention function whose heads are edited."""

    edits: tuple[Edit, ...]
    offset: int
    num_heads: int
    d_model: int
    means: Tensor | None

    def fused(self) -> Tensor:
        return self.steps().context.transpose(1, 2).contiguous()

    def steps(self, heads: list[int] | None = None) -> AttentionSteps:
        query, key, value, mask, bias = self.parts(heads)
        numbers = list(range(self.num_heads)) if heads is None else heads
        edits = [(edit, *self._chosen(edit, numbers)) for edit in self.edits]
        edits = [each for each in edits if each[1]]
        unedited = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        query, key = query.clone(), key.clone()
        scales = [1 / sqrt(query.shape[-1]) if self.scaling is None else float(self.scaling)] * len(numbers)
        mask = unedited.clone()
        for edit, places, where in edits:
            query[:, places], key[:, places] = edit.query_key(query[:, places], key[:, places], where)
            for place in places:
                scales[place] = edit.scale(scales[place], query.shape[-1], where)
            mask[:, places] = edit.mask(mask[:, places], where)
        for number, scale in zip(numbers, scales):
            # One edit cannot; many temperatures of one head can.
            if not _LOWEST_SCALE <= scale <= _HIGHEST_SCALE:
                raise AttentionError(
                    "the edits of head {head} multiply its dot products with {scale:g}: only {low:g} to {high:g} is "
                    "possible, lest scores become infinite",
                    head=number,
                    scale=scale,
                    low=_LOWEST_SCALE,
                    high=_HIGHEST_SCALE,
                )
        scale = scales[0]
        if len(set(scales)) > 1:
            scores = attention_scores(query, key, 1.0)
            scale = torch.tensor(scales, dtype=scores.dtype, device=scores.device)[None, :, None, None]
            scores = scores * scale
        else:
            scores = attention_scores(query, key, scale)
        scores = scores if bias is None else scores + bias
        weights = attention_weights(scores, mask)
        for edit, places, where in edits:
            weights[:, places] = edit.weights(weights[:, places], mask[:, places], where)
        context = (weights @ value.to(weights.dtype)).to(value.dtype)
        for edit, places, where in edits:
            context[:, places] = edit.context(context[:, places], where)
        return AttentionSteps(query, key, value, scores, mask, weights, None, context, None, scale)

    @property
    def edits_masks(self) -> bool:
        return any(type(edit).mask is not Edit.mask for edit in self.edits)

    def emptied(self) -> Tensor:
        """(batch, heads, query_len): whether edits hide from a query all the keys that it saw."""
        before = self.parts()[3].any(-1)
        return before & ~self.steps().mask.any(-1)

    def _chosen(self, edit: Edit, numbers: list[int]) -> tuple[list[int], Where]:
        """Where the heads that an edit names stand among these numbers."""
        named = range(self.num_heads) if edit.heads is None else edit.heads
        places = [place for place, number in enumerate(numbers) if number in named]
        heads = tuple(numbers[place] for place in places)
        means = None if self.means is None else self.means[list(heads)]
        return places, Where(heads, self.offset, self.d_model, means)


class Editing(Session):
    """Applies edits while it is open, in a plain run and in a generation.

    Args:
        model: the model that runs.
        edits: in any number; none leaves the model as it is, bit for bit.
        means: what ``SwitchOff(by="mean")`` puts in place of a context.

    Raises:
        AttentionError: an edit of a kind, layer or head that the model does not have.
    """

    def __init__(self, model: LoadedModel, edits: Sequence[Edit], means: Means | None = None) -> None:
        super().__init__(model.modules)
        self.edits, self.means = check_edits(model, edits), means
        self.writes_masks = bool(self.edits)
        self._d_model = getattr(model.module.config, "hidden_size", None)
        self._sites = {site.name: site for site in model.sites}
        self._offset = 0

    def begin(self, stack: nn.Module, args: tuple, kwargs: dict) -> None:
        # Read here, before the first layer adds to the cache; told by its type, since its name changes between versions.
        cache = next((x for x in (*args, *kwargs.values()) if isinstance(x, Cache)), None)
        self._offset = 0 if cache is None else int(cache.get_seq_length())

    def attend(self, module: nn.Module, call: Call) -> Tensor:
        return self.edited(module._attention_name, call, self._offset).fused()

    def edited(self, name: str, call: Call, offset: int = 0) -> Call:
        """The call of the attention of that name with its edits; as it is where it has none.

        offset: how many positions come before the first query; an encoder has none whatever is said.
        """
        site = self._sites[name]
        edits = tuple(edit for edit in self.edits if edit.names(site.kind, site.layer))
        if not edits:
            return call
        means = None if self.means is None else self.means.vectors.get((site.kind, site.layer))
        return EditedCall(
            **{f.name: getattr(call, f.name) for f in fields(Call)},
            edits=edits,
            offset=0 if site.kind == "encoder" else offset,
            num_heads=site.num_heads,
            d_model=self._d_model or site.num_heads * call.query.shape[-1],
            means=means,
        )


def check_edits(model: LoadedModel, edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """The edits, if the model has all that they name.

    Raises:
        AttentionError: something that is no edit, or an edit of a kind, layer or head that the model does not have.
    """
    edits = tuple(edits)
    for edit in edits:
        if not isinstance(edit, Edit):
            raise AttentionError("edits must be of {known}, not {found!r}", known=", ".join(EDITS), found=edit)
        if edit.kind not in model.kinds:
            raise AttentionError(
                "{edit} names {kind} attention, and this model has {kinds}",
                edit=repr(edit),
                kind=edit.kind,
                kinds=", ".join(model.kinds),
            )
        layers, heads = model.num_layers(edit.kind), model.num_heads(edit.kind)
        if edit.layer is not None and edit.layer >= layers:
            raise AttentionError("{edit} names a layer beyond the last one, {last}", edit=repr(edit), last=layers - 1)
        if edit.heads is not None and max(edit.heads) >= heads:
            raise AttentionError("{edit} names a head beyond the last one, {last}", edit=repr(edit), last=heads - 1)
    return edits


def edits_to_text(edits: Iterable[Edit]) -> str:
    """The edits as one line of Python, which ``edits_from_text`` reads back: for a link, a file, a snippet."""
    return "[" + ", ".join(map(repr, edits)) + "]"


def edits_from_text(text: str) -> tuple[Edit, ...]:
    """The edits that a line of Python names. Nothing is executed: the line may hold names of edits and constants only.

    Raises:
        AttentionError: any other line, or an edit that cannot be.
    """
    try:
        return tuple(_read(call) for call in ast.parse(text, mode="eval").body.elts)
    except AttentionError:
        raise
    except (
        AttributeError,
        KeyError,
        MemoryError,
        OverflowError,
        RecursionError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        raise AttentionError(
            "edits are written as a list such as [{example}], not as {text!r}",
            example=repr(SwitchOff(kind="cross", layer=0, heads=(1,))),
            text=text if len(text) <= 80 else f"{text[:80]}…",
        ) from error


def _read(call: ast.Call) -> Edit:
    if call.args:
        raise ValueError("the arguments of an edit are named")
    return EDITS[call.func.id](**{word.arg: ast.literal_eval(word.value) for word in call.keywords})


def _at_distance(weights: Tensor, offset: int, distance: int) -> Tensor:
    """(query_len, key_len): True where key = query + offset + distance."""
    query_len, key_len = weights.shape[-2:]
    rows, columns = (torch.arange(length, device=weights.device) for length in (query_len, key_len))
    return columns == rows[:, None] + offset + distance


def _turn(size: int, seeds: tuple[int, ...]) -> Tensor:
    """A random orthogonal matrix, uniformly distributed (Mezzadri 2007)."""
    seed = 0
    for part in seeds:
        seed = (seed * 1_000_003 + part) % (1 << 62)
    drawn = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    q, r = torch.linalg.qr(drawn)
    return q * r.diagonal().sign()


def _positions(name: str, given: object, some: bool = True) -> tuple[int, ...]:
    """Whole numbers from 0, each once, in order. some: whether at least one is needed."""
    try:
        found = tuple(sorted(set(given)))
    except TypeError as error:
        raise AttentionError(
            "{name} must be a list of whole numbers, not {given}", name=name, given=_said(given)
        ) from error
    if some and not found:
        raise AttentionError("{name} must name at least one number", name=name)
    _check_positions(name, found)
    return found


def _check_positions(name: str, found: tuple) -> None:
    for number in found:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise AttentionError("{name} must be whole numbers from 0, not {given}", name=name, given=_said(number))
        if number > LARGEST:
            raise AttentionError(
                "{name} must be whole numbers up to {largest}, not {given}",
                name=name,
                largest=LARGEST,
                given=_said(number),
            )


def _check_choice(name: str, given: object, known: tuple[str, ...]) -> None:
    if given not in known:
        raise AttentionError(
            "{name} must be one of {known}, not {given}", name=name, known=", ".join(known), given=_said(given)
        )


def _check_factor(name: str, given: object) -> None:
    # Compared as it is: a whole number may be too large to be made a float.
    number = not isinstance(given, bool) and isinstance(given, int | float)
    if not (number and LOWEST_FACTOR <= given <= HIGHEST_FACTOR):
        raise AttentionError(
            "{name} must be a number from {low:g} to {high:g}, not {given}",
            name=name,
            low=LOWEST_FACTOR,
            high=HIGHEST_FACTOR,
            given=_said(given),
        )


def _said(given: object) -> str:
    """A value as Python writes it, cut to what a sentence can hold."""
    try:
        said = repr(given)
    except ValueError:  # Python writes whole numbers of up to 4300 digits
        return "a number of thousands of digits"
    return said if len(said) <= _LONGEST_SAID else f"{said[:_LONGEST_SAID]}…"
