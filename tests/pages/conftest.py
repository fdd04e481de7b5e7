"""The Build page as AppTest runs it, and its figure read back into numbers."""

import json
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from tests.pages.page_reader import ROOT, numbers, plain

SYMBOLS = {
    "X": "input",
    "X₂": "key_input",
    "W_Q": "query_weight",
    "W_K": "key_weight",
    "W_V": "value_weight",
    "W_O": "out_weight",
    "Q": "query",
    "K": "key",
    "V": "value",
    "S": "scores",
    "QKᵀ": "scores",
    "S′": "masked_scores",
    "A": "weights",
    "A′": "dropped_weights",
    "C": "context",
    "concat": "concatenation",
    "O": "output",
}


@dataclass(frozen=True)
class Shown:
    """One panel of the figure, as the browser is told to draw it.

    Attributes:
        z: the cells, NaN where there is a gap.
        rows, columns: tick labels, unescaped.
        limits: of the colours.
        top_first: whether row 0 is drawn at the top.
        hovers: what hovering over a cell says: (rows, columns, 3) texts: number, row, column.
    """

    z: np.ndarray
    rows: list[str]
    columns: list[str]
    limits: tuple[float, float]
    top_first: bool
    hovers: np.ndarray | None


class BuildPage:
    """The page after its first run.

    Args:
        query: a link's settings, as texts; None opens the page without one.
        state: what the session holds before the first run.
    """

    def __init__(self, query: dict | None = None, **state) -> None:
        self.app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
        self.app.query_params = dict(query or {})
        for key, value in state.items():
            self.app.session_state[key] = value
        self.app.switch_page("pages/build.py").run()

    def run(self):
        self.app.run()
        return self

    def set(self, kind: str, key: str, value):
        """Moves a control, as a person would."""
        getattr(self.app, kind)(key=key).set_value(value).run()
        return self

    def click(self, key: str):
        self.app.button(key=key).click().run()
        return self

    def __getitem__(self, key: str):
        return self.app.session_state[key]

    @property
    def query(self) -> dict:
        return self.app.query_params

    @property
    def link(self) -> dict[str, str]:
        """What Copy link carries."""
        parts = urlsplit(self.app.code[0].value)
        return {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}

    @property
    def warnings(self) -> list[str]:
        return [w.value for w in self.app.warning]

    @property
    def errors(self) -> list[str]:
        return [e.value for e in self.app.error]

    @property
    def sentences(self) -> list[str]:
        return self.warnings + self.errors

    def fine(self):
        """No trace and no error."""
        assert not self.app.exception, self.app.exception[0].message
        assert not self.errors, self.errors
        return self

    def refused(self, *parts: str):
        """One sentence that says why, and no picture and no trace."""
        assert not self.app.exception, self.app.exception[0].message
        assert len(self.errors) == 1
        for part in parts:
            assert part in self.errors[0], self.errors[0]
        assert not self.charts
        return self

    @property
    def charts(self) -> list:
        return [chart.proto for chart in self.app.get("plotly_chart")]

    @property
    def figure(self) -> dict:
        (chart,) = self.charts
        return json.loads(chart.spec)

    @property
    def panels(self) -> dict[str, Shown]:
        """The panels of the page's figure, by stage."""
        figure = self.figure
        layout = figure["layout"]
        maps = [trace for trace in figure["data"] if trace["type"] == "heatmap"]
        clicks = {trace["xaxis"]: trace for trace in figure["data"] if trace["type"] == "scatter"}
        titles = [plain(note["text"]).split()[0] for note in layout["annotations"] if "<b " in note["text"]]
        assert len(titles) == len(maps)
        shown = {}
        for title, trace in zip(titles, maps):
            x, y = (layout[trace[f"{a}axis"].replace(a, f"{a}axis", 1)] for a in "xy")
            z = numbers(trace["z"])
            hovers = clicks.get(trace["xaxis"])
            shown[SYMBOLS[title]] = Shown(
                z,
                [plain(text) for text in y["ticktext"]],
                [plain(text) for text in x["ticktext"]],
                (trace["zmin"], trace["zmax"]),
                y["range"][0] > y["range"][1] and x["range"][0] < x["range"][1],
                None if hovers is None else numbers(hovers["customdata"], None).reshape(*z.shape, 3),
            )
        return shown

    def cells(self, stage: str = "weights") -> np.ndarray:
        return self.panels[stage].z


@pytest.fixture
def build():
    """Opens the Build page: ``build(query={...})`` by link, ``build(dm=16)`` with that set."""
    return BuildPage
