"""The Build page in a real browser: links, clicks, hovers, themes, a phone, and what is drawn where."""

import io
import itertools
import re

import numpy as np
import pytest
from PIL import Image

from attention_core.figures.palette import palette
from attention_core.layer.arithmetic import cell_arithmetic
from pages.ui.playground import SETTINGS, compute, unpack_cells

# Ticks of a panel in the order in which they stand on the screen: (text, x, y).
TICKS = """([symbol, letter]) => {
    const plot = document.querySelector('.js-plotly-plot');
    const maps = plot._fullData.filter(t => t.type === 'heatmap');
    const titles = plot.layout.annotations.map(a => a.text).filter(t => t.includes('<b '));
    const plain = t => t.replace(/<[^>]+>/g, '').replace(/&nbsp;/g, ' ').trim().split(/\\s+/)[0];
    const id = maps[titles.findIndex(t => plain(t) === symbol)][letter + 'axis'];
    return [...plot.querySelectorAll(`g.${id}tick text`)].map(t => {
        const box = t.getBoundingClientRect();
        return [t.textContent, box.left + box.width / 2, box.top + box.height / 2];
    });
}"""


def settings(**changes) -> dict:
    return {key: setting.default for key, setting in SETTINGS.items()} | changes


def weights(head: int = 0, **changes) -> np.ndarray:
    """One head's weights as attention_core has them, with gaps where the mask hides."""
    steps = compute(settings(**changes)).steps
    return np.where(steps.full_mask()[0, head].numpy(), steps.weights[0, head].numpy(), np.nan)


def ticks(visitor, symbol: str, letter: str) -> list[str]:
    found = visitor.page.evaluate(TICKS, [symbol, letter])
    return [text for text, *_ in sorted(found, key=lambda tick: tick[1 if letter == "x" else 2])]


def pixel(visitor, x: float, y: float) -> tuple[int, ...]:
    shot = visitor.page.screenshot(clip={"x": x, "y": y, "width": 1, "height": 1})
    return Image.open(io.BytesIO(shot)).convert("RGB").getpixel((0, 0))


def test_a_cold_link_opens_the_view_as_it_was(visit):
    state = {"text": "a b c d e", "dm": 16, "heads": 2, "head": 1, "wq": "random", "temp": 0.5, "window": 1}
    visitor = visit("/build", **state, masks="causal.window")
    shown = visitor.maps()["A"]
    np.testing.assert_array_equal(shown, weights(**state, masks=["causal", "window"]))
    assert visitor.page.locator(".st-key-text textarea").input_value() == "a b c d e"
    assert visitor.page.locator(".st-key-dm input[type=range]").input_value() == "16"
    assert "Build" in visitor.page.title()


def test_settings_stay_over_a_page_switch(visit):
    visitor = visit("/build", temp=2.5)
    visitor.choose("Heads", "8").until_query("heads=8")
    shown = visitor.maps()["A"]
    menu = visitor.page.locator(".st-key-menu")
    menu.get_by_text("Start").click()
    visitor.until("() => !location.pathname.includes('build')")
    menu.get_by_text("Build").click()
    visitor.until("() => location.pathname.includes('build') && document.querySelector('.st-key-toolbar')")
    visitor.until_query("heads=8").until_query("temp=2.5")
    np.testing.assert_array_equal(visitor.maps()["A"], shown)
    np.testing.assert_array_equal(shown, weights(heads=8, temp=2.5))


def test_a_click_shows_the_arithmetic_of_that_cell(visit):
    visitor = visit("/build", wq="random", wk="random")
    built = compute(settings(wq="random", wk="random"))
    for symbol, stage, row, column in (("A", "weights", 5, 2), ("Q", "query", 3, 6), ("C", "context", 9, 1)):
        visitor.click_cell(symbol, row, column).until_query(f"row={row}").until_query(f"col={column}")
        cell = cell_arithmetic(built.steps, built.projections, stage, head=0, row=row, column=column)
        number = f"{cell.value:.9g}".replace("-", "−")
        visitor.page.get_by_text(f"The tensor holds {number}").wait_for()
        largest = f"{cell.terms[0].product:.4g}".replace("-", "−")
        assert largest in " ".join(visitor.page.locator("table.sums").all_inner_texts())


