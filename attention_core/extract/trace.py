"""One run of a model, recorded; and any of its attention heads, step by step, whenever it is asked for.

Recording keeps only what went into each attention module (hidden states and mask), so it costs next to nothing. Asking for
a head calls that one module again with the same inputs and computes the attention of the named heads alone: the model
does not run again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import AttentionError
from ..layer.attention import AttentionSteps
from ..layer.projections import Projections, merge_heads
from . import families, inputs
from .inputs import Generation, Notice, Side
from .interventions import Edit, EditedCall, Editing, Means
from .models import LoadedModel, first_line
from .overview import Overview, overview
from .recording import Record, Recording, replayed
from .registry import KINDS, OUTPUT, Call, Site, of_heads
from .session import opened
from .tokens import Token


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """A recorded run. Made by ``trace``; read by views, metrics and exports.

    Attributes:
        model: the model that ran.
        source: what its encoder (or only stack) was fed.
        target: what its decoder was fed; None for a model with one stack.
        notices: what the person should know.
        exact: whether the run itself used the step-by-step attention.
        edits: what was changed in the model's attentions while it ran; every stage shown is the edited one.
    """

    model: LoadedModel
    source: Side
    target: Side | None
    notices: tuple[Notice, ...]
    exact: bool
    _editing: Editing
    _records: dict[tuple[str, int], tuple[Site, Record]]
    _hidden: Tensor | None
    _logits: Tensor | None

    def __repr__(self) -> str:
        fed = "" if self.target is None else f", target {tuple(self.target_ids.shape)}"
        return f"Trace({self.model.report.name}, source {tuple(self.source_ids.shape)}{fed}; {', '.join(self.kinds)})"

    @property
    def edits(self) -> tuple[Edit, ...]:
        return self._editing.edits

    @property
    def source_ids(self) -> Tensor:
        """(batch, source_len): the ids that the encoder, or the only stack, was fed."""
        return self.source.ids

    @property
    def target_ids(self) -> Tensor | None:
        """(batch, target_len): the ids that the decoder was fed, start token first; row t predicts token t + 1."""
        return None if self.target is None else self.target.ids

    @property
    def labels(self) -> Tensor | None:
        """(batch, target_len): the id that each decoder row should predict; None where that is not known (target ids)."""
        return None if self.target is None else self.target.labels

    @property
    def generated_text(self) -> tuple[str, ...] | None:
        """What the model wrote for each text; None if it wrote nothing."""
        return self.target.texts if self.target is not None and self.target.origin == "generated" else None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of attention that ran: those of "encoder", "decoder", "cross" that there are."""
        return tuple(kind for kind in KINDS if any(found == kind for found, _ in self._records))

    def num_layers(self, kind: str) -> int:
        """How many layers of this kind ran."""
        self._check_kind(kind)
        return sum(found == kind for found, _ in self._records)

    def num_heads(self, kind: str) -> int:
        """How many heads a layer of this kind has."""
        return self._record(kind, 0)[0].num_heads

    def side(self, kind: str, axis: str) -> Side:
        """The side that is the "query" or the "key" axis of a kind: its ids, tokens, texts, and what is real."""
        self._check_kind(kind)
        if self.target is None or kind == "encoder" or (kind == "cross" and axis == "key"):
            return self.source
        return self.target

    def query_tokens(self, kind: str, text: int = 0) -> list[str]:
        """Labels for the rows of a kind's maps, for one text of the batch: one for each position."""
        return [token.label for token in self.query_pieces(kind, text)]

    def key_tokens(self, kind: str, text: int = 0) -> list[str]:
        """Labels for the columns of a kind's maps, for one text of the batch: one for each position."""
        return [token.label for token in self.key_pieces(kind, text)]

    def query_pieces(self, kind: str, text: int = 0) -> tuple[Token, ...]:
        """The rows' tokens with their flags, spans and words, for one text of the batch."""
        return self._pieces(self.side(kind, "query"), text)

    def key_pieces(self, kind: str, text: int = 0) -> tuple[Token, ...]:
        """The columns' tokens with their flags, spans and words, for one text of the batch."""
        return self._pieces(self.side(kind, "key"), text)

    def steps(self, kind: str, layer: int, heads: Sequence[int] | None = None) -> AttentionSteps:
        """Every stage of the named heads of one layer, as the model computed them.

        The layer's attention module is called again with its recorded inputs; the scores are
        ``(query @ key^T) * scale``, with a bias added first where the family has one (T5), then the mask, then softmax.

        Args:
            kind: "encoder", "decoder" or "cross".
            layer: from 0.
            heads: which heads, in this order; None = all.

        Returns:
            AttentionSteps of shapes (batch, len(heads), ...). Its output (batch, query_len, d_model) is what the output
            projection makes, before residual and layer norm; None unless all heads were asked for.

        Raises:
            AttentionError: a kind, layer or head that there is not.
        """
        site, _ = self._record(kind, layer)
        heads = None if heads is None else self._checked_heads(heads, site)
        with torch.no_grad():
            call = self._call(kind, layer, None if self.exact else heads)
            # How a product of fewer heads rounds depends on its memory layout; bit-equality needs the whole product.
            steps = of_heads(call.steps(), heads) if self.exact else call.steps(heads)
            out = families.out_projection(self.model.module, site.name) if heads is None else None
            return steps if out is None else steps.with_output(out(merge_heads(steps.context)))

    def call(self, kind: str, layer: int) -> Call:
        """One attention as the model called it, made again from the recorded input: for those who compute with it themselves.

        ``call.steps()`` is computed step by step, ``call.fused()`` as the library computes it when nobody looks; edits of the
        run are in it.

        Args:
            kind: "encoder", "decoder" or "cross".
            layer: from 0.

        Returns:
            Call of all heads: query (batch, heads, query_len, head_dim), key and value (batch, key_heads, key_len, head_dim).

        Raises:
            AttentionError: a kind or layer that there is not.
        """
        return self._call(kind, layer)

    def projections(self, kind: str, layer: int) -> Projections:
        """Inputs and weights of one layer's query, key, value and output projections.

        Raises:
            AttentionError: a kind or layer that there is not, or a family whose projections are not known.
        """
        site, record = self._record(kind, layer)
        query, key = families.attention_inputs(self.model.modules[site.name], record.args, record.kwargs)
        return families.projections(self.model.module, site.name, site.num_heads, query, key)

    def overview(self, kind: str, text: int = 0, limit: int = 64) -> Overview:
        """Small maps of every layer and head of a kind, for one text of the batch.

        Args:
            kind: "encoder", "decoder" or "cross".
            text: which text of the batch.
            limit: most rows and columns of one map, at least 1; longer axes are pooled by the maximum of each block.

        Raises:
            AttentionError: a kind or text that there is not.
        """
        self._pieces(self.side(kind, "query"), text)
        calls = (self.call(kind, layer).of_text(text) for layer in range(self.num_layers(kind)))
        return overview(calls, limit)

    def logits(self, rows: slice | Sequence[int] | None = None) -> Tensor:
        """Scores of every vocabulary entry for the token after each row: (batch, rows, vocabulary), before softmax.

        Args:
            rows: which rows of the last stack (target rows, or source rows where there is no target); None = all.

        Raises:
            AttentionError: a model without a language head.
        """
        if self._hidden is None and self._logits is None:
            raise AttentionError("{model} has no language head, so no logits", model=self.model.report.architecture)
        rows = slice(None) if rows is None else rows
        if self._logits is not None:
            return self._logits[:, rows]
        with torch.no_grad():
            return _from_hidden(self.model, self._hidden[:, rows])

    def _call(self, kind: str, layer: int, heads: list[int] | None = None) -> Call:
        """As ``call``; where heads are named and the module's form allows it, their queries, keys and values alone."""
        site, record = self._record(kind, layer)
        return self._editing.edited(site.name, replayed(self.model.modules, record, heads))

    def _record(self, kind: str, layer: int) -> tuple[Site, Record]:
        self._check_kind(kind)
        if (kind, layer) not in self._records:
            raise AttentionError(
                "layer {layer} of the {kind} attention is not there: layers are 0 to {last}",
                layer=layer,
                kind=kind,
                last=self.num_layers(kind) - 1,
            )
        return self._records[kind, layer]

    def _check_kind(self, kind: str) -> None:
        if kind not in self.kinds:
            raise AttentionError(
                "this run has no {kind} attention: it has {kinds}", kind=kind, kinds=", ".join(self.kinds)
            )

    def _checked_heads(self, heads: Sequence[int], site: Site) -> list[int]:
        heads = [int(head) for head in heads]
        if not heads or not all(0 <= head < site.num_heads for head in heads):
            raise AttentionError(
                "heads {heads} cannot be shown: name at least one, from 0 to {last}",
                heads=heads,
                last=site.num_heads - 1,
            )
        return heads

    def _pieces(self, side: Side, text: int) -> tuple[Token, ...]:
        if not 0 <= text < len(side.tokens):
            raise AttentionError(
                "text {text} is not in this batch: texts are 0 to {last}", text=text, last=len(side.tokens) - 1
            )
        return side.tokens[text]


