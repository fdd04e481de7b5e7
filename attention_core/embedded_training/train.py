"""Train a small BART by denoising (Lewis et al. 2020), on one core, to a wall-clock schedule.

The loss is the decoder's cross-entropy on all hidden pieces and on a share of the visible ones. Auxiliary losses, each
read through one extra linear map that is not shipped, shape the heads; they fade to 0 between 67 and 90 % of the time:

masked (weight 0.5)     BERT's: single pieces that are masked, replaced or kept, from the encoder's output.
next (weight 0.2)       the token after the one at hand, from the encoder's first layer, on 15 % of the places.
previous (weight 0.2)   the token before the one at hand, from the decoder's first layer, on 15 % of the steps.
"""

import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import BartConfig, BartForConditionalGeneration

from attention_core.embedded_training.noise import (
    EVALUATION,
    IGNORED,
    Batch,
    Noise,
    Sampler,
    collate,
    corrupt,
    strange_names,
)
from attention_core.embedded_training.optimiser import MuonAdam
from attention_core.embedded_training.prepare import BOS_ID, EOS_ID, PAD_ID, Book, load_books

AUXILIARY_WEIGHTS = {"masked": 0.5, "next": 0.2, "previous": 0.2}
NEIGHBOUR_SHARE = 0.15  # of the places are asked for their neighbour
FADE = (0.67, 0.9)  # of the time: the auxiliary losses and the noise that serves it go
WARM_UP_STEPS = 150
FLAT = 0.65  # of the time the rates stay at their height


def make_config(vocab_size: int, d_model: int = 256, layers: int = 3, heads: int = 8) -> BartConfig:
    """The architecture: BART (post-layer-norm, learned positions), no dropout."""
    return BartConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * d_model,
        decoder_ffn_dim=4 * d_model,
        max_position_embeddings=256,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        init_std=0.06,
        bos_token_id=BOS_ID,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=EOS_ID,
        forced_eos_token_id=EOS_ID,
    )


class Denoiser(nn.Module):
    """BART and the linear maps of the auxiliary losses, which are not shipped."""

    def __init__(self, config: BartConfig) -> None:
        super().__init__()
        # Eager attention trains 1.5 times as fast as the fused one on a CPU.
        self.bart = BartForConditionalGeneration._from_config(config, attn_implementation="eager")
        self.auxiliary = nn.ModuleDict({name: nn.Linear(config.d_model, config.d_model) for name in AUXILIARY_WEIGHTS})

    def losses(self, batch: Batch, visible_share: float, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Means over pieces, in nats: "hidden", "visible", "decoder" (both kinds), and the auxiliary losses."""
        out = self.bart.model(
            input_ids=batch.source,
            attention_mask=batch.source_mask,
            decoder_input_ids=batch.decoder_input,
            use_cache=False,
            output_hidden_states=True,
        )

        def nats(states: torch.Tensor, ids: torch.Tensor, name: str | None = None) -> torch.Tensor:
            states = self.auxiliary[name](states) if name else states
            return cross_entropy(self.bart.lm_head(states).float(), ids, reduction="none")

        def some(places: torch.Tensor, share: float) -> torch.Tensor:
            # The vocabulary is the dearest layer: it is computed only where a loss is taken.
            return places & (torch.rand(places.shape, generator=generator) < share)

        real = batch.labels != IGNORED
        chosen = real & (batch.masked | some(real, visible_share))
        hidden = batch.masked[chosen]
        decoder = nats(out.last_hidden_state[chosen], batch.labels[chosen])
        asked = batch.encoder_labels != IGNORED
        followed = some(batch.source_mask[:, 1:].bool(), NEIGHBOUR_SHARE)
        preceded = some(real[:, 1:], NEIGHBOUR_SHARE)
        encoder_first, decoder_first = out.encoder_hidden_states[1], out.decoder_hidden_states[1]
        found = {
            "decoder": decoder,
            "hidden": decoder[hidden],
            "visible": decoder[~hidden],
            "masked": nats(out.encoder_last_hidden_state[asked], batch.encoder_labels[asked], "masked"),
            "next": nats(encoder_first[:, :-1][followed], batch.source[:, 1:][followed], "next"),
            "previous": nats(decoder_first[:, 1:][preceded], batch.decoder_input[:, :-1][preceded], "previous"),
        }
        return {name: values.sum() / max(1, len(values)) for name, values in found.items()}


def rate_factor(step: int, progress: float) -> float:
    """Warm-up by steps, flat to FLAT of the time, then a cosine to 2 %."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    if progress < FLAT:
        return warm
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - FLAT) / (1 - FLAT)))))


