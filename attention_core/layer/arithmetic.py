"""The arithmetic behind any single cell of an attention, as numbers: what was multiplied, added, scaled and normalised.

    query, key, value   x[row] . weight[column] + bias[column]
    scores              (query[row] . key[column]) * scale
    weights             exp(score - row_max) / sum over visible keys of exp(score - row_max)
    context             sum over keys of weights[row, key] * value[key, column]
    output              concatenation[row] . out_weight[column] + out_bias[column]

Vaswani et al. 2017, equation 1 and section 3.2.2. The terms are recomputed in float64 from the very tensors of the steps;
``value`` is the number that the tensor holds, so the two differ by the rounding of the layer's own dtype.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import AttentionError
from .attention import AttentionSteps
from .checks import inside
from .projections import Projections, merge_heads

STAGES = (
    "query",
    "key",
    "value",
    "scores",
    "masked_scores",
    "weights",
    "dropped_weights",
    "context",
    "concatenation",
    "output",
)


@dataclass(frozen=True)
class Term:
    """One product of a sum: product = left * right.

    Attributes:
        index: what the sum runs over. Query, key, value: the feature of the input; scores and weights: the dimension of the
            head; context and concatenation: the key; output: the column of the concatenation.
        left, right: the factors, in the order of the formulas at the head of this module.
        product: left * right, in float64.
    """

    index: int
    left: float
    right: float
    product: float


@dataclass(frozen=True)
class SoftmaxTerm:
    """One key in the softmax of a row.

    Attributes:
        key: the key's position.
        score: its scaled score, before the mask.
        visible: whether the query may attend to it.
        numerator: exp(score - row_max), in [0, 1]; 0 where the key is hidden.
    """

    key: int
    score: float
    visible: bool
    numerator: float


@dataclass(frozen=True)
class CellArithmetic:
    """How one cell came about.

    Attributes:
        stage: one of STAGES.
        head: the head the numbers belong to; None for the output, to which all heads add.
        row, column: the cell, counted from 0.
        value: the number in the stage's tensor; -inf for a masked score that is hidden.
        terms: the products of the sum, the largest by size first. For weights they are those of the cell's own score.
        bias: what is added to the sum; None where there is none.
        total: sum of the terms, plus the bias, in float64: the raw dot product for scores and weights.
        scale: what the raw dot product is multiplied with (scores, masked scores, weights); None elsewhere.
        visible: whether the mask shows this key to this query (scores, masked scores, weights), or shows the query any key
            at all (context, concatenation); True elsewhere.
        visible_keys: how many keys the row sees (scores to concatenation); None elsewhere.
        row_max: the largest visible score of the row (weights); None elsewhere, and where the row sees no key.
        numerator: exp(score - row_max) of this key, in [0, 1] (weights); 0 where it is hidden; None elsewhere.
        denominator: sum of the row's numerators (weights), from 1 to key_len; 0 where the row sees no key; None elsewhere.
        softmax: every key of the row, in order (weights); empty elsewhere.
        dim: the dimension of the head that a column of the concatenation comes from; None elsewhere.
        kept: dropout's factor, dropped weight / weight: 0 if dropped, 1 / (1 - dropout) if kept (dropped_weights, where the
            weight is not 0); None elsewhere.
    """

    stage: str
    head: int | None
    row: int
    column: int
    value: float
    terms: tuple[Term, ...]
    total: float
    bias: float | None = None
    scale: float | None = None
    visible: bool = True
    visible_keys: int | None = None
    row_max: float | None = None
    numerator: float | None = None
    denominator: float | None = None
    softmax: tuple[SoftmaxTerm, ...] = ()
    dim: int | None = None
    kept: float | None = None

    def largest(self, count: int) -> tuple[tuple[Term, ...], float, int]:
        """The ``count`` largest terms, the sum of the others, and how many others there are."""
        count = max(0, count)
        rest = self.terms[count:]
        return self.terms[:count], sum(term.product for term in rest), len(rest)

    @property
    def recomputed(self) -> float:
        """The cell as the terms give it in float64; the difference to ``value`` is what the layer's dtype rounded away.

        (Or what a model did between these stages: a position bias on the scores, a rotation of queries and keys.)
        """
        if self.numerator is not None:
            weight = self.numerator / self.denominator if self.denominator else 0.0
            return weight if self.stage == "weights" else weight * (self.kept or 0.0)
        if self.stage == "masked_scores" and not self.visible:
            return float("-inf")
        return self.total if self.scale is None else self.total * self.scale


def cell_arithmetic(
    steps: AttentionSteps,
    projections: Projections | None,
    stage: str,
    *,
    head: int | None = None,
    row: int,
    column: int,
    batch: int = 0,
    heads: Sequence[int] | None = None,
) -> CellArithmetic:
    """The arithmetic of one cell, from a layer's steps or from those of a real module alike.

    Args:
        steps: AttentionSteps.
        projections: what its queries, keys and values were made from; None where they were given directly (then query, key,
            value and output have no arithmetic).
        stage: one of STAGES.
        head: the head, counted from 0; not needed for "concatenation" (its column tells) and "output".
        row: query position; key position for "key" and "value".
        column: key position for "scores" to "dropped_weights"; dimension of the head for "query", "key", "value" and
            "context"; column of heads * head_dim for "concatenation", of d_model for "output".
        batch: which text.
        heads: the heads that ``steps`` holds, where it does not hold all of them.

    Returns:
        CellArithmetic.

    Raises:
        AttentionError: no such stage or cell; a stage that these steps do not have.
    """
    if not isinstance(stage, str) or stage not in STAGES:
        raise AttentionError("stage must be one of {stages}, not {stage!r}", stages=", ".join(STAGES), stage=stage)
    inside("batch", batch, steps.query.shape[0])
    if stage == "output":
        return _output_cell(steps, projections, batch, row, column)
    if stage == "concatenation":
        width = steps.context.shape[-1]
        inside("column", column, width * steps.context.shape[1])
        place, dim = divmod(column, width)
        head = place if heads is None else heads[place]
        return _context_cell(steps, stage, head, place, batch, row, column, dim)
    place = _place(steps, projections, head, heads)
    if stage in ("query", "key", "value"):
        return _projected_cell(steps, projections, stage, head, place, batch, row, column)
    if stage == "context":
        return _context_cell(steps, stage, head, place, batch, row, column, column)
    return _map_cell(steps, stage, head, place, batch, row, column)


def _projected_cell(steps, projections, stage, head, place, batch, row, column) -> CellArithmetic:
    """x[row] . weight[column] + bias[column], for one head's queries, keys or values."""
    if projections is None:
        raise AttentionError("{stage} was given directly: no projection made it", stage=stage)
    tensor = getattr(steps, stage)[batch, place]
    inside("row", row, tensor.shape[0])
    inside("column", column, tensor.shape[1])
    part = projections.head(head)
    x = getattr(part, f"{stage}_input")[batch, row]
    weight, bias = getattr(part, f"{stage}_weight")[column], getattr(part, f"{stage}_bias")
    # A shared matrix reads the head's own slice of the input; terms are counted by the feature of the whole input.
    first = head * x.shape[0] if projections.shared else 0
    terms, total = _dot(x, weight, first)
    bias = None if bias is None else bias[column].item()
    return CellArithmetic(stage, head, row, column, tensor[row, column].item(), terms, total + (bias or 0.0), bias)


