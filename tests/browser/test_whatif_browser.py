"""The What-if page in Chromium: a word and a cell are clicked away, a phone is wide enough."""

from urllib.parse import unquote_plus

import numpy as np
import pytest

from tests.browser.conftest import PHONE

SOURCE = "The king had a ring."


def test_a_clicked_cell_is_hidden_and_given_back(visit):
    page = visit("/whatif", if_view="cells", if_kind="encoder", if_layer=2, if_head=1, source=SOURCE)
    before = page.maps(0)["A"]
    page.click_cell("A", 3, 2).until_query("queries=(3,)")
    assert "[Forbid(kind='encoder', layer=2, heads=(1,), keys=(2,), queries=(3,))]" in unquote_plus(page.url)
    after = page.maps(0)["A"]
    assert np.isnan(after[3, 2]) and not np.isnan(before).any()
    np.testing.assert_allclose(np.nansum(after[3]), 1, atol=1e-5)
    page.click_cell("A", 3, 2).until("() => !location.search.includes('Forbid')")
    np.testing.assert_allclose(page.maps(0)["A"], before, atol=1e-6)


def test_a_word_is_hidden_by_clicking_it(visit):
    page = visit("/whatif", what="Forbid", on_kind="cross", on_layer=-1, source=SOURCE)
    page.page.get_by_role("button", name="king").first.click()
    page.until_query("on_keys=2")
    page.page.get_by_role("button", name="Change it").click()
    page.until_query("Forbid(kind='cross'")
    assert "[Forbid(kind='cross', heads=(4,), keys=(2,))]" in unquote_plus(page.url)
    assert "may not look at" in page.page.inner_text("body")
    page.page.get_by_role("button", name="Undo").click()
    page.until("() => !location.search.includes('edits=')")
    assert "Forbid(" not in unquote_plus(page.url)


@pytest.mark.parametrize("view", ["says", "heads", "cells"])
def test_a_phone_is_wide_enough(visit, view):
    context = {"viewport": {"width": 412, "height": 900}, "user_agent": PHONE, "color_scheme": "dark"}
    page = visit("/whatif", context, if_view=view, experiment="blind", source=SOURCE)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 412
    wide = page.page.evaluate(
        "Math.max(...[...document.querySelectorAll('.js-plotly-plot')].map(p => p.getBoundingClientRect().right))"
    )
    assert wide <= 412
