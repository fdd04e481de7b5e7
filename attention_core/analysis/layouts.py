"""What the tokens of a batch are to an attention: resting places, ends, punctuation."""

import unicodedata

import torch
from torch import Tensor

from ..extract.batches import Fed
from ..extract.inputs import Side
from ..extract.models import LoadedModel
from .head_maps import Layout


def layouts_of(model: LoadedModel, fed: Fed) -> dict[str, Layout]:
    """The layout of each kind of attention that the model has, for a batch."""
    marks = {id(side): _marks(model, side) for side in (fed.source, fed.target) if side is not None}
    layouts = {}
    for kind in model.kinds:
        query, key = fed.side(kind, "query"), fed.side(kind, "key")
        layouts[kind] = Layout(kind, query.real, key.real, *marks[id(key)], query.ids, key.ids)
    return layouts


# Control tokens that say nothing about a text. <mask> is not among them: it stands for a word, and is looked at for that.
_RESTING = ("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "decoder_start_token_id")


def _marks(model: LoadedModel, side: Side) -> tuple[Tensor, Tensor, Tensor | None]:
    """(batch, len) each: resting places, end tokens, punctuation (None for tokens without a text)."""
    device = side.ids.device
    resting = torch.isin(side.ids, torch.tensor(sorted(_ids(model, *_RESTING)), dtype=torch.long, device=device))
    resting[:, 0] = True
    ends = torch.tensor(sorted(_ids(model, "eos_token_id", "sep_token_id")), dtype=torch.long, device=device)
    end = torch.isin(side.ids, ends)
    end[:, 0] = False
    if model.source_reader is None:
        return resting & side.real, end & side.real, None
    marks = [
        [token.span is not None and is_punctuation(text[slice(*token.span)]) for token in tokens]
        for tokens, text in zip(side.tokens, side.texts)
    ]
    return resting & side.real, end & side.real, torch.tensor(marks, device=device) & side.real


def _ids(model: LoadedModel, *names: str) -> set[int]:
    owners = [model.module.config]
    if model.source_reader is not None:
        owners.append(model.source_reader.tokenizer)
    found: set[int] = set()
    for owner in owners:
        for name in names:
            value = getattr(owner, name, None)
            if value is not None:
                found |= set(value) if isinstance(value, list | tuple) else {value}
    return found


def is_punctuation(text: str) -> bool:
    text = text.strip()
    return bool(text) and all(unicodedata.category(character).startswith("P") for character in text)
