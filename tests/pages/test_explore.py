"""The Explore page through app.py: its numbers against the library's eager attention, its sentences, what it keeps."""

import html
import re

import numpy as np
import pytest
import torch

from pages.ui import cache
from pages.ui.explore_settings import DEFAULT_SOURCE, SETTINGS
from tests.pages.explore_reader import ExplorePage, eager, reference
from tests.pages.page_reader import HOSTILE, SHORT, numbers


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
    # What was meant is no warning.
    assert "`<mask>` in the `source` is read as a control token" in page.app.info[0].value and not page.warnings
    assert "reads again what the model wrote" in page.captions
    run = cache.run(cache.TraceKey(cache.ModelKey(), source, None, 1))
    assert run.target_ids[0].tolist() == ids[0, :-1].tolist()


def test_merging_where_no_word_has_two_pieces_says_so():
    hint = "No word here has two pieces"
    page = ExplorePage(kind="encoder", source="The king", reading=["words"]).fine()
    assert [hint in line.value for line in page.app.info] == [True] and not page.warnings
    assert not page.set(reading=["special"]).app.info
    page.set(reading=["words"], source="The king Rumpelstiltskin.")
    assert not page.app.info and len(page.panels("detail").popitem()[1]["rows"]) < 9


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
