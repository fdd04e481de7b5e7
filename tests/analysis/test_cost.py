"""The cost model against torch's own count of operations, a layer's parameters, and the bytes of real tensors."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attention_core import AttentionConfig, AttentionError, MultiHeadAttention, masks
from attention_core.analysis.cost import layer_cost
from attention_core.layer import attention

BATCH, QUERY_LEN, KEY_LEN = 2, 5, 7
CONFIGS = {
    "standard": AttentionConfig(33, 3),
    "free head_dim": AttentionConfig(33, 3, head_dim=13),
    "cross widths": AttentionConfig(33, 3, key_dim=17, value_dim=19),
    "no biases": AttentionConfig(33, 3, qkv_bias=False, out_bias=False),
    "bart_simplified": AttentionConfig(33, 3, projection="shared", scale="d_model", qkv_bias=False),
    "shared with bias": AttentionConfig(33, 3, projection="shared"),
}


def arguments(config, dtype=torch.float32):
    shapes = (QUERY_LEN, config.d_model), (KEY_LEN, config.key_dim), (KEY_LEN, config.value_dim)
    return [torch.randn(BATCH, *shape).to(dtype) for shape in shapes]


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_the_layers(name):
    layer = MultiHeadAttention(CONFIGS[name])
    cost = layer_cost(CONFIGS[name], QUERY_LEN)
    assert cost.total_parameters == sum(parameter.numel() for parameter in layer.parameters())
    for part in ("query", "key", "value", "out"):
        for what in ("weight", "bias"):
            tensor = getattr(layer, f"{part}_{what}")
            assert cost.parameters.get(f"{part}_{what}") == (None if tensor is None else tensor.numel())


@pytest.mark.parametrize("name", CONFIGS)
def test_multiply_adds_are_half_of_torchs_flops(name):
    layer = MultiHeadAttention(CONFIGS[name]).eval()
    query, key, value = arguments(CONFIGS[name])
    for call in (layer, layer.steps):
        with FlopCounterMode(display=False) as counter:
            call(query, key, value, mask=masks.causal(QUERY_LEN, KEY_LEN))
        cost = layer_cost(CONFIGS[name], QUERY_LEN, KEY_LEN, batch=BATCH)
        assert 2 * cost.total_multiply_adds == counter.get_total_flops()


@pytest.mark.parametrize("name", ["standard", "bart_simplified"])
def test_self_attention_costs_the_same_projected_at_once(name):
    layer = MultiHeadAttention(CONFIGS[name]).eval()
    with FlopCounterMode(display=False) as counter:
        layer.steps(torch.randn(BATCH, QUERY_LEN, 33))
    assert 2 * layer_cost(CONFIGS[name], QUERY_LEN, batch=BATCH).total_multiply_adds == counter.get_total_flops()


@pytest.mark.parametrize("name", CONFIGS)
def test_each_stage_alone(name):
    config = CONFIGS[name]
    layer = MultiHeadAttention(config).eval()
    steps = layer.steps(*arguments(config))
    weights = {"query": layer.query_weight, "key": layer.key_weight, "value": layer.value_weight}
    cost = layer_cost(config, QUERY_LEN, KEY_LEN, batch=BATCH)

    def half_of_flops(call):
        with FlopCounterMode(display=False) as counter:
            call()
        return counter.get_total_flops() // 2

    for part, weight in weights.items():
        numbers = getattr(steps, part).numel()
        assert cost.multiply_adds[part] == numbers * weight.shape[1]
    assert cost.multiply_adds["scores"] == half_of_flops(lambda: steps.query @ steps.key.transpose(2, 3))
    assert cost.multiply_adds["context"] == half_of_flops(lambda: steps.weights @ steps.value)
    assert cost.multiply_adds["output"] == half_of_flops(
        lambda: layer.out_proj(steps.context.transpose(1, 2).flatten(2))
    )


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bytes_are_those_of_the_tensors(name, dtype):
    steps = MultiHeadAttention(CONFIGS[name]).to(dtype).eval().steps(*arguments(CONFIGS[name], dtype))
    cost = layer_cost(CONFIGS[name], QUERY_LEN, KEY_LEN, batch=BATCH, dtype=dtype)
    assert cost.bytes == {stage: getattr(steps, stage).nbytes for stage in cost.bytes}
    assert set(cost.bytes) == {"query", "key", "value", "scores", "weights", "context", "output"}
    assert cost.total_bytes == sum(cost.bytes.values())


def test_by_hand():
    cost = layer_cost(AttentionConfig(4, 2), 3)
    assert cost.parameters == {"query_weight": 16, "query_bias": 4, "key_weight": 16, "key_bias": 4, "value_weight": 16,
                               "value_bias": 4, "out_weight": 16, "out_bias": 4}  # fmt: skip
    assert cost.multiply_adds == {"query": 48, "key": 48, "value": 48, "scores": 36, "context": 36, "output": 48}
    assert cost.total_multiply_adds == 264 and cost.hidden_multiply_adds == 0
    assert cost.bytes == {"query": 48, "key": 48, "value": 48, "scores": 72, "weights": 72, "context": 48, "output": 48}


def test_multiply_adds_on_hidden_cells():
    mask = masks.causal(QUERY_LEN)
    cost = layer_cost(CONFIGS["standard"], QUERY_LEN, unmasked=int(mask.sum()))
    assert cost.hidden_multiply_adds == 2 * 10 * 33
    assert cost.multiply_adds == layer_cost(CONFIGS["standard"], QUERY_LEN).multiply_adds
    nothing = layer_cost(CONFIGS["standard"], QUERY_LEN, unmasked=0)
    assert nothing.hidden_multiply_adds == nothing.multiply_adds["scores"] + nothing.multiply_adds["context"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_chunked_bytes_are_what_one_chunk_holds(dtype, monkeypatch):
    config, length = CONFIGS["standard"], 101
    monkeypatch.setattr(attention, "_CHUNK_NUMBERS", length * 11)
    rows = []
    scores = attention._scores
    monkeypatch.setattr(attention, "_scores", lambda *args: rows.append(scores(*args)) or rows[-1])
    layer = MultiHeadAttention(config).to(dtype).eval()
    layer(torch.randn(1, length, 33).to(dtype))
    assert len(rows) == 3 * 10  # each head in 9 chunks of 11 queries and a last one of 2
    cost = layer_cost(config, length, dtype=dtype)
    assert cost.chunked_bytes == 2 * max(scores.nbytes for scores in rows)
    assert cost.chunked_bytes < cost.bytes["scores"] + cost.bytes["weights"]


def test_a_short_input_is_one_chunk():
    cost = layer_cost(CONFIGS["standard"], QUERY_LEN, KEY_LEN)
    assert cost.chunked_bytes == cost.bytes["scores"] + cost.bytes["weights"]
    long = layer_cost(AttentionConfig(1024, 16), 4096)
    assert long.chunked_bytes == 2 * 4 * (1 << 18)
    assert long.bytes["scores"] == 16 * 4096 * 4096 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_len": 0}, "query_len (0) must be at least 1"),
        ({"key_len": 0}, "key_len (0) must be at least 1"),
        ({"batch": -1}, "batch (-1) must be at least 1"),
        ({"dtype": torch.int64}, "a layer computes in floating-point numbers, not torch.int64"),
        ({"unmasked": 71}, "unmasked (71) must be from 0 to batch * query_len * key_len (70)"),
        ({"unmasked": -1}, "unmasked (-1) must be from 0 to batch * query_len * key_len (70)"),
    ],
)
def test_what_cannot_be(changes, message):
    with pytest.raises(AttentionError) as caught:
        layer_cost(**({"config": CONFIGS["standard"], "query_len": 5, "key_len": 7, "batch": 2} | changes))
    assert str(caught.value) == message
