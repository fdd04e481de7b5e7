"""What a model is fed: texts or ids made into a batch, checked before the model runs; the target shifted or written."""

import copy
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from ..errors import AttentionError
from ..layer import masks
from .models import LoadedModel
from .tokens import Token, plain_tokens


@dataclass(frozen=True)
class Generation:
    """How the model writes a target; ``generate=True`` means these defaults. Nothing is drawn at random.

    Attributes:
        num_beams: 1 = greedy; more = beam search.
        max_new_tokens: most tokens written, the end token included; None = as many as the decoder has positions for, at
            most 128. Other settings (minimum length, repetition) are the model's own.
        on_progress: called with the number of tokens written so far, after each.
        should_stop: asked after each token; True ends the text there.
    """

    num_beams: int = 1
    max_new_tokens: int | None = None
    on_progress: Callable[[int], None] | None = None
    should_stop: Callable[[], bool] | None = None


@dataclass(frozen=True)
class Notice:
    """Something that the person should know about a trace: a sentence with ``{name}`` places, and what goes there."""

    template: str
    values: dict = field(default_factory=dict)

    def __str__(self) -> str:
        return self.template.format(**self.values)


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a run, source or target, as a batch.

    Attributes:
        ids: (batch, len).
        mask: (batch, len), boolean, True = may be attended to; None = none was given, all may.
        real: (batch, len), boolean, False for padding.
        tokens: the tokens of each text, one for each position.
        texts: what the spans of the tokens count in; the typed text, or what the ids spell.
        labels: (batch, len): the id that each decoder row should predict; None where that is not known.
        origin: "text", "ids", "shifted source" (by the library) or "generated".
    """

    ids: Tensor
    mask: Tensor | None
    real: Tensor
    tokens: tuple[tuple[Token, ...], ...]
    texts: tuple[str, ...]
    origin: str
    labels: Tensor | None = None


def read_side(model: LoadedModel, given: object, mask: object, side: str, notices: list[Notice]) -> Side:
    """A text, a list of texts, or ids, as a batch on the model's device; too long or impossible ones are refused here."""
    texts = [given] if isinstance(given, str) else given
    is_text = isinstance(texts, list | tuple) and len(texts) > 0 and all(isinstance(text, str) for text in texts)
    if is_text:
        if mask is not None:
            raise AttentionError("a mask goes with token ids; a text gets its own")
        read = _from_texts(model, list(texts), side, notices)
    else:
        read = _from_ids(model, given, mask, side, notices)
    check_length(model, read.ids.shape[1], side)
    return read


def check_length(model: LoadedModel, count: int, side: str) -> None:
    """Raises AttentionError, with both counts, where a side has more tokens than the model has positions for."""
    limit = model.limit(side)
    if limit is not None and count > limit:
        raise AttentionError(
            "the {side} has {count} tokens, but this model takes at most {limit}: shorten it, or cut it with cut_text",
            side=side,
            count=count,
            limit=limit,
        )


def shifted(model: LoadedModel, labels: Side, origin: str) -> Side:
    """The decoder's input for given labels: shifted right by the library's own function, so that row t predicts label t."""
    ids = _library_shift(model, labels.ids)
    check_length(model, ids.shape[1], "target")
    tokens = []
    for row, known in zip(ids.tolist(), labels.tokens):
        first = _describe(model, row[:1], "target")[0]
        tokens.append((*first, *known[: len(row) - 1]))
    # A left-padded source has its padding elsewhere after the shift; the library masks nothing in that case.
    right_padded = bool((labels.real.int().diff(dim=1) <= 0).all())
    real = labels.real if right_padded else torch.ones_like(labels.real)
    return replace(
        labels,
        ids=ids,
        mask=None if bool(real.all()) else real,
        real=real,
        tokens=tuple(tokens),
        origin=origin,
        labels=labels.ids,
    )


