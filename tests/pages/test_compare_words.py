"""What the Compare page says about numbers that differ."""

import pytest
import torch

from attention_core import AttentionConfig, MultiHeadAttention
from attention_core.analysis.changes import Change, OutputEffect, changed_steps
from attention_core.analysis.compare import compare_maps
from attention_core.analysis.equality import compare_steps
from pages.ui import compare_words

D_MODEL, HEADS, LENGTH = 15, 3, 7


@pytest.fixture(scope="module")
def real():
    """Steps and projections of a layer with weights and biases that matter."""
    generator = torch.Generator().manual_seed(0)
    layer = MultiHeadAttention(AttentionConfig(D_MODEL, HEADS)).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
        x = torch.randn(1, LENGTH, D_MODEL, generator=generator)
        return layer.steps(x), layer.projections(x)


def verdict(real, change: Change) -> str:
    steps, projections = real
    return compare_words.verdict(
        compare_steps(changed_steps(projections, steps.scale, steps.mask, change)[1], steps, projections)
    )


def test_a_fault_is_named(real):
    assert verdict(real, Change()).startswith("**Equal, to the last bit.**")
    assert verdict(real, Change(dtype="float64")).startswith("**Equal.**")
    for change, stage in (
        (Change(without_bias=("query",)), "Queries"),
        (Change(without_bias=("value",)), "Values"),
        (Change(scale="d_model"), "Scores"),
        (Change(mask="causal"), "Weights"),
        (Change(without_bias=("out",)), "Output"),
    ):
        said = verdict(real, change)
        assert said.startswith(f"**Not equal: {stage} is the first stage that differs**"), said
        assert ("rotary" in said) == (stage == "Queries")


def happened(real, change: Change, rows=None) -> str:
    steps, projections = real
    after = changed_steps(projections, steps.scale, steps.mask, change)[1]
    compared = compare_maps(steps.weights[:, :1], after.weights[:, :1], steps.mask, after.mask)
    return compare_words.happened(compared, rows or [f"t{i}" for i in range(LENGTH)])


def test_what_happened(real):
    assert "flatter" in happened(real, Change(temperature=3.0))
    assert "sharper" in happened(real, Change(temperature=0.3))
    assert "stayed as sharp" in happened(real, Change(without_bias=("key",)))
    assert "0 everywhere" in happened(real, Change())
    said = happened(real, Change(scale="none"), [f"*t{i}*" for i in range(LENGTH)])
    assert any(f"row {i}, `*t{i}*`" in said for i in range(LENGTH))


def test_a_map_without_a_choice():
    one = torch.ones(1, 1, 3, 1)
    assert "nothing to compare" in compare_words.happened(compare_maps(one, one), ["a", "b", "c"])


def test_what_the_output_did():
    assert "did not move" in compare_words.output_moved(OutputEffect(0.0, 1.0, 0.0))
    said = compare_words.output_moved(OutputEffect(0.25, 0.5, 1.0))
    assert "25 %" in said and "0.5" in said


def test_what_training_made():
    assert "taught heads where to look" in compare_words.trained(0.2, 0.9)
    assert "did not make" in compare_words.trained(0.95, 0.9)
