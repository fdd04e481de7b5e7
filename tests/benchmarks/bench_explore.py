"""From choosing a head to its picture on the Explore page, in Chromium, and what the overview sends: a table and its gates.

    python tests/benchmarks/bench_explore.py [--samples 20] [--warm-up 4]

Timed is the choice of another head in the select box: from pressing the option (pointerdown) to the first moment after
the new picture is painted (a chart: plotly says that it has drawn other data than before; a text: its line has changed).
Embedded model, 32 tokens, cross-attention. The variants are browser pages of their own and take turns, one choice each:

    one head            the shipped page: every stage of the head in one figure
    one head, text      the same page with show_figure replaced by one line of text, and nothing else
    all heads           the shipped page: the overview of all heads, and the weights of one
    all heads, text     the same with show_figure replaced

Gates: each picture <= 5 x its text; the overview's JSON <= 1/10 of what one chart a head takes, for 24 heads of the embedded
model and for 72 heads of a random model; a choice of head sends less than the overview alone. KB is what the server sends for
one choice.
"""

import argparse
import shutil
import sys
from statistics import median
from urllib.parse import urlencode

import bench_build as driver

SOURCE = (
    "The old king gave his youngest son a golden ring, and the ring was lost in the sea, "
    "and nobody found it again for a long year."
)
TOKENS = 32
QUERY = {"source": SOURCE, "kind": "cross", "layer": 2, "h": 0}
VARIANTS = {
    "one head": ("shipped", QUERY | {"show": "one"}),
    "one head, text": ("text", QUERY | {"show": "one"}),
    "all heads": ("shipped", QUERY | {"show": "all"}),
    "all heads, text": ("text", QUERY | {"show": "all"}),
}
GATES = [("one head", "one head, text", 5.0), ("all heads", "all heads, text", 5.0)]

ARM = """() => {
    const signature = plot => plot._fullData.map(t => t.type === 'image' ? t.source
        : t.type === 'heatmap' ? [...t.z].map(row => [...row].reduce((a, v) => a + (v || 0), 0)).join() : '').join('|');
    const painted = done => requestAnimationFrame(() => {
        const channel = new MessageChannel();
        channel.port1.onmessage = () => done(performance.now());
        channel.port2.postMessage(0);
    });
    window.measured = new Promise(resolve => {
        let start = null;
        document.addEventListener('pointerdown', event => { start = event.timeStamp; }, {capture: true, once: true});
        const finish = () => painted(end => resolve(end - start));
        // The chosen head's picture is the last one of the page. Streamlit makes a new element for a chart with other data.
        const drawn = () => {
            const plot = [...document.querySelectorAll('.js-plotly-plot')].pop();
            return plot && plot._fullData && plot.querySelector('.heatmaplayer image') ? signature(plot) : null;
        };
        const lines = () => [...document.querySelectorAll('[data-testid="stMain"] [data-testid="stText"]')]
            .map(text => text.textContent).join();
        const state = document.querySelector('.js-plotly-plot') ? drawn : lines;
        const before = state();
        const look = () => {
            const now = start === null ? before : state();
            if (now === null || now === before) requestAnimationFrame(look);
            else finish();
        };
        look();
    });
}"""


class Variant:
    """A page in the browser, in which heads are chosen in turn."""

    def __init__(self, browser, url: str, query: dict) -> None:
        self.page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        self.page.set_default_timeout(180_000)
        self.received = 0
        self.page.on("websocket", lambda socket: socket.on("framereceived", self._count))
        self.page.goto(f"{url}/explore?{urlencode(query)}", wait_until="commit")
        self.page.wait_for_function(driver.READY)
        self.head = 0
        self.times: list[float] = []
        self.sizes: list[int] = []

    def _count(self, frame) -> None:
        self.received += len(frame)

    def step(self) -> None:
        """One choice: the eight heads in turn."""
        self.page.bring_to_front()
        self.page.wait_for_function(driver.READY)
        self.head = (self.head + 1) % 8
        self.page.locator(".st-key-h [role=combobox], .st-key-h input").first.click()
        option = self.page.get_by_role("option", name=f"Head {self.head}", exact=True)
        option.wait_for()
        self.page.evaluate(ARM)
        before = self.received
        option.click()
        self.times.append(self.page.evaluate("() => window.measured"))
        self.page.wait_for_function(driver.READY)
        self.sizes.append(self.received - before)