def generated(model: LoadedModel, source: Side, how: Generation, notices: list[Notice]) -> Side:
    """A target that the model writes for the source, as the decoder's input of a second, teacher-forced pass."""
    module = model.module
    if not model.report.can_generate:
        raise AttentionError(
            "{model} cannot write a target: that needs an encoder and a decoder with a language head",
            model=model.report.architecture,
        )
    room = model.limit("target")
    most = how.max_new_tokens if how.max_new_tokens is not None else min(128, room - 1 if room else 128)
    if most < 1 or how.num_beams < 1:
        raise AttentionError(
            "max_new_tokens ({most}) and num_beams ({beams}) must be at least 1", most=most, beams=how.num_beams
        )
    if room is not None:
        most = min(most, room - 1)
    # A copy: the settings that the library adjusts here must not stay on a model that others share.
    settings = copy.deepcopy(module.generation_config)
    settings.update(
        do_sample=False, num_beams=how.num_beams, max_new_tokens=most, max_length=None, return_dict_in_generate=False,
        output_attentions=False, output_hidden_states=False, output_scores=False,
    )  # fmt: skip
    if settings.min_length and settings.min_length >= most:
        settings.min_length = 0
    if how.num_beams == 1:
        settings.early_stopping, settings.length_penalty = False, 1.0
    watch = _Watch(how)
    mask = source.mask if source.mask is not None else torch.ones_like(source.real)
    with torch.no_grad():
        ids = module.generate(
            source.ids,
            attention_mask=mask.long(),
            generation_config=settings,
            stopping_criteria=StoppingCriteriaList([watch]),
        )
    if watch.stopped:
        notices.append(Notice("the text was stopped after {count} tokens", {"count": ids.shape[1] - 1}))
    ends = settings.eos_token_id
    ends = torch.tensor([] if ends is None else ends, device=ids.device).flatten()
    # Everything after the first end token is padding; position 0 is the start, which for BART is the end token too.
    ended = torch.isin(ids[:, 1:-1], ends).cumsum(dim=1) > 0
    real = (
        torch.cat([torch.ones_like(ended[:, :1]), ~ended], dim=1)
        if ids.shape[1] > 2
        else torch.ones_like(ids[:, :-1]).bool()
    )
    described = [_describe(model, row, "target") for row in ids[:, :-1].tolist()]
    return Side(
        ids[:, :-1],
        None if bool(real.all()) else real,
        real,
        tuple(tokens for tokens, _ in described),
        tuple(text for _, text in described),
        "generated",
        ids[:, 1:],
    )


class _Watch(StoppingCriteria):
    """Passes on progress, and the wish to stop."""

    def __init__(self, how: Generation) -> None:
        self.how, self.count, self.stopped = how, 0, False

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs) -> Tensor:
        self.count += 1
        if self.how.on_progress is not None:
            self.how.on_progress(self.count)
        self.stopped = self.stopped or bool(self.how.should_stop is not None and self.how.should_stop())
        return torch.full((input_ids.shape[0],), self.stopped, dtype=torch.bool, device=input_ids.device)


def _from_texts(model: LoadedModel, texts: list[str], side: str, notices: list[Notice]) -> Side:
    reader = model.reader(side)
    rows = [reader.encode(text) for text in texts]
    for text, row in zip(texts, rows):
        if not row:
            raise AttentionError("the {side} has no tokens: type at least one character", side=side)
        typed = reader.typed_controls(text, row)
        if typed:
            names = ", ".join(dict.fromkeys(typed))
            notices.append(
                Notice("{names} in the {side} is read as a control token, not as text", {"names": names, "side": side})
            )
    longest = max(map(len, rows))
    check_length(model, longest, side)
    pad = _pad_id(model)
    padding = _describe(model, [pad], side)[0] if len({len(row) for row in rows}) > 1 else ()
    tokens = tuple((*row, *padding * (longest - len(row))) for row in rows)
    device = model.module.device
    ids = torch.tensor([[token.id for token in row] for row in tokens])
    _check_range(model, ids, side)
    ids = ids.to(device)
    real = masks.padding(torch.tensor([len(row) for row in rows], device=device), longest)[:, 0, 0]
    return Side(ids, real, real, tokens, tuple(texts), "text")


