"""The numbers of a head against values worked out by hand, over maps of unequal prime sizes."""

from math import exp, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_core.analysis import head_metrics
from attention_core.analysis.head_maps import LONG, HeadMaps, Layout, length_factors
from attention_core.analysis.head_metrics import BY_NAME, COLUMNS
from attention_core.errors import AttentionError

HEADS, QUERY, KEY = 3, 5, 7
MEASURED = [column for column in COLUMNS if column.measure is not None]


def layout(kind: str = "encoder", query_len: int = QUERY, key_len: int | None = None, **given) -> Layout:
    """One text of different tokens without padding; the first key and the last are resting places, the last is the end."""
    key_len = query_len if key_len is None else key_len
    resting, end = torch.zeros(2, 1, key_len, dtype=torch.bool)
    resting[:, 0] = resting[:, -1] = end[:, -1] = True
    parts = {
        "rows": torch.ones(1, query_len, dtype=torch.bool),
        "keys": torch.ones(1, key_len, dtype=torch.bool),
        "resting": resting,
        "end": end,
        "punctuation": torch.zeros(1, key_len, dtype=torch.bool),
        "query_ids": torch.arange(query_len)[None],
        "key_ids": torch.arange(key_len)[None] + (100 if kind == "cross" else 0),
    }
    return Layout(kind, **parts | given)


def maps(weights, place: Layout, **given) -> HeadMaps:
    weights = torch.as_tensor(weights, dtype=torch.float32)
    weights = weights.expand(1, HEADS, *weights.shape[-2:]) if weights.dim() == 2 else weights
    return HeadMaps(place, weights, place.own[:, None], **given)


def uniform(place: Layout) -> HeadMaps:
    own = place.own[0].float()
    return maps(own / own.sum(-1, keepdim=True), place)


def shifted(length: int, offset: int) -> torch.Tensor:
    """One-hot rows: key = query + offset, kept within the text."""
    return torch.eye(length)[(torch.arange(length) + offset).clamp(0, length - 1)]


def value(name: str, what: HeadMaps) -> float:
    found = BY_NAME[name].measure(what)
    assert found.shape == what.weights.shape[:2]
    assert torch.equal(found.nan_to_num(-9), found[:, :1].expand_as(found).nan_to_num(-9))  # all heads are alike here
    return float(found[0, 0])


@pytest.mark.parametrize("length", [4, 8])
def test_case_03_equal_scores_under_a_causal_mask_are_fully_dispersed(length):
    what = uniform(layout("decoder", length))
    assert what.entropy[0, 0].tolist() == pytest.approx([log(n) for n in range(1, length + 1)], abs=1e-6)
    if length == 4:
        assert what.entropy[0, 0].mean().item() == pytest.approx(0.7945, abs=1e-4)
    assert value("entropy", what) == pytest.approx(1.0, abs=1e-6)


def test_case_03_a_one_hot_head_has_entropy_zero_without_a_minus_and_heads_are_never_averaged():
    two = torch.zeros(1, 2, QUERY, QUERY)
    two[:, 0, :, 1] = two[:, 1, :, 3] = 1
    found = head_metrics.normalised_entropy(maps(two, layout()))
    assert found.tolist() == [[0.0, 0.0]]
    assert not found.signbit().any()
    assert head_metrics.effective_tokens(maps(two, layout())).tolist() == [[1.0, 1.0]]


def test_entropy_by_hand_leaves_out_the_row_with_one_key():
    weights = torch.tensor([[1, 0, 0], [0.25, 0.75, 0], [0.5, 0.5, 0]])
    what = maps(weights, layout("decoder", 3))
    rows = [-(0.25 * log(0.25) + 0.75 * log(0.75)), log(2)]
    assert value("entropy", what) == pytest.approx((rows[0] / log(2) + rows[1] / log(3)) / 2)
    assert value("effective_tokens", what) == pytest.approx((exp(rows[0]) + 2) / 2)
    assert value("confidence", what) == pytest.approx((0.75 + 0.5) / 2)


