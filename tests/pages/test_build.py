"""The Build page through app.py: what stands there at first, every control, undo, reset, links, other pages."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from attention_core import masks as core_masks
from pages.ui.playground import DTYPES, INPUTS, MASKS, SETTINGS, unpack_cells


def test_the_first_view_is_finished(build):
    page = build().fine()
    assert not page.warnings and not page.query
    panels = page.panels
    assert list(panels) == ["query", "key", "value", "scores", "masked_scores", "weights", "context"]
    tokens = "the cat sat on the mat because the cat was tired".split()
    for stage in ("scores", "masked_scores", "weights"):
        assert panels[stage].rows == panels[stage].columns == tokens
    assert panels["scores"].limits == panels["masked_scores"].limits
    assert panels["weights"].limits == (0, 1)
    assert "largest weight" in page.charts[0].alt
    assert page.charts[0].selection_mode, "a click on a cell must reach the page"


def test_formulas_and_shapes_stand_beside_the_picture(build):
    text = " ".join(m.value for m in build(text="a b c", dm=12, heads=3).fine().app.markdown)
    for part in ("softmax", "Q K^", "A V", r"3{\times}4", r"3{\times}3", "s = 0.5"):
        assert part in text


def test_hovers_tell_place_tokens_and_the_exact_number(build):
    page = build(wq="random", wk="random").fine()
    weights, scores = page.panels["weights"], page.panels["masked_scores"]
    tokens = weights.rows
    for panel in (weights, scores):
        for i in range(len(tokens)):
            for j in range(len(tokens)):
                number, row, column = panel.hovers[i, j]
                assert (row, column) == (f"{i} · {tokens[i]}", f"{j} · {tokens[j]}")
                assert number == "masked" if j > i else np.float32(number) == panel.z[i, j]


@pytest.mark.parametrize(
    "text, count",
    [
        ("<s> the cat sat on the mat because the cat was tired </s>", 13),
        ("In 2020 2021 10 10 12 007 1e3", 8),
        ("nan None 0 0 -1 <b> &amp; %{z}", 8),
    ],
)
def test_labels_stay_apart_and_to_the_letter(build, text, count):
    """Case 01: one row and one label for each token, repeated, numeric or like markup."""
    panel = build(text=text, masks=[]).fine().panels["weights"]
    assert panel.rows == panel.columns == text.split()
    assert panel.z.shape == (count, count)


# Each control: what must be set before it appears, its kind, its key, a new value, and the stages that change with it.
MAPS = {"scores", "masked_scores", "weights", "context"}
ALL = MAPS | {"query", "key", "value"}
CONTROLS = [
    ({}, "text_area", "text", "a dog ran after a cat", ALL),
    ({}, "button_group", "unit", "characters", ALL),
    ({}, "selectbox", "vectors", "sinusoidal", ALL),
    ({}, "slider", "dm", 48, ALL),
    ({}, "selectbox", "heads", 8, ALL),
    ({}, "toggle", "free", True, set()),
    ({"free": True}, "slider", "hd", 3, ALL),
    ({}, "number_input", "seed", 5, ALL),
    ({}, "selectbox", "wq", "random", {"query"} | MAPS),
    ({}, "selectbox", "wk", "random", {"key"} | MAPS),
    ({}, "selectbox", "wv", "identity", {"value", "context"}),
    ({}, "selectbox", "bqkv", "random", ALL),
    ({}, "selectbox", "dtype", "bfloat16", ALL),
    ({}, "selectbox", "scale", "none", MAPS),
    ({"scale": "number"}, "number_input", "scale_by", 0.1, MAPS),
    ({}, "slider", "temp", 3.0, MAPS),
    ({}, "slider", "drop", 0.3, set()),
    ({"drop": 0.5}, "toggle", "training", True, {"context"}),
    ({"drop": 0.5, "training": True}, "number_input", "drop_seed", 9, {"dropped_weights", "context"}),
    ({}, "button_group", "masks", [], {"masked_scores", "weights", "context"}),
    ({"masks": ["window"]}, "slider", "window", 1, {"masked_scores", "weights", "context"}),
    ({"masks": ["block"]}, "slider", "block", 3, {"masked_scores", "weights", "context"}),
    ({"masks": ["prefix"]}, "slider", "prefix", 5, {"masked_scores", "weights", "context"}),
    ({"masks": ["padding"]}, "slider", "pads", 4, ALL),
    ({"masks": ["edited"]}, "text_input", "cells", "1,0 4,4", {"masked_scores", "weights", "context"}),
    ({}, "toggle", "cross", True, MAPS | {"key", "value"}),
    ({"cross": True}, "text_area", "text2", "one two", MAPS | {"key", "value"}),
    (
        {"cross": True, "masks": ["causal"]},
        "selectbox",
        "align",
        "lower_right",
        {"masked_scores", "weights", "context"},
    ),
    ({"input": "count"}, "slider", "n", 5, ALL),
    ({"input": "count", "cross": True}, "slider", "n2", 9, MAPS | {"key", "value"}),
    ({}, "selectbox", "input", "count", ALL),
    ({}, "selectbox", "preset", "bart_simplified", {"value"} | MAPS),
    ({}, "selectbox", "head", 2, ALL),
    ({}, "toggle", "raw", True, {"scores"}),
    ({"view": "layer"}, "selectbox", "wo", "orthogonal", {"out_weight", "output"}),
    ({"view": "layer"}, "selectbox", "bo", "random", {"output"}),
    ({}, "selectbox", "row", 3, set()),
    ({}, "selectbox", "col", 3, set()),
    ({}, "selectbox", "colours", "cividis", set()),
]


@pytest.mark.parametrize("before, kind, key, value, changes", CONTROLS, ids=[c[2] for c in CONTROLS])
def test_a_control_changes_what_it_should(build, before, kind, key, value, changes):
    page = build(**before).fine()
    old = page.panels
    page.set(kind, key, value).fine()
    assert page[key] == value
    assert not page.warnings or key in ("pads", "align")
    new = page.panels
    changed = {
        stage
        for stage in old.keys() | new.keys()
        if stage not in old
        or stage not in new
        or old[stage].z.shape != new[stage].z.shape
        or not np.array_equal(old[stage].z, new[stage].z, equal_nan=True)
    }
    # New shapes change everything that is drawn; "dropped_weights" comes with training mode.
    assert changes <= changed <= (changes | {"dropped_weights"} if changes else set())
    # The link holds the change, and a visitor who opens it sees the same numbers.
    assert page.query[key] == SETTINGS[key].write(value)
    again = build(query=page.query).fine()
    assert again[key] == value
    for stage, panel in again.panels.items():
        np.testing.assert_array_equal(panel.z, new[stage].z, err_msg=stage)


def test_all_heads_stand_in_one_picture(build):
    page = build(heads=8).set("button_group", "view", "all").fine()
    (image,) = [trace for trace in page.figure["data"] if trace["type"] == "image"]
    assert image["source"].startswith("data:image/png")
    (clicks,) = [trace for trace in page.figure["data"] if "customdata" in trace]
    assert [name for name, _ in clicks["customdata"]] == [f"head {h}" for h in range(8)]
    first = image["source"]
    page.set("selectbox", "tiles", "scores").fine()
    assert next(t for t in page.figure["data"] if t["type"] == "image")["source"] != first
    assert page.query["tiles"] == "scores"


def test_the_three_presets_that_differ_in_name_alone_give_the_same_numbers(build):
    seen = {name: build().set("selectbox", "preset", name).fine() for name in ("bert", "cabm")}
    want = build().panels
    for name, page in seen.items():
        for stage, panel in want.items():
            np.testing.assert_array_equal(page.panels[stage].z, panel.z, err_msg=f"{name} {stage}")
    assert seen["bert"]["drop"] == 0.1


def test_the_arithmetic_is_that_of_the_chosen_cell(build):
    page = build(wq="random", wk="random", row=5, col=2).fine()
    weights = page.cells()
    told = " ".join(c.value for c in page.app.caption)
    assert f"The tensor holds {weights[5, 2]:.9g}" in told
    tables = " ".join(h.proto.body for h in page.app.get("html"))
    for j in range(6):
        assert f"<td>{weights[5, j]:.4g}</td>" in tables
    assert "5 hidden by the mask" in tables
    page.set("selectbox", "stage", "context").set("selectbox", "col", 7)
    number = f"{page.cells('context')[5, 7]:.9g}".replace("-", "−")
    assert any(f"The tensor holds {number}" in c.value for c in page.app.caption)


def test_the_same_numbers_as_a_table(build):
    page = build(text="a b a", masks=[]).set("toggle", "table", True).fine()
    table = page.app.dataframe[0].value
    np.testing.assert_array_equal(table.to_numpy(), page.cells())
    assert list(table.index) == list(table.columns) == ["0 a", "1 b", "2 a"]


def test_what_is_set_stays_over_pages(build):
    """Case 04: 8 heads, causal, an edited text; away, and back."""
    page = build()
    page.set("selectbox", "heads", 8).set("button_group", "masks", ["causal", "window"])
    page.set("text_area", "text", "mine and yours").set("selectbox", "row", 2).set("button_group", "view", "layer")
    page.set("toggle", "cross", True).set("text_area", "text2", "theirs")
    # A control that its switch has hidden keeps its value too.
    page.set("toggle", "cross", False)
    kept = {key: page[key] for key in ("heads", "masks", "text", "row", "view", "cross")}
    shown = page.fine().panels
    page.app.query_params = {}
    page.app.switch_page("app.py").run()
    page.app.switch_page("pages/build.py").run()
    assert {key: page[key] for key in kept} == kept
    for stage, panel in page.fine().panels.items():
        np.testing.assert_array_equal(panel.z, shown[stage].z)
    assert page.set("toggle", "cross", True)["text2"] == "theirs"
    page.app.query_params = {}
    page.app.switch_page("app.py").run()
    page.app.switch_page("pages/build.py").run()
    assert (page["cross"], page["text2"]) == (True, "theirs"), "and so does one that came late"


def test_what_came_by_link_stays_over_pages(build):
    page = build(query={"heads": "8", "temp": "2.5", "text": "from a link"}).fine()
    page.app.query_params = {}
    page.app.switch_page("app.py").run()
    page.app.switch_page("pages/build.py").run()
    assert (page["heads"], page["temp"], page["text"]) == (8, 2.5, "from a link")


def test_undo_takes_back_one_change_at_a_time(build):
    page = build()
    assert page.app.button(key="undo").disabled
    assert not page.set("slider", "temp", 3.0).app.button(key="undo").disabled, (
        "there is something to take back at once"
    )
    page.click("undo")
    first = page.cells()
    page.set("slider", "temp", 2.0).set("button_group", "masks", []).set("text_area", "text", "other words")
    page.click("undo").fine()
    assert (page["text"], page["masks"], page["temp"]) == (SETTINGS["text"].default, [], 2.0)
    page.click("undo").click("undo").fine()
    assert (page["masks"], page["temp"]) == (["causal"], 1.0)
    np.testing.assert_array_equal(page.cells(), first)
    assert page.app.button(key="undo").disabled and not page.query


def test_reset_sets_everything_back_and_undo_brings_it_again(build):
    page = build()
    page.set("slider", "dm", 64).set("selectbox", "heads", 16).set("selectbox", "dtype", "float64")
    shown = page.cells()
    page.click("reset").fine()
    assert {key: page[key] for key in SETTINGS} == {key: s.default for key, s in SETTINGS.items()}
    assert not page.query
    page.click("undo").fine()
    assert (page["dm"], page["heads"], page["dtype"]) == (64, 16, "float64")
    np.testing.assert_array_equal(page.cells(), shown)


def test_every_example_opens_finished_and_can_be_undone(build):
    page = build()
    names = [b.key for b in page.app.button if b.key.startswith("example_")]
    assert len(names) >= 5
    for name in names:
        page.click(name).fine()
        assert page.panels["weights"].z.size
        if name != "example_same":
            assert page.query
            page.click("undo").fine()
            assert not page.query


# A value for every setting that travels which is not its default.
OTHER = {
    "preset": "cabm", "input": "count", "text": "ein Text, 100 % & mehr? #1", "unit": "characters", "n": 3, "cross": True,
    "text2": "zwei + drei", "n2": 7, "vectors": "one_hot", "dm": 24, "heads": 2, "free": True, "hd": 5, "seed": 123_456,
    "dtype": "float16", "wq": "zero", "wk": "orthogonal", "wv": "identity", "wo": "zero", "bqkv": "random", "bo": "none",
    "scale": "number", "scale_by": 0.75, "temp": 0.3, "drop": 0.45, "training": True, "drop_seed": 77,
    "masks": ["window", "edited"], "align": "lower_right", "window": 9, "block": 6, "prefix": 1, "pads": 5,
    "cells": "0,0 3,2", "view": "all", "head": 3, "tiles": "context", "raw": True, "table": True, "stage": "scores",
    "row": 2, "col": 4, "click": "turn", "shape": "narrow", "colours": "viridis",
}  # fmt: skip


def test_no_setting_is_forgotten_here():
    assert OTHER.keys() == {key for key, s in SETTINGS.items() if s.write is not None}
    assert not [key for key, value in OTHER.items() if value == SETTINGS[key].default]


@pytest.mark.parametrize("key", OTHER)
def test_a_link_carries_the_setting(build, key):
    """Set, copied from the URL, opened by somebody else: the same value."""
    page = build(**{key: OTHER[key]}).fine()
    assert page[key] == OTHER[key]
    assert page.query[key] == page.link[key]
    for query in (page.query, page.link):
        again = build(query=query).fine()
        assert {k: again[k] for k in SETTINGS} == {k: page[k] for k in SETTINGS}


def _values():
    return st.fixed_dictionaries(
        {},
        optional={
            "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
            "seed": st.integers(0, 999_999),
            "dm": st.integers(2, 128),
            "heads": st.integers(1, 16),
            "free": st.booleans(),
            "hd": st.integers(1, 64),
            "temp": st.floats(0.1, 5.0),
            "scale": st.sampled_from(["head_dim", "number"]),
            "scale_by": st.floats(1e-6, 1e6),
            "dtype": st.sampled_from(list(DTYPES)),
            "input": st.sampled_from(INPUTS[:2]),
            "n": st.integers(1, 64),
            "masks": st.lists(st.sampled_from(MASKS), unique=True),
            "cells": st.lists(st.tuples(st.integers(0, 63), st.integers(0, 63)), unique=True, max_size=9).map(
                lambda pairs: " ".join(f"{r},{c}" for r, c in sorted(pairs))
            ),
        },
    )


# Not shrunk: each example opens two pages.
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@example(values={"scale": "number", "scale_by": 135597.5})
@given(values=_values())
def test_any_state_travels_by_link(build, values):
    page = build(**values)
    assert not page.app.exception, page.app.exception[0].message
    again = build(query=page.query)
    assert not again.app.exception, again.app.exception[0].message
    for key in SETTINGS:
        mine, theirs = page[key], again[key]
        assert sorted(mine) == sorted(theirs) if key == "masks" else mine == theirs, key
    assert page.errors == again.errors


def test_a_long_text_stays_and_the_page_says_that_it_does_not_travel(build):
    long = "word " * 400
    page = build().set("text_area", "text", long).fine()
    assert page["text"] == long and "text" not in page.query
    assert any("Too long for a link" in c.value and "text" in c.value for c in page.app.caption)


def test_own_matrices_do_not_travel(build):
    page = build(input="own_x", own_x="1,0\n0,1", dm=16).fine()
    assert set(page.query) >= {"input", "dm"} and "own_x" not in page.query
    assert any("own_x" in c.value for c in page.app.caption)


def test_an_uploaded_matrix_is_used(build):
    page = build(input="own_x", own_x="1,0\n0,1", heads=1, view="layer")
    uploader = page.app.file_uploader(key="own_x_file")
    uploader.set_value(("x.csv", b"\xef\xbb\xbf1;2\r\n3;4\r\n5;6\r\n", "text/csv")).run()
    np.testing.assert_array_equal(page.fine().cells("input"), [[1, 2], [3, 4], [5, 6]])


@pytest.mark.parametrize(
    "query, value, sentence",
    [
        ({"dm": "30"}, ("heads", 3), "Heads went from 4 to 3: they must divide d_model (30)."),
        ({"dm": "7"}, ("heads", 1), "Heads went from 4 to 1: they must divide d_model (7)."),
        ({"head": "9"}, ("head", 3), "Head 9 is gone; head 3 is shown."),
        ({"vectors": "one_hot", "dm": "4"}, ("vectors", "random"), "One-hot vectors no longer fit d_model (4)"),
    ],
)
def test_what_gave_way_is_said(build, query, value, sentence):
    page = build(query=query).fine()
    assert page[value[0]] == value[1]
    assert any(sentence in w for w in page.warnings), page.warnings
    page.run()
    assert not page.warnings, "said once"


def test_one_hot_is_offered_while_it_fits(build):
    assert "One-hot" in build(text="a b c", dm=4).app.selectbox(key="vectors").options
    assert "One-hot" not in build(text="a b c d e", dm=4).app.selectbox(key="vectors").options


def test_only_heads_that_divide_are_offered(build):
    assert build(dm=12).app.selectbox(key="heads").options == ["1", "2", "3", "4", "6", "12"]
    assert build(dm=12, free=True).app.selectbox(key="heads").options == [str(h) for h in range(1, 17)]


def test_edited_cells_outside_the_map_wait(build):
    page = build(text="a b", masks=["edited"], cells="0,1 9,9").fine()
    assert any("Edited cells outside this map of" in w and ": 1." in w for w in page.warnings)
    assert page["cells"] == "0,1 9,9"
    np.testing.assert_array_equal(np.isnan(page.cells()), [[False, True], [False, False]])


def test_cells_in_the_link_are_those_of_the_picture(build):
    page = build(masks=["causal", "edited"], cells="0,3 2,1").fine()
    assert unpack_cells(page.query["cells"]) == "0,3 2,1"
    hidden = ~core_masks.edited(core_masks.causal(11), [(0, 3), (2, 1)]).numpy()
    np.testing.assert_array_equal(np.isnan(page.cells()), hidden.reshape(11, 11))


def test_the_cost_is_that_of_the_layer(build):
    tables = " ".join(h.proto.body for h in build(dm=32, heads=4).fine().app.get("html"))
    assert f"{4 * 32 * 32 + 4 * 32:,}" in tables
