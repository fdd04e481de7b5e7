"""Two maps over different token lists, laid on each other by the words that both have.

Each map is first read by words (``read_map(..., steps=("words",))``: columns of a word's pieces summed, rows averaged).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import torch
from torch import Tensor

from attention_core.errors import AttentionError


@dataclass(frozen=True)
class Alignment:
    """Words that two lists share, in order.

    Attributes:
        words: the shared words.
        first, second: where each stands in either list.
    """

    words: tuple[str, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]


def align_words(first: Sequence[str], second: Sequence[str]) -> Alignment:
    """Pairs the words of two lists: their longest matching runs (Ratcliff and Obershelp 1988, as difflib has it).

    Args:
        first, second: labels of words; a mark for a leading space (·) does not tell words apart.

    Raises:
        AttentionError: not one word in common.
    """
    texts = [[label.lstrip("·") for label in labels] for labels in (first, second)]
    blocks = SequenceMatcher(None, *texts, autojunk=False).get_matching_blocks()
    pairs = [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]
    if not pairs:
        raise AttentionError("these two token lists share no word, so they cannot be aligned")
    return Alignment(tuple(texts[0][place] for place, _ in pairs), *map(tuple, zip(*pairs)))


def aligned_maps(first: Tensor, second: Tensor, rows: Alignment, columns: Alignment) -> tuple[Tensor, Tensor]:
    """Two maps over the words that they share, with one more column for all that is not shared, so that rows sum to 1.

    Args:
        first, second: (..., words, words), read by words, of different lengths.
        rows, columns: the alignments of their axes.

    Returns:
        both as (..., shared query words, shared key words + 1).
    """
    return _aligned(first, rows.first, columns.first), _aligned(second, rows.second, columns.second)


def _aligned(weights: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    weights = weights[..., list(rows), :]
    other = [place for place in range(weights.shape[-1]) if place not in set(columns)]
    return torch.cat([weights[..., list(columns)], weights[..., other].sum(-1, keepdim=True)], dim=-1)
