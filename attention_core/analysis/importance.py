"""What the heads of a model are worth for its target: by the gradient of its likelihood, and by switching each head off.

    for progress in gradient_importance(model, texts, into=profile): ...      one forward and one backward pass a batch
    for effect in ablation_effects(model, texts, into=profile): ...           one pass a head, a way and a batch

Both write into the columns of a profile. The likelihood is that of the target, a text or the source itself shifted right, in
nats a token, so that texts of different lengths weigh alike. A model without a decoder beside an encoder has no target.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import AttentionError
from ..extract.batches import Example, Fed, batched, readable, run
from ..extract.interventions import Edit, Editing, Means, SwitchOff, edits_to_text
from ..extract.means import mean_contexts
from ..extract.models import LoadedModel
from ..extract.registry import Call
from ..extract.session import Session
from .profile import Clock, Progress, Skipped, over_batches, skipped_text
from .profile_sums import Profile, new_profile

BY = ("zero", "mean")


@dataclass(frozen=True)
class Effect:
    """One head has been switched off over one batch of texts.

    Attributes:
        profile: the sums so far; columns "loss_zero", "kl_zero", "loss_mean", "kl_mean".
        kind, layer, head: which head.
        done, total: steps of the job, each a head and a batch.
        seconds_left: a guess; None where it cannot be guessed.
        skipped: the texts that could not be read.
    """

    profile: Profile
    kind: str
    layer: int
    head: int
    done: int
    total: int
    seconds_left: float | None
    skipped: tuple[Skipped, ...] = ()


def gradient_importance(
    model: LoadedModel,
    texts: Iterable[str | Sequence[int]],
    *,
    targets: Iterable[str | Sequence[int]] | None = None,
    edits: Sequence[Edit] = (),
    means: Means | None = None,
    into: Profile | None = None,
    done: int = 0,
    indices: Iterable[int] | None = None,
) -> Iterator[Progress]:
    """How steeply the loss changes when a head is turned down a little, I_h = E_x |dL(x) / d xi_h| at xi_h = 1.

    xi_h multiplies the head's context, a gate of its own for every text, and the absolute value is taken before the mean:
    effects of opposite sign do not cancel. Michel et al. 2019, equation 2; a profile shows it divided by the root of the sum
    of squares over the layer, as they do. No head is removed, so a head that only matters when another is gone shows little.

    Arguments and results are those of ``profile_texts``; the column is "importance" (nats a token, before it is divided).

    Raises:
        AttentionError: a model that has no target or no language head.
    """
    _check_target(model)
    profile = _profile_for(model, edits, into)
    gates = Gated(model, edits, means)
    yield from over_batches(
        profile, texts, targets, indices, done, model, lambda fed: _add_gradients(fed, gates, profile)
    )


def ablation_effects(
    model: LoadedModel,
    texts: Sequence[str | Sequence[int]],
    *,
    targets: Sequence[str | Sequence[int]] | None = None,
    edits: Sequence[Edit] = (),
    means: Means | None = None,
    by: Sequence[str] = BY,
    heads: Iterable[tuple[str, int, int]] | None = None,
    into: Profile | None = None,
    done: int = 0,
    indices: Iterable[int] | None = None,
) -> Iterator[Effect]:
    """Switches one head off after the other and measures what that does to the target.

    loss = mean over tokens of - ln p(token | head off) + ln p(token), above 0 where the head helps; kl = mean over tokens of
    KL(p || p_off) over the vocabulary. Michel et al. 2019, section 3.2, with their zeros and also with mean contexts.

    Args:
        model, texts, targets, indices: as in ``profile_texts``.
        edits: changes that are there with the head on and off alike.
        means: the mean contexts; None = taken over the texts given, before the first step.
        by: "zero", "mean" or both.
        heads: (kind, layer, head) of those to switch off; None = all.
        into, done: a profile to add to, and how many steps of this job it holds already, as ``Effect.done`` said.

    Yields:
        Effect after each head and batch.

    Raises:
        AttentionError: a model that has no target or no language head; means that cannot be taken, of a model without a
            tokenizer.
    """
    _check_target(model)
    profile = _profile_for(model, edits, into)
    chosen = _every_head(model) if heads is None else list(heads)
    examples = map(Example, range(len(texts)) if indices is None else indices, texts, targets or [None] * len(texts))
    batches = list(batched(examples))
    if "mean" in by and means is None:
        means = mean_contexts(model, list(texts))
    clock, step, skipped = Clock(len(batches) * len(chosen), started_at=done), 0, []
    plain = Editing(model, edits, means)
    for batch in batches:
        if step + len(chosen) <= done:
            step += len(chosen)
            continue
        fed_batch = readable(model, batch, lambda *failed: skipped.append(skipped_text(*failed)))
        with torch.no_grad():
            before = [_Predicted(model, fed, plain) for fed in fed_batch]
        for kind, layer, head in chosen:
            step += 1
            if step <= done:
                continue
            for predicted in before:
                for way in by:
                    off = SwitchOff(kind=kind, layer=layer, heads=(head,), by=way)
                    with torch.no_grad():
                        loss, kl = predicted.changes(Editing(model, (*edits, off), means), kind)
                    for column, values in ((f"loss_{way}", loss), (f"kl_{way}", kl)):
                        shape = (len(values), model.num_layers(kind), model.num_heads(kind))
                        full = np.full(shape, np.nan)
                        full[:, layer, head] = values.double().cpu().numpy()
                        profile.add(kind, column, full, [example.index for example in predicted.fed.examples])
            yield Effect(profile, kind, layer, head, step, clock.total, clock.left(step), tuple(skipped))


class Gated(Editing):
    """Multiplies the context of every head with a gate of 1, one for each text, for the sake of the gradient."""

    def __init__(self, model: LoadedModel, edits: Sequence[Edit] = (), means: Means | None = None) -> None:
        super().__init__(model, edits, means)
        self.model = model
        self.gates: dict[str, list[Tensor]] = {}

    def attend(self, module: torch.nn.Module, call: Call) -> Tensor:
        context = self.edited(module._attention_name, call).fused()
        gate = context.new_ones(context.shape[0], context.shape[2], requires_grad=True)
        self.gates.setdefault(self._sites[module._attention_name].kind, []).append(gate)
        return context * gate[:, None, :, None]


def gate_gradients(gates: Gated, fed: Fed) -> dict[str, Tensor]:
    """dL(x) / d xi of one batch: kind -> (batch, layers, heads), nats a token."""
    gates.gates = {}
    # Edits write into weights that the softmax keeps for its gradient.
    mutable = torch.autograd.graph.allow_mutation_on_saved_tensors() if gates.edits else nullcontext()
    with torch.enable_grad(), mutable:
        logits = _logits(gates.model, run(gates.model, fed, gates, head=True))
        # Texts do not meet, so that one backward pass of the sum gives each its own gradient. No parameter gets one.
        loss = token_losses(logits, fed).sum()
        kinds = list(gates.gates)
        flat = torch.autograd.grad(loss, [gate for kind in kinds for gate in gates.gates[kind]])
    parts = iter(flat)
    found = {kind: torch.stack([next(parts) for _ in gates.gates[kind]], 1) for kind in kinds}
    gates.gates = {}
    return found


def token_losses(logits: Tensor, fed: Fed) -> Tensor:
    """(batch,): mean over a target's tokens of - ln p(token), nats. Row t of the logits predicts label t."""
    labels, real = _labels(fed)
    losses = torch.nn.functional.cross_entropy(_wide(logits).transpose(1, 2), labels, reduction="none")
    return (losses * real).sum(1) / real.sum(1)


