"""What a change inside a model does to what it says: two runs of one model on one text, before and after.

Both runs are fed the same tokens, so that row t of one is compared with row t of the other. Logits are turned into natural
logarithms of probabilities in float32 or wider.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import torch
from torch import Tensor

from attention_core.errors import AttentionError
from attention_core.extract.trace import Trace

from .rows import counted_rows, mean_of_rows, row_divergence


@dataclass(frozen=True, eq=False)
class TokenEffects:
    """How likely each token of one text's target is, before and after.

    Attributes:
        rows: the rows that predict a real token, in order.
        ids: (rows,), the token that each of them should predict.
        before, after: (rows,), ln p of that token, nats, at most 0.
        divergence: (rows,), KL(p_before || p_after) over the vocabulary, nats, from 0.
    """

    rows: tuple[int, ...]
    ids: tuple[int, ...]
    before: Tensor
    after: Tensor
    divergence: Tensor

    @property
    def loss_before(self) -> float:
        """Mean over tokens of - ln p, nats a token."""
        return -float(self.before.mean())

    @property
    def loss_after(self) -> float:
        return -float(self.after.mean())

    @property
    def worst(self) -> int:
        """Where in ``rows`` the token became less likely by most."""
        return int((self.after - self.before).argmin())

    @property
    def most_changed(self) -> int:
        """Where in ``rows`` the likelihood changed most, up or down."""
        return int((self.after - self.before).abs().argmax())


def token_effects(before: Trace, after: Trace, text: int = 0) -> TokenEffects:
    """How likely each token of the target is in two runs on the same tokens; of a decoder alone, each token of its own text.

    Args:
        before, after: runs of one model, fed the same source and target.
        text: which text of the batch.

    Raises:
        AttentionError: other tokens on the two sides, an encoder alone, a model without a language head, or a target given as
            ids, which do not say what the last row should predict.
    """
    if not predicts(before):
        raise AttentionError("a likelihood needs a target text: this run has none whose tokens are to be predicted")
    _check_same(before, after)
    if before.target is None:  # row t predicts token t + 1
        real = before.source.real[text].nonzero()[:, 0].tolist()
        rows, ids = real[:-1], before.source_ids[text, real[1:]]
    else:
        rows = before.target.real[text].nonzero()[:, 0].tolist()
        ids = before.labels[text, rows]
    one, two = (_logs(run, text, rows) for run in (before, after))
    divergence = (one.exp() * (one - two)).sum(-1).clamp(min=0)
    return TokenEffects(
        tuple(rows),
        tuple(ids.tolist()),
        *(logs.gather(1, ids[:, None])[:, 0].cpu() for logs in (one, two)),
        divergence.cpu(),
    )


def predicts(run: Trace) -> bool:
    """Whether it is known what the rows of a run should predict: a target's tokens, or the next ones of a decoder alone."""
    if run.target is None:
        return run.kinds == ("decoder",) and run.source_ids.shape[1] > 1
    return run.labels is not None


def next_tokens(
    before: Trace, after: Trace, row: int, *, count: int = 5, text: int = 0, also: Sequence[int] = ()
) -> list[tuple[int, float, float]]:
    """The likeliest tokens after one row, on either side: (id, probability before, probability after), likeliest before first.

    Args:
        before, after: as in ``token_effects``; a target is not needed.
        row: of the last stack.
        count: how many of each side; those of the other side are joined, so up to twice as many come back.
        text: which text of the batch.
        also: ids that are shown in any case.
    """
    _check_same(before, after)
    one, two = (_logs(run, text, [row])[0].exp() for run in (before, after))
    ids = {*one.topk(count).indices.tolist(), *two.topk(count).indices.tolist(), *also}
    return sorted(((token, float(one[token]), float(two[token])) for token in ids), key=lambda each: -each[1])


def changed_heads(before: Trace, after: Trace, kind: str, text: int = 0) -> Tensor:
    """How far each head's map moved: (layers, heads), mean over rows of the Jensen-Shannon divergence, nats, from 0 to ln 2.

    NaN for a head without a row that sees two keys, or that an edit left without a key everywhere. See ``rows.row_divergence``.

    Raises:
        AttentionError: other tokens on the two sides, or a kind that there is not.
    """
    _check_same(before, after)
    found = []
    for layer in range(before.num_layers(kind)):
        heads = list(range(before.num_heads(kind)))  # without the output, which nothing here needs
        one, two = (run.steps(kind, layer, heads) for run in (before, after))
        rows = before.side(kind, "query").real[text : text + 1, None]
        counted = counted_rows(one.full_mask()[text : text + 1], two.full_mask()[text : text + 1], rows)
        moved = row_divergence(one.weights[text : text + 1], two.weights[text : text + 1])
        found.append(mean_of_rows(moved, counted).cpu())
    return torch.stack(found)


@dataclass(frozen=True)
class Part:
    """Some words of a text: "same" on both sides, "removed" (of the first alone) or "added" (of the second alone)."""

    what: str
    words: str


def text_changes(first: str, second: str) -> list[Part]:
    """Two texts as one sequence of words that they share and do not share: longest matching runs of words (difflib)."""
    one, two = first.split(), second.split()
    parts = []
    for what, a, b, c, d in SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        if what == "equal":
            parts.append(Part("same", " ".join(one[a:b])))
            continue
        parts += [Part(name, " ".join(words)) for name, words in (("removed", one[a:b]), ("added", two[c:d])) if words]
    return parts


def _logs(run: Trace, text: int, rows: Sequence[int]) -> Tensor:
    """(rows, vocabulary): ln p."""
    logits = run.logits(rows)[text]
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def _check_same(before: Trace, after: Trace) -> None:
    sides = [(run.source_ids, run.target_ids) for run in (before, after)]
    same = all((a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in zip(*sides))
    # The same model may have been loaded twice.
    models = [
        (m.report.name, m.report.revision, m.report.architecture, m.report.dtype) for m in (before.model, after.model)
    ]
    if models[0] != models[1] or not same:
        raise AttentionError("two runs are compared row by row: they must be of one model, fed the same tokens")
