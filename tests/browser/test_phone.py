"""Explore and Compare on a phone: nothing is wider than the screen, and every view can be reached and read."""

import pytest

from pages.ui import compare_settings, explore_settings
from tests.browser.conftest import PHONE

SOURCE = "The king had a ring."
WIDTH = 420
SCREEN = {"viewport": {"width": WIDTH, "height": 900}, "user_agent": PHONE, "is_mobile": True, "has_touch": True}
VIEWS = [
    *(("/explore", "show", view) for view in explore_settings.VIEWS if view != "painted"),
    *(("/compare", "compare", view) for view in compare_settings.VIEWS),
]
# What stands outside the screen and cannot be scrolled to: charts, buttons, tables.
OUTSIDE = """width => [...document.querySelectorAll(
        '[data-testid="stMain"] :is(button, .js-plotly-plot, table, [data-testid="stSelectbox"])')]
    .filter(e => e.getClientRects().length)
    .filter(e => { const box = e.getBoundingClientRect(); return box.right > width + 1 || box.left < -1; })
    .map(e => `${e.tagName} ${e.innerText.slice(0, 30)} ${e.getBoundingClientRect().right}`)"""
# Titles and column labels of a figure that lie under the buttons over it.
COVERED = """() => [...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => {
    const bar = plot.querySelector('.modebar')?.getBoundingClientRect();
    if (!bar || !bar.width) return [];
    return [...plot.querySelectorAll('.annotation-text, .xtick text')].filter(text => {
        const box = text.getBoundingClientRect();
        return box.right > bar.left && box.left < bar.right && box.bottom > bar.top + 1 && box.top < bar.bottom - 1;
    }).map(text => text.textContent);
})"""


@pytest.mark.parametrize(("path", "key", "view"), VIEWS)
def test_nothing_is_wider_than_a_phone_and_nothing_is_covered(visit, path, key, view):
    page = visit(path, SCREEN, **{key: view, "source": SOURCE}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    assert page.evaluate(OUTSIDE, WIDTH) == []
    assert page.evaluate(COVERED) == []


@pytest.mark.parametrize(
    ("path", "last", "query"),
    [("/explore", "Two texts", "show=two"), ("/compare", "Head against head", "compare=heads")],
)
def test_the_last_view_is_a_tap_away(visit, path, last, query):
    visitor = visit(path, SCREEN, source=SOURCE)
    button = visitor.page.locator(".st-key-toolbar button", has_text=last)
    box = button.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= WIDTH
    button.tap()
    visitor.until_query(query)


def test_a_narrow_window_of_a_desktop_scrolls_a_wide_figure(visit):
    """The server does not know how wide a window is; titles of a figure that is pressed together would overlap."""
    page = visit("/build", {"viewport": {"width": 400, "height": 900}}, view="layer").page
    boxes = page.evaluate(
        """() => [...document.querySelectorAll('.js-plotly-plot .annotation-text')].map(e => e.getBoundingClientRect())
            .filter(b => b.width > 30).map(b => [b.left, b.right, b.top, b.bottom])"""
    )
    assert len(boxes) == 7
    for n, one in enumerate(boxes):
        for other in boxes[:n]:
            apart = one[0] >= other[1] or other[0] >= one[1] or one[2] >= other[3] or other[2] >= one[3]
            assert apart, (one, other)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
