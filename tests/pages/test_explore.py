"""The Explore page through app.py: its numbers against the library's eager attention, its sentences, what it keeps."""

import base64
import html
import json
import re
import time
from functools import cache as once
from pathlib import Path

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration, BertConfig, BertModel

from pages.ui import cache
from pages.ui.explore_settings import DEFAULT_SOURCE, SETTINGS

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


@pytest.fixture(scope="module")
def page():
    """One visitor on the first view; tests that only read share it."""
    return ExplorePage().fine()


def test_the_first_view_is_a_finished_example(page):
    assert not page.errors and not page.warnings
    (found,) = page.panels("detail").values()
    layer, head = SETTINGS["layer"].default, SETTINGS["h"].default
    wanted = eager(DEFAULT_SOURCE)["cross"][layer][0, head].numpy()
    assert np.abs(found["z"] - wanted).max() < 1e-5
    assert found["top_first"]
    assert found["rows"][0] == "</s>" and found["columns"][0] == "<s>"
    assert page.figure("overview")["data"][0]["type"] == "image"
    assert wanted.max(-1).mean() > 0.4, "a head that looks good: choose another default"


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_every_stage_is_what_the_model_computed(kind):
    page = ExplorePage({"show": "one", "kind": kind, "layer": "1", "h": "3", "source": SHORT}).fine()
    found = page.panels("head")
    wanted = eager(SHORT)[kind][1][0, 3].numpy()
    seen = wanted > 0 if kind == "decoder" else np.ones_like(wanted, dtype=bool)
    assert np.abs(found["A"]["z"] - wanted)[seen].max() < 1e-5
    assert np.isnan(found["A"]["z"][~seen]).all()
    query, key = found["Q"]["z"].astype(np.float64), found["K"]["z"].astype(np.float64)
    scale = query.shape[1] ** -0.5
    scores = found["S"]["z"]
    assert np.abs(scores - query @ key.T * scale).max() < 1e-4
    masked = np.where(seen, scores, -np.inf)
    again = np.exp(masked - masked.max(-1, keepdims=True))
    assert np.abs(again / again.sum(-1, keepdims=True) - wanted)[seen].max() < 1e-5
    context = np.nan_to_num(found["A"]["z"]) @ found["V"]["z"]
    assert np.abs(context - found["C"]["z"]).max() < 1e-5
    assert ("S′" in found) == (kind == "decoder")
    raw = page.set(unscaled=True).panels("head")["QKᵀ"]["z"]
    assert np.abs(raw - query @ key.T).max() < 1e-4


def test_any_cell_has_its_arithmetic():
    page = ExplorePage({"show": "one", "kind": "decoder", "source": SHORT}).fine()
    for stage in ("query", "key", "value", "scores", "masked_scores", "weights", "context"):
        page.set(cell_stage=stage, cell_row=2, cell_col=1)
        said = [c for c in page.captions.splitlines() if "Recomputed in float64" in c]
        assert len(said) == 1, stage
        difference = float(re.search(r"difference ([\d.e−-]+)", said[0])[1].replace("−", "-"))
        assert difference < 1e-5, (stage, said)


def test_the_overview_holds_every_head_at_its_place(page):
    figure = page.figure("overview")
    names = [cell[0] for cell in numbers_or_texts(figure["data"][1]["customdata"])]
    assert names == [f"layer {layer}, head {head}" for layer in range(3) for head in range(8)]


def numbers_or_texts(value) -> list:
    return value if isinstance(value, list) else numbers(value).tolist()


# Case 01 and 13: repeated, numeric and markup-like tokens keep their rows, from the top.
@pytest.mark.parametrize(
    "text", ["the cat sat on the mat because the cat was tired", "In 2020 2021 10 10 12", "1 < 2 & 3"]
)
def test_every_token_keeps_its_row_and_label(text):
    page = ExplorePage({"kind": "encoder", "source": text}).fine()
    _, tokenizer = reference()
    (found,) = page.panels("detail").values()
    count = len(tokenizer(text).input_ids)
    assert found["z"].shape == (count, count)
    assert len(found["rows"]) == len(found["columns"]) == count
    assert found["rows"] == found["columns"]
    written = "".join(found["rows"][1:-1]).replace("·", " ").strip()
    assert written == text
    assert found["top_first"]


