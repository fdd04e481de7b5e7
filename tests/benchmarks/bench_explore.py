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
model and for 72 heads of a random model. KB is what the server sends for one choice.
"""

import sys

import page_driver

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


def payloads() -> dict[str, tuple[int, int]]:
    """What the overview sends, and what one chart a head would: bytes of JSON, by model."""
    sys.path.insert(0, str(page_driver.ROOT))
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
    chosen, missed = page_driver.arguments(__doc__, samples=20, warm_up=4), 0
    for name, (whole, charts) in payloads().items():
        missed += whole > charts / 10
        print(f"overview, {name}: {whole / 1024:.1f} KB against {charts / 1024:.1f} KB, 1/{charts / whole:.0f}")
    pages = page_driver.measure(
        "explore", VARIANTS, "pointerdown", page_driver.next_head("h"), chosen.samples, chosen.warm_up
    )
    return missed + page_driver.report(pages, GATES)


if __name__ == "__main__":
    sys.exit(main())
