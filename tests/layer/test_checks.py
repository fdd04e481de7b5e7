"""What is given in place of numbers and tensors is refused in one sentence that names it, everywhere in the layer."""

import numpy as np
import pytest
import torch

from attention_core import AttentionConfig, AttentionError, MultiHeadAttention, attention_steps, masks
from attention_core.layer.arithmetic import cell_arithmetic
from attention_core.layer.attention import attention_context, attention_scores, attention_weights, dropped_out

QUERY = torch.randn(2, 3, 5, 7)
ARRAY = QUERY.numpy()
VISIBLE = masks.causal(5)
LAYER = MultiHeadAttention(AttentionConfig(6, 2))
X = torch.randn(1, 5, 6)
EIGHT = torch.ones(8, 3, 3, dtype=torch.bool)

REFUSED = [
    *((f"query_len ({n}) must be a whole number", lambda n=n: masks.causal(n)) for n in ("x", 2.5, True, None, [3])),
    ("key_len (x) must be a whole number", lambda: masks.full(3, "x")),
    ("width (1.5) must be a whole number", lambda: masks.window(3, width=1.5)),
    ("size (x) must be a whole number", lambda: masks.block(3, size="x")),
    ("length (True) must be a whole number", lambda: masks.prefix(3, length=True)),
    *(("lengths must be", lambda given=given: masks.padding(given, 3)) for given in ("x", None, [[1], [1, 2]], [True], [1j])),
    ("key_len (2.5) must be a whole number", lambda: masks.padding([1], 2.5)),
    *(
        ("cells are named by pairs of whole numbers (row, column)", lambda given=given: masks.edited(VISIBLE, given))
        for given in (1, None, [1], [(1,)], [(1, 2, 3)], [(0.5, 1)], ["ab"], [(True, False)])
    ),
    ("a mask must be a torch tensor, not ndarray: torch.as_tensor makes one", lambda: masks.edited(VISIBLE.numpy(), [])),
    ("a mask must be a torch tensor, not list", lambda: masks.combine(VISIBLE, [True])),
    ("an additive mask must be a torch tensor, not ndarray", lambda: masks.from_additive(ARRAY)),
    *(("a mask of numbers must be numbers", lambda given=given: masks.from_numbers(given)) for given in ("x", None, [[1], [1, 0]])),
    ("attn_mask must be a torch tensor, not list", lambda: masks.from_torch_mha([[True]])),
    ("key_padding_mask must be a torch tensor, not ndarray", lambda: masks.from_torch_mha(None, np.ones((1, 2), bool))),
    ("num_heads (2.0) must be a whole number", lambda: masks.from_torch_mha(EIGHT, num_heads=2.0)),
    ("a mask must be a torch tensor, not list", lambda: masks.to_torch_mha([[True]])),
    ("dtype must be a floating-point one of torch, not torch.int64", lambda: masks.to_additive(VISIBLE, torch.int64)),
    ("d_model (True) must be a whole number", lambda: AttentionConfig(True, 1)),
    ("num_heads (nan) must be a whole number", lambda: AttentionConfig(8, float("nan"))),
    *((f"dropout ({given}) must be at least 0", lambda given=given: AttentionConfig(8, 2, dropout=given)) for given in ("x", None)),
    ("scale must be", lambda: AttentionConfig(8, 2, scale=np.array([1, 2]))),
    ("qkv_bias must be True or False, not 'no'", lambda: AttentionConfig(8, 2, qkv_bias="no")),
    ("query must be a torch tensor, not ndarray: torch.as_tensor makes one", lambda: attention_steps(ARRAY, ARRAY, ARRAY)),
    ("query must be a torch tensor, not list", lambda: attention_steps([[1.0]], QUERY, QUERY)),
    ("key must be a torch tensor, not NoneType", lambda: attention_steps(QUERY, None, QUERY)),
    ("value must be a torch tensor, not ndarray", lambda: attention_steps(QUERY, QUERY, ARRAY)),
    *(
        ("a mask must be a torch tensor", lambda given=given: attention_steps(QUERY, QUERY, QUERY, given))
        for given in (VISIBLE.numpy(), [[True]], "causal", True)
    ),
    *(
        ("must be a finite number above 0", lambda given=given: attention_steps(QUERY, QUERY, QUERY, scale=given))
        for given in ("x", True, [1.0], torch.tensor([1.0, 2.0]), 10**400)
    ),
    ("dropout (x) must be at least 0", lambda: attention_steps(QUERY, QUERY, QUERY, dropout="x")),
    ("generator must be a torch.Generator, not int", lambda: attention_steps(QUERY, QUERY, QUERY, dropout=0.5, generator=3)),
    ("bias must be a torch tensor, not str", lambda: attention_steps(QUERY, QUERY, QUERY, bias="x")),
    ("a bias of shape (7,) does not broadcast to", lambda: attention_steps(QUERY, QUERY, QUERY, bias=torch.zeros(7))),
    ("query must be a torch tensor, not ndarray", lambda: attention_scores(ARRAY, ARRAY)),
    ("query must be a torch tensor, not ndarray", lambda: attention_context(ARRAY, ARRAY, ARRAY)),
    ("scores must be a torch tensor, not list", lambda: attention_weights([1.0])),
    ("scores must hold floating-point numbers, not torch.int64", lambda: attention_weights(torch.ones(1, 1, 2, 2).long())),
    ("weights must be a torch tensor, not ndarray", lambda: dropped_out(ARRAY, 0.5)),
    *(("query must be a torch tensor", lambda given=given: LAYER(given)) for given in (X.numpy(), X.tolist(), "x", None)),
    ("key must be a torch tensor, not ndarray", lambda: LAYER(X, X.numpy())),
    ("query must be a torch tensor, not ndarray", lambda: LAYER.projections(X.numpy())),
    ("a mask must be a torch tensor, not ndarray", lambda: LAYER(X, mask=VISIBLE.numpy())),
    *(("heads must be a list of whole numbers", lambda given=given: LAYER.steps(X, heads=given)) for given in ("1", 1)),
    *(("head must be a whole number, not", lambda given=given: LAYER.steps(X, heads=given)) for given in ([1.5], [True], ["0"])),
    *(("a layer is made from an AttentionConfig", lambda given=given: MultiHeadAttention(given)) for given in (8, None, {})),
    ("row must be a whole number, not 1.5", lambda: cell_arithmetic(LAYER.steps(X), None, "weights", head=0, row=1.5, column=0)),
    ("head must be a whole number, not 'x'", lambda: cell_arithmetic(LAYER.steps(X), None, "weights", head="x", row=1, column=0)),
    ("stage must be one of", lambda: cell_arithmetic(LAYER.steps(X), None, ["weights"], row=1, column=0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("message", "call"), REFUSED, ids=[f"{n}-{message[:30]}" for n, (message, _) in enumerate(REFUSED)]
)
def test_what_is_no_number_and_no_tensor_is_refused_in_one_sentence(message, call):
    with pytest.raises(AttentionError) as refused:
        call()
    assert message in str(refused.value)


def test_whole_numbers_of_other_libraries_are_taken():
    assert masks.causal(np.int64(4)).shape == masks.causal(torch.tensor(4)).shape == (4, 4)
    config = AttentionConfig(np.int64(8), np.int32(2))
    assert (type(config.d_model), type(config.num_heads), config.head_dim) == (int, int, 4)
    assert masks.edited(VISIBLE, torch.tensor([[0, 1]]))[0, 1]
    assert torch.equal(masks.padding(np.array([1, 2]), 3), masks.padding([1, 2], 3))
