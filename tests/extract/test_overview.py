"""The pooled maps of all layers and heads."""

import numpy as np
import pytest
import torch

from attention_core import AttentionError, load_model, trace
from attention_core.extract import overview as overview_module
from attention_core.extract.overview import block_maximum
from tests.extract import forms


def test_short_maps_are_the_weights_themselves(text_model):
    run = trace(text_model, ["Hello world", "the"])
    for kind in run.kinds:
        for text in range(2):
            seen = run.overview(kind, text)
            assert (seen.row_block, seen.column_block) == (1, 1)
            assert seen.weights.dtype == np.float32
            for layer in range(run.num_layers(kind)):
                steps = run.steps(kind, layer)
                assert np.allclose(seen.weights[layer], steps.weights[text], atol=1e-6)
                assert np.array_equal(seen.visible[layer], steps.full_mask()[text, 0])


def test_long_maps_are_pooled_by_the_largest_weight_of_each_block(monkeypatch):
    form = forms.BY_NAME["bart_unequal"]
    settings = form.settings | {"max_position_embeddings": 128}
    model = load_model(forms.built(forms.Form("long", form.model, form.config, settings, form.layers)))
    run = trace(model, torch.randint(5, 60, (1, 101)), target=torch.randint(5, 60, (1, 43)))
    monkeypatch.setattr(overview_module, "_GROUP_NUMBERS", 1)  # one head at a time
    seen = run.overview("cross", limit=20)
    assert seen.weights.shape == (2, 2, 15, 17) and (seen.row_block, seen.column_block) == (3, 6)
    weights = run.steps("cross", 1).weights[0].numpy()
    for row in range(15):
        for column in range(17):
            block = weights[:, 3 * row : 3 * row + 3, 6 * column : 6 * column + 6]
            assert np.allclose(seen.weights[1, :, row, column], block.max((1, 2)), atol=1e-6)
    causal = run.overview("decoder", limit=20).visible
    assert np.array_equal(causal[0], np.tril(np.ones((15, 15), dtype=bool)))


def test_what_cannot_be_pooled(text_model):
    with pytest.raises(AttentionError, match=r"limit \(0\) must be at least 1"):
        block_maximum(torch.zeros(2, 3), 0)
    with pytest.raises(AttentionError, match="text 1 is not in this batch"):
        trace(text_model, "a").overview("cross", text=1)
