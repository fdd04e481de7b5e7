"""Tokens as a person can read them: labels, control flags, character spans, words.

Three ways of writing pieces are in use, and none is fit to be shown as it is:

    byte-level BPE   each byte written as one odd letter, a space as a dotted capital G   BART, RoBERTa, GPT-2
    SentencePiece    a space written as a low bar, rare bytes as <0xE6>                   mBART, T5
    WordPiece        a piece that goes on a word begins with ##                           BERT, ELECTRA

Labels show a space as · and a newline as ⏎. A piece that holds only part of a character shows the character and which
part it is, "海 1/2". There is always one label for each token.
"""

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import accumulate

from ..errors import AttentionError

_VISIBLE = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_EMPTY = "∅"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Token:
    """One token of a text.

    Attributes:
        id: in the model's vocabulary.
        label: to be shown; never empty.
        special: whether it is a control token (``<s>``, ``</s>``, ``<pad>``, ``<mask>`` ...); unknown words are not.
        span: (start, end), the characters of the text that it came from; None for what does not come from the text. Not
            to be used to tell control tokens: a lone space may have an empty span.
        word: number of the word it belongs to, counted from 0, words being what the tokenizer splits a text into before
            it makes pieces (punctuation is a word of its own); None for control tokens.
    """

    id: int
    label: str
    special: bool = False
    span: tuple[int, int] | None = None
    word: int | None = None


def plain_tokens(ids: Sequence[int]) -> list[Token]:
    """Tokens of a model that has no tokenizer: the ids are the labels."""
    return [Token(int(i), f"#{int(i)}") for i in ids]


class TokenReader:
    """Encodes texts and describes ids with one tokenizer; safe for many threads, since it changes nothing on it.

    Args:
        tokenizer: a transformers tokenizer with a ``tokenizers`` backend (one that tokenizer.json was read for).
        target: encode as a target (mBART marks its language differently there).
    """

    def __init__(self, tokenizer, *, target: bool = False) -> None:
        # A copy of our own: whoever else holds the tokenizer may switch its truncation or language while we encode.
        tokenizer = deepcopy(tokenizer)
        if target and getattr(tokenizer, "tgt_lang", None) is not None:
            tokenizer._switch_to_target_mode()
        self.tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        parts = f"{self._backend.pre_tokenizer!r} {self._backend.decoder!r}"
        self._style = "bytes" if "ByteLevel" in parts else "spaces" if "Metaspace" in parts else "words"
        self._continues = getattr(self._backend.model, "continuing_subword_prefix", None) or "##"
        self._added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items()}
        self._special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        self._byte_of = _byte_letters()

    def encode(self, text: str) -> list[Token]:
        """The tokens of a text, with the control tokens that the tokenizer adds.

        Raises:
            AttentionError: a text that is no valid Unicode.
        """
        try:
            encoding = self._backend.encode(text)
        except (TypeError, UnicodeError) as error:
            raise AttentionError("the text holds characters that are not valid Unicode") from error
        tokens = self._labelled(encoding.ids)
        result = []
        for token, offsets, added, word in zip(
            tokens, encoding.offsets, encoding.special_tokens_mask, encoding.word_ids, strict=True
        ):
            span = None if added else self._span(text, token.id, offsets)
            result.append(replace(token, span=span, word=None if token.special else word))
        return _renumbered(result)

    def describe(self, ids: Sequence[int]) -> tuple[list[Token], str]:
        """Tokens of given ids, and the text they spell; spans count characters of that text."""
        ids = [int(i) for i in ids]
        pieces = [self._bytes(i) for i in ids]
        text, spans = _spelled(pieces)
        lead = int(text.startswith(" "))  # a first word is written with a space before it
        text = text[lead:]
        spans = [None if span is None else (max(0, span[0] - lead), max(0, span[1] - lead)) for span in spans]
        words = self._words(text)
        result = []
        for token, span in zip(self._labelled(ids), spans):
            span = None if span is None else _without_leading_space(text, span)
            result.append(replace(token, span=span, word=None if span is None else _word_at(words, span)))
        return _renumbered(result), text

    def typed_controls(self, text: str, tokens: Sequence[Token]) -> list[str]:
        """Control tokens that were written out in the text and that the tokenizer reads as control tokens."""
        return [
            token.label
            for token in tokens
            if token.special and token.span is not None and text[slice(*token.span)].strip() == token.label
        ]

    def _span(self, text: str, index: int, offsets: tuple[int, int]) -> tuple[int, int]:
        """The characters of a token, without a leading space; of a lone space, which offsets may leave empty, the space."""
        start, end = offsets
        if start == end:
            wide = max(0, end - len(self._bytes(index) or b""))
            if text[wide:end].isspace():
                return wide, end
        return _without_leading_space(text, offsets)

    def _labelled(self, ids: Sequence[int]) -> list[Token]:
        special = [i in self._special for i in ids]
        if self._style == "words":
            labels = [self._piece(i) for i in ids]
        else:
            labels = _labels([self._bytes(i) for i in ids])
            labels = [label if label is not None else self._piece(i) for label, i in zip(labels, ids)]
        return [Token(i, label or _EMPTY, is_special) for i, label, is_special in zip(ids, labels, special)]

    def _piece(self, index: int) -> str:
        if index in self._added:
            return self._added[index]
        piece = self._backend.id_to_token(index)
        return f"#{index}" if piece is None else piece

    def _bytes(self, index: int) -> bytes | None:
        """What a token spells; None for a control token and for an id that has no token."""
        if index in self._special:
            return None
        if index in self._added:
            return self._added[index].encode()
        piece = self._backend.id_to_token(index)
        if piece is None:
            return None
        if self._style == "bytes":
            return b"".join(bytes([self._byte_of[c]]) if c in self._byte_of else c.encode() for c in piece)
        if self._style == "spaces":
            byte = _BYTE_PIECE.fullmatch(piece)
            return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()
        return (
            piece.removeprefix(self._continues).encode() if piece.startswith(self._continues) else f" {piece}".encode()
        )

    def _words(self, text: str) -> list[tuple[int, int]]:
        if self._backend.pre_tokenizer is None:
            return [match.span() for match in re.finditer(r"\S+", text)]
        return [span for _, span in self._backend.pre_tokenizer.pre_tokenize_str(text)]


