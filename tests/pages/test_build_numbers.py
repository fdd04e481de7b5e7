"""The numbers in the Build page's figures, against plain numpy, torch's own layer and numbers computed by hand."""

import math

import numpy as np
import pytest
import torch
from torch import nn

ZERO = {"wq": "zero", "wk": "zero"}
IDENTITY = {"wq": "identity", "wk": "identity", "wv": "identity", "wo": "identity"}


def expected(layer, *, heads, head, head_dim, scale, visible=None, shared=False) -> dict[str, np.ndarray]:
    """One head by the formulas, in float64, from the input and the matrices that the whole-layer view shows.

    Args:
        layer: panels of the whole-layer view.
        heads, head, head_dim: of the layer.
        scale: what the dot products are multiplied with.
        visible: (row, column) -> bool; None = all.
        shared: the input is cut into heads first and one small matrix serves all.
    """
    x = layer["input"].z.astype(np.float64)
    x_key = layer["key_input"].z.astype(np.float64) if "key_input" in layer else x
    part = slice(head * head_dim, (head + 1) * head_dim)
    made = {}
    for name, source in (("query", x), ("key", x_key), ("value", x_key)):
        weight = layer[f"{name}_weight"].z.astype(np.float64)
        made[name] = source[:, part] @ weight.T if shared else (source @ weight.T)[:, part]
    scores = made["query"] @ made["key"].T * scale
    rows, columns = scores.shape
    seen = np.array([[visible is None or visible(i, j) for j in range(columns)] for i in range(rows)])
    weights = np.zeros_like(scores)
    for i in range(rows):
        powers = np.exp(scores[i, seen[i]] - scores[i, seen[i]].max(initial=-np.inf))
        weights[i, seen[i]] = powers / powers.sum() if len(powers) else powers
    return made | {
        "scores": scores,
        "masked_scores": np.where(seen, scores, np.nan),
        "weights": np.where(seen, weights, np.nan),
        "context": weights @ made["value"],
    }


def assert_shown(panels, want, tolerance=1e-5):
    for stage, values in want.items():
        np.testing.assert_allclose(panels[stage].z, values, rtol=tolerance, atol=tolerance, err_msg=stage)


RANDOM = {"wq": "random", "wk": "random", "masks": [], "head": 1}
HEAD = {"heads": 4, "head": 1, "head_dim": 8, "scale": 8**-0.5}
CROSS = RANDOM | {"cross": True, "text": "a b c d e f g", "text2": "h a i b j"}

