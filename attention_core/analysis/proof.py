"""The from-scratch attention proved on real models: one attention stage by stage, and a whole model by what it says.

    prove_attention(run, kind, layer)    the layer with the real weights, fed the recorded input, beside the module itself
    prove_model(run)                     the from-scratch attention in every module, beside the model as the library runs it

Logits of two such runs differ by rounding, and no bound can be derived for what many layers make of it. So the model itself is
asked: a third run moves every number of every attention's context by one rounding error, up or down at random, and shows how
far that travels. The from-scratch attention may move the logits no further than a few times as far.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attention_core.errors import AttentionError
from attention_core.extract.inputs import Generation, generated
from attention_core.extract.registry import Call
from attention_core.extract.session import Session, opened
from attention_core.extract.trace import Trace, trace
from attention_core.layer.attention import AttentionSteps, attention_scores
from attention_core.layer.projections import Projections

from .changes import Change, changed_steps
from .equality import Equality, compare_steps, rounding

# The largest of many random moves, in another draw: a few times as far is still the same kind of move.
_DRAWS = 4.0


@dataclass(frozen=True)
class Continuation:
    """What the model writes, greedily, for the first text: the ids after the start token, and the text that they spell."""

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, eq=False)
class ModelEquality:
    """Two runs of one model: fused, as the library runs it, and step by step, with the from-scratch attention everywhere.

    Attributes:
        modules: how many attention modules ran.
        largest: largest absolute difference of a logit.
        relative: largest / largest size of a logit.
        rounding: how far one rounding error in every attention moved a logit.
        share: largest / (4 * rounding); at most 1 = equal.
        top: for each counted row of the first text, whether the five most likely next tokens are the same, in the same order.
        fused_top, ours_top: (ids, probabilities) of the five most likely tokens of the last row.
        close: whether, where a top five differs, the exchanged logits lie nearer than the difference itself.
        fused_text, ours_text: what the model writes; None where it cannot write.
    """

    modules: int
    largest: float
    relative: float
    rounding: float
    share: float
    top: tuple[bool, ...]
    fused_top: tuple[tuple[int, float], ...]
    ours_top: tuple[tuple[int, float], ...]
    close: bool
    fused_text: Continuation | None
    ours_text: Continuation | None

    @property
    def equal(self) -> bool:
        """Whether logits, order of the top five (but for ties) and the written text are equal."""
        same_text = self.fused_text is None or self.fused_text.ids == self.ours_text.ids
        return self.share <= 1 and (all(self.top) or self.close) and same_text


class StepByStep(Session):
    """Every attention module computes with the from-scratch attention."""

    def attend(self, module, call: Call) -> Tensor:
        return call.steps().context.transpose(1, 2).contiguous()


class Rounded(Session):
    """Fused attention, each number moved by one rounding error, up or down at random.

    The size of the move is what rounding does to a sum over key_len terms of the row's largest size.
    """

    def __init__(self, modules, seed: int = 0) -> None:
        super().__init__(modules)
        self._generator = torch.Generator().manual_seed(seed)

    def attend(self, module, call: Call) -> Tensor:
        context = call.fused()
        signs = torch.randint(0, 2, context.shape, generator=self._generator).to(context.device) * 2 - 1
        size = context.abs().amax(-1, keepdim=True) * _one_rounding(call.key.shape[2], context.dtype)
        return context + (signs * size).to(context.dtype)


def _one_rounding(terms: int, dtype: torch.dtype) -> float:
    """Half of the distance that two sums of so many terms may lie apart, without the margin for the unlikely."""
    return rounding(terms, dtype) / 16


def recorded(run: Trace, kind: str, layer: int) -> tuple[AttentionSteps, Projections]:
    """What one attention computed, of all heads, and what it was given: all that the from-scratch layer needs to do the same.

    Raises:
        AttentionError: a kind or layer that there is not, an attention whose projections are not known, or one that adds
            something to its scores.
    """
    steps, projections = run.steps(kind, layer), run.projections(kind, layer)
    query, key = steps.query[:, :1], steps.key[:, :1]
    off = (attention_scores(query, key, steps.scale) - steps.scores[:, :1]).abs()
    allowed = rounding(query.shape[-1], steps.scores.dtype) * attention_scores(query.abs(), key.abs(), steps.scale)
    if bool((off > allowed).any()):
        raise AttentionError(
            "this attention adds a bias by position to its scores (as T5's does), and the from-scratch layer has none: with "
            "its weights alone the layer cannot be equal"
        )
    return steps, projections


def prove_attention(run: Trace, kind: str, layer: int) -> tuple[Equality, AttentionSteps, AttentionSteps]:
    """Puts one attention's weights into the from-scratch layer, feeds both the recorded input, and compares every stage.

    On the model's side queries, keys and values are what its own projections make, and context and output are what the
    library's fused attention and the model's output projection make of them. Fused attention shows no scores and weights; those of
    that side are computed step by step from the model's own queries and keys.

    Args:
        run: from ``trace``.
        kind: "encoder", "decoder" or "cross".
        layer: from 0.

    Returns:
        the verdict, the layer's steps, the model's steps; of all heads.

    Raises:
        AttentionError: a kind or layer that there is not, an attention whose projections are not known or that
            adds a bias to its scores.
    """
    steps, projections = recorded(run, kind, layer)
    _, ours = changed_steps(projections, steps.scale, steps.mask, Change())
    with torch.no_grad():
        context = run.call(kind, layer).fused()
        output = torch.nn.functional.linear(context.flatten(2), projections.out_weight, projections.out_bias)
    theirs = AttentionSteps(
        steps.query,
        steps.key,
        steps.value,
        steps.scores,
        steps.mask,
        steps.weights,
        None,
        context.transpose(1, 2),
        output,
        steps.scale,
    )
    return compare_steps(ours, theirs, projections, fused=True), ours, theirs


def prove_model(run: Trace, *, tokens: int = 24) -> ModelEquality:
    """Runs the model of a trace again on its own inputs, fused and step by step, and compares what comes out.

    Args:
        run: from ``trace``; its ids are fed once more.
        tokens: most tokens of the written continuation; 0 = none.

    Raises:
        AttentionError: a model without a language head.
    """
    model = run.model
    run.logits(slice(0, 1))  # refuses a model without a language head
    again = _inputs(run)
    fused = trace(model, **again) if run.exact else run
    ours = trace(model, **again, exact=True)
    with torch.no_grad(), opened(Rounded(model.modules)):
        moved = model.module(**_arguments(run)).logits.float()
    real = (run.source if run.target is None else run.target).real
    first, second = (each.logits().float()[real] for each in (fused, ours))
    largest = float((first - second).abs().max())
    limit = float((moved[real] - first).abs().max())
    tops = [logits[: int(real[0].sum())].topk(min(5, logits.shape[-1])) for logits in (first, second)]
    same = (tops[0].indices == tops[1].indices).all(-1)
    texts = (None, None)
    if model.report.can_generate and tokens > 0:
        texts = (
            _continuation(run, tokens, Session(model.modules)),
            _continuation(run, tokens, StepByStep(model.modules)),
        )
    return ModelEquality(
        modules=len(model.sites),
        largest=largest,
        relative=largest / float(first.abs().max()),
        rounding=limit,
        share=largest / (_DRAWS * limit) if limit else 0.0 if largest == 0 else float("inf"),
        top=tuple(same.tolist()),
        fused_top=_last(first[: len(same)]),
        ours_top=_last(second[: len(same)]),
        close=bool(((tops[0].values - tops[1].values).abs()[~same] <= 2 * largest).all()),
        fused_text=texts[0],
        ours_text=texts[1],
    )


def _inputs(run: Trace) -> dict:
    given = {"source": run.source.ids, "attention_mask": run.source.mask}
    return given if run.target is None else given | {"target": run.target.ids, "target_mask": run.target.mask}


def _arguments(run: Trace) -> dict:
    given = {"input_ids": run.source.ids, "return_dict": True}
    if run.source.mask is not None:
        given["attention_mask"] = run.source.mask.long()
    if run.target is not None:
        given |= {"decoder_input_ids": run.target.ids, "use_cache": False}
        if run.target.mask is not None:
            given["decoder_attention_mask"] = run.target.mask.long()
    return given


def _continuation(run: Trace, tokens: int, session: Session) -> Continuation:
    with opened(session):
        side = generated(run.model, run.source, Generation(max_new_tokens=tokens), [])
    return Continuation(tuple(side.labels[0].tolist()), side.texts[0])


def _last(logits: Tensor) -> tuple[tuple[int, float], ...]:
    """The five most likely tokens of the last row, with their probabilities."""
    chances, ids = logits[-1].softmax(-1).topk(min(5, logits.shape[-1]))
    return tuple(zip(ids.tolist(), chances.tolist()))
