"""The colours: as designed, and readable for the common kinds of colour blindness."""

import numpy as np
import pytest

from attention_core.errors import AttentionError
from attention_core.figures.palette import Palette, palette, rgb, sample

# Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
THEMES = [(theme, scale) for theme in ("light", "dark") for scale in ("ink", "cividis", "viridis")]


def lab(colours, kind):
    """CIELAB (n, 3) of sRGB colours 0..255 as someone with this kind of vision sees them."""
    srgb = np.asarray(colours, dtype=float) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ BLINDNESS[kind].T, 0, 1)
    xyz = linear @ np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]).T
    ratio = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=-1)


def distance(one, other, kind):
    return float(np.linalg.norm(lab([rgb(one)], kind) - lab([rgb(other)], kind)))


def contrast(one, other):
    lights = []
    for colour in (one, other):
        c = np.asarray(rgb(colour)) / 255
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        lights.append(float(linear @ [0.2126, 0.7152, 0.0722]))
    return (max(lights) + 0.05) / (min(lights) + 0.05)


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize("theme, scale", THEMES)
def test_more_weight_is_always_lighter_or_always_darker(theme, scale, kind):
    lightness = lab(sample(palette(theme, scale).weights, np.linspace(0, 1, 33)), kind)[:, 0]
    steps = np.diff(lightness) if lightness[-1] > lightness[0] else -np.diff(lightness)
    assert (steps > 0).all()
    assert abs(lightness[-1] - lightness[0]) > 60


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_ends_of_the_signed_scale_stay_apart(theme, kind):
    low, zero, high = (colour for _, colour in palette(theme).signed)
    assert distance(low, high, kind) > 40
    assert distance(low, zero, kind) > 40
    assert distance(high, zero, kind) > 40


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_weight_of_a_tenth_is_seen(theme):
    zero, tenth = sample(palette(theme).weights, np.array([0.0, 0.1]))
    assert np.linalg.norm(np.diff(lab([zero, tenth], "none"), axis=0)) > 9


@pytest.mark.parametrize("kind", ["none", "protan", "deutan"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_query_key_and_value_have_colours_of_their_own(theme, kind):
    colours = palette(theme)
    assert distance(colours.query, colours.key, kind) > 25
    assert distance(colours.query, colours.value, kind) > 12
    assert distance(colours.key, colours.value, kind) > 12


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_writing_reads_on_the_page(theme):
    colours = palette(theme)
    assert contrast(colours.text, colours.page) > 12
    assert contrast(colours.muted, colours.page) > 4.5
    assert contrast(colours.accent, colours.page) > 3


def test_zero_weight_is_the_page():
    assert palette("light").weights[0] == (0.0, palette("light").page)
    assert palette("light").signed[1] == (0.5, palette("light").page)
    assert distance(palette("dark").weights[0][1], palette("dark").page, "none") < 5


def test_a_palette_is_one_frozen_object():
    assert palette("dark", "cividis") is palette("dark", "cividis")
    assert isinstance(palette(), Palette)
    with pytest.raises(AttributeError):
        palette().page = "#000000"


def test_sampling_is_linear_between_stops():
    scale = ((0.0, "#000000"), (0.5, "#640000"), (1.0, "#6400C8"))
    assert sample(scale, np.array([0, 0.25, 0.5, 0.75, 1])).tolist() == [
        [0, 0, 0], [50, 0, 0], [100, 0, 0], [100, 0, 100], [100, 0, 200]
    ]  # fmt: skip


def test_unknown_names_are_refused():
    with pytest.raises(AttentionError, match=r"theme \(pink\) must be one of: light, dark"):
        palette("pink")
    with pytest.raises(AttentionError, match=r"scale \(jet\) must be one of: ink, cividis, viridis"):
        palette("light", "jet")
