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

import sys

import page_driver

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


def next_temperature(variant: page_driver.Variant):
    """One key press to the right: each picture is a new one, which Streamlit cannot have sent before."""
    slider = variant.page.locator(".st-key-temp input[type=range]")
    if not slider.is_visible():
        variant.page.locator('[data-testid="stExpander"] summary', has_text="Scale").click()
        slider.wait_for()
    slider.focus()
    return lambda: variant.page.keyboard.press("ArrowRight")


def main() -> int:
    """Measures, prints, and returns how many gates are missed."""
    chosen = page_driver.arguments(__doc__, samples=25, warm_up=5)
    if chosen.samples + chosen.warm_up > 49:
        raise SystemExit("the slider has 49 steps")
    pages = page_driver.measure("build", VARIANTS, "keydown", next_temperature, chosen.samples, chosen.warm_up)
    return page_driver.report(pages, GATES)


if __name__ == "__main__":
    sys.exit(main())
