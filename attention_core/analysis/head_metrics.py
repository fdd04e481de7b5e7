"""What a head does, in numbers: one function a number, one row of ``COLUMNS`` a column of every table, atlas and csv.

Every function takes the maps of one layer over a batch and gives one number a head and text, (batch, heads), NaN where a text
says nothing about it. A row of a map is counted if it is a real token's and sees at least two keys; for a pattern, also if the
pattern has a visible key for it (the first token has no previous one). Padding is never counted. 0 ln 0 = 0; nothing is
smoothed. Weights are no explanation (Jain and Wallace 2019): what a head is worth is told by switching it off.

A new number is one function here and one row of COLUMNS.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .head_maps import COLUMNS as _PLACES
from .head_maps import HeadMaps

SELF = ("encoder", "decoder")
ALL = ("encoder", "decoder", "cross")


def normalised_entropy(maps: HeadMaps) -> Tensor:
    """Mean over rows of H_i / ln n_i, n_i being the visible keys: 0 = one key, 1 = evenly over all. Clark et al. 2019, 3."""
    return _mean(maps.entropy / maps.seen.clamp(min=2).to(maps.entropy.dtype).log(), maps.choosing)


def effective_tokens(maps: HeadMaps) -> Tensor:
    """Mean over rows of exp(H_i): over how many keys the weight is spread, from 1 to the number of keys."""
    return _mean(maps.entropy.exp(), maps.choosing)


def confidence(maps: HeadMaps) -> Tensor:
    """Mean over rows of the largest weight, max_j w_ij. Voita et al. 2019, section 3.3 (end token included here)."""
    return _mean(maps.largest[0], maps.choosing)


def one_column(maps: HeadMaps) -> Tensor:
    """Share of rows whose largest weight lies on the key that most rows have theirs on: 1 = all rows look at one key."""
    counted = maps.choosing.expand_as(maps.largest[1])
    votes = torch.zeros(maps.weights[:, :, 0].shape, device=counted.device)
    votes = votes.scatter_add_(-1, maps.largest[1], counted.float())
    return _over(votes.amax(-1), counted.sum(-1))


def distance_over_uniform(maps: HeadMaps) -> Tensor:
    """Mean distance of what is looked at, D = sum_ij w_ij |i - j| / sum_ij w_ij, over what uniform weights would have.

    The uniform value is taken over the kind's own mask (full or causal, real tokens), never an edited one; rows with one key are
    left out of both. Vig and Belinkov 2019, section 4.2.
    """
    rows = (maps.layout.own.sum(-1) >= 2)[:, None]
    found = _ratio(maps.row_sums[..., 0], maps.wide.sum(-1), rows)
    return found / maps.layout.uniform_distance[:, None]


def reach(maps: HeadMaps) -> Tensor:
    """``distance_over_uniform`` without resting places (first key, control tokens), for texts of at least 45 keys.

    A head that rests on the first token looks far away and reads nothing there: the rest of its weight tells how far it reads.
    NaN where all weight is on resting places.
    """
    rows = (maps.layout.content_own.sum(-1) >= 2)[:, None]
    found = _ratio(maps.row_sums[..., 1], maps.column_mass[..., _PLACES.index("content")], rows)
    found = found / maps.layout.uniform_content_distance[:, None]
    return torch.where(maps.layout.long[:, None], found, torch.nan)


def second_half(maps: HeadMaps) -> Tensor:
    """Weight on the second half of the source over its uniform value, resting places left out, for texts of at least 45 keys.

    0 = the second half is never looked at, 1 = as much as uniform weights do, about 2 = nothing else is.
    """
    places = [maps.column_mass[..., _PLACES.index(name)] for name in ("second_half", "content")]
    found = _ratio(*places, maps.choosing)
    columns = maps.layout.columns[..., -1].sum(-1) / maps.layout.content.sum(-1)
    return torch.where(maps.layout.long[:, None], found / columns[:, None], torch.nan)


def self_mass(maps: HeadMaps) -> Tensor:
    """Mean weight on the row's own token."""
    return _at_offset(maps, 0)


