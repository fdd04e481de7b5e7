"""Painted text: nothing of a token becomes markup, the numbers are there without the colour."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from attention_core.errors import AttentionError
from attention_core.figures.painted import Mark, contrast, painted_html, writing_on
from attention_core.figures.palette import palette, rgb, sample

LIGHT, DARK = palette("light"), palette("dark")


class Reader(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.titles, self.styles, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        if tag == "span":
            self.titles.append(attributes["title"])
            self.styles.append(attributes["style"])

    def handle_data(self, data):
        self.text += data


def test_every_token_is_shown_to_the_letter_and_nothing_else_is_markup():
    pieces = ["<s>", "The", " <script>alert('x')</script>", ' "quoted" & $x$', "\n", " 你好", "é", ""]
    read = Reader(painted_html(pieces, np.linspace(0, 1, 8), palette=LIGHT))
    assert set(read.tags) == {"div", "span", "br"}
    assert read.text == "<s>The <script>alert('x')</script> \"quoted\" & $x$⏎ 你好é∅"
    assert len(read.titles) == 8


def test_titles_hold_the_exact_number():
    value = float(np.float32(0.123456789))
    read = Reader(painted_html(["a", '"b"'], [value, np.nan], palette=LIGHT))
    assert read.titles == [f"a: {value:.9g}", '"b"']
    assert np.float32(read.titles[0].split(": ")[1]) == np.float32(value)


def test_the_background_is_the_weight_and_the_full_colour_is_chosen():
    def backgrounds(**options):
        return re.findall("background:(#[0-9a-f]{6})", painted_html(["a", "b"], [0.25, 0.5], palette=LIGHT, **options))

    hexes = ["#{:02x}{:02x}{:02x}".format(*c) for c in sample(LIGHT.weights, np.array([0.25, 0.5, 1.0]))]
    assert backgrounds() == hexes[:2]
    assert backgrounds(full=0.5) == hexes[1:]
    assert backgrounds(full=0.1) == [hexes[2]] * 2
    assert "background" not in painted_html(["a"], [np.nan], palette=LIGHT)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("scale", ["ink", "cividis", "viridis"])
def test_writing_reads_on_every_background(theme, scale):
    colours = palette(theme, scale)
    for background in sample(colours.weights, np.linspace(0, 1, 101)):
        assert contrast(rgb(writing_on(background, colours)), background) > 4.5


def test_contrast_is_that_of_wcag():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)
    assert contrast((8, 8, 8), (0, 0, 0)) == pytest.approx((8 / 255 / 12.92 + 0.05) / 0.05)


def test_selected_tokens_are_outlined_and_underlined():
    read = Reader(painted_html(["a", "b"], [0, 1], palette=DARK, selected={1}))
    assert "underline" in read.styles[1] and DARK.accent in read.styles[1]
    assert "underline" not in read.styles[0]


def test_numbers_and_spaces_on_request():
    text = Reader(
        painted_html(["a", "b", "c"], [0.5, 0.25, 1], palette=LIGHT, spaces=[True, False, True], numbers=True)
    ).text
    assert text == "a0.5b0.25 c1"


def test_counts_and_range_are_checked():
    with pytest.raises(AttentionError, match="1 values for 2 pieces of text"):
        painted_html(["a", "b"], [1], palette=LIGHT)
    with pytest.raises(AttentionError, match=r"full \(0\) must be above 0"):
        painted_html(["a"], [1], palette=LIGHT, full=0)


def test_a_mark_holds_its_passage_and_its_word_and_nothing_else():
    marks = [Mark(1, 3, "<i>skipped</i>", "#C2561A", dashed=True), Mark(2, 4, "read twice", "#2458B8")]
    made = painted_html(["a", " b", " c", " d", " e"], [0] * 5, palette=LIGHT, marks=marks)
    plain = re.sub(
        r"<(/?mark|b )[^>]*>|</b>", lambda m: "[" if "mark s" in m[0] else "]" if "/m" in m[0] else "|", made
    )
    assert re.sub(r"<[^>]+>", "", plain) == "a [|&lt;i&gt;skipped&lt;/i&gt;|b] [|read twice|c] [d] e"
    assert made.count("dashed #C2561A") == 1 and made.count("solid #2458B8") == 2
    for first, end in ((0, 6), (2, 2), (-1, 1)):
        with pytest.raises(AttentionError, match="does not lie in 5 pieces"):
            painted_html(["a"] * 5, [0] * 5, palette=LIGHT, marks=[Mark(first, end, "x", "#000000")])
