"""Attention through a whole stack: rollout and flow, and their extension from the decoder to the source.

A layer mixes a token's own vector (the residual) with what its heads bring. Both methods take either for half:

    A_l = (mean over heads of W_l + I) / 2,  each row divided by its sum       a row that sees no key stays itself
    rollout   R_1 = A_1,  R_l = A_l R_(l-1)                 all paths, each the product of its steps
    flow      F_ij = largest flow from token i of the top layer to input j     pipes as wide as A_l, over its row's sum

Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers". Rows are positions of the top layer, columns input
tokens; rows sum to 1. Values, norms and feed-forward layers are not in it: both say where vectors could have come from, not
what they did there.

**The extension from decoder to source is ours**, not the paper's (its results say so in ``note``). The decoder's sublayers
are taken one after the other, each half residual; what cross-attention reads is the encoder's output, itself rolled out:

    after self-attention of layer l    X = A_l [T | S]
    after its cross-attention          [T | S] = (X + [0 | C_l E]) / 2,  each row divided by its sum
    before layer 1                     T = I, S = 0

E is the encoder's rollout, (source, source), C_l the mean over heads of the cross-attention, (target, source). T (target, target)
and S (target, source) are the shares that come from the decoder's inputs and from the source: together a row is 1. For the flow the
same sublayers are pipes. ``to_source`` is S, each row divided by its sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor

from ..errors import AttentionError
from ..extract.trace import Trace

FLOW_TOKENS = 32
"""Tokens of a side up to which the flow is computed: one largest flow for every pair of tokens."""
CAPACITY = 1 << 30
"""A pipe of width 1 in whole numbers, as the largest flow needs them; twice that would not fit 32 bits.

