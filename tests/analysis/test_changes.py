"""One thing changed at a time, and the effect that theory says: direction, and size where it is known."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from attention_core import AttentionConfig, MultiHeadAttention, masks
from attention_core.analysis.changes import (
    Change,
    changed_layer,
    changed_mask,
    changed_steps,
    mean_block,
    output_effect,
    real_layer,
)
from attention_core.analysis.equality import compare_steps
from attention_core.analysis.rows import row_entropy
from attention_core.errors import AttentionError
from attention_core.layer.projections import Projections

BATCH, LENGTH, HEADS, HEAD_DIM = 2, 7, 6, 5
D_MODEL = HEADS * HEAD_DIM
SCALE = HEAD_DIM**-0.5
CAUSAL = masks.causal(LENGTH)


def real(seed=0, length=LENGTH):
    """Projections of an attention with weights and biases that matter, as a trace gives them."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator) * 0.35

    x = torch.randn(BATCH, length, D_MODEL, generator=generator)
    weights = {f"{name}_weight": drawn(D_MODEL, D_MODEL) for name in ("query", "key", "value", "out")}
    biases = {f"{name}_bias": drawn(D_MODEL) for name in ("query", "key", "value", "out")}
    return Projections(num_heads=HEADS, query_input=x, key_input=x, value_input=x, **weights, **biases)


PROJECTIONS = real()


def steps(change=None, projections=PROJECTIONS, mask=CAUSAL):
    return changed_steps(projections, SCALE, mask, change or Change())[1]


BEFORE = steps()


def test_nothing_changed_is_the_formula():
    projections = PROJECTIONS
    parts = {}
    for name in ("query", "key", "value"):
        x = getattr(projections, f"{name}_input").double()
        made = x @ getattr(projections, f"{name}_weight").double().T + getattr(projections, f"{name}_bias").double()
        parts[name] = made.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    context = F.scaled_dot_product_attention(parts["query"], parts["key"], parts["value"], attn_mask=CAUSAL)
    output = context.transpose(1, 2).flatten(2) @ projections.out_weight.double().T + projections.out_bias.double()
    assert output_effect(output, BEFORE.output).relative < 1e-6
    for change in (Change(scale="head_dim"), Change(num_heads=HEADS), Change(mask="causal"), Change(dtype="float32")):
        assert compare_steps(steps(change), BEFORE, projections).bit_equal
    assert output_effect(BEFORE.output, BEFORE.output).relative == 0


@pytest.mark.parametrize("preset", ["standard", "bert", "cabm"])
def test_these_presets_compute_the_same_numbers(preset):
    """In eval mode: difference 0."""
    assert compare_steps(steps(Change(preset=preset)), BEFORE, PROJECTIONS).bit_equal


@settings(max_examples=25, deadline=None)
@given(low=st.floats(0.2, 4), factor=st.floats(1.01, 4), seed=st.integers(0, 100))
def test_a_higher_temperature_never_sharpens_a_row(low, factor, seed):
    """d H / d T >= 0 for softmax(s / T): for every row, whatever the scores."""
    projections = real(seed)
    cooler, warmer = (
        row_entropy(steps(Change(temperature=t), projections).weights, CAUSAL) for t in (low, low * factor)
    )
    assert (warmer >= cooler - 1e-5).all() and warmer[:, :, 1:].mean() > cooler[:, :, 1:].mean()


def test_the_scale_of_d_model_is_a_temperature():
    """1/sqrt(d_model) = 1/sqrt(head_dim) / sqrt(num_heads): the very same weights, flatter than the real ones."""
    wide, warm = steps(Change(scale="d_model")), steps(Change(temperature=sqrt(HEADS)))
    np.testing.assert_allclose(wide.weights, warm.weights, atol=1e-6)
    np.testing.assert_allclose(wide.scores * sqrt(HEADS), BEFORE.scores, rtol=1e-4, atol=1e-5)
    assert (row_entropy(wide.weights, CAUSAL) >= row_entropy(BEFORE.weights, CAUSAL) - 1e-6).all()


def test_no_scale_sharpens():
    sharp = steps(Change(scale="none"))
    np.testing.assert_allclose(sharp.scores * SCALE, BEFORE.scores, rtol=1e-4, atol=1e-5)
    assert (row_entropy(sharp.weights, CAUSAL) <= row_entropy(BEFORE.weights, CAUSAL) + 1e-6).all()
    for name in ("query", "key", "value"):
        assert torch.equal(getattr(sharp, name), getattr(BEFORE, name))


