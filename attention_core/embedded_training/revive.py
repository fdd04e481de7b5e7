"""Give resting heads of a checkpoint a new start, without changing what the model says.

A head that puts nearly all its weight on one start token reads a constant; its softmax is saturated, so it gets hardly
any gradient and stays there. Its mean contribution goes into the bias of the output projection, its slice of
that projection becomes 0, and its queries and keys are drawn anew, so small that it begins by looking everywhere.
"""

from collections import defaultdict
from pathlib import Path

import torch
from transformers import BartForConditionalGeneration

from attention_core.embedded_training.evaluate import clean_sentences
from attention_core.embedded_training.heads import RESTING, head_table
from attention_core.embedded_training.noise import Batch
from attention_core.embedded_training.prepare import load_books
from attention_core.embedded_training.train import accuracy, evaluation_batches, load_checkpoint

RESTS = 0.9  # mean mass on a start token from which a head counts as resting for good
SMALL = 0.02


def resting_heads(model: BartForConditionalGeneration, sentences: list) -> dict[str, list[int]]:
    """{name of the attention module: its resting heads}."""
    found = defaultdict(list)
    for kind, rows in head_table(model, sentences).items():
        for row in rows:
            if max(row[name] for name in RESTING[kind]) > RESTS:
                side = "encoder" if kind == "encoder" else "decoder"
                module = "encoder_attn" if kind == "cross" else "self_attn"
                found[f"model.{side}.layers.{row['layer']}.{module}"].append(row["head"])
    return dict(found)


def mean_contexts(
    model: BartForConditionalGeneration, names: list[str], batches: list[Batch]
) -> dict[str, torch.Tensor]:
    """{module name: mean input of its output projection, (d_model,)}."""
    seen = defaultdict(list)
    handles = [
        model.get_submodule(f"{name}.out_proj").register_forward_pre_hook(
            lambda _module, inputs, name=name: seen[name].append(inputs[0].flatten(0, -2).mean(0))
        )
        for name in names
    ]
    accuracy(model, batches)
    for handle in handles:
        handle.remove()
    return {name: torch.stack(values).mean(0) for name, values in seen.items()}


def revive(checkpoint: Path, data: Path, out: Path, seed: int = 0) -> dict[str, list[int]]:
    """Write a checkpoint to out in which the resting heads begin anew; returns them by module name."""
    model, _ = load_checkpoint(checkpoint)
    dev = load_books(data, "dev")
    resting = resting_heads(model, clean_sentences(dev, 60))
    means = mean_contexts(model, list(resting), evaluation_batches(dev, model.config.vocab_size, 64, seed=2))
    saved = torch.load(checkpoint, weights_only=True)
    masters, momentum = saved["optimiser"]["masters"], saved["optimiser"]["momentum"]
    generator = torch.Generator().manual_seed(seed)
    for name, heads in resting.items():
        head_dim = model.get_submodule(name).head_dim
        for head in heads:
            piece = slice(head * head_dim, (head + 1) * head_dim)
            out_weight = masters[f"bart.{name}.out_proj.weight"]
            masters[f"bart.{name}.out_proj.bias"] += out_weight[:, piece] @ means[name][piece]
            out_weight[:, piece] = 0
            momentum[f"bart.{name}.out_proj.weight"][:, piece] = 0
            for projection in ("q_proj", "k_proj"):
                weight = masters[f"bart.{name}.{projection}.weight"]
                weight[piece] = SMALL * torch.randn(weight[piece].shape, generator=generator)
                masters[f"bart.{name}.{projection}.bias"][piece] = 0
                momentum[f"bart.{name}.{projection}.weight"][piece] = 0
    torch.save(saved, out)
    return resting
