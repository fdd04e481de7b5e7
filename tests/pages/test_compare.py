"""The Compare page through app.py: its numbers against the core's and plain torch's, its sentences, its links."""

import math
import re

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

from pages.ui import compare_settings, explore_settings, playground
from pages.ui.compare_settings import SETTINGS, SHARED, THINGS
from tests.extract.forms import byte_tokenizer, saved
from tests.pages.compare_reader import ComparePage, recorded, weights
from tests.pages.page_reader import EMBEDDED, HOSTILE, ROOT, SHORT

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is not in this copy"
)


def test_the_first_view_is_a_finished_proof():
    page = ComparePage().fine()
    assert "**Equal.**" in page.app.success[0].value and not page.app.warning and not page.errors
    rows = page.table("stage")
    assert [row[0][0] for row in rows[1:]] == list("QKVSACO")
    assert all(row[-1] in ("equal", "bit‑equal") for row in rows[1:])
    assert {row[0].split()[1]: row[-1] for row in rows[1:]}["Context"] == "equal"
    ours, theirs, difference = page.panels("proof")
    np.testing.assert_allclose(theirs, weights(), atol=1e-5)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_array_equal(difference, theirs - ours)
    assert page.limits("proof")[:2] == [(0, 1), (0, 1)]
    assert page.app.query_params == {}


def test_every_attention_is_proved_on_the_page():
    page = ComparePage(source=SHORT)
    for kind in ("encoder", "decoder", "cross"):
        for layer in range(3):
            page.set(kind_a=kind, layer_a=layer, head_a=layer)
            assert page.app.success[0].value.startswith("**Equal"), (kind, layer)


def test_the_whole_model():
    page = ComparePage(source=SHORT, whole_model=True).fine()
    assert "9 attentions from scratch" in page.app.success[1].value and "Equal" in page.app.success[1].value
    texts = [t.value for t in page.app.text]
    assert len(texts) == 2 and texts[0] == texts[1] and len(texts[0]) > 5
    table = page.table("token")
    assert len(table) == 6 and all(row[1] == row[2] for row in table[1:])


def test_each_change_and_its_words():
    page = ComparePage(compare="change")
    real = weights()
    run = recorded()
    scores = run.steps("cross", 2, [7]).scores[0, 0]
    expected = {
        "scale": torch.softmax(scores / math.sqrt(8), -1),
        "temperature": torch.softmax(scores / 2, -1),
    }
    said = {
        "scale": "0.0625 in place of 0.177", "temperature": "divides every score by 2", "mask": "within 2 positions",
        "preset": "mean over the 8 heads of the real matrix's diagonal 32 × 32 blocks", "cut": "4 heads in place of 8",
        "biases": "Without the bias of K", "weights": "in another order", "half": "11 binary digits",
    }  # fmt: skip
    for thing in THINGS:
        page.set(thing=thing)
        before, after, difference = page.panels("change")
        np.testing.assert_allclose(before, real, atol=1e-5)
        np.testing.assert_allclose(difference, np.nan_to_num(after) - before, atol=1e-6)
        if thing in expected:
            np.testing.assert_allclose(after, expected[thing], atol=1e-5)
        assert said[thing] in page.words, thing
        assert ("This head" in page.words) and "module's output" in page.words
        low, high = page.limits("change")[2]
        assert low == -high < 0
    window = page.set(thing="mask").panels("change")[1]
    rows, columns = np.indices(window.shape)
    assert (np.isnan(window) == (abs(rows - columns) > 2)).all()
    assert "stayed as sharp" in page.set(thing="biases", no_bias=["key"]).words
    assert "did not move at all" in page.set(thing="preset", other_preset="bert").words
    assert "0 everywhere" in page.words


def test_random_weights_and_untrained():
    page = ComparePage(compare="untrained").fine()
    fresh, real, _difference = page.panels("untrained")
    np.testing.assert_allclose(real, weights(), atol=1e-5)
    other = page.set(other_seed=1).panels("untrained")[0]
    assert not np.allclose(fresh, other)
    assert "a new layer on the same input has" in page.words
    patterns = page.table("pattern")
    assert [row[0] for row in patterns[1:]] == ["first token"]
    patterns = page.set(kind_a="encoder").table("pattern")
    assert [row[0] for row in patterns[1:]] == ["first token", "previous token", "itself", "next token"]


def test_the_wrong_scale_hides_the_number_of_heads(tmp_path):
    """Case 40: identity weights, tokens 2 e0 and 2 e1, eight features, in a model that a person opens."""
    shown = {}
    for heads in (1, 2, 4):
        folder = saved(_fixture_a(heads), tmp_path / str(heads), _two_tokens())
        page = ComparePage(compare="change", model="folder", name=str(folder), source="a b", kind_a="encoder",
                           layer_a=0, head_a=0).fine()  # fmt: skip
        assert not page.errors, page.errors
        real, wrong, _difference = page.panels("change")
        shown[heads] = real[0]
        np.testing.assert_allclose(wrong[0], [0.8044, 0.1956], atol=5e-5)
        if heads == 2:
            np.testing.assert_array_equal(page.set(head_a=1).panels("change")[0][0], [0.5, 0.5])
    np.testing.assert_allclose(shown[1], [0.8044, 0.1956], atol=5e-5)
    np.testing.assert_allclose(shown[2], [0.8808, 0.1192], atol=5e-5)
    np.testing.assert_allclose(shown[4], [0.9442, 0.0558], atol=5e-5)