def _from_ids(model: LoadedModel, given: object, mask: object, side: str, notices: list[Notice]) -> Side:
    try:
        ids = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise AttentionError(
            "the {side} must be a text, a list of texts, or token ids of shape (len,) or (batch, len)", side=side
        ) from error
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() != 2 or 0 in ids.shape or ids.is_floating_point() or ids.dtype == torch.bool:
        raise AttentionError(
            "the ids of the {side} must be whole numbers of shape (len,) or (batch, len), not {dtype} of shape {shape}",
            side=side,
            dtype=ids.dtype,
            shape=tuple(ids.shape),
        )
    _check_range(model, ids, side)
    device = model.module.device
    ids = ids.to(device=device, dtype=torch.long)
    visible = None
    if mask is not None:
        visible = masks.from_numbers(mask).to(device)
        visible = visible[None] if visible.dim() == 1 else visible
        if visible.shape != ids.shape:
            raise AttentionError(
                "a mask of shape {mask} does not fit the {side} ids of shape {ids}",
                mask=tuple(visible.shape),
                side=side,
                ids=tuple(ids.shape),
            )
        if not bool(visible.any(dim=1).all()):
            notices.append(
                Notice("a text of the {side} has no visible token: its attention means nothing", {"side": side})
            )
        elif not bool((visible.int().diff(dim=1) <= 0).all()):
            notices.append(
                Notice(
                    "the {side} is not padded on the right: a model with learned positions counts from the left whatever the "
                    "mask says, so its numbers differ from those of the same text without padding",
                    {"side": side},
                )
            )
    pad = model.module.config.pad_token_id
    if side == "source" and mask is None and pad is not None and bool((ids == pad).any()):
        notices.append(Notice("the source holds padding that is attended to, since no attention_mask was given"))
    described = [_describe(model, row, side) for row in ids.tolist()]
    return Side(
        ids,
        visible,
        torch.ones_like(ids, dtype=torch.bool) if visible is None else visible,
        tuple(tokens for tokens, _ in described),
        tuple(text for _, text in described),
        "ids",
    )


def _check_range(model: LoadedModel, ids: Tensor, side: str) -> None:
    """Raises AttentionError for ids that the embedding has no row for (a GPU would be lost to such a lookup)."""
    known = model.module.get_input_embeddings().num_embeddings
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= known:
        raise AttentionError(
            "the ids of the {side} must be from 0 to {last}; found {low} to {high}",
            side=side,
            last=known - 1,
            low=low,
            high=high,
        )


def _describe(model: LoadedModel, ids: Sequence[int], side: str) -> tuple[tuple[Token, ...], str]:
    if model.source_reader is None:
        return tuple(plain_tokens(ids)), " ".join(map(str, ids))
    tokens, text = model.reader(side).describe(ids)
    return tuple(tokens), text


def _pad_id(model: LoadedModel) -> int:
    """What fills up shorter texts; which id it is does not matter, since padding is masked."""
    reader = model.source_reader
    for pad in (reader and reader.tokenizer.pad_token_id, model.module.config.pad_token_id):
        if pad is not None:
            return pad
    return 0


def _library_shift(model: LoadedModel, labels: Tensor) -> Tensor:
    module = model.module
    if hasattr(module, "prepare_decoder_input_ids_from_labels"):
        return module.prepare_decoder_input_ids_from_labels(labels=labels)
    shift = getattr(sys.modules[type(module).__module__], "shift_tokens_right", None)
    if shift is None:
        raise AttentionError(
            "{model} does not say how a target is shifted: give the decoder's input as token ids",
            model=type(module).__name__,
        )
    config = module.config
    known = {"pad_token_id": config.pad_token_id, "decoder_start_token_id": config.decoder_start_token_id}
    return shift(labels, **{name: known[name] for name in inspect.signature(shift).parameters if name in known})
