"""What a head is worth: gradients against finite differences, switching off against a model whose slice is zeroed."""

import copy

import numpy as np
import pytest
import torch

from attention_core.analysis import importance
from attention_core.analysis.importance import (
    Gated,
    ablation_effects,
    gate_gradients,
    gradient_importance,
    token_losses,
)
from attention_core.analysis.profile import profile_of
from attention_core.analysis.profile_sums import new_profile
from attention_core.errors import AttentionError
from attention_core.extract.batches import Example, read_batch, run
from attention_core.extract.interventions import SwitchOff, Window
from attention_core.extract.means import mean_contexts
from attention_core.extract.models import load_model
from tests.analysis.conftest import TEXTS, attention_of
from tests.extract import forms

FEW = TEXTS[:4]


def batch(model, texts=FEW):
    return read_batch(model, [Example(n, text) for n, text in enumerate(texts)])


class Turned(Gated):
    """Multiplies one head's context by a number, for all texts."""

    def __init__(self, model, kind, layer, head, by, edits=()):
        super().__init__(model, edits)
        self.at, self.by = (kind, layer, head), by

    def attend(self, module, call):
        context = super().attend(module, call)
        site = self._sites[module._attention_name]
        if (site.kind, site.layer) == self.at[:2]:
            context = context.clone()
            context[:, :, self.at[2]] *= self.by
        return context


@pytest.mark.parametrize("edits", [(), (Window(kind="decoder", layer=0, width=1),)])
def test_gradients_are_finite_differences_of_the_loss_of_each_text(text_model, edits):
    model = load_model(copy.deepcopy(text_model.module).double(), tokenizer=text_model.source_reader.tokenizer)
    fed = batch(model)
    found = gate_gradients(Gated(model, edits), fed)
    step = 1e-4
    for kind, layer, head in (("encoder", 2, 1), ("decoder", 0, 1), ("cross", 1, 0)):
        losses = []
        for by in (1 + step, 1 - step):
            with torch.no_grad():
                losses.append(
                    token_losses(run(model, fed, Turned(model, kind, layer, head, by, edits), head=True).logits, fed)
                )
        expected = (losses[0] - losses[1]) / (2 * step)
        # Losses are taken in float32, so that differences are known to about 1e-7 / 2e-4.
        torch.testing.assert_close(found[kind][:, layer, head].double(), expected.double(), rtol=2e-2, atol=2e-3)
        assert expected.abs().max() > 5e-3
    assert all(parameter.grad is None for parameter in model.module.parameters())


def test_importance_is_the_mean_of_absolute_values(text_model):
    *_, end = gradient_importance(text_model, FEW)
    found = {kind: [] for kind in text_model.kinds}
    for text in FEW:
        for kind, gradient in gate_gradients(Gated(text_model), batch(text_model, [text])).items():
            found[kind].append(gradient)
    for kind, gradients in found.items():
        raw = torch.cat(gradients).abs().mean(0).double()
        expected = raw / raw.square().sum(-1, keepdim=True).sqrt()
        np.testing.assert_allclose(end.profile.mean(kind, "importance"), expected, rtol=1e-3)
        np.testing.assert_allclose((end.profile.mean(kind, "importance") ** 2).sum(-1), 1)
    signed = torch.cat(found["cross"]).mean(0).abs()
    assert (signed < torch.cat(found["cross"]).abs().mean(0) - 1e-6).any()  # some cancel


def test_a_likelihood_is_that_of_the_labels(text_model):
    fed = batch(text_model)
    with torch.no_grad():
        logits = run(text_model, fed, Gated(text_model), head=True).logits
        losses = token_losses(logits, fed)
    for row, text in enumerate(FEW):
        ids = [token.id for token in text_model.reader().encode(text)]
        logs = logits[row].log_softmax(-1)
        assert float(losses[row]) == pytest.approx(
            -sum(float(logs[t, i]) for t, i in enumerate(ids)) / len(ids), rel=1e-5
        )


