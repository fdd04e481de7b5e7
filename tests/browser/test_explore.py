"""The Explore page in Chromium: clicks, paint, a written story, downloads, two visitors at once, what is sent."""

import csv
import io
import json
import re

import numpy as np
import pytest

from attention_core import load_model, trace
from attention_core.extract.inputs import Generation
from pages.ui.explore_settings import SETTINGS

OVERVIEW = ".st-key-explore_overview .js-plotly-plot, .st-key-overview .js-plotly-plot"
TEXTS = ("The wolf ran home.", "The old queen sat by the window and looked into the garden for her lost daughter.")


@pytest.fixture(scope="module")
def model():
    return load_model("embedded", device="cpu")


def weights(model, source: str, kind: str, layer: int, head: int, **how) -> np.ndarray:
    return trace(model, source, **how).steps(kind, layer, [head]).weights[0, 0].numpy()


def shown_map(visitor) -> np.ndarray:
    """The cells of the page's last chart."""
    read = visitor.page.evaluate(
        """() => {
            const plots = [...document.querySelectorAll('.js-plotly-plot')];
            const trace = plots[plots.length - 1]._fullData.find(t => t.type === 'heatmap');
            return [...trace.z].map(row => [...row].map(v => v === v ? v : null));
        }"""
    )
    return np.array(read, dtype=float)


def title(visitor) -> str:
    """The title over the page's last chart."""
    return visitor.page.evaluate(
        """() => {
            const plots = [...document.querySelectorAll('.js-plotly-plot')];
            return plots[plots.length - 1].layout.annotations.map(a => a.text).find(t => t.includes('<b '));
        }"""
    )


def test_a_click_on_the_overview_opens_the_head(visit, model):
    visitor = visit("/explore")
    x, y = visitor.page.evaluate(
        """query => {
            const plot = document.querySelector(query);
            const box = plot.querySelector('.main-svg').getBoundingClientRect(), full = plot._fullLayout;
            return [box.left + full.xaxis._offset + full.xaxis.l2p(3), box.top + full.yaxis._offset + full.yaxis.l2p(1)];
        }""",
        OVERVIEW,
    )
    visitor.page.mouse.move(x - 2, y - 2)
    visitor.page.mouse.click(x, y)
    visitor.until_query("layer=1").until_query("h=3")
    assert "layer 1, head 3" in title(visitor)
    source = "The old king gave his youngest son a golden ring, and the ring was lost in the sea."
    assert np.abs(shown_map(visitor) - weights(model, source, "cross", 1, 3)).max() < 1e-5
    frame = visitor.page.evaluate(
        """query => {
            const chart = document.querySelector(query).closest('[data-testid="stPlotlyChart"]');
            const style = getComputedStyle(chart, '::after'), box = chart.getBoundingClientRect();
            return ['left', 'top', 'width', 'height'].map(name => parseFloat(style[name]))
                .map((value, n) => value + [box.left, box.top, 0, 0][n]);
        }""",
        OVERVIEW,
    )
    assert frame[0] < x < frame[0] + frame[2] and frame[1] < y < frame[1] + frame[3], "the frame stands around the tile"


def test_tokens_are_painted_with_their_weights(visit, model):
    source = TEXTS[0]
    visitor = open_painted(visit, source)
    visitor.page.get_by_test_id("stButtonGroup").last.get_by_role("button", name="wolf").click()
    visitor.page.wait_for_function("() => location.search.includes('chosen=2')")
    values = weights(model, source, "encoder", 1, 2)
    visitor.page.wait_for_function("() => document.querySelectorAll('.painted span[title*=\": \"]').length > 0")
    titles = visitor.page.eval_on_selector_all(".painted span", "found => found.map(s => s.title)")
    painted = [float(text.rsplit(": ", 1)[1]) for text in titles]
    assert len(painted) == len(values)
    assert np.abs(np.array(painted) - values[2]).max() < 1e-6
    colours = visitor.page.eval_on_selector_all(".painted span", "found => found.map(s => s.style.background)")
    assert len(set(colours)) > 1


