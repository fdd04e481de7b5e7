"""The arithmetic of single cells: it must give the very numbers of the tensors, for every stage and every kind of layer."""

from math import exp, log

import pytest
import torch
from torch import nn

from attention_core import AttentionConfig, AttentionError, MultiHeadAttention, attention_steps, masks
from attention_core.layer.arithmetic import STAGES, cell_arithmetic
from attention_core.layer.projections import Projections

BATCH, QUERY_LEN, KEY_LEN, D_MODEL, HEADS, HEAD_DIM = 2, 5, 7, 33, 3, 11
KEY_DIM, VALUE_DIM = 13, 17
CONFIGS = {
    "standard": AttentionConfig(D_MODEL, HEADS),
    "free head_dim": AttentionConfig(D_MODEL, HEADS, head_dim=2),
    "cross widths": AttentionConfig(D_MODEL, HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM),
    "no biases": AttentionConfig(D_MODEL, HEADS, qkv_bias=False, out_bias=False),
    "bart_simplified": AttentionConfig(D_MODEL, HEADS, projection="shared", scale="d_model", qkv_bias=False),
    "shared with bias": AttentionConfig(D_MODEL, HEADS, projection="shared"),
    "dropout": AttentionConfig(D_MODEL, HEADS, dropout=0.4, temperature=2.0),
}
EMPTY_ROW = 2


