"""Are two computations of one attention equal? Stage by stage, against what the rounding of their dtype allows.

Two correct computations of one sum in floating point differ, since they add in another order. How far they may lie apart is
known: for n terms t_1 .. t_n, each computed sum is within

    u min(n, 8 sqrt(n)) (|t_1| + ... + |t_n|)

of the true one, u being half the dtype's epsilon. The factor n is the certain bound (Higham 2002, "Accuracy and Stability of
Numerical Algorithms", section 3.1); sqrt(n) times a small number holds for all but a hopeless few roundings (Higham and Mary
2019, theorem 2.4: with 8, one sum in 10^10 for n = 1000). Two computations are therefore within twice that, and every
cell has its own bound. What two sides were seen to differ by in one stage passes into the next, and is allowed there too, as far
as it lay within its own bound:

    query, key, value   r(d) (|x| |W|^T + |b|)                                    r(n) = eps min(n, 8 sqrt(n))
    scores              s (dQ |K|^T + |Q| dK^T + dQ dK^T) + r(head_dim) s |Q| |K|^T
    weights             w_ij (exp(e_ij + max_j e_ij) - 1 + r(key_len)),           e_ij = dS_ij + eps |S_ij - max_j S_ij|
    context             dA |V| + A dV + dA dV + r(key_len) A |V|
    output              dC |W_O|^T + r(heads * head_dim) (|C| |W_O|^T + |b_O|)

with dX the difference seen in stage X, at most its bound. So a verdict scales with dtype, widths, lengths and
the numbers themselves, and no tolerance is chosen by hand. Faults of method (a forgotten bias, another scale) lie orders
of magnitude outside.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, sqrt

import torch
from torch import Tensor

from attention_core.errors import AttentionError
from attention_core.layer.attention import AttentionSteps
from attention_core.layer.projections import Projections

STAGES = ("query", "key", "value", "scores", "weights", "context", "output")
_UNLIKELY = 8.0
# Rounding of inputs, a bias, a scale and the result to their dtype: as many more terms.
_MORE = 4


@dataclass(frozen=True)
class StageDifference:
    """How far one stage of two computations lies apart.

    Attributes:
        stage: one of STAGES.
        largest: largest absolute difference of a cell, in the unit of the stage; inf where one side alone is not a number.
        relative: largest / largest size of a cell on the second side; 0 where the two are equal.
        share: largest difference as a share of what rounding allows in its cell; at most 1 = equal. inf where a cell that
            must be equal is not.
        outside: number of cells beyond what rounding allows.
        cells: number of cells.
        where: (batch, head, row, column) of the cell with the largest share; (batch, row, column) for the output.
        verdict: "bit-equal" (no bit differs), "equal" (within rounding) or "differs".
    """

    stage: str
    largest: float
    relative: float
    share: float
    outside: int
    cells: int
    where: tuple[int, ...]
    verdict: str


@dataclass(frozen=True)
class Equality:
    """All stages that both sides have, in the order of the computation."""

    stages: tuple[StageDifference, ...]

    @property
    def first(self) -> StageDifference | None:
        """The first stage that differs; what comes after it differs because of it. None if all are equal."""
        return next((stage for stage in self.stages if stage.verdict == "differs"), None)

    @property
    def equal(self) -> bool:
        """Whether every stage is equal within rounding."""
        return self.first is None

    @property
    def bit_equal(self) -> bool:
        """Whether no bit differs anywhere."""
        return all(stage.verdict == "bit-equal" for stage in self.stages)


def rounding(terms: int, dtype: torch.dtype) -> float:
    """How far two computed sums of so many terms may lie apart, for each unit of the terms' sizes: eps min(n, 8 sqrt(n))."""
    terms += _MORE
    return torch.finfo(dtype).eps * min(terms, _UNLIKELY * sqrt(terms))


def compare_steps(
    ours: AttentionSteps, theirs: AttentionSteps, projections: Projections, *, fused: bool = False
) -> Equality:
    """Compares two computations of one attention stage by stage.

    Args:
        ours, theirs: of all heads of one attention, from the same inputs and weights.
        projections: those inputs and weights, (batch, len, d_model) and so on, which the bounds are made from.
        fused: whether their context comes from a fused computation, whose own scores are not seen: the rounding of such
            scores is then allowed in full in the context.

    Returns:
        Equality. Its output is compared where both sides have one. Scores are compared in all cells, before the mask; a
        weight that one side's mask hides must be 0 on the other.

    Raises:
        AttentionError: sides of different shapes.
    """
    for name in STAGES[:-1]:
        first, second = getattr(ours, name).shape, getattr(theirs, name).shape
        if first != second:
            raise AttentionError(
                "only attentions of one shape can be equal: {stage} is {first} on one side and {second} on the other",
                stage=name,
                first=tuple(first),
                second=tuple(second),
            )
    found = {name: _Largest() for name in STAGES}
    coarse = _coarser(ours.query.dtype, theirs.query.dtype)
    # Bounds are computed in the wider of the two dtypes.
    size = partial(_size, torch.promote_types(ours.scores.dtype, theirs.scores.dtype))
    product = None
    for head in range(theirs.query.shape[1]):
        bounds, seen = _head_bounds(ours, theirs, projections, head, coarse, size, fused)
        for name in STAGES[:-1]:
            found[name].add(getattr(ours, name)[:, head], getattr(theirs, name)[:, head], bounds[name], head)
        part = projections.head(head)
        if part.out_weight is not None:
            weight = size(part.out_weight).T
            pair = torch.stack([seen["context"] @ weight, size(theirs.context[:, head]) @ weight])
            product = pair if product is None else product + pair
    if ours.output is not None and theirs.output is not None and product is not None:
        bias = 0 if projections.out_bias is None else size(projections.out_bias)
        terms = projections.out_weight.shape[1]
        found["output"].add(ours.output, theirs.output, product[0] + rounding(terms, coarse) * (product[1] + bias))
    return Equality(tuple(largest.result(name) for name, largest in found.items() if largest.cells))


