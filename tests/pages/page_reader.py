"""A page of a real model as AppTest runs it, and what stands on it read back: sentences, tables, figures."""

import base64
import html
import json
import re
from pathlib import Path

import numpy as np
from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "attention_core" / "embedded"
HOSTILE = "price $x and y$ *now* :red[boo] :smile: # x ![i](http://e/x.png) <b>bold</b>"
SHORT = "The king had a ring."


class PageReader:
    """The page after its first run, opened by a link or with settings; ``path`` is its file."""

    path: str

    def __init__(self, query: dict | None = None, **state) -> None:
        self.app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=240)
        self.app.query_params = dict(query or {})
        for key, value in state.items():
            self.app.session_state[key] = value
        self.app.switch_page(self.path).run()

    def set(self, **state) -> "PageReader":
        for key, value in state.items():
            self.app.session_state[key] = value
        self.app.run()
        return self.fine()

    def fine(self) -> "PageReader":
        assert not self.app.exception, self.app.exception[0].message
        return self

    def refused(self, *parts: str) -> "PageReader":
        """One sentence that says why."""
        self.fine()
        assert len(self.errors) == 1
        for part in parts:
            assert part in self.errors[0], self.errors[0]
        return self

    def __getitem__(self, key: str):
        return self.app.session_state[key]

    @property
    def errors(self) -> list[str]:
        return [e.value for e in self.app.error]

    @property
    def warnings(self) -> list[str]:
        return [w.value for w in self.app.warning]

    @property
    def captions(self) -> str:
        return "\n".join(c.value for c in self.app.caption)

    @property
    def words(self) -> str:
        """Every sentence of the page."""
        kinds = (self.app.success, self.app.warning, self.app.markdown, self.app.caption)
        return "\n".join(element.value for kind in kinds for element in kind)

    @property
    def tables(self) -> list[list[list[str]]]:
        """The small tables, as rows of texts, the header first."""
        found = []
        for element in self.app.get("html"):
            body = element.proto.body
            if "<table" in body:
                lines = re.findall(r"<tr.*?</tr>", body, re.DOTALL)
                found.append([[html.unescape(c) for c in re.findall(r"<t[hd]>(.*?)</t[hd]>", row)] for row in lines])
        return found

    def table(self, *header: str) -> list[list[str]]:
        """The one table whose header begins so."""
        (found,) = [table for table in self.tables if tuple(table[0][: len(header)]) == header]
        return found

    @property
    def charts(self) -> dict[str, dict]:
        """The figures by their keys."""
        return {c.proto.id.split("-")[-1]: json.loads(c.proto.spec) for c in self.app.get("plotly_chart")}


def numbers(value, dtype: type | None = float) -> np.ndarray:
    """An array as plotly's JSON holds it; ``dtype`` is that of a plain list (None: as it comes)."""
    if isinstance(value, dict):
        shape = [int(n) for n in str(value.get("shape", "-1")).split(",")]
        return np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"]).reshape(shape)
    return np.array(value, dtype=dtype)


def plain(text: str) -> str:
    """What a reader sees of a label's first line."""
    return html.unescape(re.sub(r"<[^>]+>", "", text.split("<br>")[0])).replace("\xa0", " ")
