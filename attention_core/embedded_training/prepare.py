"""Prepare a folder of plain-text stories for training: clean, split by whole books, tokenise.

One paragraph a line, one book a file. Whole books are held out: the tokenizer never sees them either, so a name
that occurs only in them is cut into pieces exactly as a name that a visitor types.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, PAD, EOS, UNK = "<s>", "<pad>", "</s>", "<unk>"
MASK = "<mask>"
BOS_ID, PAD_ID, EOS_ID, UNK_ID, MASK_ID = range(5)

VOCAB_SIZE = 5632
MIN_USES = 50  # a piece seen less often than this would not be learned well enough to be copied
MAX_SENTENCE_TOKENS = 200

_CLOSING = "\"')]"


@dataclass(frozen=True)
class Split:
    """Names of the files (without .txt) that are kept out of training.

    test: every published figure is taken on these whole books. dev: the checkpoint is chosen on these.
    """

    test: tuple[str, ...] = ("55", "11")
    dev: tuple[str, ...] = ("708",)


@dataclass
class Book:
    """A book as paragraphs of sentences of units; a unit is the tuple of piece ids of one word or punctuation mark."""

    name: str
    paragraphs: list[list[list[tuple[int, ...]]]]

    @cached_property
    def sentences(self) -> list[list[tuple[int, ...]]]:
        return [sentence for paragraph in self.paragraphs for sentence in paragraph]


def clean(line: str) -> str:
    """Collapse white space (a newline is never trained) and drop control characters."""
    return re.sub(r"\s+", " ", "".join(c for c in line if c.isprintable() or c.isspace())).strip()


def read_books(folder: Path) -> dict[str, list[str]]:
    """Read {file stem: paragraphs} of every .txt file; empty and repeated paragraphs are dropped."""
    books = {}
    for path in sorted(folder.glob("*.txt")):
        paragraphs = [clean(line) for line in path.read_text(encoding="utf-8").splitlines()]
        books[path.stem] = list(dict.fromkeys(paragraph for paragraph in paragraphs if paragraph))
    if not books:
        raise FileNotFoundError(f"no .txt files in {folder}")
    return books


def split_sentences(paragraph: str) -> list[str]:
    """Split after . ! ? and any closing quotes, where a space and a capital, quote or digit follow."""
    sentences, start = [], 0
    for match in re.finditer(rf"[.!?]+[{re.escape(_CLOSING)}]* (?=[A-Z\"'(0-9])", paragraph):
        head = paragraph[start : match.end()].rstrip()
        if re.search(r"\b(Mr|Mrs|Dr|St)\.$", head):
            continue
        sentences.append(head)
        start = match.end()
    sentences.append(paragraph[start:])
    return sentences


def train_tokenizer(paragraphs: list[str], vocab_size: int = VOCAB_SIZE, min_uses: int = MIN_USES) -> Tokenizer:
    """Train a byte-level BPE that makes no piece of fewer than min_uses occurrences.

    Later merges take uses away from their parts, so some pieces end up rarer; invented names (see noise.py) train them.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNK))
    # A leading space makes the first word of a text the same piece as elsewhere. ByteLevel's own prefix space would
    # also come after every <mask>, as a stray piece before a comma.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_uses,
        special_tokens=[BOS, PAD, EOS, UNK, AddedToken(MASK, lstrip=True, special=True)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(paragraphs, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}",
        pair=f"{BOS} $A {EOS} {EOS} $B {EOS}",
        special_tokens=[(BOS, BOS_ID), (EOS, EOS_ID)],
    )
    return tokenizer


def to_units(tokenizer: Tokenizer, sentence: str) -> list[tuple[int, ...]]:
    """Piece ids of a sentence, grouped by word or punctuation mark, without special tokens."""
    encoding = tokenizer.encode(sentence, add_special_tokens=False)
    units: list[list[int]] = []
    previous = None
    for index, word in zip(encoding.ids, encoding.word_ids, strict=True):
        if word != previous:
            units.append([])
        units[-1].append(index)
        previous = word
    return [tuple(unit) for unit in units]


def encode_book(tokenizer: Tokenizer, name: str, paragraphs: list[str]) -> Book:
    """Encode a book; a sentence longer than MAX_SENTENCE_TOKENS pieces is left out (a handful a book)."""
    encoded = []
    for paragraph in paragraphs:
        sentences = [to_units(tokenizer, sentence) for sentence in split_sentences(paragraph)]
        encoded.append([s for s in sentences if 0 < sum(map(len, s)) <= MAX_SENTENCE_TOKENS])
    return Book(name, [paragraph for paragraph in encoded if paragraph])


def find_names(paragraphs: list[str], min_share: float = 0.9) -> set[str]:
    """Words that are written with a capital in at least min_share of their uses: taken for names."""
    capital, lower = Counter(), Counter()
    for paragraph in paragraphs:
        for word in re.findall(r"[A-Za-z]+", paragraph):
            (lower if word.islower() else capital)[word.lower()] += 1
    return {word.capitalize() for word, n in capital.items() if len(word) > 2 and n / (n + lower[word]) >= min_share}


def prepare(texts: Path, out: Path, split: Split = Split()) -> None:
    """Write out/tokenizer.json, out/books.json (paragraphs by split) and out/names.json."""
    books = read_books(texts)
    held_out = {*split.test, *split.dev}
    missing = held_out - books.keys()
    if missing:
        raise FileNotFoundError(f"held-out books {sorted(missing)} are not in {texts}")
    parts = {
        "train": {name: paragraphs for name, paragraphs in books.items() if name not in held_out},
        "dev": {name: books[name] for name in split.dev},
        "test": {name: books[name] for name in split.test},
    }
    training = [paragraph for paragraphs in parts["train"].values() for paragraph in paragraphs]
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(training)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "books.json").write_text(json.dumps(parts), encoding="utf-8")
    (out / "names.json").write_text(json.dumps(sorted(find_names(training))), encoding="utf-8")


def load_books(folder: Path, part: str, tokenizer: Tokenizer | None = None) -> list[Book]:
    """Encode the books of a part ("train", "dev" or "test") of a prepared folder.

    tokenizer: that of a model made elsewhere; if None, the folder's own.
    """
    tokenizer = tokenizer or Tokenizer.from_file(str(folder / "tokenizer.json"))
    parts = json.loads((folder / "books.json").read_text(encoding="utf-8"))
    return [encode_book(tokenizer, name, paragraphs) for name, paragraphs in parts[part].items()]
