"""Heads against heads: correlation, distances, order, matching, and token lists that cannot be compared."""

from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_core.analysis.compare import (
    check_tokens,
    cluster_order,
    compare_maps,
    correlation,
    head_distances,
    largest_of_blocks,
    match_heads,
    row_step,
)
from attention_core.analysis.rows import row_divergence
from attention_core.analysis.words import align_words, aligned_maps
from attention_core.errors import AttentionError
from attention_core.layer import masks
from attention_core.layer.attention import attention_weights

BATCH, HEADS, QUERY_LEN, KEY_LEN = 2, 5, 7, 11


def maps(seed=0, heads=HEADS, mask=None, spread=2.0, shape=(QUERY_LEN, KEY_LEN), batch=BATCH):
    generator = torch.Generator().manual_seed(seed)
    return attention_weights(spread * torch.randn(batch, heads, *shape, generator=generator), mask)


def test_correlation_is_over_visible_cells():
    """Case 16: two causal softmax maps of normal scores, seed 0, L = 12: .607, and .712 with the masked cells."""
    torch.manual_seed(0)
    mask = masks.causal(12)
    first, second = (attention_weights(torch.randn(1, 1, 12, 12), mask) for _ in range(2))
    assert correlation(first, second, mask).item() == pytest.approx(0.607, abs=5e-4)
    assert correlation(first, second).item() == pytest.approx(0.712, abs=5e-4)


def test_correlation_of_what_has_no_shape():
    uniform, other = maps(spread=0.0), maps()
    assert correlation(uniform, other).isnan().all()
    np.testing.assert_allclose(correlation(other, other), 1, atol=1e-12)


def test_two_equal_maps():
    """Case 22: difference 0 everywhere, divergence 0; for uniform maps too."""
    for each in (maps(mask=masks.causal(QUERY_LEN, KEY_LEN)), maps(spread=0.0)):
        compared = compare_maps(each, each.clone(), masks.causal(QUERY_LEN, KEY_LEN), masks.causal(QUERY_LEN, KEY_LEN))
        assert not compared.difference.any() and not compared.divergence.any()
        assert compared.mean_divergence.tolist() == [0] * HEADS
        assert torch.equal(compared.mean_entropy, compared.mean_entropy_after)


def test_a_comparison_head_by_head():
    mask = masks.causal(QUERY_LEN, KEY_LEN)
    first, second = maps(1, mask=mask), maps(2, mask=mask)
    compared = compare_maps(first, second, mask, mask)
    np.testing.assert_allclose(compared.difference, second - first)
    assert torch.equal(compared.visible[0, 0], mask)
    # Row 0 sees one key: equal without a choice.
    assert not compared.counted[:, :, 0].any() and compared.counted[:, :, 1:].all()
    for head in range(HEADS):
        rows = [
            row_divergence(first[b, head, i], second[b, head, i]) for b in range(BATCH) for i in range(1, QUERY_LEN)
        ]
        assert compared.mean_divergence[head].item() == pytest.approx(float(torch.stack(rows).mean()), rel=1e-5)
    np.testing.assert_allclose(compared.correlation, correlation(first, second, mask))
    assert compared.entropy[:, :, 0].isnan().all()
    assert ((compared.mean_entropy > 0) & (compared.mean_entropy < 1)).all()


def test_another_mask_counts_rows_that_now_have_a_choice():
    mask = masks.causal(QUERY_LEN)
    first, second = maps(mask=mask, shape=(7, 7)), maps(shape=(7, 7))
    compared = compare_maps(first, second, mask)
    assert compared.counted.all() and compared.visible.all()
    assert compared.mean_divergence.isfinite().all() and compared.mean_entropy.isfinite().all()
    assert torch.isinf(compared.kl_back).any() and compared.kl.isfinite().all()


