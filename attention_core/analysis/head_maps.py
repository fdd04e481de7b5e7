"""The maps of one layer, and what their rows and columns stand for: what the numbers of ``head_metrics`` are taken from.

Sums that several numbers need are made once and kept. A map's weights are 0 where its mask hides a key, so that sums over
keys need no mask; which rows are counted does.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..errors import AttentionError
from .rows import summed_entropy

# Long range can be told from short range from about so many keys on.
LONG = 45
COLUMNS = ("first", "end", "punctuation", "resting", "content", "second_half")


@dataclass(frozen=True, eq=False)
class Layout:
    """What the tokens of a batch are, for one kind of attention; the same for all of its layers.

    Attributes:
        kind: "encoder", "decoder" or "cross".
        rows: (batch, query_len), True at real tokens, False at padding.
        keys: (batch, key_len), likewise.
        resting: (batch, key_len), keys that heads rest on: the first one and control tokens such as <s> and </s>.
        end: (batch, key_len), the end token, where it closes a text (a decoder begins with it, which is no end).
        punctuation: (batch, key_len), pieces of punctuation; None where the tokens' texts are not known.
        query_ids, key_ids: (batch, query_len) and (batch, key_len), token ids.

    Raises:
        AttentionError: shapes that do not fit.
    """

    kind: str
    rows: Tensor
    keys: Tensor
    resting: Tensor
    end: Tensor
    punctuation: Tensor | None
    query_ids: Tensor
    key_ids: Tensor

    def __post_init__(self) -> None:
        for name, x, like in (
            ("query_ids", self.query_ids, self.rows),
            ("key_ids", self.key_ids, self.keys),
            ("resting", self.resting, self.keys),
            ("end", self.end, self.keys),
            ("punctuation", self.punctuation, self.keys),
        ):
            if x is not None and x.shape != like.shape:
                raise AttentionError(
                    "{name} must have the shape {expected}, not {shape}",
                    name=name,
                    expected=tuple(like.shape),
                    shape=tuple(x.shape),
                )

    @cached_property
    def own(self) -> Tensor:
        """(batch, query_len, key_len): the mask of the kind itself, full or causal, among real tokens; never an edited one."""
        own = self.rows[:, :, None] & self.keys[:, None]
        if self.kind == "decoder":
            own = own & torch.ones(own.shape[1:], dtype=torch.bool, device=own.device).tril()
        return own

    @cached_property
    def distance(self) -> Tensor:
        """(query_len, key_len): |i - j|, in tokens, float32."""
        rows, columns = (torch.arange(x.shape[1], device=x.device) for x in (self.rows, self.keys))
        return (rows[:, None] - columns).abs().float()

    @cached_property
    def key_count(self) -> Tensor:
        """(batch,): real keys of each text."""
        return self.keys.sum(-1)

    @cached_property
    def long(self) -> Tensor:
        """(batch,): whether a text has enough keys to tell long range from short."""
        return self.key_count >= LONG

    @cached_property
    def content(self) -> Tensor:
        """(batch, key_len): real keys that heads do not rest on."""
        return self.keys & ~self.resting

    @cached_property
    def columns(self) -> Tensor:
        """(batch, key_len, 6): the keys that COLUMNS mean, one after the other, as float32."""
        first = torch.zeros_like(self.keys)
        first[:, 0] = True
        # The second half of what is read: of the keys that are no resting place, by their order.
        place = self.content.cumsum(-1)
        later = self.content & (place * 2 > place[:, -1:])
        punctuation = torch.zeros_like(self.keys) if self.punctuation is None else self.punctuation
        return torch.stack([first, self.end, punctuation, self.resting, self.content, later], -1).float()

    @cached_property
    def same(self) -> Tensor:
        """(batch, query_len, key_len): keys that hold the row's own token; in one text, its other occurrences."""
        same = self.query_ids[:, :, None] == self.key_ids[:, None]
        return same if self.kind == "cross" else same & (self.distance > 0)

    @cached_property
    def targets(self) -> Tensor:
        """(batch, query_len, key_len, 3): what weights are multiplied with, row by row: |i - j|, the same over content, same."""
        distance = self.distance.expand_as(self.own)
        return torch.stack([distance, distance * self.content[:, None], self.same], -1)

    @cached_property
    def content_own(self) -> Tensor:
        """(batch, query_len, key_len): the own mask without resting places."""
        return self.own & self.content[:, None]

    def uniform(self, own: Tensor) -> Tensor:
        """(batch,): the mean distance of uniform weights over a mask, (n^2 - 1) / (3 n) where all n keys are visible.

        D = sum_i (sum_j m_ij |i - j| / n_i) / number of rows, over rows with n_i >= 2.
        """
        count = own.sum(-1)
        rows = (own * self.distance).sum(-1) / count.clamp(min=1)
        counted = count >= 2
        return torch.where(counted, rows, 0).sum(-1) / counted.sum(-1)

    @cached_property
    def uniform_distance(self) -> Tensor:
        return self.uniform(self.own)

    @cached_property
    def uniform_content_distance(self) -> Tensor:
        return self.uniform(self.content_own)


