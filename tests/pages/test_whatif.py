"""The What-if page through app.py: its numbers against runs made apart from it, its edits, its links, its refusals."""

import html
import re
import time

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from attention_core import load_model, trace
from attention_core.analysis.effects import changed_heads, text_changes, token_effects
from attention_core.analysis.importance import ablation_effects
from attention_core.extract.interventions import (
    EDITS,
    Forbid,
    FromScratch,
    Scale,
    SwitchOff,
    Uniform,
    edits_from_text,
    edits_to_text,
)
from pages.ui import whatif_settings
from pages.ui.explore_settings import DEFAULT_SOURCE
from tests.extract.forms import byte_tokenizer, saved, saved_bert
from tests.pages.compare_reader import recorded, value
from tests.pages.page_reader import EMBEDDED, HOSTILE, SHORT, PageReader, numbers

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is not in this copy"
)


class WhatIfPage(PageReader):
    path = "pages/whatif.py"

    @property
    def edits(self) -> tuple:
        return edits_from_text(self["edits"]) if self["edits"] else ()

    def click(self, key: str) -> "WhatIfPage":
        self.app.button(key=key).click().run()
        return self.fine()

    def series(self) -> list[np.ndarray]:
        """Lines of the likelihood's figure: before and after, or the one there is."""
        return [numbers(t["y"]) for t in self.charts["if_tokens"]["data"] if "lines" in t["mode"]]

    def written(self) -> str:
        """What stands under "The model writes", without its marks."""
        (body,) = [e.proto.body for e in self.app.get("html") if "The model writes" in e.proto.body]
        return html.unescape(re.sub(r"<[^>]+>", "", body.split("</div>", 1)[1])).strip()


def edited(edits, source=DEFAULT_SOURCE, **options):
    return trace(recorded(source).model, source, edits=edits, **options)


def library_losses(source: str) -> np.ndarray:
    """ln p of each label by plain transformers."""
    run = recorded(source)
    with torch.no_grad():
        logits = run.model.module(input_ids=run.source_ids, labels=run.source_ids, use_cache=False).logits[0]
    return logits.log_softmax(-1).gather(1, run.source_ids[0][:, None])[:, 0].numpy()


def test_the_first_view_is_the_model_as_it_is():
    page = WhatIfPage().fine()
    assert not page.errors and not page.warnings and page.edits == () and page.app.query_params == {}
    (line,) = page.series()
    np.testing.assert_allclose(line, library_losses(DEFAULT_SOURCE), atol=1e-5)
    said = re.search(r"\*\*([\d.e−]+) nats a token", page.words)
    assert value(said[1]) == pytest.approx(-library_losses(DEFAULT_SOURCE).mean(), rel=5e-3)
    written = trace(recorded().model, DEFAULT_SOURCE, generate=True).generated_text[0]
    assert page.written() == written


@pytest.mark.parametrize("name", ["strongest", "blind", "scale", "previous"])
def test_each_experiment_is_a_link_and_a_button(name):
    page = WhatIfPage({"experiment": name}).fine()
    assert not page.errors and page.edits and "**Watch**" in page.app.info[0].value
    pressed = WhatIfPage().click(f"experiment_{name}")
    assert pressed.edits == page.edits
    run = recorded()
    half = run.source_ids.shape[1] // 2
    if name == "blind":
        assert page.edits == (Forbid(kind="cross", after=half - 1),)
    elif name == "scale":
        assert page.edits == tuple(Scale(kind=kind) for kind in ("encoder", "decoder", "cross"))
    else:
        for edit in page.edits:
            assert isinstance(edit, SwitchOff) and edit.by == "zero"
            for head in edit.heads:
                check_head(name, run, edit, head)
    effects = token_effects(run, edited(page.edits))
    before, after = page.series()
    np.testing.assert_allclose(before, effects.before, atol=1e-5)
    np.testing.assert_allclose(after, effects.after, atol=1e-4)
    assert "Watch" not in "".join(i.value for i in page.click("remove_0").app.info)


def check_head(name: str, run, edit, head: int) -> None:
    """The head is what the experiment says: worked out here from the maps and the output projection."""
    if name == "previous":
        weights = run.steps(edit.kind, edit.layer, [head]).weights[0, 0]
        mass = weights.diagonal(-1) if edit.kind == "encoder" else weights.diagonal(-1)[1:]
        assert mass.mean() > 0.45  # of rows that see two keys; row 1 of a decoder counts on the page
        return
    shares = {}
    for layer in range(run.num_layers("cross")):
        steps, projections = run.steps("cross", layer), run.projections("cross", layer)
        size = steps.context.shape[-1]
        lengths = [
            float((steps.context[0, h] @ projections.out_weight[:, h * size : (h + 1) * size].T).norm(dim=1).mean())
            for h in range(steps.context.shape[1])
        ]
        shares |= {(layer, h): length / sum(lengths) for h, length in enumerate(lengths)}
    assert max(shares, key=shares.get) == (edit.layer, head)