def faded(progress: float) -> float:
    """Weight of what fades: 1, then linearly to 0 over FADE."""
    return min(1.0, max(0.0, (FADE[1] - progress) / (FADE[1] - FADE[0])))


def schedule(progress: float, copies: bool = False) -> tuple[Noise, float, float]:
    """Noise, share of visible pieces in the loss, and growth of the texts (see Sampler).

    Copying is learned first, on short texts, so clean copies start at a half; texts grow between 45 and 75 % of the time.
    copies: the model copies already, and goes on with noisy texts of every length.
    """
    early = 0.0 if copies else max(0.0, 1 - progress / 0.25)
    noise = Noise(clean=0.1 + 0.4 * early, bare=0.1 + 0.15 * faded(progress), single=faded(progress))
    return noise, 0.35 + 0.45 * early, 1.0 if copies else min(1.0, max(0.0, (progress - 0.45) / 0.3))


def evaluation_batches(books: list[Book], vocab_size: int, num_texts: int, seed: int) -> list[Batch]:
    """Fixed noise (ratio 0.25, permutation 0.25) on stretches of held-out books."""
    rng = np.random.default_rng(seed)
    sampler = Sampler(books, set(), [], rng, swap=0.0)
    examples = [corrupt(sampler.stretch(), EVALUATION, rng, vocab_size) for _ in range(num_texts)]
    examples.sort(key=lambda e: len(e.target))
    return [collate(examples[i : i + 16]) for i in range(0, num_texts, 16)]


@torch.no_grad()
def accuracy(model: nn.Module, batches: list[Batch]) -> dict[str, float]:
    """Teacher-forced share of correct pieces and mean loss (nats), where the source hides them and where not."""
    sums = {key: 0.0 for key in ("hidden", "hidden_right", "hidden_nats", "visible", "visible_right", "visible_nats")}
    for batch in batches:
        logits = model(
            input_ids=batch.source, attention_mask=batch.source_mask, decoder_input_ids=batch.decoder_input
        ).logits.float()
        nats = cross_entropy(logits.mT, batch.labels, reduction="none", ignore_index=IGNORED)
        right = logits.argmax(-1) == batch.labels
        for key, place in (("hidden", batch.masked), ("visible", ~batch.masked & (batch.labels != IGNORED))):
            sums[key] += int(place.sum())
            sums[f"{key}_right"] += int(right[place].sum())
            sums[f"{key}_nats"] += float(nats[place].sum())
    return {
        "masked_accuracy": sums["hidden_right"] / sums["hidden"],
        "visible_accuracy": sums["visible_right"] / sums["visible"],
        "masked_nats": sums["hidden_nats"] / sums["hidden"],
        "visible_nats": sums["visible_nats"] / sums["visible"],
        "masked_pieces": int(sums["hidden"]),
        "visible_pieces": int(sums["visible"]),
    }


def make_sampler(data: Path, books: list[Book], tokenizer: Tokenizer, seed: int) -> Sampler:
    names = json.loads((data / "names.json").read_text(encoding="utf-8"))
    name_units = {tuple(e.ids) for e in tokenizer.encode_batch(names, add_special_tokens=False)}
    rng = np.random.default_rng(seed)
    return Sampler(books, name_units, strange_names(tokenizer, rng), rng)


def save(path: Path, model: Denoiser, optimiser: MuonAdam, state: dict) -> None:
    """Write a checkpoint whole: a run that is cut while writing keeps the one before."""
    partial = path.with_suffix(".partial")
    torch.save({"config": model.bart.config.to_dict(), "optimiser": optimiser.state_dict(), "state": state}, partial)
    partial.replace(path)


