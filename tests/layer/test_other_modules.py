"""Attention modules of torch and transformers, read into this layer: the same numbers, and clear refusals."""

import copy

import pytest
import torch
from torch import nn

from attention_core import AttentionError, MultiHeadAttention, attention_steps, masks

BATCH, QUERY_LEN, KEY_LEN = 2, 5, 7
D_MODEL, HEADS, HEAD_DIM, KEY_DIM, VALUE_DIM = 33, 3, 11, 13, 17


def inputs(config, device="cpu", dtype=torch.float32):
    shapes = (QUERY_LEN, config.d_model), (KEY_LEN, config.key_dim), (KEY_LEN, config.value_dim)
    return [torch.randn(BATCH, *shape, dtype=torch.float64).to(device, dtype) for shape in shapes]


def some_mask(*shape, device="cpu"):
    mask = torch.rand(shape, device=device) < 0.6
    mask[..., 0] = True
    return mask


def random_torch_layer(**changes):
    theirs = nn.MultiheadAttention(D_MODEL, HEADS, **({"batch_first": True} | changes)).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    return theirs


@pytest.mark.parametrize(
    "changes",
    [{}, {"bias": False}, {"kdim": KEY_DIM, "vdim": VALUE_DIM}, {"kdim": KEY_DIM, "bias": False}, {"vdim": VALUE_DIM},
     {"dtype": torch.float64}, {"batch_first": False}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("masked", [False, True])
def test_equals_nn_multihead_attention(changes, masked, device):
    theirs = random_torch_layer(**changes).to(device)
    layer = MultiHeadAttention.from_module(theirs)
    query, key, value = inputs(layer.config, device, layer.out_weight.dtype)
    mask = some_mask(BATCH, HEADS, QUERY_LEN, KEY_LEN, device=device) if masked else None
    swap = (lambda x: x) if theirs.batch_first else (lambda x: x.transpose(0, 1))
    output, weights = theirs(
        swap(query), swap(key), swap(value), average_attn_weights=False,
        attn_mask=masks.to_torch_mha(mask) if masked else None,
    )  # fmt: skip
    steps = layer.steps(query, key, value, mask=mask)
    torch.testing.assert_close(steps.weights, weights, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(steps.output, swap(output), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer(query, key, value, mask=mask), swap(output), atol=1e-5, rtol=1e-5)


def transformers_module(kind, implementation="eager"):
    """A BART or BERT attention module with random biases (fresh ones are 0), and its config."""
    if kind == "bart":
        from transformers import BartConfig
        from transformers.models.bart.modeling_bart import BartAttention

        config = BartConfig(d_model=D_MODEL, encoder_attention_heads=HEADS)
        config._attn_implementation = implementation
        module = BartAttention(D_MODEL, HEADS, dropout=0.2, config=config)
    else:
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertAttention

        config = BertConfig(hidden_size=D_MODEL, num_attention_heads=HEADS, attention_probs_dropout_prob=0.2)
        config._attn_implementation = implementation
        module = BertAttention(config)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.eval()


@pytest.mark.parametrize("kind", ["bart", "bert"])
def test_equals_the_modules_of_transformers(kind):
    module = transformers_module(kind)
    layer = MultiHeadAttention.from_module(module)
    x = torch.randn(BATCH, QUERY_LEN, D_MODEL)
    mask = some_mask(BATCH, 1, QUERY_LEN, QUERY_LEN)
    inner = module if kind == "bart" else module.self
    attended, weights = inner(x, attention_mask=masks.to_additive(mask))
    steps = layer.steps(x, mask=mask)
    torch.testing.assert_close(steps.weights, weights, atol=1e-6, rtol=1e-5)
    # BART's module ends with its output projection; that of BERT lies beside, in the module that holds both.
    expected = attended if kind == "bart" else module.output.dense(attended)
    torch.testing.assert_close(steps.output, expected, atol=1e-5, rtol=1e-5)
    assert layer.config.dropout == 0.2 and not layer.training and layer.config.scale == "head_dim"
    # Queries and keys of the module itself: then the numbers are equal to the last bit.
    names = ("q_proj", "k_proj", "v_proj") if kind == "bart" else ("query", "key", "value")
    q, k, v = (getattr(inner, name)(x).view(BATCH, QUERY_LEN, HEADS, HEAD_DIM).transpose(1, 2) for name in names)
    assert torch.equal(attention_steps(q, k, v, mask, inner.scaling).weights, weights)


@pytest.mark.parametrize("kind", ["bart", "bert", "torch", "torch without bias", "torch float64", "torch in training"])
def test_a_copied_module_stays_apart(kind):
    changes = {"torch without bias": {"bias": False}, "torch float64": {"dtype": torch.float64}}.get(kind, {})
    module = random_torch_layer(dropout=0.3, **changes) if "torch" in kind else transformers_module(kind)
    module.train(kind == "torch in training")
    before = copy.deepcopy(module.state_dict())
    layer = MultiHeadAttention.from_module(module)
    assert layer.training == (kind == "torch in training")
    assert layer.config.qkv_bias == layer.config.out_bias == (kind != "torch without bias")
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


class Parts(nn.Module):
    """A module with the given parts."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def bart_like(key_out=D_MODEL, **more):
    def linear(out=D_MODEL):
        return nn.Linear(D_MODEL, out)

    return Parts(
        **dict(q_proj=linear(), k_proj=linear(key_out), v_proj=linear(), out_proj=linear(), num_heads=3) | more
    )


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: nn.MultiheadAttention(6, 3, add_bias_kv=True),
         "an nn.MultiheadAttention with add_bias_kv or add_zero_attn has no counterpart here"),
        (lambda: nn.MultiheadAttention(6, 3, add_zero_attn=True),
         "an nn.MultiheadAttention with add_bias_kv or add_zero_attn has no counterpart here"),
        (lambda: nn.Linear(2, 3), "Linear is not an attention module of a known form: it must be an nn.MultiheadAttention"),
        (lambda: transformers_module("bert").self, "BertSelfAttention is not an attention module of a known form"),
        (lambda: bart_like(num_heads=None), "Parts is not an attention module of a known form"),
        (lambda: bart_like(key_out=11), "queries, keys and values must each have num_heads (3) heads of one width; "
         "their projections give 33, 11, 33 numbers"),
        (lambda: bart_like(num_heads=2), "queries, keys and values must each have num_heads (2) heads of one width"),
        (lambda: bart_like(k_norm=nn.LayerNorm(3)),
         "Parts has parameters that this layer has no counterpart for: k_norm.weight, k_norm.bias"),
    ],
)  # fmt: skip
def test_modules_without_counterpart_are_refused(module, message):
    with pytest.raises(AttentionError) as caught:
        MultiHeadAttention.from_module(module())
    assert str(caught.value).startswith(message)


def test_a_module_with_some_biases_and_a_scale_of_its_own():
    module = bart_like(k_proj=nn.Linear(D_MODEL, D_MODEL, bias=False), scaling=0.3).eval()
    nn.init.normal_(module.q_proj.bias)
    layer = MultiHeadAttention.from_module(module)
    assert layer.config.effective_scale == 0.3 and (layer.key_bias == 0).all()
    assert torch.equal(layer.query_bias, module.q_proj.bias)