# Case 06: no raw byte letters, no replacement characters, one label a token.
@pytest.mark.parametrize("text", ["海边的小猫在睡觉", "🧑‍🚀 go", "crème brûlée", "سلام يا عالم", "one  two\nthree"])
def test_every_script_is_readable(text):
    page = ExplorePage({"show": "one", "kind": "encoder", "source": text}).fine()
    found = page.panels("head")["A"]
    _, tokenizer = reference()
    assert found["z"].shape[0] == len(tokenizer(text).input_ids)
    labels = "".join(found["rows"])
    assert not set(labels) & set("ĠĊæÃ\ufffd")


# Case 07: which decoder input, shifted or not, is said and shown.
def test_the_shift_is_shown_and_said():
    page = ExplorePage({"source": "Hello world"}).fine()
    (found,) = page.panels("detail").values()
    assert found["rows"][:3] == ["</s>", "<s>", *found["columns"][1:2]]
    assert found["columns"][0] == "<s>" and found["columns"][-1] == "</s>"
    assert "shifted right" in page.captions and "predicts token t + 1" in page.captions
    page.set(mode="typed", target="Good bye")
    (typed,) = page.panels("detail").values()
    assert typed["rows"][:2] == ["</s>", "<s>"] and "".join(typed["rows"][2:]).replace("·", " ").strip() == "Good bye"
    assert typed["columns"] == found["columns"]
    assert "your target, shifted right" in page.captions
    wanted = eager("Hello world", "Good bye")["cross"][page["layer"]][0, page["h"]].numpy()
    assert np.abs(typed["z"] - wanted).max() < 1e-5
    decoder = ExplorePage({"kind": "decoder", "source": "Hello world"}).fine()
    (rows,) = decoder.panels("detail").values()
    assert rows["z"][0, 0] == 1 and np.isnan(rows["z"][0, 1:]).all()


# Case 20: counted before the model runs, cut only if the person agrees.
def test_too_long_a_text_is_told_before_the_model_runs():
    page = ExplorePage().fine()
    with counted_runs() as runs:
        page.set(source="word " * 1100)
        assert len(page.errors) == 1 and "1103" in page.errors[0] and "256" in page.errors[0]
        assert not runs
        assert page["source"] == "word " * 1100, "what was typed stays"
        page.set(cut=True)
        assert not page.errors
        assert any("1103" in w and "256" in w for w in page.warnings)
        assert len(runs) == 1
    (trace,) = [v for v in page.figure("whole")["data"] if v["type"] == "image"]
    assert trace
    labels = page.panels("detail")
    assert next(iter(labels.values()))["z"].shape == (32, 32)


class counted_runs:
    """Counts the runs of the embedded model while it is open."""

    def __enter__(self) -> list:
        model = cache.model(cache.ModelKey())
        runs: list = []
        self.hook = model.module.register_forward_pre_hook(lambda *_: runs.append(1))
        return runs

    def __exit__(self, *_error) -> None:
        self.hook.remove()


def test_moving_between_heads_and_views_never_runs_the_model():
    page = ExplorePage({"source": "A ring was lost in the sea."}).fine()
    with counted_runs() as runs:
        for view in ("all", "one", "lines", "painted", "norms"):
            for kind in ("encoder", "decoder", "cross"):
                page.set(show=view, kind=kind, layer=1, h=2)
        page.set(reading=["special", "renormalise", "words"])
        assert not runs
        page.set(source="A ring was found in the sea.")
        assert len(runs) == 1
        page.set(source="A ring was lost in the sea.")
        assert len(runs) == 1, "a text that was read before is not read again"


# Case 26: what a person typed is shown as it is, wherever it is repeated.
@pytest.mark.parametrize("view", ["all", "one", "lines", "painted", "norms", "two"])
def test_typed_text_is_never_markup(view):
    page = ExplorePage({"show": view, "kind": "encoder", "source": HOSTILE, "target": HOSTILE}).fine()
    assert not page.errors
    spans = [m.value for m in page.app.markdown] + [c.value for c in page.app.caption] + page.warnings
    for text in spans:
        outside = re.sub(r"`[^`]*`", "", re.sub(r"<style>.*?</style>", "", text, flags=re.S))
        for part in ("$x", ":red[", ":smile:", "![i]", "*now*", "<b>bold"):
            assert part not in outside, text
    for element in page.app.get("html"):
        assert "<b>bold" not in element.proto.body and "<img" not in element.proto.body


