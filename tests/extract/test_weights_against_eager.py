"""The weights of every form, kind, layer and head equal those of the library's own eager attention.

The reference is loaded by transformers alone, from the same folder.
"""

import pytest
import torch
import transformers
from torch import Tensor

from attention_core.extract.models import load_model
from attention_core.extract.trace import trace
from tests.extract import forms
from tests.extract.forms import FORMS, SOURCE_LEN, TARGET_LEN

PADDINGS = ("no padding", "right padding")
FORM = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """For each form: the reference, loaded by transformers alone, and the same files loaded to be looked into."""
    made = {}

    def pair(form):
        if form.name not in made:
            folder = forms.saved(forms.built(form), tmp_path_factory.mktemp(form.name))
            model_class = getattr(transformers, form.model)
            reference = model_class.from_pretrained(folder, attn_implementation="eager").eval()
            # A folder of a bare BartModel is given its language head back, so the bare module is loaded from memory.
            source = model_class.from_pretrained(folder).eval() if form.name == "bart_bare" else folder
            made[form.name] = reference, load_model(source)
        return made[form.name]

    return pair


def fed(form, padding: str) -> tuple[dict, dict]:
    """The same inputs for the library and for trace."""
    source, target = forms.ids(SOURCE_LEN), forms.ids(TARGET_LEN, seed=2)
    library, ours = {"input_ids": source}, {"source": source}
    if form.layers[2]:
        library |= {"decoder_input_ids": target, "use_cache": False}
        ours["target"] = target
    if padding == "right padding":
        library["attention_mask"] = forms.padded_right(SOURCE_LEN).long()
        ours["attention_mask"] = forms.padded_right(SOURCE_LEN)
        if form.layers[2]:
            library["decoder_attention_mask"] = forms.padded_right(TARGET_LEN).long()
            ours["target_mask"] = forms.padded_right(TARGET_LEN)
    return library, ours


def differences(run, maps: dict[str, tuple[Tensor, ...]]) -> list[float]:
    """The largest difference for each kind and layer, once for all heads and once for one head."""
    found = []
    for kind, layers in maps.items():
        assert run.num_layers(kind) == len(layers)
        for layer, expected in enumerate(layers):
            head = layer % expected.shape[1]
            for heads, wanted in ((None, expected), ([head], expected[:, [head]])):
                weights = run.steps(kind, layer, heads).weights
                assert weights.shape == wanted.shape
                found.append((weights - wanted).abs().max().item())
    return found


@FORM
def test_every_map_is_bit_equal_in_exact_mode_and_within_1e_5_in_fused_mode(form, pairs):
    reference, model = pairs(form)
    exact, fused = [], []
    for padding in PADDINGS:
        library, ours = fed(form, padding)
        maps = forms.eager_maps(reference, library)
        assert min(m.std() for layers in maps.values() for m in layers) > 0.05, "uniform maps would compare nothing"
        exact += differences(trace(model, **ours, exact=True), maps)
        fused += differences(trace(model, **ours), maps)
    assert len(exact) == len(fused) == sum(form.layers) * 2 * len(PADDINGS)
    assert exact == [0.0] * len(exact)
    assert max(fused) <= 1e-5


@FORM
def test_logits_are_those_of_the_model(form, pairs):
    reference, model = pairs(form)
    library, ours = fed(form, "right padding")
    if form.name == "bart_bare":
        with pytest.raises(ValueError, match="BartModel has no language head"):
            trace(model, **ours).logits()
        return
    with torch.no_grad():
        expected = reference(**library).logits
    assert torch.equal(trace(model, **ours, exact=True).logits(), expected)
    with torch.no_grad():
        plain = model.module(**library).logits
    assert torch.equal(trace(model, **ours).logits(), plain)  # a fused recording is the plain run
    assert torch.allclose(trace(model, **ours).logits([2, 0]), expected[:, [2, 0]], rtol=1e-4, atol=1e-4)