FORM = {
    "SwitchOff": {"off_by": "mean"},
    "Forbid": {"on_keys": [3, 5], "and_after": True, "on_queries": [4]},
    "Force": {"on_keys": [1, 2]},
    "Window": {"on_width": 2},
    "Temperature": {"on_heat": 3.0},
    "Scale": {"on_rule": "own", "on_scale": 0.25},
    "Untrained": {"on_seed": 5},
}


def test_every_edit_can_be_made_and_taken_back():
    assert set(whatif_settings.WHAT) == set(EDITS)
    page = WhatIfPage(source=SHORT)
    for what in whatif_settings.WHAT:
        kind = EDITS[what].kinds[-1]
        page.set(what=what)
        page.set(on_kind=kind, on_layer=1, on_heads=[2, 4], **FORM.get(what, {}))
        page.click("add_edit")
        assert not page.errors, what
        (edit,) = page.edits
        assert (type(edit).__name__, edit.kind, edit.layer, edit.heads) == (what, kind, 1, (2, 4))
        assert (page["if_kind"], page["if_layer"], page["if_head"]) == (kind, 1, 2)
        page.click("remove_0")
        assert page.edits == ()
    page.set(what="Forbid").set(on_kind="cross", on_layer=-1, on_heads=[], **FORM["Forbid"])
    page.click("add_edit")
    assert page.edits == (Forbid(kind="cross", keys=(3, 5), after=5, queries=(4,)),)
    tokens = recorded(SHORT).key_tokens("cross")
    for token in (tokens[3], tokens[5]):
        assert f"`{token}`" in page.app.button(key="remove_0").label
    page.set(what="SwitchOff", off_by="zero", on_layer=2).click("add_edit")
    assert len(page.edits) == 2 and page.edits[1] == SwitchOff(kind="cross", layer=2)
    assert page.click("undo").edits == page.edits[:1]
    assert page.click("remove_0").edits == ()


def test_an_edit_without_its_words_cannot_be_made():
    page = WhatIfPage(source=SHORT, what="Forbid", on_keys=[])
    assert page.app.button(key="add_edit").disabled and not page.errors


def test_the_written_text_is_marked_where_it_differs():
    edits = (Forbid(kind="cross", after=4),)
    page = WhatIfPage({"source": SHORT, "edits": edits_to_text(edits)}).fine()
    texts = [edited(each, SHORT, generate=True).generated_text[0] for each in ((), edits)]
    assert texts[0] != texts[1]
    assert page.written() == " ".join(part.words for part in text_changes(*texts))
    (body,) = [e.proto.body for e in page.app.get("html") if "The model writes" in e.proto.body]
    assert len(re.findall("<ins ", body)) == sum(p.what == "added" for p in text_changes(*texts)) > 0


def test_the_edited_model_reads_what_the_unedited_one_wrote():
    edits = (Uniform(kind="encoder", layer=1),)
    page = WhatIfPage({"source": SHORT, "mode": "greedy", "edits": edits_to_text(edits)}).fine()
    run = trace(recorded(SHORT).model, SHORT, generate=True)
    after = edited(edits, SHORT, target=run.target_ids)
    before, line = page.series()
    expected = token_effects(run, after)
    np.testing.assert_allclose(before, expected.before, atol=1e-5)
    np.testing.assert_allclose(line, expected.after, atol=1e-4)


def test_maps_before_and_after_and_which_moved():
    edits = (Uniform(kind="encoder", layer=1, heads=(2,)),)
    page = WhatIfPage({"source": SHORT, "edits": edits_to_text(edits), "if_view": "heads", "if_kind": "encoder",
                       "if_layer": 1, "if_head": 2}).fine()  # fmt: skip
    before, after, difference = (numbers(t["z"]) for t in page.charts["whatif"]["data"] if t["type"] == "heatmap")
    np.testing.assert_allclose(before, recorded(SHORT).steps("encoder", 1, [2]).weights[0, 0], atol=1e-5)
    np.testing.assert_allclose(after, 1 / after.shape[1], atol=1e-6)
    np.testing.assert_allclose(difference, after - before, atol=1e-6)
    maps = [numbers(t["z"]) for t in page.charts["if_moved"]["data"] if t["type"] == "heatmap"]
    for kind, drawn in zip(("encoder", "decoder", "cross"), maps, strict=True):
        expected = changed_heads(recorded(SHORT), edited(edits, SHORT), kind).numpy()
        np.testing.assert_allclose(drawn, np.where(expected < 1e-9, 0, expected), atol=1e-5)
    assert (maps[0][0] == 0).all() and maps[0][1, 2] > 0