def test_reading_steps_are_named_and_undone():
    page = ExplorePage({"source": "The unfathomable kingdom.", "kind": "encoder"}).fine()
    (whole,) = page.panels("detail").values()
    page.set(reading=["special", "renormalise", "words"])
    (read,) = page.panels("detail").values()
    for name in ("special tokens hidden", "rows renormalised", "pieces merged into words"):
        assert name in read["title"] and name not in whole["title"]
    assert read["rows"] == ["·The" if whole["rows"][1].startswith("·") else "The", "·unfathomable", "·kingdom", "."]
    assert np.allclose(np.nansum(read["z"], -1), 1, atol=1e-5)
    page.app.button(key="undo").click().run()
    (again,) = page.fine().panels("detail").values()
    assert np.array_equal(again["z"], whole["z"]) and page["reading"] == []


def test_norms_stand_beside_the_weights():
    page = ExplorePage({"show": "norms", "source": SHORT, "kind": "encoder", "layer": "0", "h": "1"}).fine()
    found = page.panels("norms")
    model, _ = reference()
    attention = model.model.encoder.layers[0].self_attn
    weights = eager(SHORT)["encoder"][0][0, 1]
    run = cache.run(cache.TraceKey(cache.ModelKey(), SHORT))
    x = run.projections("encoder", 0).value_input[0]
    width = attention.head_dim
    rows = slice(width, 2 * width)
    with torch.no_grad():
        value = x @ attention.v_proj.weight[rows].T + attention.v_proj.bias[rows]
        moved = value @ attention.out_proj.weight[:, rows].T
    wanted = (weights * moved.norm(dim=-1)).numpy()
    assert np.abs(found["‖α"]["z"] - wanted).max() < 1e-4
    assert np.abs(found["A"]["z"] - weights.numpy()).max() < 1e-5
    page.set(norm_of="layer")
    assert page.panels("norms")["‖Σ"]["z"].shape == wanted.shape


def test_two_texts_stand_side_by_side():
    other = "The queen found a silver cup in the wood."
    page = ExplorePage(
        {"show": "two", "source": SHORT, "source2": other, "kind": "encoder", "layer": "0", "h": "0"}
    ).fine()
    first, second = page.panels("two").values()
    for found, text in ((first, SHORT), (second, other)):
        assert np.abs(found["z"] - eager(text)["encoder"][0][0, 0].numpy()).max() < 1e-5
    assert first["limits"] == second["limits"] == (0, 1)


def test_the_model_writes_a_target():
    source = "The king had three sons, and the youngest<mask> the most beautiful of all."
    page = ExplorePage({"mode": "greedy", "source": source}).fine()
    model, tokenizer = reference()
    ids = model.generate(
        **tokenizer(source, return_tensors="pt"), num_beams=1, do_sample=False, max_new_tokens=128, max_length=None
    )
    text = tokenizer.decode(ids[0], skip_special_tokens=True).strip()
    shown = " ".join(element.proto.body for element in page.app.get("html"))
    assert html.escape(text) in shown
    assert any("<mask>" in warning for warning in page.warnings)
    assert "reads again what the model wrote" in page.captions
    run = cache.run(cache.TraceKey(cache.ModelKey(), source, None, 1))
    assert run.target_ids[0].tolist() == ids[0, :-1].tolist()


def test_settings_stay_over_a_page_switch():
    page = ExplorePage({"kind": "decoder", "layer": "1", "h": "4", "show": "lines", "source": SHORT}).fine()
    page.set(least=9, reading=["special"])
    page.app.switch_page("pages/build.py").run()
    page.app.switch_page("pages/explore.py").run()
    page.fine()
    kept = {key: page[key] for key in ("kind", "layer", "h", "show", "source", "least", "reading")}
    assert kept == {
        "kind": "decoder",
        "layer": 1,
        "h": 4,
        "show": "lines",
        "source": SHORT,
        "least": 9,
        "reading": ["special"],
    }
    assert page.app.query_params["least"] == "9"


def test_a_hostile_link_falls_back_and_says_so():
    page = ExplorePage({"kind": "<b>", "layer": "-1", "h": "99", "least": "x", "chosen": "1;2", "evil": "1"}).fine()
    assert not page.errors
    said = " ".join(page.warnings)
    for name in ("kind", "layer", "least", "chosen", "evil"):
        assert f"`{name}`" in said
    assert page["kind"] == "cross" and page["h"] == 7
    assert "Head 99 is not there; head 7 is shown." in said


def test_no_key_is_shared_with_build_or_taken_by_streamlit():
    from pages.ui.playground import SETTINGS as BUILD

    shared = set(SETTINGS) & set(BUILD)
    assert shared == {"colours"}
    assert not set(SETTINGS) & {"embed", "embed_options"}