A width is rounded to the next 2^-30, and a flow is the sum of the pipes of some cut, so that it is off by at most half that
for each pipe cut: within 32 * 32 / 2^31 = 5e-7 in one layer's cut.
"""
NOTE = (
    "from decoder to source is an extension of this project, not of the paper: self-attention and cross-attention count as "
    "sublayers that are half residual each, and the encoder's output is rolled out to its input"
)


@dataclass(frozen=True, eq=False)
class StackGraph:
    """The weights that a stack mixes its tokens with.

    Attributes:
        layers: (layers, len, len), float64, A_l; rows sum to 1.
        places: which positions of the side these are (padding is left out).
        kind: "encoder" or "decoder".
    """

    layers: Tensor
    places: tuple[int, ...]
    kind: str


@dataclass(frozen=True, eq=False)
class CrossGraph:
    """A decoder over an encoder: their own graphs, and cross, (decoder layers, target_len, source_len), float64, C_l."""

    decoder: StackGraph
    encoder: StackGraph
    cross: Tensor


@dataclass(frozen=True, eq=False)
class ToSource:
    """What the decoder's top layer draws from the source.

    Attributes:
        to_source: (target_len, source_len), rows sum to 1 (0 where nothing comes from the source).
        share: (target_len,), rollout only: how much of the row comes from the source at all, from 0 to 1; the rest comes from
            the decoder's own inputs. It is 1 - 2^-layers by construction where every token sees the source, so that only
            a lower value says something. None for the flow, which fills every pipe for each token alone.
        note: that this is our extension, and how it is composed.
    """

    to_source: Tensor
    share: Tensor | None
    note: str = NOTE


def mixing(weights: Tensor) -> Tensor:
    """A = (mean over heads of W + I) / 2, rows divided by their sum: (heads, len, len) -> (len, len), float64."""
    if weights.dim() != 3 or weights.shape[-2] != weights.shape[-1]:
        raise AttentionError(
            "rollout and flow need self-attention of shape (heads, len, len), got {shape}", shape=tuple(weights.shape)
        )
    mean = weights.double().mean(0)
    return _divided(mean + torch.eye(len(mean), dtype=mean.dtype, device=mean.device))


def stack_graph(run: Trace, kind: str, *, text: int = 0) -> StackGraph:
    """The graph of one stack of a run, padding left out.

    Args:
        run: from ``trace``.
        kind: "encoder" or "decoder".
        text: which text of the batch.

    Raises:
        AttentionError: a kind that this run has not, or cross-attention, which is no stack.
    """
    if kind == "cross":
        raise AttentionError("cross-attention is no stack: take the extension from decoder to source (cross_graph)")
    places = _real(run, kind, "query", text)
    index = torch.tensor(places)
    layers = [
        mixing(run.steps(kind, layer).weights[text].cpu()[:, index][:, :, index])
        for layer in range(run.num_layers(kind))
    ]
    return StackGraph(torch.stack(layers), places, kind)


def cross_graph(run: Trace, *, text: int = 0) -> CrossGraph:
    """The graphs of encoder, decoder and the cross-attention between them, padding left out. Arguments as in stack_graph."""
    decoder, encoder = stack_graph(run, "decoder", text=text), stack_graph(run, "encoder", text=text)
    rows, columns = torch.tensor(decoder.places), torch.tensor(encoder.places)
    cross = [
        run.steps("cross", layer).weights[text].cpu().double().mean(0)[rows][:, columns]
        for layer in range(run.num_layers("cross"))
    ]
    return CrossGraph(decoder, encoder, torch.stack(cross))


def rollout(layers: Tensor) -> Tensor:
    """R_l = A_l R_(l-1), R_1 = A_1.

    Args:
        layers: A_l, (layers, len, len), rows sum to 1.

    Returns:
        (layers, len, len): R of each layer, the last is that of the top; rows sum to 1, causal where the A_l are.
    """
    results = [layers[0]]
    for mixed in layers[1:]:
        results.append(mixed @ results[-1])
    return torch.stack(results)


def rollout_to_source(graph: CrossGraph) -> ToSource:
    """Our extension of the rollout, composed as the head of this file says."""
    encoded = rollout(graph.encoder.layers)[-1]
    length = graph.decoder.layers.shape[-1]
    drawn = torch.cat([torch.eye(length, dtype=encoded.dtype), encoded.new_zeros(length, len(encoded))], dim=1)
    for mixed, cross in zip(graph.decoder.layers, graph.cross, strict=True):
        drawn = mixed @ drawn
        drawn = _divided(drawn + torch.cat([encoded.new_zeros(length, length), cross @ encoded], dim=1))
    source = drawn[:, length:]
    return ToSource(_divided(source), source.sum(-1))


def flow(
    layers: Tensor,
    *,
    queries: Sequence[int] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Tensor:
    """Largest flow from each token of the top layer to each input token, each row divided by its sum.

    Args:
        layers: A_l, (layers, len, len), rows sum to 1; at most 32 tokens.
        queries: which tokens of the top layer; None = all.
        on_progress: called with (rows done, rows in all), after each.
        should_stop: asked after each row; True leaves the other rows NaN.

    Returns:
        (queries, len), float64, rows sum to 1; within 5e-7 a layer of the exact flow, before the division.

    Raises:
        AttentionError: more than 32 tokens.
    """
    depth, length = layers.shape[:2]
    _check_size("this stack", length)
    # Nodes: layer 0 (the inputs) first. Pipes of A_l lead from level l down to level l - 1.
    pipes = [((level + 1) * length, level * length, layers[level]) for level in range(depth)]
    queries = range(length) if queries is None else queries
    tops = [depth * length + query for query in queries]
    return _largest_flows(pipes, (depth + 1) * length, tops, range(length), on_progress, should_stop)


def flow_to_source(
    graph: CrossGraph,
    *,
    queries: Sequence[int] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ToSource:
    """Our extension of the flow: from each top token of the decoder, through all sublayers and the encoder, to the source.

    Pipes: 1/2 from a token after cross-attention to itself before it, C_l / 2 to the encoder's top, A_l in self-attention and
    in the encoder. Arguments and errors as in ``flow``; either side may have 32 tokens.
    """
    encoder, decoder = graph.encoder.layers, graph.decoder.layers
    source_len, target_len = encoder.shape[-1], decoder.shape[-1]
    _check_size("the source", source_len)
    _check_size("the target", target_len)
    pipes = [((level + 1) * source_len, level * source_len, encoder[level]) for level in range(len(encoder))]
    encoded = len(encoder) * source_len
    start = encoded + source_len
    halves = torch.eye(target_len, dtype=encoder.dtype)
    for level in range(len(decoder)):
        # Three rows of nodes: what enters the layer, after self-attention, after cross-attention (what enters the next).
        below, middle, above = (start + (2 * level + step) * target_len for step in range(3))
        pipes.append((middle, below, decoder[level]))
        both = _divided(torch.cat([halves, graph.cross[level]], dim=1))
        pipes.append((above, middle, both[:, :target_len]))
        pipes.append((above, encoded, both[:, target_len:]))
    top = start + 2 * len(decoder) * target_len
    queries = range(target_len) if queries is None else queries
    found = _largest_flows(
        pipes, top + target_len, [top + query for query in queries], range(source_len), on_progress, should_stop
    )
    return ToSource(found, None)


def _largest_flows(
    pipes: Sequence[tuple[int, int, Tensor]],
    nodes: int,
    starts: Sequence[int],
    ends: Sequence[int],
    on_progress: Callable[[int, int], None] | None,
    should_stop: Callable[[], bool] | None,
) -> Tensor:
    """One largest flow a pair, rows divided by their sum. Pipes: (first node of the rows, of the columns, widths)."""
    rows, columns, widths = [], [], []
    for row, column, width in pipes:
        whole = np.rint(width.numpy() * CAPACITY).astype(np.int32)
        found = np.nonzero(whole)
        rows.append(found[0] + row)
        columns.append(found[1] + column)
        widths.append(whole[found])
    places = (np.concatenate(rows).astype(np.int32), np.concatenate(columns).astype(np.int32))
    graph = csr_array((np.concatenate(widths), places), shape=(nodes, nodes))
    result = torch.full((len(starts), len(ends)), torch.nan, dtype=torch.float64)
    for done, start in enumerate(starts, 1):
        values = [maximum_flow(graph, start, end).flow_value / CAPACITY for end in ends]
        result[done - 1] = _divided(torch.tensor(values, dtype=torch.float64))
        if on_progress is not None:
            on_progress(done, len(starts))
        if should_stop is not None and should_stop():
            break
    return result


def _divided(rows: Tensor) -> Tensor:
    """Each row divided by its sum; a row of zeros stays one."""
    total = rows.sum(-1, keepdim=True)
    return rows / torch.where(total > 0, total, 1)


def _real(run: Trace, kind: str, axis: str, text: int) -> tuple[int, ...]:
    run.query_pieces(kind, text)  # says so where there is no such text
    places = run.side(kind, axis).real[text].nonzero().flatten().tolist()
    if not places:
        raise AttentionError("text {text} has no token but padding: there is nothing to follow", text=text)
    return tuple(places)


def _check_size(side: str, count: int) -> None:
    if count > FLOW_TOKENS:
        raise AttentionError(
            "flow is computed for at most {limit} tokens, and {side} has {count}: shorten the text, or use rollout",
            limit=FLOW_TOKENS,
            side=side,
            count=count,
        )
