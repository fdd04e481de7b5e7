"""The multi-head layer against torch's and transformers' own, by hand, and through its files."""

import copy
import json
import pickle
from math import sqrt

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attention_core import AttentionConfig, AttentionError, MultiHeadAttention, masks

BATCH, QUERY_LEN, KEY_LEN = 2, 5, 7
D_MODEL, HEADS, HEAD_DIM, KEY_DIM, VALUE_DIM = 33, 3, 11, 13, 17
CONFIGS = {
    "standard": AttentionConfig(D_MODEL, HEADS),
    "free head_dim": AttentionConfig(D_MODEL, HEADS, head_dim=5),
    "cross widths": AttentionConfig(D_MODEL, HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM),
    "no biases": AttentionConfig(D_MODEL, HEADS, qkv_bias=False, out_bias=False),
    "shared": AttentionConfig(D_MODEL, HEADS, projection="shared"),
    "shared without bias": AttentionConfig(D_MODEL, HEADS, projection="shared", qkv_bias=False),
    "one head": AttentionConfig(D_MODEL, 1, scale=0.3, temperature=2.0),
}


def random_layer(config, device="cpu", dtype=torch.float32):
    """In eval mode; biases are random too, since 0 hides that they are used."""
    layer = MultiHeadAttention(config).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.to(device, dtype)


def inputs(config, device="cpu", dtype=torch.float32):
    shapes = (QUERY_LEN, config.d_model), (KEY_LEN, config.key_dim), (KEY_LEN, config.value_dim)
    return [torch.randn(BATCH, *shape, dtype=torch.float64).to(device, dtype) for shape in shapes]


def some_mask(*shape, device="cpu"):
    mask = torch.rand(shape, device=device) < 0.6
    mask[..., 0] = True
    return mask


def written_out(layer, query, key, value, mask):
    """The layer head by head, from its named weights, with no function of this project: weights and output."""
    config, head_dim = layer.config, layer.config.head_dim
    contexts, maps = [], []
    for h in range(config.num_heads):
        rows = slice(h * head_dim, (h + 1) * head_dim)
        q, k, v = (
            (x[..., rows] if config.projection == "shared" else x)
            @ (weight if config.projection == "shared" else weight[rows]).T
            + (0 if bias is None else bias if config.projection == "shared" else bias[rows])
            for x, weight, bias in (
                (query, layer.query_weight, layer.query_bias),
                (key, layer.key_weight, layer.key_bias),
                (value, layer.value_weight, layer.value_bias),
            )
        )
        scores = q @ k.transpose(1, 2) * config.effective_scale
        maps.append(scores.masked_fill(~mask, -torch.inf).softmax(-1))
        contexts.append(maps[-1] @ v)
    output = torch.cat(contexts, -1) @ layer.out_weight.T + (0 if layer.out_bias is None else layer.out_bias)
    return torch.stack(maps, 1), output


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_formula_head_by_head(name, device):
    layer = random_layer(CONFIGS[name], device, torch.float64)
    query, key, value = inputs(layer.config, device, torch.float64)
    mask = some_mask(QUERY_LEN, KEY_LEN, device=device)
    weights, output = written_out(layer, query, key, value, mask)
    steps = layer.steps(query, key, value, mask=mask)
    torch.testing.assert_close(steps.weights, weights)
    torch.testing.assert_close(steps.output, output)
    torch.testing.assert_close(layer(query, key, value, mask=mask), output)
    if layer.config.key_dim == layer.config.value_dim == D_MODEL:
        causal = masks.causal(QUERY_LEN).to(device)
        weights, output = written_out(layer, query, query, query, causal)
        torch.testing.assert_close(layer.steps(query, mask=causal).weights, weights)
        torch.testing.assert_close(layer(query, mask=causal), output)
        torch.testing.assert_close(layer(query, key, mask=mask), written_out(layer, query, key, key, mask)[1])


