"""What people and links throw at the Build page: a right picture or one sentence, never a trace; what was set is kept."""

import base64
import html
import zlib

import numpy as np
import pytest

from pages.ui.playground import SETTINGS

MARKUP = "price $x and y$ *now* :red[boo] :smile: # x ![i](http://e/x.png) <img src=x onerror=alert(1)> `a` [l](javascript:x)"


@pytest.mark.parametrize("blank", ["", "   ", "\n\t \u2003"])
@pytest.mark.parametrize("unit", ["words", "characters"])
def test_an_empty_text(build, blank, unit):
    page = build().set("slider", "temp", 2.0).set("button_group", "unit", unit).set("text_area", "text", blank)
    page.refused("at least one token")
    assert (page["text"], page["temp"]) == (blank, 2.0)
    page.set("text_area", "text", "a b").fine()
    assert page.cells().shape == ((2, 2) if unit == "words" else (3, 3))


@pytest.mark.parametrize(
    "text, tokens",
    [
        ("one", ["one"]),
        ("海边的 小猫", ["海边的", "小猫"]),
        ("🧑‍🚀 go 👩‍👩‍👧", ["🧑‍🚀", "go", "👩‍👩‍👧"]),
        ("سلام يا عالم", ["سلام", "يا", "عالم"]),
        ("a\u202eb \u200b c\u0301", ["a\u202eb", "\u200b", "c\u0301"]),
        ("$5 **and** $7", ["$5", "**and**", "$7"]),
        ("<s> </s> <script>alert(1)</script> &lt;", ["<s>", "</s>", "<script>alert…", "&lt;"]),
        ("%{z} {0} {x!r} %s \\n", ["%{z}", "{0}", "{x!r}", "%s", "\\n"]),
    ],
)
def test_odd_texts_are_tokens_like_any(build, text, tokens):
    panel = build(text=text, masks=[]).fine().panels["weights"]
    assert panel.rows == panel.columns == tokens
    np.testing.assert_allclose(panel.z.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_ten_thousand_characters(build, unit):
    text = ("word " * 2000).strip() + "s"
    page = build(unit=unit).set("text_area", "text", text).fine()
    assert page.cells().shape == (64, 64)
    count = len(text.split()) if unit == "words" else len(text)
    assert f"The text has {count} tokens; the first 64 are used." in page.warnings
    assert page["text"] == text


def test_one_word_of_ten_thousand_characters(build):
    page = build().set("text_area", "text", "x" * 10_000).fine()
    np.testing.assert_array_equal(page.cells(), [[1]])
    assert len(page.panels["weights"].rows[0]) < 20


@pytest.mark.parametrize("view", ["one", "layer", "all"])
def test_a_text_is_never_interpreted(build, view):
    """Case 26: no formula, emphasis, colour, emoji, link or picture out of a person's words, wherever they are repeated."""
    words = MARKUP.split()
    for row in range(0, len(words), 3):
        page = build(
            text=MARKUP, masks=[], view=view, row=row, col=row, table=True, cross=view == "one", text2=MARKUP
        ).fine()
        interpreted = [e.value for kind in ("markdown", "caption", "warning", "error") for e in getattr(page.app, kind)]
        interpreted += [e.value for e in page.app.subheader]
        labels = [w.label for kind in ("selectbox", "toggle", "button", "text_area") for w in getattr(page.app, kind)]
        for text in [*interpreted, *labels]:
            assert not [word for word in words if len(word) > 2 and word in text and word not in ("and",)], text
        for table in page.app.get("html"):
            assert "<img" not in table.proto.body and "<script" not in table.proto.body
        if view == "all":
            break


def test_the_arithmetic_names_tokens_to_the_letter(build):
    page = build(text=MARKUP, masks=[], row=0, col=0).fine()
    tables = "".join(table.proto.body for table in page.app.get("html"))
    shown = [word for word in set(MARKUP.split()) if f" {html.escape(word)}</td>" in tables]
    assert len(shown) >= 8


def test_sentences_repeat_what_was_typed_verbatim(build):
    page = build(input="own_x", own_x="1, **2** $x$\n3, 4").refused("`**2** $x$`", "line 1", "column 2")
    assert page["own_x"] == "1, **2** $x$\n3, 4"


@pytest.mark.parametrize(
    "text, parts",
    [
        ("", ["is empty"]),
        ("  \n \n", ["is empty"]),
        ("1,2\n3", ["equally long", "line 2 has 1", "first row has 2"]),
        ("1,2\n3,4,5", ["equally long", "line 2 has 3"]),
        ("a,b\n1,2", ["finite numbers", "line 1, column 1", "`a`"]),
        ("1,\n2,3", ["finite numbers", "line 1, column 2"]),
        ("1,inf", ["finite numbers", "column 2", "`inf`"]),
        ("nan,1", ["finite numbers"]),
        ("1e999,1", ["finite numbers"]),
        ("\n".join(["1,2"] * 65), ["up to 64 rows", "65 x 2"]),
        (",".join(["1"] * 129), ["128 columns", "1 x 129"]),
        ("<b>1</b>,2", ["finite numbers", "`<b>1</b>`"]),
        ('"1,2', ["finite numbers"]),
        ("1;2,3", ["finite numbers"]),
        ("\x00", ["finite numbers"]),
        ("9" * 5000 + ",1", ["finite numbers"]),
    ],
)
def test_a_malformed_matrix_is_refused_in_a_sentence(build, text, parts):
    page = build(input="own_x", own_x=text, temp=2.0).refused(*parts)
    assert (page["own_x"], page["temp"]) == (text, 2.0)
    assert len(page.errors[0]) < 400
    page.set("text_area", "own_x", "1 2\n3 4").fine()


@pytest.mark.parametrize(
    "own, parts",
    [
        ({"own_q": "1 2", "own_k": "1 2 3", "own_v": "1 2"}, ["same number of columns", "2, 3 and 2"]),
        ({"own_q": "1 2", "own_k": "1 2", "own_v": "1 2\n3 4"}, ["same number of rows", "1 and 2"]),
        ({"own_q": "", "own_k": "1", "own_v": "1"}, ["is empty"]),
        ({"own_q": "1", "own_k": "x", "own_v": "1"}, ["finite numbers"]),
    ],
)
def test_matrices_that_do_not_fit_each_other(build, own, parts):
    build(input="own_qkv", heads=1, **own).refused(*parts)


def test_two_inputs_of_different_width(build):
    build(input="own_x", own_x="1 2", own_x2="1 2 3", cross=True, heads=1).refused("same number of columns", "2 and 3")


@pytest.mark.parametrize("own", ["own_x", "own_qkv"])
@pytest.mark.parametrize("view", ["one", "all", "layer"])
@pytest.mark.parametrize("head", [0, 1])
def test_own_matrices_in_every_view(build, own, view, head):
    rows = "1 0 2 0\n0 1 0 2\n1 1 1 1"
    given = {"own_x": rows} if own == "own_x" else {"own_q": "1 0 0 1", "own_k": rows, "own_v": rows}
    build(input=own, **given, heads=2, head=head, view=view).fine()


@pytest.mark.parametrize("view", ["one", "all", "layer"])
@pytest.mark.parametrize(
    "state",
    [
        {"own_x": "1e38 1e38\n-1e38 1e38"},
        {"own_x": "1e38 1e38\n-1e38 1e38", "dtype": "float16"},
        {"own_x": "70000 1\n1 70000", "dtype": "float16"},
        {"own_x": "1e39 1\n1 -1e300"},
        {"own_x": "3e38 0\n0 3e38", "dtype": "bfloat16", "scale": "none"},
        {"own_x": "1e-45 0\n0 1e-320"},
    ],
)
def test_numbers_too_large_for_the_format(build, state, view):
    page = build(input="own_x", heads=1, masks=[], view=view, row=1, col=1, **state).fine()
    if state["own_x"] != "1e-45 0\n0 1e-320":
        assert any("not finite" in w for w in page.warnings), page.warnings


@pytest.mark.parametrize("stage", ["query", "scores", "masked_scores", "weights", "context"])
def test_the_arithmetic_of_a_number_that_is_none(build, stage):
    build(input="own_x", own_x="1e38 1e38\n-1e38 1e38", dtype="float16", heads=1, stage=stage).fine()


HOSTILE = [
    {"nobody": "knows this", "__proto__": "x", "<script>": "1"},
    {"dm": "-5"},
    {"dm": "1e3"},
    {"dm": "9" * 400},
    {"dm": "１６"},
    {"dm": "nan"},
    {"heads": "0"},
    {"heads": "17"},
    {"temp": "nan"},
    {"temp": "inf"},
    {"temp": "-1"},
    {"temp": "0"},
    {"scale": "number", "scale_by": "1e-400"},
    {"n": "65", "input": "count"},
    {"row": "255", "col": "255"},
    {"row": "-1"},
    {"stage": "weights; drop table"},
    {"stage": "dropped_weights"},
    {"stage": "output"},
    {"stage": "query_weight", "view": "layer", "row": "200", "col": "200"},
    {"stage": "key_input", "view": "layer"},
    {"view": "<img src=x onerror=alert(1)>"},
    {"preset": "../../etc/passwd"},
    {"preset": "bart_simplified", "free": "1", "hd": "5"},
    {"preset": "bert", "free": "1", "hd": "5"},
    {"masks": "causal.nonsense"},
    {"masks": "." * 300},
    {"masks": ""},
    {"masks": "causal,window"},
    {"cells": "AAAA"},
    {"cells": "%%%"},
    {"cells": "é"},
    {"cells": ""},
    {"cells": "0,3"},
    {"cells": base64.urlsafe_b64encode(zlib.compress(bytes(10_000_000), 9)).decode()},
    {"cells": base64.urlsafe_b64encode(zlib.compress(b"\xff" * 512)).decode(), "masks": "edited"},
    {"text": "\x00\x01\x7f"},
    {"text": "\x00 a", "table": "1"},
    {"text": "x" * 30_000},
    {"text": "<script>alert(1)</script> " * 5},
    {"cross": "yes"},
    {"raw": "2"},
    {"input": "own_x"},
    {"input": "own_qkv", "view": "layer", "free": "1"},
    {"own_x": "1,2"},
    {"colours": "jet"},
    {"head": "15", "heads": "16", "dm": "32", "view": "all"},
    {"dtype": "float16", "scale": "number", "scale_by": "1e6"},
    {"drop": "0.9", "training": "1", "stage": "dropped_weights"},
    {"masks": "padding", "pads": "64", "text": " ".join("w" * 64)},
    {"masks": "padding", "pads": "64", "input": "count", "n": "1", "vectors": "one_hot", "dm": "2"},
    {"masks": "causal.prefix.window.block.padding.edited", "window": "0", "block": "1", "prefix": "0", "pads": "64"},
    {"input": "count", "n": "64", "n2": "64", "cross": "1", "heads": "16", "dm": "128", "view": "all"},
    {"scale": "number", "scale_by": "1e6", "temp": "0.1"},
    {"lang": "en", "utm_source": "x" * 5000},
]


@pytest.mark.parametrize("query", HOSTILE, ids=lambda query: next(iter(query))[:20])
def test_a_hostile_link(build, query):
    page = build(query=query)
    assert not page.app.exception, page.app.exception[0].message
    assert page.charts or len(page.errors) == 1
    assert len(" ".join(page.sentences)) < 600
    # What the page keeps is legal, and running again says nothing new.
    for key, setting in SETTINGS.items():
        if setting.write is not None and key in page.query:
            setting.read(page.query[key])
    errors = page.errors
    page.run()
    assert not page.app.exception and page.errors == errors


def test_unreadable_parts_of_a_link_are_named_and_the_rest_is_used(build):
    page = build(query={"dm": "-5", "temp": "2.5", "nobody`": "1", "heads": "8"}).fine()
    assert (page["dm"], page["temp"], page["heads"]) == (32, 2.5, 8)
    (said,) = page.warnings
    assert "`dm`" in said and "`` nobody` ``" in said
    assert page.query == {"temp": "2.5", "heads": "8"}


@pytest.mark.parametrize("cells", ["abc", "1,2,3", "64,0", "-1,0", "0,3;2,1", "$x$", "1, 2", "٣,٤x", "," * 500])
def test_edited_cells_that_cannot_be_read(build, cells):
    page = build(masks=["edited"]).set("text_input", "cells", cells)
    page.refused("row,column")
    assert page["cells"] == cells and "cells" not in page.query
    page.set("text_input", "cells", "0,1").fine()
    assert np.isnan(page.cells()[0, 1])
