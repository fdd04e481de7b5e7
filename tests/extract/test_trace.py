"""What a trace says about a run: what was fed, what is refused, and the numbers that the collected reports name."""

import pytest
import torch

from attention_core import AttentionError, attention_steps, load_model, masks, trace
from attention_core.extract.inputs import Generation
from tests.extract import forms

SOURCE = [0, 11, 12, 13, 14, 2]
TARGET = [2, 0, 21, 22]


def eager_maps(**inputs) -> dict:
    """FIX-B's maps by the library's eager attention."""
    model = forms.fix_b()
    model.set_attn_implementation("eager")
    return forms.eager_maps(model, {"use_cache": False} | inputs)


# Case 07: what the decoder is fed


def test_without_a_target_the_library_shifts_the_source_and_starts_with_the_end_token(fix_b):
    run = trace(fix_b, [0, 11, 12, 13, 2])
    assert run.target_ids.tolist() == [[2, 0, 11, 12, 13]]
    assert run.target.origin == "shifted source"
    assert run.target.labels.tolist() == [[0, 11, 12, 13, 2]]
    weights = run.steps("decoder", 0).weights
    assert torch.equal(weights[0, :, 0], torch.eye(5)[[0]].expand(4, 5))
    assert run.steps("cross", 0).weights.shape == (1, 4, 5, 5)


def test_the_shifted_source_is_what_the_library_itself_computes(fix_b):
    ids = torch.tensor([[0, 11, 12, 13, 2]])
    with torch.no_grad():
        expected = forms.fix_b()(input_ids=ids, use_cache=False).logits
    assert torch.allclose(trace(fix_b, ids).logits(), expected, atol=1e-5)


def test_labels_of_both_axes_follow_the_exact_ids(text_model):
    run = trace(text_model, "Hello world")
    assert run.query_tokens("cross") == ["</s>", "<s>", "Hello", "·world"]
    assert run.key_tokens("cross") == ["<s>", "Hello", "·world", "</s>"]
    run = trace(text_model, "Hello world", target="the")
    assert run.query_tokens("decoder") == run.key_tokens("decoder") == ["</s>", "<s>", "t", "h", "e"]
    assert run.target.origin == "text"
    assert run.target.labels[0].tolist() == [*run.target_ids[0, 1:].tolist(), 2]
    assert [token.span for token in run.query_pieces("decoder")] == [None, None, (0, 1), (1, 2), (2, 3)]


def test_target_ids_are_fed_as_they_are(fix_b):
    run = trace(fix_b, SOURCE, target=TARGET)
    assert run.target_ids.tolist() == [TARGET]
    assert (run.target.origin, run.target.labels) == ("ids", None)


# Case 34: query, key, value and the scale


@pytest.mark.parametrize(("kind", "shape"), [("encoder", (6, 6)), ("decoder", (4, 4)), ("cross", (4, 6))])
def test_softmax_of_query_key_products_gives_the_weights_that_the_library_returns(fix_b, kind, shape):
    expected = eager_maps(input_ids=torch.tensor([SOURCE]), decoder_input_ids=torch.tensor([TARGET]))[kind][0]
    steps = trace(fix_b, SOURCE, target=TARGET, exact=True).steps(kind, 0)
    assert steps.query.shape == (1, 4, shape[0], 4) and steps.key.shape == steps.value.shape == (1, 4, shape[1], 4)
    assert steps.scores.shape == (1, 4, *shape)
    assert steps.scale == 4**-0.5
    mask = masks.causal(4) if kind == "decoder" else None
    again = attention_steps(steps.query, steps.key, steps.value, mask)
    assert torch.equal(again.weights, expected)
    assert torch.equal(steps.weights, expected)
    for wrong in (1.0, 16**-0.5):
        assert (attention_steps(steps.query, steps.key, steps.value, mask, wrong).weights - expected).abs().max() > 0.1


# Case 27: padding