def test_case_39_heads_and_positions_are_not_mixed():
    layer = MultiHeadAttention(AttentionConfig(4, 2)).eval()
    with torch.no_grad():
        layer.query_weight.zero_(), layer.key_weight.zero_()
        layer.value_weight.copy_(torch.eye(4)), layer.out_weight.copy_(torch.eye(4))
    x = torch.tensor([[[1.0, 2, 3, 4], [5, 6, 7, 8]]])
    assert layer(x)[0].tolist() == layer.steps(x).output[0].tolist() == [[3, 4, 5, 6], [3, 4, 5, 6]]
    assert layer(x, mask=torch.eye(2, dtype=torch.bool))[0].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    key = torch.randn(1, 3, 4)
    steps = layer.steps(x, key)
    assert steps.weights.shape == (1, 2, 2, 3)
    torch.testing.assert_close(steps.weights.sum(-1), torch.ones(1, 2, 2))


@pytest.mark.parametrize(("num_heads", "weight"), [(1, 0.8044), (2, 0.8808), (4, 0.9442)])
def test_case_40_the_scale_is_that_of_the_head(num_heads, weight):
    layer = MultiHeadAttention(AttentionConfig(8, num_heads, qkv_bias=False, out_bias=False))
    with torch.no_grad():
        for matrix in (layer.query_weight, layer.key_weight, layer.value_weight, layer.out_weight):
            matrix.copy_(torch.eye(8))
    x = torch.zeros(1, 2, 8)
    x[0, 0, 0] = x[0, 1, 1] = 2
    steps = layer.steps(x)
    torch.testing.assert_close(steps.weights[0, 0, 0], torch.tensor([weight, 1 - weight]), atol=5e-5, rtol=0)
    if num_heads == 2:
        assert steps.scores[0, 0, 0, 0].item() == pytest.approx(2.0)
        assert steps.weights[0, 1].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    wrong = MultiHeadAttention(AttentionConfig(8, num_heads, scale="d_model", qkv_bias=False, out_bias=False))
    wrong.load_state_dict(layer.state_dict())
    torch.testing.assert_close(wrong.steps(x).weights[0, 0, 0, 0].item(), 0.8044, atol=5e-5, rtol=0)


def test_case_11_in_the_layer(device):
    layer = random_layer(AttentionConfig(6, 3), device)
    x = torch.randn(1, 3, 6, device=device, requires_grad=True)
    whole = layer.steps(x)
    mask = masks.full(3).clone()
    mask[1] = False
    steps = layer.steps(x, mask=mask)
    assert (steps.context[:, :, 1] == 0).all()
    torch.testing.assert_close(steps.output[:, 1], layer.out_bias[None])
    torch.testing.assert_close(steps.output[:, [0, 2]], whole.output[:, [0, 2]])
    layer(x, mask=mask)[:, 0].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in [x, *layer.parameters()])


@pytest.mark.parametrize("name", CONFIGS)
def test_output_of_the_call_is_that_of_the_steps(name, device):
    layer = random_layer(CONFIGS[name], device)
    query, key, value = inputs(layer.config, device)
    for mask in (None, some_mask(BATCH, 1, QUERY_LEN, KEY_LEN, device=device), masks.padding([0, 3], KEY_LEN)):
        steps = layer.steps(query, key, value, mask=mask)
        torch.testing.assert_close(layer(query, key, value, mask=mask), steps.output)
        with torch.inference_mode():
            torch.testing.assert_close(layer(query, key, value, mask=mask), steps.output)
            torch.testing.assert_close(layer.steps(query, key, value, mask=mask).output, steps.output)


@pytest.mark.parametrize("name", CONFIGS)
def test_named_heads_are_those_of_all(name, device):
    layer = random_layer(CONFIGS[name], device, torch.float64)
    query, key, value = inputs(layer.config, device, torch.float64)
    mask = some_mask(QUERY_LEN, KEY_LEN, device=device)
    whole = layer.steps(query, key, value, mask=mask)
    for heads in ([0],) if layer.config.num_heads == 1 else ([1], [2, 0], (0, 1, 2), range(2)):
        some = layer.steps(query, key, value, mask=mask, heads=heads)
        assert some.output is None
        for stage in ("query", "key", "value", "scores", "weights", "context"):
            torch.testing.assert_close(getattr(some, stage), getattr(whole, stage)[:, list(heads)])
    for heads, message in (([HEADS], "head 3 is outside 0 to "), ([-1], "head -1 is outside"), ([], "heads is empty")):
        with pytest.raises(AttentionError, match=message):
            layer.steps(query, key, value, heads=heads)


