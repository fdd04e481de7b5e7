"""What an argument must be, said in one sentence where it is not."""

from operator import index

import torch
from torch import Tensor

from ..errors import AttentionError


def whole(name: str, value: object, least: int) -> int:
    """The value as an int, if it is a whole number (of Python, numpy or torch; True and False are none), at least ``least``."""
    number = _int(value)
    if number is None or number < least:
        raise AttentionError(
            "{name} ({value}) must be a whole number, at least {least}", name=name, value=value, least=least
        )
    return number


def inside(name: str, value: object, size: int) -> int:
    """The value as an int, if it counts one of ``size`` things from 0."""
    number = _int(value)
    if number is None:
        raise AttentionError("{name} must be a whole number, not {value!r}", name=name, value=value)
    if not 0 <= number < size:
        raise AttentionError("{name} {index} is outside 0 to {last}", name=name, index=number, last=size - 1)
    return number


def check_dropout(dropout: object) -> None:
    """Raises AttentionError unless it is a probability below 1."""
    try:
        if 0 <= dropout < 1:
            return
    except (TypeError, ValueError, RuntimeError):
        pass
    raise AttentionError("dropout ({dropout}) must be at least 0 and below 1", dropout=dropout)


def check_tensor(name: str, x: object) -> None:
    """Raises AttentionError unless it is a torch tensor."""
    if not isinstance(x, Tensor):
        raise AttentionError(
            "{name} must be a torch tensor, not {type}: torch.as_tensor makes one of numbers",
            name=name,
            type=type(x).__name__,
        )


def as_tensor(name: str, numbers: object) -> Tensor:
    """Numbers, lists of numbers or an array as a tensor."""
    try:
        return torch.as_tensor(numbers)
    except (TypeError, ValueError, RuntimeError) as error:
        raise AttentionError(
            "{name} must be numbers in rows of one length, not {numbers}", name=name, numbers=numbers
        ) from error


def _int(value: object) -> int | None:
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None
