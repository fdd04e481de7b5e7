"""Scaled dot-product attention against references of other hands. Every size is a different prime."""

from math import exp, log, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from attention_core import AttentionError, attention_context, attention_steps, attention_weights, masks
from attention_core.layer import attention
from attention_core.layer.attention import attention_scores, dropped_out

BATCH, HEADS, QUERY_LEN, KEY_LEN, HEAD_DIM, VALUE_DIM = 2, 3, 5, 7, 11, 13


def inputs(device="cpu", dtype=torch.float32, sizes=(BATCH, HEADS, QUERY_LEN, KEY_LEN, HEAD_DIM, VALUE_DIM)):
    batch, heads, query_len, key_len, head_dim, value_dim = sizes
    shapes = (query_len, head_dim), (key_len, head_dim), (key_len, value_dim)
    return [torch.randn(batch, heads, *shape, dtype=torch.float64).to(device, dtype) for shape in shapes]


def mask_without_empty_rows(*shape, device="cpu"):
    mask = torch.rand(shape, device=device) < 0.5
    mask[..., 0] = True
    return mask


def written_out(query, key, value, mask, scale):
    """Equation 1 in plain Python, number by number: weights and context as nested lists."""
    query, key, value = query.tolist(), key.tolist(), value.tolist()
    weights, context = [], []
    for i, q in enumerate(query):
        powers = [
            exp(sum(a * b for a, b in zip(q, k)) * scale) if mask is None or mask[i][j] else 0.0
            for j, k in enumerate(key)
        ]
        total = sum(powers)
        weights.append([power / total if total else 0.0 for power in powers])
        context.append([sum(w * v[d] for w, v in zip(weights[-1], value)) for d in range(len(value[0]))])
    return weights, context


def test_hand_computed_weights_and_context():
    query = torch.tensor([[[[1.0, 0.0]]]])
    key = torch.tensor([[[[0.0, 5.0], [log(2), 7.0], [log(3), 1.0]]]])
    value = torch.tensor([[[[6.0], [12.0], [18.0]]]])
    steps = attention_steps(query, key, value, scale=1.0)
    torch.testing.assert_close(steps.scores[0, 0], torch.tensor([[0.0, log(2), log(3)]]))
    torch.testing.assert_close(steps.weights[0, 0], torch.tensor([[1 / 6, 1 / 3, 1 / 2]]))
    torch.testing.assert_close(steps.context[0, 0], torch.tensor([[14.0]]))
    assert steps.output is None and steps.dropped_weights is None and steps.mask is None and steps.scale == 1.0


def test_case_29_what_a_mask_means():
    scores = torch.tensor([[[[0.0, log(2), log(3)]]]])
    right = torch.tensor([[[[1 / 3, 2 / 3, 0.0]]]])
    of_tokenizer = torch.tensor([1, 1, 0])
    torch.testing.assert_close(attention_weights(scores, masks.from_numbers(of_tokenizer)), right)
    torch.testing.assert_close(attention_weights(scores, torch.tensor([True, True, False])), right)
    with pytest.raises(AttentionError, match=r"must be boolean \(True = may attend\), not torch.int64: convert with"):
        attention_weights(scores, of_tokenizer)


def test_case_13_causal_rows_see_themselves_and_the_past():
    zeros = torch.zeros(1, 1, 4, 2)
    weights = attention_steps(zeros, zeros, zeros, masks.causal(4)).weights[0, 0]
    third = 1 / 3
    rows = [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [third, third, third, 0], [0.25, 0.25, 0.25, 0.25]]
    torch.testing.assert_close(weights, torch.tensor(rows))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_case_21_masks_fit_every_precision(dtype, device):
    zeros = torch.zeros(1, 1, 2, 3, dtype=dtype, device=device)
    causal = attention_steps(zeros, zeros, zeros, masks.causal(2)).weights
    assert causal[0, 0].tolist() == [[1.0, 0.0], [0.5, 0.5]]
    # Two masks together, one row of which hides every key in both: combined as booleans, nothing overflows.
    both = masks.combine(masks.causal(2), masks.edited(masks.full(2), [(0, 0)]), masks.padding([1], 2))
    steps = attention_steps(zeros, zeros, zeros + 1, both)
    assert steps.weights[0, 0].tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert steps.context[0, 0].tolist() == [[0.0] * 3, [1.0] * 3]


