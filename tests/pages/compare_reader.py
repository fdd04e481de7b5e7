"""The Compare page as AppTest runs it, and the run that it shows, traced apart from it."""

from functools import cache as once

import numpy as np

from attention_core import load_model, trace
from pages.ui import explore_settings
from tests.pages.page_reader import PageReader, numbers


class ComparePage(PageReader):
    """The page after its first run, opened by a link or with settings."""

    path = "pages/compare.py"

    def panels(self, chart: str) -> list[np.ndarray]:
        """The maps of a chart, NaN where there is a gap."""
        return [numbers(t["z"]) for t in self.charts[chart]["data"] if t["type"] == "heatmap"]

    def limits(self, chart: str) -> list[tuple[float, float]]:
        return [(t["zmin"], t["zmax"]) for t in self.charts[chart]["data"] if t["type"] == "heatmap"]


def value(text: str) -> float:
    """A number as the page writes it."""
    return float(text.replace("−", "-"))


@once
def recorded(source: str = explore_settings.DEFAULT_SOURCE):
    """The run of the embedded model, traced apart from the page."""
    return trace(load_model("embedded", device="cpu"), source)


def weights(source: str = explore_settings.DEFAULT_SOURCE, kind="cross", layer=2, head=7) -> np.ndarray:
    return recorded(source).steps(kind, layer, [head]).weights[0, 0].numpy()
