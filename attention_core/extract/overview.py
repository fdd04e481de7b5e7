"""All maps of a kind at once, small enough to be drawn as one picture."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import AttentionError
from .registry import Call

# Heads are computed in groups of about this many weights (16 MB), so that a long text never has all maps in memory.
_GROUP_NUMBERS = 1 << 22


@dataclass(frozen=True, eq=False)
class Overview:
    """Every map of one kind, for one text.

    Attributes:
        weights: (layers, heads, rows, columns), float32, probabilities; where blocks are larger than one cell, the largest
            weight of each block, so that rows no longer sum to 1.
        visible: (layers, rows, columns), boolean, False where every cell of the block is masked.
        row_block, column_block: how many queries a row stands for, and how many keys a column.
    """

    weights: np.ndarray
    visible: np.ndarray
    row_block: int
    column_block: int


def block_maximum(maps: Tensor, limit: int) -> tuple[Tensor, int, int]:
    """Maps pooled until neither axis is longer than ``limit``: the largest value of each block.

    Args:
        maps: (..., query_len, key_len), floating point.
        limit: most rows and columns, at least 1.

    Returns:
        the pooled maps (..., rows, columns), and the block's size in queries and in keys; the last block may be cut.
    """
    if limit < 1:
        raise AttentionError("limit ({limit}) must be at least 1", limit=limit)
    rows, columns = (-(-length // limit) for length in maps.shape[-2:])
    if rows == columns == 1:
        return maps, 1, 1
    flat = maps.reshape(1, -1, *maps.shape[-2:])
    pooled = F.max_pool2d(flat, (rows, columns), ceil_mode=True)
    return pooled.reshape(*maps.shape[:-2], *pooled.shape[-2:]), rows, columns


def overview(calls: Iterable[Call], limit: int) -> Overview:
    """Computes and pools the weights of each layer's call, a group of heads at a time."""
    weights, visible, blocks = [], [], (1, 1)
    with torch.no_grad():
        for call in calls:
            _, num_heads, query_len, _ = call.query.shape
            key_len = call.key.shape[2]
            group = max(1, _GROUP_NUMBERS // (query_len * key_len))
            parts = []
            for start in range(0, num_heads, group):
                steps = call.steps(list(range(start, min(start + group, num_heads))))
                pooled, *blocks = block_maximum(steps.weights[0].float(), limit)
                parts.append(pooled)
            weights.append(torch.cat(parts).cpu().numpy())
            seen, _, _ = block_maximum(steps.full_mask()[0, :1].float(), limit)
            visible.append(seen[0].bool().cpu().numpy())
    return Overview(np.stack(weights), np.stack(visible), *blocks)