def test_case_11_a_query_without_visible_key(device):
    query, key, value = inputs(device)
    mask = mask_without_empty_rows(QUERY_LEN, KEY_LEN, device=device)
    whole = attention_steps(query, key, value, mask)
    mask = mask.clone()
    mask[1] = False
    steps = attention_steps(query, key, value, mask)
    assert (steps.weights[:, :, 1] == 0).all() and (steps.context[:, :, 1] == 0).all()
    others = [0, 2, 3, 4]
    assert torch.equal(steps.weights[:, :, others], whole.weights[:, :, others])
    torch.testing.assert_close(steps.context[:, :, others], whole.context[:, :, others])
    assert torch.equal(attention_context(query, key, value, mask), steps.context)
    assert (steps.masked_scores()[:, :, 1] == -torch.inf).all() and steps.scores.isfinite().all()


@pytest.mark.parametrize("hidden", ["one row", "all rows", "a whole text"])
def test_case_11_no_nan_in_any_gradient(hidden, device):
    tensors = [x.requires_grad_() for x in inputs(device)]
    mask = mask_without_empty_rows(BATCH, 1, QUERY_LEN, KEY_LEN, device=device)
    mask[{"one row": (0, 0, 1), "all rows": ..., "a whole text": 1}[hidden]] = False
    # Nor inside: anomaly detection looks at the gradient of every operation.
    for used in (lambda steps: steps.context, lambda steps: steps.context[:, :, 0], lambda steps: steps.weights):
        with torch.autograd.set_detect_anomaly(True):
            grads = torch.autograd.grad(
                used(attention_steps(*tensors, mask)).square().sum(), tensors, allow_unused=True, materialize_grads=True
            )
        assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("masked", ["no mask", "mask", "a row without visible key"])
def test_gradcheck(masked, device):
    tensors = [x.requires_grad_() for x in inputs(device, torch.float64, (1, 2, 3, 5, 2, 3))]
    mask = None if masked == "no mask" else mask_without_empty_rows(3, 5, device=device)
    if masked == "a row without visible key":
        mask[1] = False

    def stages(*tensors):
        steps = attention_steps(*tensors, mask)
        return steps.scores, steps.weights, steps.context, attention_context(*tensors, mask)

    assert torch.autograd.gradcheck(stages, tensors)


@pytest.mark.parametrize("mask_shape", [None, (KEY_LEN,), (QUERY_LEN, KEY_LEN), (BATCH, 1, 1, KEY_LEN),
                                        (BATCH, 1, QUERY_LEN, KEY_LEN), (HEADS, 1, KEY_LEN), (QUERY_LEN, 1),
                                        (BATCH, HEADS, QUERY_LEN, KEY_LEN), ()])  # fmt: skip
@pytest.mark.parametrize("scale", [None, 0.7])
def test_equals_torch_with_every_mask_shape(mask_shape, scale, device):
    query, key, value = inputs(device)
    if mask_shape is None:
        mask = None
    elif mask_shape and mask_shape[-1] == KEY_LEN:
        mask = mask_without_empty_rows(*mask_shape, device=device)
    else:
        mask = torch.ones(mask_shape, dtype=torch.bool, device=device)
    expected = F.scaled_dot_product_attention(
        query, key, value, None if mask is None else mask.expand(BATCH, HEADS, QUERY_LEN, KEY_LEN), scale=scale
    )
    steps = attention_steps(query, key, value, mask, scale)
    torch.testing.assert_close(steps.context, expected, atol=1e-6, rtol=1e-5)
    assert steps.full_mask().shape == steps.scores.shape == steps.weights.shape == (BATCH, HEADS, QUERY_LEN, KEY_LEN)
    torch.testing.assert_close(steps.weights.sum(-1), torch.ones(BATCH, HEADS, QUERY_LEN, device=device))
    assert (steps.weights[~steps.full_mask()] == 0).all()
    assert torch.equal(attention_weights(steps.scores, mask), steps.weights)
    assert torch.equal(attention_scores(query, key, scale), steps.scores)