# What is set, and what that means for the formulas.
MEANT = {
    "as it opens": ({"wq": "identity", "wk": "identity", "masks": ["causal"]}, {"visible": lambda i, j: j <= i}),
    "no mask": ({}, {}),
    "more heads": ({"heads": 8}, {"heads": 8, "head_dim": 4, "scale": 0.5}),
    "one head": ({"heads": 1, "head": 0}, {"heads": 1, "head": 0, "head_dim": 32, "scale": 32**-0.5}),
    "last head": ({"head": 3}, {"head": 3}),
    "wider": ({"dm": 44}, {"head_dim": 11, "scale": 11**-0.5}),
    "free head_dim": ({"free": True, "hd": 5, "heads": 3}, {"heads": 3, "head_dim": 5, "scale": 5**-0.5}),
    "scale by d_model": ({"scale": "d_model"}, {"scale": 32**-0.5}),
    "no scale": ({"scale": "none"}, {"scale": 1.0}),
    "a scale": ({"scale": "number", "scale_by": 0.25}, {"scale": 0.25}),
    "temperature": ({"temp": 2.5}, {"scale": 8**-0.5 / 2.5}),
    "seed": ({"seed": 41}, {}),
    "orthogonal": ({"wq": "orthogonal", "wv": "orthogonal"}, {}),
    "zero": (ZERO, {}),
    "characters": ({"unit": "characters", "text": "abcab"}, {}),
    "a number of tokens": ({"input": "count", "n": 13}, {}),
    "positions": ({"vectors": "sinusoidal"}, {}),
    "words and positions": ({"vectors": "token_position"}, {}),
    "one-hot": ({"vectors": "one_hot"}, {}),
    "cross": (CROSS, {}),
    "cross causal": (CROSS | {"masks": ["causal"]}, {"visible": lambda i, j: j <= i}),
    "cross causal, last with last": (
        CROSS | {"masks": ["causal"], "align": "lower_right"},
        {"visible": lambda i, j: j <= i + 5 - 7},
    ),
    "window": ({"masks": ["window"], "window": 1}, {"visible": lambda i, j: abs(i - j) <= 1}),
    "blocks": ({"masks": ["block"], "block": 3}, {"visible": lambda i, j: i // 3 == j // 3}),
    "prefix": ({"masks": ["prefix"], "prefix": 4}, {"visible": lambda i, j: j < 4 or j <= i}),
    "padding": ({"masks": ["padding"], "pads": 3}, {"visible": lambda i, j: j < 11}),
    "by hand": ({"masks": ["edited"], "cells": "0,3 2,1"}, {"visible": lambda i, j: (i, j) not in ((0, 3), (2, 1))}),
    "causal and by hand": (
        {"masks": ["causal", "edited"], "cells": "0,3 2,1"},
        {"visible": lambda i, j: (j <= i) != ((i, j) in ((0, 3), (2, 1)))},
    ),
    "three masks": (
        {"masks": ["causal", "window", "padding"], "window": 2, "pads": 2},
        {"visible": lambda i, j: i - 2 <= j <= i and j < 11},
    ),
    "float64": ({"dtype": "float64"}, {}),
    "BERT": ({"preset": "bert"}, {}),
    "CABM": ({"preset": "cabm"}, {}),
    "simplified": (
        {"preset": "bart_simplified", "scale": "d_model", "bqkv": "none"},
        {"shared": True, "scale": 32**-0.5},
    ),
}


@pytest.mark.parametrize("name", MEANT)
def test_every_stage_follows_the_formulas(build, name):
    state, meaning = MEANT[name]
    state = RANDOM | state
    layer = build(**state, view="layer").fine().panels
    meaning = HEAD | meaning
    assert_shown(build(**state).fine().panels, expected(layer, **meaning))
    heads = [expected(layer, **(meaning | {"head": head})) for head in range(meaning["heads"])]
    merged = np.concatenate([head["context"] for head in heads], axis=1)
    np.testing.assert_allclose(layer["concatenation"].z, merged, rtol=1e-5, atol=1e-5)
    output = merged @ layer["out_weight"].z.T.astype(np.float64)
    np.testing.assert_allclose(layer["output"].z, output, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_the_page_and_torchs_layer_agree(build, causal):
    state = RANDOM | {
        "masks": ["causal"] * causal,
        "bqkv": "random",
        "bo": "random",
        "wo": "random",
        "text": "a b c d e",
    }
    layer = build(**state, view="layer").fine().panels
    # Biases are not drawn: what the page's output holds beyond the products is the same in every row.
    plain = build(**(state | {"bqkv": "zero", "bo": "zero"})).panels
    biased = [build(**(state | {"head": h})).panels for h in range(4)]
    bias = {
        name: np.concatenate(
            [biased[h][name].z[0] - expected(layer, **(HEAD | {"head": h}))[name][0] for h in range(4)]
        )
        for name in ("query", "key", "value")
    }
    assert not np.allclose(plain["query"].z, biased[1]["query"].z)
    reference = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    with torch.no_grad():
        reference.in_proj_weight.copy_(
            torch.cat([torch.tensor(layer[f"{n}_weight"].z) for n in ("query", "key", "value")])
        )
        reference.in_proj_bias.copy_(torch.tensor(np.concatenate([bias[n] for n in ("query", "key", "value")])))
        reference.out_proj.weight.copy_(torch.tensor(layer["out_weight"].z))
        reference.out_proj.bias.zero_()
        x = torch.tensor(layer["input"].z)[None]
        mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
        output, weights = reference(x, x, x, attn_mask=mask, average_attn_weights=False)
    for head in range(4):
        np.testing.assert_allclose(np.nan_to_num(biased[head]["weights"].z), weights[0, head], atol=1e-5)
    out_bias = layer["output"].z - output[0].numpy()
    np.testing.assert_allclose(out_bias, np.tile(out_bias[0], (5, 1)), atol=1e-5)
    assert np.abs(out_bias).max() > 0.1


def test_equal_words_have_equal_vectors(build):
    panels = build(view="layer", text="the cat the mat", text2="mat the", cross=True).fine().panels
    x, y = panels["input"].z, panels["key_input"].z
    np.testing.assert_array_equal(x[0], x[2])
    np.testing.assert_array_equal([x[3], x[0]], y)
    assert not np.allclose(x[0], x[1])


def test_one_hot_goes_by_first_appearance(build):
    panels = build(view="layer", vectors="one_hot", text="b a b c").fine().panels
    np.testing.assert_array_equal(panels["input"].z, np.eye(32)[[0, 1, 0, 2]])


@pytest.mark.parametrize("dtype, tolerance", [("float16", 1e-3), ("bfloat16", 1e-2), ("float64", 1e-6)])
def test_other_number_formats_stay_near(build, dtype, tolerance):
    state = RANDOM | {"masks": ["causal"]}
    near, want = build(**state, dtype=dtype).fine().panels, build(**state).fine().panels
    for stage in ("weights", "scores", "context"):
        got = near[stage].z
        np.testing.assert_allclose(got, want[stage].z, atol=tolerance * 3, rtol=tolerance * 3)
        assert (dtype == "float64") == np.allclose(got, want[stage].z, atol=1e-6, rtol=1e-6, equal_nan=True)


def test_dropout_is_shown_before_and_after(build):
    state = RANDOM | {"drop": 0.5, "training": True, "drop_seed": 3}
    panels = build(**state).fine().panels
    before, after = panels["weights"].z, panels["dropped_weights"].z
    np.testing.assert_allclose(before.sum(1), 1, rtol=1e-5)
    kept = after != 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(after[kept], 2 * before[kept], rtol=1e-5)
    np.testing.assert_allclose(panels["context"].z, after @ panels["value"].z, atol=1e-5)
    assert not np.array_equal(build(**(state | {"drop_seed": 4})).cells("dropped_weights"), after)
    np.testing.assert_array_equal(build(**state).cells("dropped_weights"), after)
    assert "dropped_weights" not in build(**(state | {"training": False})).panels


def test_raw_scores_are_the_products_before_the_scale(build):
    scaled, raw = build().cells("scores"), build(raw=True).cells("scores")
    np.testing.assert_allclose(raw, scaled * math.sqrt(8), rtol=1e-5, atol=1e-5)


def test_rows_of_weights_sum_to_one_not_columns(build):
    weights = build(**(CROSS | {"text": "a b c", "text2": "a b c d e"})).cells()
    assert weights.shape == (3, 5)
    np.testing.assert_allclose(weights.sum(1), np.ones(3), rtol=1e-6)
    assert not np.allclose(weights.sum(0), 0.6)


def test_a_query_that_sees_no_key(build):
    """Case 11: row 1 blank and named, context 0; rows 0 and 2 as they were; nothing NaN."""
    state = {"text": "a b c", "wq": "random", "wk": "random", "masks": ["edited"]}
    before = build(**state).fine().panels
    page = build(**state, cells="1,0 1,1 1,2").fine()
    panels = page.panels
    assert np.isnan(panels["weights"].z[1]).all()
    np.testing.assert_array_equal(panels["weights"].z[[0, 2]], before["weights"].z[[0, 2]])
    np.testing.assert_array_equal(panels["context"].z[1], np.zeros(8))
    np.testing.assert_array_equal(panels["context"].z[[0, 2]], before["context"].z[[0, 2]])
    assert np.isfinite(panels["context"].z).all() and np.isfinite(panels["scores"].z).all()
    assert (panels["weights"].hovers[1, :, 0] == "masked").all()
    assert any("Queries that see no key: 1." in w for w in page.warnings), page.warnings
    output = build(**state, cells="1,0 1,1 1,2", view="layer").fine().panels["output"].z
    assert np.isfinite(output).all() and (output[1] == 0).all()
    told = build(**state, cells="1,0 1,1 1,2", row=1, col=1).fine()
    assert any("sees no key" in m.value for m in told.app.markdown)


def test_equal_scores_under_a_causal_mask(build):
    """Case 13: query a in the top row; the triangle that is visible lies at the lower left."""
    panels = build(text="a b c d", masks=["causal"], **ZERO).fine().panels
    weights = panels["weights"]
    for i in range(4):
        np.testing.assert_array_equal(weights.z[i, : i + 1], np.full(i + 1, np.float32(1) / (i + 1)))
        assert np.isnan(weights.z[i, i + 1 :]).all()
    assert weights.rows == weights.columns == ["a", "b", "c", "d"]
    assert all(panel.top_first for panel in panels.values())
    assert all(panel.top_first for panel in build(text="a b c d", view="layer").panels.values())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("masks", [["causal"], ["causal", "padding"], ["causal", "padding", "window"]])
def test_masks_in_half_precision(build, dtype, masks):
    """Case 21: exactly [[1, 0], [.5, .5]], and no error from a fill value that does not fit."""
    weights = build(text="a b", dtype=dtype, masks=masks, pads=1, **ZERO).fine().panels["weights"]
    np.testing.assert_array_equal(np.nan_to_num(weights.z[:2, :2]), [[1, 0], [0.5, 0.5]])
    if "padding" in masks:
        assert weights.rows == ["a", "b", "<pad>"] and np.isnan(weights.z[:, 2]).all()
        np.testing.assert_array_equal(weights.z[2, :2], [0.5, 0.5])


def test_a_ticked_cell_means_may_attend(build):
    """Case 29: scores 0, ln 2, ln 3 with the third key hidden give 1/3, 2/3, 0."""
    own = {
        "input": "own_qkv",
        "own_q": "1",
        "own_k": f"0\n{math.log(2)!r}\n{math.log(3)!r}",
        "own_v": "1\n2\n3",
        "heads": 1,
        "scale": "none",
    }
    free = build(**own, masks=[]).fine().cells()
    np.testing.assert_allclose(free, [[1 / 6, 1 / 3, 1 / 2]], rtol=1e-6)
    hidden = build(**own, masks=["edited"], cells="0,2").fine()
    np.testing.assert_allclose(hidden.cells(), [[1 / 3, 2 / 3, np.nan]], rtol=1e-6)
    np.testing.assert_allclose(build(**own, masks=["padding"], pads=1).cells(), [[1 / 3, 2 / 3, np.nan]], rtol=1e-6)
    assert hidden.panels["weights"].hovers[0, 2, 0] == "masked"
    assert any("may attend" in c.value for c in hidden.app.caption)


def test_heads_are_merged_in_the_order_of_their_columns(build):
    """Case 39: W_Q = W_K = 0, W_V = W_O = identity, two heads."""
    own = {"input": "own_x", "own_x": "1,2,3,4\n5,6,7,8", "heads": 2, "view": "layer"}
    own |= {"wq": "zero", "wk": "zero", "wv": "identity", "wo": "identity"}
    mixed = build(**own, masks=[]).fine().panels
    np.testing.assert_array_equal(mixed["output"].z, [[3, 4, 5, 6], [3, 4, 5, 6]])
    alone = build(**own, masks=["window"], window=0).fine().panels
    np.testing.assert_array_equal(alone["output"].z, [[1, 2, 3, 4], [5, 6, 7, 8]])
    np.testing.assert_array_equal(alone["concatenation"].z, [[1, 2, 3, 4], [5, 6, 7, 8]])


@pytest.mark.parametrize(
    "heads, head, row",
    [(1, 0, [0.8044, 0.1956]), (2, 0, [0.8808, 0.1192]), (4, 0, [0.9442, 0.0558]), (2, 1, [0.5, 0.5])],
)
def test_the_scale_is_that_of_the_head(build, heads, head, row):
    """Case 40: identity weights, tokens 2 e0 and 2 e1, eight features."""
    own = {"input": "own_x", "own_x": "2,0,0,0,0,0,0,0\n0,2,0,0,0,0,0,0", "masks": [], **IDENTITY}
    panels = build(**own, heads=heads, head=head).fine().panels
    np.testing.assert_allclose(panels["weights"].z[0], row, atol=5e-5)
    if heads == 2 and head == 0:
        assert panels["scores"].z[0, 0] == 2.0
    wrong = build(**own, heads=heads, head=0, scale="d_model").fine().cells()
    np.testing.assert_allclose(wrong[0], [0.8044, 0.1956], atol=5e-5)