def test_uniform_maps():
    what = uniform(layout("cross", QUERY, KEY))
    assert value("entropy", what) == pytest.approx(1)
    assert value("effective_tokens", what) == pytest.approx(KEY)
    assert value("confidence", what) == pytest.approx(1 / KEY)
    assert value("first", what) == pytest.approx(1 / KEY)
    assert value("end", what) == pytest.approx(1 / KEY)
    assert value("sink", what) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_uniform_distance_is_one_whatever_the_mask(kind):
    assert value("distance", uniform(layout(kind, 11))) == pytest.approx(1)
    place = layout(kind, 11)
    expected = (11**2 - 1) / (3 * 11) if kind == "encoder" else 11 / 4
    assert float(place.uniform_distance) == pytest.approx(expected)


def test_distance_by_hand():
    # Rows look at key i - 1 (row 0 at itself): distances 0, 1, 1, 1, 1 in a full map of 5, whose uniform value is 24 / 15.
    assert value("distance", maps(shifted(5, -1), layout())) == pytest.approx(0.8 / 1.6)
    # In a causal map row 0 sees one key and is left out: 1, 1, 1, 1, over 5 / 4.
    assert value("distance", maps(shifted(5, -1), layout("decoder"))) == pytest.approx(1 / 1.25)


def test_a_window_does_not_hide_itself_from_the_distance():
    place = layout("encoder", 11)
    band = (place.distance <= 1).float()
    what = HeadMaps(place, (band / band.sum(-1, keepdim=True)).expand(1, HEADS, 11, 11), (band > 0)[None, None])
    full = HeadMaps(place, what.weights, place.own[:, None])
    assert value("distance", what) == value("distance", full) < 0.2
    assert value("entropy", what) == pytest.approx(1)  # by the keys that the window leaves


@pytest.mark.parametrize(("offset", "name"), [(0, "self"), (-1, "previous"), (1, "next")])
def test_diagonal_maps(offset, name):
    what = maps(shifted(QUERY, offset), layout())
    assert value(name, what) == 1
    others = {"self", "previous", "next"} - {name}
    # Where the text ends, the row looks at itself: it has no such neighbour, and is not counted for it.
    assert {other: value(other, what) for other in others if other != "self"} == dict.fromkeys(others - {"self"}, 0.0)
    assert value("self", what) == pytest.approx(1.0 if offset == 0 else 1 / QUERY)


def test_next_is_not_to_be_seen_in_a_causal_map():
    assert head_metrics.next_mass(uniform(layout("decoder"))).isnan().all()


def test_column_masses_by_hand():
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.25, 0.25, 0.0], [0.7, 0.1, 0.1, 0.1]])
    punctuation = torch.tensor([[False, True, True, False]])
    what = maps(weights, layout("cross", 3, 4, punctuation=punctuation))
    assert value("first", what) == pytest.approx((0.1 + 0.5 + 0.7) / 3)
    assert value("end", what) == pytest.approx((0.4 + 0.0 + 0.1) / 3)
    assert value("punctuation", what) == pytest.approx((0.5 + 0.5 + 0.2) / 3)
    assert value("sink", what) == pytest.approx((0.5 + 0.5 + 0.8) / 3 - 2 / 4)
    # Largest weights on keys 3, 0, 0: two rows of three agree.
    assert value("one_column", what) == pytest.approx(2 / 3)


def test_a_column_that_a_row_cannot_see_is_not_held_against_it():
    # The end (key 2 of 4) is visible from row 2 on.
    end = torch.tensor([[False, False, True, False]])
    what = maps(
        torch.tensor([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.4, 0.6, 0], [0.1, 0.1, 0.2, 0.6]]),
        layout("decoder", 4, end=end),
    )
    assert float(head_metrics.end_mass(what)[0, 0]) == pytest.approx((0.6 + 0.2) / 2)