@FORM
def test_query_key_and_value_are_the_projected_inputs_and_output_is_the_projected_context(form, pairs):
    _, model = pairs(form)
    run = trace(model, **fed(form, "right padding")[1])
    if form.name == "gpt2":
        with pytest.raises(ValueError, match="projections of GPT2Attention are not known"):
            run.projections("decoder", 0)
        return
    compared = 0
    for kind in run.kinds:
        for layer in range(run.num_layers(kind)):
            steps, made = run.steps(kind, layer), run.projections(kind, layer)
            for head in range(run.num_heads(kind)):
                part = made.head(head)
                for name in ("query", "key", "value"):
                    x, weight, bias = (getattr(part, f"{name}_{what}") for what in ("input", "weight", "bias"))
                    expected = torch.nn.functional.linear(x, weight, bias)
                    assert torch.allclose(getattr(steps, name)[:, head], expected, atol=1e-5)
                    compared += 1
            merged = steps.context.transpose(1, 2).flatten(2)
            expected = torch.nn.functional.linear(merged, made.out_weight, made.out_bias)
            assert torch.equal(steps.output, expected)
            assert run.steps(kind, layer, [0]).output is None
    heads = [run.num_heads(kind) * run.num_layers(kind) for kind in run.kinds]
    assert compared == 3 * sum(heads)


def test_a_left_padded_decoder_is_equal_on_its_visible_rows(pairs):
    form = forms.BY_NAME["bart_unequal"]
    reference, model = pairs(form)
    library, ours = fed(form, "no padding")
    mask = torch.arange(TARGET_LEN) >= torch.tensor([[0], [2]])
    maps = forms.eager_maps(reference, library | {"decoder_attention_mask": mask.long()})
    run = trace(model, **ours, target_mask=mask, exact=True)
    assert [str(notice)[:40] for notice in run.notices] == ["the target is not padded on the right: a"]
    compared = 0
    for kind in ("decoder", "cross"):
        for layer, expected in enumerate(maps[kind]):
            weights = run.steps(kind, layer).weights
            for text in range(2):
                assert torch.equal(weights[text][:, mask[text]], expected[text][:, mask[text]])
                compared += 1
    # The library spreads a row without a visible key evenly over pads and future; here it stays empty.
    empty = run.steps("decoder", 0).weights[1][:, ~mask[1]]
    assert torch.equal(empty, torch.zeros_like(empty))
    assert compared == 2 * 2 * 2


def eager_twin(model: torch.nn.Module) -> torch.nn.Module:
    """The same weights under the library's eager attention."""
    twin = type(model)(model.config)
    twin.load_state_dict(model.state_dict())
    twin.set_attn_implementation("eager")
    return twin.eval()


def test_maps_equal_the_library_at_a_length_where_products_are_split():
    ours = forms.built(forms.changed("bart_unequal", max_position_embeddings=320))
    source, target = torch.randint(5, 60, (1, 307)), torch.randint(5, 60, (1, 211))
    maps = forms.eager_maps(eager_twin(ours), {"input_ids": source, "decoder_input_ids": target, "use_cache": False})
    model = load_model(ours)
    assert max(differences(trace(model, source, target=target, exact=True), maps)) == 0.0
    assert max(differences(trace(model, source, target=target), maps)) <= 1e-5


WIDE = {
    "bart": {"d_model": 512, "encoder_attention_heads": 8, "decoder_attention_heads": 4},
    "bert": {"hidden_size": 520, "num_attention_heads": 4},
}


@pytest.mark.parametrize("name", WIDE)
def test_wide_projections_are_cut_to_the_heads_and_the_module_is_left_alone(name):
    ours = forms.built(forms.changed(name, **WIDE[name]))
    with torch.no_grad():
        for parameter in ours.parameters():  # weights of a narrow model would saturate a wide one
            parameter.mul_(0.25)
    form = forms.BY_NAME[name]
    library, inputs = fed(form, "right padding")
    maps = forms.eager_maps(eager_twin(ours), library)
    before = {name: x.clone() for name, x in ours.state_dict().items()}
    model = load_model(ours)
    run = trace(model, **inputs)
    for kind, layers in maps.items():
        for layer, expected in enumerate(layers):
            call = run._call(kind, layer, [1])
            assert call.is_cut and call.query.shape[1] == 1
            whole = run.steps(kind, layer)
            for heads in ([1], [0, 3], [2, 3]):
                steps = run.steps(kind, layer, heads)
                assert (steps.weights - expected[:, heads]).abs().max() <= 1e-5
                assert torch.allclose(steps.value, whole.value[:, heads], atol=1e-5)
                assert torch.allclose(steps.context, whole.context[:, heads], atol=1e-5)
    assert trace(model, **inputs, exact=True).steps(kind, 0, [1]).weights.equal(maps[kind][0][:, [1]])
    assert all(torch.equal(x, before[name]) for name, x in ours.state_dict().items())