def _map_cell(steps, stage, head, place, batch, row, column) -> CellArithmetic:
    """A cell of a map over (query, key): the dot product, and for weights the softmax of its row."""
    if stage == "dropped_weights" and steps.dropped_weights is None:
        raise AttentionError("these steps were computed without dropout: there are no dropped weights")
    query_len, key_len = steps.scores.shape[-2:]
    inside("row", row, query_len)
    inside("column", column, key_len)
    scores = _exact(steps.scores[batch, place, row])
    mask = _visible(steps, batch, place, row)
    visible = bool(mask[column])
    terms, total = _dot(steps.query[batch, place, row], steps.key[batch, place, column])
    shared = dict(
        stage=stage,
        head=head,
        row=row,
        column=column,
        terms=terms,
        total=total,
        scale=steps.scale,
        visible=visible,
        visible_keys=int(mask.sum()),
    )
    score = float(scores[column])
    if stage in ("scores", "masked_scores"):
        return CellArithmetic(value=score if visible or stage == "scores" else float("-inf"), **shared)
    seen = scores[mask]
    row_max = float(seen.max()) if len(seen) else None
    numerators = torch.zeros_like(scores)
    if row_max is not None:
        numerators[mask] = torch.exp(seen - row_max)
    weight = steps.weights[batch, place, row, column].item()
    value = weight if stage == "weights" else steps.dropped_weights[batch, place, row, column].item()
    return CellArithmetic(
        value=value,
        row_max=row_max,
        numerator=float(numerators[column]),
        denominator=float(numerators.sum()),
        softmax=tuple(
            SoftmaxTerm(*cells) for cells in zip(range(key_len), scores.tolist(), mask.tolist(), numerators.tolist())
        ),
        kept=value / weight if stage == "dropped_weights" and weight != 0 else None,
        **shared,
    )


