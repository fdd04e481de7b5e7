"""The Diagnose page through app.py: its numbers against the core's, a planted fault, its jobs, files, buttons and links."""

import html
import re
import shlex
import time

import numpy as np
import pandas as pd
import pytest
import torch

from attention_core import load_model, trace
from attention_core.analysis.diagnosis import RULES, diagnose
from attention_core.analysis.head_metrics import BY_NAME
from attention_core.analysis.profile import profile_of
from attention_core.analysis.profile_command import main
from attention_core.analysis.profile_sums import shipped_profile
from attention_core.analysis.scaling import classical_scaling
from attention_core.extract.interventions import Forbid, SwitchOff, Window, edits_from_text, edits_to_text
from attention_core.extract.means import stories
from tests.analysis.conftest import plant_dead
from tests.extract.forms import saved, saved_bert
from tests.pages.compare_reader import recorded
from tests.pages.page_reader import EMBEDDED, HOSTILE, SHORT, PageReader, numbers

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is not in this copy"
)
QUICK = {"with_gradients": False, "with_ablation": False}


class DiagnosePage(PageReader):
    path = "pages/diagnose.py"

    def click(self, key: str) -> "DiagnosePage":
        self.app.button(key=key).click().run()
        return self.fine()

    def examine(self) -> "DiagnosePage":
        """Presses the button, and waits until the job has ended."""
        self.click("examine")
        deadline = time.monotonic() + 240
        while any(b.key == "diagnose_stop" for b in self.app.button) and time.monotonic() < deadline:
            time.sleep(0.2)
            self.app.run()
        return self.fine()

    @property
    def heads(self) -> pd.DataFrame:
        (table,) = self.app.dataframe
        return table.value

    def maps(self, chart: str) -> list[np.ndarray]:
        return [numbers(t["z"]) for t in self.charts[chart]["data"] if t["type"] == "heatmap"]


def test_the_first_view_is_the_shipped_profile_and_finds_nothing_wrong():
    page = DiagnosePage().fine()
    assert not page.errors and not page.warnings and page.app.query_params == {}
    assert "No rule finds a failure" in page.app.success[0].value
    found = diagnose(shipped_profile(), shipped_profile())
    assert not found.failures
    labels = [e.label for e in page.app.expander]
    for rule in RULES:
        count = sum(f.rule == rule.name for f in found.observations)
        if count:
            assert f"{rule.label.capitalize()}: {count}" in labels
    assert f"{shipped_profile().texts:,} texts" in page.captions
    assert "no explanation" in page.captions and "calibrated on" in page.captions


def test_the_table_holds_every_number_of_every_head():
    page = DiagnosePage(diag_view="table", number="entropy", spreads=True).fine()
    profile, table = shipped_profile(), page.heads
    assert len(table) == sum(layers * heads for layers, heads in profile.shapes.values())
    assert table["entropy"].tolist() == sorted(table["entropy"], reverse=True)
    names = {"Encoder self-attention": "encoder", "Decoder self-attention": "decoder", "Cross-attention": "cross"}
    for _place, row in table.iterrows():
        kind = names[row["kind"]]
        for name in profile.columns():
            for read, column in ((profile.mean, name), (profile.spread, f"{name} ±")):
                np.testing.assert_allclose(
                    row[column], read(kind, name)[row["layer"], row["head"]], rtol=1e-6, atol=1e-9
                )
    page.set(kinds_shown=["cross"])
    assert set(page.heads["kind"]) == {"Cross-attention"}
    low, high = np.quantile(page.heads["entropy"], [0.25, 0.75])
    page.app.slider(key="between_entropy").set_value((float(low), float(high))).run()
    assert 0 < len(page.fine().heads) < sum(np.prod(profile.shapes[k]) for k in ("cross",))
    assert page.heads["entropy"].between(low - 1e-6, high + 1e-6).all()


@pytest.mark.parametrize("name", ["output_share", "loss_zero", "distance"])
def test_the_atlas_shows_the_number_for_the_kinds_that_have_it(name):
    page = DiagnosePage(diag_view="atlas", number=name).fine()
    profile = shipped_profile()
    kinds = [kind for kind in profile.kinds if kind in BY_NAME[name].kinds]
    for kind, drawn in zip(kinds, page.maps("atlas"), strict=True):
        np.testing.assert_allclose(drawn, profile.mean(kind, name), rtol=1e-5, atol=1e-7)
    rows = page.table("number", "mean")
    assert [row[0] for row in rows[1:]] == [
        BY_NAME[c].label
        for c in profile.columns()
        if profile.mean("encoder", c)[0, 0] == profile.mean("encoder", c)[0, 0]
    ]


def test_alike_heads_stand_together():
    page = DiagnosePage(diag_view="alike", alike_kind="cross").fine()
    profile = shipped_profile()
    points = classical_scaling(np.sqrt(profile.distances("cross"))).points
    drawn = np.concatenate([
        np.stack([numbers(t["x"]), numbers(t["y"])], 1)
        for t in page.charts["plane"]["data"] if t["type"] == "scatter" and "customdata" in t and len(numbers(t["x"])) > 0
    ])  # fmt: skip
    for point in points:
        assert np.abs(drawn - point).sum(1).min() < 1e-5