def previous_mass(maps: HeadMaps) -> Tensor:
    """Mean weight on the token before the row's own. Clark et al. 2019, section 3."""
    return _at_offset(maps, -1)


def next_mass(maps: HeadMaps) -> Tensor:
    """Mean weight on the token after the row's own. Clark et al. 2019, section 3."""
    return _at_offset(maps, 1)


def first_mass(maps: HeadMaps) -> Tensor:
    """Mean weight on the first key, a usual resting place. Xiao et al. 2023."""
    return _on_column(maps, "first")


def end_mass(maps: HeadMaps) -> Tensor:
    """Mean weight on the end token. Clark et al. 2019, section 3.2, as their [SEP]."""
    return _on_column(maps, "end")


def punctuation_mass(maps: HeadMaps) -> Tensor:
    """Mean weight on punctuation (all pieces of it together). Clark et al. 2019, section 3.2."""
    return _on_column(maps, "punctuation")


def same_token_mass(maps: HeadMaps) -> Tensor:
    """Mean weight on keys that hold the row's own token, its own position left out in self-attention, over rows with such a key."""
    visible = (maps.visible & maps.layout.same[:, None]).any(-1)
    return _mean(maps.row_sums[..., 2], maps.choosing & visible)


def sink_share(maps: HeadMaps) -> Tensor:
    """Weight on resting places less what uniform weights would put there: mean_i (sum_{j in S} w_ij - |S_i| / n_i).

    S = the first key and the control tokens (<s>, </s>), S_i and n_i counted over the kind's own mask. Xiao et al. 2023 take S
    = the first 1 or 4 positions of a causal map; control tokens are ours.
    """
    own = maps.layout.own.sum(-1)
    uniform = (maps.layout.own & maps.layout.resting[:, None]).sum(-1) / own.clamp(min=1)
    return _mean(maps.column_mass[..., _PLACES.index("resting")] - uniform[:, None], maps.choosing)


def output_share(maps: HeadMaps) -> Tensor:
    """Mean over rows of || sum_j w_ij f_h(x_j) ||, the length of what the head adds, over the sum of its layer's heads.

    f_h(x_j) = (x_j W_V,h + b_V,h) W_O,h; from 0 to 1, 1 / heads where all add as much. After Kobayashi et al. 2020, section 3.
    Where no head of the layer adds anything, each has a share of 0: all of them are dead.
    """
    if maps.context is None or maps.length_factor is None:
        return maps.weights.new_full(maps.weights.shape[:2], torch.nan)
    lengths = (maps.context.to(maps.length_factor.dtype) @ maps.length_factor).norm(dim=-1)
    found = _mean(lengths, maps.layout.rows[:, None])
    total = found.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, found / total)


@dataclass(frozen=True)
class Column:
    """One number of a head, as tables, pictures and files name it.

    Attributes:
        name: in files and in code.
        label: for a person; an English phrase that pages translate.
        kinds: for which kinds it is defined.
        unit: "share", "tokens", "nats", "times uniform" or "times the layer".
        low, high: its range; None = no bound.
        says: one sentence for a person; pages translate it.
        measure: the function, maps of a layer -> (batch, heads); None where the number is not read from maps (see ``source``).
        source: "maps", "variability", "gradient" or "ablation".
        per_layer: whether means are shown divided by the root of the sum of squares over their layer.
    """

    name: str
    label: str
    kinds: tuple[str, ...]
    unit: str
    low: float | None
    high: float | None
    says: str
    measure: Callable[[HeadMaps], Tensor] | None = None
    source: str = "maps"
    per_layer: bool = False


