"""Sums over texts, from which means, spreads and worst examples are read at any time, and which can be added to each other.

Whatever is kept here has a size that depends on the model alone, not on the number of texts: a corpus may be split over
processes and machines, and its parts merged afterwards. Sums are float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Cells of a map's upper left corner, of which variability over texts is taken.
CORNER = 8


@dataclass(frozen=True, eq=False)
class Moments:
    """One number of every head of a kind, over texts; a text for which the number is NaN is not counted.

    Attributes:
        count: (layers, heads), texts counted.
        total, squares: (layers, heads), sum and sum of squares over texts.
        least, most: (layers, heads), the smallest and the largest value; inf and -inf before any text.
        least_text, most_text: (layers, heads), the index of the text that has it, the smallest index of equal ones; -1 = none.
    """

    count: np.ndarray
    total: np.ndarray
    squares: np.ndarray
    least: np.ndarray
    most: np.ndarray
    least_text: np.ndarray
    most_text: np.ndarray

    @classmethod
    def empty(cls, layers: int, heads: int) -> "Moments":
        shape = (layers, heads)
        zeros, none = np.zeros(shape), np.full(shape, -1, dtype=np.int64)
        return cls(none + 1, zeros, zeros, np.full(shape, np.inf), np.full(shape, -np.inf), none, none)

    @classmethod
    def of(cls, values: np.ndarray, texts: Sequence[int]) -> "Moments":
        """Of values (texts, layers, heads), the texts having these indices."""
        values, texts = np.asarray(values, dtype=np.float64), np.asarray(texts, dtype=np.int64)
        order = np.argsort(texts, kind="stable")  # of equal values the first index is the example
        values, texts = values[order], texts[order]
        known = ~np.isnan(values)
        filled = np.where(known, values, 0.0)
        low, high = np.where(known, values, np.inf), np.where(known, values, -np.inf)
        some = known.any(0)
        return cls(
            known.sum(0),
            filled.sum(0),
            (filled**2).sum(0),
            low.min(0),
            high.max(0),
            np.where(some, texts[low.argmin(0)], -1),
            np.where(some, texts[high.argmax(0)], -1),
        )

    def plus(self, other: "Moments") -> "Moments":
        def chosen(mine: np.ndarray, theirs: np.ndarray, sign: int) -> np.ndarray:
            """Whether the other has the more extreme value, or the same value in an earlier text."""
            ours, others = (getattr(x, "least_text" if sign > 0 else "most_text") for x in (self, other))
            earlier = (others >= 0) & ((ours < 0) | (others < ours))
            return (sign * theirs < sign * mine) | ((theirs == mine) & earlier)

        low, high = chosen(self.least, other.least, 1), chosen(self.most, other.most, -1)
        return Moments(
            self.count + other.count,
            self.total + other.total,
            self.squares + other.squares,
            np.minimum(self.least, other.least),
            np.maximum(self.most, other.most),
            np.where(low, other.least_text, self.least_text),
            np.where(high, other.most_text, self.most_text),
        )

    def mean(self) -> np.ndarray:
        """(layers, heads); NaN where no text counts."""
        return _over(self.total, self.count)

    def spread(self) -> np.ndarray:
        """(layers, heads), standard deviation over texts (divided by n - 1); NaN with fewer than two texts."""
        variance = _over(self.squares - _over(self.total**2, self.count), self.count - 1)
        return np.sqrt(np.maximum(variance, 0))

    def to_lists(self) -> dict:
        lists = {name: getattr(self, name).tolist() for name in self.__dataclass_fields__}
        for name in ("least", "most"):  # JSON has no infinity
            lists[name] = [[x if np.isfinite(x) else None for x in row] for row in lists[name]]
        return lists

    @classmethod
    def from_lists(cls, lists: dict) -> "Moments":
        fill = {"least": np.inf, "most": -np.inf}
        arrays = {}
        for name in cls.__dataclass_fields__:
            whole = name == "count" or name.endswith("_text")
            rows = [[fill[name] if x is None else x for x in row] for row in lists[name]]
            arrays[name] = np.array(rows, dtype=np.int64 if whole else np.float64)
        return cls(**arrays)


@dataclass(frozen=True, eq=False)
class Corners:
    """The upper left corners of a kind's maps over texts: what variability is read from.

    Attributes:
        count: texts that have as many real tokens on both sides.
        total: (layers, heads, 8, 8), sum of the weights; rows that see one key are 0.
        squares: (layers, heads), sum of all squared weights.
    """

    count: int
    total: np.ndarray
    squares: np.ndarray

    @classmethod
    def empty(cls, layers: int, heads: int) -> "Corners":
        return cls(0, np.zeros((layers, heads, CORNER, CORNER)), np.zeros((layers, heads)))

    def plus(self, other: "Corners") -> "Corners":
        return Corners(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def variability(self) -> np.ndarray:
        """(layers, heads), from 0 (the weights depend on positions alone) to 1; NaN with fewer than two texts.

        V = sqrt(sum_ij E (w_ij - mean w_ij)^2 / sum_ij E w_ij^2), over cells of the first 8 positions and texts: the part of a
        map's size that its mean map does not explain. Vig and Belinkov 2019 (section 4.1) take absolute deviations, which
        need the mean before the first text is read; this root-mean-square form, which one pass can sum, is ours.
        """
        if self.count < 2:
            return np.full(self.squares.shape, np.nan)
        explained = (self.total**2).sum((-2, -1)) / self.count
        return np.sqrt(np.clip(1 - _over(explained, self.squares), 0, 1))


@dataclass(frozen=True, eq=False)
class Pairs:
    """Head against head, of one kind, over some evenly spaced rows of every text.

    Attributes:
        rows: how many rows were compared.
        divergence: (layers * heads, layers * heads), sum over rows of the Jensen-Shannon divergence, nats.
        products: (layers, heads, heads), sum over rows of the dot products o_g . o_h of what two heads of a layer add to its
            output; on the diagonal the squared lengths. NaN where the output projection is not known.
    """

    rows: int
    divergence: np.ndarray
    products: np.ndarray

    @classmethod
    def empty(cls, layers: int, heads: int) -> "Pairs":
        return cls(0, np.zeros((layers * heads,) * 2), np.zeros((layers, heads, heads)))

    def plus(self, other: "Pairs") -> "Pairs":
        return Pairs(self.rows + other.rows, self.divergence + other.divergence, self.products + other.products)

    def distances(self) -> np.ndarray:
        """(layers * heads, layers * heads), mean Jensen-Shannon divergence, nats, from 0 to ln 2; layers one after the other."""
        return _over(self.divergence, self.rows)

    def differences(self) -> np.ndarray:
        """(layers, heads, heads): how much the outputs of two heads of a layer differ, from 0 (equal) to 1 (opposite).

        sum |o_g - o_h|^2 / (2 (sum |o_g|^2 + sum |o_h|^2)), 1/2 where they have nothing in common; NaN where either is always 0.
        """
        lengths = np.diagonal(self.products, axis1=1, axis2=2)
        both = lengths[:, :, None] + lengths[:, None]
        some = (lengths[:, :, None] > 0) & (lengths[:, None] > 0)
        found = _over(both - 2 * self.products, 2 * both)
        return np.where(some, np.clip(found, 0, 1), np.nan)


def _over(value: np.ndarray, divisor) -> np.ndarray:
    """value / divisor; NaN where the divisor is not above 0."""
    divisor = np.asarray(divisor, dtype=np.float64)
    value, divisor = np.broadcast_arrays(value, divisor)
    return np.divide(value, divisor, out=np.full(value.shape, np.nan), where=divisor > 0)