def test_right_padding_with_a_mask_changes_nothing_and_without_one_is_told(fix_b):
    alone = trace(fix_b, [0, 11, 12, 2], exact=True).steps("encoder", 1).weights
    padded = trace(fix_b, [0, 11, 12, 2, 1, 1], attention_mask=[1, 1, 1, 1, 0, 0], exact=True)
    weights = padded.steps("encoder", 1).weights
    assert torch.equal(weights[..., :4, :4], alone)
    assert torch.equal(weights[..., 4:], torch.zeros(1, 4, 6, 2))
    assert torch.allclose(weights.sum(-1), torch.ones(1, 4, 6))
    assert padded.source.real.tolist() == [[True] * 4 + [False] * 2]
    assert padded.notices == ()
    careless = trace(fix_b, [0, 11, 12, 2, 1, 1])
    assert (careless.steps("encoder", 1).weights[..., :4, :4] - alone).abs().max() > 0.5
    assert [str(notice) for notice in careless.notices] == [
        "the source holds padding that is attended to, since no attention_mask was given"
    ]


def test_left_padding_of_a_source_is_told(fix_b):
    run = trace(fix_b, [1, 1, 0, 11, 12, 2], attention_mask=[0, 0, 1, 1, 1, 1])
    assert str(run.notices[0]).startswith("the source is not padded on the right")
    # The library shifts the source without a mask for the decoder; nothing is hidden there but the future.
    assert run.target.mask is None and run.target_ids.tolist() == [[2, 1, 1, 0, 11, 12]]


def test_a_batch_of_texts_gives_each_text_what_it_has_alone(text_model):
    texts, targets = ["Hello world", "a cat, the cat"], ["two", "the"]
    together = trace(text_model, texts, target=targets, exact=True)
    for text in range(2):
        alone = trace(text_model, texts[text], target=targets[text], exact=True)
        for kind in together.kinds:
            rows, columns = (len(alone.query_tokens(kind)), len(alone.key_tokens(kind)))
            assert together.query_tokens(kind, text)[:rows] == alone.query_tokens(kind)
            assert set(together.query_tokens(kind, text)[rows:]) <= {"<pad>", "</s>"}
            assert int(together.side(kind, "query").real[text].sum()) == rows
            for layer in range(together.num_layers(kind)):
                weights = together.steps(kind, layer).weights[text]
                assert torch.allclose(weights[:, :rows, :columns], alone.steps(kind, layer).weights[0], atol=1e-6)
                assert not weights[:, :rows, columns:].any()
    assert together.notices == ()


# Case 11: no visible key


def test_a_text_without_a_visible_token_has_empty_rows_and_a_notice(fix_b):
    run = trace(fix_b, SOURCE, attention_mask=[0] * 6, target=TARGET)
    assert str(run.notices[0]) == "a text of the source has no visible token: its attention means nothing"
    for kind in ("encoder", "cross"):
        steps = run.steps(kind, 0)
        assert not steps.weights.any() and not steps.context.any() and steps.output.isfinite().all()
    uniform = eager_maps(
        input_ids=torch.tensor([SOURCE]),
        attention_mask=torch.zeros(1, 6).long(),
        decoder_input_ids=torch.tensor([TARGET]),
    )["encoder"][0]
    assert torch.allclose(uniform, torch.full((1, 4, 6, 6), 1 / 6))  # what the library would have shown instead


# Case 20: limits


@pytest.mark.parametrize("side", ["source", "target"])
def test_the_limit_is_checked_before_the_model_runs(fix_b, side):
    def run(count):
        return trace(fix_b, **({"source": SOURCE} | {side: [11] * count}))

    assert run(16).num_layers("encoder") == 2
    calls = []
    fix_b.module.register_forward_pre_hook(lambda *_: calls.append(1))
    message = f"the {side} has 17 tokens, but this model takes at most 16: shorten it, or cut it with cut_text"
    with pytest.raises(AttentionError, match=message):
        run(17)
    assert not calls
    assert run(5).num_layers("encoder") == 2  # the next short one works


def test_an_overlong_text_says_both_counts_and_can_be_cut_where_it_is_seen(text_model):
    text = "the " * 40
    count, limit = text_model.count_tokens(text), text_model.limit()
    assert limit == 32 < count
    with pytest.raises(AttentionError, match=f"the source has {count} tokens, but this model takes at most 32"):
        trace(text_model, text)
    cut = text_model.cut_text(text)
    assert text.startswith(cut) and text_model.count_tokens(cut) == limit
    assert trace(text_model, cut).key_tokens("encoder")[-1] == "</s>"
    assert text_model.cut_text("the cat") == "the cat"