PRIMES = st.sampled_from([1, 2, 3, 5, 7, 11, 13])


@settings(deadline=None, max_examples=60)
@given(st.tuples(PRIMES, PRIMES, PRIMES, PRIMES), st.integers(0, 2**16), st.sampled_from([None, "some", "few"]))
def test_equals_the_formula_written_out(sizes, seed, masked):
    query_len, key_len, head_dim, _ = sizes
    torch.manual_seed(seed)
    query, key, value = inputs(dtype=torch.float64, sizes=(2, 3, *sizes))
    mask = None if masked is None else torch.rand(query_len, key_len) < (0.7 if masked == "some" else 0.2)
    steps = attention_steps(query, key, value, mask)
    for b in range(2):
        for h in range(3):
            weights, context = written_out(
                query[b, h], key[b, h], value[b, h], None if mask is None else mask.tolist(), 1 / sqrt(head_dim)
            )
            torch.testing.assert_close(steps.weights[b, h], torch.tensor(weights, dtype=torch.float64))
            torch.testing.assert_close(steps.context[b, h], torch.tensor(context, dtype=torch.float64))
    torch.testing.assert_close(attention_context(query, key, value, mask), steps.context)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scores_and_weights_are_float32_or_wider(dtype, device):
    query, key, value = inputs(device, dtype)
    mask = mask_without_empty_rows(QUERY_LEN, KEY_LEN, device=device)
    steps = attention_steps(query, key, value, mask)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert steps.scores.dtype == steps.weights.dtype == attention_weights(steps.scores).dtype == wide
    assert steps.context.dtype == attention_context(query, key, value, mask).dtype == dtype
    expected = attention_steps(query.double(), key.double(), value.double(), mask)
    torch.testing.assert_close(steps.weights, expected.weights.to(wide), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(steps.context, expected.context.to(dtype))
    assert attention_weights(steps.scores.to(dtype), mask).dtype == wide


def test_half_precision_scores_beyond_its_range():
    query = torch.full((1, 1, 2, 3), 300.0, dtype=torch.float16)
    steps = attention_steps(query, query, query, masks.causal(2), scale=1.0)
    assert steps.scores[0, 0, 0, 0] == 270000 and steps.weights.isfinite().all() and steps.context.isfinite().all()


@pytest.mark.parametrize("head_dim", [2, 3, 16, 32, 61, 64])
@pytest.mark.parametrize("masked", [False, True])
def test_bit_equal_to_eager_attention_of_transformers(head_dim, masked):
    from transformers.models.bart.modeling_bart import eager_attention_forward

    query, key, value = inputs(sizes=(BATCH, HEADS, QUERY_LEN, KEY_LEN, head_dim, head_dim))
    mask = mask_without_empty_rows(BATCH, 1, QUERY_LEN, KEY_LEN) if masked else None
    steps = attention_steps(query, key, value, mask, head_dim**-0.5)
    for fill in (torch.finfo(torch.float32).min, -torch.inf):
        additive = None if mask is None else torch.zeros(mask.shape).masked_fill(~mask, fill)
        context, weights = eager_attention_forward(
            torch.nn.Module().eval(), query, key, value, additive, scaling=head_dim**-0.5
        )
        assert torch.equal(steps.weights, weights)
        assert torch.equal(steps.context, context.transpose(1, 2))
    assert torch.equal(steps.scores, query @ key.transpose(2, 3) * head_dim**-0.5)


@pytest.mark.parametrize("numbers", [1, 30, 150, 300, 400, 10**9])
@pytest.mark.parametrize("mask_shape", [None, (KEY_LEN,), (17, KEY_LEN), (BATCH, 1, 1, KEY_LEN), (17, 1),
                                        (BATCH, HEADS, 17, KEY_LEN)])  # fmt: skip
def test_context_in_chunks_is_exact(numbers, mask_shape, monkeypatch, device):
    monkeypatch.setattr(attention, "_CHUNK_NUMBERS", numbers)
    query, key, value = inputs(device, torch.float64, (BATCH, HEADS, 17, KEY_LEN, HEAD_DIM, VALUE_DIM))
    mask = None if mask_shape is None else torch.rand(mask_shape, device=device) < 0.4
    expected = attention_steps(query, key, value, mask, 0.3).context
    context = attention_context(query, key, value, mask, 0.3)
    torch.testing.assert_close(context, expected, atol=1e-14, rtol=1e-13)


def test_context_never_holds_all_weights():
    held = []

    class Largest(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            held.extend([result.numel()] if isinstance(result, torch.Tensor) and result.is_floating_point() else [])
            return result

    query = torch.randn(1, 2, 1031, 3)
    with Largest():
        attention_context(query, query, query, masks.causal(1031))
    assert attention._CHUNK_NUMBERS // 2 < max(held) <= attention._CHUNK_NUMBERS


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_inputs_are_never_changed(grad, dtype, device):
    tensors = inputs(device, dtype)
    mask = torch.rand(QUERY_LEN, KEY_LEN, device=device) < 0.5
    mask[1] = False
    scores = torch.randn(BATCH, HEADS, QUERY_LEN, KEY_LEN, device=device, dtype=dtype)
    bias = torch.randn(1, HEADS, QUERY_LEN, KEY_LEN, device=device)
    everything = [*tensors, mask, scores, bias]
    before = [x.clone() for x in everything]
    with torch.set_grad_enabled(grad):
        steps = attention_steps(*[x.requires_grad_(grad) for x in tensors], mask, bias=bias, dropout=0.5)
        kept = steps.scores.clone(), steps.weights.clone()
        attention_context(*tensors, mask)
        attention_weights(scores, mask), attention_weights(scores)
        attention_weights(steps.scores, mask), steps.masked_scores(), dropped_out(steps.weights, 0.5)
    assert all(torch.equal(x, y) for x, y in zip(everything, before))
    assert torch.equal(steps.scores, kept[0]) and torch.equal(steps.weights, kept[1])


def test_dropout_keeps_the_mean_and_is_reproducible(device):
    weights = torch.full((2, 3, 101, 103), 0.25, device=device)

    def draw(seed):
        return dropped_out(weights, 0.3, torch.Generator(device).manual_seed(seed))

    dropped = draw(5)
    kept = dropped != 0
    assert abs(kept.float().mean().item() - 0.7) < 0.01
    torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 0.25 / 0.7))
    assert torch.equal(dropped, draw(5)) and not torch.equal(dropped, draw(6))
    assert torch.equal(dropped_out(weights, 0.0), weights)


