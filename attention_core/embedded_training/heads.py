"""What every head of a BART looks at, and what switching it off costs."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from transformers import BartForConditionalGeneration

from attention_core.analysis import metrics
from attention_core.embedded_training.noise import IGNORED, Batch, Example, Unit, collate
from attention_core.embedded_training.prepare import BOS_ID, EOS_ID, MASK_ID, PAD_ID

# What a head is named after, and the special tokens on which it may rest instead: resting heads are counted apart.
PATTERNS = {
    "encoder": ("previous", "next", "same"),
    "decoder": ("previous", "same", "induction"),
    "cross": ("read", "write", "mask"),
}
RESTING = {"encoder": ("<s>", "</s>"), "decoder": ("start",), "cross": ("<s>", "</s>")}
KINDS = tuple(PATTERNS)
STRONG = 0.8


def clean_batch(sentences: list[list[Unit]]) -> Batch:
    """Sentences without noise in one batch: source and target are the same."""
    examples = []
    for sentence in sentences:
        ids = [BOS_ID, *(i for unit in sentence for i in unit), EOS_ID]
        examples.append(Example(ids, ids, [False] * len(ids), [IGNORED] * len(ids)))
    return collate(examples)


def one_gap_batch(sentences: list[list[Unit]], seed: int) -> Batch:
    """The same sentences with one word of each hidden behind a mask, never the first or the last unit."""
    rng = np.random.default_rng(seed)
    examples = []
    for sentence in sentences:
        gap = int(rng.integers(1, len(sentence) - 1))
        before = [BOS_ID, *(i for unit in sentence[:gap] for i in unit)]
        after = [*(i for unit in sentence[gap + 1 :] for i in unit), EOS_ID]
        target = [*before, *sentence[gap], *after]
        masked = [len(before) <= place < len(before) + len(sentence[gap]) for place in range(len(target))]
        source = [*before, MASK_ID, *after]
        examples.append(Example(source, target, masked, [IGNORED] * len(source)))
    return collate(examples)


@torch.no_grad()
def attention_maps(model: BartForConditionalGeneration, batch: Batch) -> dict[str, tuple[Tensor, ...]]:
    """{kind: weights (batch, heads, query_len, key_len) of every layer}; the decoder reads the shifted target."""
    out = model(
        input_ids=batch.source,
        attention_mask=batch.source_mask,
        decoder_input_ids=batch.decoder_input,
        output_attentions=True,
        use_cache=False,
    )
    return {"encoder": out.encoder_attentions, "decoder": out.decoder_attentions, "cross": out.cross_attentions}


def _ordinary(ids: Tensor) -> Tensor:
    """True at real pieces: rows of special tokens and of padding are never counted."""
    return ~torch.isin(ids, torch.tensor((BOS_ID, PAD_ID, EOS_ID, IGNORED)))


def _self_attention(kind: str, weights: Tensor, ids: Tensor) -> dict[str, Tensor]:
    query_len = weights.shape[-2]
    rows = _ordinary(ids)
    mask = (ids != PAD_ID)[:, None, None]
    if kind == "decoder":
        mask = mask & torch.ones(query_len, query_len, dtype=torch.bool).tril()

    def mass(target: Tensor, counted: Tensor = rows) -> Tensor:
        return metrics.mean_mass(weights, target, rows=counted, mask=mask)

    # A neighbour that is itself a special token would count as a resting place as well, so such rows are left out.
    neighbour = {"previous": rows & rows.roll(1, 1), "next": rows & rows.roll(-1, 1)}
    found = {
        "previous": metrics.previous_mass(weights, rows=neighbour["previous"], mask=mask),
        "self": mass(metrics.offset_target(query_len, query_len, 0)),
        "same": mass(metrics.same_token_target(ids, ids, same_sequence=True)),
    }
    if kind == "encoder":
        return found | {
            "next": metrics.next_mass(weights, rows=neighbour["next"], mask=mask),
            "<s>": mass(metrics.column_target(ids == BOS_ID, query_len)),
            "</s>": mass(metrics.column_target(ids == EOS_ID, query_len)),
        }
    start = (torch.arange(query_len) < 2)[None].expand_as(ids)  # the decoder begins with </s> <s>
    return found | {
        "induction": mass(metrics.induction_target(ids)),
        "first": metrics.first_mass(weights, rows=rows, mask=mask),
        "start": mass(metrics.column_target(start, query_len)),
    }


def _cross_attention(weights: Tensor, batch: Batch) -> dict[str, Tensor]:
    query_len = weights.shape[-2]
    mask = (batch.source != PAD_ID)[:, None, None]
    # Step t reads target[t - 1] and writes target[t]; a clean source holds both at those very places.
    rows = _ordinary(batch.decoder_input) & _ordinary(batch.labels)
    write = torch.arange(query_len).expand_as(batch.labels)
    found = {}
    for name, columns in (("read", write - 1), ("write", write)):
        found[name] = metrics.aligned_hits(weights, columns, rows=rows, mask=mask)
        found[f"{name} mass"] = metrics.aligned_mass(weights, columns, rows=rows, mask=mask)
    for name, special in (("<s>", BOS_ID), ("</s>", EOS_ID)):
        columns = metrics.column_target(batch.source == special, query_len)
        found[name] = metrics.mean_mass(weights, columns, rows=rows, mask=mask)
    return found


def head_table(model: BartForConditionalGeneration, sentences: list[list[Unit]]) -> dict[str, list[dict]]:
    """{kind: a row for every head: layer, head, its patterns, label, strong}.

    "read" and "write" are the share of steps whose largest weight is the source position of the token just read or
    to be written; "mask" is that of steps that write a hidden word and look at its mask; all others are mean mass.
    label: the largest pattern or resting place above one half, else "". strong: the label is a pattern above 0.8.
    """
    batch, gaps = clean_batch(sentences), one_gap_batch(sentences, seed=0)
    clean, gapped = attention_maps(model, batch), attention_maps(model, gaps)
    table: dict[str, list[dict]] = {}
    for kind in KINDS:
        table[kind] = []
        for layer, weights in enumerate(clean[kind]):
            if kind == "cross":
                target = metrics.column_target(gaps.source == MASK_ID, gaps.labels.shape[1])
                found = _cross_attention(weights, batch) | {
                    "mask": metrics.argmax_hits(gapped[kind][layer], target, rows=gaps.masked)
                }
            else:
                found = _self_attention(kind, weights, batch.source if kind == "encoder" else batch.decoder_input)
            for head in range(weights.shape[1]):
                row = {"layer": layer, "head": head, **{name: round(float(v[head]), 4) for name, v in found.items()}}
                label = max((*PATTERNS[kind], *RESTING[kind]), key=row.__getitem__)
                row["label"] = label if row[label] > 0.5 else ""
                row["strong"] = label in PATTERNS[kind] and row[label] > STRONG
                table[kind].append(row)
    return table


def strongest(table: dict[str, list[dict]]) -> dict[str, dict[str, float]]:
    """The largest value of every pattern and resting place over the heads of each kind."""
    return {
        kind: {name: max(row[name] for row in rows) for name in (*PATTERNS[kind], *RESTING[kind])}
        for kind, rows in table.items()
    }


@contextmanager
def switched_off(model: BartForConditionalGeneration, kind: str, layer: int, head: int) -> Iterator[None]:
    """Zero one head's context before the output projection (Michel et al. 2019) while the block runs."""
    side = model.model.encoder if kind == "encoder" else model.model.decoder
    module = side.layers[layer].encoder_attn if kind == "cross" else side.layers[layer].self_attn
    piece = slice(head * module.head_dim, (head + 1) * module.head_dim)

    def zero(_module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        context = inputs[0].clone()
        context[..., piece] = 0
        return (context,)

    handle = module.out_proj.register_forward_pre_hook(zero)
    try:
        yield
    finally:
        handle.remove()