# Targets that the model writes


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_written_target_is_what_the_library_generates_and_is_traced_as_fed(text_model, num_beams):
    run = trace(text_model, "Hello world", generate=Generation(num_beams=num_beams, max_new_tokens=9))
    with torch.no_grad():
        expected = text_model.module.generate(
            run.source_ids, num_beams=num_beams, do_sample=False, max_new_tokens=9, max_length=None
        )
    assert run.target.origin == "generated"
    assert run.target_ids.tolist() == expected[:, :-1].tolist()
    assert run.target.labels.tolist() == expected[:, 1:].tolist()
    assert len(run.query_tokens("decoder")) == run.target_ids.shape[1]
    if num_beams == 1:  # every label is then the best next token of its row; BART forces the last one to be the end
        assert run.logits().argmax(-1)[:, :-1].tolist() == run.target.labels[:, :-1].tolist()


def test_writing_reports_progress_and_can_be_stopped(text_model):
    seen = []
    how = Generation(max_new_tokens=20, on_progress=seen.append, should_stop=lambda: len(seen) >= 4)
    run = trace(text_model, "Hello world", generate=how)
    assert seen == [1, 2, 3, 4]
    assert run.target_ids.shape[1] == 4
    assert "the text was stopped after 4 tokens" in map(str, run.notices)


def test_a_batch_is_written_with_its_padding_marked():
    model = load_model(forms.fix_b())
    with torch.no_grad():  # a model that ends at once unless its source holds token 30
        model.module.final_logits_bias[0, 2] = 9.0
    run = trace(model, [SOURCE, [0, 30, 30, 30, 30, 2]], generate=Generation(max_new_tokens=6))
    lengths = run.target.real.sum(1).tolist()
    for row, length in zip(run.target_ids.tolist(), lengths):
        assert 2 not in row[1:length] and set(row[length:]) <= {1, 2}


# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": ""}, "no tokenizer"),
        ({"source": []}, "shape"),
        ({"source": [[1, 2], [3]]}, "must be a text, a list of texts, or token ids"),
        ({"source": [0.5, 1.0]}, "whole numbers"),
        ({"source": [0, 50]}, "from 0 to 49; found 0 to 50"),
        ({"source": [-1, 4]}, "from 0 to 49; found -1 to 4"),
        (
            {"source": SOURCE, "attention_mask": [1, 1]},
            r"mask of shape \(1, 2\) does not fit the source ids of shape \(1, 6\)",
        ),
        ({"source": SOURCE, "attention_mask": [0, 2, 1, 1, 1, 1]}, "may hold 1"),
        ({"source": SOURCE, "target": [TARGET, TARGET]}, "1 sources and 2 targets"),
        ({"source": SOURCE, "target": TARGET, "generate": True}, "choose one"),
        ({"source": SOURCE, "target_mask": [1]}, "no target was given"),
        ({"source": SOURCE, "generate": Generation(max_new_tokens=0)}, "must be at least 1"),
    ],
)
def test_inputs_that_cannot_be_are_refused_in_one_sentence(fix_b, arguments, message):
    with pytest.raises(AttentionError, match=message):
        trace(fix_b, **arguments)


def test_kinds_layers_heads_and_texts_that_are_not_there(fix_b):
    run = trace(fix_b, SOURCE)
    for ask, message in (
        (lambda: run.steps("self", 0), "no self attention: it has encoder, decoder, cross"),
        (lambda: run.steps("cross", 2), "layer 2 of the cross attention is not there: layers are 0 to 1"),
        (lambda: run.steps("cross", 0, [4]), r"heads \[4\] cannot be shown: name at least one, from 0 to 3"),
        (lambda: run.steps("cross", 0, []), "name at least one"),
        (lambda: run.query_tokens("cross", 1), "text 1 is not in this batch: texts are 0 to 0"),
    ):
        with pytest.raises(AttentionError, match=message):
            ask()