@pytest.mark.parametrize("name", CONFIGS)
def test_projections_make_the_steps(name):
    layer = random_layer(CONFIGS[name], dtype=torch.float64)
    arguments = inputs(layer.config, dtype=torch.float64)
    projections, steps = layer.projections(*arguments), layer.steps(*arguments)
    output = torch.zeros_like(steps.output) + (0 if projections.out_bias is None else projections.out_bias)
    for h in range(layer.config.num_heads):
        part = projections.head(h)
        for name in ("query", "key", "value"):
            x, weight, bias = (getattr(part, f"{name}_{what}") for what in ("input", "weight", "bias"))
            torch.testing.assert_close(nn.functional.linear(x, weight, bias), getattr(steps, name)[:, h])
        output = output + steps.context[:, h] @ part.out_weight.T
    torch.testing.assert_close(output, steps.output)
    assert projections.query_input is arguments[0] and projections.num_heads == layer.config.num_heads


@pytest.mark.parametrize("name", CONFIGS)
def test_gradcheck(name):
    config = copy.copy(CONFIGS[name])
    layer = random_layer(config, dtype=torch.float64)
    query, key, value = (x[:1].requires_grad_() for x in inputs(config, dtype=torch.float64))
    mask = some_mask(QUERY_LEN, KEY_LEN)
    mask[1] = False
    assert torch.autograd.gradcheck(lambda *x: layer(*x, mask=mask), (query, key, value), fast_mode=True)
    names, parameters = zip(*layer.named_parameters())

    def of_parameters(*parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters)), (query, key, value), {"mask": mask})

    assert torch.autograd.gradcheck(of_parameters, parameters, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype, device):
    layer = random_layer(CONFIGS["standard"], device)
    x = torch.randn(BATCH, QUERY_LEN, D_MODEL, device=device)
    expected = layer.steps(x, mask=masks.causal(QUERY_LEN))
    steps = layer.to(dtype).steps(x.to(dtype), mask=masks.causal(QUERY_LEN))
    assert steps.query.dtype == steps.context.dtype == steps.output.dtype == dtype
    assert steps.weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = {torch.float16: 0.05, torch.bfloat16: 0.3, torch.float64: 1e-4}[dtype]
    torch.testing.assert_close(steps.output, expected.output.to(dtype), atol=tolerance, rtol=tolerance)


def test_dropout_acts_in_training_alone(device):
    layer = random_layer(AttentionConfig(D_MODEL, HEADS, dropout=0.5), device)
    x = torch.randn(BATCH, QUERY_LEN, D_MODEL, device=device)
    assert layer.steps(x).dropped_weights is None and torch.equal(layer(x), layer(x))
    layer.train()

    def draw(seed):
        return layer.steps(x, generator=torch.Generator(device).manual_seed(seed))

    assert torch.equal(draw(3).output, draw(3).output) and not torch.equal(draw(3).output, draw(4).output)
    torch.testing.assert_close(draw(3).weights, layer.eval().steps(x).weights)
    layer.train()
    torch.manual_seed(1)
    output = layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer.steps(x).output, output)


def test_returned_weights_are_those_before_dropout():
    layer = random_layer(AttentionConfig(D_MODEL, HEADS, dropout=0.5, return_weights=True))
    x = torch.randn(BATCH, QUERY_LEN, D_MODEL)
    output, weights = layer(x)
    steps = layer.steps(x)
    assert torch.equal(output, steps.output) and torch.equal(weights, steps.weights)
    _, trained = layer.train()(x)
    torch.testing.assert_close(trained, weights)


@pytest.mark.parametrize(
    ("fields", "scale"),
    [({}, 1 / sqrt(11)), ({"scale": "d_model"}, 1 / sqrt(33)), ({"scale": "none"}, 1.0), ({"scale": 0.25}, 0.25),
     ({"scale": 2}, 2.0), ({"temperature": 4.0}, 1 / sqrt(11) / 4), ({"head_dim": 5, "temperature": 0.5}, 2 / sqrt(5)),
     ({"scale": "none", "temperature": 2}, 0.5)],
)  # fmt: skip
def test_scale_rules(fields, scale):
    layer = random_layer(AttentionConfig(D_MODEL, HEADS, **fields))
    steps = layer.steps(torch.randn(BATCH, QUERY_LEN, D_MODEL))
    assert steps.scale == pytest.approx(scale, rel=1e-15)
    torch.testing.assert_close(steps.scores, steps.query @ steps.key.transpose(2, 3) * scale)


