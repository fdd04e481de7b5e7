"""The named variants against their published steps, which are written out here and call nothing of this project."""

from math import sqrt

import pytest
import torch
from torch import nn

from attention_core import AttentionConfig, AttentionError, MultiHeadAttention, masks, presets

BATCH, LENGTH, D_MODEL, HEADS, HEAD_DIM = 2, 7, 33, 3, 11


def random_layer(preset, dtype=torch.float64, **changes):
    torch.manual_seed(0)
    layer = MultiHeadAttention(preset(D_MODEL, HEADS, **changes)).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer.to(dtype)


def some_mask(empty_rows=()):
    """(batch, 1, length, length): every query sees a key, except those named."""
    mask = torch.rand(BATCH, 1, LENGTH, LENGTH) < 0.5
    mask[..., 0] = True
    for row in empty_rows:
        mask[:, :, row] = False
    return mask


def split(x):
    batch, length, width = x.shape
    return x.reshape(batch, length, HEADS, width // HEADS).permute(0, 2, 1, 3)


def merge(x):
    return x.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def published_standard(layer, x, visible):
    """Vaswani et al. 2017: four full projections, / sqrt(head_dim), -inf where hidden, softmax over keys."""
    query = split(x @ layer.query_weight.T + layer.query_bias)
    key = split(x @ layer.key_weight.T + layer.key_bias)
    value = split(x @ layer.value_weight.T + layer.value_bias)
    scores = query @ key.transpose(-1, -2) / sqrt(HEAD_DIM)
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
    return weights, merge(weights @ value) @ layer.out_weight.T + layer.out_bias


def published_bert(layer, x, visible):
    """Devlin et al. 2019, as its code adds the mask: 0 or -10000, after / sqrt(attention_head_size)."""
    query = split(nn.functional.linear(x, layer.query_weight, layer.query_bias))
    key = split(nn.functional.linear(x, layer.key_weight, layer.key_bias))
    value = split(nn.functional.linear(x, layer.value_weight, layer.value_bias))
    scores = torch.matmul(query, key.transpose(-1, -2)) / sqrt(HEAD_DIM) + (1.0 - visible.to(x.dtype)) * -10000.0
    weights = nn.functional.dropout(nn.functional.softmax(scores, dim=-1), 0.1, training=False)
    return weights, nn.functional.linear(merge(torch.matmul(weights, value)), layer.out_weight, layer.out_bias)


def published_cabm(layer, x, visible):
    """Masked self-attention: a 0/1 mask, hidden scores filled with -inf, the output and the weights returned."""
    numbers = visible.long()
    query, key, value = (
        split(nn.functional.linear(x, weight, bias))
        for weight, bias in (
            (layer.query_weight, layer.query_bias),
            (layer.key_weight, layer.key_bias),
            (layer.value_weight, layer.value_bias),
        )
    )
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * HEAD_DIM**-0.5
    weights = scores.masked_fill(numbers == 0, -torch.inf).softmax(-1)
    output = merge(torch.einsum("bhqk,bhkd->bhqd", weights, value))
    return weights, nn.functional.linear(output, layer.out_weight, layer.out_bias)


def published_bart_simplified(layer, x, visible):
    """Split first; one bias-free head_dim x head_dim matrix for all heads; -1e20 where hidden; / sqrt(d_model) after it."""
    heads = x.reshape(BATCH, LENGTH, HEADS, HEAD_DIM)
    query, key, value = (
        torch.einsum("blhi,oi->blho", heads, weight)
        for weight in (layer.query_weight, layer.key_weight, layer.value_weight)
    )
    energy = torch.einsum("bqhd,bkhd->bhqk", query, key)
    energy = energy.masked_fill(visible.long() == 0, -1e20)
    weights = torch.softmax(energy / sqrt(D_MODEL), dim=3)
    context = torch.einsum("bhqk,bkhd->bqhd", weights, value).reshape(BATCH, LENGTH, D_MODEL)
    return weights, context @ layer.out_weight.T + layer.out_bias


PUBLISHED = {
    "standard": published_standard,
    "bert": published_bert,
    "cabm": published_cabm,
    "bart_simplified": published_bart_simplified,
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["full", "causal", "random"])
def test_agrees_with_its_published_steps(name, dtype, kind):
    layer = random_layer(presets.PRESETS[name], dtype)
    x = torch.randn(BATCH, LENGTH, D_MODEL).to(dtype)
    visible = {"full": masks.full(LENGTH), "causal": masks.causal(LENGTH), "random": some_mask()}[kind]
    weights, output = PUBLISHED[name](layer, x, visible.expand(BATCH, HEADS, LENGTH, LENGTH))
    steps = layer.steps(x, mask=visible)
    torch.testing.assert_close(steps.weights, weights, atol=1e-6, rtol=0)
    torch.testing.assert_close(steps.output, output, atol=1e-6, rtol=1e-6)
    result = layer(x, mask=visible)
    torch.testing.assert_close(result[0] if name == "cabm" else result, output, atol=1e-6, rtol=1e-6)


def test_every_preset_has_its_published_steps():
    assert set(PUBLISHED) == set(presets.PRESETS)


@pytest.mark.parametrize(
    ("name", "empty_row"), [("standard", "nan"), ("bert", "not 0"), ("cabm", "nan"), ("bart_simplified", "uniform")]
)
def test_case_11_the_published_layers_on_a_row_without_visible_key(name, empty_row):
    """Ours is 0 there; theirs is NaN or attends to what is hidden. On the other rows they still agree."""
    layer = random_layer(presets.PRESETS[name])
    x, visible = torch.randn(BATCH, LENGTH, D_MODEL).double(), some_mask(empty_rows=[4])
    weights, output = PUBLISHED[name](layer, x, visible.expand(BATCH, HEADS, LENGTH, LENGTH))
    steps = layer.steps(x, mask=visible)
    assert (steps.weights[:, :, 4] == 0).all() and (steps.context[:, :, 4] == 0).all()
    torch.testing.assert_close(steps.output[:, 4], layer.out_bias.expand(BATCH, -1))
    theirs = weights[:, :, 4]
    if empty_row == "nan":
        assert theirs.isnan().all()
    elif empty_row == "uniform":
        torch.testing.assert_close(theirs, torch.full_like(theirs, 1 / LENGTH))
    else:
        assert (theirs > 0).all()
    others = [0, 1, 2, 3, 5, 6]
    torch.testing.assert_close(steps.weights[:, :, others], weights[:, :, others], atol=1e-6, rtol=0)
    torch.testing.assert_close(steps.output[:, others], output[:, others], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_standard_bert_and_cabm_are_equal_in_eval_mode(dtype):
    first, *others = (random_layer(presets.PRESETS[name], dtype) for name in ("standard", "bert", "cabm"))
    x = torch.randn(BATCH, LENGTH, D_MODEL).to(dtype)
    for mask in (None, masks.causal(LENGTH), some_mask([4])):
        steps = first.steps(x, mask=mask)
        for layer in others:
            layer.load_state_dict(first.state_dict())
            same = layer.steps(x, mask=mask)
            assert torch.equal(same.weights, steps.weights) and torch.equal(same.output, steps.output)
    assert torch.equal(others[0](x), first(x))


def test_what_calling_each_gives():
    x = torch.randn(BATCH, LENGTH, D_MODEL).double()
    for name in ("standard", "bert", "bart_simplified"):
        assert random_layer(presets.PRESETS[name])(x).shape == x.shape
    output, weights = random_layer(presets.cabm)(x)
    assert output.shape == x.shape and weights.shape == (BATCH, HEADS, LENGTH, LENGTH)


def test_case_21_the_simplified_layer_works_in_half_precision_where_the_published_one_fails():
    layer = random_layer(presets.bart_simplified, torch.float16)
    x = torch.randn(BATCH, LENGTH, D_MODEL).half()
    assert layer.steps(x, mask=masks.causal(LENGTH)).output.isfinite().all()
    with pytest.raises(RuntimeError, match="overflow"):
        published_bart_simplified(layer, x, masks.causal(LENGTH).expand(BATCH, HEADS, LENGTH, LENGTH))


def test_what_the_simplified_layer_does_to_the_result():
    layer = random_layer(presets.bart_simplified)
    assert layer.query_weight.shape == layer.key_weight.shape == layer.value_weight.shape == (HEAD_DIM, HEAD_DIM)
    assert layer.query_bias is None and layer.out_weight.shape == (D_MODEL, D_MODEL) and layer.out_bias is not None
    x = torch.randn(BATCH, LENGTH, D_MODEL).double()
    steps = layer.steps(x)
    assert steps.scale == 1 / sqrt(D_MODEL)
    # No head sees the others' features: what head 0 does not read does not change it.
    other = x.clone()
    other[..., HEAD_DIM:] = torch.randn(BATCH, LENGTH, D_MODEL - HEAD_DIM).double()
    changed = layer.steps(other)
    assert torch.equal(changed.weights[:, 0], steps.weights[:, 0])
    assert not torch.equal(changed.weights[:, 1], steps.weights[:, 1])
    # Flatter than with the head's own scale.
    own = MultiHeadAttention(presets.bart_simplified(D_MODEL, HEADS, scale="head_dim")).double().eval()
    own.load_state_dict(layer.state_dict())
    assert (steps.weights.amax(-1) < own.steps(x).weights.amax(-1)).all()


def test_presets_are_configurations_and_take_changes():
    assert presets.standard(D_MODEL, HEADS) == AttentionConfig(D_MODEL, HEADS)
    assert presets.bert(D_MODEL, HEADS).dropout == 0.1 and presets.bert(D_MODEL, HEADS, dropout=0.3).dropout == 0.3
    assert presets.cabm(D_MODEL, HEADS).return_weights and presets.cabm(D_MODEL, HEADS).dropout == 0
    assert not presets.standard(D_MODEL, HEADS).return_weights
    assert presets.standard(D_MODEL, HEADS, head_dim=5, temperature=2.0).inner_dim == 15
    simplified = presets.bart_simplified(D_MODEL, HEADS)
    assert (simplified.projection, simplified.scale, simplified.qkv_bias, simplified.out_bias) == (
        "shared", "d_model", False, True)  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_refusals(name):
    with pytest.raises(AttentionError) as caught:
        presets.PRESETS[name](10, 3)
    assert str(caught.value) == "d_model (10) must be divisible by num_heads (3)"
    with pytest.raises(AttentionError, match=r"query must be \(batch, len, d_model = 33\), not the shape \(2, 7, 31\)"):
        MultiHeadAttention(presets.PRESETS[name](D_MODEL, HEADS))(torch.zeros(BATCH, LENGTH, 31))
