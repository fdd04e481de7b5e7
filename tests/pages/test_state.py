"""Settings as texts of a link: what can be read, what is refused, and that each value comes back as it went."""

from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pages.ui.state import MOST_URL_CHARACTERS, _fits, _query, choice, choices, flag, real, text, whole

COLOURS = choices("colours", ["red"], ("red", "green", "blue"))


@given(st.integers(-5, 99))
def test_whole_numbers_come_back(value):
    setting = whole("n", 3, -5, 99)
    assert setting.read(setting.write(value)) == value


@given(st.floats(1e-6, 1e6))
def test_numbers_come_back_to_the_last_digit(value):
    setting = real("x", 1.0, 1e-6, 1e6)
    assert setting.read(setting.write(value)) == value


@pytest.mark.parametrize("value, written", [(0.1, "0.1"), (2.0, "2"), (1e-6, "1e-06"), (0.35, "0.35")])
def test_usual_numbers_are_short(value, written):
    assert real("x", 1.0, 0, 5).write(value) == written


@given(st.booleans())
def test_flags_come_back(value):
    assert flag("f").read(flag("f").write(value)) is value


@given(st.lists(st.sampled_from(["red", "green", "blue"]), unique=True))
def test_lists_come_back_in_the_order_of_the_options(names):
    assert COLOURS.read(COLOURS.write(names)) == [n for n in ("red", "green", "blue") if n in names]


@given(st.text())
def test_texts_come_back(value):
    assert text("t").read(text("t").write(value)) == value


@pytest.mark.parametrize(
    "setting, words",
    [
        (whole("n", 3, 0, 9), ["", "10", "-1", "3.0", "1e1", "x", "0x1", "None", "1" * 5000, "<b>"]),
        (real("x", 1.0, 0.1, 5), ["", "nan", "inf", "-inf", "0.09", "5.1", "x", "1" * 5000, "1e999"]),
        (flag("f"), ["", "2", "true", "True", "01", " 1"]),
        (choice("c", "a", ("a", "b")), ["", "c", "A", "a ", "a.b"]),
        (COLOURS, ["pink", "red.pink", "red,green", ".", "red..green"]),
    ],
)
def test_what_is_no_value_is_refused(setting, words):
    for word in words:
        with pytest.raises(ValueError):
            setting.read(word)


@given(st.text())
def test_reading_gives_a_legal_value_or_a_value_error(word):
    for setting in (whole("n", 3, 0, 9), real("x", 1.0, 0.1, 5), flag("f"), choice("c", "a", ("a", "b")), COLOURS):
        try:
            value = setting.read(word)
        except ValueError:
            continue
        assert not isinstance(value, float) or isfinite(value)
        assert setting.read(setting.write(value)) == value


def test_a_link_holds_what_is_not_at_its_default_and_can_be_written():
    def fails(value):
        raise ValueError(value)

    settings = {s.key: s for s in (whole("n", 3, 0, 9), text("t"), text("own", travels=False), flag("f"))}
    assert _query({"n": 3, "t": "", "own": "", "f": False}, settings) == {}
    assert _query({"n": 4, "t": "a b", "own": "1,2", "f": True}, settings) == {"n": "4", "t": "a b", "f": "1"}
    assert _query({"t": "x" * MOST_URL_CHARACTERS}, settings)
    assert not _query({"t": "x" * (MOST_URL_CHARACTERS + 1)}, settings)
    # What counts for the browser is the length in the URL: nine characters for a Chinese one.
    assert _query({"t": "猫" * 444}, settings)
    assert not _query({"t": "猫" * 445}, settings)
    broken = {"t": type(settings["t"])("t", "", str, fails)}
    assert _query({"t": "a"}, broken) == {}


@pytest.mark.parametrize(
    ("setting", "value", "fits"),
    [
        (whole("n", 3, 0, 9), 4, True),
        (whole("n", 3, 0, 9), "4 · king", False),
        (real("x", 1.0, 0, 5), 2, True),
        (real("x", 1.0, 0, 5), "2", False),
        (flag("f"), 1, False),
        (flag("f"), True, True),
        (text("t"), "4 · king", True),
        (COLOURS, ["green"], True),
        (COLOURS, ["a name that was"], False),
        (COLOURS, "green", False),
    ],
)
def test_a_widget_s_old_name_is_no_value(setting, value, fits):
    """A box whose names go with the text sends the old one: Streamlit takes it for the value."""
    assert _fits(setting, value) is fits