def trace(
    model: LoadedModel,
    source: object,
    *,
    attention_mask: object = None,
    target: object = None,
    target_mask: object = None,
    generate: bool | Generation = False,
    exact: bool = False,
    edits: Sequence[Edit] = (),
    means: Means | None = None,
) -> Trace:
    """Runs a model once and records what went into each of its attentions.

    Args:
        model: from ``load_model``.
        source: a text, a list of texts, or token ids of shape (len,) or (batch, len).
        attention_mask: for ids: (batch, len), 1 or True = may be attended to. Texts of a batch are padded on the right and
            masked without it.
        target: what the decoder reads. A text, or a list of texts, is tokenised and shifted right by the library, so that
            row t predicts token t of it; ids are fed as they are. None = the source, shifted right (BART's own default).
        target_mask: for target ids, as attention_mask.
        generate: True, or a Generation, lets the model write the target; it is then traced in a second pass.
        exact: record with the step-by-step attention. In float32 every weight is then bit-equal to the library's eager
            attention; else it is within 1e-5 of it, at the speed of fused attention.
        edits: changes of the model's attentions, for this run (and the writing of its target) alone: see ``interventions``.
        means: what edits put in place of a head's context, if they switch it off by its mean.

    Returns:
        Trace. Nothing is changed on the model, whether this succeeds or fails; any number of threads may trace one model.

    Raises:
        AttentionError: too many tokens (checked before the model runs), ids or masks that cannot be, a target for a model
            that has no decoder beside its encoder, a model that cannot write, an edit of what the model does not have.
    """
    if model.module.training:
        raise AttentionError(
            "the model is in training mode, where dropout is drawn at random: call module.eval() first"
        )
    wants_target = target is not None or target_mask is not None or bool(generate)
    if wants_target and not model.is_encoder_decoder:
        raise AttentionError(
            "{model} takes no target: it has no decoder beside an encoder", model=model.report.architecture
        )
    if target is not None and generate:
        raise AttentionError("a target is either given or written by the model: choose one of target and generate")
    notices: list[Notice] = []
    read = inputs.read_side(model, source, attention_mask, "source", notices)
    fed = None
    editing = Editing(model, edits, means)
    recording = Recording(editing, exact)
    with model_errors(model):
        if model.is_encoder_decoder:
            with opened(editing):
                fed = _target(model, read, target, target_mask, generate, notices)
        with torch.no_grad(), opened(recording):
            result = model.module(**model_arguments(model, read, fed))
    hidden = recording.records.pop((OUTPUT, 0), None)
    logits = getattr(result, "logits", None)
    kept, logits = _kept_logits(model, hidden, logits)
    run = Trace(model, read, fed, tuple(notices), exact, editing, _by_layer(model, recording.records), kept, logits)
    return replace(run, notices=(*notices, *_emptied(run))) if editing.edits else run


