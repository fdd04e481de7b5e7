"""The shipped model, read with plain transformers: its files, its tokenizer, its heads and its accuracy.

Thresholds lie a little below what MODEL_CARD.md reports; here everything is taken on the shipped stories, which are part of
the held-out books.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from attention_core.embedded_training import evaluate, heads
from attention_core.embedded_training.noise import count_tokens
from attention_core.embedded_training.prepare import encode_book
from attention_core.embedded_training.train import accuracy

FOLDER = Path(evaluate.__file__).parents[1] / "embedded"


@pytest.fixture(scope="module")
def shipped():
    torch.set_num_threads(1)
    return evaluate.load(FOLDER)


@pytest.fixture(scope="module")
def stories():
    return [json.loads(line) for line in (FOLDER / "stories.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def books(shipped, stories):
    tokenizer = shipped[1].backend_tokenizer
    return [encode_book(tokenizer, story["title"], story["paragraphs"]) for story in stories]


@pytest.fixture(scope="module")
def figures():
    return json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))


def test_files_are_small_readable_and_float16():
    weights = FOLDER / "model.safetensors"
    assert weights.stat().st_size <= 20e6
    assert (FOLDER / "stories.jsonl").stat().st_size <= 150e3
    assert weights.stat().st_mode & 0o444 == 0o444
    with safe_open(weights, "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}


def test_the_model_loads_as_float32_bart(shipped):
    model, _ = shipped
    assert type(model).__name__ == "BartForConditionalGeneration"
    assert model.dtype == torch.float32
    assert model.config.vocab_size == model.get_input_embeddings().num_embeddings
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_special_tokens(shipped):
    _, tokenizer = shipped
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"]) == [0, 1, 2, 3]
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert (tokenizer.mask_token, tokenizer.mask_token_id) == ("<mask>", 4)


def test_texts_survive_the_round_trip(shipped, stories):
    _, tokenizer = shipped
    texts = [story["paragraphs"][i] for story in stories for i in (3, 17, 29)]
    for text in [*texts, "Zoë met Müller-Łódź & 你好 at 7:45!"]:
        ids = tokenizer(text).input_ids
        assert ids[0] == 0 and ids[-1] == 2 and 3 not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True).strip() == text
    ids = tokenizer("A <mask>, they said.").input_ids
    assert ids == tokenizer("A<mask>, they said.").input_ids
    assert tokenizer.convert_ids_to_tokens(ids[2:4]) == ["<mask>", ","]


def test_stories_name_their_source(stories):
    assert [story["gutenberg"] for story in stories] == [55, 11]
    for story in stories:
        assert story["title"] and story["author"] and story["source"].endswith(str(story["gutenberg"]))
        assert len(story["paragraphs"]) > 100 and all(p == " ".join(p.split()) for p in story["paragraphs"])


def test_heads_show_their_patterns(shipped, books):
    table = heads.head_table(shipped[0], evaluate.clean_sentences(books, 60))
    best = heads.strongest(table)
    assert best["encoder"]["previous"] > 0.8
    assert best["encoder"]["next"] > 0.8
    assert best["decoder"]["previous"] > 0.8
    aligned = [row for row in table["cross"] if row["strong"] and row["label"] in ("read", "write")]
    assert len(aligned) >= 3
    untrained = heads.strongest(heads.head_table(evaluate.random_copy(shipped[0]), evaluate.clean_sentences(books, 60)))
    assert max(untrained["encoder"]["previous"], untrained["encoder"]["next"], untrained["decoder"]["previous"]) < 0.3
    assert max(untrained["cross"]["read"], untrained["cross"]["write"]) < 0.3


def test_accuracy_on_the_shipped_stories(shipped, books):
    texts = evaluate.paragraph_texts(books)[::3]
    found = accuracy(shipped[0], evaluate.noisy_batches(texts, shipped[0].config.vocab_size))
    assert found["visible_accuracy"] > 0.935
    assert found["masked_accuracy"] > 0.25


def test_sentences_with_unseen_names_are_copied(shipped):
    prompts = json.loads(evaluate.PROMPTS.read_text(encoding="utf-8"))["copies"]
    texts = [prompt["text"] for prompt in prompts]
    assert len(texts) == 20
    assert sum(evaluate.generate(*shipped, text) == text for text in texts) >= 16


def test_the_card_tells_the_figures(figures, shipped):
    card = (FOLDER / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert figures["parameters"] == sum(p.numel() for p in shipped[0].parameters())
    assert figures["bytes"] == (FOLDER / "model.safetensors").stat().st_size
    assert f"accuracy {figures['accuracy']['masked_accuracy']:.3f}" in card
    assert len(figures["infill"]) == len(figures["copies"]) == 20
    for prompt in figures["infill"]:
        assert prompt["answer"] in card
    for name, gate in figures["gates"].items():
        assert name in card
        assert gate["met"] == (gate["measured"] >= gate["needed"])


def test_the_infill_prompts_come_from_the_held_out_books(figures, stories):
    assert {prompt["book"] for prompt in figures["infill"]} == {str(story["gutenberg"]) for story in stories}


def test_long_input_fits(shipped, books):
    """The longest text that the tokenizer admits runs: positions reach that far."""
    model, tokenizer = shipped
    units = [unit for sentence in books[0].sentences[:40] for unit in sentence]
    while count_tokens([units]) > tokenizer.model_max_length - 2:
        units.pop()
    batch = heads.clean_batch([units])
    assert 200 < batch.source.shape[1] <= tokenizer.model_max_length
    maps = heads.attention_maps(model, batch)
    torch.testing.assert_close(maps["cross"][0].sum(-1), torch.ones_like(maps["cross"][0][..., 0]))
