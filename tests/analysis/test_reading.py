"""Reading steps: control tokens hidden, rows renormalised, pieces merged by Clark's rule."""

from types import SimpleNamespace

import pytest
import torch

from attention_core.analysis.reading import read_map
from attention_core.extract.tokens import Token

TEXT = "a golden ring"
TOKENS = (
    Token(0, "<s>", special=True),
    Token(5, "a", span=(0, 1), word=0),
    Token(6, "·gol", span=(2, 5), word=1),
    Token(7, "den", span=(5, 8), word=1),
    Token(8, "·ring", span=(9, 13), word=2),
    Token(2, "</s>", special=True),
)


@pytest.fixture
def run():
    """What a trace tells of a text whose second word has two pieces."""
    side = SimpleNamespace(texts=(TEXT,))
    return SimpleNamespace(
        query_pieces=lambda kind, text: TOKENS, key_pieces=lambda kind, text: TOKENS, side=lambda kind, axis: side
    )


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return torch.rand(6, 6).softmax(-1)


def test_without_steps_it_is_the_map_itself(run, weights):
    read = read_map(run, "encoder", weights)
    assert read.weights is weights
    assert read.row_labels == ["<s>", "a", "·gol", "den", "·ring", "</s>"]
    assert read.row_members == [(n,) for n in range(6)]


def test_hidden_tokens_leave_the_others_as_they_were(run, weights):
    read = read_map(run, "encoder", weights, steps=["special"])
    assert read.column_labels == ["a", "·gol", "den", "·ring"]
    assert torch.equal(read.weights, weights[1:5, 1:5])
    assert (read.weights.sum(-1) < 1).all()


def test_renormalised_rows_sum_to_one(run, weights):
    read = read_map(run, "encoder", weights, steps=["renormalise", "special"])
    assert torch.allclose(read.weights.sum(-1), torch.ones(4))
    assert torch.allclose(read.weights[0], weights[1, 1:5] / weights[1, 1:5].sum())


def test_a_row_without_weight_stays_empty(run):
    weights = torch.zeros(6, 6)
    weights[:, 0] = 1
    read = read_map(run, "encoder", weights, steps=["special", "renormalise"])
    assert (read.weights == 0).all()


def test_words_sum_columns_and_average_rows(run, weights):
    read = read_map(run, "encoder", weights, steps=["words"])
    assert read.row_labels == ["<s>", "a", "·golden", "·ring", "</s>"]
    assert read.row_members[2] == (2, 3)
    assert read.weights.shape == (5, 5)
    assert torch.allclose(read.weights[1, 2], weights[1, 2] + weights[1, 3])
    assert torch.allclose(read.weights[2, 1], (weights[2, 1] + weights[3, 1]) / 2)
    assert torch.allclose(read.weights[2, 2], weights[2:4, 2:4].sum() / 2)
    assert torch.allclose(read.weights.sum(-1), torch.ones(5)), "a word's row is still a distribution"


def test_a_word_is_visible_where_any_of_its_pieces_is(run, weights):
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    read = read_map(run, "decoder", weights * visible, visible, steps=["words"])
    assert bool(read.visible[2, 2]) and not bool(read.visible[1, 2])
    assert torch.equal(read.visible, torch.ones(5, 5, dtype=torch.bool).tril())


def test_a_batch_of_heads_is_read_at_once(run, weights):
    both = torch.stack([weights, weights.flip(-1)])
    read = read_map(run, "encoder", both, steps=["special", "renormalise", "words"])
    alone = read_map(run, "encoder", weights, steps=["special", "renormalise", "words"])
    assert read.weights.shape == (2, 3, 3)
    assert torch.equal(read.weights[0], alone.weights)


def test_repeated_words_stay_apart():
    tokens = tuple(Token(5, "go", span=(3 * n, 3 * n + 2), word=n) for n in range(2))
    side = SimpleNamespace(texts=("go go",))
    run = SimpleNamespace(query_pieces=lambda *a: tokens, key_pieces=lambda *a: tokens, side=lambda *a: side)
    assert read_map(run, "encoder", torch.eye(2), steps=["words"]).row_members == [(0,), (1,)]
