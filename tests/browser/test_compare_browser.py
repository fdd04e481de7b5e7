"""The Compare page in Chromium: it draws, a click opens a pair, a phone is wide enough."""

import numpy as np
import pytest

from tests.browser.conftest import PHONE, READ

SOURCE = "The king had a ring."


def cells(page) -> list[np.ndarray]:
    """The maps of the first chart."""
    traces = page.page.evaluate(READ)[0]["traces"]
    return [np.array(trace["z"], dtype=float) for trace in traces if trace["type"] == "heatmap"]


def test_the_same_head_on_both_sides_draws(visit):
    """Case 22: equal charts do not collide."""
    page = visit("/compare", compare="heads", pair="heads", layer_b=2, head_b=7, source=SOURCE)
    first, second, difference = cells(page)
    np.testing.assert_array_equal(first, second)
    assert not np.nan_to_num(difference).any()


def test_a_click_in_the_matrix_opens_the_pair(visit):
    page = visit("/compare", compare="heads", source=SOURCE)
    distances = page.maps(0)["Divergence"]
    page.click_cell("Divergence", 3, 9).until_query("pair=heads")
    first, second, difference = cells(page)
    assert first.shape == second.shape and np.nanmax(np.abs(difference)) > 0
    said = page.page.locator("table.sums tr", has_text="Jensen-Shannon").inner_text().split()[-1]
    assert float(said.replace("−", "-")) == pytest.approx(distances[3, 9], rel=5e-3) and distances[3, 9] > 0


@pytest.mark.parametrize("view", ["prove", "change", "untrained", "heads"])
def test_a_phone_is_wide_enough(visit, view):
    context = {"viewport": {"width": 412, "height": 900}, "user_agent": PHONE, "color_scheme": "dark"}
    page = visit("/compare", context, compare=view, source=SOURCE)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 412
    wide = page.page.evaluate(
        "Math.max(...[...document.querySelectorAll('.js-plotly-plot')].map(p => p.getBoundingClientRect().right))"
    )
    assert wide <= 412
