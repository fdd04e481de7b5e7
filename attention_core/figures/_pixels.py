"""Maps as small palette pictures: pooled, scaled to 254 colours, and written as a PNG."""

import base64
import io
from functools import cache

import numpy as np
from PIL import Image

from ..errors import AttentionError
from .palette import Colourscale, Palette, rgb, sample

LEVELS = 254
"""Palette entries 0 .. 253 hold the colours, from the lower to the upper limit."""
MASKED, BETWEEN = 254, 255
"""Palette entries of a masked (or not finite) cell, a grey, and of the space between tiles, clear."""


def visible_cells(values: np.ndarray, hidden: np.ndarray | None) -> np.ndarray:
    """Which cells of a map, (rows, columns), are drawn in colour: finite and not masked."""
    visible = np.isfinite(values)
    return visible if hidden is None else visible & ~hidden


def pooled(values: np.ndarray, visible: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Block maximum of one map, so that it has no more than ``largest`` rows or columns.

    Blocks are square in neither more nor fewer cells than needed: ceil(count / largest) on each axis.

    Args:
        values: (rows, columns).
        visible: bool, the same shape; a hidden cell never gives its block the value.
        largest: at least 1.

    Returns:
        float32 maxima (0 where nothing is visible) and bool visibility of the blocks, both (rows', columns').
    """
    maxima = np.where(visible, values, -np.inf).astype(np.float32)
    for axis in (0, 1):
        block = block_size(maxima.shape[axis], largest)
        if block > 1:
            maxima = np.maximum.reduceat(maxima, np.arange(0, maxima.shape[axis], block), axis=axis)
    seen = maxima > -np.inf
    return np.where(seen, maxima, np.float32(0)), seen


def block_size(count: int, largest: int) -> int:
    """Cells of a block along an axis of ``count`` cells that may have ``largest`` blocks."""
    return max(1, -(-count // largest))


def levels(values: np.ndarray, seen: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """Values as palette entries, uint8 of the same shape.

    ``round(253 (v - low) / (high - low))`` held between 0 and 253; what is not seen becomes 254.
    """
    low, high = float(limits[0]), float(limits[1])
    span = high - low if high > low else 1.0
    entries = np.clip(np.rint((values.astype(np.float64) - low) * ((LEVELS - 1) / span)), 0, LEVELS - 1).astype(
        np.uint8
    )
    entries[~seen] = MASKED
    return entries


def encoded(picture: np.ndarray, colourscale: Colourscale, palette: Palette) -> str:
    """A uint8 picture of palette entries, (height, width), as a PNG in a data URI."""
    colours = sample(colourscale, np.linspace(0, 1, LEVELS))
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.putpalette([*colours.ravel().tolist(), 128, 128, 128, *rgb(palette.page)])
    file = io.BytesIO()
    image.save(file, "PNG", transparency=bytes([255] * LEVELS + [46, 0]), compress_level=6)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


@cache
def ramp(colourscale: Colourscale) -> str:
    """A colourscale as an upright strip, its upper end on top: a PNG in a data URI."""
    image = Image.fromarray(np.ascontiguousarray(sample(colourscale, np.linspace(1, 0, 128))[:, None, :]))
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def checked_hidden(hidden, shape: tuple[int, ...], *allowed: tuple[int, ...]) -> np.ndarray | None:
    """A mask as a bool array whose shape is one of those allowed, or None."""
    if hidden is None:
        return None
    hidden = np.asarray(hidden, dtype=bool)
    if hidden.shape not in allowed:
        raise AttentionError("hidden has the shape {hidden}, the values {values}", hidden=hidden.shape, values=shape)
    return hidden