@contextmanager
def model_errors(model: LoadedModel) -> Iterator[None]:
    """Says in one sentence that a model's own configuration or tables do not let it run.

    What a callback raises passes through: it is the caller's.
    """
    try:
        yield
    except AttentionError:
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise AttentionError(
            "{model} cannot be run on this text ({reason}): its configuration does not fit its weights or tokenizer",
            model=model.report.name,
            reason=first_line(error),
        ) from error


def _target(
    model: LoadedModel, source: Side, target: object, mask: object, generate: bool | Generation, notices: list[Notice]
) -> Side:
    if generate:
        return inputs.generated(model, source, generate if isinstance(generate, Generation) else Generation(), notices)
    if target is None:
        if mask is not None:
            raise AttentionError("target_mask goes with target ids, and no target was given")
        return inputs.shifted(model, source, "shifted source")
    read = inputs.read_side(model, target, mask, "target", notices)
    if read.ids.shape[0] != source.ids.shape[0]:
        raise AttentionError(
            "each source needs its target: there are {sources} sources and {targets} targets",
            sources=source.ids.shape[0],
            targets=read.ids.shape[0],
        )
    return inputs.shifted(model, read, "text") if read.origin == "text" else read


def _emptied(run: Trace) -> Iterator[Notice]:
    """Says where edits leave queries of real tokens without a key to look at."""
    for kind in run.kinds:
        real = run.side(kind, "query").real[:, None]
        empty, heads = torch.zeros_like(real), []
        for layer in range(run.num_layers(kind)):
            call = run.call(kind, layer)
            if not isinstance(call, EditedCall) or not call.edits_masks:
                continue
            with torch.no_grad():
                found = call.emptied() & real
            heads += [f"{layer}.{head}" for head in range(found.shape[1]) if bool(found[:, head].any())]
            empty = empty | found.any(1, keepdim=True)
        if heads:
            yield Notice(
                "an edit leaves {count} of {tokens} tokens without anything to look at in {kind} attention (heads {heads}): their "
                "weights are 0, and so is what the head adds there",
                {
                    "count": int(empty.sum()),
                    "tokens": int(real.sum()),
                    "kind": kind,
                    "heads": ", ".join(heads[:8]) + (", …" if len(heads) > 8 else ""),
                },
            )


