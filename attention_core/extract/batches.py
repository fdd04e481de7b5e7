"""Many texts, a batch at a time: what a model is fed, and a run of it under a session, with or without its language head."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from ..errors import AttentionError
from . import inputs
from .inputs import Side
from .models import LoadedModel
from .session import Session, opened
from .trace import model_arguments, model_errors

# Texts are sorted by length within so many, so that those of one batch need little padding.
_WINDOW = 256
# A batch has at most so many query-key pairs (those of 8 texts of 128 tokens), so that one head's maps stay in the cache.
_PAIRS = 1 << 17
_MOST_TEXTS = 64


@dataclass(frozen=True, eq=False)
class Example:
    """One text that a model is fed.

    Attributes:
        index: its number, counted by whoever gave it.
        source: a text, or token ids.
        target: a text, or token ids that the decoder is fed as they are; None = the source, shifted right by the library.
    """

    index: int
    source: str | Sequence[int]
    target: str | Sequence[int] | None = None


@dataclass(frozen=True, eq=False)
class Fed:
    """A batch as the model is fed it.

    Attributes:
        source: the encoder's side, or that of the only stack.
        target: the decoder's side; None for a model with one stack.
        examples: the texts, in the order of the batch.
    """

    source: Side
    target: Side | None
    examples: tuple[Example, ...]

    def side(self, kind: str, axis: str) -> Side:
        """The side that is the "query" or the "key" axis of a kind."""
        if self.target is None or kind == "encoder" or (kind == "cross" and axis == "key"):
            return self.source
        return self.target


def batched(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """Batches of texts of about the same length, in an order that depends on nothing but the texts.

    Lengths are guessed from characters, since tokens are not known yet. At most 256 texts are looked at ahead.
    """
    examples = iter(examples)
    while window := list(islice(examples, _WINDOW)):
        window.sort(key=_guess)
        batch: list[Example] = []
        for example in window:
            pairs = (len(batch) + 1) * _guess(example) ** 2
            alike = not batch or isinstance(batch[0].source, str) == isinstance(example.source, str)
            if batch and (pairs > _PAIRS or len(batch) == _MOST_TEXTS or not alike):
                yield batch
                batch = []
            batch.append(example)
        yield batch


def read_batch(model: LoadedModel, examples: Sequence[Example]) -> Fed:
    """Reads texts, or ids, as one batch padded on the right.

    Raises:
        AttentionError: a text that is empty or too long, a target for a model that has no decoder beside its encoder.
    """
    if model.module.training:
        raise AttentionError(
            "the model is in training mode, where dropout is drawn at random: call module.eval() first"
        )
    source = _read(model, [example.source for example in examples], "source")
    given = [example.target for example in examples]
    if not model.is_encoder_decoder:
        if any(target is not None for target in given):
            raise AttentionError(
                "{model} takes no target: it has no decoder beside an encoder", model=model.report.architecture
            )
        return Fed(source, None, tuple(examples))
    if all(target is None for target in given):
        return Fed(source, inputs.shifted(model, source, "shifted source"), tuple(examples))
    if any(target is None for target in given):
        raise AttentionError("either every text of a batch has a target, or none")
    read = _read(model, given, "target")
    return Fed(source, inputs.shifted(model, read, "text") if read.origin == "text" else read, tuple(examples))


def readable(
    model: LoadedModel, batch: Sequence[Example], on_skip: Callable[[Example, AttentionError], None]
) -> list[Fed]:
    """The batch, read; where some of its texts cannot be, the others in smaller batches, those being told to on_skip."""
    try:
        return [read_batch(model, batch)]
    except AttentionError as error:
        if len(batch) == 1:
            on_skip(batch[0], error)
            return []
        middle = len(batch) // 2
        return readable(model, batch[:middle], on_skip) + readable(model, batch[middle:], on_skip)


def run(model: LoadedModel, fed: Fed, session: Session, *, head: bool = False, encoded: Tensor | None = None):
    """One run of the model under a session.

    Args:
        model, fed, session: what runs, on what, and what its attentions do meanwhile.
        head: whether the language head runs too.
        encoded: (batch, source_len, d_model), what the encoder made of this batch, so that only the decoder runs.

    Returns:
        the library's output: with "logits" if the head ran, and "encoder_last_hidden_state" if there is an encoder.
    """
    module = model.module if head else model.module.base_model
    arguments = model_arguments(model, fed.source, fed.target)
    if encoded is not None:
        arguments["encoder_outputs"] = (encoded,)
    with model_errors(model), opened(session):
        return module(**arguments)


def _read(model: LoadedModel, given: Sequence[str | Sequence[int]], side: str) -> Side:
    if all(isinstance(text, str) for text in given):
        return inputs.read_side(model, list(given), None, side, [])
    lengths = [len(row) for row in given]
    if not min(lengths):
        raise AttentionError("the {side} has no tokens", side=side)
    ids, mask = (torch.zeros(len(given), max(lengths), dtype=torch.long) for _ in range(2))
    for row, (length, x) in enumerate(zip(lengths, given)):
        ids[row, :length], mask[row, :length] = torch.as_tensor(x), 1
        # What stands behind the mask is of no account; the first token's id is one that the model has.
        ids[row, length:] = int(x[0])
    return inputs.read_side(model, ids, mask, side, [])


def _guess(example: Example) -> int:
    """About how many tokens the longer side of a text has."""
    sides = [x for x in (example.source, example.target) if x is not None]
    return max(len(x) // 4 + 3 if isinstance(x, str) else len(x) for x in sides)
