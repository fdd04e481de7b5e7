"""Head against head on the Compare page: two heads, two texts, two models, all heads of a kind, the best match."""

import numpy as np
import pytest
import torch
from transformers import BartForConditionalGeneration, BertConfig, BertModel, PreTrainedTokenizerFast

from tests.extract.forms import saved
from tests.pages.compare_reader import ComparePage, recorded, value, weights
from tests.pages.page_reader import EMBEDDED, SHORT

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is not in this copy"
)


def test_the_same_head_on_both_sides():
    """Case 22: both charts draw, the difference is 0 everywhere, the divergence 0."""
    page = ComparePage(compare="heads", pair="heads", layer_b=2, head_b=7).fine()
    first, second, difference = page.panels("pair_maps")
    np.testing.assert_array_equal(first, second)
    assert not difference.any()
    assert page.table("number")[1] == ["Jensen-Shannon divergence, mean of rows", "0"]
    assert page.table("number")[2] == ["largest difference of a weight", "0"]


def test_two_heads():
    page = ComparePage(compare="heads", pair="heads", layer_b=0, head_b=3).fine()
    first, second, difference = page.panels("pair_maps")
    np.testing.assert_allclose(second, weights(layer=0, head=3), atol=1e-5)
    np.testing.assert_allclose(difference, second - first, atol=1e-7)
    # Encoder and cross-attention: other queries.
    page.set(kind_a="encoder").refused("these maps stand over different tokens", "position 0")
    page.set(kind_b="encoder").fine()
    assert not page.errors


def test_texts_of_other_lengths_are_refused_or_aligned():
    """Case 16: 12 and 13 tokens have no cells in common; words have."""
    page = ComparePage(compare="heads", pair="texts", source="a a a a a a a a a a", source_b="a a a a a a a a a a a")
    assert recorded("a a a a a a a a a a").source_ids.shape[1] == 12
    page.refused("12 on one side, 13 on the other")
    page.set(source_b="a a a a a a a a a old")
    assert not page.errors and page.panels("pair_maps")[0].shape == (12, 12)
    page.set(source=SHORT, source_b="The queen had a golden ring.", by_words=True)
    assert not page.errors
    first, second, _difference = page.panels("pair_maps")
    assert first.shape == second.shape and first.shape[1] == first.shape[0] + 1
    np.testing.assert_allclose(first.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(second.sum(1), 1, atol=1e-5)


def test_the_matrix_of_head_distances():
    page = ComparePage(compare="heads", kind_a="decoder", source=SHORT).fine()
    (values,) = page.panels("head_matrix")
    assert values.shape == (24, 24) and (values == values.T).all() and (np.diag(values) == 0).all()
    layout = page.charts["head_matrix"]["layout"]
    assert len(layout["xaxis"]["ticktext"]) >= 12
    table = page.table("head", "head")
    assert len(table) == 11 and value(table[1][2]) <= value(table[-1][2])


def test_the_best_match_of_a_custom_layer():
    page = ComparePage(compare="heads", pair="match", custom="change", thing="half", source=SHORT).fine()
    table = page.table("custom head")
    # Rounded to half precision, every head still fits best where it came from.
    assert [row[1] for row in table[1:]] == [f"layer 2, head {h}" for h in range(8)]
    assert "8 of 8 heads fit best where they came from" in page.words
    assert "of 8 heads fit best" in page.set(custom="untrained").words


@pytest.fixture(scope="module")
def perturbed(tmp_path_factory):
    """The embedded model with one head's queries changed, as a person's fine-tuned folder."""
    folder = tmp_path_factory.mktemp("tuned")
    model = BartForConditionalGeneration.from_pretrained(EMBEDDED)
    with torch.no_grad():
        model.model.encoder.layers[0].self_attn.q_proj.weight[32:64] *= 0.1
    model.save_pretrained(folder)
    PreTrainedTokenizerFast.from_pretrained(EMBEDDED).save_pretrained(folder)
    return folder


def test_two_models_on_one_text(perturbed):
    """Base against fine-tuned: the head that was changed comes first."""
    page = ComparePage(compare="heads", pair="models", kind_a="encoder", layer_a=0, head_a=2, source=SHORT).fine()
    assert not page.panels("pair_maps")[2].any()
    page.set(model_b="folder").refused("name the second model")
    page.set(name_b=str(perturbed))
    assert not page.errors
    table = page.table("head", "divergence")
    assert table[1][0] == "layer 0, head 1" and value(table[1][1]) > 5 * value(table[2][1])
    assert not page.panels("pair_maps")[2].any()
    assert page.set(head_a=1).panels("pair_maps")[2].any()


def test_a_second_model_without_that_attention(tmp_path):
    config = BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                        max_position_embeddings=40)  # fmt: skip
    folder = saved(BertModel(config), tmp_path)
    state = {"compare": "heads", "pair": "models", "model_b": "folder", "name_b": str(folder), "source": SHORT}
    ComparePage(**state).refused("has no `cross` attention")
    # Another tokenizer, other tokens: refused, or aligned by words.
    page = ComparePage(**state, kind_a="encoder").refused("these maps stand over different tokens")
    page.set(by_words=True)
    assert not page.errors and page.panels("pair_maps")[0].shape[0] >= 4
    # As the first model, what it lacks gives way and is said.
    page = ComparePage(model="folder", name=str(folder), source=SHORT).fine()
    assert page["kind_a"] == "encoder" and page["layer_a"] == 0 and page["head_a"] == 1
    assert sum("is shown" in w.value for w in page.app.warning) == 3
    assert page.app.success[0].value.startswith("**Equal")
    assert "no language head" in page.set(whole_model=True).errors[0]
