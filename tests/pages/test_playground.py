"""Edited cells as texts, and settings made into a layer."""

import base64
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_core import AttentionError
from attention_core.layer.presets import PRESETS
from pages.ui.playground import (
    SETTINGS,
    compute,
    pack_cells,
    parse_cells,
    preset_values,
    toggle_cell,
    tokens_of,
    unpack_cells,
)

PAIRS = st.lists(st.tuples(st.integers(0, 63), st.integers(0, 63)), unique=True, max_size=80)


def written(pairs) -> str:
    return " ".join(f"{row},{column}" for row, column in sorted(pairs))


def settings(**changes) -> dict:
    return {key: setting.default for key, setting in SETTINGS.items()} | changes


@given(PAIRS)
def test_cells_come_back_from_a_link(pairs):
    packed = pack_cells(written(pairs))
    assert unpack_cells(packed) == written(pairs)
    assert packed.isascii() and not set(packed) & set("+/=&?#% ")


def test_every_cell_at_once_still_fits_a_link():
    everything = [(row, column) for row in range(64) for column in range(64)]
    assert unpack_cells(pack_cells(written(everything))) == written(everything)
    assert len(pack_cells(written(everything))) < 200
    random = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) < 0.5
    assert len(pack_cells(written([tuple(cell) for cell in random.nonzero().tolist()]))) < 1500


@given(st.text(max_size=60))
def test_unpacking_anything_gives_cells_or_a_value_error(packed):
    try:
        cells = unpack_cells(packed)
    except ValueError:
        return
    parse_cells(cells)


@pytest.mark.parametrize("size", [0, 511, 513, 100_000_000])
def test_a_bitmap_of_another_size_is_refused_without_unpacking_it(size):
    packed = base64.urlsafe_b64encode(zlib.compress(bytes(size), 9)).decode()
    if size <= 512:
        with pytest.raises(ValueError):
            unpack_cells(packed)
    else:
        # Only as much as a bitmap holds is ever unpacked.
        assert unpack_cells(packed) == ""


@given(PAIRS, st.integers(0, 63), st.integers(0, 63))
def test_turning_a_cell_twice_changes_nothing(pairs, row, column):
    cells = written(pairs)
    once = toggle_cell(cells, row, column)
    assert set(parse_cells(once)) == set(pairs) ^ {(row, column)}
    assert toggle_cell(once, row, column) == cells


@pytest.mark.parametrize("cells", ["abc", "1,2,3", "64,0", "0,64", "-1,0", "1;2", "1, 2", ","])
def test_what_is_no_cell_is_named(cells):
    with pytest.raises(AttentionError, match="row,column"):
        parse_cells(cells)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_decides_its_own_settings(preset):
    values = preset_values(preset)
    config = PRESETS[preset](8, 2)
    assert values["scale"] == config.scale and values["drop"] == config.dropout
    assert (values["bqkv"] != "none") == config.qkv_bias
    built = compute(settings(preset=preset, **values))
    assert built.config.projection == config.projection
    assert built.steps.output.shape == (1, 11, 32)


@pytest.mark.parametrize(
    "values, tokens, cut",
    [
        ({"text": "a b  c\n a"}, ["a", "b", "c", "a"], None),
        ({"text": " ab c ", "unit": "characters"}, ["a", "b", " ", "c"], None),
        ({"input": "count", "n": 3}, ["t0", "t1", "t2"], None),
        ({"text": "w " * 70}, ["w"] * 64, "The text has 70 tokens; the first 64 are used."),
    ],
)
def test_tokens(values, tokens, cut):
    got, notice = tokens_of(settings(**values), "")
    assert got == tokens and (str(notice) if notice else None) == cut


def test_padding_stands_at_the_end_and_takes_no_room_that_is_not_there():
    built = compute(settings(masks=["padding"], pads=64, text="w " * 62))
    assert built.key_tokens[-2:] == ["<pad>"] * 2 and len(built.key_tokens) == 64
    assert built.padded_queries == 2
    assert built.steps.full_mask()[0, 0, :, -2:].any().item() is False


def test_equal_settings_give_equal_numbers():
    first, second = compute(settings(seed=7)), compute(settings(seed=7))
    assert torch.equal(first.steps.output, second.steps.output)
    assert not torch.equal(first.steps.output, compute(settings(seed=8)).steps.output)