def test_padded_rows_are_left_out():
    first, second = maps(1), maps(2)
    real = torch.zeros(BATCH, QUERY_LEN, dtype=torch.bool)
    real[0, :3] = True
    compared = compare_maps(first, second, rows=real)
    expected = row_divergence(first, second)[0, :, :3].mean(-1)
    np.testing.assert_allclose(compared.mean_divergence, expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(QUERY_LEN, 13), (6, KEY_LEN)])
def test_maps_of_other_sizes_are_refused(shape):
    with pytest.raises(AttentionError, match="only maps of one size can be compared"):
        compare_maps(maps(), maps(shape=shape))


def test_token_lists_must_be_the_same():
    """Case 16: maps of 12 and 13 tokens are refused with a reason."""
    names = [f"t{i}" for i in range(13)]
    with pytest.raises(AttentionError, match="12 on one side, 13 on the other"):
        check_tokens(names[:12], names)
    with pytest.raises(AttentionError, match="12 on one side, 13 on the other"):
        check_tokens(names[:12], names, by_position=True)
    with pytest.raises(AttentionError, match="at position 2, 't2' on one side and 'x' on the other"):
        check_tokens(names[:3], ["t0", "t1", "x"])
    check_tokens(names[:3], ["t0", "t1", "x"], by_position=True)
    check_tokens(names, list(names))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), spread=st.floats(0.1, 20), causal=st.booleans())
def test_distances_are_the_mean_divergence_of_each_pair(seed, spread, causal):
    mask = masks.causal(QUERY_LEN, KEY_LEN) if causal else None
    first, second = maps(seed, 3, mask, spread), maps(seed + 1, 4, mask, spread)
    distances = head_distances(first, second, mask)
    assert distances.shape == (3, 4)
    for h in range(3):
        for g in range(4):
            pair = compare_maps(first[:, [h]], second[:, [g]], mask, mask)
            assert distances[h, g] == pytest.approx(pair.mean_divergence.item(), abs=2e-6)


def test_distances_of_a_set_to_itself():
    first = maps(heads=6, mask=masks.causal(QUERY_LEN, KEY_LEN))
    first[:, 4] = first[:, 1]
    distances = head_distances(first, mask=masks.causal(QUERY_LEN, KEY_LEN))
    assert (distances == distances.T).all() and (np.diag(distances) == 0).all()
    assert distances[1, 4] == 0 and (distances[~np.eye(6, dtype=bool)] > 0).sum() == 28
    assert distances.max() <= log(2)
    np.testing.assert_allclose(
        distances, head_distances(first, first.clone(), masks.causal(QUERY_LEN, KEY_LEN)), atol=1e-6
    )


def test_heads_without_a_common_key_are_ln_2_apart():
    apart = torch.zeros(1, 2, 3, 4)
    apart[0, 0, :, 0] = apart[0, 1, :, 3] = 1
    assert head_distances(apart)[0, 1] == pytest.approx(log(2), abs=1e-6)
    assert np.isnan(head_distances(apart[..., :1] + 1)).all()


def test_a_mask_that_differs_between_heads_is_refused():
    mask = torch.ones(1, HEADS, QUERY_LEN, KEY_LEN, dtype=torch.bool)
    assert head_distances(maps(), mask=mask).shape == (HEADS, HEADS)
    mask[0, 2, 3, 4] = False
    with pytest.raises(AttentionError, match="need one mask"):
        head_distances(maps(), mask=mask)


def test_many_large_maps_are_compared_on_some_of_their_rows(monkeypatch):
    first = maps(heads=4, shape=(120, 11), batch=1)
    whole = head_distances(first)
    monkeypatch.setattr("attention_core.analysis.compare._MOST_CELLS", 4 * 4 * 11 * 40)
    assert row_step(4, 4, 120, 11) == 3 and row_step(4, 4, 1, 1) == 1
    some = head_distances(first)
    assert 0 < np.abs(some - whole).max() < 0.05
    np.testing.assert_allclose(some, head_distances(first[:, :, ::3]), atol=1e-12)