def test_sink_share_above_a_causal_uniform_map():
    place = layout("decoder", 4, resting=torch.tensor([[True, False, False, False]]))
    weights = torch.zeros(4, 4)
    weights[:, 0] = 1
    assert value("sink", maps(weights, place)) == pytest.approx(1 - (1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert value("sink", uniform(place)) == pytest.approx(0, abs=1e-7)


def test_same_token_counts_other_places_of_rows_that_have_any():
    ids = torch.tensor([[11, 13, 11, 17]])
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.25] * 4, [0.6, 0.2, 0.1, 0.1], [0.25] * 4])
    assert value("same_token", maps(weights, layout("encoder", 4, query_ids=ids, key_ids=ids))) == pytest.approx(
        (0.3 + 0.6) / 2
    )
    # Across texts the same position is a place like any other.
    cross = layout("cross", 4, 4, query_ids=ids, key_ids=torch.tensor([[11, 19, 17, 23]]))
    assert value("same_token", maps(weights, cross)) == pytest.approx((0.1 + 0.6 + 0.25) / 3)
    assert head_metrics.same_token_mass(maps(weights, layout("encoder", 4))).isnan().all()


def test_reach_leaves_resting_places_out_and_needs_long_texts():
    length = LONG + 2
    weights = 0.9 * torch.eye(length)[torch.zeros(length, dtype=torch.long)] + 0.1 * shifted(length, -1)
    what = maps(weights, layout("encoder", length))
    # What is left of rows 2 .. 46 is 0.1 at distance 1; rows 0 and 1 have all on the first key, and nothing is left.
    inner = torch.arange(1, length - 1).float()
    uniform_value = (torch.arange(length)[:, None] - inner).abs().mean().item()
    assert value("reach", what) == pytest.approx(1 / uniform_value, rel=1e-5)
    assert value("distance", what) > 1
    assert head_metrics.reach(maps(shifted(LONG - 1, -1), layout("encoder", LONG - 1))).isnan().all()
    resting = torch.zeros(length, length)
    resting[:, 0] = 1
    assert head_metrics.reach(maps(resting, layout("encoder", length))).isnan().all()


def test_second_half_by_hand():
    key_len = 47
    place = layout("cross", 3, key_len)
    assert value("second_half", uniform(place)) == pytest.approx(1)
    early = torch.zeros(3, key_len)
    early[:, 5] = 1
    assert value("second_half", maps(early, place)) == 0
    # 45 keys between the resting places: the 23rd is the first of the second half, which has 23 of them.
    late = torch.zeros(3, key_len)
    late[:, 23] = 1
    assert value("second_half", maps(late, place)) == pytest.approx(45 / 23)
    # Of 46 keys, the 24th.
    for key, expected in ((23, 0), (24, 2)):
        even = torch.zeros(3, key_len + 1)
        even[:, key] = 1
        assert value("second_half", maps(even, layout("cross", 3, key_len + 1))) == pytest.approx(expected)


def test_output_share_by_hand_and_for_a_dead_head():
    context = torch.zeros(1, 2, QUERY, 3)
    context[0, 0, :, 0], context[0, 1, :, 1] = 3, 4
    out = torch.zeros(11, 6)  # (d_model, heads * head_dim)
    out[2, 0], out[7, 4] = 2, 0.5
    weights = torch.full((1, 2, QUERY, QUERY), 1 / QUERY)
    what = maps(weights, layout(), context=context, length_factor=length_factors(out, 2))
    assert head_metrics.output_share(what)[0].tolist() == pytest.approx([6 / 8, 2 / 8])
    dead = maps(
        weights, layout(), context=context * torch.tensor([0.0, 1])[:, None, None], length_factor=length_factors(out, 2)
    )
    assert head_metrics.output_share(dead)[0].tolist() == [0.0, 1.0]
    assert head_metrics.output_share(maps(weights, layout())).isnan().all()
    # A layer that adds nothing has dead heads only; what is not a number stays none.
    for factor, expected in ((0.0, [0.0, 0.0]), (torch.nan, [torch.nan] * 2)):
        silent = maps(weights, layout(), context=context * factor, length_factor=length_factors(out, 2))
        assert head_metrics.output_share(silent)[0].tolist() == pytest.approx(expected, nan_ok=True)