def measure(samples: int, warm_up: int) -> dict[str, Variant]:
    """All variants in turn."""
    from playwright.sync_api import sync_playwright

    servers = {kind: driver.started(kind) for kind in {kind for kind, _ in VARIANTS.values()}}
    try:
        for _, url in servers.values():
            driver.await_health(url)
        with sync_playwright() as playwright:
            found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
            browser = playwright.chromium.launch(executable_path=found, args=driver.ARGS)
            variants = {name: Variant(browser, servers[kind][1], query) for name, (kind, query) in VARIANTS.items()}
            for _ in range(warm_up + samples):
                for variant in variants.values():
                    variant.step()
            for variant in variants.values():
                variant.times, variant.sizes = variant.times[warm_up:], variant.sizes[warm_up:]
            browser.close()
    finally:
        for server, _ in servers.values():
            server.terminate()
        for server, _ in servers.values():
            server.wait(20)
    return variants


def payloads() -> dict[str, tuple[int, int]]:
    """What the overview sends, and what one chart a head would: bytes of JSON, by model."""
    sys.path.insert(0, str(driver.ROOT))
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    from attention_core import load_model, trace
    from attention_core.figures.palette import palette
    from attention_core.figures.panels import Panel, panels_figure
    from attention_core.figures.tiles import tiles_figure

    torch.manual_seed(0)
    config = BartConfig(vocab_size=99, d_model=96, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
                        decoder_attention_heads=12, encoder_ffn_dim=32, decoder_ffn_dim=32, init_std=0.3)  # fmt: skip
    random = load_model(BartForConditionalGeneration(config).eval(), device="cpu")
    runs = {
        "embedded": trace(load_model("embedded", device="cpu"), SOURCE),
        "random, 6 x 12": trace(random, [0, *range(5, 5 + TOKENS - 2), 2]),
    }
    colours, found = palette("light"), {}
    for name, run in runs.items():
        maps = run.overview("cross").weights
        layers, heads, rows, columns = maps.shape
        assert (rows, columns) == (TOKENS, TOKENS), (rows, columns)
        tiles = maps.reshape(layers * heads, rows, columns)
        names = [f"layer {n // heads}, head {n % heads}" for n in range(len(tiles))]
        whole = tiles_figure(tiles, tile_names=names, columns=heads, palette=colours, width=600)
        labels = {"row_labels": run.query_tokens("cross"), "column_labels": run.key_tokens("cross")}
        charts = [
            panels_figure([[Panel(key="weights", values=one, title=title, scale="weights", **labels)]], palette=colours)
            for one, title in zip(tiles, names)
        ]
        found[name] = len(whole.to_json()), sum(len(chart.to_json()) for chart in charts)
    return found


def main() -> int:
    """Measures, prints, and returns how many gates are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=4)
    chosen = parser.parse_args()
    missed, overview = 0, 0
    for name, (whole, charts) in payloads().items():
        overview = overview or whole
        missed += whole > charts / 10
        print(f"overview, {name}: {whole / 1024:.1f} KB against {charts / 1024:.1f} KB, 1/{charts / whole:.0f}")
    variants = measure(chosen.samples, chosen.warm_up)
    print(f"{'variant':18}{'p50 ms':>9}{'p10':>8}{'p90':>8}{'KB':>8}{'n':>5}")
    for name, variant in variants.items():
        times = sorted(variant.times)
        tenth = len(times) // 10
        print(
            f"{name:18}{median(times):9.1f}{times[tenth]:8.1f}{times[-1 - tenth]:8.1f}"
            f"{median(variant.sizes) / 1024:8.1f}{len(times):5}"
        )
    for name, other, most in GATES:
        ratio = median(variants[name].times) / median(variants[other].times)
        missed += ratio > most
        print(f"{name} / {other}: {ratio:.2f} (at most {most:.2f}) {'missed' if ratio > most else 'ok'}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
