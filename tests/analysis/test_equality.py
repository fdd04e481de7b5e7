"""Verdicts: one planted fault a test, and the verdict names the first stage that differs."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attention_core import AttentionConfig, MultiHeadAttention, masks
from attention_core.analysis.changes import Change, changed_layer
from attention_core.analysis.equality import STAGES, compare_steps, rounding
from attention_core.errors import AttentionError

QUERY_LEN, KEY_LEN, HEADS, HEAD_DIM, D_MODEL, KEY_DIM = 7, 11, 3, 5, 17, 13


def made(seed=0, dtype=torch.float32, **fields):
    """A layer with weights and biases that matter, its input, and its mask."""
    generator = torch.Generator().manual_seed(seed)
    layer = MultiHeadAttention(
        AttentionConfig(D_MODEL, HEADS, head_dim=HEAD_DIM, key_dim=KEY_DIM, value_dim=KEY_DIM, **fields)
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    query, key = (
        torch.randn(2, length, width, generator=generator)
        for length, width in ((QUERY_LEN, D_MODEL), (KEY_LEN, KEY_DIM))
    )
    mask = torch.rand(2, 1, QUERY_LEN, KEY_LEN, generator=generator) < 0.7
    mask[..., 0] = True
    return layer.to(dtype).eval(), query.to(dtype), key.to(dtype), mask


def verdict(layer, other, query, key, mask, other_mask=None):
    with torch.no_grad():
        ours = layer.steps(query, key, mask=mask)
        theirs = other.steps(query, key, mask=mask if other_mask is None else other_mask)
        return compare_steps(theirs, ours, layer.projections(query, key))


def copied(layer):
    other = MultiHeadAttention(layer.config).to(layer.out_weight.dtype).eval()
    other.load_state_dict(layer.state_dict())
    return other


def first(equality):
    assert not equality.equal
    return equality.first.stage


def test_a_copy_is_bit_equal():
    layer, *inputs = made()
    equality = verdict(layer, copied(layer), *inputs)
    assert equality.bit_equal and equality.equal and equality.first is None
    assert [stage.stage for stage in equality.stages] == list(STAGES)
    assert all(stage.largest == stage.relative == stage.share == stage.outside == 0 for stage in equality.stages)
    cells = {"query": 2 * HEADS * QUERY_LEN * HEAD_DIM, "key": 2 * HEADS * KEY_LEN * HEAD_DIM,
             "scores": 2 * HEADS * QUERY_LEN * KEY_LEN, "output": 2 * QUERY_LEN * D_MODEL}  # fmt: skip
    assert {stage.stage: stage.cells for stage in equality.stages}.items() >= cells.items()


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_a_forgotten_bias(name):
    layer, *inputs = made()
    other = copied(layer)
    with torch.no_grad():
        getattr(other, f"{name}_bias").zero_()
    assert first(verdict(layer, other, *inputs)) == name


def test_a_forgotten_output_bias():
    layer, *inputs = made()
    other = copied(layer)
    with torch.no_grad():
        other.out_bias.zero_()
    equality = verdict(layer, other, *inputs)
    assert first(equality) == "output"
    assert equality.first.largest == pytest.approx(layer.out_bias.abs().max().item(), rel=1e-5)
    assert equality.first.outside == equality.first.cells


@pytest.mark.parametrize("scale", ["d_model", "none", HEAD_DIM**-0.5 * 1.0001])
def test_a_wrong_scale(scale):
    layer, *inputs = made()
    other = MultiHeadAttention(replace(layer.config, scale=scale)).eval()
    other.load_state_dict(layer.state_dict())
    assert first(verdict(layer, other, *inputs)) == "scores"


def test_a_permuted_head():
    layer, *inputs = made()
    other = copied(layer)
    order = torch.tensor([1, 0, 2])
    with torch.no_grad():
        for name in ("query", "key", "value"):
            for what in ("weight", "bias"):
                part = getattr(other, f"{name}_{what}")
                part.copy_(part.unflatten(0, (HEADS, HEAD_DIM))[order].flatten(0, 1).clone())
    equality = verdict(layer, other, *inputs)
    assert first(equality) == "query"
    assert equality.first.where[1] in (0, 1)


def test_heads_permuted_in_the_output_alone():
    layer, *inputs = made()
    other = copied(layer)
    with torch.no_grad():
        weight = other.out_weight.unflatten(1, (HEADS, HEAD_DIM))
        weight.copy_(weight[:, [1, 0, 2]].clone())
    assert first(verdict(layer, other, *inputs)) == "output"


def test_a_transposed_mask():
    layer, query, key, _ = made()
    key = torch.cat([key, key], dim=1)[:, :QUERY_LEN]
    mask = masks.causal(QUERY_LEN)
    equality = verdict(layer, copied(layer), query, key, mask, mask.T)
    assert first(equality) == "weights"
    hidden_on_one_side = 2 * HEADS * QUERY_LEN * (QUERY_LEN - 1)
    assert hidden_on_one_side <= equality.first.outside <= 2 * HEADS * QUERY_LEN**2


def test_one_cell_of_a_mask():
    layer, *inputs, mask = made()
    other = mask.clone()
    other[1, 0, 3, 0] = False
    equality = verdict(layer, copied(layer), *inputs, mask, other)
    assert first(equality) == "weights"
    assert equality.first.where[0] == 1 and equality.first.where[2] == 3


def test_a_fault_in_one_number_is_seen():
    layer, *inputs = made()
    other = copied(layer)
    with torch.no_grad():
        other.value_proj.weight[7, 2] += 1e-4
    equality = verdict(layer, other, *inputs)
    assert (
        first(equality) == "value"
        and equality.first.where[1] == 7 // HEAD_DIM
        and equality.first.where[3] == 7 % HEAD_DIM
    )
    assert equality.first.outside <= 2 * KEY_LEN


def test_what_is_not_a_number_differs():
    layer, *inputs = made()
    other = copied(layer)
    with torch.no_grad():
        other.key_proj.bias[0] = torch.nan
    equality = verdict(layer, other, *inputs)
    assert first(equality) == "key" and equality.first.share == float("inf")


def test_sides_of_different_shapes_are_refused():
    layer, query, key, mask = made()
    with pytest.raises(AttentionError, match=r"query is \(2, 3, 4, 5\) on one side and \(2, 3, 7, 5\) on the other"):
        compare_steps(
            layer.steps(query[:, :4], key, mask=mask[..., :4, :]),
            layer.steps(query, key, mask=mask),
            layer.projections(query, key),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_verdict_scales_with_the_dtype(dtype):
    """A layer in some dtype is equal to itself in float64 by that dtype's accuracy; by a finer one's it is not."""
    layer, query, key, mask = made(dtype=torch.float64)
    with torch.no_grad():
        exact = layer.steps(query, key, mask=mask)
        rounded = copied(layer).to(dtype).steps(query.to(dtype), key.to(dtype), mask=mask)
        projections = layer.projections(query, key)
        assert compare_steps(rounded, exact, projections).equal
        finer = torch.float64 if dtype == torch.float32 else torch.float32
        pretended = replace(
            rounded, **{name: getattr(rounded, name).to(finer) for name in ("query", "key", "value", "context")}
        )
        assert compare_steps(pretended, exact, projections).first.stage == "query"


def test_what_rounding_allows_grows_with_the_sum():
    assert rounding(10, torch.float32) == pytest.approx(14 * 2**-23)
    assert rounding(1020, torch.float32) == pytest.approx(8 * 32 * 2**-23)
    assert rounding(1020, torch.float16) / rounding(1020, torch.float32) == 2**13


@settings(max_examples=25, deadline=None)
@example(seed=3707, size=30.0, dtype=torch.float64)  # a weight of 1e-312
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1e-3, 1.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_another_order_of_summation_is_equal(seed, size, dtype):
    """The same layer with its input features, its head dimensions and its keys in another order: equal, hardly ever bit-equal."""
    layer, query, key, mask = made(seed, dtype)
    query, key = query * size, key * size
    generator = torch.Generator().manual_seed(seed)
    feature, other = torch.randperm(D_MODEL, generator=generator), torch.randperm(KEY_DIM, generator=generator)
    keys = torch.randperm(KEY_LEN, generator=generator)
    moved = copied(layer)
    with torch.no_grad():
        moved.query_proj.weight.copy_(layer.query_weight[:, feature])
        for name in ("key", "value"):
            getattr(moved, f"{name}_proj").weight.copy_(getattr(layer, f"{name}_weight")[:, other])
        steps = moved.steps(query[..., feature], key[:, keys][..., other], mask=mask[..., keys])
        back = torch.argsort(keys)
        steps = replace(
            steps, key=steps.key[:, :, back], value=steps.value[:, :, back], scores=steps.scores[..., back],
            weights=steps.weights[..., back], mask=mask,
        )  # fmt: skip
        equality = compare_steps(steps, layer.steps(query, key, mask=mask), layer.projections(query, key))
    assert equality.equal, equality.first
    assert not any(stage.outside for stage in equality.stages)


def test_a_shared_projection_has_bounds_too():
    generator = torch.Generator().manual_seed(3)
    layer = MultiHeadAttention(AttentionConfig(15, 3, projection="shared", qkv_bias=False)).eval()
    x = torch.randn(2, 7, 15, generator=generator)
    with torch.no_grad():
        steps, projections = layer.steps(x), layer.projections(x)
        assert compare_steps(layer.steps(x, x.clone()), steps, projections).equal
        moved = replace(steps, value=steps.value + 1e-3)
        assert compare_steps(moved, steps, projections).first.stage == "value"


def test_the_layer_made_from_projections_is_the_layer():
    layer, *inputs = made()
    with torch.no_grad():
        projections = layer.projections(*inputs[:2])
    again = changed_layer(projections, layer.config.effective_scale, Change())
    assert verdict(layer, again, *inputs).bit_equal
    assert again.config == layer.config and not again.training