@dataclass(frozen=True, eq=False)
class HeadMaps:
    """The heads of one layer, over a batch.

    Attributes:
        layout: what rows and columns are.
        weights: (batch, heads, query_len, key_len), probabilities, 0 where masked; rows sum to 1 or are all 0.
        mask: boolean, True = may attend, (batch or 1, heads or 1, query_len, key_len); the one the weights were made with.
        context: (batch, heads, query_len, head_dim); None where no number needs it.
        length_factor: (heads, head_dim, head_dim), such that context @ factor is as long as the vector that the head adds to
            the layer's output (see ``length_factors``); None where the output projection is not known.
    """

    layout: Layout
    weights: Tensor
    mask: Tensor
    context: Tensor | None = None
    length_factor: Tensor | None = None

    @cached_property
    def visible(self) -> Tensor:
        """(batch, heads or 1, query_len, key_len): the mask among real tokens, that is, without rows and keys of padding."""
        return self.mask & (self.layout.rows[:, None, :, None] & self.layout.keys[:, None, None])

    @cached_property
    def seen(self) -> Tensor:
        """(batch, heads or 1, query_len): visible keys of each row, as a number; 0 for rows of padding."""
        return self.visible.sum(-1)

    @cached_property
    def choosing(self) -> Tensor:
        """(batch, heads or 1, query_len): rows that see at least two keys."""
        return self.seen >= 2

    @cached_property
    def wide(self) -> Tensor:
        """The weights in float32 or wider."""
        return self.weights.to(torch.promote_types(self.weights.dtype, torch.float32))

    @cached_property
    def entropy(self) -> Tensor:
        """(batch, heads, query_len): - sum_j w_ij ln w_ij, nats, from 0 to ln n_i."""
        entropy = summed_entropy(self.wide)
        return torch.minimum(entropy.clamp(min=0), self.seen.clamp(min=1).to(entropy.dtype).log())

    @cached_property
    def largest(self) -> tuple[Tensor, Tensor]:
        """(batch, heads, query_len) each: the largest weight of each row, and the first key that has it."""
        return tuple(self.wide.max(-1))

    @cached_property
    def column_mass(self) -> Tensor:
        """(batch, heads, query_len, 6): weight on each of COLUMNS."""
        return self.wide @ self.layout.columns[:, None].to(self.wide.dtype)

    @cached_property
    def column_seen(self) -> Tensor:
        """(batch, heads or 1, query_len, 6): how many visible keys each of COLUMNS has for a row."""
        return self.visible.float() @ self.layout.columns[:, None]

    @cached_property
    def row_sums(self) -> Tensor:
        """(batch, heads, query_len, 3): sums over keys of the weights times ``Layout.targets``."""
        found = self.wide.transpose(1, 2) @ self.layout.targets.to(self.wide.dtype)
        return found.transpose(1, 2)


def length_factors(out_weight: Tensor, num_heads: int) -> Tensor:
    """For each head a small matrix F with || c F || = || c W_O,h^T || for every context c of the head.

    W_O,h = Q R (QR decomposition) with orthonormal columns of Q, so that || W_O,h c || = || R c ||, and F = R^T.

    Args:
        out_weight: (d_model, num_heads * head_dim), as in ``Projections``.
        num_heads: of the layer.

    Returns:
        (num_heads, head_dim, head_dim), float32 or wider.
    """
    heads = out_weight.unflatten(1, (num_heads, -1)).transpose(0, 1).double()
    r = torch.linalg.qr(heads, mode="r").R
    return r.transpose(-2, -1).to(torch.promote_types(out_weight.dtype, torch.float32)).contiguous()
