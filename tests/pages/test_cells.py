"""Numbers and texts as a person reads them."""

import html
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from streamlit.testing.v1 import AppTest

from attention_core import AttentionError
from pages.ui.cells import number, tex
from pages.ui.text import error_text, verbatim


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0, "0"),
        (-0.0, "0"),
        (0.29174, "0.2917"),
        (-1.5, "−1.5"),
        (1e-9, "1e−09"),
        (-12345.6, "−1.235e+04"),
        (float("nan"), "NaN"),
        (float("inf"), "∞"),
        (float("-inf"), "−∞"),
        (7, "7"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_their_digits(value):
    shown = float(number(value, 9).replace("−", "-"))
    assert shown == float(f"{value:.9g}")
    assert "-" not in number(value)


@pytest.mark.parametrize(
    "value, formula",
    [
        (2.5, "2.5"),
        (-2.5, "(-2.5)"),
        (1e-9, r"1 \cdot 10^{-9}"),
        (-1.5e12, r"(-1.5 \cdot 10^{12})"),
        (float("inf"), r"\infty"),
        (float("-inf"), r"(-\infty)"),
    ],
)
def test_numbers_in_formulas(value, formula):
    assert tex(value) == formula


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40).filter(str.strip))
def test_a_verbatim_text_is_one_piece_of_code(text):
    (block,) = [token for token in MarkdownIt().parse(verbatim(text)) if token.type == "inline"]
    assert [token.type for token in block.children] == ["code_inline"]
    assert block.children[0].content.strip() == " ".join(text.split())


@pytest.mark.parametrize("value", ["$x$", "**a**", "`", "a`b``c", ":red[x]", "{0}", "<b>", "![i](http://e/x.png)"])
def test_values_in_an_error_stay_what_they_are(value):
    shown = error_text(AttentionError("no cell {name} here", name=value))
    (block,) = [token for token in MarkdownIt().parse(shown) if token.type == "inline"]
    assert [t.content.strip() for t in block.children if t.type == "code_inline"] == [value]


def test_code_marks_stand_for_the_quotes_of_a_template():
    assert error_text(AttentionError("not {part!r}", part="a b")) == "not `a b`"
    assert verbatim("") == "` `"


def test_paths_and_reasons_in_an_error_are_shown_as_they_are():
    # Path folds // into /, and a browser makes https:/host absolute again.
    for value in (Path("/tmp/![i](https://e/x.png)"), ValueError(":red[x] $y$"), ("*a*",)):
        (block,) = [
            t for t in MarkdownIt().parse(error_text(AttentionError("no {what}", what=value))) if t.type == "inline"
        ]
        assert [t.type for t in block.children] == ["text", "code_inline"]
    assert len(error_text(AttentionError("no {what}", what="x" * 5000))) < 400


def test_an_error_with_a_number_format_is_still_said():
    assert "0.5" in error_text(AttentionError("scale is {scale:.2g}", scale=0.5))


@pytest.mark.parametrize("token", ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "a&b", '"', "</td>"])
def test_a_table_shows_texts_as_they_are(token):
    def script(token):
        from pages.ui.cells import show_table

        show_table(("key", token), [(token, 0.5)], ("sum", 1.0), 0)

    app = AppTest.from_function(script, kwargs={"token": token}).run()
    body = app.get("html")[0].proto.body
    cells = re.findall(r"<t[dh]>(.*?)</t[dh]>", body)
    assert [html.unescape(cell) for cell in cells] == ["key", token, token, "0.5", "sum", "1"]
