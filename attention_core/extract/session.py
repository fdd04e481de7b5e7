"""Which session, if any, the current thread has opened around a model call.

A session decides what a model's attention modules do while it is open: record their inputs, be replayed, and whatever
else is written as a class with the two methods below. None is open most of the time, and then a model runs as the
library would run it. The ContextVar keeps threads apart, so many of them may share one model.

This module is imported once and holds nothing else, so that an editor's reload of the code around it does not leave the
hooks of a loaded model reading a ContextVar that nobody sets any more.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from .registry import Call

_OPEN: ContextVar["Session | None"] = ContextVar("attention_core_session", default=None)


class Session:
    """What the attention modules of one model do while the session is open.

    Args:
        modules: the model's attention modules and stacks by name, as LoadedModel holds them. Modules of another model
            that runs in the same thread are left alone.
    """

    # Whether the library must write every mask out, also where its fused attention could go without.
    writes_masks = False

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.modules = modules

    def owns(self, module: nn.Module) -> bool:
        return self.modules.get(getattr(module, "_attention_name", None)) is module

    def before(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Called with the inputs of an attention module, before it runs."""

    def begin(self, stack: nn.Module, args: tuple, kwargs: dict) -> None:
        """Called with the inputs of a stack of decoder layers, each time it runs: once a step of a generation."""

    def attend(self, module: nn.Module, call: "Call") -> Tensor:
        """The context (batch, query_len, heads, head_dim) of one attention, contiguous."""
        return call.fused()


@contextmanager
def opened(session: Session) -> Iterator[Session]:
    """Opens the session for this thread, and closes it whatever happens. Keep only the model call inside."""
    token = _OPEN.set(session)
    try:
        yield session
    finally:
        _OPEN.reset(token)


def is_any_open() -> bool:
    return _OPEN.get() is not None


def masks_are_written() -> bool:
    session = _OPEN.get()
    return session is not None and session.writes_masks


def session_of(module: nn.Module) -> Session | None:
    """The open session, if it belongs to the model of this module."""
    session = _OPEN.get()
    return session if session is not None and session.owns(module) else None


def before_stack(stack: nn.Module, args: tuple, kwargs: dict) -> None:
    """The forward pre-hook of every stack of decoder layers, registered once, when a model is loaded."""
    session = _OPEN.get()
    if session is not None and session.modules.get(stack._attention_name) is stack:
        session.begin(stack, args, kwargs)


def before_attention(module: nn.Module, args: tuple, kwargs: dict) -> None:
    """The forward pre-hook of every attention module, registered once, when a model is loaded."""
    session = session_of(module)
    if session is not None:
        session.before(module, args, kwargs)
