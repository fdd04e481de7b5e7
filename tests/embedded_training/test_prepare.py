"""Cleaning, splitting and tokenising of stories."""

import json

import pytest
from tokenizers import Tokenizer

from attention_core.embedded_training import prepare
from attention_core.embedded_training.prepare import Split


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """Three small books; the held-out ones alone hold the word Zubenelgenubi, very often."""
    folder = tmp_path_factory.mktemp("stories")
    plain = "The old king had a little dog, and the little dog sat by the old king.\n"
    for name, extra in (("1", "The king slept."), ("2", "Zubenelgenubi came. "), ("3", "Zubenelgenubi went. ")):
        lines = [f"{plain.strip()} It was day {i}. {extra}\n" for i in range(60)]
        (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def prepared(stories, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared")
    prepare.prepare(stories, out, Split(test=("2",), dev=("3",)))
    return out


def test_special_tokens_have_the_ids_that_the_model_expects(prepared):
    tokenizer = Tokenizer.from_file(str(prepared / "tokenizer.json"))
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert [tokenizer.token_to_id(token) for token in tokens] == [0, 1, 2, 3, 4]


def test_held_out_books_stay_out_of_training_and_of_the_tokenizer(prepared):
    tokenizer = Tokenizer.from_file(str(prepared / "tokenizer.json"))
    assert "Ġlittle" in tokenizer.get_vocab()
    assert not any("Zub" in piece or "genubi" in piece for piece in tokenizer.get_vocab())
    parts = json.loads((prepared / "books.json").read_text(encoding="utf-8"))
    assert [list(parts[part]) for part in ("train", "dev", "test")] == [["1"], ["3"], ["2"]]
    assert "Zubenelgenubi" not in json.dumps(parts["train"])


def test_a_mask_takes_the_space_before_it_and_leaves_no_stray_piece(prepared):
    tokenizer = Tokenizer.from_file(str(prepared / "tokenizer.json"))
    encoding = tokenizer.encode("The little <mask>, and the <mask> sat.")
    assert encoding.tokens[0] == "<s>" and encoding.tokens[-1] == "</s>"
    after = encoding.tokens[encoding.ids.index(4) + 1]
    assert after == ","
    assert encoding.ids.count(4) == 2
    assert tokenizer.encode("The little<mask>, and the<mask> sat.").ids == encoding.ids


def test_text_with_unseen_letters_survives_the_round_trip(prepared):
    tokenizer = Tokenizer.from_file(str(prepared / "tokenizer.json"))
    text = 'Zoë said: "Καλημέρα, 你好 & 42!"'
    assert tokenizer.decode(tokenizer.encode(text).ids).strip() == text


def test_rare_pieces_are_dropped(stories):
    paragraphs = [p for book in prepare.read_books(stories).values() for p in book]
    many = prepare.train_tokenizer(paragraphs, vocab_size=400, min_uses=2).get_vocab()
    few = prepare.train_tokenizer(paragraphs, vocab_size=400, min_uses=100).get_vocab()
    assert "ĠZubenelgenubi" in many  # 120 uses in all, but its parts are used in no other word
    assert len(few) < len(many)
    assert sorted(few.values()) == list(range(len(few)))


def test_sentences_end_after_the_closing_quote():
    text = 'He said, "Go!" She went. Mr. Fox stayed. What now? "Nothing."'
    assert prepare.split_sentences(text) == [
        'He said, "Go!"',
        "She went.",
        "Mr. Fox stayed.",
        "What now?",
        '"Nothing."',
    ]


def test_units_are_words_and_marks(prepared):
    tokenizer = Tokenizer.from_file(str(prepared / "tokenizer.json"))
    units = prepare.to_units(tokenizer, "The king, Quxi.")
    assert [tokenizer.decode(list(unit)).strip() for unit in units] == ["The", "king", ",", "Quxi", "."]
    assert sum(units, ()) == tuple(tokenizer.encode("The king, Quxi.", add_special_tokens=False).ids)


def test_white_space_is_collapsed():
    assert prepare.clean(" one\ttwo  three\u0000 \n") == "one two three"


def test_names_are_words_that_are_always_capitalised():
    names = prepare.find_names(["Then Gerda saw the King.", "The king saw Gerda then."])
    assert names == {"Gerda"}


def test_a_missing_held_out_book_is_an_error(stories, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"held-out books \['9'\] are not in"):
        prepare.prepare(stories, tmp_path, Split(test=("9",), dev=("3",)))


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \.txt files in"):
        prepare.read_books(tmp_path)
