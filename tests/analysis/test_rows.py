"""Entropies and divergences of rows: numbers computed by hand, scipy, and properties over random maps."""

from math import inf, log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from attention_core.analysis.rows import (
    counted_rows,
    full_mask,
    mean_of_rows,
    row_divergence,
    row_entropy,
    row_kl,
)
from attention_core.errors import AttentionError
from attention_core.layer import masks
from attention_core.layer.attention import attention_weights


def causal_uniform(length):
    return attention_weights(torch.zeros(1, 1, length, length), masks.causal(length))


def test_two_rows_by_hand():
    """Case 16: JS .2158 nats both ways; KL .6931 one way, infinite the other."""
    p, q = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
    assert row_divergence(p, q).item() == pytest.approx(0.2158, abs=5e-5)
    assert row_divergence(q, p).item() == row_divergence(p, q).item()
    assert row_divergence(p, q).item() / log(2) == pytest.approx(0.3113, abs=5e-5)
    assert row_kl(p, q).item() == pytest.approx(log(2))
    assert row_kl(q, p).item() == inf


def test_a_causal_pair_by_hand():
    """Case 16: uniform against identity; row 0 agrees trivially and is in no mean."""
    uniform, identity = causal_uniform(4), torch.eye(4)[None, None]
    divergence = row_divergence(uniform, identity)
    np.testing.assert_allclose(divergence[0, 0], [0, 0.2158, 0.3183, 0.3804], atol=5e-5)
    assert divergence.mean().item() == pytest.approx(0.2286, abs=5e-5)
    seen = full_mask(uniform, masks.causal(4))
    assert mean_of_rows(divergence, counted_rows(seen)).item() == pytest.approx(0.3048, abs=5e-5)


@pytest.mark.parametrize("length", [4, 8])
def test_entropy_is_over_visible_keys(length):
    """Case 3: nats 0, ln 2, ln 3, ...; normalised all 1 but for row 0, which has no choice."""
    weights, mask = causal_uniform(length), masks.causal(length)
    nats = row_entropy(weights, mask)[0, 0]
    np.testing.assert_allclose(nats, np.log(np.arange(1, length + 1)), atol=1e-6)
    if length == 4:
        assert nats.mean().item() == pytest.approx(0.7945, abs=5e-5)
    normalised = row_entropy(weights, mask, normalised=True)[0, 0]
    assert normalised[0].isnan()
    np.testing.assert_allclose(normalised[1:], 1, atol=1e-6)


def test_certainty_has_entropy_zero_without_a_minus():
    one_hot = torch.eye(5)[None, None]
    for normalised in (False, True):
        values = row_entropy(one_hot, normalised=normalised)
        assert (values == 0).all() and not torch.signbit(values).any()
    only = row_entropy(torch.ones(1, 1, 2, 1))
    assert (only == 0).all() and not torch.signbit(only).any()
    above = row_entropy(torch.tensor([[[[1.0000002, 0.0]]]]))
    assert above.item() == 0 and not torch.signbit(above).any()
    mean = (one_hot + one_hot.flip(-1)) / 2
    assert row_entropy(mean)[0, 0, 0].item() == pytest.approx(log(2))


def test_a_row_that_sees_no_key_is_no_distribution():
    mask = masks.edited(masks.full(3), [(1, 0), (1, 1), (1, 2)])
    weights = attention_weights(torch.randn(1, 2, 3, 3, generator=torch.Generator().manual_seed(0)), mask)
    for values in (row_entropy(weights, mask), row_divergence(weights, weights), row_kl(weights, weights)):
        assert values[:, :, 1].isnan().all() and values[:, :, [0, 2]].isfinite().all()
    counted = counted_rows(full_mask(weights, mask))
    assert counted[0].tolist() == [[True, False, True]] * 2
    assert mean_of_rows(row_divergence(weights, weights), counted).tolist() == [0, 0]


def test_rows_that_count():
    causal, full = (full_mask(torch.zeros(1, 1, 3, 3), mask) for mask in (masks.causal(3), None))
    assert counted_rows(causal)[0, 0].tolist() == [False, True, True]
    # One side has a choice, so the row can differ.
    assert counted_rows(causal, full)[0, 0].tolist() == [True, True, True]
    real = torch.tensor([[[True, True, False]]])
    assert counted_rows(full, rows=real)[0, 0].tolist() == [True, True, False]
    empty = torch.zeros_like(full)
    assert not counted_rows(full, empty).any()
    assert mean_of_rows(torch.ones(1, 1, 3), counted_rows(empty)).isnan().all()


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 13), st.integers(0, 10_000), st.floats(0.1, 30))
def test_against_scipy(key_len, seed, spread):
    made = torch.Generator().manual_seed(seed)
    p, q = (torch.softmax(spread * torch.randn(3, key_len, generator=made, dtype=torch.float64), -1) for _ in range(2))
    np.testing.assert_allclose(row_divergence(p, q), jensenshannon(p, q, axis=-1) ** 2, atol=1e-12)
    np.testing.assert_allclose(row_kl(p, q), entropy(p, q, axis=-1), atol=1e-9, rtol=1e-9)
    np.testing.assert_allclose(row_entropy(p[None, None])[0, 0], entropy(p, axis=-1), atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 13), st.integers(0, 10_000), st.floats(0.1, 30))
def test_divergence_is_symmetric_and_bounded(key_len, seed, spread):
    made = torch.Generator().manual_seed(seed)
    p, q = (torch.softmax(spread * torch.randn(7, key_len, generator=made), -1) for _ in range(2))
    forth, back = row_divergence(p, q), row_divergence(q, p)
    assert torch.equal(forth, back) and (forth >= 0).all() and (forth <= log(2)).all()
    assert torch.equal(row_divergence(p, p), torch.zeros(7))


def test_a_mask_of_numbers_is_refused():
    with pytest.raises(AttentionError, match="must be boolean"):
        row_entropy(torch.ones(1, 1, 2, 2), torch.ones(2, 2))
