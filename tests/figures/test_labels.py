"""Labels: every token stays what it is."""

import pytest

from attention_core.figures.labels import LONGEST, positions, shown, thinned, tick_label


@pytest.mark.parametrize(
    "token, label",
    [
        ("cat", "cat"),
        ("<s>", "&lt;s&gt;"),
        ("</s>", "&lt;/s&gt;"),
        ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
        ("&lt;", "&amp;lt;"),
        ("%{z}", "%{z}"),
        ("$x^2$", "$x^2$"),
        ('"', '"'),
        ("", "∅"),
        (" ", "·"),
        (" cat", "·cat"),
        ("\n", "⏎"),
        ("a\r\nb", "a⏎b"),
        ("\t", "⇥"),
        ("你好", "你好"),
        (2021, "2021"),
        ("internationalisation", "international…"),
    ],
)
def test_a_token_as_a_label(token, label):
    assert tick_label(token) == label


def test_long_tokens_are_cut_before_escaping():
    assert tick_label("<" * 40) == "&lt;" * (LONGEST - 1) + "…"
    assert shown("x" * 40) == "x" * 40


def test_repeated_and_numeric_labels_keep_their_positions():
    tokens = ["10", "10", "2020", "the", "the"]
    assert thinned(tokens, 5) == ([0, 1, 2, 3, 4], tokens)


@pytest.mark.parametrize(
    "count, room, step", [(16, 16, 1), (17, 16, 2), (64, 20, 5), (1024, 9, 200), (0, 5, 1), (3, 0, 5)]
)
def test_labels_that_do_not_fit_are_thinned_in_round_steps(count, room, step):
    places = positions(count, room)
    assert places == list(range(0, count, step))
    assert len(places) <= max(room, 1)


def test_a_selected_label_is_kept_and_its_neighbours_make_way():
    places, texts = thinned([str(i) for i in range(64)], 13, keep=(26,))
    assert 26 in places and 25 not in places and 30 not in places
    assert {0, 5, 20, 35} <= set(places)
    assert texts[places.index(26)] == "26"
    assert positions(4, 9, keep=(99, -1)) == [0, 1, 2, 3]
