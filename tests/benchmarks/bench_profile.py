"""What a profile of texts costs, against running the model, and against taking the same numbers the straightforward way.

    python tests/benchmarks/bench_profile.py                                   # embedded and a random bart-base, 9 rounds
    python tests/benchmarks/bench_profile.py --models embedded --rounds 5

Three ways of going over the same 8 texts of as many tokens, interleaved, CPU time of this process:

    profile      ``profile_texts`` in batches, from texts' ids to sums (metrics, variability, head against head)
    plain        the library's fused attention, one text at a time, language head and all; and without its head
    by hand      the library's eager attention with ``output_attentions=True``, one text at a time, then the same numbers with
                 numpy, in float32, written as one would write them

Each ratio is the median over rounds of a round's own ratio. Targets: profile at most 2 times plain; by hand at least 1.5 times
profile at 128 tokens. That both ways give the same numbers is checked before anything is timed.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

TEXTS = 8
LONG = 45


def straightforward(module, ids, special: set[int], end: int, punctuation: set[int]) -> dict[str, np.ndarray]:
    """The numbers of a profile the plain way: {"kind name": (texts, layers, heads)}, and sums for pairs and variability."""
    import torch

    found: dict[str, list] = {}
    for text in ids:
        source = torch.tensor([text])
        target = torch.tensor([[2, *text[:-1]]])
        contexts = {}
        handles = []
        for kind, attention in _attentions(module):
            handles.append(
                attention.out_proj.register_forward_pre_hook(
                    lambda _m, x, kind=kind, contexts=contexts: contexts.setdefault(kind, []).append(x[0][0].numpy())
                )
            )
        with torch.no_grad():
            output = module(input_ids=source, decoder_input_ids=target, output_attentions=True, use_cache=False)
        for handle in handles:
            handle.remove()
        sides = {"encoder": (text, text), "decoder": (target[0].tolist(),) * 2, "cross": (target[0].tolist(), text)}
        attentions = {
            "encoder": output.encoder_attentions,
            "decoder": output.decoder_attentions,
            "cross": output.cross_attentions,
        }
        for kind, maps in attentions.items():
            maps = np.stack([layer[0].numpy() for layer in maps])  # (layers, heads, query_len, key_len)
            outs = [attention.out_proj.weight.detach().numpy() for k, attention in _attentions(module) if k == kind]
            numbers = _numbers(kind, maps, *sides[kind], special, end, punctuation)
            numbers |= _outputs(kind, contexts[kind], outs, maps.shape[1], maps)
            for name, values in numbers.items():
                found.setdefault(f"{kind} {name}", []).append(values)
    return {name: np.stack(values) for name, values in found.items()}


def _attentions(module):
    for layer in module.model.encoder.layers:
        yield "encoder", layer.self_attn
    for layer in module.model.decoder.layers:
        yield "decoder", layer.self_attn
    for layer in module.model.decoder.layers:
        yield "cross", layer.encoder_attn


def _numbers(kind, maps, query_ids, key_ids, special, end, punctuation) -> dict[str, np.ndarray]:
    rows, columns = np.arange(len(query_ids)), np.arange(len(key_ids))
    visible = np.ones((len(rows), len(columns)), bool)
    if kind == "decoder":
        visible = np.tril(visible)
    seen = visible.sum(1)
    chosen = seen >= 2
    query_ids, key_ids = np.array(query_ids), np.array(key_ids)

    def mean(values, counted=chosen):
        return values[..., counted].mean(-1) if counted.any() else np.full(values.shape[:-1], np.nan)

    def mass(target):
        return mean((maps * target).sum(-1), chosen & (target & visible).any(-1))

    entropy = -np.where(maps > 0, maps * np.log(np.where(maps > 0, maps, 1)), 0).sum(-1)
    resting = np.isin(key_ids, list(special))
    resting[0] = True
    ends = key_ids == end
    ends[0] = False
    found = {
        "entropy": mean(entropy / np.log(np.maximum(seen, 2))),
        "effective_tokens": mean(np.exp(entropy)),
        "confidence": mean(maps.max(-1)),
        "first": mass(np.broadcast_to(columns == 0, visible.shape)),
        "sink": mean((maps * resting).sum(-1) - (visible & resting).sum(-1) / seen),
    }
    largest = maps.argmax(-1)[..., chosen]
    found["one_column"] = np.stack([(largest == key).mean(-1) for key in columns]).max(0)
    found["punctuation"] = mass(np.broadcast_to(np.isin(key_ids, list(punctuation)), visible.shape))
    same = query_ids[:, None] == key_ids
    if kind != "cross":
        apart = np.abs(rows[:, None] - columns)
        for name, keep in (("distance", np.ones(len(columns), bool)), ("reach", ~resting)):
            counted = (visible & keep).sum(1) >= 2
            uniform = ((visible & keep) * apart).sum(1)[counted] / (visible & keep).sum(1)[counted]
            kept = maps[..., counted, :] * keep
            ratio = (kept * apart[counted]).sum((-2, -1)) / kept.sum((-2, -1)) / uniform.mean()
            found[name] = ratio if name == "distance" or len(columns) >= LONG else np.full(ratio.shape, np.nan)
        same = same & (apart > 0)
        found["self"] = mass(apart == 0)
        found["previous"] = mass(rows[:, None] - columns == 1)
        if kind == "encoder":
            found["next"] = mass(columns - rows[:, None] == 1)
    else:
        place = np.cumsum(~resting)
        later = ~resting & (2 * place > place[-1])
        ratio = (maps * later).sum((-2, -1)) / (maps * ~resting).sum((-2, -1)) / (later.sum() / (~resting).sum())
        found["second_half"] = ratio if len(columns) >= LONG else np.full(ratio.shape, np.nan)
    if kind != "decoder":
        found["end"] = mass(np.broadcast_to(ends, visible.shape))
    found["same_token"] = mass(same)
    return found


def _outputs(kind, contexts, outs, num_heads, maps) -> dict[str, np.ndarray]:
    """Shares of the output; and, on 8 rows, divergences and products of heads."""
    rows = np.arange(kind == "decoder", maps.shape[2])
    rows = rows[((2 * np.arange(8) + 1) * len(rows)) // 16]
    shares, products = [], []
    for context, out in zip(contexts, outs):
        heads = context.reshape(len(context), num_heads, -1).transpose(1, 0, 2)
        added = heads @ out.reshape(len(out), num_heads, -1).transpose(1, 2, 0)
        length = np.linalg.norm(added, axis=-1).mean(-1)
        shares.append(length / length.sum())
        some = added[:, rows].reshape(num_heads, -1).astype(np.float64)
        products.append(some @ some.T)
    flat = maps[:, :, rows].reshape(-1, len(rows), maps.shape[-1])
    divergence = np.zeros((len(flat), len(flat)))
    for g in range(len(flat)):
        for h in range(g):
            middle = (flat[g] + flat[h]) / 2
            with np.errstate(divide="ignore", invalid="ignore"):
                parts = [
                    np.where((x > 0) & (middle > 0), x * np.log(x / middle), 0).sum() / 2 for x in (flat[g], flat[h])
                ]
            divergence[g, h] = divergence[h, g] = sum(parts)
    return {
        "output_share": np.stack(shares),
        "products": np.stack(products),
        "divergence": divergence,
        "corner": maps[:, :, :8, :8],
    }


def check_same(profile, found: dict[str, np.ndarray]) -> None:
    """Stops the benchmark unless both ways give the same numbers."""
    for name, values in found.items():
        kind, column = name.split()
        if column == "corner":
            continue
        if column == "divergence":
            np.testing.assert_allclose(profile.pairs[kind].divergence, values.sum(0), rtol=2e-3, atol=2e-3)
        elif column == "products":
            np.testing.assert_allclose(profile.pairs[kind].products, values.sum(0), rtol=2e-3, atol=2e-2)
        else:
            mean = np.nanmean(values, 0) if np.isfinite(values).any() else np.full(values.shape[1:], np.nan)
            np.testing.assert_allclose(profile.mean(kind, column), mean, rtol=1e-3, atol=1e-4, err_msg=name)


def cpu_seconds(call) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(name: str, length: int, rounds: int) -> None:
    import torch
    from bench_extract import random_bart

    from attention_core.analysis.profile import profile_texts
    from attention_core.analysis.profile_sums import new_profile
    from attention_core.extract.models import load_model

    if name == "embedded":
        model = load_model("embedded")
        module, eager = model.module, None
        from transformers import BartForConditionalGeneration

        folder = Path(__file__).parents[2] / "attention_core" / "embedded"
        plain, eager = (
            BartForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation=kind).eval()
            for kind in ("sdpa", "eager")
        )
    else:
        model = load_model(random_bart(name, "sdpa"))
        plain, eager = random_bart(name, "sdpa"), random_bart(name, "eager")
        module = model.module
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, module.config.vocab_size, (TEXTS, length), generator=generator)
    ids[:, 0], ids[:, -1] = 0, 2
    texts = ids.tolist()
    special = {0, 2, module.config.decoder_start_token_id}
    punctuation: set[int] = set()
    if model.source_reader is not None:
        from attention_core.analysis.layouts import is_punctuation

        for i in set(ids.flatten().tolist()):
            (token,), text = model.source_reader.describe([i])
            if token.span is not None and is_punctuation(text[slice(*token.span)]):
                punctuation.add(i)
    profile = new_profile(model)
    targets = [[2, *text[:-1]] for text in texts]

    def take_profile() -> None:
        for _ in profile_texts(model, texts, targets=targets, into=profile):
            pass

    def run_plain(with_head: bool) -> None:
        runs = plain if with_head else plain.model
        with torch.no_grad():
            for row, target in zip(ids, targets):
                runs(input_ids=row[None], decoder_input_ids=torch.tensor([target]), use_cache=False)

    def by_hand() -> None:
        straightforward(eager, texts, special, 2, punctuation)

    take_profile()
    found = straightforward(eager, texts, special, 2, punctuation)
    if model.source_reader is None:  # ids alone do not say what punctuation is
        found = {key: x for key, x in found.items() if not key.endswith("punctuation")}
    check_same(profile, found)
    ways = {
        "profile": take_profile, "plain": lambda: run_plain(True), "headless": lambda: run_plain(False), "by hand": by_hand,
    }  # fmt: skip
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds):
        for way in list(ways) if turn % 2 else list(ways)[::-1]:
            seconds[way].append(cpu_seconds(ways[way]))

    def ratio(over: str, under: str) -> float:
        return median(a / b for a, b in zip(seconds[over], seconds[under]))

    print(
        f"{name:8} {length:5} tokens: a text takes {median(seconds['profile']) / TEXTS * 1000:6.1f} CPU-ms, "
        f"profile / plain {ratio('profile', 'plain'):.2f} (target 2), without its language head "
        f"{ratio('profile', 'headless'):.2f}; by hand / profile {ratio('by hand', 'profile'):.2f} (target 1.5 at 128); "
        f"{rounds} rounds",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=["embedded", "base", "large"], default=["embedded", "base"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[128])
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    for name in chosen.models:
        for length in chosen.lengths:
            measure(name, length, chosen.rounds)


if __name__ == "__main__":
    main()