def test_an_encoder_takes_no_target_and_a_bare_model_writes_none():
    encoder = load_model(forms.built(forms.BY_NAME["bert"]))
    assert encoder.kinds == trace(encoder, [5, 6, 7]).kinds == ("encoder",)
    for extra in ({"target": [5]}, {"generate": True}):
        with pytest.raises(AttentionError, match="BertForMaskedLM takes no target"):
            trace(encoder, [5, 6, 7], **extra)
    with pytest.raises(AttentionError, match="BartModel cannot write a target"):
        trace(load_model(forms.built(forms.BY_NAME["bart_bare"])), SOURCE, generate=True)


def test_heads_may_be_named_in_any_order(fix_b):
    run = trace(fix_b, SOURCE, target=TARGET)
    every = run.steps("cross", 1)
    for heads in ([2], [3, 0], [0, 1, 2, 3], [1, 2], [2, 2]):
        steps = run.steps("cross", 1, heads)
        assert torch.allclose(steps.weights, every.weights[:, heads], atol=1e-6)
        assert torch.equal(steps.value, every.value[:, heads])


# Case 35: the library's own switches


def test_flags_that_make_fused_attention_fail_elsewhere_do_not_matter_here():
    module = forms.fix_b()
    module.set_attn_implementation("eager")
    module.config.output_attentions = True
    run = trace(load_model(module), SOURCE, exact=True)
    expected = eager_maps(input_ids=torch.tensor([SOURCE]))
    for kind in run.kinds:
        assert all(torch.equal(run.steps(kind, layer).weights, expected[kind][layer]) for layer in range(2))


def test_training_mode_is_refused(fix_b):
    fix_b.module.train()
    with pytest.raises(AttentionError, match=r"training mode.*call module.eval\(\) first"):
        trace(fix_b, SOURCE)


def test_devices_agree(device):
    form = forms.BY_NAME["bart_unequal"]
    run = trace(load_model(forms.built(form), device=device), forms.ids(7), target=forms.ids(5, seed=2))
    model = forms.built(form)
    model.set_attn_implementation("eager")
    maps = forms.eager_maps(
        model, {"input_ids": forms.ids(7), "decoder_input_ids": forms.ids(5, seed=2), "use_cache": False}
    )
    for kind, layers in maps.items():
        for layer, expected in enumerate(layers):
            weights = run.steps(kind, layer, [1]).weights
            assert weights.device.type == device
            assert torch.allclose(weights.cpu(), expected[:, [1]], atol=1e-5 if device == "cpu" else 1e-3)


def test_after_a_refused_text_the_same_device_goes_on_working(device):
    model = load_model(forms.fix_b(), device=device)
    with pytest.raises(AttentionError, match="17 tokens"):
        trace(model, [11] * 17)
    assert trace(model, SOURCE).steps("encoder", 0).weights.isfinite().all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_has_finite_float32_weights_whose_rows_sum_to_one(dtype):
    run = trace(load_model(forms.fix_b(), dtype=dtype), SOURCE, target=TARGET)
    for kind in run.kinds:
        steps = run.steps(kind, 1)
        assert steps.weights.dtype == torch.float32 and str(steps.context.dtype) == f"torch.{dtype}"
        assert torch.allclose(steps.weights.sum(-1), torch.ones(steps.weights.shape[:-1]), atol=1e-6)


def test_a_model_whose_configuration_does_not_fit_is_one_sentence(text_model, monkeypatch):
    monkeypatch.setattr(text_model.module.config, "decoder_start_token_id", 999_999)
    with pytest.raises(AttentionError, match=r"cannot be run on this text \(.+\): its configuration does not fit"):
        trace(text_model, "the cat")


def test_a_call_can_be_computed_with_by_anyone():
    run = trace(load_model(forms.fix_b()), [0, 5, 7, 2])
    for kind in run.kinds:
        call, steps = run.call(kind, 1), run.steps(kind, 1)
        assert torch.equal(call.query, steps.query) and torch.equal(call.steps().weights, steps.weights)
        assert torch.allclose(call.fused().transpose(1, 2), steps.context, atol=1e-6)
    for wrong in (lambda: run.call("none", 0), lambda: run.call("cross", 2)):
        with pytest.raises(AttentionError):
            wrong()
