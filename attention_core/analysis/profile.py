"""What every head of a model does, over many texts: taken in flight, in one run a batch, without its language head.

    for progress in profile_texts(model, texts): ...        progress.profile holds the sums so far
    profile = progress.profile

    python -m attention_core.analysis.profile TEXTS --model embedded --profile sums.json --out heads.csv

A stopped job keeps what is done: the sums are complete after every batch, and ``profile_texts(..., into=profile, done=...)``
goes on from there. The profile of the sound embedded model, which is shipped with it, is made by

    python -m attention_core.analysis.profile attention_core/embedded/stories.jsonl \\
        --profile attention_core/embedded/profile.json --gradients --ablation 48 --restart
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, repeat

import torch
from torch import Tensor

from ..errors import AttentionError
from ..extract import families
from ..extract.batches import Example, Fed, batched, readable, run
from ..extract.interventions import Edit, Editing, Means, edits_to_text
from ..extract.models import LoadedModel
from ..extract.registry import Call
from ..layer.attention import AttentionSteps
from .compare import head_distances
from .head_maps import HeadMaps, Layout, length_factors
from .head_metrics import COLUMNS
from .layouts import layouts_of
from .profile_sums import Profile, new_profile
from .sums import CORNER, Corners, Pairs

# Rows of a text on which heads are compared with each other, evenly spaced: all pairs of heads on all rows would cost
# several times what the model does.
PAIR_ROWS = 8


@dataclass(frozen=True)
class Skipped:
    """A text that was left out: its index, and why, as a template with values."""

    index: int
    template: str
    values: dict

    def __str__(self) -> str:
        return self.template.format(**self.values)


def skipped_text(example: Example, error: AttentionError) -> Skipped:
    return Skipped(example.index, error.template, error.values)


@dataclass(frozen=True)
class Progress:
    """How far a job over texts is.

    Attributes:
        profile: the sums so far.
        done: texts that need not be looked at again, skipped ones included, in the order of the job.
        total: all texts; None where that is not known.
        seconds_left: a guess by the texts done so far; None where it cannot be guessed.
        skipped: the texts left out so far.
    """

    profile: Profile
    done: int
    total: int | None
    seconds_left: float | None
    skipped: tuple[Skipped, ...]


@dataclass(eq=False)
class Clock:
    """Guesses the time left from the share of the work that is done since it was made."""

    total: int | None
    begun: float = field(default_factory=time.monotonic)
    started_at: int = 0

    def left(self, done: int) -> float | None:
        if self.total is None or done <= self.started_at:
            return None
        return (time.monotonic() - self.begun) / (done - self.started_at) * max(0, self.total - done)


def profile_texts(
    model: LoadedModel,
    texts: Iterable[str | Sequence[int]],
    *,
    targets: Iterable[str | Sequence[int]] | None = None,
    edits: Sequence[Edit] = (),
    means: Means | None = None,
    into: Profile | None = None,
    done: int = 0,
    indices: Iterable[int] | None = None,
) -> Iterator[Progress]:
    """Profiles texts, a batch at a time; memory is that of one batch.

    Args:
        model: from ``load_model``; nothing is changed on it.
        texts: texts, or token ids; any iterable, read as it is needed.
        targets: for models with a decoder, as in ``trace``; None = the source, shifted right by the library.
        edits, means: changes of the model's attentions during the profile, as in ``trace``.
        into: a profile to add to; None = a new one.
        done: how many texts of this job that profile holds already, as ``Progress.done`` said.
        indices: the texts' numbers, by which examples are named; None = 0, 1, 2 ...

    Yields:
        Progress after every batch. A text that cannot be read is skipped, and said to be.

    Raises:
        AttentionError: edits that the model does not allow, or a profile of another model or of other edits.
    """
    session = Watching(model, edits, means)
    said = edits_to_text(session.edits)
    profile = new_profile(model, said) if into is None else into
    if into is not None:
        into.check_same(new_profile(model).model, said)
    yield from over_batches(profile, texts, targets, indices, done, model, lambda fed: session.read(fed, profile))


def profile_of(model: LoadedModel, texts: Iterable[str | Sequence[int]], **options) -> Profile:
    """The finished profile of texts; arguments as in ``profile_texts``.

    Raises:
        AttentionError: no text that can be read.
    """
    progress = next(iter(deque(profile_texts(model, texts, **options), maxlen=1)), None)
    if progress is None or not progress.profile.texts:
        why = "there is none" if progress is None else str(progress.skipped[0])
        raise AttentionError("a profile needs at least one text that can be read: {reason}", reason=why)
    return progress.profile


def over_batches(
    profile: Profile,
    texts: Iterable,
    targets: Iterable | None,
    indices: Iterable[int] | None,
    done: int,
    model: LoadedModel,
    read: Callable[[Fed], None],
) -> Iterator[Progress]:
    """Calls ``read`` with batches of texts until all are done, and tells the progress after each."""
    total = len(texts) if hasattr(texts, "__len__") else None
    examples = map(
        Example, count() if indices is None else indices, texts, repeat(None) if targets is None else targets
    )
    clock, skipped, seen = Clock(total, started_at=done), [], 0

    for batch in batched(examples):
        seen += len(batch)
        if seen <= done:
            continue
        for fed in readable(model, batch, lambda *failed: skipped.append(skipped_text(*failed))):
            read(fed)
        yield Progress(profile, seen, total, clock.left(seen), tuple(skipped))


class Watching(Editing):
    """Computes every attention step by step, edited or not, and takes its numbers as it passes."""

    def __init__(self, model: LoadedModel, edits: Sequence[Edit] = (), means: Means | None = None) -> None:
        super().__init__(model, edits, means)
        self.writes_masks = True
        self._model = model
        self._outs = {site.name: _out_weight(model, site.name) for site in model.sites}
        self._factors = {
            site.name: None if self._outs[site.name] is None else length_factors(self._outs[site.name], site.num_heads)
            for site in model.sites
        }
        self._layouts: dict[str, Layout] = {}
        self._found: dict[str, list[_Layer]] = {}
        self._rows: dict[str, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def read(self, fed: Fed, profile: Profile) -> None:
        """Runs one batch and adds its numbers to the profile."""
        self._layouts = layouts_of(self._model, fed)
        self._rows = {kind: _compared_rows(layout) for kind, layout in self._layouts.items()}
        self._found = {}
        run(self._model, fed, self)
        texts = [example.index for example in fed.examples]
        for kind, layers in self._found.items():
            for column in layers[0].numbers:
                values = torch.stack([layer.numbers[column] for layer in layers], 1)
                profile.add(kind, column, values.double().cpu().numpy(), texts)
            profile.add_maps(kind, _corners(layers), _pairs(layers))
        self._found = {}
        profile.texts += len(texts)
        sides = {id(side): side for side in (fed.source, fed.target) if side is not None}
        profile.tokens += sum(int(side.real.sum()) for side in sides.values())

    def attend(self, module: torch.nn.Module, call: Call) -> Tensor:
        name = module._attention_name
        # Without a cache the first query is at position 0.
        steps = self.edited(name, call).steps()
        site = self._sites[name]
        layout, rows = self._layouts[site.kind], self._rows[site.kind]
        maps = HeadMaps(layout, steps.weights, steps.mask, steps.context, self._factors[name])
        # A module that all layers share (ALBERT) is met once a layer, in their order; so is every other.
        self._found.setdefault(site.kind, []).append(_layer(maps, steps, rows, self._outs[name]))
        return steps.context.transpose(1, 2).contiguous()


@dataclass(frozen=True, eq=False)
class _Layer:
    """What is kept of one layer until its batch is done.

    numbers: name of a column -> (batch, heads). corner: (texts that are long enough, heads, 8, 8).
    weights: (heads, compared rows, key_len). outputs: (heads, compared rows, d_model), None where it is not known.
    """

    numbers: dict[str, Tensor]
    corner: Tensor
    weights: Tensor
    outputs: Tensor | None


def _layer(maps: HeadMaps, steps: AttentionSteps, rows: tuple[Tensor, Tensor], out: Tensor | None) -> _Layer:
    layout = maps.layout
    numbers = {c.name: c.measure(maps) for c in COLUMNS if c.measure is not None and layout.kind in c.kinds}
    enough = (layout.rows.sum(-1) >= CORNER) & (layout.key_count >= CORNER)
    corner = maps.wide[:, :, :CORNER, :CORNER] if bool(enough.any()) else maps.wide[:0, :, :1, :1]
    if len(corner):
        counted = (layout.own[:, :CORNER].sum(-1) >= 2)[:, None, :, None]
        corner = (corner * counted)[enough]
    compared = _at(maps.wide, *rows)
    outputs = None
    if out is not None:
        heads = out.unflatten(1, (maps.weights.shape[1], -1)).permute(1, 2, 0)  # (heads, head_dim, d_model)
        outputs = _at(steps.context, *rows).to(heads.dtype) @ heads
    return _Layer(numbers, corner, compared, outputs)


def _at(x: Tensor, places: Tensor, valid: Tensor) -> Tensor:
    """Some rows of each text, one after the other: (batch, heads, len, width) -> (heads, rows, width)."""
    batch, heads, _, width = x.shape
    index = places[:, None, :, None].expand(batch, heads, -1, width)
    return x.gather(2, index).transpose(0, 1)[:, valid]


def _compared_rows(layout: Layout) -> tuple[Tensor, Tensor]:
    """Evenly spaced rows with a choice: their places (batch, 8), and which of these exist (batch, 8)."""
    counted = layout.own.sum(-1) >= 2
    number = counted.sum(-1, keepdim=True)
    order = (~counted).int().sort(dim=-1, stable=True).indices
    places = torch.arange(PAIR_ROWS, device=counted.device)[None]
    taken = number.clamp(max=PAIR_ROWS)
    spaced = ((2 * places + 1) * number).div(2 * taken.clamp(min=1), rounding_mode="floor")
    return order.gather(1, spaced.clamp(max=counted.shape[1] - 1)), places < taken


def _corners(layers: Sequence[_Layer]) -> Corners:
    count = len(layers[0].corner)
    corners = torch.stack([layer.corner for layer in layers]).double()  # (layers, texts, heads, 8, 8)
    if not count:
        return Corners.empty(len(layers), corners.shape[2])
    return Corners(count, corners.sum(1).cpu().numpy(), corners.square().sum((1, 3, 4)).cpu().numpy())


def _pairs(layers: Sequence[_Layer]) -> Pairs:
    heads, rows, key_len = layers[0].weights.shape
    if not rows or key_len < 2:
        return Pairs.empty(len(layers), heads)
    maps = torch.cat([layer.weights for layer in layers])[None]
    divergence = head_distances(maps) * rows
    if layers[0].outputs is None:
        products = torch.full((len(layers), heads, heads), torch.nan, dtype=torch.float64)
    else:
        flat = torch.stack([layer.outputs for layer in layers]).flatten(2).double()
        products = flat @ flat.transpose(1, 2)
    return Pairs(rows, divergence, products.cpu().numpy())


def _out_weight(model: LoadedModel, name: str) -> Tensor | None:
    out = families.out_projection(model.module, name)
    if not isinstance(out, torch.nn.Linear):
        return None
    return out.weight.detach().to(torch.promote_types(out.weight.dtype, torch.float32))


if __name__ == "__main__":
    from .profile_command import main

    raise SystemExit(main())