def test_length_factors_keep_the_length_of_what_a_head_adds():
    generator = torch.Generator().manual_seed(0)
    out, context = torch.randn(13, 10, generator=generator), torch.randn(7, 2, 5, generator=generator)
    factors = length_factors(out, 2)
    for head in range(2):
        full = (context[:, head] @ out[:, head * 5 : head * 5 + 5].T).norm(dim=-1)
        torch.testing.assert_close((context[:, head] @ factors[head]).norm(dim=-1), full)


def random_maps(kind: str, batch: int, query_len: int, key_len: int, pads: tuple[int, int], seed: int) -> HeadMaps:
    generator = torch.Generator().manual_seed(seed)
    key_len = key_len if kind == "cross" else query_len
    pads = pads if kind == "cross" else (pads[0], pads[0])
    sizes = (query_len + pads[0], key_len + pads[1])
    rows, keys = ((torch.arange(size) < real).expand(batch, -1) for size, real in zip(sizes, (query_len, key_len)))
    ids = [torch.randint(4, (batch, n), generator=generator) for n in (query_len, key_len)]
    marks = torch.rand(3, batch, key_len, generator=generator) < 0.3
    padded_ids = [torch.nn.functional.pad(x, (0, pad), value=1) for x, pad in zip(ids, pads)]
    marks = torch.nn.functional.pad(marks, (0, pads[1]))
    query_ids, key_ids = padded_ids if kind == "cross" else (padded_ids[0],) * 2
    place = Layout(kind, rows, keys, *marks, query_ids, key_ids)
    mask = keys[:, None, None].expand(batch, 1, sizes[0], -1)
    if kind == "decoder":
        mask = mask & torch.ones(sizes, dtype=torch.bool).tril()
    scores = 3 * torch.randn(batch, HEADS, query_len, key_len, generator=generator)
    scores = torch.nn.functional.pad(scores, (0, pads[1], 0, pads[0]))
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    context = torch.nn.functional.pad(torch.randn(batch, HEADS, query_len, 2, generator=generator), (0, 0, 0, pads[0]))
    factors = length_factors(torch.randn(5, HEADS * 2, generator=generator), HEADS)
    return HeadMaps(place, weights, mask, context, factors)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["encoder", "decoder", "cross"]),
    batch=st.integers(1, 3),
    query_len=st.sampled_from([1, 2, 7, 53]),
    key_len=st.sampled_from([1, 5, 47]),
    pads=st.tuples(st.integers(0, 3), st.integers(1, 3)),
)
def test_numbers_stay_in_their_range_and_padding_changes_nothing(seed, kind, batch, query_len, key_len, pads):
    plain, padded = (random_maps(kind, batch, query_len, key_len, some, seed) for some in ((0, 0), pads))
    for column in MEASURED:
        if kind not in column.kinds:
            continue
        found = column.measure(plain)
        assert found.shape == (batch, HEADS), column.name
        known = found[~found.isnan()]
        assert column.low is None or bool((known >= column.low - 1e-6).all()), (column.name, known)
        assert column.high is None or bool((known <= column.high + 1e-5).all()), (column.name, known)
        torch.testing.assert_close(column.measure(padded), found, equal_nan=True, rtol=1e-4, atol=1e-5, msg=column.name)


def test_a_table_names_each_column_once_with_a_sentence_and_a_source():
    assert len(BY_NAME) == len(COLUMNS)
    assert all(column.says and column.label and column.kinds for column in COLUMNS)
    assert {column.source for column in COLUMNS} == {"maps", "variability", "gradient", "ablation"}
    assert all((column.measure is not None) == (column.source == "maps") for column in COLUMNS)


def test_a_layout_refuses_what_does_not_fit():
    with pytest.raises(AttentionError, match=r"key_ids must have the shape \(1, 5\), not \(1, 7\)"):
        layout("encoder", 5, key_ids=torch.zeros(1, 7))


def test_inputs_are_not_changed():
    what = random_maps("decoder", 2, 7, 7, (1, 1), 3)
    before = what.weights.clone()
    for column in MEASURED:
        column.measure(what)
    assert torch.equal(what.weights, before)
