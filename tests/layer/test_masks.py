"""Masks: each kind by hand and by its rule, and every conversion both ways, proven on torch's own attention."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attention_core import AttentionError, attention_weights, masks

T, F = True, False
PRIMES = st.sampled_from([1, 2, 3, 5, 7, 11])
INF = float("inf")


def rows(mask):
    """A mask as one string a row: x = may attend."""
    return ["".join("x" if cell else "." for cell in row) for row in mask.tolist()]


def test_each_kind_by_hand():
    assert rows(masks.full(2, 3)) == ["xxx", "xxx"]
    assert rows(masks.causal(3)) == ["x..", "xx.", "xxx"]
    assert rows(masks.causal(2, 5)) == ["x....", "xx..."]
    assert rows(masks.causal(5, 2)) == ["x.", "xx", "xx", "xx", "xx"]
    assert rows(masks.causal(2, 5, align="lower_right")) == ["xxxx.", "xxxxx"]
    assert rows(masks.causal(5, 2, align="lower_right")) == ["..", "..", "..", "x.", "xx"]
    assert rows(masks.window(5, width=1)) == ["xx...", "xxx..", ".xxx.", "..xxx", "...xx"]
    assert rows(masks.window(3, 7, width=0)) == ["x......", ".x.....", "..x...."]
    assert rows(masks.block(5, size=2)) == ["xx...", "xx...", "..xx.", "..xx.", "....x"]
    assert rows(masks.block(3, 5, size=3)) == ["xxx..", "xxx..", "xxx.."]
    assert rows(masks.prefix(5, length=3)) == ["xxx..", "xxx..", "xxx..", "xxxx.", "xxxxx"]
    assert rows(masks.prefix(3, 2, length=7)) == ["xx", "xx", "xx"]
    assert rows(masks.combine(masks.causal(5), masks.window(5, width=1))) == [
        "x....",
        "xx...",
        ".xx..",
        "..xx.",
        "...xx",
    ]


@settings(deadline=None, max_examples=80)
@given(PRIMES, PRIMES, st.integers(0, 6))
def test_each_kind_by_its_rule(query_len, key_len, n):
    rules = {
        masks.full: ({}, lambda i, j: True),
        masks.causal: ({}, lambda i, j: j <= i),
        masks.window: ({"width": n}, lambda i, j: abs(i - j) <= n),
        masks.block: ({"size": n + 1}, lambda i, j: i // (n + 1) == j // (n + 1)),
        masks.prefix: ({"length": n}, lambda i, j: j < n or j <= i),
    }
    for kind, (arguments, rule) in rules.items():
        mask = kind(query_len, key_len, **arguments)
        assert mask.dtype == torch.bool
        assert mask.tolist() == [[rule(i, j) for j in range(key_len)] for i in range(query_len)]
    lower = masks.causal(query_len, key_len, align="lower_right")
    assert lower.tolist() == [[j - key_len <= i - query_len for j in range(key_len)] for i in range(query_len)]


def test_causal_is_what_torch_means_by_it():
    query, key = torch.randn(1, 2, 5, 3), torch.randn(1, 2, 7, 3)
    expected = nn.functional.scaled_dot_product_attention(query, key, key, is_causal=True)
    mask = masks.causal(5, 7)
    torch.testing.assert_close(nn.functional.scaled_dot_product_attention(query, key, key, mask), expected)


def test_padding():
    mask = masks.padding([3, 0, 5], 5)
    assert mask.shape == (3, 1, 1, 5)
    assert rows(mask[:, 0, 0]) == ["xxx..", ".....", "xxxxx"]
    assert torch.equal(masks.padding(torch.tensor([3, 0, 5]), 5), mask)
    scores = torch.randn(3, 2, 7, 5)
    weights = attention_weights(scores, masks.combine(masks.causal(7, 5), mask))
    assert (weights[0, :, :, 3:] == 0).all() and (weights[1] == 0).all()


def test_edited_turns_single_cells_and_leaves_the_mask():
    mask = masks.causal(3, 5)
    toggled = masks.edited(mask, [(0, 4), (2, 1), (1, 0), (1, 0)])
    assert rows(toggled) == ["x...x", "xx...", "x.x.."]
    assert torch.equal(mask, masks.causal(3, 5))
    assert torch.equal(masks.edited(toggled, [(0, 4), (2, 1)]), mask)
    assert torch.equal(masks.edited(mask, []), mask) and masks.edited(mask, []) is not mask


def test_combine_is_a_conjunction_and_keeps_its_parts():
    causal, padding = masks.causal(3, 5), masks.padding([2, 5], 5)
    copies = causal.clone(), padding.clone()
    both = masks.combine(None, causal, None, padding)
    assert torch.equal(both, causal & padding) and both.shape == (2, 1, 3, 5)
    assert torch.equal(causal, copies[0]) and torch.equal(padding, copies[1])
    assert masks.combine() is None and masks.combine(None, None) is None
    assert torch.equal(masks.combine(causal), causal)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_additive_masks_both_ways(dtype):
    mask = masks.causal(5, 7)
    additive = masks.to_additive(mask, dtype)
    assert additive.dtype == dtype and torch.equal(additive == 0, mask) and (additive[~mask] == -INF).all()
    assert torch.equal(masks.from_additive(additive), mask)
    hides = [-INF, torch.finfo(dtype).min, -1e4]
    given = torch.tensor([0.0, *hides, -0.0], dtype=torch.float64).to(dtype)
    assert masks.from_additive(given).tolist() == [T, F, F, F, T]


def test_additive_masks_added_twice_are_still_read():
    # Two masks of the dtype's minimum overflow to -inf when added; as one additive mask that still says hidden.
    minimum = torch.finfo(torch.float32).min
    added = torch.tensor([0.0, minimum]) + torch.tensor([0.0, minimum])
    assert masks.from_additive(added).tolist() == [T, F]


@pytest.mark.parametrize("value", [1.0, -1.0, -9999.0, 0.5, INF, float("nan")])
def test_an_additive_mask_that_biases_is_refused(value):
    with pytest.raises(AttentionError) as caught:
        masks.from_additive(torch.tensor([0.0, -INF, value]))
    assert str(caught.value) == (
        f"an additive mask may hold 0 (may attend) and -inf, or -10000 and below (hidden); it holds {value:g}: "
        "if 1 means may attend, use masks.from_numbers"
    )


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32])
def test_numbers_of_tokenizers(dtype):
    assert masks.from_numbers(torch.tensor([[1, 1, 0]]).to(dtype)).tolist() == [[T, T, F]]


def test_numbers_as_a_list_and_refused_numbers():
    assert masks.from_numbers([[1, 0], [1, 1]]).tolist() == [[T, F], [T, T]]
    for numbers, value in (([1, 0, 2], "2"), ([0.0, -INF], "-inf"), ([0.0, 1.0, 0.5], "0.5"), ([1, -1], "-1")):
        with pytest.raises(AttentionError) as caught:
            masks.from_numbers(torch.tensor(numbers))
        assert str(caught.value) == (
            f"a mask of numbers may hold 1 (may attend) and 0 (hidden) only; it holds {value}: "
            "if 0 means may attend and -inf hidden, use masks.from_additive"
        )


def torch_layer():
    torch.manual_seed(0)
    return nn.MultiheadAttention(6, 3, batch_first=True).eval()


def test_case_29_torch_means_the_opposite():
    """Read from torch, and written for it, a mask does in nn.MultiheadAttention what it does here."""
    layer, query, key = torch_layer(), torch.randn(2, 5, 6), torch.randn(2, 7, 6)
    visible = torch.rand(2, 3, 5, 7) < 0.6
    visible[..., 0] = True
    padding = masks.padding([3, 7], 7)
    hidden_keys = ~padding[:, 0, 0]
    both = masks.combine(visible, padding)
    _, ours = layer(query, key, key, attn_mask=masks.to_torch_mha(both), average_attn_weights=False)
    _, theirs = layer(
        query, key, key, attn_mask=~visible.flatten(0, 1), key_padding_mask=hidden_keys, average_attn_weights=False
    )
    torch.testing.assert_close(ours, theirs)
    assert (ours[~both] == 0).all() and (ours[both] > 0).all()
    read = masks.from_torch_mha(~visible.flatten(0, 1), hidden_keys, num_heads=3)
    assert torch.equal(read, both)


def test_torch_masks_both_ways():
    two = masks.causal(5, 7)
    assert torch.equal(masks.to_torch_mha(two), ~two)
    assert torch.equal(masks.from_torch_mha(~two), two)
    assert torch.equal(masks.from_torch_mha(masks.to_additive(two)), two)
    four = torch.rand(2, 3, 5, 7) < 0.5
    assert torch.equal(masks.from_torch_mha(masks.to_torch_mha(four), num_heads=3), four)
    assert masks.from_torch_mha() is None
    padding = torch.tensor([[F, F, T]])
    assert rows(masks.from_torch_mha(key_padding_mask=padding)[0, 0]) == ["xx."]
    additive = torch.tensor([[0.0, 0.0, -INF]])
    assert rows(masks.from_torch_mha(key_padding_mask=additive)[0, 0]) == ["xx."]


BOOL = torch.ones(2, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: masks.causal(0), "query_len (0) must be a whole number, at least 1"),
        (lambda: masks.full(2, 0), "key_len (0) must be a whole number, at least 1"),
        (lambda: masks.window(3, width=-1), "width (-1) must be a whole number, at least 0"),
        (lambda: masks.block(3, size=0), "size (0) must be a whole number, at least 1"),
        (lambda: masks.prefix(3, length=-2), "length (-2) must be a whole number, at least 0"),
        (lambda: masks.causal(3, align="left"), 'align must be "upper_left" or "lower_right", not \'left\''),
        (lambda: masks.padding([3], 0), "key_len (0) must be a whole number, at least 1"),
        (lambda: masks.padding([2, 6], 5), "lengths must be one whole number from 0 to key_len (5) for each text, not [2, 6]"),
        (lambda: masks.padding([-1], 5), "lengths must be one whole number from 0 to key_len (5) for each text, not [-1]"),
        (lambda: masks.padding([1.5], 5), "lengths must be one whole number from 0 to key_len (5) for each text, not [1.5]"),
        (lambda: masks.padding(4, 5), "lengths must be one whole number from 0 to key_len (5) for each text, not 4"),
        (lambda: masks.edited(BOOL, [(2, 0)]), "cell (2, 0) is outside the mask of 2 queries and 3 keys"),
        (lambda: masks.edited(BOOL, [(0, -1)]), "cell (0, -1) is outside the mask of 2 queries and 3 keys"),
        (lambda: masks.edited(BOOL[0], []), "cells are edited in a mask of two axes (query_len, key_len), not (3,)"),
        (lambda: masks.combine(BOOL, BOOL[:, :2]), "masks of shapes (2, 3) and (2, 2) do not broadcast to each other"),
        (lambda: masks.from_additive(BOOL.long()), "an additive mask holds floating-point numbers, not torch.int64"),
        (lambda: masks.from_additive(BOOL), "an additive mask holds floating-point numbers, not torch.bool"),
        (lambda: masks.from_torch_mha(BOOL.long()),
         "nn.MultiheadAttention's masks are boolean (True = hidden) or additive floats; torch.int64 is ambiguous"),
        (lambda: masks.from_torch_mha(key_padding_mask=BOOL.int()),
         "nn.MultiheadAttention's masks are boolean (True = hidden) or additive floats; torch.int32 is ambiguous"),
        (lambda: masks.from_torch_mha(BOOL[None]),
         "attn_mask has 1 rows on its first axis: name num_heads (now None), a divisor of it"),
        (lambda: masks.from_torch_mha(torch.ones(6, 2, 3, dtype=torch.bool), num_heads=5),
         "attn_mask has 6 rows on its first axis: name num_heads (now 5), a divisor of it"),
        (lambda: masks.from_torch_mha(BOOL[0]), "attn_mask must have two or three axes, not the shape (3,)"),
        (lambda: masks.from_torch_mha(key_padding_mask=BOOL[0]),
         "key_padding_mask must be (batch, key_len), not the shape (3,)"),
        (lambda: masks.to_torch_mha(BOOL[None]),
         "nn.MultiheadAttention takes a mask for (query_len, key_len) or for every batch and head, not the shape (1, 2, 3)"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(call, message):
    with pytest.raises(AttentionError) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize("convert", [masks.combine, masks.to_torch_mha, masks.to_additive, masks.check_boolean,
                                     lambda mask: masks.edited(mask, [])])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
def test_a_mask_that_is_not_boolean_is_refused_everywhere(convert, dtype):
    with pytest.raises(
        AttentionError, match=rf"a mask must be boolean \(True = may attend\), not {dtype}: convert with "
    ):
        convert(BOOL.to(dtype))


def test_conversions_leave_their_argument():
    boolean, additive, numbers = masks.causal(5, 7), masks.to_additive(masks.causal(5, 7)), torch.tensor([1, 0])
    before = boolean.clone(), additive.clone(), numbers.clone()
    masks.to_torch_mha(boolean), masks.to_additive(boolean), masks.from_torch_mha(boolean)
    masks.from_additive(additive), masks.from_torch_mha(additive), masks.from_numbers(numbers)
    assert all(torch.equal(x, y) for x, y in zip((boolean, additive, numbers), before))