def test_the_sweep_ranks_every_head_and_its_winner_is_the_strongest():
    page = WhatIfPage(source=SHORT, if_view="sweep")
    assert "each by itself" in page.captions
    page.click("sweep_go")
    deadline = time.monotonic() + 240
    while any(b.key == "sweep_stop" for b in page.app.button) and time.monotonic() < deadline:
        time.sleep(0.3)
        page.app.run()
    page.fine()
    effect = list(ablation_effects(recorded(SHORT).model, [SHORT], by=("zero",)))[-1]
    expected = {kind: effect.profile.mean(kind, "loss_zero") for kind in ("encoder", "decoder", "cross")}
    maps = [numbers(t["z"]) for t in page.charts["sweep_atlas"]["data"] if t["type"] == "heatmap"]
    for kind, drawn in zip(expected, maps, strict=True):
        np.testing.assert_allclose(drawn, expected[kind], atol=1e-4)
    losses = [value(row[1]) for row in page.table("head", "rise")[1:]]
    assert losses == sorted(losses, reverse=True) and losses[0] == pytest.approx(
        max(x.max() for x in expected.values()), rel=5e-3
    )
    page.click("sweep_take")
    (edit,) = page.edits
    assert expected[edit.kind][edit.layer, edit.heads[0]] == max(x.max() for x in expected.values())
    # The experiment now goes by the effect.
    strongest = WhatIfPage({"experiment": "strongest", "source": SHORT}).edits[0]
    assert expected["cross"][strongest.layer, strongest.heads[0]] == expected["cross"].max()


def test_an_edit_that_leaves_nothing_to_see_is_said_in_words():
    page = WhatIfPage({"source": SHORT, "edits": "[Forbid(kind='decoder', layer=0, keys=(0,))]"}).fine()
    (said,) = page.warnings
    assert "without anything to look at" in said and "leaves 1 of" in said
    assert np.isfinite(page.series()[1]).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[SwitchOff(kind='cross', layer=7)]", "beyond the last one"),
        ("[SwitchOff(kind='cross', heads=(31,))]", "beyond the last one"),
        ("[Previous(kind='cross')]", "is defined for"),
        ("[__import__('os').system('x')]", "edits are written as a list"),
        ("<b>x</b>", "edits are written as a list"),
    ],
)
def test_edits_of_a_link_that_cannot_be_are_said_and_taken_back(text, said):
    page = WhatIfPage({"source": SHORT, "edits": text})
    page.refused(said)
    assert page.click("take_back").edits == () and not page.errors and page.series()


def test_a_link_opens_the_same_view_and_the_python_gives_the_same_numbers(capsys):
    edits = (SwitchOff(kind="encoder", layer=2, heads=(1, 3), by="mean"), Scale(kind="cross", rule=0.1))
    query = {"source": SHORT, "edits": edits_to_text(edits), "if_row": "2", "mode": "typed", "target": "The king."}
    page = WhatIfPage(query).fine()
    assert page.app.query_params == query
    code = next(c.value for c in page.app.code if "load_model" in c.value)
    found = {}
    exec(compile(code, "view", "exec"), found)
    before, after = page.series()
    np.testing.assert_allclose(found["effects"].before, before, atol=1e-5)
    np.testing.assert_allclose(found["effects"].after, after, atol=1e-4)
    assert str(found["effects"].loss_after) in capsys.readouterr().out


def test_an_encoder_alone_has_no_target_and_fewer_experiments(tmp_path):
    folder = saved_bert(tmp_path / "bert")
    page = WhatIfPage(source="the cat", model="folder", name=str(folder), what="SwitchOff", on_kind="encoder").fine()
    assert not page.errors and "if_tokens" not in page.charts and "if_next" in page.charts
    assert page.app.button(key="experiment_blind").disabled and page.app.button(key="experiment_strongest").disabled
    page.set(on_layer=0, on_heads=[1]).click("add_edit")
    assert page.edits == (SwitchOff(kind="encoder", layer=0, heads=(1,)),)
    bars = [numbers(t["x"]) for t in page.charts["if_next"]["data"] if t["type"] == "bar"]
    model = load_model(folder)
    runs = [trace(model, "the cat", edits=e) for e in ((), page.edits)]
    chances = [run.logits()[0, 0].softmax(-1) for run in runs]
    np.testing.assert_allclose(max(bars[0].max(), bars[1].max()), max(float(c.max()) for c in chances), atol=1e-5)
    for view in ("heads", "cells"):
        assert not page.set(if_view=view).errors
    assert "that needs a decoder beside an encoder" in page.set(if_view="sweep").app.info[0].value