def test_alike_heads_stand_together():
    base = maps(heads=3, spread=4.0)
    near = torch.cat([base, base], dim=1)  # heads 0 and 3, 1 and 4, 2 and 5
    near = 0.98 * near + 0.02 * maps(7, 6)
    order = cluster_order(head_distances(near))
    assert sorted(order) == list(range(6))
    assert {frozenset(order[i : i + 2]) for i in (0, 2, 4)} == {frozenset(p) for p in ((0, 3), (1, 4), (2, 5))}
    assert cluster_order(np.zeros((1, 1))) == [0] and cluster_order(np.zeros((2, 2))) == [0, 1]


def test_heads_on_a_line_come_in_its_order():
    places = np.array([5.0, 0.0, 9.1, 2.0, 7.2, 1.1, 3.3, 11.6])
    order = cluster_order(np.abs(places[:, None] - places))
    assert (np.diff(places[order]) > 0).all() or (np.diff(places[order]) < 0).all()


def test_the_best_match_is_the_best_in_all():
    real = maps(heads=6, spread=4.0)
    order = [4, 0, 5, 2]
    custom = 0.9 * real[:, order] + 0.1 * maps(3, 4)
    assert [match.real for match in match_heads(head_distances(custom, real))] == order
    # Greedy would give 0-0 (1) and 1-1 (9); the best in all is 0-1 and 1-0.
    pairs = match_heads(np.array([[1.0, 2.0], [2.0, 9.0]]))
    assert [(m.head, m.real, m.distance) for m in pairs] == [(0, 1, 2.0), (1, 0, 2.0)]
    assert len(match_heads(np.zeros((5, 3)))) == 3
    with pytest.raises(AttentionError, match="no row with a choice"):
        match_heads(np.array([[np.nan]]))


def test_words_that_both_lists_have():
    alignment = align_words(["<s>", "the", "·old", "·king", "</s>"], ["[CLS]", "the", "king", "slept"])
    assert alignment.words == ("the", "king")
    assert (alignment.first, alignment.second) == ((1, 3), (1, 2))
    with pytest.raises(AttentionError, match="share no word"):
        align_words(["a"], ["b"])


def test_aligned_maps_lose_no_weight():
    rows, columns = align_words(list("abcd"), list("xacd")), align_words(list("pqrst"), list("qrtu"))
    first, second = maps(shape=(4, 5)), maps(1, shape=(4, 4))
    one, two = aligned_maps(first, second, rows, columns)
    assert one.shape == two.shape == (BATCH, HEADS, 3, 4)
    for each in (one, two):
        np.testing.assert_allclose(each.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(one[..., :3], first[..., [0, 2, 3], :][..., [1, 2, 4]])
    np.testing.assert_allclose(two[..., :3], second[..., [1, 2, 3], :][..., [0, 1, 2]])
    np.testing.assert_allclose(one[..., 3], first[..., [0, 2, 3], :][..., [0, 3]].sum(-1))


def test_blocks_of_a_difference_keep_what_is_largest_up_or_down():
    values = np.array([[0.1, -0.4, 0.2], [0.3, 0.0, np.nan], [-0.1, 0.05, -0.2]])
    found = largest_of_blocks(values, 2, 2)
    assert found.tolist() == [[-0.4, -0.4, 0.2], [-0.4, -0.4, 0.2], [-0.1, -0.1, -0.2]]
    assert np.array_equal(largest_of_blocks(values, 1, 1), np.nan_to_num(values))
    many = np.random.default_rng(0).normal(size=(11, 7))
    for row, column in ((0, 0), (5, 3), (10, 6)):
        block = many[row // 4 * 4 : row // 4 * 4 + 4, column // 3 * 3 : column // 3 * 3 + 3].ravel()
        assert largest_of_blocks(many, 4, 3)[row, column] == block[np.abs(block).argmax()]
