"""A target laid over its source through the cross-attention of chosen heads of a run.

Row t of a decoder reads token t of its input and predicts token t + 1. Some heads look for the token just **read**, others
for the one about to be **written**, so that the map of a head says where token n stands in the source either in row n or in
row n - 1. Which of the two a head does is chosen by its copy hits, and told (``CrossHead.looks_for``). Rows are then put in
the place of the token that they are about, so that heads of both sorts can be laid on each other.

The decoder's first token is written by no row, and one that it writes last is never read: the latter is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import AttentionError
from ..extract.tokens import Token
from ..extract.trace import Trace
from . import summaries

LOOKS_FOR = ("written", "read")
NEAR_BEST = 0.8
"""Heads align if their copy hits are at least this share of the best head's."""
LEAST_ABOVE_CHANCE = 0.2
"""... and at least this far above those of random columns."""


@dataclass(frozen=True)
class CrossHead:
    """A head of the cross-attention, and how well it finds the target's tokens in the source.

    Attributes:
        layer, head: from 0.
        looks_for: "written": its rows look for the token they predict; "read": for the token that they read.
        hits: copy hits (k = 1) of that sort, share of rows from 0 to 1; NaN where no target token occurs in the source.
        chance: hits of random columns.
    """

    layer: int
    head: int
    looks_for: str
    hits: float
    chance: float


@dataclass(frozen=True, eq=False)
class TargetReading:
    """A target's ordinary tokens against the source's, as chosen heads see them.

    Attributes:
        heads: the heads, one a map.
        weights: (heads, targets, sources), float32 or wider: a_tj on ordinary tokens, not divided again; rows may sum to
            less than 1.
        targets, sources: the tokens of the rows and columns.
        target_places, source_places: where these stand in the decoder's input and in the source.
        target_len, source_len: length of the whole sides, control tokens and padding included.
        target_text, source_text: what the tokens' spans count in.
    """

    heads: tuple[CrossHead, ...]
    weights: Tensor
    targets: tuple[Token, ...]
    sources: tuple[Token, ...]
    target_places: tuple[int, ...]
    source_places: tuple[int, ...]
    target_len: int
    source_len: int
    target_text: str
    source_text: str

    @property
    def mean(self) -> Tensor:
        """(targets, sources): the mean over the chosen heads; a map that no single head has, unless there is one."""
        return self.weights.mean(0)

    @property
    def special_mass(self) -> Tensor:
        """(heads,): mean share of a row that control tokens and padding got, from 0 to 1."""
        return (1 - self.weights.sum(-1)).clamp(min=0).mean(-1)

    def of_head(self, number: int) -> "TargetReading":
        """The same reading by one of its heads alone: numbers and findings per head."""
        return replace(self, heads=(self.heads[number],), weights=self.weights[number : number + 1])

    def over_source(self, values: Tensor) -> list[float]:
        """One value an ordinary source token -> one for every position of the source, NaN at control tokens and padding."""
        return _spread(values, self.source_places, self.source_len)

    def over_target(self, values: Tensor) -> list[float]:
        """One value an ordinary target token -> one for every position of the decoder's input, NaN elsewhere."""
        return _spread(values, self.target_places, self.target_len)


def cross_heads(run: Trace, *, text: int = 0) -> list[CrossHead]:
    """Every head of the cross-attention with its copy hits, the best first.

    Args:
        run: of an encoder-decoder model.
        text: which text of the batch.

    Raises:
        AttentionError: a run without cross-attention, or without an ordinary token on one side.
    """
    sides = _sides(run, text)
    found = []
    for layer in range(run.num_layers("cross")):
        hits = _hits(run.steps("cross", layer).weights[text], *sides)
        for head in range(run.num_heads("cross")):
            looks_for = max(LOOKS_FOR, key=lambda name: torch.nan_to_num(hits[name][0][head], nan=-1.0))
            values, chance = hits[looks_for]
            found.append(CrossHead(layer, head, looks_for, float(values[head]), chance))
    return sorted(found, key=lambda head: -head.hits if head.hits == head.hits else 1.0)


def aligned_heads(heads: Sequence[CrossHead]) -> list[CrossHead]:
    """Those of ``cross_heads`` that align: hits at least 0.8 of the best head's, and 0.2 above chance; may be none."""
    heads = [head for head in heads if head.hits >= head.chance + LEAST_ABOVE_CHANCE]
    best = max((head.hits for head in heads), default=0.0)
    return [head for head in heads if head.hits >= NEAR_BEST * best]


