"""Many threads share one model, and a trace leaves nothing behind on it."""

import copy
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
import torch

from attention_core import AttentionError, load_model, trace
from attention_core.extract import recording
from attention_core.extract.interventions import Editing
from attention_core.extract.session import Session, is_any_open, opened
from tests.extract import forms
from tests.extract.forms import FORMS

SOURCE = [0, 11, 12, 13, 14, 2]


def state(model) -> dict:
    """Everything on a model that a trace could change: hooks, configuration, parameters, buffers, mode."""
    modules = dict(model.module.named_modules())
    return {
        "hooks": {
            name: [len(hooks) for key, hooks in vars(module).items() if key.endswith("_hooks")]
            for name, module in modules.items()
        },
        "attributes": {name: sorted(vars(module)) for name, module in modules.items()},
        "config": model.module.config.to_dict(),
        "generation": model.module.generation_config.to_dict() if model.report.can_generate else None,
        "attention": model.module.config._attn_implementation,
        "numbers": {name: x.clone() for name, x in model.module.state_dict(keep_vars=False).items()},
        "training": model.module.training,
    }


def equal(a: dict, b: dict) -> bool:
    numbers = [one.pop("numbers") for one in (a, b)]
    same = numbers[0].keys() == numbers[1].keys() and all(torch.equal(numbers[0][k], numbers[1][k]) for k in numbers[0])
    return same and a == b


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_idle_is_bit_equal_to_the_librarys_fused_attention(form):
    plain = forms.built(form)
    plain.set_attn_implementation("sdpa")
    model = load_model(forms.built(form))
    inputs = {"input_ids": forms.ids(7), "attention_mask": forms.padded_right(7).long()}
    if form.layers[2]:
        inputs["decoder_input_ids"] = forms.ids(5, seed=2)
    with torch.no_grad():
        assert torch.equal(plain(**inputs)[0], model.module(**inputs)[0])
    trace(model, [5, 6, 7])
    with torch.no_grad():
        assert torch.equal(plain(**inputs)[0], model.module(**inputs)[0])


def test_a_trace_finished_or_failed_changes_nothing(text_model):
    before = state(text_model)
    run = trace(text_model, "Hello world", target="the cat")
    run.steps("cross", 0)
    run.overview("encoder")
    trace(text_model, "Hello world", generate=True)
    with pytest.raises(AttentionError):
        trace(text_model, "the " * 40)
    handle = text_model.module.model.decoder.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # in the middle of a run
        trace(text_model, "Hello world")
    handle.remove()
    assert not is_any_open()
    assert equal(before, state(text_model))


def test_loading_twice_hooks_once():
    module = forms.fix_b()
    hooks = [state(load_model(module))["hooks"] for _ in range(2)]
    assert hooks[0] == hooks[1]
    assert sum(map(sum, hooks[0].values())) >= 7


def test_many_threads_with_different_texts_get_what_they_get_alone(text_model):
    texts = ["Hello world", "the cat", "a", "two cats and the world", "x y z", "the the the the"]
    kinds = ("encoder", "decoder", "cross")

    def maps(text: str) -> list[torch.Tensor]:
        run = trace(text_model, text)
        return [run.steps(kind, layer).weights for kind in kinds for layer in range(run.num_layers(kind))]

    alone = {text: maps(text) for text in texts}
    start = threading.Barrier(6)

    def visitor(number: int) -> int:
        start.wait()
        agreed = 0
        for turn in range(20):
            text = texts[(number + turn) % len(texts)]
            agreed += all(torch.equal(a, b) for a, b in zip(maps(text), alone[text], strict=True))
        return agreed

    before = state(text_model)
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(visitor, range(6))) == [20] * 6
    assert equal(before, state(text_model))


def test_a_thread_that_only_runs_the_model_sees_no_session(text_model):
    ids = torch.tensor([SOURCE])
    with torch.no_grad():
        expected = text_model.module(ids)[0]
        seen = recording.Recording(Editing(text_model, ()), exact=False)
        with opened(seen), ThreadPoolExecutor(1) as pool:
            found = pool.submit(lambda: text_model.module(ids)[0]).result()
            assert is_any_open()
            assert not copy_context().run(lambda: pool.submit(is_any_open).result())
    assert torch.equal(found, expected) and not seen.records


def test_another_model_in_the_same_thread_is_left_alone():
    first, second = load_model(forms.fix_b()), load_model(forms.fix_b())
    seen = recording.Recording(Editing(first, ()), exact=True)
    with torch.no_grad(), opened(seen):
        second.module(torch.tensor([SOURCE]))
    assert not seen.records


def test_a_copy_of_a_model_can_be_looked_into_and_keeps_apart():
    original = load_model(forms.fix_b())
    twin = load_model(copy.deepcopy(original.module))
    assert state(twin)["hooks"] == state(original)["hooks"]
    with torch.no_grad():
        twin.module.model.encoder.layers[0].self_attn.q_proj.weight.mul_(2)
    runs = [trace(model, SOURCE, exact=True).steps("encoder", 0) for model in (original, twin)]
    assert torch.allclose(2 * (runs[0].query), runs[1].query, atol=1e-5)
    assert not torch.equal(runs[0].weights, runs[1].weights)


def test_sessions_close_after_an_error_and_nest():
    outer, inner = Session({}), Session({})
    with pytest.raises(ZeroDivisionError), opened(outer), opened(inner):
        raise ZeroDivisionError
    assert not is_any_open()


def test_a_run_that_recorded_nothing_is_an_error():
    model = load_model(forms.fix_b())
    for module in model.modules.values():
        module._forward_pre_hooks.clear()
    with pytest.raises(AttentionError, match=r"recorded no attention at all.*load the model again"):
        trace(model, SOURCE)


def test_a_record_holds_no_graph_and_no_cache(fix_b):
    run = trace(fix_b, SOURCE)
    held = [x for _, record in run._records.values() for x in (*record.args, *record.kwargs.values())]
    assert not any(isinstance(x, torch.Tensor) and x.requires_grad for x in held)
    names = {name for _, record in run._records.values() for name in record.kwargs}
    assert not names & {"cache", "past_key_values", "use_cache"}
    first = run.steps("decoder", 1)
    assert torch.equal(first.weights, run.steps("decoder", 1).weights)  # a cache would have grown


def test_a_model_is_freed_when_it_is_dropped():
    model = load_model(forms.fix_b())
    trace(model, SOURCE).steps("cross", 0)
    gone = weakref.ref(model.module)
    gc.collect()
    gc.disable()  # by reference counts alone: a frozen model is never reached by a collection
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_a_trace_holds_little_more_than_the_hidden_states():
    form = forms.BY_NAME["bart"]
    settings = form.settings | {"max_position_embeddings": 512}
    model = load_model(forms.built(forms.Form("long", form.model, form.config, settings, form.layers)))
    run = trace(model, torch.randint(5, 60, (1, 503)))
    held = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for _, record in run._records.values()
        for x in (*record.args, *record.kwargs.values())
        if isinstance(x, torch.Tensor)
    }
    hidden, mask = 503 * 24 * 4, 503 * 503
    # encoder: 2 inputs; decoder: 2 of each kind; the encoder's output; one mask a kind, though full ones need no room
    assert sum(held.values()) <= 7 * hidden + 3 * mask
    assert run.steps("encoder", 0, [0]).weights.shape == (1, 1, 503, 503)


def test_gradients_pass_through_an_idle_model(fix_b):
    fix_b.module(torch.tensor([SOURCE])).logits.sum().backward()
    assert fix_b.module.model.encoder.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0