def test_examining_texts_gives_what_the_core_gives():
    lines = ["The king had a ring.", "The wolf ran through the dark wood to the house of the old woman.", "She slept."]
    page = DiagnosePage(
        texts_from="typed", typed_texts="\n".join(["", *lines, " "]), diag_view="atlas", number="confidence"
    )
    page.set(ablation_texts=1)
    assert "Press the button" in page.app.info[0].value and not page.charts
    page.examine()
    expected = profile_of(recorded().model, lines)
    for kind, drawn in zip(expected.kinds, page.maps("atlas"), strict=True):
        np.testing.assert_allclose(drawn, expected.mean(kind, "confidence"), rtol=1e-4, atol=1e-6)
    for name in ("importance", "loss_zero", "loss_mean", "kl_zero"):
        page.set(number=name)
        values = np.concatenate([m.ravel() for m in page.maps("atlas")])
        assert np.isfinite(values).all() and np.ptp(values) > 0
    # Another page and back: it is all still there.
    page.app.switch_page("pages/build.py").run()
    page.app.switch_page("pages/diagnose.py").run()
    assert page.fine().maps("atlas") and page["number"] == "kl_zero"


def test_a_dead_head_of_a_copied_model_is_the_first_failure(tmp_path):
    model = load_model("embedded")
    plant_dead(model.module, "encoder", 2, 1)
    folder = saved(model.module, tmp_path / "copy", model.source_reader.tokenizer)
    page = DiagnosePage(model="folder", name=str(folder), story_count=12, **QUICK).examine()
    assert "the severest first" in page.words
    heading = next(m.value for m in page.app.markdown if m.value.startswith("**Dead:**"))
    assert "Encoder self-attention, layer 2, head 1" in heading
    assert page.table("number", "found", "told if")[1][1:] == ["0", "< 0.1"] or "0" in page.tables[0][1][1]
    page.set(against="neighbours")
    assert any(m.value.startswith("**Dead:**") for m in page.app.markdown)


def test_a_layer_switched_off_as_a_whole_is_told_under_the_rules_own_number():
    edits = edits_to_text([SwitchOff(kind="cross", layer=1)])
    page = DiagnosePage(
        edits=edits, with_edits=True, texts_from="typed", typed_texts="The king slept.", **QUICK
    ).examine()
    assert sum(m.value.startswith("**Dead:**") for m in page.app.markdown) == 8
    first = next(table for table in page.tables if table[0] == ["number", "found", "told if", "unit"])
    assert first[1] == ["share of the output over an equal share", "0", "< 0.1", "times an equal share"]
    assert page.app.number_input(key="t_dead_equal_share").label == first[1][0]
    # So short a text says nothing about long range.
    assert any("Not tested" in w and "Lost long range" in w and "45 tokens" in w for w in page.warnings)


def test_what_could_not_be_tested_stands_beside_the_success():
    page = DiagnosePage(texts_from="typed", typed_texts="The king slept.", **QUICK).examine()
    (said,) = [s.value for s in page.app.success]
    assert "No rule that could be tested finds a failure" in said
    (told,) = [w for w in page.warnings if "Not tested" in w]
    assert told.count("Lost long range") == 3 and "Cross-attention" in told


def test_a_reference_of_another_model_and_what_is_the_same_in_it_are_said(tmp_path):
    model = load_model("embedded")
    with torch.no_grad():
        next(model.module.parameters()).add_(1e-6)
    folder = saved(model.module, tmp_path / "tuned", model.source_reader.tokenizer)
    page = DiagnosePage(model="folder", name=str(folder), story_count=4, **QUICK).examine()
    assert "The reference is of another model" in page.captions
    same = DiagnosePage(t_dead_equal_share=50.0).fine()
    assert "No rule finds a failure" in same.app.success[0].value
    assert "just so in the reference" in same.captions and "another model" not in same.captions


def test_heads_made_short_sighted_by_the_edits_of_what_if_are_found():
    edits = edits_to_text([Window(kind="encoder", layer=1, width=1)])
    page = DiagnosePage(edits=edits, with_edits=True, story_count=24, **QUICK).examine()
    heading = next(m.value for m in page.app.markdown if m.value.startswith("**Lost long range:**"))
    assert "Encoder self-attention, layer 1" in heading
    page.set(t_short_sighted_reach=0.0)
    assert not any(m.value.startswith("**Lost long range:**") for m in page.app.markdown)
    page.click("limits_default")
    assert any(m.value.startswith("**Lost long range:**") for m in page.app.markdown)


def test_a_finding_opens_its_worst_example_in_explore():
    page = DiagnosePage().fine()
    worst = next(f for f in diagnose(shipped_profile(), shipped_profile()).observations if f.rule == "sink")
    page.click("group_sink_explore")
    assert (page["kind"], page["layer"], page["h"]) == (worst.kind, worst.layer, worst.heads[0])
    assert page["source"] == stories()[worst.example] and page["show"] == "one"
    assert "explore_one" in page.charts or page.charts


