"""Labels, flags, spans and words, for the three ways in which tokenizers write pieces."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from attention_core import AttentionError, trace
from attention_core.extract.tokens import TokenReader, plain_tokens
from tests.extract import forms

BYTES = TokenReader(forms.byte_tokenizer())


def word_pieces() -> TokenReader:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "creme", "!", "the", "##'"]
    backend = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "mask_token": "[MASK]",
    }
    return TokenReader(PreTrainedTokenizerFast(tokenizer_object=backend, **names))


def sentence_pieces() -> TokenReader:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁the", "▁ca", "t", "▁dog", "s"]
    vocabulary = [(piece, -float(i)) for i, piece in enumerate(pieces)] + [(f"<0x{b:02X}>", -99.0) for b in range(256)]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=3, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return TokenReader(
        PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
        )
    )


def labels(reader: TokenReader, text: str) -> list[str]:
    return [token.label for token in reader.encode(text)]


# Case 06: odd texts with byte-level BPE. The tokenizer here has few merges, so most bytes are pieces of their own.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello world", ["Hello", "·world"]),
        ("海边", ["海 1/3", "海 2/3", "海 3/3", "边 1/3", "边 2/3", "边 3/3"]),
        ("é!", ["é 1/2", "é 2/2", "!"]),
        ("a  two\nb", ["a", "·", "·two", "⏎", "b"]),
        ("\t\r", ["⇥", "␍"]),
        ("\x00", ["U+0000"]),
        ("a\u200db", ["a", "U+200D 1/3", "U+200D 2/3", "U+200D 3/3", "b"]),
        ("سل", ["س 1/2", "س 2/2", "ل 1/2", "ل 2/2"]),
        ("", []),
    ],
)
def test_byte_level_labels(text, expected):
    assert labels(BYTES, text) == ["<s>", *expected, "</s>"]


def test_a_piece_that_holds_a_whole_character_and_a_part_shows_both():
    tokenizer = TokenReader(
        forms.byte_tokenizer(("Ġæ", "µ·è"))
    )  # a space and a first byte; two last bytes and a first one
    assert labels(tokenizer, " 海边") == ["<s>", "· 海 1/2", "海 2/2 边 1/3", "边 2/3", "边 3/3", "</s>"]


@pytest.mark.parametrize("reader", [BYTES, word_pieces(), sentence_pieces()], ids=["bytes", "words", "spaces"])
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=30))
def test_there_is_one_label_a_token_and_none_is_empty_or_broken(reader, text):
    if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        return
    tokens = reader.encode(text)
    described, _ = reader.describe([token.id for token in tokens])
    assert [(t.id, t.label, t.special) for t in tokens] == [(t.id, t.label, t.special) for t in described]
    for token in tokens:
        assert token.label and ("�" not in token.label or "�" in text)
        assert token.special == (token.word is None)
        assert token.span is None or 0 <= token.span[0] <= token.span[1] <= len(text)
    words = [token.word for token in tokens if token.word is not None]
    assert words == sorted(words) and set(words) == set(range(len(set(words))))


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=30))
def test_ids_spell_the_text_with_the_same_spans_and_words(text):
    tokens = BYTES.encode(text)
    if any(token.special and token.span is not None for token in tokens) or text.startswith(" "):
        return
    described, spelled = BYTES.describe([token.id for token in tokens])
    assert spelled == text
    assert described == tokens


def test_bytes_that_spell_nothing_are_shown_as_numbers():
    lone = BYTES.encode("海")[2]  # the second of three bytes
    tokens, text = BYTES.describe([lone.id, lone.id])
    assert [token.label for token in tokens] == ["0xB5", "0xB5"]
    assert text == "��"


def test_ids_without_a_token_are_shown_as_numbers():
    assert [token.label for token in BYTES.describe([999])[0]] == ["#999"]
    assert [token.label for token in plain_tokens([7, 8])] == ["#7", "#8"]


def test_spans_point_into_the_typed_text_without_the_leading_space():
    text = "the cat, 海 the"
    for token in BYTES.encode(text):
        if not token.special:
            start, end = token.span
            shown = text[start:end]
            assert shown == token.label.removeprefix("·") or token.label.startswith(f"{shown} ") or token.label == "·"


def test_words_join_pieces_and_keep_punctuation_apart():
    tokens = BYTES.encode("cats, cats!")
    words: dict[int, str] = {}
    for token in tokens:
        if token.word is not None:
            words[token.word] = words.get(token.word, "") + token.label
    assert list(words.values()) == ["cats", ",", "·cats", "!"]


def test_typed_control_tokens_are_named_and_an_ordinary_text_is_not(text_model):
    run = trace(text_model, "the <mask> cat</s>")
    assert [str(notice) for notice in run.notices] == [
        "<mask>, </s> in the source is read as a control token, not as text"
    ]
    pieces = run.key_pieces("encoder")
    assert [piece.label for piece in pieces if piece.special] == ["<s>", "<mask>", "</s>", "</s>"]
    assert trace(text_model, "the mask < cat").notices == ()


def test_word_pieces():
    reader = word_pieces()
    tokens = reader.encode("Unaffable Crème [MASK]!x")
    assert [t.label for t in tokens] == ["[CLS]", "un", "##aff", "##able", "creme", "[MASK]", "!", "[UNK]", "[SEP]"]
    assert [t.special for t in tokens] == [True, *[False] * 4, True, False, False, True]  # an unknown word is a word
    assert [t.span for t in tokens][1:5] == [(0, 2), (2, 5), (5, 9), (10, 15)]
    assert [t.word for t in tokens] == [None, 0, 0, 0, 1, None, 2, 3, None]
    described, text = reader.describe([t.id for t in tokens[1:5]])
    assert text == "unaffable creme" and [t.word for t in described] == [0, 0, 0, 1]


def test_sentence_pieces():
    reader = sentence_pieces()
    tokens = reader.encode("the cats é")
    assert [t.label for t in tokens] == ["·the", "·ca", "t", "s", "·", "é 1/2", "é 2/2", "</s>"]
    assert [t.word for t in tokens] == [0, 1, 1, 1, 2, 2, 2, None]
    described, text = reader.describe([t.id for t in tokens])
    assert text == "the cats é"
    assert [t.span for t in described][:4] == [(0, 3), (4, 6), (6, 7), (7, 8)]


def test_a_text_that_is_no_unicode_is_refused():
    with pytest.raises(AttentionError, match="not valid Unicode"):
        BYTES.encode("a\ud800b")


@pytest.mark.parametrize("text", ["", "a", "🧑‍🚀 go", "海边的小猫", "سلام يا", "one  two\nthree", " ", "\n\n"])
def test_edge_texts_are_traced_with_a_label_for_each_row_and_column(text_model, text):
    run = trace(text_model, text)
    for kind in run.kinds:
        shape = run.steps(kind, 0, [0]).weights.shape[2:]
        assert shape == (len(run.query_tokens(kind)), len(run.key_tokens(kind)))


def test_ten_thousand_characters_are_refused_with_the_counts(text_model):
    with pytest.raises(AttentionError, match="the source has 10002 tokens, but this model takes at most 32"):
        trace(text_model, "x" * 10_000)


def test_labels_of_a_long_text_take_no_longer_than_the_text(text_model):
    def seconds(count: int) -> float:
        start = time.process_time()
        tokens = BYTES.encode("海x " * count)
        BYTES.describe([token.id for token in tokens])
        return time.process_time() - start

    # 8 times the text: 8 times the work, or 64 times if it were quadratic; a crowded machine has shown 17.
    assert min(seconds(4000) for _ in range(3)) < 32 * min(seconds(500) for _ in range(3))


def test_a_tokenizer_that_cuts_elsewhere_does_not_cut_here():
    tokenizer = forms.byte_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    assert len(TokenReader(tokenizer).encode("the cat the cat")) == 8


def test_many_threads_may_encode_with_one_reader():
    texts = ["the cat", "海边 go", "x " * 20]
    alone = [BYTES.encode(text) for text in texts]
    start = threading.Barrier(4)

    def visitor(_: int) -> bool:
        start.wait()
        return all([BYTES.encode(text) for text in texts] == alone for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(visitor, range(4)))