def computed(config, dtype=torch.float64):
    """The layer's steps with a mask that hides every key from one row of text 1, and its projections."""
    layer = MultiHeadAttention(config).to(dtype).train(config.dropout > 0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    shapes = (QUERY_LEN, config.d_model), (KEY_LEN, config.key_dim), (KEY_LEN, config.value_dim)
    arguments = [torch.randn(BATCH, *shape).to(dtype) for shape in shapes]
    mask = torch.rand(BATCH, 1, QUERY_LEN, KEY_LEN) < 0.5
    mask[..., 0], mask[..., 1] = True, False
    mask[1, :, EMPTY_ROW] = False
    return layer.steps(*arguments, mask=mask), layer.projections(*arguments)


def stage_tensor(steps, stage):
    """(batch, heads, rows, columns) of a stage; the concatenation and the output have one head."""
    if stage == "concatenation":
        return steps.context.transpose(1, 2).reshape(BATCH, 1, QUERY_LEN, -1)
    if stage == "output":
        return steps.output[:, None]
    return steps.masked_scores() if stage == "masked_scores" else getattr(steps, stage)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("stage", STAGES)
def test_every_cell_of_every_stage(name, stage):
    steps, projections = computed(CONFIGS[name])
    if stage == "dropped_weights" and steps.dropped_weights is None:
        with pytest.raises(AttentionError, match="computed without dropout: there are no dropped weights"):
            cell_arithmetic(steps, projections, stage, head=0, row=0, column=0)
        return
    tensor = stage_tensor(steps, stage)
    cells = torch.cartesian_prod(*(torch.arange(n) for n in tensor.shape)).tolist()
    for batch, head, row, column in cells[:: max(1, len(cells) // 150)]:
        cell = cell_arithmetic(steps, projections, stage, head=head, row=row, column=column, batch=batch)
        assert cell.value == tensor[batch, head, row, column].item()
        assert (cell.stage, cell.row, cell.column) == (stage, row, column)
        assert cell.recomputed == pytest.approx(cell.value, rel=1e-11, abs=1e-11)
        assert cell.total == pytest.approx(
            sum(term.product for term in cell.terms) + (cell.bias or 0.0), rel=1e-11, abs=1e-11
        )
        assert all(term.product == term.left * term.right for term in cell.terms)
        sizes = [abs(term.product) for term in cell.terms]
        assert sizes == sorted(sizes, reverse=True)
        assert len({term.index for term in cell.terms}) == len(cell.terms)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_value_is_the_tensors_own_in_every_precision(dtype):
    steps, projections = computed(CONFIGS["standard"], dtype)
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 1e-1, torch.float32: 1e-5}[dtype]
    for stage in ("query", "scores", "weights", "context", "concatenation", "output"):
        cell = cell_arithmetic(steps, projections, stage, head=1 if stage != "output" else None, row=3, column=0)
        place = (0, 0 if stage in ("concatenation", "output") else 1, 3, 0)
        assert cell.value == stage_tensor(steps, stage)[place].item()
        assert cell.recomputed == pytest.approx(cell.value, rel=tolerance, abs=tolerance)


def test_projections_name_their_factors():
    steps, projections = computed(CONFIGS["cross widths"])
    for stage, x, weight, bias in (
        ("query", projections.query_input, projections.query_weight, projections.query_bias),
        ("key", projections.key_input, projections.key_weight, projections.key_bias),
        ("value", projections.value_input, projections.value_weight, projections.value_bias),
    ):
        cell = cell_arithmetic(steps, projections, stage, head=2, row=4, column=7, batch=1)
        out = 2 * HEAD_DIM + 7
        assert {t.index: (t.left, t.right) for t in cell.terms} == {
            i: (x[1, 4, i].item(), weight[out, i].item()) for i in range(x.shape[-1])
        }
        assert cell.bias == bias[out].item() and cell.visible and cell.visible_keys is None and cell.scale is None


def test_a_shared_matrix_reads_the_heads_own_features():
    steps, projections = computed(CONFIGS["bart_simplified"])
    cell = cell_arithmetic(steps, projections, "key", head=2, row=3, column=4, batch=1)
    assert {t.index: (t.left, t.right) for t in cell.terms} == {
        2 * HEAD_DIM + i: (projections.key_input[1, 3, 2 * HEAD_DIM + i].item(), projections.key_weight[4, i].item())
        for i in range(HEAD_DIM)
    }
    assert cell.bias is None


def test_scores_and_their_raw_product():
    steps, projections = computed(CONFIGS["standard"])
    cell = cell_arithmetic(steps, projections, "scores", head=1, row=3, column=6)
    assert {t.index: (t.left, t.right) for t in cell.terms} == {
        d: (steps.query[0, 1, 3, d].item(), steps.key[0, 1, 6, d].item()) for d in range(HEAD_DIM)
    }
    assert cell.scale == steps.scale and cell.value / cell.scale == pytest.approx(cell.total)
    assert cell.denominator is None and cell.softmax == ()


def test_softmax_by_hand():
    query = torch.tensor([[[[1.0]]]])
    key = torch.tensor([[[[0.0], [log(2)], [9.0], [log(3)]]]])
    value = torch.tensor([[[[6.0], [12.0], [100.0], [18.0]]]])
    steps = attention_steps(query, key, value, torch.tensor([True, True, False, True]), 1.0)
    cell = cell_arithmetic(steps, None, "weights", head=0, row=0, column=1)
    assert cell.row_max == pytest.approx(log(3)) and cell.visible and cell.visible_keys == 3
    assert cell.numerator == pytest.approx(2 / 3) and cell.denominator == pytest.approx(2.0)
    assert cell.value == pytest.approx(1 / 3)
    assert [term.key for term in cell.softmax] == [0, 1, 2, 3]
    assert [term.visible for term in cell.softmax] == [True, True, False, True]
    assert [term.numerator for term in cell.softmax] == pytest.approx([1 / 3, 2 / 3, 0, 1])
    assert [term.score for term in cell.softmax] == pytest.approx([0, log(2), 9, log(3)])
    hidden = cell_arithmetic(steps, None, "weights", head=0, row=0, column=2)
    assert not hidden.visible and hidden.numerator == hidden.value == hidden.recomputed == 0.0
    assert hidden.denominator == pytest.approx(2.0)
    masked = cell_arithmetic(steps, None, "masked_scores", head=0, row=0, column=2)
    assert masked.value == masked.recomputed == -torch.inf and not masked.visible and masked.total == pytest.approx(9)
    context = cell_arithmetic(steps, None, "context", head=0, row=0, column=0)
    assert context.value == pytest.approx(14.0)
    assert [(t.index, t.right) for t in context.terms] == [(3, 18.0), (1, 12.0), (0, 6.0), (2, 100.0)]


@pytest.mark.parametrize("name", CONFIGS)
def test_case_11_a_row_without_visible_key_is_said(name):
    steps, projections = computed(CONFIGS[name])
    where = dict(head=1, row=EMPTY_ROW, batch=1)
    weight = cell_arithmetic(steps, projections, "weights", column=3, **where)
    assert (weight.visible, weight.visible_keys, weight.row_max) == (False, 0, None)
    assert weight.value == weight.numerator == weight.denominator == weight.recomputed == 0.0
    assert all(not term.visible and term.numerator == 0 for term in weight.softmax) and len(weight.softmax) == KEY_LEN
    for stage in ("context", "concatenation"):
        cell = cell_arithmetic(steps, projections, stage, column=1, **where)
        assert (cell.visible, cell.visible_keys, cell.value, cell.total) == (False, 0, 0.0, 0.0)
    output = cell_arithmetic(steps, projections, "output", row=EMPTY_ROW, column=8, batch=1)
    assert output.value == output.total == (output.bias or 0.0)


def test_without_a_mask_every_key_is_visible():
    x = torch.randn(1, 1, 5, 3)
    cell = cell_arithmetic(attention_steps(x, x, x), None, "weights", head=0, row=2, column=4)
    assert cell.visible and cell.visible_keys == 5 and all(term.visible for term in cell.softmax)


def test_the_concatenation_says_which_head_and_dimension():
    steps, projections = computed(CONFIGS["standard"])
    for column in range(D_MODEL):
        cell = cell_arithmetic(steps, projections, "concatenation", row=3, column=column)
        assert (cell.head, cell.dim) == divmod(column, HEAD_DIM)
        context = cell_arithmetic(steps, projections, "context", head=cell.head, row=3, column=cell.dim)
        assert (cell.value, cell.terms) == (context.value, context.terms) and context.dim is None


def test_the_output_reads_the_concatenation():
    steps, projections = computed(CONFIGS["free head_dim"])
    cell = cell_arithmetic(steps, projections, "output", row=1, column=30)
    flat = steps.context[0].transpose(0, 1).reshape(QUERY_LEN, -1)
    assert {t.index: (t.left, t.right) for t in cell.terms} == {
        i: (flat[1, i].item(), projections.out_weight[30, i].item()) for i in range(6)
    }
    assert cell.bias == projections.out_bias[30].item() and cell.head is None


def test_dropout_in_the_arithmetic():
    steps, projections = computed(CONFIGS["dropout"])
    kept = set()
    for row in range(QUERY_LEN):
        for column in range(KEY_LEN):
            cell = cell_arithmetic(steps, projections, "dropped_weights", head=1, row=row, column=column)
            weight = cell_arithmetic(steps, projections, "weights", head=1, row=row, column=column)
            assert (cell.numerator, cell.denominator, weight.kept) == (weight.numerator, weight.denominator, None)
            assert (cell.kept is None) == (weight.value == 0)
            kept |= set() if cell.kept is None else {round(cell.kept, 9)}
    assert kept == {0.0, round(1 / 0.6, 9)}
    context = cell_arithmetic(steps, projections, "context", head=1, row=3, column=5)
    assert {t.index: t.left for t in context.terms} == dict(enumerate(steps.dropped_weights[0, 1, 3].tolist()))


def test_largest_and_the_rest():
    steps, projections = computed(CONFIGS["standard"])
    cell = cell_arithmetic(steps, projections, "query", head=0, row=0, column=0)
    largest, rest, others = cell.largest(4)
    assert largest == cell.terms[:4] and others == D_MODEL - 4
    assert sum(term.product for term in largest) + rest + cell.bias == pytest.approx(cell.total)
    assert cell.largest(99) == (cell.terms, 0, 0) and cell.largest(0)[0] == () and cell.largest(-3)[2] == D_MODEL


def test_steps_of_some_heads():
    layer = MultiHeadAttention(CONFIGS["standard"]).double()
    x = torch.randn(BATCH, QUERY_LEN, D_MODEL).double()
    whole, projections = layer.steps(x), layer.projections(x)
    some = layer.steps(x, heads=[2, 0])
    for stage in ("query", "scores", "weights", "context"):
        for head in (0, 2):
            cell = cell_arithmetic(some, projections, stage, head=head, row=3, column=4, heads=[2, 0])
            same = cell_arithmetic(whole, projections, stage, head=head, row=3, column=4)
            assert cell.head == head and cell.value == pytest.approx(same.value)
            assert cell.recomputed == pytest.approx(same.recomputed)
    assert cell_arithmetic(some, projections, "concatenation", row=3, column=12, heads=[2, 0]).head == 0
    for arguments, message in (
        (dict(head=0), "these steps hold 2 of 3 heads: name them in heads"),
        (dict(head=1, heads=[2, 0]), r"head 1 is not among those of these steps \(\[2, 0\]\)"),
    ):
        with pytest.raises(AttentionError, match=message):
            cell_arithmetic(some, projections, "scores", row=0, column=0, **arguments)
    with pytest.raises(AttentionError, match="these steps have no output: it takes all heads of a layer"):
        cell_arithmetic(some, projections, "output", row=0, column=0)


@pytest.mark.parametrize("kind", ["bart", "bert"])
def test_a_real_module(kind):
    from .test_other_modules import transformers_module

    module = transformers_module(kind)
    inner = module if kind == "bart" else module.self
    names = ("q_proj", "k_proj", "v_proj") if kind == "bart" else ("query", "key", "value")
    linears = [getattr(inner, name) for name in names]
    x = torch.randn(BATCH, QUERY_LEN, D_MODEL)
    q, k, v = (linear(x).view(BATCH, QUERY_LEN, HEADS, HEAD_DIM).transpose(1, 2) for linear in linears)
    steps = attention_steps(q, k, v, masks.causal(QUERY_LEN), inner.scaling)
    out = module.out_proj if kind == "bart" else None
    if out is not None:
        steps = steps.with_output(out(steps.context.transpose(1, 2).flatten(2)))
    projections = Projections(
        HEADS, x, x, x, *(linear.weight for linear in linears), *(linear.bias for linear in linears),
        None if out is None else out.weight, None if out is None else out.bias,
    )  # fmt: skip
    for stage in ("query", "key", "value", "scores", "weights", "context", "concatenation", "output"):
        if stage == "output" and out is None:
            continue
        head = None if stage == "output" else 1
        cell = cell_arithmetic(steps, projections, stage, head=head, row=3, column=2, batch=1)
        assert cell.recomputed == pytest.approx(cell.value, rel=1e-5, abs=1e-5)
    if out is None:
        with pytest.raises(
            AttentionError, match="the output has no arithmetic here: the module shows no output projection"
        ):
            cell_arithmetic(steps.with_output(x), projections, "output", row=0, column=0)


def test_numbers_that_are_not_finite_are_shown_first():
    x = torch.randn(1, 1, 5, 3)
    x[0, 0, 1, 2] = torch.nan
    steps = attention_steps(x, x, x)
    cell = cell_arithmetic(steps, None, "weights", head=0, row=1, column=0)
    assert cell.terms[0].index == 2 and cell.terms[0].product != cell.terms[0].product
    assert cell.value != cell.value and cell.recomputed != cell.recomputed and cell.numerator != cell.numerator
    huge = torch.full((1, 1, 2, 2), 1e30)
    cell = cell_arithmetic(attention_steps(huge, huge, huge, scale=1.0), None, "weights", head=0, row=0, column=0)
    assert cell.value != cell.value and cell.total == pytest.approx(2e60)


def test_softmax_of_large_scores_does_not_overflow():
    x = torch.tensor([[[[300.0], [299.0]]]])
    cell = cell_arithmetic(attention_steps(x, x, x, scale=1.0), None, "weights", head=0, row=0, column=1)
    assert cell.row_max == 90000 and cell.numerator == exp(-300) and cell.denominator == 1 + exp(-300)


def test_nothing_is_changed_and_gradients_are_no_obstacle():
    steps, projections = computed(CONFIGS["dropout"])
    before = [t.detach().clone() for t in (steps.scores, steps.weights, steps.context, projections.query_weight)]
    for stage in STAGES:
        cell_arithmetic(steps, projections, stage, head=0, row=0, column=0)
    after = (steps.scores, steps.weights, steps.context, projections.query_weight)
    assert all(torch.equal(x, y) for x, y in zip(before, after))


@pytest.mark.parametrize(
    ("stage", "cell", "message"),
    [
        ("softmax", {}, "stage must be one of query, key, value, scores, masked_scores, weights, dropped_weights, context, "
                        "concatenation, output, not 'softmax'"),
        ("scores", {"head": None}, "this stage belongs to one head: name it"),
        ("scores", {"head": 3}, "head 3 is outside 0 to 2"),
        ("scores", {"head": -1}, "head -1 is outside 0 to 2"),
        ("weights", {"row": 5}, "row 5 is outside 0 to 4"),
        ("weights", {"column": 7}, "column 7 is outside 0 to 6"),
        ("weights", {"row": -1}, "row -1 is outside 0 to 4"),
        ("weights", {"batch": 2}, "batch 2 is outside 0 to 1"),
        ("key", {"row": 7}, "row 7 is outside 0 to 6"),
        ("query", {"column": 11}, "column 11 is outside 0 to 10"),
        ("context", {"column": 11}, "column 11 is outside 0 to 10"),
        ("context", {"row": 5}, "row 5 is outside 0 to 4"),
        ("concatenation", {"column": 33}, "column 33 is outside 0 to 32"),
        ("output", {"column": 33}, "column 33 is outside 0 to 32"),
        ("output", {"row": -2}, "row -2 is outside 0 to 4"),
    ],
)  # fmt: skip
def test_cells_that_are_not_there(stage, cell, message):
    steps, projections = computed(CONFIGS["standard"])
    with pytest.raises(AttentionError) as caught:
        cell_arithmetic(steps, projections, stage, **({"head": 0, "row": 0, "column": 0} | cell))
    assert str(caught.value) == message


def test_given_directly_there_is_no_projection():
    x = torch.randn(1, 2, 5, 3)
    steps = attention_steps(x, x, x)
    for stage in ("query", "key", "value"):
        with pytest.raises(AttentionError, match=f"{stage} was given directly: no projection made it"):
            cell_arithmetic(steps, None, stage, head=0, row=0, column=0)
    assert cell_arithmetic(steps, None, "concatenation", row=0, column=4).dim == 1
    with pytest.raises(AttentionError, match="the output has no arithmetic here"):
        cell_arithmetic(steps.with_output(torch.zeros(1, 5, 6)), None, "output", row=0, column=0)