def test_a_head_is_switched_off_in_what_if():
    page = DiagnosePage(diag_view="atlas", d_kind="cross", d_layer=1, d_head=3).fine()
    page.click("chosen_whatif")
    assert edits_from_text(page["edits"]) == (SwitchOff(kind="cross", layer=1, heads=(3,)),)
    assert "if_tokens" in page.charts


def test_a_file_of_texts_and_its_broken_lines(tmp_path):
    page = DiagnosePage(texts_from="file", diag_view="atlas", **QUICK)
    page.refused("choose a file")
    text = b"text,target\nThe king slept.,The king.\nbroken\nThe wolf ran.,The wolf.\n" + b"\xff\xfe,x\n"
    page.app.file_uploader(key="texts_file").set_value(("texts.csv", text, "text/csv")).run()
    page.fine()
    assert len(page.warnings) == 2 and "was skipped" in page.warnings[0]
    page.examine()
    expected = profile_of(recorded().model, ["The king slept.", "The wolf ran."], targets=["The king.", "The wolf."])
    for kind, drawn in zip(expected.kinds, page.maps("atlas"), strict=True):
        np.testing.assert_allclose(drawn, expected.mean(kind, "output_share"), rtol=1e-4, atol=1e-6)


def test_a_job_can_be_stopped_and_goes_on():
    page = DiagnosePage(story_count=60, ablation_texts=3, diag_view="atlas", number="confidence").click("examine")
    deadline = time.monotonic() + 60
    while not page.charts and time.monotonic() < deadline:
        time.sleep(0.1)
        page.app.run()
    page.click("diagnose_stop")
    deadline = time.monotonic() + 60
    while any(b.key == "diagnose_stop" for b in page.app.button) and time.monotonic() < deadline:
        time.sleep(0.1)
        page.app.run()
    assert page.app.button(key="examine").label == "Go on" and page.fine().charts
    page.set(story_count=61)
    assert page.app.button(key="examine").label == "Examine 61 texts"


def test_an_encoder_alone_has_no_likelihood_columns(tmp_path):
    folder = saved_bert(tmp_path / "bert")
    page = DiagnosePage(
        source="the cat", model="folder", name=str(folder), texts_from="typed", typed_texts="the cat\nHello world",
        diag_view="table",
    ).fine()  # fmt: skip
    assert not [t for t in page.app.toggle if t.key in ("with_gradients", "with_ablation")]
    page.examine()
    assert len(page.heads) == 6
    assert not {"importance", "loss_zero", "kl_mean"} & set(page.heads.columns) and "entropy" in page.heads.columns
    page.set(diag_view="findings")
    assert not page.errors and "the other heads of the layer" in page.words + page.captions


def test_a_hostile_text_does_no_harm():
    page = DiagnosePage(source=HOSTILE, texts_from="one", diag_view="table", **QUICK).examine()
    assert not page.errors and len(page.heads) == 72


def test_a_link_opens_the_same_view():
    query = {"diag_view": "atlas", "number": "sink", "t_dead_equal_share": "0.2", "source": SHORT}
    page = DiagnosePage(query).fine()
    assert page.app.query_params == query and page["t_dead_equal_share"] == 0.2


def test_a_target_written_under_edits_is_read_against_its_source():
    edits = (Forbid(kind="cross", after=4),)
    page = DiagnosePage(
        source=SHORT, mode="greedy", edits=edits_to_text(edits), with_edits=True, diag_view="reading"
    ).fine()  # fmt: skip
    written = [trace(recorded(SHORT).model, SHORT, generate=True, edits=each).generated_text[0] for each in ((), edits)]
    assert written[0] != written[1]
    shown = html.unescape(re.sub(r"<[^>]+>", " ", "".join(e.proto.body for e in page.app.get("html"))))
    words = [set(re.findall(r"[A-Za-z]{4,}", text)) for text in (*written, SHORT)]
    only = words[1] - words[0] - words[2]
    # Long words may stand in pieces.
    assert only and sum(word in shown for word in only) > len(only) / 2


def test_edits_of_a_link_count_however_they_are_written_and_stand_in_the_command():
    edits = 'SwitchOff(kind="cross", layer=2, heads=(1,))'
    page = DiagnosePage(
        {"edits": f"[{edits}]", "with_edits": "1", "texts_from": "typed", "source": SHORT, "diag_view": "atlas"}
    )
    page.set(with_gradients=False, ablation_texts=1).examine()
    assert not page.errors and page.charts
    (code,) = (c.value for c in page.app.code if c.value.startswith("python -m"))
    words = shlex.split(code)
    assert edits_from_text(words[words.index("--edits") + 1]) == (SwitchOff(kind="cross", layer=2, heads=(1,)),)
    assert words[words.index("--ablation") + 1] == "1" and "--gradients" not in words
    assert main([w if w != "texts.txt" else "no such file.txt" for w in words[3:]]) != 0  # its options are known
