"""Norm-weighted maps against the vectors written out one by one."""

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration

from attention_core import AttentionConfig, MultiHeadAttention, load_model, masks, trace
from attention_core.analysis.norms import head_norms, layer_norms, moved_vectors, value_norms
from attention_core.errors import AttentionError


@pytest.fixture
def layer():
    """A layer with unequal lengths and prime sizes, its steps and its projections."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(AttentionConfig(d_model=15, num_heads=3))
    for name, parameter in layer.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(parameter)
    x, keys = torch.randn(2, 5, 15), torch.randn(2, 7, 15)
    with torch.no_grad():
        return layer.steps(x, keys, mask=masks.causal(5, 7)), layer.projections(x, keys)


def written_out(steps, projections, head: int, batch: int, key: int) -> torch.Tensor:
    """f_h(x_j) = (x_j W_V,h + b_V,h) W_O,h, from the whole matrices."""
    rows = slice(head * 5, head * 5 + 5)
    value = projections.value_input[batch, key] @ projections.value_weight[rows].T + projections.value_bias[rows]
    return value @ projections.out_weight[:, rows].T


def test_every_cell_against_the_vectors_written_out(layer):
    steps, projections = layer
    heads, whole, lengths = head_norms(*layer), layer_norms(*layer), value_norms(*layer)
    assert heads.shape == (2, 3, 5, 7) and whole.shape == (2, 5, 7) and lengths.shape == (2, 3, 7)
    for batch in range(2):
        for key in range(7):
            vectors = torch.stack([written_out(steps, projections, head, batch, key) for head in range(3)])
            assert torch.allclose(lengths[batch, :, key], vectors.norm(dim=-1), atol=1e-6)
            for query in range(5):
                moved = steps.weights[batch, :, query, key, None] * vectors
                assert torch.allclose(heads[batch, :, query, key], moved.norm(dim=-1), atol=1e-6)
                assert torch.allclose(whole[batch, query, key], moved.sum(0).norm(), atol=1e-6)


def test_the_vectors_and_the_bias_sum_to_the_output(layer):
    steps, projections = layer
    moved = torch.einsum("bhij,bhjd->bid", steps.weights, moved_vectors(steps, projections))
    assert torch.allclose(moved + projections.out_bias, steps.output, atol=1e-5)


def test_a_hidden_key_moves_nothing(layer):
    steps, _ = layer
    hidden = ~steps.full_mask()
    assert hidden.any()
    assert (head_norms(*layer)[hidden] == 0).all()
    assert (layer_norms(*layer)[hidden[:, 0]] == 0).all()


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_a_real_module_gives_its_own_output(kind):
    torch.manual_seed(1)
    config = BartConfig(
        vocab_size=53, d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=3, decoder_attention_heads=2,
        encoder_ffn_dim=17, decoder_ffn_dim=17, max_position_embeddings=19, init_std=0.5,
    )  # fmt: skip
    run = trace(
        load_model(BartForConditionalGeneration(config).eval(), device="cpu"), [0, 11, 12, 13, 2], target=[2, 0, 21]
    )
    steps, projections = run.steps(kind, 0), run.projections(kind, 0)
    moved = torch.einsum("bhij,bhjd->bid", steps.weights, moved_vectors(steps, projections))
    assert torch.allclose(moved + projections.out_bias, steps.output, atol=1e-5)
    one = run.steps(kind, 0, [1])
    assert torch.equal(head_norms(one, projections, [1])[:, 0], head_norms(steps, projections)[:, 1])


def test_what_cannot_be_is_said(layer):
    steps, projections = layer
    with pytest.raises(AttentionError, match="3 heads, not 1"):
        head_norms(steps, projections, [0])