def test_initial_weights():
    torch.manual_seed(3)
    layer = MultiHeadAttention(CONFIGS["cross widths"])
    torch.manual_seed(3)
    again = MultiHeadAttention(CONFIGS["cross widths"])
    assert all(torch.equal(x, y) for x, y in zip(layer.parameters(), again.parameters()))
    shapes = {"query": (33, 33), "key": (33, KEY_DIM), "value": (33, VALUE_DIM), "out": (33, 33)}
    for one in (layer, MultiHeadAttention(CONFIGS["standard"])):
        for name, shape in shapes.items():
            weight, bias = getattr(one, f"{name}_weight"), getattr(one, f"{name}_bias")
            shape = shape if one is layer else (33, 33)
            bound = sqrt(6 / sum(shape))
            assert weight.shape == shape and (bias == 0).all()
            assert 0.9 * bound < weight.abs().max() <= bound


def test_named_weights_are_views_of_the_layer():
    layer = random_layer(CONFIGS["standard"])
    with torch.no_grad():
        layer.key_weight.zero_(), layer.key_bias.zero_()
    steps = layer.steps(torch.randn(BATCH, QUERY_LEN, D_MODEL))
    assert (steps.key == 0).all() and (steps.query != 0).all() and (steps.value != 0).all()


def test_inputs_are_never_changed():
    layer = random_layer(CONFIGS["standard"])
    x, mask = torch.randn(BATCH, QUERY_LEN, D_MODEL), masks.causal(QUERY_LEN)
    before = [x.clone(), mask.clone(), *(p.detach().clone() for p in layer.parameters())]
    with torch.no_grad():
        layer(x, mask=mask), layer.steps(x, mask=mask), layer.steps(x, x, x, mask=mask), layer.steps(x, heads=[1])
    assert all(torch.equal(a, b) for a, b in zip([x, mask, *layer.parameters()], before))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_stand_alone(again):
    layer = random_layer(CONFIGS["standard"])
    x = torch.randn(BATCH, QUERY_LEN, D_MODEL)
    copied = again(layer)
    assert torch.equal(copied(x), layer(x)) and copied.config == layer.config
    nn.init.zeros_(copied.qkv_proj.weight)
    assert not torch.equal(copied(x), layer(x))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_saved_and_loaded(name, dtype, tmp_path):
    layer = random_layer(CONFIGS[name], dtype=dtype)
    layer.save(tmp_path / "layer.safetensors")
    loaded = MultiHeadAttention.load(tmp_path / "layer.safetensors").eval()
    assert loaded.config == layer.config
    arguments = inputs(layer.config, dtype=dtype)
    assert torch.equal(loaded(*arguments), layer(*arguments))


def test_files_that_are_no_layer_are_refused(tmp_path):
    path = tmp_path / "{layer}.safetensors"
    good = {"d_model": 4, "num_heads": 2}
    state = MultiHeadAttention(AttentionConfig(**good)).state_dict()
    files = [
        lambda: None,
        lambda: path.write_bytes(b"no tensors"),
        lambda: path.write_bytes(b""),
        lambda: save_file(state, path),
        lambda: save_file(state, path, metadata={"config": "not json"}),
        lambda: save_file(state, path, metadata={"config": "[4, 2]"}),
        lambda: save_file(state, path, metadata={"config": json.dumps(good | {"unknown": 1})}),
        lambda: save_file(state, path, metadata={"config": json.dumps(good | {"num_heads": 3})}),
        lambda: save_file(state, path, metadata={"config": json.dumps(good | {"d_model": 6})}),
        lambda: save_file({"a": torch.zeros(1)}, path, metadata={"config": json.dumps(good)}),
    ]
    for write in files:
        write()
        with pytest.raises(
            AttentionError, match=r"\{layer\}.safetensors is not a layer that MultiHeadAttention.save wrote \("
        ):
            MultiHeadAttention.load(path)
    save_file(state, path, metadata={"config": json.dumps(good)})
    assert MultiHeadAttention.load(path).config == AttentionConfig(**good)


