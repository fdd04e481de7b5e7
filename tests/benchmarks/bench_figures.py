"""How long the figures take to build and to draw, and how large they are.

    python tests/benchmarks/bench_figures.py                       CPU time of building and of JSON
    python tests/benchmarks/bench_figures.py --browser CHROMIUM    also drawing, in that Chromium (CPU time of its page)

Drawing is a fresh Plotly.newPlot, as Streamlit does it whenever a figure with a click layer changes, beside an empty chart
of the same height; variants are interleaved.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from attention_core.figures.overview import overview_figure
from attention_core.figures.palette import palette
from attention_core.figures.panels import Panel, panels_figure
from attention_core.figures.tiles import tiles_figure

LIGHT = palette("light")
TOKENS = "<s> the cat sat on the mat because the cat was tired of it . </s>".split()


def softmax(scores: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    weights = np.exp(np.where(hidden, -np.inf, scores) - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def head(seed: int, tokens: int = 16, head_dim: int = 16) -> list[list[Panel]]:
    """Seven panels of one causal head: Q, K, V, scores, masked scores, weights, context."""
    query, key, value = np.random.default_rng(seed).normal(size=(3, tokens, head_dim)).astype(np.float32)
    labels = (TOKENS * (tokens // 16 + 1))[:tokens]
    scores, hidden = query @ key.T / np.sqrt(np.float32(head_dim)), ~np.tri(tokens, dtype=bool)
    weights = softmax(scores, hidden)

    def vectors(name, values, rows):
        shape = f"{tokens} × {head_dim}"
        return Panel(name, values, name, shape, labels, None, rows, "dimension", group="v" if rows == "key" else None)

    def square(name, values, **options):
        return Panel(name, values, name, f"{tokens} × {tokens}", labels, labels, "query", "key", **options)

    return [
        [vectors("query", query, "query"), vectors("key", key, "key"), vectors("value", value, "key"), None],
        [
            square("scores", scores, group="s"),
            square("masked", scores, group="s", hidden=hidden),
            square("weights", weights, scale="weights", hidden=hidden),
            vectors("context", weights @ value, "query"),
        ],
    ]


def heads(seed: int, count: int, tokens: int) -> np.ndarray:
    """Weights of heads with the usual patterns: near the diagonal, at the start, scattered."""
    rng, place = np.random.default_rng(seed), np.arange(tokens)
    scores = rng.normal(size=(count, tokens, tokens))
    scores[::3] += 9 * (place[:, None] - 1 == place)
    scores[1::3, :, 0] += 4
    return softmax(scores, ~np.tri(tokens, dtype=bool))


def cases() -> dict[str, list]:
    """Name of a case: figures to be made, by seed."""
    mark = {"scores": (9, 4), "masked": (9, 4), "weights": (9, 4), "query": (9, None), "key": (4, None)}
    hidden = ~np.tri(64, dtype=bool)
    grids = {tokens: [head(seed, tokens) for seed in range(2)] for tokens in (16, 32)}
    maps = [heads(seed, 12, 64) for seed in range(2)]
    model = [heads(seed, 192, 64) for seed in range(2)]
    large = [heads(seed, 1, 1024)[0] for seed in range(2)]

    def tiles(values, columns):
        names = [f"head {i}" for i in range(len(values))]
        return tiles_figure(values, tile_names=names, columns=columns, palette=LIGHT, hidden=hidden, selected=3)

    return {
        "one head, 16 tokens, 7 panels": [
            lambda g=g: panels_figure(g, palette=LIGHT, selected=mark) for g in grids[16]
        ],
        "one head, 32 tokens, 7 panels": [
            lambda g=g: panels_figure(g, palette=LIGHT, selected=mark) for g in grids[32]
        ],
        "12 heads, 64 tokens, tiles": [lambda m=m: tiles(m, 6) for m in maps],
        "192 heads, 64 tokens, tiles": [lambda m=m: tiles(m, 16) for m in model],
        "one map, 1024 tokens": [lambda m=m: overview_figure(m, palette=LIGHT) for m in large],
    }


def measure(make: list, rounds: int) -> tuple[float, float, int]:
    """Median CPU ms to build a figure, and to write it as JSON, bytes of the JSON."""
    build, write, size = [], [], 0
    for number in range(rounds):
        start = time.process_time()
        figure = make[number % 2]()
        middle = time.process_time()
        size = len(figure.to_json())
        build.append(middle - start)
        write.append(time.process_time() - middle)
    return statistics.median(build) * 1e3, statistics.median(write) * 1e3, size


def draw(figures: dict[str, list[str]], chromium: str, rounds: int) -> dict[str, float]:
    """Median CPU ms of the page for a fresh drawing of each figure, all interleaved."""
    import plotly
    from playwright.sync_api import sync_playwright

    script = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").as_uri()
    flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--allow-file-access-from-files"]
    clear = """() => {document.body.innerHTML = ''; window.d = document.createElement('div'); document.body.appendChild(d);
        return new Promise(r => requestAnimationFrame(() => setTimeout(r, 0)))}"""
    plot = """async text => {const f = JSON.parse(text);
        await Plotly.newPlot(d, f.data, f.layout, {displayModeBar: false, responsive: true});
        await new Promise(r => requestAnimationFrame(() => setTimeout(r, 0)))}"""
    spent = {name: [] for name in figures}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        page_file = Path(folder, "page.html")
        page_file.write_text(
            f"<!doctype html><body style='font-family:sans-serif'><script src='{script}'></script></body>"
        )
        browser = play.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.goto(page_file.as_uri())
        tools = page.context.new_cdp_session(page)
        tools.send("Performance.enable", {"timeDomain": "threadTicks"})

        def cpu() -> float:
            metrics = tools.send("Performance.getMetrics")["metrics"]
            return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration") * 1e3

        for number in range(rounds + 2):
            for name, texts in figures.items():
                page.evaluate(clear)
                start = cpu()
                page.evaluate(plot, texts[number % 2])
                if number > 1:
                    spent[name].append(cpu() - start)
                page.evaluate("Plotly.purge(d)")
        browser.close()
    return {name: statistics.median(times) for name, times in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browser", help="the Chromium to draw in")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    made = cases()
    print(f"{'figure':34}{'build ms':>10}{'JSON ms':>10}{'KB':>8}")
    for name, make in made.items():
        build, write, size = measure(make, options.rounds)
        print(f"{name:34}{build:10.1f}{write:10.1f}{size / 1e3:8.0f}")
    if options.browser:
        texts = {name: [one().to_json() for one in make] for name, make in made.items()}
        texts["empty chart"] = [json.dumps({"data": [], "layout": {"height": 800}})] * 2
        print(f"\n{'figure':34}{'drawing, CPU ms':>16}")
        for name, spent in draw(texts, options.browser, options.rounds).items():
            print(f"{name:34}{spent:16.1f}")


if __name__ == "__main__":
    main()
