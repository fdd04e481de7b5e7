"""What recording a run costs, in time and in memory, on random models of the exact shapes of bart-base and bart-large.

    python tests/benchmarks/bench_extract.py                              # everything, 20 pairs
    python tests/benchmarks/bench_extract.py --shapes base --lengths 128 --pairs 5 --no-memory

Recording: CPU time (all threads of this process) of one trace, divided by that of the plain run of the same inputs through
the library's fused attention, on a second model with the same weights; the median of interleaved pairs, so that whatever else
the machine does falls on both. Source and target have the same length, as when BART is given a source alone, unless --target
says otherwise.

One head: CPU time of ``steps(kind, layer, [head])``, divided by that of the plain run, the median over kinds.

Memory: what one run adds to the peak resident set (ru_maxrss) of a process of its own, above what it had after loading the
model and one run over two tokens: recording, against the library's eager attention with
``output_attentions=True, output_hidden_states=True``.

Targets: recording at most 1.05; one head at most 1 %; memory at most 1/5.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

SHAPES = {
    "base": {"d_model": 768, "layers": 6, "heads": 12, "ffn": 3072},
    "large": {"d_model": 1024, "layers": 12, "heads": 16, "ffn": 4096},
}


def random_bart(shape: str, implementation: str):
    """A BART of the exact shape; filled by one repeated block, since drawing 400 million numbers takes longer than all else."""
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    size = SHAPES[shape]
    config = BartConfig(
        d_model=size["d_model"], encoder_layers=size["layers"], decoder_layers=size["layers"],
        encoder_attention_heads=size["heads"], decoder_attention_heads=size["heads"],
        encoder_ffn_dim=size["ffn"], decoder_ffn_dim=size["ffn"], attn_implementation=implementation,
    )  # fmt: skip
    with torch.device("meta"):
        model = BartForConditionalGeneration(config)
    model = model.to_empty(device="cpu")
    model.tie_weights()
    block = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)).mul_(0.02)
    for name, x in model.state_dict().items():
        x.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
        if x.dim() == 2:
            flat = x.view(-1)
            for start in range(0, len(flat), len(block)):
                flat[start : start + len(block)] = block[: len(flat) - start]
    return model.eval()


def random_ids(source_len: int, target_len: int):
    import torch

    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 50265, (1, length), generator=generator) for length in (source_len, target_len)]


def cpu_seconds(call) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def measure_time(shape: str, source_len: int, target_len: int, pairs: int, exact: bool) -> None:
    import torch

    from attention_core.extract.models import load_model
    from attention_core.extract.trace import trace

    plain = random_bart(shape, "sdpa")
    model = load_model(random_bart(shape, "sdpa"))
    source, target = random_ids(source_len, target_len)

    def run_plain() -> None:
        with torch.no_grad():
            plain(input_ids=source, decoder_input_ids=target, use_cache=False)

    def record() -> None:
        trace(model, source, target=target, exact=exact)

    run_plain(), record()  # warm up
    plains, ratios = [], []
    for pair in range(pairs):
        # Each goes first in half of the pairs.
        order = (run_plain, record) if pair % 2 else (record, run_plain)
        seconds = {call: cpu_seconds(call) for call in order}
        plains.append(seconds[run_plain])
        ratios.append(seconds[record] / seconds[run_plain])
    run = trace(model, source, target=target, exact=exact)
    last = SHAPES[shape]["layers"] - 1
    heads = {
        kind: median(cpu_seconds(lambda kind=kind: run.steps(kind, last, [3])) for _ in range(max(5, pairs)))
        for kind in run.kinds
    }
    shares = ", ".join(f"{kind} {seconds / median(plains):.2%}" for kind, seconds in heads.items())
    mode = "exact" if exact else "fused"
    print(
        f"{shape:5} {source_len:5} x {target_len:<5} {mode}: plain {median(plains):7.3f} CPU-s, recording x {median(ratios):.3f} "
        f"(from {min(ratios):.3f} to {max(ratios):.3f}, {pairs} pairs); one head: {shares}",
        flush=True,
    )


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kB on Linux


def memory_in_this_process(mode: str, shape: str, source_len: int, target_len: int) -> None:
    """Prints what one run adds to the peak of this process, in MB."""
    import torch

    from attention_core.extract.models import load_model
    from attention_core.extract.trace import trace

    module = random_bart(shape, "eager" if mode == "outputs" else "sdpa")
    source, target = random_ids(source_len, target_len)
    wanted = {"output_attentions": True, "output_hidden_states": True} if mode == "outputs" else {}

    def run(source, target):
        if mode == "trace":
            return trace(model, source, target=target)
        with torch.no_grad():
            return module(input_ids=source, decoder_input_ids=target, use_cache=False, **wanted)

    model = load_model(module) if mode == "trace" else None
    run(source[:, :2], target[:, :2])
    before = peak_mb()
    kept = run(source, target)
    print(peak_mb() - before)
    del kept


def measure_memory(shape: str, source_len: int, target_len: int) -> None:
    added = {}
    for mode in ("plain", "trace", "outputs"):
        command = [sys.executable, __file__, "--memory-of", mode, "--shapes", shape]
        command += ["--lengths", str(source_len), "--target", str(target_len)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        added[mode] = float(done.stdout.split()[-1])
    print(
        f"{shape:5} {source_len:5} x {target_len:<5} peak added by a run: plain {added['plain']:.0f} MB, recording "
        f"{added['trace']:.0f} MB, library's outputs {added['outputs']:.0f} MB: "
        f"recording is {added['trace'] / added['outputs']:.3f} of them (target 0.2)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 512, 1024], help="source tokens")
    parser.add_argument("--target", type=int, default=None, help="target tokens; the source's length unless given")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--exact", action="store_true", help="time recording with the step-by-step attention")
    parser.add_argument("--no-time", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--memory-of", choices=["plain", "trace", "outputs"], help=argparse.SUPPRESS)
    chosen = parser.parse_args()

    import torch

    torch.set_num_threads(chosen.threads)
    if chosen.memory_of:
        length = chosen.lengths[0]
        memory_in_this_process(chosen.memory_of, chosen.shapes[0], length, chosen.target or length)
        return
    for shape in chosen.shapes:
        for length in chosen.lengths:
            target = chosen.target or length
            if not chosen.no_time:
                measure_time(shape, length, target, chosen.pairs, chosen.exact)
            if not chosen.no_memory:
                measure_memory(shape, length, target)


if __name__ == "__main__":
    main()
