"""Distances laid out in a plane: points whose distances come close to those of a matrix."""

from dataclasses import dataclass

import numpy as np

from attention_core.errors import AttentionError


@dataclass(frozen=True, eq=False)
class Scaling:
    """Points in few dimensions.

    Attributes:
        points: (items, dimensions), float64, in the unit of the distances; around 0; NaN for items that were left out.
        kept: share of the spread that the dimensions hold, from 0 to 1; near 1 the picture is true, below about 0.5 neighbours
            in it may lie far apart. NaN where all items are alike.
    """

    points: np.ndarray
    kept: float


def classical_scaling(distances: np.ndarray, dimensions: int = 2) -> Scaling:
    """Classical multidimensional scaling: the principal coordinates of B = -1/2 J D^2 J, with J = I - 1/n.

    Torgerson 1952; Gower 1966. The points are the eigenvectors of the largest eigenvalues l of B, times sqrt(l); kept is the
    sum of these over the sum of all positive ones. Between heads the square root of the Jensen-Shannon divergence is a metric
    (Endres and Schindelin 2003) and fits a plane better than the divergence itself; either may be given. Each axis is
    turned so that its point farthest from 0 has a positive coordinate: the same matrix always gives the same picture.

    Args:
        distances: (items, items), symmetric, at least 0, 0 on the diagonal. An item without any finite distance to another
            one (a head of which no row counts) is left out.
        dimensions: at least 1.

    Raises:
        AttentionError: no such matrix, or a distance that is not finite between items that have others.
    """
    distances = np.asarray(distances, dtype=np.float64)
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1]:
        raise AttentionError("distances must be of shape (items, items), got {shape}", shape=distances.shape)
    away = ~np.eye(len(distances), dtype=bool)
    there = (np.isfinite(distances) & away).any(1)
    if len(distances) == 1:
        there[:] = True
    square = distances[np.ix_(there, there)]
    if (
        not np.isfinite(square).all()
        or (square < 0).any()
        or not np.allclose(square, square.T)
        or square.diagonal().any()
    ):
        raise AttentionError("distances must be finite, at least 0, symmetric, and 0 on the diagonal")
    square = square**2
    centred = square - square.mean(0) - square.mean(1, keepdims=True) + square.mean() if square.size else square
    values, vectors = np.linalg.eigh(-centred / 2)
    order = np.argsort(-values)[:dimensions]
    lengths = np.sqrt(np.clip(values[order], 0, None))
    points = vectors[:, order] * lengths
    if points.size:
        farthest = points[np.abs(points).argmax(0), np.arange(points.shape[1])]
        points = points * np.where(farthest < 0, -1.0, 1.0)
    result = np.full((len(distances), dimensions), np.nan)
    result[there] = 0.0
    result[there, : points.shape[1]] = points
    positive = np.clip(values, 0, None).sum()
    # What rounding leaves of a matrix of zeros is no spread.
    some = positive > 1e-12 * max(1.0, float(np.abs(square).max(initial=0.0)))
    return Scaling(result, float(np.clip(values[order], 0, None).sum() / positive) if some else float("nan"))
