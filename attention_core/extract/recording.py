"""What a trace does inside a model: keep the inputs of its attention modules, and call one of them again."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..errors import AttentionError
from . import families
from .interventions import Editing
from .registry import Call
from .session import Session, opened

# Left out of a record: a replay with a cache would append to it.
_NOT_RECORDED = ("cache", "past_key_values", "use_cache")


@dataclass(frozen=True, eq=False)
class Record:
    """What went into one call of an attention module."""

    name: str
    args: tuple
    kwargs: dict


class Recording(Session):
    """Keeps the inputs of every attention module; runs fused attention, or ours step by step, with edits if there are any."""

    def __init__(self, editing: Editing, exact: bool) -> None:
        super().__init__(editing.modules)
        self.exact, self.editing = exact, editing
        # A fused run goes without masks where the library does: it is then the plain run, bit for bit, and costs the same.
        self.writes_masks = exact or editing.writes_masks
        self.records: dict[tuple[str, int], Record] = {}
        self._calls: dict[str, int] = {}

    def before(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        name = module._attention_name
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        kept = {key: value for key, value in kwargs.items() if key not in _NOT_RECORDED}
        self.records[name, call] = Record(name, args, kept)

    def attend(self, module: nn.Module, call: Call) -> Tensor:
        # A recorded run has no cache, so that its first query is at position 0.
        call = self.editing.edited(module._attention_name, call)
        return call.steps().context.transpose(1, 2).contiguous() if self.exact else call.fused()


class Replay(Session):
    """Stops a module at its attention function and keeps what it was called with."""

    call: Call | None = None

    def attend(self, module: nn.Module, call: Call) -> Tensor:
        self.call = call
        raise _Seen


class _Seen(Exception):
    pass


def replayed(modules: dict[str, nn.Module], record: Record, heads: list[int] | None = None) -> Call:
    """The call of the attention function that a recorded module makes: all heads' query, key, value, and the mask.

    Args:
        modules: of the model.
        record: what the module was called with.
        heads: cut the projections to these heads where the module's family allows it; None = project all.
    """
    module = modules[record.name]
    cut = None if heads is None else families.cut_to_heads(module, heads)
    session = Replay(modules if cut is None else {record.name: cut})
    with torch.no_grad(), opened(session):
        try:
            (module if cut is None else cut)(*record.args, **record.kwargs)
        except _Seen:
            pass
    if session.call is None:
        raise AttentionError("{name} did not call the attention function when it was replayed", name=record.name)
    return replace(session.call, is_cut=cut is not None)