def _fixture_a(heads: int) -> torch.nn.Module:
    config = BartConfig(vocab_size=300, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=heads,
                        decoder_attention_heads=heads, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=8)  # fmt: skip
    model = BartForConditionalGeneration(config).eval()
    encoder = model.model.encoder
    with torch.no_grad():
        encoder.embed_positions.weight.zero_()
        embeddings = model.model.shared.weight
        embeddings.zero_()
        first, second = _two_tokens()("a b")["input_ids"]
        embeddings[first, 0] = embeddings[second, 1] = 1
        # Layer norm makes a row of one 1 into high, low, low, ...: stretched so that it is 2, 0, 0, ...
        high, low = 7 / math.sqrt(7), -1 / math.sqrt(7)
        encoder.layernorm_embedding.weight.fill_(2 / (high - low))
        encoder.layernorm_embedding.bias.fill_(-low * 2 / (high - low))
        attention = encoder.layers[0].self_attn
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            getattr(attention, name).weight.copy_(torch.eye(8))
            getattr(attention, name).bias.zero_()
    return model


def _two_tokens() -> PreTrainedTokenizerFast:
    """A tokenizer that adds no control tokens: "a b" is two tokens."""
    tokenizer = byte_tokenizer(words=("Ġb",))
    from tokenizers import processors

    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def test_links_carry_everything():
    query = {"compare": "change", "thing": "temperature", "heat": "3.5", "kind_a": "encoder", "layer_a": "1", "head_a": "4",
             "source": SHORT}  # fmt: skip
    page = ComparePage(query).fine()
    assert page.app.query_params == query
    assert page["heat"] == 3.5 and "divides every score by 3.5" in page.words
    again = ComparePage(page.app.query_params).fine()
    np.testing.assert_array_equal(again.panels("change")[1], page.panels("change")[1])


def test_what_a_link_cannot_say_is_said():
    page = ComparePage({"compare": "nothing", "layer_a": "77", "heat": "nan", "unknown": "1"}).fine()
    said = " ".join(w.value for w in page.app.warning)
    assert all(name in said for name in ("`compare`", "`heat`", "`unknown`")) and "Layer 77" in said
    assert page["layer_a"] == 2 and page.app.success


def test_settings_collide_with_no_other_page():
    own = set(SETTINGS) - set(SHARED)
    assert not own & set(explore_settings.SETTINGS) and not set(SETTINGS) - {"colours"} & set(playground.SETTINGS)
    assert not set(SETTINGS) & {"embed", "embed_options"}
    assert all(SETTINGS[key] is explore_settings.SETTINGS[key] for key in SHARED)


def test_a_text_is_shown_as_it_is():
    page = ComparePage(compare="change", thing="scale", source=HOSTILE).fine()
    assert not page.errors
    for view in compare_settings.VIEWS:
        page.set(compare=view)
        for element in (*page.app.markdown, *page.app.caption):
            outside = re.sub(r"`[^`]*`", "", element.value)
            assert "<b>" not in outside and ":red[" not in outside and "![" not in outside


def test_an_empty_text_is_refused():
    ComparePage(source="").refused("empty")
    page = ComparePage(compare="heads", pair="texts", source_b="")
    page.refused("empty")


def test_one_token_has_nothing_to_compare():
    page = ComparePage(compare="heads", kind_a="decoder", mode="typed", target="a").fine()
    assert not page.errors
    page.set(compare="change")
    assert not page.errors


def test_long_texts_have_a_window():
    source = " ".join(["the king saw the queen and the old wolf"] * 12)
    page = ComparePage(source=source, compare="change").fine()
    assert not page.errors
    maps = page.panels("change")
    assert maps[0].shape == (32, 32)
    np.testing.assert_allclose(maps[0], weights(source)[:32, :32], atol=1e-6)
    figures = [name for name in page.charts if "whole" in name]
    assert figures == ["change_whole_first", "change_whole_second", "change_whole_difference"]
    assert "a pixel is what is largest in its block, up or down" in page.words
    page.set(from_q=40, from_k=9)
    np.testing.assert_allclose(page.panels("change")[0], weights(source)[40:72, 9:41], atol=1e-6)


@pytest.mark.parametrize("view", compare_settings.VIEWS)
def test_the_python_of_a_view_runs(view, capsys):
    page = ComparePage(compare=view, source=SHORT).fine()
    (code,) = [c.value for c in page.app.code if "load_model" in c.value]
    found = {}
    exec(compile(code, view, "exec"), found)
    if view == "prove":
        assert found["equality"].equal
    elif view == "heads":
        (values,) = page.panels("head_matrix")
        from attention_core.analysis.compare import cluster_order

        order = cluster_order(found["distances"])
        np.testing.assert_allclose(found["distances"][np.ix_(order, order)], values, atol=1e-6)
    else:
        shown = page.panels(view)[0 if view == "untrained" else 1]
        np.testing.assert_allclose(found["after"].weights[0, 7], shown, atol=1e-6)
    capsys.readouterr()


def test_charts_have_alt_texts():
    page = ComparePage()
    for view in compare_settings.VIEWS:
        page.set(compare=view)
        charts = page.app.get("plotly_chart")
        assert charts and all(len(chart.proto.alt) > 30 for chart in charts)


def test_explore_and_compare_share_their_text():
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=240)
    app.switch_page("pages/explore.py").run()
    app.text_area(key="source").set_value(SHORT).run()
    for page in ("compare", "explore", "compare"):
        app.switch_page(f"pages/{page}.py").run()
        assert app.session_state["source"] == SHORT and not app.exception, page
    app.text_area(key="source").set_value("The wolf ran.").run()
    for page in ("explore", "compare", "build", "compare"):
        app.switch_page(f"pages/{page}.py").run()
        assert page == "build" or app.session_state["source"] == "The wolf ran.", page
