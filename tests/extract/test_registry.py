"""The attention function inside a model: what it refuses, and which modules it finds."""

import pytest
import torch
from transformers import DebertaV2Config, DebertaV2Model

from attention_core import AttentionError, load_model, masks, trace
from attention_core.extract.registry import Call, attention_modules, sites
from tests.extract import forms
from tests.extract.forms import FORMS

SOURCE = [0, 11, 12, 13, 14, 2]


def call(options: dict | None = None, heads: int = 4, key_heads: int = 4, mask=None, causal=False) -> Call:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, n, length, 3) for n, length in ((heads, 5), (key_heads, 7), (key_heads, 7)))
    return Call(torch.nn.Linear(1, 1), query, key, value, mask, 0.0, 0.5, causal, options or {})


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_kind_layer_and_heads_are_read_from_names_and_causality(form):
    found = sites(attention_modules(forms.built(form)))
    settings = form.settings
    for kind, depth in zip(forms.KINDS, form.layers):
        of_kind = [site for site in found if site.kind == kind]
        # ALBERT calls one module for every layer.
        assert [site.layer for site in of_kind] == list(range(min(depth, 1) if form.name == "albert" else depth))
        sides = ["encoder"] if kind == "encoder" else ["decoder"]
        names = [f"{sides[0]}_attention_heads", "num_attention_heads", "num_heads", "n_heads", "n_head"]
        assert {site.num_heads for site in of_kind} <= {next(settings[name] for name in names if name in settings)}


def test_the_modules_found_are_those_that_call_the_registry(fix_b):
    run = trace(fix_b, SOURCE)
    assert {site.name for site, _ in run._records.values()} == set(attention_modules(fix_b.module))


def test_a_model_without_the_registry_is_refused_when_it_is_loaded():
    small = {
        "vocab_size": 60,
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "intermediate_size": 20,
    }
    model = DebertaV2Model(DebertaV2Config(**small))
    before = model.config._attn_implementation
    with pytest.raises(AttentionError, match="DebertaV2Model cannot be looked into"):
        load_model(model)
    assert model.config._attn_implementation == before


def test_a_module_that_is_no_transformers_model_is_refused():
    with pytest.raises(AttentionError, match="must be a transformers model"):
        load_model(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["softcap", "s_aux", "sliding_window", "something_new"])
def test_a_keyword_that_changes_the_attention_and_is_not_known_is_an_error(name):
    with pytest.raises(AttentionError, match=f"computes its attention with {name}, which is not supported here"):
        call({name: 2.0}).steps()
    assert call({name: None}).steps().weights.shape == (1, 4, 5, 7)


def test_a_sliding_window_is_already_in_a_mask_that_was_made():
    mask = masks.window(5, 7, width=1)[None, None]
    assert torch.equal(call({"sliding_window": 2}, mask=mask).steps().full_mask()[0, 0], mask[0, 0])


def test_a_position_bias_is_added_before_the_mask_and_changes_the_weights():
    bias = torch.randn(1, 4, 5, 7)
    with_bias, without = call({"position_bias": bias}).steps(), call().steps()
    assert torch.allclose(with_bias.scores, without.scores + bias)
    assert torch.allclose(with_bias.weights, (without.scores + bias).softmax(-1))
    one = call({"position_bias": bias}).steps([2])
    assert torch.allclose(one.weights, with_bias.weights[:, [2]], atol=1e-6)


def test_heads_that_share_keys_are_repeated():
    steps = call(heads=6, key_heads=2).steps()
    assert steps.key.shape == (1, 6, 7, 3)
    assert torch.equal(steps.key[:, 0], steps.key[:, 2]) and not torch.equal(steps.key[:, 2], steps.key[:, 3])


def test_without_a_mask_causality_comes_from_the_module():
    assert torch.equal(call(causal=False).mask(), masks.full(5, 7)[None, None])
    assert torch.equal(call(causal=True).mask(), masks.causal(5, 7)[None, None])


@pytest.mark.parametrize("name", ["bart_unequal", "mbart", "t5", "bert", "bert_decoder"])
def test_every_mask_is_shown_whether_the_library_wrote_it_out_or_relied_on_causality(name):
    model = load_model(forms.built(forms.BY_NAME[name]))
    for exact in (True, False):
        run = trace(model, forms.ids(7), exact=exact)
        for kind in run.kinds:
            for layer in range(run.num_layers(kind)):
                call = run.call(kind, layer)
                expected = masks.causal(7) if kind == "decoder" else masks.full(7)
                assert call.mask().shape == (2, 1, 7, 7) and call.mask().dtype == torch.bool
                assert torch.equal(call.mask()[1, 0], expected)
                assert not exact or call.attention_mask is not None
                assert torch.equal(run.steps(kind, layer).full_mask()[1, 0], expected)


def test_a_float_mask_is_refused_not_guessed(fix_b):
    mask = torch.zeros(1, 1, 6, 6)
    seen = []
    module = fix_b.module.model.encoder.layers[0].self_attn
    module.register_forward_pre_hook(
        lambda m, args, kwargs: (args, kwargs | {"attention_mask": mask}), with_kwargs=True
    )
    with pytest.raises(AttentionError, match=r"a mask must be boolean.*from_additive"):
        seen.append(trace(fix_b, SOURCE, exact=True))
    assert not seen


def test_pads_leak_nowhere_though_fused_attention_runs(fix_b):
    run = trace(fix_b, [*SOURCE, 1, 1], attention_mask=[1] * 6 + [0] * 2, target=[2, 0, 21])
    for kind in ("encoder", "cross"):
        steps = run.steps(kind, 1)
        assert steps.mask is not None and not steps.weights[..., 6:].any()
    assert torch.equal(run.steps("decoder", 0).full_mask()[0, 0], masks.causal(3))