class _Predicted:
    """What a model predicts for a batch, kept to be compared with what it predicts under an edit."""

    def __init__(self, model: LoadedModel, fed: Fed, session: Session) -> None:
        self.model, self.fed = model, fed
        self.labels, self.real = _labels(fed)
        self.text = torch.arange(len(self.real), device=self.real.device)[:, None].expand_as(self.real)[self.real]
        self.logs, self.encoded = self._logs(session)

    def changes(self, session: Session, kind: str) -> tuple[Tensor, Tensor]:
        """Change of the loss, and KL divergence, of each text: (batch,) each, nats a token.

        kind: of the attention that the session changes; what the encoder made is used again where that is none of its own.
        """
        logs, _ = self._logs(session, None if kind == "encoder" else self.encoded)
        labels = self.labels[self.real][:, None]
        loss = (self.logs.gather(1, labels) - logs.gather(1, labels))[:, 0]
        kl = torch.nn.functional.kl_div(logs, self.logs, reduction="none", log_target=True).sum(-1).clamp(min=0)
        return self._mean(loss), self._mean(kl)

    def _logs(self, session: Session, encoded: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(real tokens of all texts, vocabulary): ln p; and what the encoder made."""
        output = run(self.model, self.fed, session, head=True, encoded=encoded)
        return _wide(_logits(self.model, output)[self.real]).log_softmax(-1), output.encoder_last_hidden_state

    def _mean(self, values: Tensor) -> Tensor:
        sums = values.new_zeros(len(self.real)).index_add(0, self.text, values)
        return sums / self.real.sum(1)


def _add_gradients(fed: Fed, gates: Gated, profile: Profile) -> None:
    for kind, gradient in gate_gradients(gates, fed).items():
        values = gradient.abs().double().cpu().numpy()
        profile.add(kind, "importance", values, [example.index for example in fed.examples])


def _labels(fed: Fed) -> tuple[Tensor, Tensor]:
    """What each row should predict, and which rows count."""
    if fed.target is None or fed.target.labels is None:
        raise AttentionError("a likelihood needs a target text: target ids do not say what is to be predicted")
    return fed.target.labels, fed.target.real


def _logits(model: LoadedModel, output) -> Tensor:
    logits = getattr(output, "logits", None)
    if logits is None:
        raise AttentionError("{model} has no language head, so no likelihood", model=model.report.architecture)
    return logits


def _wide(x: Tensor) -> Tensor:
    """float32, or the input's own dtype where that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _check_target(model: LoadedModel) -> None:
    if not model.is_encoder_decoder:
        raise AttentionError(
            "{model} has no target whose likelihood could change: that needs a decoder beside an encoder",
            model=model.report.architecture,
        )


def _profile_for(model: LoadedModel, edits: Sequence[Edit], into: Profile | None) -> Profile:
    said = edits_to_text(edits)
    empty = new_profile(model, said)
    if into is None:
        return empty
    into.check_same(empty.model, said)
    return into


def _every_head(model: LoadedModel) -> list[tuple[str, int, int]]:
    return [(site.kind, site.layer, head) for site in model.sites for head in range(site.num_heads)]
