"""What an edit does to what a model says, against the library's own loss and sums written out."""

from math import log

import pytest
import torch

from attention_core import AttentionError, load_model, trace
from attention_core.analysis.effects import Part, changed_heads, next_tokens, text_changes, token_effects
from attention_core.extract.interventions import SwitchOff, Uniform
from tests.extract import forms

TEXTS, TARGETS = ["the cat and the world", "Hello world"], ["the cat", "Hello two cats"]
EDITS = [SwitchOff(kind="decoder", layer=0, heads=(1,)), Uniform(kind="encoder", layer=1)]


@pytest.fixture(scope="module")
def model():
    form = forms.changed("bart_unequal", vocab_size=len(forms.byte_tokenizer()))
    return load_model(forms.built(form), tokenizer=forms.byte_tokenizer())


@pytest.fixture(scope="module")
def runs(model):
    return [trace(model, TEXTS, target=TARGETS, edits=edits) for edits in ((), EDITS)]


@pytest.mark.parametrize("text", [0, 1])
def test_the_loss_is_the_library_s_own(model, runs, text):
    found = token_effects(*runs, text=text)
    labels = runs[0].labels[text : text + 1].clone()
    labels[~runs[0].target.real[text : text + 1]] = -100
    with torch.no_grad():
        loss = model.module(
            input_ids=runs[0].source_ids[text : text + 1],
            attention_mask=runs[0].source.mask[text : text + 1].long(),
            labels=labels,
            use_cache=False,
        ).loss
    assert found.loss_before == pytest.approx(float(loss), abs=1e-5)
    assert found.loss_after != pytest.approx(found.loss_before, abs=1e-3)
    assert len(found.rows) == int(runs[0].target.real[text].sum()) == len(found.ids)
    drops = (found.before - found.after).tolist()
    assert drops[found.worst] == max(drops)


def test_divergence_of_each_row_is_kl_over_the_vocabulary(runs):
    found = token_effects(*runs)
    p, q = (run.logits()[0].double().softmax(-1) for run in runs)
    for place, row in enumerate(found.rows):
        expected = sum(float(a) * log(a / b) for a, b in zip(p[row], q[row]))
        assert float(found.divergence[place]) == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert (token_effects(runs[0], runs[0]).divergence == 0).all()


def test_next_tokens_are_the_likeliest_of_both_sides(runs):
    found = next_tokens(*runs, 2, count=3, text=1, also=(7,))
    p, q = (run.logits()[1, 2].softmax(-1) for run in runs)
    named = {token for token, _, _ in found}
    assert named == {*p.topk(3).indices.tolist(), *q.topk(3).indices.tolist(), 7}
    for token, before, after in found:
        assert (before, after) == pytest.approx((float(p[token]), float(q[token])))
    assert [before for _, before, _ in found] == sorted((before for _, before, _ in found), reverse=True)


def test_heads_that_come_after_an_edit_change_and_those_before_do_not(runs):
    encoder = changed_heads(*runs, "encoder", text=1)
    assert encoder.shape == (3, 4)
    assert (encoder[0] == 0).all() and (encoder[1] > 1e-4).all() and (encoder[2] > 1e-6).all()
    one, two = (run.steps("encoder", 2).weights[1, 3] for run in runs)
    real = int(runs[0].source.real[1].sum())
    rows = []
    for p, q in zip(one[:real].double(), two[:real].double()):
        m = (p + q) / 2
        rows.append(
            sum(float(a * torch.log(a / c) + b * torch.log(b / c)) / 2 for a, b, c in zip(p, q, m) if c > 0 and a > 0)
        )
    assert float(encoder[2, 3]) == pytest.approx(sum(rows) / real, abs=1e-5)


def test_runs_on_other_tokens_are_refused(model, runs):
    with pytest.raises(AttentionError, match="fed the same tokens"):
        token_effects(runs[0], trace(model, TEXTS, target=["the cat", "Hello two world"]))
    with pytest.raises(AttentionError, match="fed the same tokens"):
        changed_heads(runs[0], trace(model, TEXTS[:1], target=TARGETS[:1]), "encoder")
    ids = trace(model, [0, 5, 2], target=[2, 0, 5])
    with pytest.raises(AttentionError, match="needs a target text"):
        token_effects(ids, ids)


def test_a_decoder_alone_predicts_its_own_next_tokens():
    model = load_model(forms.built(forms.BY_NAME["gpt2"]))
    ids = [5, 9, 11, 7, 30]
    runs = [trace(model, ids, edits=edits) for edits in ((), [Uniform(kind="decoder", layer=0)])]
    found = token_effects(*runs)
    with torch.no_grad():
        loss = model.module(torch.tensor([ids]), labels=torch.tensor([ids])).loss
    assert found.rows == (0, 1, 2, 3) and found.ids == (9, 11, 7, 30)
    assert found.loss_before == pytest.approx(float(loss), abs=1e-5) != found.loss_after
    encoder = trace(load_model(forms.built(forms.BY_NAME["bert"])), ids)
    with pytest.raises(AttentionError, match="needs a target text"):
        token_effects(encoder, encoder)


def test_texts_that_differ_are_told_apart_word_by_word():
    assert text_changes("a b c d", "a x c d e") == [
        Part("same", "a"), Part("removed", "b"), Part("added", "x"), Part("same", "c d"), Part("added", "e"),
    ]  # fmt: skip
    assert text_changes("same words", "same words") == [Part("same", "same words")]
    assert text_changes("", "new") == [Part("added", "new")] and text_changes("", "") == []