def _byte_letters() -> dict[str, int]:
    """The letter that byte-level BPE writes for each byte: printable Latin-1 as itself, the others from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _characters(data: bytes) -> list[tuple[str | None, int]]:
    """(character, bytes it takes) in order; None for a byte that belongs to no valid character."""
    found, start = [], 0
    while start < len(data):
        for size in range(1, 5):
            try:
                found.append((data[start : start + size].decode(), size))
                break
            except UnicodeDecodeError:
                continue
        else:
            size = 1
            found.append((None, size))
        start += size
    return found


def _runs(pieces: Sequence[bytes | None]) -> list[list[int]]:
    """Indices of pieces that stand together, without a control token between them."""
    runs: list[list[int]] = [[]]
    for index, piece in enumerate(pieces):
        if piece is None:
            runs.append([])
        else:
            runs[-1].append(index)
    return [run for run in runs if run]


def _holders(pieces: Sequence[bytes], characters: Sequence[tuple[str | None, int]]) -> list[list[int]]:
    """For each piece, the numbers of the characters that it holds, whole or in part."""
    owner = [number for number, (_, size) in enumerate(characters) for _ in range(size)]
    held, start = [], 0
    for piece in pieces:
        held.append(sorted(set(owner[start : start + len(piece)])))
        start += len(piece)
    return held


def _labels(pieces: Sequence[bytes | None]) -> list[str | None]:
    labels: list[str | None] = [None] * len(pieces)
    for run in _runs(pieces):
        data = [pieces[index] for index in run]
        spelled = b"".join(data)
        characters = _characters(spelled)
        starts = list(accumulate((size for _, size in characters), initial=0))
        held = _holders(data, characters)
        parts_of = Counter(number for numbers in held for number in numbers)
        seen = [0] * len(characters)
        for index, piece, numbers in zip(run, data, held):
            texts = [""]
            for number in numbers:
                character, _ = characters[number]
                seen[number] += 1
                if character is None:
                    texts += [f"0x{spelled[starts[number]]:02X}", ""]
                elif parts_of[number] > 1:
                    texts += [f"{_visible(character)} {seen[number]}/{parts_of[number]}", ""]
                else:
                    texts[-1] += _visible(character)
            labels[index] = " ".join(text for text in texts if text) if piece else ""
    return labels


def _visible(character: str) -> str:
    if character in _VISIBLE:
        return _VISIBLE[character]
    # Controls, invisible joiners and unusual spaces are named by their number.
    return f"U+{ord(character):04X}" if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Zs") else character


def _spelled(pieces: Sequence[bytes | None]) -> tuple[str, list[tuple[int, int] | None]]:
    """The text that the pieces spell together, and the characters of each in it."""
    text, spans = "", [None] * len(pieces)
    for run in _runs(pieces):
        data = [pieces[index] for index in run]
        characters = _characters(b"".join(data))
        for index, numbers in zip(run, _holders(data, characters)):
            start = numbers[0] if numbers else 0
            spans[index] = (len(text) + start, len(text) + (numbers[-1] + 1 if numbers else start))
        text += "".join("�" if character is None else character for character, _ in characters)
    return text, spans


def _without_leading_space(text: str, span: tuple[int, int]) -> tuple[int, int]:
    start, end = span
    while start < end - 1 and text[start] == " ":
        start += 1
    return start, end


def _word_at(words: Sequence[tuple[int, int]], span: tuple[int, int]) -> int | None:
    """The word that holds the last character of the span (a leading space may belong to the word before)."""
    last = max(span[0], span[1] - 1)
    number = bisect_right(words, last, key=lambda word: word[0]) - 1
    return number if number >= 0 and last < words[number][1] else None


def _renumbered(tokens: list[Token]) -> list[Token]:
    """Words counted from 0 in the order of the tokens; tokens on the two sides of a control token never share one."""
    result, number, previous = [], -1, None
    for token in tokens:
        if token.word is None:
            previous = None
        else:
            number += token.word != previous
            previous = token.word
        result.append(token if token.word is None else replace(token, word=number))
    return result
