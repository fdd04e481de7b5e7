"""What the benchmarks of pages share: servers, pages in Chromium, a timed step, the table and its gates.

A step is timed from the browser's own event (a key, a press) to the first moment after the new picture is painted: the last of
the charts that plotly has drawn from other data than before, or, where show_figure is replaced by a line of text, the last new
line. Every variant is a browser page of its own, and the variants take turns, one step each.
"""

import argparse
import gc
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[2]
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--no-first-run"]  # fmt: skip

ARM = """event => {
    const numbers = values => [...(values || [])].reduce((a, v) => a + (Number(v) || 0), 0);
    const signature = plot => plot._fullData.map(t => t.type === 'image' ? t.source
        : t.type === 'heatmap' ? [...t.z].map(numbers).join() : t.type === 'bar' ? [...t.x].join() : '').join('|');
    const layers = '.heatmaplayer image, .imagelayer image, .barlayer path';
    const plots = () => [...document.querySelectorAll('.js-plotly-plot')];
    const drawn = () => plots().every(plot => plot._fullData && plot.querySelector(layers)) ? plots().map(signature).join() : null;
    const lines = () => [...document.querySelectorAll('[data-testid="stMain"] [data-testid="stText"]')]
        .map(text => text.textContent).join();
    const state = plots().length ? drawn : lines;
    const running = () => document.querySelector('[data-testid="stApp"]').getAttribute('data-test-script-state') !== 'notRunning';
    window.measured = new Promise((resolve, reject) => {
        let start = null, end = null, last = state();
        document.addEventListener(event, found => { start = found.timeStamp; }, {capture: true, once: true});
        const armed = performance.now();
        const look = () => {
            const now = start === null ? last : state();
            if (now !== null && now !== '' && now !== last) {
                // Drawn in this frame or before: the frame's paint is the end, unless another chart follows in this run.
                last = now;
                const channel = new MessageChannel();
                channel.port1.onmessage = () => { end = performance.now(); requestAnimationFrame(look); };
                channel.port2.postMessage(0);
            } else if (end !== null && !running()) resolve(end - start);
            else if (performance.now() - armed > 60000)
                reject(new Error(`nothing changed within a minute; event ${start === null ? 'missing' : 'seen'}`));
            else requestAnimationFrame(look);
        };
        requestAnimationFrame(look);
    });
}"""
READY = """() => {
    const app = document.querySelector('[data-testid="stApp"]');
    return app && app.getAttribute('data-test-script-state') === 'notRunning'
        && !document.querySelector('[data-stale="true"]')
        && !!document.querySelector('.js-plotly-plot .main-svg, [data-testid="stMain"] [data-testid="stText"]');
}"""


def serve(kind: str, port: int) -> None:
    """Runs the app in this process.

    Args:
        kind: "shipped"; "text": show_figure is replaced by one line of text, and nothing else; "collected": as "text", but with
            Streamlit's collection after every run on and nothing frozen.
        port: of the server.
    """
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    import streamlit as st
    from streamlit.web import bootstrap

    from pages.ui import layout

    if kind != "shipped":

        def one_line(figure, key, alt, on_click=None, **_rest) -> None:
            # Some alt texts are the same for two heads; the line must be another after every step.
            st.text(f"{alt} {[st.session_state.get(name) for name in ('temp', 'h', 'head_a')]}")

        layout.show_figure = one_line
    options = {
        "server_port": port,
        "server_headless": True,
        "server_address": "127.0.0.1",
        "server_fileWatcherType": "none",
    }
    if kind == "collected":
        layout.end_page = lambda: None
        gc.freeze = lambda: None
        options["runner_postScriptGC"] = True
    bootstrap.load_config_options(options)
    bootstrap.run(str(ROOT / "app.py"), False, [], options)