def config(**fields):
    return lambda: AttentionConfig(**({"d_model": 10, "num_heads": 2} | fields))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (config(num_heads=3), "d_model (10) must be divisible by num_heads (3)"),
        (config(d_model=0), "d_model (0) must be a whole number, at least 1"),
        (config(num_heads=-1), "num_heads (-1) must be a whole number, at least 1"),
        (config(num_heads=2.0), "num_heads (2.0) must be a whole number, at least 1"),
        (config(head_dim=0), "head_dim (0) must be a whole number, at least 1"),
        (config(key_dim=0), "key_dim (0) must be a whole number, at least 1"),
        (config(value_dim="7"), "value_dim (7) must be a whole number, at least 1"),
        (config(dropout=1.0), "dropout (1.0) must be at least 0 and below 1"),
        (config(dropout=-0.1), "dropout (-0.1) must be at least 0 and below 1"),
        (config(dropout=float("nan")), "dropout (nan) must be at least 0 and below 1"),
        (config(scale="big"), 'scale must be "head_dim", "d_model", "none" or a finite number above 0, not \'big\''),
        (config(scale=0), 'scale must be "head_dim", "d_model", "none" or a finite number above 0, not 0'),
        (config(scale=True), 'scale must be "head_dim", "d_model", "none" or a finite number above 0, not True'),
        (config(scale=float("inf")), 'scale must be "head_dim", "d_model", "none" or a finite number above 0, not inf'),
        (config(temperature=0.0), "the temperature (0.0) must be a finite number above 0"),
        (config(temperature=float("nan")), "the temperature (nan) must be a finite number above 0"),
        (config(temperature=10**400), f"the temperature ({10**400}) must be a finite number above 0"),
        (config(scale=1e300, temperature=1e-300), "scale / temperature (inf) must be a finite number above 0"),
        (config(scale=1e-300, temperature=1e300), "scale / temperature (0.0) must be a finite number above 0"),
        (config(projection="half"), 'projection must be "full" or "shared", not \'half\''),
        (config(projection="shared", head_dim=3),
         "a shared projection splits the input itself into heads: num_heads * head_dim (6), key_dim (10) and value_dim (10) "
         "must equal d_model (10)"),
        (config(projection="shared", value_dim=7),
         "a shared projection splits the input itself into heads: num_heads * head_dim (10), key_dim (10) and value_dim (7) "
         "must equal d_model (10)"),
    ],
)  # fmt: skip
def test_configurations_that_cannot_be(make, message):
    with pytest.raises(AttentionError) as caught:
        make()
    assert str(caught.value) == message


X = torch.zeros(2, 5, 33)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[0],), "query must be (batch, len, d_model = 33), not the shape (5, 33)"),
        ((X[..., :32],), "query must be (batch, len, d_model = 33), not the shape (2, 5, 32)"),
        ((X, X[..., :4]), "key must be (batch, len, key_dim = 33), not the shape (2, 5, 4)"),
        ((X, X, X[..., :4]), "value must be (batch, len, value_dim = 33), not the shape (2, 5, 4)"),
        ((X.double(),), "query is torch.float64, but the layer's weights are torch.float32: they must have one dtype"),
        ((X.long(),), "query is torch.int64, but the layer's weights are torch.float32: they must have one dtype"),
        ((X, X[:1]), "key has (batch, heads) = (1, 3), but query has (2, 3): they must be equal"),
        ((X, X, X[:, :4]), "key and value must have one key_len: key has 5, value has 4"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("call", ["forward", "steps"])
def test_inputs_that_do_not_fit(call, arguments, message):
    with pytest.raises(AttentionError) as caught:
        getattr(MultiHeadAttention(CONFIGS["standard"]), call)(*arguments)
    assert str(caught.value) == message


def test_a_mask_that_does_not_fit_or_is_not_boolean():
    layer = MultiHeadAttention(CONFIGS["standard"])
    for call in (layer, layer.steps):
        with pytest.raises(AttentionError, match=r"a mask of shape \(4, 4\) does not broadcast to .* = \(2, 3, 5, 5\)"):
            call(X, mask=masks.causal(4))
        with pytest.raises(AttentionError, match="a mask must be boolean"):
            call(X, mask=torch.ones(5, 5))