def test_a_click_turns_a_cell_of_the_mask(visit):
    state = {"text": "a b c d e", "wq": "random"}
    visitor = visit("/build", **state, masks="edited", click="turn")
    before = visitor.maps()["A"]
    assert np.isfinite(before).all()
    visitor.click_cell("A", 1, 3).until_query("cells=")
    visitor.until("() => document.querySelector('.js-plotly-plot')._fullData.some(t => t.type === 'heatmap' && "
                  "[...t.z].some(row => [...row].some(v => v === null || v !== v)))")  # fmt: skip
    after = visitor.maps()["A"]
    np.testing.assert_array_equal(after, weights(**state, masks=["edited"], cells="1,3"))
    assert np.isnan(after[1, 3]) and np.isfinite(after).sum() == 24
    packed = re.search(r"cells=([^&]+)", visitor.url).group(1)
    assert unpack_cells(packed) == "1,3"
    red, green, blue = pixel(visitor, *visitor.place("A", 1, 3))
    assert max(red, green, blue) - min(red, green, blue) < 6 and 200 < red < 245
    visitor.click_cell("A", 1, 3).until("() => !location.search.includes('cells=')")
    np.testing.assert_array_equal(visitor.maps()["A"], before)


def test_dark_theme(visit):
    visitor = visit("/build", {"color_scheme": "dark"})
    dark = palette("dark")
    visitor.until(
        "colour => document.querySelector('.js-plotly-plot')._fullData.some(t => t.type === 'heatmap' && "
        "t.colorscale[0][1] === colour)",
        dark.weights[0][1],
    )
    background = visitor.page.evaluate(
        "getComputedStyle(document.querySelector('[data-testid=\"stApp\"]')).backgroundColor"
    )
    assert background == "rgb(18, 20, 26)" and dark.page == "#12141A"
    text = visitor.page.evaluate("getComputedStyle(document.querySelector('.js-plotly-plot g[class*=tick] text')).fill")
    assert min(int(n) for n in re.findall(r"\d+", text)[:3]) > 120, "labels must be light on the dark page"


def test_on_a_phone(visit, phone):
    visitor = visit("/build", phone)
    page = visitor.page
    assert page.evaluate(
        "[document.documentElement, document.querySelector('[data-testid=\"stMain\"]')]"
        ".every(e => e.scrollWidth <= innerWidth + 1)"
    )
    axes = page.evaluate(
        """() => { const layout = document.querySelector('.js-plotly-plot')._fullLayout;
        return Object.keys(layout).filter(k => /^yaxis\\d*$/.test(k)).map(k => {
            const y = layout[k], x = layout[k.replace('y', 'x')];
            return [y._offset, y._length, x._offset, x._length]; }); }"""
    )
    assert len(axes) == 7
    for (top, height, _left, _width), (below, *_rest) in itertools.pairwise(axes):
        assert below >= top + height, "panels stand one below the other"
    assert all(width > 200 and left + width <= 390 for _top, _height, left, width in axes)
    inside = """() => { const box = document.querySelector('.st-key-dm')?.getBoundingClientRect();
        return !!box && box.width > 0 && box.left >= 0 && box.right <= innerWidth; }"""
    assert not page.evaluate(inside), "the sidebar is folded"
    page.get_by_test_id("stExpandSidebarButton").click()
    page.wait_for_function(inside, polling=50)
    slider = page.locator(".st-key-dm input[type=range]")
    slider.press("ArrowRight")
    visitor.until_query("dm=34")


@pytest.mark.parametrize(
    "text, count",
    [("<s> the cat sat on the mat because the cat was tired </s>", 13), ("In 2020 2021 10 10 12 2020 1e3", 8)],
)
def test_every_token_has_its_own_label_in_order(visit, text, count):
    """Case 01."""
    visitor = visit("/build", text=text)
    assert ticks(visitor, "S", "x") == text.split()
    assert ticks(visitor, "S", "y") == text.split()
    assert ticks(visitor, "A", "x") == text.split()
    assert visitor.maps()["A"].shape == (count, count)


def test_the_first_query_stands_at_the_top(visit):
    """Case 13, in pixels."""
    visitor = visit("/build", text="a b c d", wq="zero", wk="zero")
    np.testing.assert_array_equal(np.nan_to_num(visitor.maps()["A"][[0, 3]]), [[1, 0, 0, 0], [0.25] * 4])
    assert ticks(visitor, "S", "y") == ["a", "b", "c", "d"]
    assert visitor.place("A", 0, 0)[1] < visitor.place("A", 3, 0)[1]
    # Beside the printed number: the first cell has the ink of 1, the upper right corner is masked grey.
    x, y = visitor.place("A", 0, 0)
    dark = pixel(visitor, x - 10, y - 9)
    grey = pixel(visitor, *visitor.place("A", 0, 3))
    light = pixel(visitor, *(n - 9 for n in visitor.place("A", 3, 0)))
    assert sum(dark) < sum(light) < 3 * 255
    assert max(grey) - min(grey) < 6 and 200 < grey[0] < 245


