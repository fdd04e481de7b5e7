"""Numbers of a target's reading against values worked out by hand; unequal lengths, so that no axis can be swapped."""

from itertools import combinations
from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_core.analysis import summaries
from attention_core.errors import AttentionError

# 3 target tokens on 5 source tokens; the second row goes over what the first has read, the third is weak (its rest went to a
# control token that is left out).
MAP = torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0], [0.25, 0.75, 0.0, 0.0, 0.0], [0.0, 0.0, 0.25, 0.0, 0.25]])


def random_maps(seed=0, heads=2, target_len=7, source_len=11):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(heads, target_len, source_len, generator=generator).mul(2).softmax(-1)


def test_coverage_by_hand():
    assert summaries.coverage(MAP).tolist() == [0.75, 1.25, 0.25, 0.0, 0.25]
    assert summaries.coverage_before(MAP).tolist() == [[0.0] * 5, [0.5, 0.5, 0, 0, 0], [0.75, 1.25, 0, 0, 0]]


def test_coverage_loss_by_hand():
    # Row 1: min(.25, .5) + min(.75, .5).
    assert summaries.coverage_loss(MAP).tolist() == [0.0, 0.75, 0.0]


def test_omission_by_hand():
    assert float(summaries.omission_penalty(MAP)) == -float("inf")
    assert float(summaries.omission_penalty(MAP[:, :3])) == pytest.approx(log(0.75) + log(1) + log(0.25))
    assert float(summaries.omission_penalty(torch.eye(5))) == 0


def test_coverage_deviation_by_hand():
    expected = -(log(1 + 0.25**2) * 2 + log(1 + 0.75**2) * 2 + log(2)) / 5
    assert float(summaries.coverage_deviation(MAP)) == pytest.approx(expected)
    assert float(summaries.coverage_deviation(torch.eye(5))) == 0


def test_absentmindedness_by_hand_in_both_directions():
    second = -(0.25 * log(0.25) + 0.75 * log(0.75))
    assert float(summaries.absentmindedness(MAP)) == pytest.approx((log(2) + second + log(2)) / 3)
    first = -(2 / 3 * log(2 / 3) + 1 / 3 * log(1 / 3))
    other = -(0.4 * log(0.4) + 0.6 * log(0.6))
    # Columns 2 and 4 are read by one row each; column 3 by none and is left out.
    assert float(summaries.absentmindedness(MAP, of="source")) == pytest.approx((first + other) / 4)
    assert float(summaries.absentmindedness(torch.full((3, 5), 0.2))) == pytest.approx(log(5))
    assert float(summaries.absentmindedness(torch.full((3, 5), 0.2), of="source")) == pytest.approx(log(3))
    assert torch.isnan(summaries.absentmindedness(torch.zeros(3, 5)))


def test_lead_by_hand():
    # A fifth of 5 is one token.
    assert float(summaries.lead_bias(MAP)) == pytest.approx(0.75 / 2.5)
    # A fifth of 11 is rounded up to 3.
    uniform = torch.full((7, 11), 1 / 11)
    assert float(summaries.lead_bias(uniform)) == pytest.approx(3 / 11) == summaries.lead_share(11)


@settings(deadline=None)
@given(order=st.permutations(range(7)))
def test_monotonicity_counts_pairs(order):
    pairs = [1 if a < b else -1 for a, b in combinations(order, 2)]
    found = summaries.monotonicity(torch.eye(7)[list(order)])
    assert float(found) == pytest.approx(sum(pairs) / len(pairs))


def test_monotonicity_leaves_empty_rows_out_and_says_nothing_of_one_place():
    weights = torch.cat([torch.eye(3, 5), torch.zeros(1, 5)])
    assert float(summaries.monotonicity(weights)) == 1
    assert summaries.monotonicity(torch.eye(1, 5).expand(3, 5)).isnan()


def test_copy_hits_by_hand():
    ids, keys = torch.tensor([7, 9, 8, 7]), torch.tensor([-1, 7, 8, 7, 6])
    weights = torch.tensor(
        [
            [0.0, 0.1, 0.2, 0.7, 0.0],  # 7 at column 3: a hit
            [0.0, 1.0, 0.0, 0.0, 0.0],  # 9 is not in the source: not counted
            [0.6, 0.0, 0.4, 0.0, 0.0],  # rests on a control token; 8 comes second
            [0.0, 0.2, 0.2, 0.2, 0.4],  # 6 comes first, then of equal weights the first, column 1
        ]
    )
    hits = [float(summaries.copy_hits(weights, ids, keys, k=k)) for k in (1, 2)]
    assert hits == pytest.approx([1 / 3, 1.0])
    rows = torch.tensor([True, True, True, False])
    assert float(summaries.copy_hits(weights, ids, keys, rows=rows)) == 0.5
    assert summaries.copy_hits(weights, ids + 10, keys).isnan()


def test_chance_is_what_random_columns_hit():
    ids, keys = torch.tensor([7, 8, 9]), torch.tensor([7, 8, 7, 6, 5])
    for k in (1, 2, 3):
        drawn = list(combinations(range(5), k))
        expected = [sum(any(int(keys[c]) == i for c in columns) for columns in drawn) / len(drawn) for i in (7, 8)]
        assert summaries.copy_chance(ids, keys, k=k) == pytest.approx(sum(expected) / 2)
    assert summaries.copy_chance(ids[2:], keys) != summaries.copy_chance(ids[2:], keys), "NaN where nothing can be hit"


def test_heads_are_told_apart_and_ranges_hold():
    maps = random_maps()
    for name in ("omission_penalty", "coverage_deviation", "absentmindedness", "lead_bias", "monotonicity"):
        each = getattr(summaries, name)
        found = each(maps)
        assert found.shape == (2,)
        torch.testing.assert_close(found, torch.stack([each(one) for one in maps]))
    loss = summaries.coverage_loss(maps)
    assert loss.shape == (2, 7) and ((loss >= 0) & (loss <= 1)).all() and not loss[:, 0].any()
    assert (summaries.omission_penalty(maps) <= 0).all() and (summaries.coverage_deviation(maps) <= 0).all()


def test_all_numbers_of_a_map_by_name():
    found = summaries.reading_scores(random_maps())
    assert all(values.shape == (2,) for values in found.values()) and len(found) == 7
    one = summaries.reading_scores(MAP[:, :2])
    assert float(one["coverage_loss"]) == 0.25
    assert float(one["omission"]) == pytest.approx(log(0.75) / 2)
    assert float(one["absentminded_source"]) == pytest.approx(
        float(summaries.absentmindedness(MAP[:, :2], of="source"))
    )
    assert float(one["lead_bias"]) == pytest.approx(0.75 / 2)


def test_errors_say_what_must_hold():
    with pytest.raises(
        AttentionError, match=r"a map of \(3, 5\) \(target_len, source_len\) needs as many ids, got 5 and 3"
    ):
        summaries.copy_hits(MAP, torch.arange(5), torch.arange(3))
    with pytest.raises(AttentionError, match=r"k \(0\) must be at least 1"):
        summaries.copy_hits(MAP, torch.arange(3), torch.arange(5), k=0)
    with pytest.raises(AttentionError, match="of target or source, not of both"):
        summaries.absentmindedness(MAP, of="both")
