"""From key press to updated picture on the Build page, in Chromium: prints a table and checks the gates.

    python tests/benchmarks/bench_build.py [--samples 25] [--warm-up 5]

Timed is one step of the temperature slider: from the browser's key event to the first moment after the new picture is
painted (a chart: it holds other numbers than before, looked at in every frame; a text: its line has changed). Every variant is its
own browser page, and the variants take turns, one step each:

    one head            the shipped page: 16 tokens, d_model 64, 4 heads
    one head, text      the same page with show_figure replaced by one line of text, and nothing else
    all heads           the shipped page, all heads: 64 tokens, d_model 96, 12 heads
    all heads, text     the same with show_figure replaced
    text, collected     as "one head, text", but with Streamlit's collection after every run on and nothing frozen

Gates: one head <= 5 x its text; all heads <= 3 x its text; one head's text <= 1/3 of the collected one. KB is what the
server sends for one step.
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
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[2]
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--no-first-run"]  # fmt: skip

WORDS = "one two three four five six seven eight nine ten eleven twelve one two three four"
ONE = {"text": WORDS, "dm": 64, "heads": 4, "wq": "random", "wk": "random", "temp": 0.1}
ALL = {"input": "count", "n": 64, "dm": 96, "heads": 12, "wq": "random", "wk": "random", "view": "all", "temp": 0.1}
VARIANTS = {
    "one head": ("shipped", ONE),
    "one head, text": ("text", ONE),
    "all heads": ("shipped", ALL),
    "all heads, text": ("text", ALL),
    "text, collected": ("collected", ONE),
}
GATES = [
    ("one head", "one head, text", 5.0),
    ("all heads", "all heads, text", 3.0),
    ("one head, text", "text, collected", 1 / 3),
]

ARM = """() => {
    // What is shown, in a few numbers: cheap enough to be looked at in every frame.
    const signature = () => {
        const plot = document.querySelector('.js-plotly-plot');
        if (!plot) return document.querySelector('[data-testid="stMain"] [data-testid="stText"]')?.textContent;
        const data = plot._fullData || [];
        return data.map(t => t.type === 'image' ? t.source : t.type === 'heatmap' ? [...t.z[t.z.length - 1]].join() : '').join();
    };
    window.measured = new Promise((resolve, reject) => {
        const before = signature();
        let start = null;
        document.addEventListener('keydown', event => { start = event.timeStamp; }, {capture: true, once: true});
        const armed = performance.now();
        const look = () => {
            const now = signature();
            if (start !== null && now && now !== before) {
                // Drawn in this frame or before: the frame's paint is the end.
                const channel = new MessageChannel();
                channel.port1.onmessage = () => resolve(performance.now() - start);
                channel.port2.postMessage(0);
            } else if (performance.now() - armed > 60000) {
                reject(new Error(`nothing changed within a minute; key event ${start === null ? 'missing' : 'seen'}`));
            } else requestAnimationFrame(look);
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
    """Runs the app in this process; "text" and "collected" replace what the docstring of this file says."""
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    import streamlit as st
    from streamlit.web import bootstrap

    from pages.ui import layout

    if kind != "shipped":

        def one_line(figure, key, alt, on_click=None, **_rest) -> None:
            st.text(f"{alt} Temperature {st.session_state.get('temp')}")

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


def started(kind: str) -> tuple[subprocess.Popen, str]:
    """A server of a kind, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--serve", kind, "--port", str(port)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return server, f"http://127.0.0.1:{port}"


def await_health(url: str) -> None:
    """Waits until a server answers."""
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/_stcore/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"no server at {url}")


class Variant:
    """A page in the browser, standing at the temperature slider."""

    def __init__(self, browser, url: str, query: dict) -> None:
        self.page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        self.page.set_default_timeout(180_000)
        self.received = 0
        self.page.on("websocket", lambda socket: socket.on("framereceived", self._count))
        self.page.goto(f"{url}/build?{urlencode(query)}", wait_until="commit")
        self.page.wait_for_function(READY)
        self.slider = self.page.locator(".st-key-temp input[type=range]")
        if not self.slider.is_visible():
            self.page.locator('[data-testid="stExpander"] summary', has_text="Scale").click()
            self.slider.wait_for()
        self.times: list[float] = []
        self.sizes: list[int] = []

    def _count(self, frame) -> None:
        self.received += len(frame)

    def step(self) -> None:
        """One key press to the right: each picture is a new one, which Streamlit cannot have sent before."""
        self.page.wait_for_function(READY)
        self.slider.focus()
        self.page.evaluate(ARM)
        before = self.received
        self.page.keyboard.press("ArrowRight")
        self.times.append(self.page.evaluate("() => window.measured"))
        self.page.wait_for_function(READY)
        self.sizes.append(self.received - before)


def measure(samples: int, warm_up: int) -> dict[str, Variant]:
    """All variants in turn."""
    from playwright.sync_api import sync_playwright

    servers = {kind: started(kind) for kind in {kind for kind, _ in VARIANTS.values()}}
    try:
        for _, url in servers.values():
            await_health(url)
        with sync_playwright() as playwright:
            found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
            # A browser each: Chromium gives no frames to a window that others of it cover.
            browsers = {name: playwright.chromium.launch(executable_path=found, args=ARGS) for name in VARIANTS}
            variants = {
                name: Variant(browsers[name], servers[kind][1], query) for name, (kind, query) in VARIANTS.items()
            }
            for _ in range(warm_up + samples):
                for variant in variants.values():
                    variant.step()
            for variant in variants.values():
                variant.times, variant.sizes = variant.times[warm_up:], variant.sizes[warm_up:]
            for browser in browsers.values():
                browser.close()
    finally:
        for server, _ in servers.values():
            server.terminate()
        for server, _ in servers.values():
            server.wait(20)
    return variants


def main() -> int:
    """Measures, prints, and returns how many gates are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=25)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.samples + chosen.warm_up > 49:
        parser.error("the slider has 49 steps")
    if chosen.serve:
        serve(chosen.serve, chosen.port)
        return 0
    variants = measure(chosen.samples, chosen.warm_up)
    print(f"{'variant':18}{'p50 ms':>9}{'p10':>8}{'p90':>8}{'KB':>8}{'n':>5}")
    for name, variant in variants.items():
        times = sorted(variant.times)
        tenth = len(times) // 10
        print(
            f"{name:18}{median(times):9.1f}{times[tenth]:8.1f}{times[-1 - tenth]:8.1f}"
            f"{median(variant.sizes) / 1024:8.1f}{len(times):5}"
        )
    missed = 0
    for name, other, most in GATES:
        ratio = median(variants[name].times) / median(variants[other].times)
        missed += ratio > most
        print(f"{name} / {other}: {ratio:.2f} (at most {most:.2f}) {'missed' if ratio > most else 'ok'}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