def test_a_hostile_text_is_shown_as_it_is():
    page = WhatIfPage(source=HOSTILE, what="Forbid", on_kind="encoder", on_layer=-1, on_keys=[3, 4, 5, 6]).click(
        "add_edit"
    )
    assert not page.errors
    assert "<b>" not in "".join(e.proto.body for e in page.app.get("html")).replace("<b style", "")
    labels = page.app.get("button_group") or []
    assert len(recorded(HOSTILE).key_tokens("encoder")) > 10 and labels is not None


def test_a_model_with_fewer_heads_keeps_the_form_in_bounds():
    page = WhatIfPage(source=SHORT, on_layer=40, on_heads=[90, 2], if_layer=40).fine()
    assert page["on_layer"] == 2 and page["on_heads"] == [2] and page["if_layer"] == 2


def test_an_experiment_follows_the_text_and_an_edit_without_a_place_is_said():
    page = WhatIfPage({"experiment": "blind"}).fine()
    first = page.edits
    page.set(source="The wolf ran.")
    assert page.edits != first and page.edits[0].after < recorded("The wolf ran.").source_ids.shape[1] - 1
    page.set(edits=edits_to_text([Forbid(kind="encoder", keys=(40,))]), experiment="")
    assert "no such position" in page.warnings[0]
    np.testing.assert_allclose(*page.series(), atol=1e-4)


def test_from_scratch_moves_no_map():
    edits = edits_to_text([FromScratch(kind=kind) for kind in ("encoder", "decoder", "cross")])
    page = WhatIfPage({"edits": edits, "if_view": "heads", "source": SHORT}).fine()
    assert "No map changed" in page.captions and "if_moved" not in page.charts


@pytest.mark.parametrize("query", [{"what": "Window", "on_width": "100"}, {"what": "Temperature", "on_heat": "0.05"}])
def test_a_link_beyond_the_range_of_a_control_is_said(query):
    page = WhatIfPage({"source": SHORT, "on_kind": "encoder", **query}).fine()
    assert "Not understood in the link" in page.warnings[0]


def test_something_can_be_changed_though_a_link_holds_rubbish():
    page = WhatIfPage({"source": SHORT, "edits": "rubbish", "on_layer": "1", "on_heads": "2"})
    page.refused("edits are written as a list")
    page.click("add_edit")
    assert page.edits == (SwitchOff(kind="cross", layer=1, heads=(2,)),) and not page.errors


def test_of_several_edits_the_one_that_does_not_fit_can_be_taken_back():
    edits = (SwitchOff(kind="cross", layer=1, heads=(2,)), SwitchOff(kind="cross", layer=7))
    page = WhatIfPage({"source": SHORT, "edits": edits_to_text(edits)})
    page.refused("beyond the last one")
    page.click("remove_1")
    assert page.edits == edits[:1] and not page.errors and page.series()


def test_a_decoder_alone_is_asked_for_its_next_token(tmp_path):
    tokenizer = byte_tokenizer()
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=24, n_layer=2, n_head=3, n_positions=64, eos_token_id=2)
    torch.manual_seed(0)
    folder = saved(GPT2LMHeadModel(config), tmp_path / "gpt2", tokenizer)
    page = WhatIfPage(
        source="Hello the cat", model="folder", name=str(folder), what="Uniform", on_kind="decoder"
    ).fine()
    (line,) = page.series()
    run = trace(load_model(folder), "Hello the cat")
    with torch.no_grad():
        logs = run.model.module(run.source_ids).logits[0].log_softmax(-1)
    np.testing.assert_allclose(line, logs[:-1].gather(1, run.source_ids[0, 1:, None])[:, 0], atol=1e-5)
    page.set(if_row=1)
    assert f"Wanted: `{run.query_tokens('decoder')[2]}`" in page.words
    assert "that needs a decoder beside an encoder" in page.set(if_view="sweep").app.info[0].value


def test_the_box_of_steps_survives_another_text():
    page = WhatIfPage(source=SHORT, if_row=4)
    page.app.session_state["if_row"] = "4 ·a"  # what the browser sends where the names have changed
    page.app.session_state["source"] = "The wolf ran through the wood."
    page.app.run()
    assert page.fine()["if_row"] == 4
    box = next(b for b in page.app.selectbox if b.key == "if_row")
    assert box.options[0] == "where most changed" and not page.errors
