"""Speed of the attention layer against nn.MultiheadAttention with the same weights: prints a table and checks the gates.

    python tests/benchmarks/bench_layer.py [--pairs 41] [--only small|medium|long] [--clock wall|cpu]

Timed is ``layer.steps(x)``, with every stage kept, against
``nn.MultiheadAttention(x, x, x, need_weights=True, average_attn_weights=False)``: one thread, float32, eval, no gradients,
the same input, mask and weights, in interleaved pairs whose order alternates. The ratio is ours / theirs: the median of the
pairs' ratios, with the 95 % bootstrap interval of that median.

nn.MultiheadAttention has several forms, and each is reported:

    default         batch_first=False, input (len, batch, d_model): its Python path
    batch_first     batch_first=True: the native fast path (torch._native_multi_head_attention) where torch allows it
    no fast path    batch_first=True with torch.backends.mha.set_fastpath_enabled(False): its Python path

under torch.no_grad and under torch.inference_mode, ours under the same.

The gates are on nn.MultiheadAttention as it is constructed without further arguments, and on the same without the fast path.
The native fast path is one call into C++ that returns no stage but output and weights; its rows are printed without a gate.
At d_model 64 it is about as fast as ours or faster, because there each of our dozen torch calls costs 2 to 4 microseconds.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from attention_core import MultiHeadAttention, attention_weights, masks
from attention_core.layer.attention import attention_scores

MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
FORMS = ("default", "batch_first", "no fast path")
SAMPLE_SECONDS = 2e-3  # a sample repeats its call until it takes about this long, or once


def pair_ratio(
    ours: Callable, theirs: Callable, pairs: int, clock: Callable[[], float]
) -> tuple[np.ndarray, float, float]:
    """Ratios ours / theirs of interleaved samples (pairs,), and the median seconds of one call of each."""
    for _ in range(3):
        ours(), theirs()
    start = clock()
    theirs()
    repeats = max(1, round(SAMPLE_SECONDS / (clock() - start)))

    def sample(call: Callable) -> float:
        start = clock()
        for _ in range(repeats):
            call()
        return (clock() - start) / repeats

    a, b = np.empty(pairs), np.empty(pairs)
    gc.collect()
    gc.disable()
    for i in range(pairs):
        if i % 2:
            a[i], b[i] = sample(ours), sample(theirs)
        else:
            b[i], a[i] = sample(theirs), sample(ours)
    gc.enable()
    return a / b, float(np.median(a)), float(np.median(b))


def interval(ratios: np.ndarray, draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    picks = np.random.default_rng(0).integers(0, len(ratios), (draws, len(ratios)))
    return tuple(np.quantile(np.median(ratios[picks], axis=1), [0.025, 0.975]))


def make(d_model: int, num_heads: int, batch_first: bool) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    """The two layers, with one set of weights."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(d_model, num_heads, batch_first=batch_first).eval()
    nn.init.normal_(theirs.in_proj_bias, std=0.1)
    nn.init.normal_(theirs.out_proj.bias, std=0.1)
    return MultiHeadAttention.from_module(theirs), theirs


def calls(d_model: int, num_heads: int, length: int, causal: bool, form: str, one_head: bool):
    """The two calls to compare."""
    layer, theirs = make(d_model, num_heads, form != "default")
    x = torch.randn(1, length, d_model)
    mask = masks.causal(length) if causal else None
    their_x = x if form != "default" else x.transpose(0, 1).contiguous()
    their_mask = None if mask is None else masks.to_torch_mha(mask)

    def reference():
        return theirs(their_x, their_x, their_x, attn_mask=their_mask, need_weights=True, average_attn_weights=False)

    def every_stage():
        return layer.steps(x, mask=mask)

    def output_and_one_head():
        head = layer.projections(x).head(1)
        query = nn.functional.linear(head.query_input, head.query_weight, head.query_bias)[:, None]
        key = nn.functional.linear(head.key_input, head.key_weight, head.key_bias)[:, None]
        scores = attention_scores(query, key, layer.config.effective_scale)
        return layer(x, mask=mask), attention_weights(scores, mask)

    ours = output_and_one_head if one_head else every_stage
    with torch.no_grad():
        expected, expected_weights = reference()
        result = ours()
        output, weights = (result[0], result[1][:, 0]) if one_head else (result.output, result.weights)
        expected = expected if form != "default" else expected.transpose(0, 1)
        torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            weights, expected_weights[:, 1] if one_head else expected_weights, atol=1e-5, rtol=1e-4
        )
    return ours, reference


def cases():
    """(group, d_model, num_heads, length, causal, gate on the ratio)."""
    for length in (4, 16, 32):
        yield "small", 64, 4, length, False, 0.95
        yield "small", 64, 4, length, True, 0.85
    for d_model, heads in ((256, 4), (512, 8), (1024, 16)):
        for length in (128, 512):
            yield "medium", d_model, heads, length, False, 1.15
            yield "medium", d_model, heads, length, True, 1.15
    for d_model, heads in ((256, 4), (1024, 16)):
        yield "long", d_model, heads, 1024, False, 0.8
        yield "long", d_model, heads, 1024, True, 0.8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=41, help="interleaved pairs of each row, at least 30")
    parser.add_argument("--only", choices=("small", "medium", "long"))
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a machine that others use")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--forms", default=",".join(FORMS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    clock = {"wall": time.perf_counter, "cpu": time.thread_time}[arguments.clock]
    print(
        f"{arguments.clock} time, torch {torch.__version__}, one thread, float32, eval, batch 1, {arguments.pairs} pairs"
    )
    print("small, medium: layer.steps(x); long: layer(x) and the weights of one head; ratio = ours / theirs")
    head = f"{'d_model':>7} {'tokens':>6} {'mask':>6}  {'no gradients by':15} {'nn.MultiheadAttention':21}"
    print(f"{head} {'ours ms':>8} {'theirs':>8} {'ratio':>6}  {'95 % interval':15} gate")
    missed = 0
    for group, d_model, heads, length, causal, gate in cases():
        if arguments.only not in (None, group):
            continue
        for mode in arguments.modes.split(","):
            for form in arguments.forms.split(","):
                torch.backends.mha.set_fastpath_enabled(form != "no fast path")
                ours, theirs = calls(d_model, heads, length, causal, form, one_head=group == "long")
                with MODES[mode]():
                    ratios, mine, their = pair_ratio(ours, theirs, arguments.pairs, clock)
                ratio, (low, high) = float(np.median(ratios)), interval(ratios)
                gate_here = None if form == "batch_first" else gate
                missed += gate_here is not None and ratio > gate_here
                verdict = "none" if gate_here is None else f"{gate} {'held' if ratio <= gate else 'MISSED'}"
                print(
                    f"{d_model:7} {length:6} {'causal' if causal else 'none':>6}  {mode:15} {form:21} {mine * 1e3:8.3f} "
                    f"{their * 1e3:8.3f} {ratio:6.2f}  {low:.2f} to {high:.2f}    {verdict}",
                    flush=True,
                )
    print(f"{missed} rows above their gate" if missed else "every gate holds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
