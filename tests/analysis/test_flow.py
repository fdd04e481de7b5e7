"""Rollout and flow on graphs small enough to do by hand, and against a cut found by trying all of them."""

from itertools import product

import pytest
import torch

from attention_core import AttentionError, load_model, trace
from attention_core.analysis.flow import (
    CrossGraph,
    StackGraph,
    cross_graph,
    flow,
    flow_to_source,
    mixing,
    rollout,
    rollout_to_source,
    stack_graph,
)


def graphs(seed=0, depth=2, length=3, heads=2, causal=False):
    """A_l of random weights, (depth, length, length)."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(depth, heads, length, length, generator=generator).mul(2)
    if causal:
        scores = scores.masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(), -torch.inf)
    return torch.stack([mixing(weights) for weights in scores.softmax(-1)])


def smallest_cut(pipes: dict[tuple, float], start, end) -> float:
    """Largest flow = smallest cut (Ford and Fulkerson 1956): tries every set of nodes that holds the start and not the end."""
    nodes = sorted({node for pipe in pipes for node in pipe} - {start, end}, key=str)
    best = float("inf")
    for chosen in product((False, True), repeat=len(nodes)):
        inside = {start, *(node for node, take in zip(nodes, chosen) if take)}
        best = min(best, sum(width for (a, b), width in pipes.items() if a in inside and b not in inside))
    return best


def divided(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.sum(-1, keepdim=True)


def test_mixing_by_hand():
    weights = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.1, 0.9]]])
    torch.testing.assert_close(mixing(weights), torch.tensor([[1, 0], [0.15, 0.85]], dtype=torch.float64))
    empty = torch.zeros(1, 2, 2)
    assert torch.equal(mixing(empty), torch.eye(2, dtype=torch.float64)), "a row that sees nothing stays itself"


def test_rollout_by_hand():
    layers = torch.tensor([[[0.5, 0.5], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]]]).double()
    found = rollout(layers)
    assert torch.equal(found[0], layers[0])
    assert found[1].tolist() == [[0.5, 0.5], [0.375, 0.625]]


def test_identity_stays_identity():
    eye = torch.eye(3, dtype=torch.float64)
    layers = torch.stack([mixing(torch.eye(3).expand(5, 3, 3))] * 7)
    assert torch.equal(rollout(layers)[-1], eye) and torch.equal(flow(layers), eye)


def test_flow_by_hand():
    # From token 1 of the top: half to itself, half to token 0. Token 0 passes all on to input 0, token 1 a quarter and three
    # quarters: to input 0 go min(1/2, 1) + min(1/2, 1/4) = 3/4, to input 1 min(1/2, 3/4) = 1/2.
    layers = torch.tensor([[[1.0, 0.0], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]]]).double()
    torch.testing.assert_close(flow(layers), torch.tensor([[1, 0], [0.6, 0.4]], dtype=torch.float64))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("depth", "length"), [(1, 5), (2, 3), (3, 3), (5, 2)])
def test_flow_is_the_smallest_cut(depth, length, causal):
    layers = graphs(depth * 7 + length, depth, length, causal=causal)
    pipes = {
        ((level + 1, i), (level, j)): float(layers[level, i, j])
        for level in range(depth)
        for i in range(length)
        for j in range(length)
    }
    cuts = [[smallest_cut(pipes, (depth, i), (0, j)) for j in range(length)] for i in range(length)]
    torch.testing.assert_close(flow(layers), divided(torch.tensor(cuts, dtype=torch.float64)), atol=1e-6, rtol=0)


def test_rows_sum_to_one_and_causal_stays_causal():
    layers = graphs(5, depth=3, length=7, causal=True)
    for found in (rollout(layers)[-1], flow(layers)):
        torch.testing.assert_close(found.sum(-1), torch.ones(7, dtype=torch.float64))
        assert not found.triu(1).any() and (found >= 0).all()


def test_some_rows_alone_progress_and_stop():
    layers, seen = graphs(3, depth=2, length=5), []
    whole = flow(layers)
    torch.testing.assert_close(flow(layers, queries=[4, 1]), whole[[4, 1]])
    stopped = flow(layers, on_progress=lambda *done: seen.append(done), should_stop=lambda: len(seen) == 2)
    assert seen == [(1, 5), (2, 5)]
    assert torch.equal(stopped[:2], whole[:2]) and stopped[2:].isnan().all()


def test_flow_is_for_32_tokens():
    assert flow(graphs(0, depth=1, length=32), queries=[31]).shape == (1, 32)
    with pytest.raises(AttentionError, match="at most 32 tokens, and this stack has 33"):
        flow(graphs(0, depth=1, length=33))
    with pytest.raises(AttentionError, match=r"self-attention of shape \(heads, len, len\), got \(2, 3, 5\)"):
        mixing(torch.zeros(2, 3, 5))


# ---- from decoder to source


def joined(seed=1, depth=2, target_len=2, source_len=3, encoder_depth=1) -> CrossGraph:
    generator = torch.Generator().manual_seed(seed)
    cross = torch.randn(depth, target_len, source_len, generator=generator).double().softmax(-1)
    return CrossGraph(
        StackGraph(graphs(seed + 1, depth, target_len, causal=True), tuple(range(target_len)), "decoder"),
        StackGraph(graphs(seed + 2, encoder_depth, source_len), tuple(range(source_len)), "encoder"),
        cross,
    )


def test_rollout_to_source_by_hand():
    """One decoder layer, no encoder mixing: half from the decoder's input, half from where cross-attention looks."""
    eye = torch.eye(3, dtype=torch.float64)[None]
    cross = torch.tensor([[[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]]], dtype=torch.float64)
    graph = CrossGraph(StackGraph(eye[:, :2, :2], (0, 1), "decoder"), StackGraph(eye, (0, 1, 2), "encoder"), cross)
    found = rollout_to_source(graph)
    torch.testing.assert_close(found.to_source, cross[0])
    assert found.share.tolist() == [0.5, 0.5]
    assert "extension of this project" in found.note