def test_dropped_weights_make_the_context(device):
    query, key, value = inputs(device)
    steps = attention_steps(query, key, value, dropout=0.4, generator=torch.Generator(device).manual_seed(1))
    assert (steps.dropped_weights == 0).any()
    torch.testing.assert_close(steps.context, steps.dropped_weights @ value)
    torch.testing.assert_close(steps.weights, attention_steps(query, key, value).weights)
    assert attention_steps(query, key, value, dropout=0.0).dropped_weights is None


def test_bias_comes_after_the_scale_and_before_the_mask(device):
    query, key, value = inputs(device)
    bias = torch.randn(1, HEADS, QUERY_LEN, KEY_LEN, device=device)
    mask = mask_without_empty_rows(QUERY_LEN, KEY_LEN, device=device)
    steps = attention_steps(query, key, value, mask, 0.5, bias=bias)
    assert torch.equal(steps.scores, query @ key.transpose(2, 3) * 0.5 + bias)
    assert (steps.weights[~steps.full_mask()] == 0).all()
    expected = F.scaled_dot_product_attention(query, key, value, bias.masked_fill(~mask, -torch.inf), scale=0.5)
    torch.testing.assert_close(steps.context, expected, atol=1e-6, rtol=1e-5)


def test_a_nan_in_the_input_stays_visible_in_its_rows_alone():
    query, key, value = inputs()
    whole = attention_steps(query, key, value, masks.causal(QUERY_LEN, KEY_LEN)).weights
    query[:, :, 2, 0] = torch.nan
    mask = masks.causal(QUERY_LEN, KEY_LEN)
    mask[4] = False
    weights = attention_steps(query, key, value, mask).weights
    assert weights[:, :, 2, :3].isnan().all() and (weights[:, :, 4] == 0).all()
    assert torch.equal(weights[:, :, [0, 1, 3]], whole[:, :, [0, 1, 3]])