def train(
    data: Path,
    out: Path,
    minutes: float,
    *,
    seed: int = 0,
    batch_tokens: int = 3072,
    resume: Path | None = None,
    start: Path | None = None,
    max_steps: int | None = None,
    report_minutes: float = 4.0,
    shape: dict | None = None,
) -> Path:
    """Train for a number of wall-clock minutes; returns the last checkpoint.

    data: a prepared folder. out: checkpoints and log.jsonl go there. resume: a checkpoint to go on from, with its
    optimiser and the time it had used; minutes still counts from the first start. start: a model folder whose weights a new
    schedule begins with, with a fresh optimiser and that folder's tokenizer; what came before stands in the state under
    "before". max_steps: stop early, for tests. shape: arguments of make_config.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str((start or data) / "tokenizer.json"))
    books, dev = (load_books(data, part, tokenizer) for part in ("train", "dev"))
    vocab_size = tokenizer.get_vocab_size()
    model = Denoiser(make_config(vocab_size, **(shape or {})))
    state = {"step": 0, "tokens": 0, "seconds": 0.0, "seed": seed}
    if start is not None:
        model.bart.load_state_dict(BartForConditionalGeneration.from_pretrained(start).state_dict())
        state["before"] = json.loads((start / "figures.json").read_text(encoding="utf-8"))["run"]
    optimiser = MuonAdam(model)
    model.bfloat16()  # the optimiser's masters stay float32
    if resume is not None:
        saved = torch.load(resume, weights_only=True)
        optimiser.load_state_dict(saved["optimiser"])
        state = saved["state"]
    # A resumed run draws new texts rather than the first ones again.
    sampler = make_sampler(data, books, tokenizer, seed + state["step"])
    sampler.growth = schedule(state["seconds"] / (60 * minutes), "before" in state)[2]
    dev_batches = evaluation_batches(dev, vocab_size, 160, seed=1)
    generator = torch.Generator().manual_seed(seed + state["step"])
    started = time.monotonic() - state["seconds"]
    next_report = state["seconds"] + 60 * report_minutes
    means: dict[str, float] = {}
    for texts in sampler.batches(batch_tokens):
        progress = (time.monotonic() - started) / (60 * minutes)
        if progress >= 1 or (max_steps is not None and state["step"] >= max_steps):
            break
        noise, visible_share, sampler.growth = schedule(progress, "before" in state)
        batch = collate([corrupt(text, noise, sampler.rng, vocab_size) for text in texts])
        losses = model.losses(batch, visible_share, generator)
        extra = sum(weight * losses[name] for name, weight in AUXILIARY_WEIGHTS.items())
        (losses["decoder"] + faded(progress) * extra).backward()
        norm = optimiser.step(rate_factor(state["step"], progress))
        state["step"] += 1
        state["tokens"] += int((batch.labels != IGNORED).sum())
        state["seconds"] = time.monotonic() - started
        for key, value in losses.items():
            means[key] = 0.98 * means.get(key, value.item()) + 0.02 * value.item()
        if state["step"] % 100 == 0 or state["step"] == max_steps:
            _log(out, {**state, "norm": norm, **means})
        if state["seconds"] >= next_report:
            next_report += 60 * report_minutes
            _log(out, {**state, "dev": accuracy(model.bart, dev_batches)})
            save(out / f"{state['step']:06d}.pt", model, optimiser, state)
    path = out / f"{state['step']:06d}.pt"
    save(path, model, optimiser, state)
    _log(out, {**state, "dev": accuracy(model.bart, dev_batches)})
    return path


def best_checkpoint(out: Path) -> Path:
    """The checkpoint of a run with the lowest loss on the dev books, hidden and visible pieces weighed alike."""
    records = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    reports = [record for record in records if "dev" in record]
    best = min(reports, key=lambda record: record["dev"]["masked_nats"] + record["dev"]["visible_nats"])
    return out / f"{best['step']:06d}.pt"


def _log(out: Path, record: dict) -> None:
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in record.items()}
    line = json.dumps(rounded)
    with (out / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(line, flush=True)


def load_checkpoint(path: Path) -> tuple[BartForConditionalGeneration, dict]:
    """The BART of a checkpoint, float32, in eval mode, with eager attention; and how far its training had come."""
    saved = torch.load(path, weights_only=True)
    config = BartConfig(**saved["config"])
    model = BartForConditionalGeneration._from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # tied weights come once
            parameter.copy_(saved["optimiser"]["masters"][f"bart.{name}"])
    return model.eval(), saved["state"]