def test_rollout_to_source_sums_all_paths():
    graph = joined(depth=2, encoder_depth=2, target_len=2, source_len=3)
    upper = graph.decoder.layers[1]
    encoded = graph.encoder.layers[1] @ graph.encoder.layers[0]
    # Read in layer 2; or in layer 1 and then carried through the self-attention of layer 2 and past its cross-attention.
    expected = graph.cross[1] @ encoded / 2 + upper @ (graph.cross[0] @ encoded / 2) / 2
    found = rollout_to_source(graph)
    torch.testing.assert_close(found.share, torch.full((2,), 0.75, dtype=torch.float64))
    torch.testing.assert_close(found.to_source, expected / 0.75)


def test_a_target_token_that_sees_no_source_draws_only_on_itself():
    graph = joined()
    graph.cross[:, 0] = 0
    found = rollout_to_source(graph)
    assert found.share[0] == 0 and not found.to_source[0].any() and float(found.to_source[1].sum()) == pytest.approx(1)
    assert not flow_to_source(graph).to_source[0].any()


def test_flow_to_source_is_the_smallest_cut():
    graph = joined(depth=2, target_len=2, source_len=3, encoder_depth=1)
    pipes = {}
    for (i, j), width in zip(product(range(3), repeat=2), graph.encoder.layers[0].flatten().tolist()):
        pipes[("e1", i), ("e0", j)] = width
    for level in range(2):
        for i in range(2):
            pipes[("d", 2 * level + 2, i), ("d", 2 * level + 1, i)] = 0.5
            for j in range(2):
                pipes[("d", 2 * level + 1, i), ("d", 2 * level, j)] = float(graph.decoder.layers[level, i, j])
            for j in range(3):
                pipes[("d", 2 * level + 2, i), ("e1", j)] = float(graph.cross[level, i, j]) / 2
    cuts = [[smallest_cut(pipes, ("d", 4, i), ("e0", j)) for j in range(3)] for i in range(2)]
    found = flow_to_source(graph)
    torch.testing.assert_close(found.to_source, divided(torch.tensor(cuts, dtype=torch.float64)), atol=1e-6, rtol=0)
    assert found.share is None and "extension of this project" in found.note


# ---- on a run


@pytest.fixture(scope="module")
def model():
    return load_model("embedded")


def test_a_run_as_graphs(model):
    run = trace(model, "The fox ran away.", target="The fox ran.")
    graph = stack_graph(run, "decoder")
    expected = run.steps("decoder", 1).weights[0].double().mean(0)
    torch.testing.assert_close(graph.layers[1], (expected + torch.eye(len(expected))) / 2)
    assert len(graph.layers) == run.num_layers("decoder") and graph.places == tuple(range(run.target_ids.shape[1]))
    assert not rollout(graph.layers)[-1].triu(1).any()
    both = cross_graph(run)
    torch.testing.assert_close(both.cross[2], run.steps("cross", 2).weights[0].double().mean(0))
    for found in (rollout_to_source(both), flow_to_source(both)):
        assert found.to_source.shape == (run.target_ids.shape[1], run.source_ids.shape[1])
        torch.testing.assert_close(found.to_source.sum(-1), torch.ones(len(found.to_source), dtype=torch.float64))


def test_padding_is_left_out(model):
    alone = cross_graph(trace(model, "The fox ran.", target="The fox."))
    batch = trace(
        model, ["A much longer text about a wolf.", "The fox ran."], target=["The wolf is here now.", "The fox."]
    )
    padded = cross_graph(batch, text=1)
    assert padded.encoder.places == alone.encoder.places and padded.decoder.places == alone.decoder.places
    for a, b in ((alone.cross, padded.cross), (alone.encoder.layers, padded.encoder.layers)):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_what_is_no_stack_is_refused(model):
    run = trace(model, "The fox ran.")
    with pytest.raises(AttentionError, match="cross-attention is no stack"):
        stack_graph(run, "cross")
    with pytest.raises(AttentionError, match="this run has no sideways attention"):
        stack_graph(run, "sideways")
    with pytest.raises(AttentionError, match="text 1 is not in this batch"):
        stack_graph(run, "encoder", text=1)
