"""The pattern metrics against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_core.analysis import metrics
from attention_core.errors import AttentionError

HEADS, QUERY, KEY = 3, 5, 7


def uniform(batch: int = 2, query_len: int = QUERY, key_len: int = KEY) -> torch.Tensor:
    return torch.full((batch, HEADS, query_len, key_len), 1 / key_len)


def diagonal(offset: int, length: int = QUERY) -> torch.Tensor:
    """Weights 1 at key = query + offset; rows without that key look at themselves."""
    weights = torch.eye(length)
    for i in range(length):
        if 0 <= i + offset < length:
            weights[i] = torch.eye(length)[i + offset]
    return weights.expand(1, HEADS, length, length)


def causal_uniform(length: int = QUERY) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    weights = mask / mask.sum(-1, keepdim=True)
    return weights.expand(1, HEADS, length, length), mask[None, None]


def test_uniform_map_gives_one_over_key_len():
    for metric in (metrics.previous_mass, metrics.next_mass, metrics.first_mass):
        assert metric(uniform()).tolist() == pytest.approx([1 / KEY] * HEADS)


def test_previous_head_scores_one_on_previous_and_zero_on_next():
    weights = diagonal(-1)
    assert metrics.previous_mass(weights).tolist() == [1.0] * HEADS
    assert metrics.next_mass(weights).tolist() == [0.0] * HEADS
    # Rows 0 and 1 of 5 look at the first key: row 0 at itself, row 1 at its predecessor.
    assert metrics.first_mass(weights).tolist() == pytest.approx([2 / 5] * HEADS)


def test_next_head_scores_one_on_next():
    assert metrics.next_mass(diagonal(1)).tolist() == [1.0] * HEADS
    assert metrics.previous_mass(diagonal(1)).tolist() == [0.0] * HEADS


def test_causal_uniform_map_by_hand():
    weights, mask = causal_uniform()
    # Row 0 sees one key and is left out; rows 1 to 4 give 1/2, 1/3, 1/4, 1/5 to any one visible key.
    expected = (1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 4
    assert metrics.previous_mass(weights, mask=mask).tolist() == pytest.approx([expected] * HEADS)
    assert metrics.first_mass(weights, mask=mask).tolist() == pytest.approx([expected] * HEADS)
    assert metrics.next_mass(weights, mask=mask).isnan().all()


def test_heads_are_kept_apart():
    weights = torch.cat([diagonal(-1)[:, :1], diagonal(1)[:, :1], diagonal(0)[:, :1]], dim=1)
    assert metrics.previous_mass(weights).tolist() == [1.0, 0.0, 0.0]
    # The self head looks at key 0 in row 0 only; the next head never does.
    assert metrics.first_mass(weights).tolist() == pytest.approx([2 / 5, 0.0, 1 / 5])


def test_rows_choose_what_is_counted():
    weights = torch.zeros(1, 1, 3, 4)
    weights[0, 0, 0, 0], weights[0, 0, 1, 0], weights[0, 0, 2, 3] = 1.0, 1.0, 1.0
    rows = torch.tensor([[False, True, True]])
    assert metrics.first_mass(weights, rows=rows).item() == 0.5
    assert metrics.first_mass(weights).item() == pytest.approx(2 / 3)
    assert metrics.first_mass(weights, rows=torch.zeros(1, 3, dtype=torch.bool)).isnan().all()


def test_aligned_mass_and_hits_by_hand():
    weights = torch.tensor([[[[0.6, 0.4, 0.0], [0.2, 0.5, 0.3], [0.5, 0.1, 0.4], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]])
    columns = torch.tensor([[0, 1, 2, 2, -1]])
    assert metrics.aligned_mass(weights, columns).item() == pytest.approx((0.6 + 0.5 + 0.4 + 1.0) / 4)
    assert metrics.aligned_hits(weights, columns).item() == pytest.approx(3 / 4)


def test_argmax_of_equal_weights_is_the_first_key():
    columns = torch.zeros(2, QUERY, dtype=torch.long)
    assert metrics.aligned_hits(uniform(), columns).tolist() == [1.0] * HEADS
    assert metrics.aligned_hits(uniform(), columns + 1).tolist() == [0.0] * HEADS


def test_same_token_leaves_the_own_position_out():
    ids = torch.tensor([[11, 13, 11, 17]])
    target = metrics.same_token_target(ids, ids, same_sequence=True)
    assert target.nonzero().tolist() == [[0, 0, 2], [0, 2, 0]]
    across = metrics.same_token_target(ids, torch.tensor([[13, 17, 19]]), same_sequence=False)
    assert across.nonzero().tolist() == [[0, 1, 0], [0, 3, 1]]


def test_induction_points_behind_the_earlier_occurrence():
    target = metrics.induction_target(torch.tensor([[11, 13, 17, 11, 13]]))
    # Position 3 repeats 11, which 13 at position 1 followed; position 4 repeats 13, which 17 at 2 followed.
    assert target.nonzero().tolist() == [[0, 3, 1], [0, 4, 2]]


def test_a_float64_map_keeps_its_precision_and_half_is_widened():
    assert metrics.first_mass(uniform().double()).dtype == torch.float64
    assert metrics.first_mass(uniform().half()).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"weights": torch.ones(2, 3, 5)},
            "weights must have 4 axes (batch, heads, query_len, key_len), got (2, 3, 5)",
        ),
        (
            {"rows": torch.ones(2, 7, dtype=torch.bool)},
            "rows must be boolean of shape (2, 5), got torch.bool of (2, 7)",
        ),
        ({"rows": torch.ones(2, 5)}, "rows must be boolean of shape (2, 5), got torch.float32 of (2, 5)"),
        ({"mask": torch.zeros(2, 1, 5, 7)}, "mask must be boolean (True = may attend), got torch.float32"),
        (
            {"target": torch.ones(3, 5, 7, dtype=torch.bool)},
            "target must be boolean of shape (2, 5, 7), got torch.bool of (3, 5, 7)",
        ),
    ],
)
def test_errors_say_what_must_hold_and_what_came(arguments, text):
    given_arguments = {"weights": uniform(), "target": torch.ones(2, 5, 7, dtype=torch.bool)} | arguments
    with pytest.raises(AttentionError) as caught:
        metrics.mean_mass(given_arguments.pop("weights"), given_arguments.pop("target"), **given_arguments)
    assert str(caught.value) == text


def test_inputs_are_not_changed():
    weights, mask = causal_uniform()
    weights, before = weights.clone(), weights.clone()
    metrics.previous_mass(weights, mask=mask)
    assert torch.equal(weights, before)


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), batch=st.integers(1, 3), query_len=st.integers(2, 11), pads=st.integers(0, 5))
def test_padding_changes_nothing(seed, batch, query_len, pads):
    """Padded keys get no weight and padded rows are not counted: every metric stays what it was."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(batch, HEADS, query_len, query_len, generator=generator).softmax(-1)
    padded = torch.nn.functional.pad(weights, (0, pads, 0, pads))
    real = torch.arange(query_len + pads) < query_len
    rows, mask = real.expand(batch, -1), real[None, None, None]
    columns = torch.randint(query_len, (batch, query_len), generator=generator)
    padded_columns = torch.nn.functional.pad(columns, (0, pads), value=query_len - 1)
    for metric in (metrics.previous_mass, metrics.next_mass, metrics.first_mass):
        torch.testing.assert_close(metric(padded, rows=rows, mask=mask), metric(weights))
    for metric in (metrics.aligned_mass, metrics.aligned_hits):
        torch.testing.assert_close(metric(padded, padded_columns, rows=rows, mask=mask), metric(weights, columns))


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), query_len=st.integers(1, 7), key_len=st.integers(2, 11))
def test_masses_agree_with_a_loop_and_stay_in_range(seed, query_len, key_len):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(2, HEADS, query_len, key_len, generator=generator).softmax(-1)
    for offset, metric in ((-1, metrics.previous_mass), (1, metrics.next_mass)):
        found = metric(weights)
        for head in range(HEADS):
            values = [
                float(weights[b, head, i, i + offset])
                for b in range(2)
                for i in range(query_len)
                if 0 <= i + offset < key_len
            ]
            expected = sum(values) / len(values) if values else math.nan
            assert float(found[head]) == pytest.approx(expected, nan_ok=True)
            assert math.isnan(expected) or 0 <= found[head] <= 1
