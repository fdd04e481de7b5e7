"""The Explore page as AppTest runs it, its figures read back into numbers, and the library's eager attention beside them."""

import base64
import html
import json
import re
from functools import cache as once
from pathlib import Path

import numpy as np
import torch
from streamlit.testing.v1 import AppTest
from transformers import AutoTokenizer, BartForConditionalGeneration

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "attention_core" / "embedded"
HOSTILE = "price $x and y$ *now* :red[boo] :smile: # x ![i](http://e/x.png) <b>bold</b>"
SHORT = "The king had a ring."


class ExplorePage:
    """The page after its first run, opened by a link or with settings."""

    def __init__(self, query: dict | None = None, **state) -> None:
        self.app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
        self.app.query_params = dict(query or {})
        for key, value in state.items():
            self.app.session_state[key] = value
        self.app.switch_page("pages/explore.py").run()

    def set(self, **state) -> "ExplorePage":
        for key, value in state.items():
            self.app.session_state[key] = value
        self.app.run()
        return self.fine()

    def fine(self) -> "ExplorePage":
        assert not self.app.exception, self.app.exception[0].message
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

    def figure(self, name: str) -> dict:
        """The chart whose key ends in a name."""
        specs = {c.proto.id.split("-")[-1]: json.loads(c.proto.spec) for c in self.app.get("plotly_chart")}
        return specs[f"explore_{name}"]

    def panels(self, name: str) -> dict[str, dict]:
        """The panels of a chart by the first word of their title: cells, labels, range and orientation."""
        figure = self.figure(name)
        layout = figure["layout"]
        maps = [trace for trace in figure["data"] if trace["type"] == "heatmap" and trace.get("hoverongaps") is False]
        titles = [plain(note["text"]) for note in layout["annotations"] if "<b " in note["text"]]
        found = {}
        for number, (title, trace) in enumerate(zip(titles, maps, strict=True)):
            x, y = (layout[trace[f"{a}axis"].replace(a, f"{a}axis", 1)] for a in "xy")
            found[title.split()[0] if title.split()[0] not in found else f"{title.split()[0]}{number}"] = {
                "z": numbers(trace["z"]),
                "title": title,
                "rows": [plain(text) for text in y["ticktext"]],
                "columns": [plain(text) for text in x["ticktext"]],
                "top_first": y["range"][0] > y["range"][1],
                "limits": (trace["zmin"], trace["zmax"]),
            }
        return found


def numbers(value) -> np.ndarray:
    if isinstance(value, dict):
        shape = [int(n) for n in str(value.get("shape", "-1")).split(",")]
        return np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"]).reshape(shape)
    return np.array(value, dtype=float)


def plain(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", text.split("<br>")[0])).replace("\xa0", " ")


@once
def reference():
    """The embedded model by plain transformers, with eager attention."""
    model = BartForConditionalGeneration.from_pretrained(
        EMBEDDED, attn_implementation="eager", dtype=torch.float32, local_files_only=True
    )
    return model.eval(), AutoTokenizer.from_pretrained(EMBEDDED, local_files_only=True)


def eager(source: str, target: str | None = None) -> dict[str, tuple]:
    model, tokenizer = reference()
    ids = tokenizer(source, return_tensors="pt").input_ids
    arguments = {"labels": tokenizer(target or source, return_tensors="pt").input_ids}
    with torch.no_grad():
        result = model(ids, **arguments, output_attentions=True, use_cache=False)
    return {
        "encoder": result.encoder_attentions,
        "decoder": result.decoder_attentions,
        "cross": result.cross_attentions,
    }
