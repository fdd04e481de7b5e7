"""One running app and one Chromium for all browser tests; each test is a new visitor."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--no-first-run"]  # fmt: skip
PHONE = (
    "Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Mobile Safari/537.36"
)
WAIT = 120_000
# Milliseconds between looks: not every frame, since Chromium gives no frames to a window that another one covers.
POLL = 50
# Streamlit's own front end looks these up when it starts, whatever the app does; they fail behind a closed door.
STREAMLITS_HOSTS = {"webhooks.fivetran.com", "data.streamlit.io", "checkip.amazonaws.com"}
# On a cold link to a page, its front end first tries whether the app lies under the page's own path.
STREAMLITS_TRIES = re.compile(r"/\w+/_stcore/(host-config|health)$")

# The page has no run going and every chart of it is drawn.
SETTLED = """() => {
    const app = document.querySelector('[data-testid="stApp"]');
    if (!app || app.getAttribute('data-test-script-state') !== 'notRunning') return false;
    if (document.querySelector('[data-stale="true"]')) return false;
    const charts = [...document.querySelectorAll('[data-testid="stPlotlyChart"]')];
    return charts.length > 0 && charts.every(c => c.querySelector('.js-plotly-plot .main-svg'));
}"""
READ = """() => [...document.querySelectorAll('.js-plotly-plot')].map(plot => ({
    traces: plot._fullData.map(t => ({
        type: t.type, xaxis: t.xaxis, yaxis: t.yaxis,
        z: t.type !== 'heatmap' ? null : [...t.z].map(row => [...row].map(v => v === v && v !== null ? v : null)),
        colors: t.type === 'heatmap' ? t.colorscale.map(stop => stop[1]) : null,
    })),
    titles: plot.layout.annotations ? plot.layout.annotations.map(a => a.text).filter(t => t.includes('<b ')) : [],
    background: plot._fullLayout.plot_bgcolor,
}))"""


def browser_is_required() -> bool:
    return os.environ.get("REQUIRE_BROWSER") == "1"


@pytest.fixture(scope="session")
def app_url():
    """Address of the app, started as a person starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.headless=true", f"--server.port={port}",
               "--server.address=127.0.0.1", "--server.fileWatcherType=none"]  # fmt: skip
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                urllib.request.urlopen(f"{url}/_stcore/health", timeout=5).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    pytest.fail("the app did not start")
                time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(20)