def _context_cell(steps, stage, head, place, batch, row, column, dim) -> CellArithmetic:
    """The weighted sum of one dimension of the values, over keys; weights after dropout, where there was any."""
    context = steps.context[batch, place]
    inside("row", row, context.shape[0])
    inside("column", dim, context.shape[1])
    weights = steps.weights if steps.dropped_weights is None else steps.dropped_weights
    terms, total = _dot(weights[batch, place, row], steps.value[batch, place, :, dim])
    seen = int(_visible(steps, batch, place, row).sum())
    return CellArithmetic(
        stage,
        head,
        row,
        column,
        context[row, dim].item(),
        terms,
        total,
        visible=seen > 0,
        visible_keys=seen,
        dim=dim if stage == "concatenation" else None,
    )


def _output_cell(steps, projections, batch, row, column) -> CellArithmetic:
    """concatenation[row] . out_weight[column] + out_bias[column]."""
    if steps.output is None:
        raise AttentionError("these steps have no output: it takes all heads of a layer")
    if projections is None or projections.out_weight is None:
        raise AttentionError("the output has no arithmetic here: the module shows no output projection")
    output = steps.output[batch]
    inside("row", row, output.shape[0])
    inside("column", column, output.shape[1])
    terms, total = _dot(merge_heads(steps.context[batch : batch + 1])[0, row], projections.out_weight[column])
    bias = None if projections.out_bias is None else projections.out_bias[column].item()
    return CellArithmetic("output", None, row, column, output[row, column].item(), terms, total + (bias or 0.0), bias)


def _dot(left: Tensor, right: Tensor, first: int = 0) -> tuple[tuple[Term, ...], float]:
    """The products of two vectors (n,), the largest by size first, and their sum; indices count from ``first``."""
    left, right = _exact(left), _exact(right)
    products = left * right
    terms = [
        Term(first + i, *numbers) for i, numbers in enumerate(zip(left.tolist(), right.tolist(), products.tolist()))
    ]
    # NaN compares with nothing: it goes first, since it is what the reader must see.
    terms.sort(key=lambda term: -abs(term.product) if term.product == term.product else float("-inf"))
    return tuple(terms), float(products.sum())


def _exact(x: Tensor) -> Tensor:
    """In float64, which holds every narrower number exactly."""
    return x.detach().to("cpu", torch.float64)


def _visible(steps: AttentionSteps, batch: int, place: int, row: int) -> Tensor:
    """(key_len,), boolean: which keys the row sees."""
    return steps.full_mask()[batch, place, row].cpu()


def _place(
    steps: AttentionSteps, projections: Projections | None, head: int | None, heads: Sequence[int] | None
) -> int:
    """Where the steps hold a head."""
    held = steps.query.shape[1]
    if head is None:
        raise AttentionError("this stage belongs to one head: name it")
    if heads is None:
        if projections is not None and projections.num_heads != held:
            raise AttentionError(
                "these steps hold {held} of {num_heads} heads: name them in heads",
                held=held,
                num_heads=projections.num_heads,
            )
        inside("head", head, held)
        return head
    if head not in heads:
        raise AttentionError("head {head} is not among those of these steps ({heads})", head=head, heads=list(heads))
    return list(heads).index(head)