def test_hover_tells_place_tokens_and_exact_number(visit):
    visitor = visit("/build", wq="random")
    want = weights(wq="random")
    tokens = SETTINGS["text"].default.split()
    for row, column in ((5, 2), (9, 9), (2, 6)):
        x, y = visitor.place("A", row, column)
        visitor.page.mouse.move(x + 1, y + 1)
        visitor.page.mouse.move(x, y)
        label = visitor.page.locator(".hoverlayer .hovertext", has_text=f"query {row} · {tokens[row]}")
        label.filter(has_text=f"key {column} · {tokens[column]}").wait_for()
        told = label.text_content()
        assert "masked" in told if column > row else str(want[row, column]) in told


def test_a_click_on_a_tile_opens_the_head(visit):
    visitor = visit("/build", view="all", heads=8)
    x, y = visitor.page.evaluate(
        """() => { const plot = document.querySelector('.js-plotly-plot'), {xaxis: x, yaxis: y} = plot._fullLayout;
        const box = plot.querySelector('.main-svg').getBoundingClientRect();
        return [box.left + x._offset + x.l2p(1), box.top + y._offset + y.l2p(1)]; }"""
    )
    visitor.page.mouse.move(x - 1, y - 1)
    visitor.page.mouse.click(x, y)
    visitor.until_query("head=5").until("() => !location.search.includes('view=')")
    np.testing.assert_array_equal(visitor.maps()["A"], weights(5, heads=8))


def test_undo_reset_and_copy_link(visit):
    visitor = visit("/build")
    page = visitor.page
    undo, reset = page.locator(".st-key-undo button"), page.locator(".st-key-reset button")
    assert undo.is_disabled()
    visitor.choose("Heads", "8").until_query("heads=8")
    visitor.choose("Preset", "BERT").until_query("preset=bert")
    page.get_by_role("button", name="Copy link").click()
    address = page.get_by_test_id("stCode").first.inner_text().strip()
    page.keyboard.press("Escape")
    assert address.startswith("http") and "/build?" in address and "heads=8" in address
    undo.click()
    visitor.until("() => !location.search.includes('preset')")
    assert "heads=8" in visitor.url
    reset.click()
    visitor.until("() => location.search === ''")
    undo.click()
    visitor.until_query("heads=8")
    shown = visitor.maps()["A"]
    np.testing.assert_array_equal(shown, weights(heads=8))


def test_two_visitors_do_not_mix(visit):
    first, second = visit("/build", text="a b c", heads=2), visit("/build", text="d e f g h", heads=8)
    for _ in range(2):
        slider = first.page.locator(".st-key-dm input[type=range]")
        slider.press("ArrowRight")
        second.choose("Heads", "4").until("() => !location.search.includes('heads=')")
        # A key pressed before the slider has moved would start from its old place.
        first.until_query("dm=34")
        slider.press("ArrowLeft")
        second.choose("Heads", "8").until_query("heads=8")
        first.until("() => !location.search.includes('dm=')")
    np.testing.assert_array_equal(first.maps()["A"], weights(text="a b c", heads=2))
    np.testing.assert_array_equal(second.maps()["A"], weights(text="d e f g h", heads=8))


def test_a_text_is_shown_to_the_letter(visit):
    """Case 26: no formula, emphasis, colour, emoji or remote picture; a request to its host would fail the test."""
    words = "price $x and y$ *now* :red[boo] :smile: # x ![i](http://e/x.png)".split()
    visitor = visit("/build", text=" ".join(words), masks="", row=2, col=5, table=1)
    # A label has room for 14 letters.
    assert ticks(visitor, "A", "x") == [word if len(word) <= 14 else word[:13] + "…" for word in words]
    page = visitor.page
    assert page.locator('[data-testid="stMain"] img[src*="http://e"]').count() == 0
    assert page.locator('[data-testid="stMain"] em', has_text="now").count() == 0
    assert page.locator("table.sums td", has_text=":red[boo]").count() >= 1
    assert page.locator('[data-testid="stMain"]', has_text="😄").count() == 0


def test_a_popover_opened_late_shows_what_is_set_and_changes_nothing(visit):
    """The browser draws what lies in a closed popover when it is opened: runs after its value was sent."""
    visitor = visit("/build", text="a b c")
    page = visitor.page
    visitor.choose("Heads", "8").until_query("heads=8")
    page.get_by_role("button", name="Weights and biases").click()
    for key, name in (("wq", "Identity"), ("wv", "Random (Xavier)"), ("bqkv", "Zero")):
        control = page.locator(f".st-key-{key}")
        control.wait_for()
        assert control.locator("input").input_value() == name or name in control.inner_text()
    page.keyboard.press("Escape")
    visitor.choose("Heads", "2").until_query("heads=2")
    assert not [key for key in ("wq", "wk", "wv", "wo", "bqkv", "bo", "dtype") if f"{key}=" in visitor.url]
    np.testing.assert_array_equal(visitor.maps()["A"], weights(text="a b c", heads=2))