def test_empty_text_is_a_sentence():
    page = ExplorePage({"source": SHORT}).fine().set(source="")
    assert len(page.errors) == 1 and "empty" in page.errors[0]
    assert not page.set(source="x").errors


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random BART of unequal depths and heads, saved with the embedded tokenizer."""
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=5631, d_model=24, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64, init_std=0.5, pad_token_id=1, eos_token_id=2,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("bart")
    BartForConditionalGeneration(config).save_pretrained(path)
    AutoTokenizer.from_pretrained(EMBEDDED, local_files_only=True).save_pretrained(path)
    return path


def test_a_folder_opens_and_what_is_not_there_is_said(folder):
    page = ExplorePage({"model": "folder", "name": str(folder), "source": SHORT}).fine()
    assert not page.errors
    assert (page["layer"], page["h"]) == (0, 1)
    assert any("Layer 2 is not there; layer 0 is shown." in w for w in page.warnings)
    model = BartForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    _, tokenizer = reference()
    with torch.no_grad():
        result = model(**tokenizer(SHORT, return_tensors="pt"), output_attentions=True, use_cache=False)
    (found,) = page.panels("detail").values()
    assert np.abs(found["z"] - result.cross_attentions[0][0, 1].numpy()).max() < 1e-5
    # One after the other: AppTest knows the options of the last run only.
    page.set(kind="encoder").set(layer=1, h=3)
    (found,) = page.panels("detail").values()
    assert np.abs(found["z"] - result.encoder_attentions[1][0, 3].numpy()).max() < 1e-5
    names = [cell[0] for cell in page.figure("overview")["data"][1]["customdata"]]
    assert len(names) == 8 and names[-1] == "layer 1, head 3"


def test_missing_weights_do_not_pass_for_trained_ones(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.encoder.layers.0.self_attn.q_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    page = ExplorePage({"model": "folder", "name": str(tmp_path), "source": SHORT}).fine()
    assert any("encoder.layers.0.self_attn.q_proj.weight" in w and "random" in w for w in page.warnings)


def test_an_encoder_alone_has_no_target(tmp_path):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=5631, hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=8,
        max_position_embeddings=40, pad_token_id=1,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(EMBEDDED, local_files_only=True).save_pretrained(tmp_path)
    page = ExplorePage({"model": "folder", "name": str(tmp_path), "source": SHORT, "mode": "greedy"}).fine()
    assert not page.errors and page["kind"] == "encoder"
    assert any("no cross-attention" in w for w in page.warnings)
    for view in ("one", "lines", "painted", "norms", "two"):
        page.set(show=view)
        assert not page.errors, view


# Case 18: without network and with an empty cache there is one sentence, soon, and the embedded model works.
def test_no_network_and_no_cache_is_one_sentence(tmp_path, monkeypatch):
    from attention_core.extract import hub

    page = ExplorePage({"source": SHORT}).fine()
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    before = time.monotonic()
    page.set(model="facebook/bart-large")
    assert time.monotonic() - before < 5
    assert len(page.errors) == 1
    for part in ("facebook/bart-large", str(tmp_path), "embedded model"):
        assert part in page.errors[0]
    assert not page.app.get("plotly_chart")
    page.app.button(key="use_embedded").click().run()
    assert page.fine().panels("detail") and not page.errors


def test_a_link_downloads_nothing_by_itself(tmp_path, monkeypatch):
    from attention_core.extract import hub

    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "folder_of", lambda *_: pytest.fail("asked the hub"))
    page = ExplorePage({"model": "facebook/bart-base", "source": SHORT}).fine()
    assert "560 MB" in page.app.info[0].value and not page.errors
    assert page.app.button(key="download_model")


@pytest.mark.parametrize("name", ["", "/nowhere/at/all", "../..", "a b", "x" * 300, "/" + "x" * 300])
def test_a_name_that_is_no_model_is_a_sentence(name):
    page = ExplorePage({"model": "folder", "name": name, "source": SHORT}).fine()
    assert len(page.errors) == (1 if name else 0)
    assert not page.app.get("plotly_chart")


def test_the_exported_python_gives_the_numbers_of_the_page():
    page = ExplorePage({"kind": "decoder", "layer": "0", "h": "5", "source": HOSTILE, "mode": "typed"}).fine()
    (code,) = [c.value for c in page.app.code if "load_model" in c.value]
    names: dict = {}
    exec(compile(code, "view", "exec"), names)
    (found,) = page.panels("detail").values()
    weights = names["head"].weights[0, 0].numpy()
    # The same to rounding: this process may run on another number of threads than the page does.
    assert np.abs(np.nan_to_num(found["z"]) - weights).max() < 1e-6