COLUMNS = (
    Column("entropy", "entropy", ALL, "share", 0, 1,
           "how evenly the weight is spread over the visible keys: 0 = on one, 1 = on all alike", normalised_entropy),
    Column("effective_tokens", "effective tokens", ALL, "tokens", 1, None,
           "over how many keys the weight is spread", effective_tokens),
    Column("confidence", "confidence", ALL, "share", 0, 1,
           "the largest weight of a row", confidence),
    Column("one_column", "one column", ALL, "share", 0, 1,
           "share of rows whose largest weight is on one and the same key", one_column),
    Column("distance", "distance", SELF, "times uniform", 0, None,
           "mean distance of what is looked at, over that of uniform weights", distance_over_uniform),
    Column("reach", "reach", SELF, "times uniform", 0, None,
           "the same without the first token and control tokens, in texts of 45 tokens and more", reach),
    Column("second_half", "second half", ("cross",), "times uniform", 0, None,
           "weight on the second half of the source over its uniform value, in sources of 45 tokens and more", second_half),
    Column("self", "own token", SELF, "share", 0, 1, "weight on the own token", self_mass),
    Column("previous", "previous token", SELF, "share", 0, 1, "weight on the token before", previous_mass),
    Column("next", "next token", ("encoder",), "share", 0, 1, "weight on the token after", next_mass),
    Column("first", "first token", ALL, "share", 0, 1, "weight on the first token", first_mass),
    Column("end", "end token", ("encoder", "cross"), "share", 0, 1, "weight on the end token", end_mass),
    Column("punctuation", "punctuation", ALL, "share", 0, 1, "weight on punctuation", punctuation_mass),
    Column("same_token", "same token", ALL, "share", 0, 1, "weight on other places with the same token", same_token_mass),
    Column("sink", "sink share", ALL, "share", -1, 1,
           "weight on the first token and control tokens, above that of uniform weights", sink_share),
    Column("output_share", "share of the output", ALL, "share", 0, 1,
           "length of what the head adds to its layer's output, over the sum of its layer's heads", output_share),
    Column("variability", "variability", ALL, "share", 0, 1,
           "how much the weights among the first tokens differ from text to text: 0 = by position alone", source="variability"),
    Column("importance", "importance", ALL, "times the layer", 0, 1,
           "how steeply the likelihood of the target changes when the head is turned down a little", source="gradient",
           per_layer=True),
    Column("loss_zero", "loss when off (zero)", ALL, "nats", None, None,
           "by how much the target becomes less likely, for each token, when the head's output is 0", source="ablation"),
    Column("loss_mean", "loss when off (mean)", ALL, "nats", None, None,
           "the same when the head's output is its usual mean", source="ablation"),
    Column("kl_zero", "change when off (zero)", ALL, "nats", 0, None,
           "how far the predicted tokens move when the head's output is 0", source="ablation"),
    Column("kl_mean", "change when off (mean)", ALL, "nats", 0, None,
           "the same when the head's output is its usual mean", source="ablation"),
)  # fmt: skip
BY_NAME = {column.name: column for column in COLUMNS}


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """The mean over counted rows: (batch, heads, query_len) -> (batch, heads); NaN where none counts."""
    return _over(torch.where(counted, values, 0).sum(-1), counted.sum(-1))


def _ratio(over: Tensor, under: Tensor, counted: Tensor) -> Tensor:
    """Sum over counted rows of one thing, over that of another; (batch, heads), NaN where the other is 0."""
    return _over(*(torch.where(counted, x, 0).sum(-1) for x in (over, under)))


def _over(value: Tensor, divisor: Tensor) -> Tensor:
    return torch.where(divisor > 0, value / divisor, torch.nan)


def _on_column(maps: HeadMaps, name: str) -> Tensor:
    place = _PLACES.index(name)
    if name == "punctuation" and maps.layout.punctuation is None:
        return maps.weights.new_full(maps.weights.shape[:2], torch.nan)
    return _mean(maps.column_mass[..., place], maps.choosing & (maps.column_seen[..., place] > 0))


def _at_offset(maps: HeadMaps, offset: int) -> Tensor:
    """Mean weight at a fixed distance; the diagonal is a view, so that this costs a row, not a map."""
    mass = maps.wide.diagonal(offset, -2, -1)
    rows = slice(max(0, -offset), max(0, -offset) + mass.shape[-1])
    counted = maps.choosing[..., rows] & maps.visible.diagonal(offset, -2, -1)
    return _mean(mass, counted)