def open_painted(visit, source: str):
    """The painted view has no chart to wait for: the first view is opened, then its view is chosen."""
    visitor = visit("/explore", kind="encoder", layer=1, h=2, source=source, chosen="")
    visitor.page.get_by_role("radio", name="On the text").or_(
        visitor.page.get_by_test_id("stButtonGroup").first.get_by_role("button", name="On the text")
    ).first.click()
    visitor.page.wait_for_selector(".painted")
    return visitor


def test_the_model_completes_a_masked_story(visit, model):
    visitor = visit(
        "/explore", mode="greedy", source="The king had three sons, and the youngest<mask> the most beautiful of all."
    )
    run = trace(
        model, "The king had three sons, and the youngest<mask> the most beautiful of all.", generate=Generation()
    )
    written = visitor.page.inner_text("body")
    assert run.generated_text[0].strip() in re.sub(r"\s+", " ", written)
    wanted = run.steps("cross", 2, [SETTINGS["h"].default]).weights[0, 0].numpy()
    assert np.abs(shown_map(visitor) - wanted).max() < 1e-5


def test_downloads_open_and_hold_the_view(visit, model):
    source = '=1+1 "queen"'
    visitor = visit("/explore", source=source, kind="encoder", layer=0, h=1)
    wanted = weights(model, source, "encoder", 0, 1)

    def downloaded(name: str) -> bytes:
        with visitor.page.expect_download() as caught:
            visitor.page.get_by_role("button", name=name).click()
        return caught.value.path().read_bytes()

    visitor.page.get_by_role("button", name="Export").click()
    with np.load(io.BytesIO(downloaded("This head"))) as file:
        assert np.abs(file["weights"][0, 0] - wanted).max() < 1e-6
        assert json.loads(str(file["settings"]))["source"] == source
        assert file["query_tokens"].shape == (len(wanted),)
    with np.load(io.BytesIO(downloaded("All heads of this layer"))) as file:
        assert file["weights"].shape[1] == 8
        assert np.abs(file["weights"][0, 1] - wanted).max() < 1e-6
    rows = list(csv.reader(io.StringIO(downloaded("The table").decode("utf-8-sig"))))
    assert np.abs(np.array([row[2:] for row in rows[1:]], dtype=float) - wanted).max() < 1e-6
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row)
    visitor.page.keyboard.press("Escape")
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<svg")):
        if kind == "svg":
            visitor.page.get_by_role("button", name="Export").click()
            visitor.page.get_by_text("SVG", exact=True).click()
            visitor.until_query("picture=svg")
            visitor.page.keyboard.press("Escape")
        chart = visitor.page.locator(".js-plotly-plot").last
        chart.hover()
        with visitor.page.expect_download() as caught:
            chart.locator(".modebar-btn").first.click()
        assert caught.value.path().read_bytes()[:200].lstrip().startswith(start)


def test_two_visitors_at_the_same_moment_each_see_their_own_text(visit, model):
    visitors = [visit("/explore", kind="encoder", layer=1, h=1, source="A.") for _ in TEXTS]
    for turn in range(3):
        texts = [f"{text} {turn}" for text in TEXTS]
        for visitor, text in zip(visitors, texts):
            visitor.page.get_by_role("textbox", name="Source", exact=True).fill(text)
        for visitor in visitors:
            visitor.page.keyboard.press("Control+Enter")
        for visitor, text in zip(visitors, texts):
            visitor.until_query(f"source={text}".replace(" ", "+"))
            wanted = weights(model, text, "encoder", 1, 1)
            assert np.abs(shown_map(visitor) - wanted).max() < 1e-5, (turn, text)


def test_another_head_sends_no_overview(visit):
    visitor = visit("/explore")
    sent: list[int] = []
    visitor.page.on("websocket", lambda socket: socket.on("framereceived", lambda data: sent.append(len(data))))
    visitor.page.reload()
    visitor.settle()
    sent.clear()
    visitor.page.get_by_role("combobox", name=re.compile("Head")).first.click()
    visitor.page.get_by_role("option", name="Head 2", exact=True).click()
    visitor.until_query("h=2")
    picture = visitor.page.evaluate(
        "query => document.querySelector(query)._fullData.find(t => t.type === 'image').source.length", OVERVIEW
    )
    assert sent and picture > 2000
    assert max(sent) < 60_000