def read_target(
    run: Trace, *, text: int = 0, heads: Sequence[CrossHead | tuple[int, int]] | None = None
) -> TargetReading:
    """Lays a target over its source.

    Args:
        run: of an encoder-decoder model, with the target in question.
        text: which text of the batch.
        heads: (layer, head) pairs, or what ``cross_heads`` gave; None = the heads that align.

    Raises:
        AttentionError: no head aligns (name some), none is named, one that there is not, or nothing to read.
    """
    if heads is not None and not len(heads):
        raise AttentionError("a target is read through at least one head of the cross-attention: none is named")
    known = cross_heads(run, text=text)
    if heads is None:
        chosen = aligned_heads(known)
        if not chosen:
            raise AttentionError(
                "no head of the cross-attention finds the target's tokens in the source (best: {hits:.2f} of them, by chance "
                "{chance:.2f}): name the heads to read through",
                hits=known[0].hits,
                chance=known[0].chance,
            )
    else:
        by_place = {(head.layer, head.head): head for head in known}
        pairs = [(head.layer, head.head) if isinstance(head, CrossHead) else tuple(head) for head in heads]
        missing = [pair for pair in pairs if pair not in by_place]
        if missing:
            raise AttentionError("there is no cross-attention head {head} (layer, head)", head=missing[0])
        chosen = [by_place[pair] for pair in pairs]
    targets, sources = _ordinary(run, "query", text), _ordinary(run, "key", text)
    maps = []
    for head in chosen:
        weights = run.steps("cross", head.layer, [head.head]).weights[text, 0]
        maps.append(_of_tokens(weights, head.looks_for)[list(targets)][:, list(sources)])
    query, key = run.side("cross", "query"), run.side("cross", "key")
    return TargetReading(
        heads=tuple(chosen),
        weights=torch.stack(maps),
        targets=tuple(query.tokens[text][place] for place in targets),
        sources=tuple(key.tokens[text][place] for place in sources),
        target_places=targets,
        source_places=sources,
        target_len=query.ids.shape[1],
        source_len=key.ids.shape[1],
        target_text=query.texts[text],
        source_text=key.texts[text],
    )


def _ordinary(run: Trace, axis: str, text: int) -> tuple[int, ...]:
    """Places of tokens that are neither control tokens nor padding; of a target, those that some row writes."""
    side = run.side("cross", axis)
    real, first = side.real[text].tolist(), 1 if axis == "query" else 0
    pieces = run.query_pieces("cross", text) if axis == "query" else run.key_pieces("cross", text)
    places = tuple(n for n, piece in enumerate(pieces) if n >= first and real[n] and not piece.special)
    if not places:
        raise AttentionError(
            "the {side} has no token but control tokens: there is nothing to read",
            side="target" if axis == "query" else "source",
        )
    return places


def _of_tokens(weights: Tensor, looks_for: str) -> Tensor:
    """Rows put where the token that they are about stands: (..., target_len, source_len), row 0 empty for "written"."""
    if looks_for == "read":
        return weights
    return torch.cat([torch.zeros_like(weights[..., :1, :]), weights[..., :-1, :]], dim=-2)


def _sides(run: Trace, text: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids of the decoder's input; of the source, -1 where no ordinary token stands; and which target tokens count."""
    sources = list(_ordinary(run, "key", text))
    keys = torch.full_like(run.source_ids[text], -1)
    keys[sources] = run.source_ids[text][sources]
    rows = torch.zeros_like(run.target_ids[text], dtype=torch.bool)
    rows[list(_ordinary(run, "query", text))] = True
    return run.target_ids[text], keys, rows


def _hits(weights: Tensor, ids: Tensor, keys: Tensor, rows: Tensor) -> dict[str, tuple[Tensor, float]]:
    """For both sorts: copy hits of each head, (heads,), and those of chance."""
    chance = summaries.copy_chance(ids, keys, rows=rows)
    return {name: (summaries.copy_hits(_of_tokens(weights, name), ids, keys, rows=rows), chance) for name in LOOKS_FOR}


def _spread(values: Tensor, places: Sequence[int], length: int) -> list[float]:
    if len(values) != len(places):
        raise AttentionError("{values} values for {places} tokens", values=len(values), places=len(places))
    result = [float("nan")] * length
    for place, value in zip(places, values.tolist()):
        result[place] = value
    return result