def test_huge_scores_do_not_overflow(device):
    query = torch.full((1, 1, 2, 3), 1e4, device=device)
    steps = attention_steps(query, query, query, masks.causal(2))
    assert steps.weights[0, 0].tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_one_token_and_one_dimension(device):
    one = torch.tensor([[[[3.0]]]], device=device)
    assert attention_steps(one, one, one).weights.item() == 1.0
    assert attention_steps(one, one, one, torch.tensor([[False]])).context.item() == 0.0


def test_a_mask_comes_along_to_the_device(device):
    query, key, value = inputs(device)
    steps = attention_steps(query, key, value, masks.causal(QUERY_LEN, KEY_LEN))
    assert steps.mask.device == steps.weights.device


def test_steps_with_output():
    steps = attention_steps(*inputs(), masks.full(QUERY_LEN, KEY_LEN), dropout=0.5)
    output = torch.randn(BATCH, QUERY_LEN, 17)
    more = steps.with_output(output)
    assert more.output is output and steps.output is None
    others = ("query", "key", "value", "scores", "mask", "weights", "dropped_weights", "context", "scale")
    assert all(getattr(more, name) is getattr(steps, name) for name in others)


ONE = torch.zeros(2, 3, 5, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ONE[0], ONE, ONE), "query must have four axes (batch, heads, len, head_dim), not 3: its shape is (3, 5, 7)"),
        ((ONE, ONE[0, 0], ONE), "key must have four axes (batch, heads, len, head_dim), not 2: its shape is (5, 7)"),
        ((ONE, ONE, ONE[None]), "value must have four axes (batch, heads, len, head_dim), not 5: its shape is (1, 2, 3, 5, 7)"),
        ((ONE.long(), ONE, ONE), "query must hold floating-point numbers, not torch.int64"),
        ((ONE, ONE[:1], ONE), "key has (batch, heads) = (1, 3), but query has (2, 3): they must be equal"),
        ((ONE, ONE, ONE[:, :1]), "value has (batch, heads) = (2, 1), but query has (2, 3): they must be equal"),
        ((ONE, ONE.double(), ONE), "key is torch.float64, but query is torch.float32: they must have one dtype"),
        ((ONE, ONE[..., :4], ONE), "query and key must have one head_dim: query has 7, key has 4"),
        ((ONE, ONE, ONE[:, :, :4]), "key and value must have one key_len: key has 5, value has 4"),
        ((ONE, ONE, ONE, torch.ones(5, 4, dtype=torch.bool)),
         "a mask of shape (5, 4) does not broadcast to (batch, heads, query_len, key_len) = (2, 3, 5, 5)"),
        ((ONE, ONE, ONE, torch.ones(1, 2, 3, 5, 5, dtype=torch.bool)),
         "a mask of shape (1, 2, 3, 5, 5) does not broadcast to (batch, heads, query_len, key_len) = (2, 3, 5, 5)"),
        ((ONE, ONE, ONE, torch.zeros(5, 5)),
         "a mask must be boolean (True = may attend), not torch.float32: convert with masks.from_additive, "
         "masks.from_numbers or masks.from_torch_mha"),
        ((ONE, ONE, ONE, None, 0.0), "the scale (0.0) must be a finite number above 0"),
        ((ONE, ONE, ONE, None, -1), "the scale (-1) must be a finite number above 0"),
        ((ONE, ONE, ONE, None, float("nan")), "the scale (nan) must be a finite number above 0"),
        ((ONE, ONE, ONE, None, float("inf")), "the scale (inf) must be a finite number above 0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("function", [attention_steps, attention_context])
def test_what_cannot_be_is_refused_in_one_sentence(function, arguments, message):
    with pytest.raises(AttentionError) as caught:
        function(*arguments)
    assert str(caught.value) == message


def test_refused_dropout():
    for dropout in (1.0, 1.5, float("nan")):
        with pytest.raises(AttentionError, match=rf"dropout \({dropout}\) must be at least 0 and below 1"):
            attention_steps(ONE, ONE, ONE, dropout=dropout)
    with pytest.raises(AttentionError, match=r"dropout \(-0.1\)"):
        dropped_out(ONE, -0.1)
