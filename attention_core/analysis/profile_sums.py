"""The profile of a model: what its heads do, over many texts, as sums that can be saved, read and added to each other."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ..errors import AttentionError
from ..extract.models import LoadedModel
from ..extract.registry import KINDS
from .head_metrics import BY_NAME, COLUMNS
from .sums import CORNER, Corners, Moments, Pairs

_FORMAT = 1


@dataclass(eq=False)
class Profile:
    """Sums over texts of every number of every head; grows by ``add``, never with the number of texts.

    Attributes:
        model: "name", "architecture" and "fingerprint" of the weights (see ``fingerprint``).
        edits: what was changed in the model, as ``edits_to_text`` writes it; "[]" = nothing.
        shapes: kind -> (layers, heads).
        moments: kind -> name of a column -> its sums.
        corners, pairs: kind -> what variability, and head against head, are read from.
        texts, tokens: how many texts, and real tokens (of all sides), the maps were read of.
    """

    model: Mapping[str, str]
    edits: str = "[]"
    shapes: dict[str, tuple[int, int]] = field(default_factory=dict)
    moments: dict[str, dict[str, Moments]] = field(default_factory=dict)
    corners: dict[str, Corners] = field(default_factory=dict)
    pairs: dict[str, Pairs] = field(default_factory=dict)
    texts: int = 0
    tokens: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    def columns(self, kind: str | None = None) -> tuple[str, ...]:
        """Names of the columns that hold at least one number, in the order of COLUMNS; kind None = of any kind."""
        kinds = self.kinds if kind is None else (kind,)
        return tuple(c.name for c in COLUMNS if any(np.isfinite(self.mean(k, c.name)).any() for k in kinds))

    def add(self, kind: str, column: str, values, texts: Sequence[int]) -> None:
        """Adds one number of every head for some texts.

        Args:
            kind: "encoder", "decoder" or "cross".
            column: a name of COLUMNS.
            values: (texts, layers, heads); NaN = this text says nothing about this head.
            texts: their indices.

        Raises:
            AttentionError: a column that there is not, or values for other heads than before.
        """
        _known(column)
        values = np.asarray(values)
        self.shape_of(kind, *values.shape[1:])
        columns = self.moments[kind]
        found = Moments.of(values, texts)
        columns[column] = columns[column].plus(found) if column in columns else found

    def add_maps(self, kind: str, corners: Corners, pairs: Pairs) -> None:
        """Adds a batch's sums of map corners and of pairs of heads."""
        layers, heads = corners.squares.shape
        self.shape_of(kind, layers, heads)
        self.corners[kind] = self.corners.get(kind, Corners.empty(layers, heads)).plus(corners)
        self.pairs[kind] = self.pairs.get(kind, Pairs.empty(layers, heads)).plus(pairs)

    def shape_of(self, kind: str, layers: int, heads: int) -> None:
        """Notes how many layers and heads a kind has; raises AttentionError where it had others before."""
        if self.shapes.setdefault(kind, (layers, heads)) != (layers, heads):
            raise AttentionError(
                "a profile of {known} (layers, heads) of {kind} attention cannot take in {found}",
                known=self.shapes[kind],
                kind=kind,
                found=(layers, heads),
            )
        self.moments.setdefault(kind, {})

    def mean(self, kind: str, column: str) -> np.ndarray:
        """(layers, heads): the mean over texts; NaN where no text says anything. See COLUMNS for units.

        Importance is divided by the root of the sum of squares over its layer (Michel et al. 2019, section 4.1).
        """
        return self._read(kind, column, Moments.mean)

    def spread(self, kind: str, column: str) -> np.ndarray:
        """(layers, heads): the standard deviation over texts, in the unit of the mean; NaN for variability, which has none."""
        return self._read(kind, column, Moments.spread)

    def worst(self, kind: str, column: str, layer: int, head: int, *, high: bool) -> int | None:
        """The index of the text with the highest (or lowest) value of a column for one head; None where there is none."""
        sums = self.moments.get(kind, {}).get(column)
        found = -1 if sums is None else int((sums.most_text if high else sums.least_text)[layer, head])
        return None if found < 0 else found

    def distances(self, kind: str) -> np.ndarray:
        """(layers * heads, layers * heads): mean Jensen-Shannon divergence of the maps, nats; layers one after the other."""
        return self.pairs[kind].distances()

    def differences(self, kind: str) -> np.ndarray:
        """(layers, heads, heads): how much the outputs of two heads of a layer differ, see ``Pairs.differences``."""
        return self.pairs[kind].differences()

    def merge(self, other: "Profile") -> "Profile":
        """The profile of both sets of texts.

        Raises:
            AttentionError: profiles of different models or edits.
        """
        self.check_same(other.model, other.edits)
        merged = Profile(
            dict(self.model), self.edits, texts=self.texts + other.texts, tokens=self.tokens + other.tokens
        )
        for part in (self, other):
            for kind, shape in part.shapes.items():
                merged.shape_of(kind, *shape)
                for column, sums in part.moments[kind].items():
                    known = merged.moments[kind].get(column)
                    merged.moments[kind][column] = sums if known is None else known.plus(sums)
                if kind in part.corners:
                    merged.add_maps(kind, part.corners[kind], part.pairs[kind])
        return merged

    def check_same(self, model: Mapping[str, str], edits: str) -> None:
        """Raises AttentionError unless these sums are of this model, by its weights, under these edits."""
        if self.model["fingerprint"] != model["fingerprint"]:
            raise AttentionError(
                "these sums are of another model: {theirs} ({their_print}), not {ours} ({our_print})",
                theirs=self.model["name"],
                their_print=self.model["fingerprint"],
                ours=model["name"],
                our_print=model["fingerprint"],
            )
        if self.edits != edits:
            raise AttentionError(
                "these sums were taken under the edits {theirs}, not {ours}", theirs=self.edits, ours=edits
            )

    def to_json(self) -> str:
        """All sums as JSON; ``from_json`` gives back the same numbers, bit for bit."""
        kinds = {}
        for kind, shape in self.shapes.items():
            kinds[kind] = {"shape": shape, "moments": {name: x.to_lists() for name, x in self.moments[kind].items()}}
            if kind in self.corners:
                corners, pairs = self.corners[kind], self.pairs[kind]
                heads = shape[0] * shape[1]
                kinds[kind] |= {
                    "corners": [corners.count, corners.total.tolist(), corners.squares.tolist()],
                    # Symmetric: half of it, and the diagonal, which is 0 for divergences.
                    "pairs": [
                        pairs.rows,
                        pairs.divergence[np.triu_indices(heads, 1)].tolist(),
                        pairs.products[:, *np.triu_indices(shape[1])].tolist(),
                    ],
                }
        whole = {
            "format": _FORMAT,
            "model": dict(self.model),
            "edits": self.edits,
            "texts": self.texts,
            "tokens": self.tokens,
        }
        return json.dumps(whole | {"kinds": kinds}, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        """Reads what ``to_json`` wrote.

        Raises:
            AttentionError: a text that is not such a profile.
        """
        try:
            read = json.loads(text)
            if read["format"] != _FORMAT:
                raise AttentionError(
                    "this profile has format {found}, and format {known} is read here",
                    found=read["format"],
                    known=_FORMAT,
                )
            model = {name: str(read["model"][name]) for name in ("name", "architecture", "fingerprint")}
            profile = cls(model, str(read["edits"]), texts=int(read["texts"]), tokens=int(read["tokens"]))
            for kind, part in read["kinds"].items():
                layers, heads = map(int, part["shape"])
                profile.shape_of(_of_kinds(kind), layers, heads)
                profile.moments[kind] = {
                    _known(name): Moments.from_lists(lists) for name, lists in part["moments"].items()
                }
                for sums in profile.moments[kind].values():
                    for name in Moments.__dataclass_fields__:
                        _shaped(getattr(sums, name), layers, heads)
                if "corners" in part or "pairs" in part:
                    count, total, squares = part["corners"]
                    rows, divergence, products = part["pairs"]
                    profile.corners[kind] = Corners(
                        int(count), _shaped(total, layers, heads, CORNER, CORNER), _shaped(squares, layers, heads)
                    )
                    number = layers * heads
                    divergence = _shaped(divergence, number * (number - 1) // 2)
                    products = _shaped(products, layers, heads * (heads + 1) // 2)
                    profile.pairs[kind] = Pairs(
                        int(rows),
                        _symmetric(divergence, number, 1),
                        np.stack([_symmetric(layer, heads, 0) for layer in products]),
                    )
            return profile
        except (
            AttributeError,
            IndexError,
            KeyError,
            MemoryError,
            OverflowError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            if isinstance(error, AttentionError):
                raise
            raise AttentionError("this is not a profile of a model's heads") from error

    def _read(self, kind: str, column: str, reading) -> np.ndarray:
        """The mean or the spread of a column, in the unit it is shown in."""
        if kind not in self.shapes:
            raise AttentionError(
                "this profile has no {kind} attention: it has {kinds}", kind=kind, kinds=", ".join(self.kinds)
            )
        if _known(column) == "variability" and reading is Moments.mean and kind in self.corners:
            return self.corners[kind].variability()
        sums = self.moments[kind].get(column)
        if sums is None:
            return np.full(self.shapes[kind], np.nan)
        found = reading(sums)
        if BY_NAME[column].per_layer:
            size = np.sqrt((sums.mean() ** 2).sum(-1, keepdims=True))
            found = np.divide(found, size, out=np.zeros_like(found), where=size > 0)
        return found


def new_profile(model: LoadedModel, edits: str = "[]") -> Profile:
    """An empty profile of a model."""
    report = model.report
    known = {"name": report.name, "architecture": report.architecture, "fingerprint": fingerprint(model)}
    return Profile(known, edits)


def read_profile(path: Path) -> Profile:
    """The profile in a file; AttentionError where it cannot be read."""
    try:
        return Profile.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise AttentionError("{path} cannot be read: {reason}", path=str(path), reason=str(error)) from error


def shipped_profile() -> Profile:
    """The profile of the embedded model as it was shipped: of its stories, with the effect of switching each head off."""
    return read_profile(Path(__file__).parent.parent / "embedded" / "profile.json")


def fingerprint(model: LoadedModel) -> str:
    """16 hexadecimal digits that tell models apart by their weights, wherever they are and whatever they are called."""
    digest = hashlib.sha256()
    for name, x in model.module.named_parameters():
        digest.update(f"{name} {tuple(x.shape)} {x.dtype}".encode())
        digest.update(x.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def _known(column: str) -> str:
    if column not in BY_NAME:
        raise AttentionError(
            "there is no column {column!r}: there are {known}", column=column, known=", ".join(BY_NAME)
        )
    return column


def _of_kinds(kind: str) -> str:
    if kind not in KINDS:
        raise AttentionError("there is no {kind} attention: there are {known}", kind=kind, known=", ".join(KINDS))
    return kind


def _shaped(values, *shape: int) -> np.ndarray:
    """The numbers as an array of that shape; ValueError where they have another."""
    array = np.asarray(values)
    if array.shape != shape or array.dtype.kind not in "if":
        raise ValueError
    return array


def _symmetric(half: np.ndarray, size: int, diagonal: int) -> np.ndarray:
    whole = np.zeros((size, size))
    rows, columns = np.triu_indices(size, diagonal)
    whole[rows, columns] = whole[columns, rows] = half
    return whole