@pytest.mark.parametrize(("kind", "layer", "head"), [("encoder", 1, 3), ("decoder", 1, 0), ("cross", 0, 1)])
def test_switching_off_by_zero_is_a_model_whose_slice_is_zeroed(text_model, kind, layer, head):
    module = copy.deepcopy(text_model.module)
    attention = attention_of(module, kind, layer)
    with torch.no_grad():
        attention.out_proj.weight[:, head * attention.head_dim : (head + 1) * attention.head_dim] = 0
    without = load_model(module, tokenizer=text_model.source_reader.tokenizer)
    fed = batch(text_model)
    with torch.no_grad():
        logits = [run(model, fed, Gated(model), head=True).logits for model in (text_model, without)]
    loss = token_losses(logits[1], fed) - token_losses(logits[0], fed)
    logs = [x.log_softmax(-1) for x in logits]
    kl = (logs[0].exp() * (logs[0] - logs[1])).sum(-1)
    real = fed.target.real
    kl = (kl * real).sum(-1) / real.sum(-1)
    *_, effect = ablation_effects(text_model, FEW, by=["zero"], heads=[(kind, layer, head)])
    sums = effect.profile.moments[kind]
    for name, values in (("loss_zero", loss), ("kl_zero", kl)):
        assert sums[name].mean()[layer, head] == pytest.approx(float(values.mean()), abs=2e-6)
        assert sums[name].spread()[layer, head] == pytest.approx(float(values.std()), abs=5e-6)
        assert int((sums[name].count > 0).sum()) == 1
    assert abs(float(loss.mean())) > 1e-4
    assert not effect.profile.moments[kind].get("loss_mean")


def test_switching_off_by_the_mean_puts_the_mean_there(text_model):
    means = mean_contexts(text_model, list(FEW))
    *_, effect = ablation_effects(text_model, FEW, by=["mean"], heads=[("cross", 1, 1)])
    fed = batch(text_model)
    off = [SwitchOff(kind="cross", layer=1, heads=(1,), by="mean")]
    with torch.no_grad():
        losses = [
            token_losses(run(text_model, fed, session, head=True).logits, fed)
            for session in (Gated(text_model), Gated(text_model, off, means))
        ]
    expected = float((losses[1] - losses[0]).mean())
    assert effect.profile.mean("cross", "loss_mean")[1, 1] == pytest.approx(expected, abs=2e-6)
    assert effect.profile.mean("cross", "kl_mean")[1, 1] > 0


def test_steps_are_one_head_at_a_time_and_go_on_after_a_stop(text_model):
    heads = [("encoder", 0, 0), ("encoder", 0, 1), ("cross", 1, 0)]
    steps = list(ablation_effects(text_model, FEW, heads=heads))
    assert [(step.kind, step.layer, step.head) for step in steps] == heads
    assert [(step.done, step.total) for step in steps] == [(1, 3), (2, 3), (3, 3)]
    begun = next(ablation_effects(text_model, FEW, heads=heads))
    *_, end = ablation_effects(text_model, FEW, heads=heads, into=begun.profile, done=begun.done)
    for kind in ("encoder", "cross"):
        for name in ("loss_zero", "kl_mean"):
            np.testing.assert_array_equal(end.profile.mean(kind, name), steps[-1].profile.mean(kind, name))


def test_edits_hold_with_the_head_on_and_off(text_model):
    off = [SwitchOff(kind="cross", layer=1, heads=(1,))]
    *_, effect = ablation_effects(text_model, FEW, by=["zero"], edits=off, heads=[("cross", 1, 1)])
    assert effect.profile.mean("cross", "loss_zero")[1, 1] == 0  # it is off already
    assert effect.profile.edits == "[SwitchOff(kind='cross', layer=1, heads=(1,))]"


def test_a_model_without_a_target_has_no_likelihood():
    bert = load_model(forms.built(forms.BY_NAME["bert"]))
    for job in (gradient_importance, ablation_effects):
        with pytest.raises(AttentionError, match="BertForMaskedLM has no target whose likelihood could change"):
            next(job(bert, [[5, 7, 9]]))
    profile = profile_of(bert, [[5, 7, 9]])
    assert not {"importance", "loss_zero", "loss_mean", "kl_zero", "kl_mean"} & set(profile.columns())
    bare = load_model(forms.built(forms.BY_NAME["bart_bare"]))
    with pytest.raises(AttentionError, match="BartModel has no language head"):
        next(gradient_importance(bare, [[5, 7, 9]]))
    bart = load_model(forms.fix_b())
    with pytest.raises(AttentionError, match="target ids do not say what is to be predicted"):
        next(gradient_importance(bart, [[5, 7, 9]], targets=[[2, 5, 7]]))
    assert new_profile(bart).texts == 0


def test_the_ways_of_switching_off_are_those_of_the_edit():
    assert importance.BY == ("zero", "mean")
    assert [SwitchOff(kind="cross", by=by).by for by in importance.BY] == ["zero", "mean"]
