"""Mean contexts: the mean over positions, by hand, and the shipped ones."""

import pytest
import torch

from attention_core import AttentionError, load_model, trace
from attention_core.extract import means
from attention_core.extract.interventions import SwitchOff

TEXTS = ["the cat", "Hello world and the two cats", "a"]


def test_means_are_over_all_positions_of_all_texts(text_model):
    seen = []
    found = means.mean_contexts(text_model, TEXTS, on_progress=lambda *done: seen.append(done))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    for kind, layer in (("encoder", 2), ("decoder", 1), ("cross", 0)):
        contexts = [trace(text_model, text).steps(kind, layer).context[0] for text in TEXTS]
        rows = torch.cat(contexts, 1)  # (heads, rows of all texts, head_dim)
        torch.testing.assert_close(found.vectors[kind, layer], rows.mean(1), atol=1e-6, rtol=1e-5)
        assert found.positions[kind] == rows.shape[1]
    assert set(found.vectors) == {(site.kind, site.layer) for site in text_model.sites}


def test_a_head_switched_off_by_its_mean_adds_it_everywhere(text_model):
    found = means.mean_contexts(text_model, TEXTS)
    edit = SwitchOff(kind="cross", layer=1, heads=(1,), by="mean")
    context = trace(text_model, "the world", edits=[edit], means=found).steps("cross", 1).context[0]
    assert torch.equal(context[1], found.vectors["cross", 1][1].expand_as(context[1]))
    assert not torch.equal(context[0], found.vectors["cross", 1][0].expand_as(context[0]))


def test_means_survive_their_file(text_model, tmp_path):
    found = means.mean_contexts(text_model, TEXTS)
    means.save_means(found, tmp_path / "means.safetensors")
    again = means.load_means(tmp_path / "means.safetensors")
    assert again.positions == found.positions and set(again.vectors) == set(found.vectors)
    assert all(torch.equal(again.vectors[place], vector) for place, vector in found.vectors.items())
    (tmp_path / "other").write_text("{}")
    with pytest.raises(AttentionError, match="does not hold mean contexts"):
        means.load_means(tmp_path / "other")


def test_no_texts_have_no_mean(text_model):
    with pytest.raises(AttentionError, match="need at least one text"):
        means.mean_contexts(text_model, [])


def test_the_shipped_means_are_those_of_the_stories():
    """A sample of the stories agrees with the shipped file; all of them take half a minute."""
    model = load_model("embedded")
    shipped = means.mean_contexts(model)
    stories = means.stories()
    sample = means.mean_contexts(model, stories[::7])
    cut = [model.cut_text(story) for story in stories]
    assert shipped.positions["encoder"] == shipped.positions["cross"] == sum(map(model.count_tokens, cut))
    for place, vector in shipped.vectors.items():
        assert (vector - sample.vectors[place]).norm() / vector.norm() < 0.25, place