def _head_bounds(
    ours: AttentionSteps,
    theirs: AttentionSteps,
    projections: Projections,
    head: int,
    dtype: torch.dtype,
    size: Callable[[Tensor], Tensor],
    fused: bool,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """How far rounding may move each cell of one head, and how far the two sides are apart within that.

    Both are (batch, rows, columns) by stage, for all stages but the output. ``size`` gives absolute values in the dtype that
    bounds are computed in, ``dtype`` is the coarser one of the two sides.
    """
    part, bounds, seen = projections.head(head), {}, {}

    def bound(name: str, allowed: Tensor) -> None:
        bounds[name] = allowed
        apart = size(getattr(ours, name)[:, head] - getattr(theirs, name)[:, head])
        seen[name] = torch.where(apart <= allowed, apart, allowed)

    for name in ("query", "key", "value"):
        x, weight, bias = (getattr(part, f"{name}_{what}") for what in ("input", "weight", "bias"))
        sizes = size(x) @ size(weight).T
        sizes = sizes if bias is None else sizes + size(bias)
        bound(name, rounding(weight.shape[1], dtype) * sizes)
    query, key, value = (size(getattr(theirs, name)[:, head]) for name in ("query", "key", "value"))
    wide = _coarser(ours.scores.dtype, theirs.scores.dtype)
    off = seen["query"] @ key.mT + (query + seen["query"]) @ seen["key"].mT
    bound("scores", theirs.scale * (off + rounding(query.shape[-1], wide) * (query @ key.mT)))

    scores, mask = theirs.scores[:, head], theirs.full_mask()[:, head]
    below = torch.where(mask, torch.where(mask, scores, -inf).amax(-1, keepdim=True) - scores, 0)
    weights = size(theirs.weights[:, head])

    def moved_by(scores_apart: Tensor) -> Tensor:
        """How far weights may move where scores lie so far apart."""
        moved = torch.where(mask, scores_apart + torch.finfo(wide).eps * below, 0)
        return weights * (torch.expm1(moved + moved.amax(-1, keepdim=True)) + rounding(scores.shape[-1], wide))

    # In the wide dtype: of two plain numbers torch.where makes a float32, in which float64's smallest number is 0.
    bound("weights", moved_by(seen["scores"]) + mask.to(wide) * torch.finfo(wide).tiny)

    unseen = moved_by(bounds["scores"]) if fused else seen["weights"]
    off = unseen @ (value + seen["value"]) + weights @ seen["value"]
    bound("context", off + rounding(scores.shape[-1], dtype) * (weights @ value))
    return bounds, seen


class _Largest:
    """Gathers the largest differences of one stage over its parts."""

    def __init__(self) -> None:
        self.largest = self.size = 0.0
        self.share, self.where = -1.0, ()
        self.outside = self.cells = 0
        self.same = True

    def add(self, ours: Tensor, theirs: Tensor, bound: Tensor, head: int | None = None) -> None:
        dtype = torch.promote_types(torch.promote_types(ours.dtype, theirs.dtype), torch.float32)
        ours, theirs = ours.to(dtype), theirs.to(dtype)
        same = (ours == theirs) | (ours.isnan() & theirs.isnan())
        apart = torch.where(same, 0, (ours - theirs).abs()).nan_to_num(nan=inf, posinf=inf)
        share = torch.where(same, 0, apart / bound).nan_to_num(nan=inf, posinf=inf)
        place = int(share.argmax())
        if float(share.flatten()[place]) > self.share:
            self.share = float(share.flatten()[place])
            at = [int(i) for i in torch.unravel_index(torch.tensor(place), share.shape)]
            self.where = tuple(at if head is None else [at[0], head, *at[1:]])
        self.largest = max(self.largest, float(apart.max()))
        finite = theirs[theirs.isfinite()]
        self.size = max(self.size, float(finite.abs().max()) if finite.numel() else 0.0)
        self.outside += int((share > 1).sum())
        self.cells += share.numel()
        self.same = self.same and bool(same.all())

    def result(self, stage: str) -> StageDifference:
        verdict = "bit-equal" if self.same else "equal" if self.share <= 1 else "differs"
        relative = 0.0 if self.largest == 0 else self.largest / self.size if self.size else inf
        return StageDifference(stage, self.largest, relative, self.share, self.outside, self.cells, self.where, verdict)


def _size(dtype: torch.dtype, x: Tensor) -> Tensor:
    """Absolute values."""
    return x.detach().to(dtype).abs()


def _coarser(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    return max(first, second, key=lambda dtype: torch.finfo(dtype).eps)
