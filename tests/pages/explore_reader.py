"""The Explore page as AppTest runs it, its figures read back into numbers, and the library's eager attention beside them."""

from functools import cache as once

import torch
from transformers import AutoTokenizer, BartForConditionalGeneration

from tests.pages.page_reader import EMBEDDED, PageReader, numbers, plain


class ExplorePage(PageReader):
    """The page after its first run, opened by a link or with settings."""

    path = "pages/explore.py"

    def figure(self, name: str) -> dict:
        """The chart whose key ends in a name."""
        return self.charts[f"explore_{name}"]

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
