"""What is said to those who cannot see a picture."""

import numpy as np

from attention_core.figures.alt import describe, describe_grid, describe_tiles
from attention_core.figures.panels import Panel

VALUES = np.array([[0.1, 0.25, 9.0], [0.75, 0.2, np.nan]])
HIDDEN = np.array([[False, False, True], [False, False, False]])


def test_a_panel_in_words():
    panel = Panel("w", VALUES, "Weights", "", ["<s>", "the"], ["a", "b", "c"], "query", "key", hidden=HIDDEN)
    assert describe(panel) == (
        "Weights: 2 rows (query) by 3 columns (key), from 0.1 to 0.75; the largest value is 0.75 at query 1 (the), key 0 (a). "
        "Masked cells: 1. Cells that are not numbers: 1."
    )


def test_a_panel_without_labels_or_values():
    assert describe(Panel("q", np.array([[1.0, -2.0]]))) == (
        "q: 1 rows (row) by 2 columns (column), from -2 to 1; the largest value is 1 at row 0, column 0."
    )
    nothing = Panel("q", np.zeros((1, 2)), hidden=np.ones((1, 2), bool))
    assert describe(nothing) == "q: 1 rows (row) by 2 columns (column), no cell with a value. Masked cells: 2."


def test_words_can_be_translated_and_grids_told():
    panel = Panel("q", np.array([[1.0]]))
    assert describe(panel, {"panel": "{rows}×{columns}: {high}"}) == "1×1: 1"
    assert describe_grid([[panel, None], [panel]], {"panel": "{high}"}) == "1 1"


def test_tiles_in_words():
    maps = np.zeros((2, 3, 5))
    maps[1, 2, 4] = 0.875
    maps[0, 0, 0] = np.nan
    assert (
        describe_tiles(maps, ["head 0", "head 1"])
        == "2 maps of 3 rows by 5 columns; the largest value is 0.875 in head 1."
    )