class Variant:
    """A page in the browser."""

    def __init__(self, browser, url: str, path: str, query: dict) -> None:
        self.page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        self.page.set_default_timeout(180_000)
        self.received = 0
        self.page.on("websocket", lambda socket: socket.on("framereceived", self._count))
        self.page.goto(f"{url}/{path}?{urlencode(query)}", wait_until="commit")
        self.page.wait_for_function(READY)
        self.steps = 0
        self.times: list[float] = []
        self.sizes: list[int] = []

    def _count(self, frame) -> None:
        self.received += len(frame)

    def step(self, event: str, prepare: Callable[["Variant"], Callable[[], None]]) -> None:
        """One timed step: ``prepare`` makes everything ready, and gives the act that sends the event."""
        self.page.bring_to_front()
        self.page.wait_for_function(READY)
        self.steps += 1
        act = prepare(self)
        self.page.evaluate(ARM, event)
        before = self.received
        act()
        self.times.append(self.page.evaluate("() => window.measured"))
        self.page.wait_for_function(READY)
        self.sizes.append(self.received - before)


def next_head(key: str, heads: int = 8) -> Callable[[Variant], Callable[[], None]]:
    """Steps in which the next head is chosen in the select box of a key."""

    def prepare(variant: Variant) -> Callable[[], None]:
        variant.page.locator(f".st-key-{key} [role=combobox], .st-key-{key} input").first.click()
        option = variant.page.get_by_role("option", name=f"Head {variant.steps % heads}", exact=True)
        option.wait_for()
        return option.click

    return prepare


def measure(
    path: str,
    variants: Mapping[str, tuple[str, dict]],
    event: str,
    prepare: Callable[[Variant], Callable[[], None]],
    samples: int,
    warm_up: int,
) -> dict[str, Variant]:
    """All variants in turn.

    Args:
        path: of the page.
        variants: name -> (kind of server, query).
        event: name of the browser's event from which a step is timed.
        prepare: as for Variant.step.
        samples, warm_up: steps that count, and steps before them.
    """
    from playwright.sync_api import sync_playwright

    servers = {kind: _started(kind) for kind in {kind for kind, _ in variants.values()}}
    try:
        for _, url in servers.values():
            _await_health(url)
        with sync_playwright() as playwright:
            found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
            # A browser each: Chromium gives no frames to a window that others of it cover.
            browsers = [playwright.chromium.launch(executable_path=found, args=ARGS) for _ in variants]
            pages = {
                name: Variant(browser, servers[kind][1], path, query)
                for browser, (name, (kind, query)) in zip(browsers, variants.items())
            }
            for _ in range(warm_up + samples):
                for page in pages.values():
                    page.step(event, prepare)
            for page in pages.values():
                page.times, page.sizes = page.times[warm_up:], page.sizes[warm_up:]
            for browser in browsers:
                browser.close()
    finally:
        for server, _ in servers.values():
            server.terminate()
        for server, _ in servers.values():
            server.wait(20)
    return pages


def report(pages: Mapping[str, Variant], gates: Sequence[tuple[str, str, float]]) -> int:
    """Prints a table and the gates (name, other, most): the median of name <= most x that of other. Gives how many are missed."""
    print(f"{'variant':18}{'p50 ms':>9}{'p10':>8}{'p90':>8}{'KB':>8}{'n':>5}")
    for name, page in pages.items():
        times = sorted(page.times)
        tenth = len(times) // 10
        print(
            f"{name:18}{median(times):9.1f}{times[tenth]:8.1f}{times[-1 - tenth]:8.1f}"
            f"{median(page.sizes) / 1024:8.1f}{len(times):5}"
        )
    missed = 0
    for name, other, most in gates:
        ratio = median(pages[name].times) / median(pages[other].times)
        missed += ratio > most
        print(f"{name} / {other}: {ratio:.2f} (at most {most:.2f}) {'missed' if ratio > most else 'ok'}")
    return missed


def arguments(doc: str, samples: int, warm_up: int) -> argparse.Namespace:
    """--samples and --warm-up of a benchmark."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=samples)
    parser.add_argument("--warm-up", type=int, default=warm_up)
    return parser.parse_args()


def _started(kind: str) -> tuple[subprocess.Popen, str]:
    """A server of a kind, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, kind, str(port)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return server, f"http://127.0.0.1:{port}"


def _await_health(url: str) -> None:
    """Waits until a server answers."""
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/_stcore/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"no server at {url}")


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
