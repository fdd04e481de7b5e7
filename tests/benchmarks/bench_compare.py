"""From choosing a head to its picture on the Compare page, in Chromium: prints a table and checks the gates.

    python tests/benchmarks/bench_compare.py [--samples 20] [--warm-up 4]

Timed is the choice of another head in the select box, as in bench_explore.py: from pressing the option (pointerdown) to the
first moment after the last chart that changes is painted. Embedded model, 32 tokens, cross-attention. The variants are browser
pages of their own and take turns, one choice each:

    prove               the shipped page: the layer from scratch beside the model, and their difference
    prove, text         the same page with show_figure replaced by one line of text, and nothing else
    change              the shipped page: the layer with another scale beside the model, the difference, the bars of each row
    change, text        the same with show_figure replaced

Gates: each picture <= 5 x its text. KB is what the server sends for one choice.
"""

import sys

import page_driver
from bench_explore import SOURCE

QUERY = {"source": SOURCE, "kind_a": "cross", "layer_a": 2, "head_a": 0}
VARIANTS = {
    "prove": ("shipped", QUERY | {"compare": "prove"}),
    "prove, text": ("text", QUERY | {"compare": "prove"}),
    "change": ("shipped", QUERY | {"compare": "change"}),
    "change, text": ("text", QUERY | {"compare": "change"}),
}
GATES = [("prove", "prove, text", 5.0), ("change", "change, text", 5.0)]


def main() -> int:
    """Measures, prints, and returns how many gates are missed."""
    chosen = page_driver.arguments(__doc__, samples=20, warm_up=4)
    pages = page_driver.measure(
        "compare", VARIANTS, "pointerdown", page_driver.next_head("head_a"), chosen.samples, chosen.warm_up
    )
    return page_driver.report(pages, GATES)


if __name__ == "__main__":
    sys.exit(main())