@pytest.mark.parametrize("heads, row", [(1, [0.8044, 0.1956]), (2, [0.8808, 0.1192]), (4, [0.9442, 0.0558])])
def test_the_wrong_scale_hides_the_number_of_heads(heads, row):
    """Case 40: identity weights, tokens 2 e0 and 2 e1; divided by sqrt(d_model), every number of heads gives .8044."""
    x, eye = torch.zeros(1, 2, 8), torch.eye(8)
    x[0, 0, 0] = x[0, 1, 1] = 2
    projections = Projections(heads, x, x, x, eye, eye, eye, None, None, None, eye, None)
    scale = (8 // heads) ** -0.5
    made, wrong = (changed_steps(projections, scale, None, Change(scale=s))[1] for s in (None, "d_model"))
    np.testing.assert_allclose(made.weights[0, 0, 0], row, atol=5e-5)
    np.testing.assert_allclose(wrong.weights[0, 0, 0], [0.8044, 0.1956], atol=5e-5)
    if heads == 2:
        assert made.scores[0, 0, 0, 0] == pytest.approx(2.0)
        assert made.weights[0, 1, 0].tolist() == [0.5, 0.5]
        assert compare_steps(wrong, made, projections).first.stage == "scores"


def test_a_wider_mask_takes_weight_from_what_was_seen():
    full = steps(Change(mask="full"))
    assert (full.weights[..., ~CAUSAL] > 0).all()
    assert (full.weights[..., CAUSAL] <= BEFORE.weights[..., CAUSAL] + 1e-6).all()
    # The last row saw everything already.
    assert torch.equal(full.weights[:, :, -1], BEFORE.weights[:, :, -1])


@pytest.mark.parametrize("rule, width", [("window", 1), ("window", 2), ("block", 3)])
def test_a_narrower_mask_shares_the_same_weights_out_among_fewer(rule, width):
    """Softmax over fewer keys: w'_ij = w_ij / sum over the keys that are left."""
    after = steps(Change(mask=rule, width=width))
    left = CAUSAL & (masks.window(LENGTH, width=width) if rule == "window" else masks.block(LENGTH, size=width))
    kept = torch.where(left, BEFORE.weights, 0)
    np.testing.assert_allclose(after.weights, kept / kept.sum(-1, keepdim=True), atol=1e-5)
    assert not after.weights[..., ~left].any()


def test_masks_that_a_change_makes():
    padded = masks.padding([4, 6], 6)
    assert changed_mask(padded, 6, 6, Change()) is padded
    assert changed_mask(None, 6, 6, Change(mask="full")) is None
    # Every query sees what any query sees: padding stays hidden.
    full = changed_mask(masks.combine(padded, masks.causal(6)), 6, 6, Change(mask="full"))
    assert torch.equal(full, padded.expand(2, 1, 6, 6))
    assert torch.equal(changed_mask(None, 3, 5, Change(mask="causal")), masks.causal(3, 5))
    with pytest.raises(
        AttentionError, match="mask must be one of recorded, full, causal, window, block, not 'diagonal'"
    ):
        changed_mask(None, 6, 6, Change(mask="diagonal"))


def test_without_the_key_bias_no_weight_moves():
    """q . b_K is one number for a whole row, and softmax does not see it."""
    after = steps(Change(without_bias=("key",)))
    assert not torch.allclose(after.scores, BEFORE.scores, atol=0.01)
    np.testing.assert_allclose(after.weights, BEFORE.weights, atol=2e-6)
    assert compare_steps(after, BEFORE, PROJECTIONS).first.stage == "key"


def test_without_the_value_bias_the_output_moves_by_one_vector():
    """Rows sum to 1, so each context loses b_V, and each output W_O b_V."""
    after = steps(Change(without_bias=("value",)))
    moved = PROJECTIONS.out_weight @ PROJECTIONS.value_bias
    np.testing.assert_allclose(BEFORE.output - after.output, moved.expand(BATCH, LENGTH, -1), atol=2e-5)
    assert torch.equal(after.weights, BEFORE.weights)


def test_without_the_output_bias_the_output_moves_by_that_bias():
    after = steps(Change(without_bias=("out",)))
    np.testing.assert_allclose(BEFORE.output - after.output, PROJECTIONS.out_bias.expand(BATCH, LENGTH, -1), atol=1e-5)
    assert torch.equal(after.context, BEFORE.context)


def test_without_the_query_bias_weights_move():
    after = steps(Change(without_bias=("query",)))
    assert compare_steps(after, BEFORE, PROJECTIONS).first.stage == "query"
    assert (after.weights - BEFORE.weights).abs().max() > 0.01


@pytest.mark.parametrize("heads", [1, 2, 3, 15, 30])
def test_another_cut_into_heads(heads):
    """Raw products of a wider head are the sums of those of the heads it is made of; all numbers of Q, K, V stay."""
    layer, after = changed_steps(PROJECTIONS, SCALE, CAUSAL, Change(num_heads=heads))
    assert layer.config.head_dim == D_MODEL // heads
    assert after.scale == pytest.approx((D_MODEL // heads) ** -0.5)
    for name in ("query", "key", "value"):
        merged = [getattr(x, name).transpose(1, 2).flatten(2) for x in (after, BEFORE)]
        assert torch.equal(*merged)
    fine, coarse = (after, BEFORE) if heads > HEADS else (BEFORE, after)
    raw = fine.scores / fine.scale
    summed = (
        raw.unflatten(1, (coarse.scores.shape[1], -1)).sum(2)
        if fine.scores.shape[1] % coarse.scores.shape[1] == 0
        else None
    )
    if summed is not None:
        np.testing.assert_allclose(summed, coarse.scores / coarse.scale, atol=1e-4, rtol=1e-4)


def test_a_cut_that_cannot_be():
    with pytest.raises(
        AttentionError, match="30 columns cannot be cut into 4 heads of one width: choose a divisor of 30"
    ):
        changed_layer(PROJECTIONS, SCALE, Change(num_heads=4))


def test_the_simplified_layer_takes_the_mean_of_the_real_blocks():
    layer, after = changed_steps(PROJECTIONS, SCALE, CAUSAL, Change(preset="bart_simplified"))
    for name in ("query", "key", "value"):
        weight = getattr(PROJECTIONS, f"{name}_weight")
        blocks = [weight[h * HEAD_DIM : (h + 1) * HEAD_DIM, h * HEAD_DIM : (h + 1) * HEAD_DIM] for h in range(HEADS)]
        np.testing.assert_allclose(getattr(layer, f"{name}_weight").detach(), torch.stack(blocks).mean(0), atol=1e-7)
        assert getattr(layer, f"{name}_bias") is None
    assert torch.equal(layer.out_weight, PROJECTIONS.out_weight) and torch.equal(layer.out_bias, PROJECTIONS.out_bias)
    assert after.scale == pytest.approx(D_MODEL**-0.5)
    # No head sees another's features: the last head's queries stay when the first features of the input change.
    other = PROJECTIONS.query_input.clone()
    other[..., :HEAD_DIM] += 1
    moved = steps(Change(preset="bart_simplified"), replace_input(other))
    assert torch.equal(moved.query[:, 1:], after.query[:, 1:]) and not torch.equal(moved.query[:, 0], after.query[:, 0])
    # Its scale alone can be put back.
    apart = steps(Change(preset="bart_simplified", scale="head_dim"))
    np.testing.assert_allclose(apart.scores, after.scores * sqrt(HEADS), rtol=1e-4, atol=1e-6)
    assert row_entropy(after.weights, CAUSAL).mean() > row_entropy(apart.weights, CAUSAL).mean()


def replace_input(x):
    return replace(PROJECTIONS, query_input=x, key_input=x, value_input=x)


def test_mean_block_by_hand():
    weight = torch.arange(16.0).view(4, 4)
    assert mean_block(weight, 2).tolist() == [[5, 6], [9, 10]]
    assert torch.equal(mean_block(weight, 1), weight)
    with pytest.raises(AttentionError, match="this one is 4 x 3, for 2 heads"):
        mean_block(weight[:, :3], 2)


@pytest.mark.parametrize("weights", ["shuffled", "random"])
def test_other_weights_by_a_seed(weights):
    one, again, other = (changed_layer(PROJECTIONS, SCALE, Change(weights=weights, seed=seed)) for seed in (3, 3, 4))
    for name in ("query", "key", "value", "out"):
        weight, real_weight = getattr(one, f"{name}_weight"), getattr(PROJECTIONS, f"{name}_weight")
        assert torch.equal(weight, getattr(again, f"{name}_weight"))
        assert not torch.equal(weight, getattr(other, f"{name}_weight")) and not torch.equal(weight, real_weight)
        same_numbers = torch.equal(weight.flatten().sort()[0], real_weight.flatten().sort()[0])
        assert same_numbers == (weights == "shuffled")
        bias = getattr(one, f"{name}_bias")
        assert torch.equal(bias, getattr(PROJECTIONS, f"{name}_bias")) if same_numbers else not bias.any()
    assert one.config.scale == "head_dim"


@pytest.fixture
def memory_that_holds_nan():
    """Memory that nothing has been written to holds nan, as it now and then does."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(deterministic)


@pytest.mark.usefixtures("memory_that_holds_nan")
@pytest.mark.parametrize(
    "change",
    [Change(), Change(weights="random"), Change(without_bias=("query", "out")), Change(preset="bart_simplified")],
)
def test_every_number_of_a_changed_layer_is_written(change):
    assert torch.empty(3).isnan().all()
    layer = changed_layer(PROJECTIONS, SCALE, change)
    assert all(parameter.isfinite().all() for parameter in layer.parameters())


def test_other_weights_in_some_matrices_alone():
    after = steps(Change(weights="random", matrices=("out",)))
    assert torch.equal(after.context, BEFORE.context) and not torch.allclose(after.output, BEFORE.output, atol=0.1)


def test_drawing_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    changed_layer(PROJECTIONS, SCALE, Change(weights="random", seed=9))
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("dtype, size", [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_half_precision_moves_numbers_by_its_rounding(dtype, size):
    after = steps(Change(dtype=dtype))
    assert after.output.dtype == getattr(torch, dtype) and after.weights.dtype == torch.float32
    effect = output_effect(BEFORE.output, after.output)
    assert size / 10 < effect.relative < size * 20
    assert compare_steps(after, BEFORE, PROJECTIONS).equal


def test_what_a_change_does_to_the_output():
    before = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])
    turned = torch.tensor([[[-4.0, 3.0], [0.0, 1.0]]])
    effect = output_effect(before, turned)
    assert effect.relative == pytest.approx(sqrt(50 / 26)) and effect.cosine == pytest.approx(0.5)
    assert effect.largest == 7
    real_rows = torch.tensor([[False, True]])
    assert output_effect(before, turned, real_rows).relative == 0
    with pytest.raises(AttentionError, match=r"not \(1, 2, 2\) and \(1, 1, 2\)"):
        output_effect(before, turned[:, :1])


def test_what_cannot_be_is_named():
    with pytest.raises(AttentionError, match="output projection of this attention is not known"):
        real_layer(replace(PROJECTIONS, out_weight=None), SCALE)
    with pytest.raises(AttentionError, match="preset must be one of standard, bert, cabm, bart_simplified, not 'x'"):
        changed_layer(PROJECTIONS, SCALE, Change(preset="x"))
    with pytest.raises(AttentionError, match="dtype must be one of float16, bfloat16, float32, float64, not 'int8'"):
        steps(Change(dtype="int8"))
    narrow = replace(PROJECTIONS, key_weight=torch.zeros(D_MODEL, 11), value_weight=torch.zeros(D_MODEL, 11))
    with pytest.raises(AttentionError, match="30 x 11"):
        changed_layer(narrow, SCALE, Change(preset="bart_simplified"))


def test_a_scale_of_the_models_own_is_kept():
    assert changed_layer(PROJECTIONS, 0.25, Change()).config.effective_scale == 0.25
    assert changed_layer(PROJECTIONS, 0.25, Change(num_heads=2)).config.effective_scale == 0.25


def test_the_layer_is_a_copy():
    layer = real_layer(PROJECTIONS, SCALE)
    with torch.no_grad():
        layer.query_weight.zero_()
    assert PROJECTIONS.query_weight.abs().max() > 0
    assert isinstance(layer, MultiHeadAttention) and layer.config == AttentionConfig(D_MODEL, HEADS)