@pytest.fixture(scope="session")
def chromium():
    """One browser. Where there is none the tests are skipped, or fail with REQUIRE_BROWSER=1."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        if browser_is_required():
            raise
        pytest.skip("playwright is not installed")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, args=ARGS)
        except Error as error:
            if browser_is_required():
                raise
            pytest.skip(f"no Chromium to test with: {error.message.splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture
def phone() -> dict:
    """A phone, as a browser context."""
    return {"viewport": {"width": 390, "height": 844}, "user_agent": PHONE, "is_mobile": True, "has_touch": True}


@pytest.fixture
def visit(app_url, chromium):
    """Opens a page as a new visitor: ``visit("/build", dm=16)``; at the end nothing may have gone wrong in any of them."""
    contexts, wrong = [], []

    def go(path: str = "/build", context: dict | None = None, **query) -> "Visitor":
        options = {"viewport": {"width": 1400, "height": 1000}, "color_scheme": "light"} | (context or {})
        contexts.append(chromium.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(WAIT)
        watch(page, app_url, wrong)
        page.goto(f"{app_url}{path}" + (f"?{urlencode(query)}" if query else ""), wait_until="commit")
        return Visitor(page).settle()

    yield go
    for context in contexts:
        context.close()
    assert not wrong, wrong


def watch(page, app_url: str, wrong: list[str]) -> None:
    """Notes console errors of ours, and requests to anywhere but the app."""
    ours = urlsplit(app_url).netloc

    def outside(url: str) -> bool:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != ours

    def on_request(request) -> None:
        if outside(request.url) and urlsplit(request.url).hostname not in STREAMLITS_HOSTS:
            wrong.append(f"asked outside: {request.url}")

    def on_console(message) -> None:
        source = message.location.get("url", "")
        parts = urlsplit(source)
        theirs = parts.hostname in STREAMLITS_HOSTS or (
            not outside(source) and STREAMLITS_TRIES.search(parts.path) and "404" in message.text
        )
        if message.type == "error" and not theirs and not (outside(source) and "Failed to load" in message.text):
            # A failed look-up of any other host is noted as a request already.
            wrong.append(f"console: {message.text} ({source})")

    page.on("request", on_request)
    page.on("console", on_console)
    page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))


class Visitor:
    """A page in the browser, and what stands in it."""

    def __init__(self, page) -> None:
        self.page = page

    def settle(self) -> "Visitor":
        """Waits until no run is going and everything is drawn."""
        self.page.wait_for_function(SETTLED, polling=POLL)
        assert self.page.locator('[data-testid="stException"]').count() == 0, self.page.inner_text("body")[-800:]
        return self

    def until(self, condition: str, argument=None) -> "Visitor":
        """Waits for a condition in the page, then until everything stands."""
        self.page.wait_for_function(condition, arg=argument, polling=POLL)
        return self.settle()

    def until_query(self, part: str) -> "Visitor":
        return self.until("part => decodeURIComponent(location.search).includes(part)", part)

    @property
    def url(self) -> str:
        return self.page.url

    def maps(self, chart: int = 0) -> dict[str, np.ndarray]:
        """The heatmaps of a chart by the symbol of their title: cells, NaN where there is a gap."""
        read = self.page.evaluate(READ)[chart]
        names = [re.sub(r"<[^>]+>", "", title).replace("\xa0", " ").split()[0] for title in read["titles"]]
        cells = [np.array(trace["z"], dtype=float) for trace in read["traces"] if trace["type"] == "heatmap"]
        return dict(zip(names, cells, strict=True))

    def place(self, symbol: str, row: int, column: int) -> tuple[float, float]:
        """Where a cell of a panel lies on the screen, in px; scrolls to it."""
        where = self.page.evaluate(
            """([symbol, row, column]) => {
                const plot = document.querySelector('.js-plotly-plot');
                const maps = plot._fullData.filter(t => t.type === 'heatmap');
                const titles = plot.layout.annotations.map(a => a.text).filter(t => t.includes('<b '));
                const plain = t => t.replace(/<[^>]+>/g, '').replace(/&nbsp;/g, ' ').trim().split(/\\s+/)[0];
                const trace = maps[titles.findIndex(t => plain(t) === symbol)];
                const axis = (letter, id) => plot._fullLayout[id.replace(letter, letter + 'axis')];
                const x = axis('x', trace.xaxis), y = axis('y', trace.yaxis);
                const box = () => plot.querySelector('.main-svg').getBoundingClientRect();
                const at = () => [box().left + x._offset + x.l2p(column), box().top + y._offset + y.l2p(row)];
                if (at()[1] < 60 || at()[1] > innerHeight - 20) {
                    const inner = document.querySelector('[data-testid="stMain"]');
                    inner.scrollBy(0, at()[1] - innerHeight / 2);
                }
                return at();
            }""",
            [symbol, row, column],
        )
        return tuple(where)

    def click_cell(self, symbol: str, row: int, column: int) -> "Visitor":
        x, y = self.place(symbol, row, column)
        self.page.mouse.move(x - 1, y - 1)
        self.page.mouse.click(x, y)
        return self

    def choose(self, label: str, option: str) -> "Visitor":
        """Opens a select box by its label and takes an option."""
        self.page.get_by_role("combobox", name=re.compile(re.escape(label))).first.click()
        self.page.get_by_role("option", name=option, exact=True).click()
        return self