def model_arguments(model: LoadedModel, source: Side, target: Side | None) -> dict:
    """What a model is called with for one run without a cache."""
    arguments = {
        "input_ids": source.ids,
        "output_attentions": False,
        "output_hidden_states": False,
        "return_dict": True,
    }
    if "decoder" in model.kinds:
        arguments["use_cache"] = False  # keys and values from a cache have another layout, and are not bit-equal
    if source.mask is not None:
        arguments["attention_mask"] = source.mask.long()
    if target is not None:
        arguments["decoder_input_ids"] = target.ids
        if target.mask is not None:
            arguments["decoder_attention_mask"] = target.mask.long()
    return arguments


def _by_layer(model: LoadedModel, records: dict[tuple[str, int], Record]) -> dict[tuple[str, int], tuple[Site, Record]]:
    """Records by kind and layer. A module that is shared by all layers (ALBERT) has its calls counted as layers."""
    if not records:
        raise AttentionError(
            "the run recorded no attention at all: the project's code was reloaded under a loaded model; load the model again"
        )
    sites = {site.name: site for site in model.sites}
    found: dict[tuple[str, int], tuple[Site, Record]] = {}
    for (name, call), record in records.items():
        site = sites[name]
        layer = site.layer + call
        if (site.kind, layer) in found:
            raise AttentionError("{name} ran several times in one run, which cannot be told apart here", name=name)
        found[site.kind, layer] = (site, record)
    return found


def _from_hidden(model: LoadedModel, hidden: Tensor) -> Tensor:
    """The language head: output embedding, and the bias that BART's kind keeps beside it."""
    logits = model.module.get_output_embeddings()(hidden)
    bias = getattr(model.module, "final_logits_bias", None)
    return logits if bias is None else logits + bias


def _kept_logits(
    model: LoadedModel, record: Record | None, logits: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """What logits are read from later: the head's input (a few MB), or the logits themselves (200 MB for 1024 rows of BART).

    The input is kept where the head, applied to it, gives what the model gave.
    """
    if record is None or logits is None or not record.args:
        return None, None
    hidden = record.args[0]
    again = _from_hidden(model, hidden[:, -1:])
    if again.shape == logits[:, -1:].shape and torch.allclose(again, logits[:, -1:], rtol=1e-3, atol=1e-3):
        return hidden, None
    return None, logits if logits.shape[:2] == hidden.shape[:2] else None
