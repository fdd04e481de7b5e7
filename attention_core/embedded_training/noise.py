"""Training examples: stretches of stories and BART's noise on them (Lewis et al. 2020, section 2.2)."""

from dataclasses import dataclass

import numpy as np
import torch

from attention_core.embedded_training.prepare import BOS_ID, EOS_ID, MASK_ID, PAD_ID, Book

IGNORED = -100  # the label that cross_entropy leaves out
MAX_TEXT_TOKENS = 250  # with the special tokens it must fit into 256 positions
Unit = tuple[int, ...]

# Largest number of pieces of a text and how often it is drawn; a single longer sentence is taken whole.
CAPS = np.array([24, 48, 96, 160, 240])
SHORT = np.array([0.55, 0.35, 0.07, 0.02, 0.01])
LONG = np.array([0.30, 0.32, 0.22, 0.11, 0.05])


def count_tokens(sentences: list[list[Unit]]) -> int:
    """Pieces of a text, without special tokens."""
    return sum(len(unit) for sentence in sentences for unit in sentence)


@dataclass
class Example:
    """One corrupted text. source, target: ids with `<s>` and `</s>`.

    masked: per target token, whether the source hides it. encoder_labels: per source token, the id that the
    auxiliary loss of the encoder asks for, or IGNORED.
    """

    source: list[int]
    target: list[int]
    masked: list[bool]
    encoder_labels: list[int]


@dataclass
class Batch:
    """Padded tensors, (batch, source_len) or (batch, target_len); decoder_input is target shifted right."""

    source: torch.Tensor
    source_mask: torch.Tensor
    decoder_input: torch.Tensor
    labels: torch.Tensor
    masked: torch.Tensor
    encoder_labels: torch.Tensor


@dataclass(frozen=True)
class Noise:
    """Shares of the noise; the fractions of examples are drawn independently of each other.

    infill_ratio: share of the words under spans, drawn between the two bounds for each example.
    permute: fraction of examples whose sentences are shuffled. clean: fraction left without any noise.
    bare: fraction with 50 to 100 % of the words hidden, where the decoder can only go on from its own past.
    single: fraction of the examples in which 9 % of the visible pieces become single masks, 2 % random pieces and
    3 % stay, all of them asked for by the encoder's auxiliary loss (BERT's noise, Devlin et al. 2019).
    """

    infill_ratio: tuple[float, float] = (0.12, 0.38)
    permute: float = 0.25
    clean: float = 0.15
    bare: float = 0.1
    single: float = 1.0


EVALUATION = Noise(infill_ratio=(0.25, 0.25), clean=0.0, bare=0.0, single=0.0)


def _span_mask(num_units: int, ratio: float, rng: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    """Poisson(3) spans over about ratio of the units -> (hidden (num_units,) bool, starts of empty spans)."""
    hidden = np.zeros(num_units + 1, dtype=bool)
    empty: list[int] = []
    budget = int(ratio * num_units + rng.random())
    for _ in range(4 * num_units):
        if budget <= 0:
            break
        length = min(int(rng.poisson(3)), budget)
        start = int(rng.integers(0, num_units - length + 1))
        # A free unit on both sides keeps two spans from melting into one mask.
        if hidden[max(start - 1, 0) : start + length + 1].any():
            continue
        if length == 0:
            empty.append(start)
        hidden[start : start + length] = True
        budget -= length
    return hidden[:num_units], empty


def corrupt(sentences: list[list[Unit]], noise: Noise, rng: np.random.Generator, vocab_size: int) -> Example:
    """Hide and shuffle a text of sentences."""
    target = [BOS_ID, *(i for s in sentences for unit in s for i in unit), EOS_ID]
    offsets = np.cumsum([1, *(len(unit) for s in sentences for unit in s)])
    first_unit = np.cumsum([0, *map(len, sentences)])
    masked = [False] * len(target)
    if rng.random() < noise.clean:
        return Example(list(target), target, masked, [IGNORED] * len(target))

    order = np.arange(len(sentences))
    if rng.random() < noise.permute:
        order = rng.permutation(order)
    units = [u for s in order for u in range(first_unit[s], first_unit[s + 1])]
    low, high = (0.5, 1.0) if rng.random() < noise.bare else noise.infill_ratio
    hidden, empty = _span_mask(len(units), rng.uniform(low, high), rng)
    empty_starts = set(empty)
    single = rng.random() < noise.single

    source, encoder_labels = [BOS_ID], [IGNORED]
    for position, unit in enumerate(units):
        start, stop = int(offsets[unit]), int(offsets[unit + 1])
        if position in empty_starts or (hidden[position] and not (position and hidden[position - 1])):
            source.append(MASK_ID)
            encoder_labels.append(IGNORED)
        for place in range(start, stop):
            if hidden[position]:
                masked[place] = True
                continue
            piece, label = target[place], IGNORED
            if single and (draw := rng.random()) < 0.14:
                label = piece
                if draw < 0.09:
                    piece, masked[place] = MASK_ID, True
                elif draw < 0.11:
                    piece, masked[place] = int(rng.integers(MASK_ID + 1, vocab_size)), True
            source.append(piece)
            encoder_labels.append(label)
    return Example([*source, EOS_ID], target, masked, [*encoder_labels, IGNORED])


def _pad(rows: list[list], value: int | bool) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def collate(examples: list[Example]) -> Batch:
    """Pad on the right; the decoder reads `</s>` and then the target (the library's shift)."""
    source = _pad([e.source for e in examples], PAD_ID)
    return Batch(
        source=source,
        source_mask=(source != PAD_ID).long(),
        decoder_input=_pad([[EOS_ID, *e.target[:-1]] for e in examples], PAD_ID),
        labels=_pad([e.target for e in examples], IGNORED),
        masked=_pad([e.masked for e in examples], False),
        encoder_labels=_pad([e.encoder_labels for e in examples], IGNORED),
    )


@dataclass
class Sampler:
    """Draws stretches of consecutive sentences from books, some with their names replaced.

    names: units that are names. strange_names: units to put in their place, most of them never seen in a text.
    swap: fraction of the examples with replaced names, so that copying does not depend on knowing a word.
    growth: 0 draws mostly single sentences, 1 texts of every length. Neighbours and alignments are found in short
    texts first: there a uniform head already gives the right place a good share of its weight.
    """

    books: list[Book]
    names: set[Unit]
    strange_names: list[Unit]
    rng: np.random.Generator
    swap: float = 0.2
    growth: float = 1.0

    def __post_init__(self) -> None:
        self._starts = [(b, s) for b, book in enumerate(self.books) for s in range(len(book.sentences))]

    def stretch(self) -> list[list[Unit]]:
        """Consecutive sentences from a random place, up to a random number of tokens."""
        book, start = self._starts[self.rng.integers(len(self._starts))]
        cap = self.rng.choice(CAPS, p=(1 - self.growth) * SHORT + self.growth * LONG)
        sentences, length = [], 0
        for sentence in self.books[book].sentences[start : start + 12]:
            length += count_tokens([sentence])
            if sentences and length > cap:
                break
            sentences.append(sentence)
        if self.rng.random() < self.swap:
            swapped = self.swap_names(sentences)
            if count_tokens(swapped) <= MAX_TEXT_TOKENS:  # strange names are longer
                return swapped
        return sentences

    def swap_names(self, sentences: list[list[Unit]]) -> list[list[Unit]]:
        """Replace every name, and 3 % of the other words, by strange ones, the same everywhere in the text."""
        new: dict[Unit, Unit] = {}
        for unit in dict.fromkeys(unit for sentence in sentences for unit in sentence):
            if unit in self.names or self.rng.random() < 0.03:
                new[unit] = self.strange_names[self.rng.integers(len(self.strange_names))]
        return [[new.get(unit, unit) for unit in sentence] for sentence in sentences]

    def batches(self, num_tokens: int, pool: int = 8):
        """Yield lists of stretches of about num_tokens padded target tokens, of like length within a list."""
        while True:
            stretches, total = [], 0
            while total < num_tokens * pool:
                stretches.append(self.stretch())
                total += count_tokens(stretches[-1]) + 2
            stretches.sort(key=count_tokens)
            groups, group, longest = [], [], 0
            for text in stretches:
                longest = count_tokens(text) + 2
                if group and longest * (len(group) + 1) > num_tokens:
                    groups.append(group)
                    group = []
                group.append(text)
            groups.append(group)
            for index in self.rng.permutation(len(groups)):
                yield groups[index]


def strange_names(tokenizer, rng: np.random.Generator, count: int = 20_000) -> list[Unit]:
    """Invent count units: half syllables spelled out and tokenised, half random pieces glued together."""
    onsets = [
        "",
        *"bcdfghjklmnprstvwxyz",
        "br",
        "ch",
        "dr",
        "fl",
        "gr",
        "kh",
        "kr",
        "ph",
        "qu",
        "sh",
        "st",
        "th",
        "tr",
        "zh",
    ]
    vowels = [*"aeiouy", "aa", "ai", "au", "ea", "ee", "ia", "ie", "io", "oo", "ou", "ue"]
    codas = ["", "", "", *"bdfgklmnprstxz", "ck", "ll", "nd", "ng", "nn", "rk", "rn", "sh", "ss", "st", "th"]
    words = []
    for _ in range(count // 2):
        word = "".join(
            onsets[rng.integers(len(onsets))] + vowels[rng.integers(len(vowels))] + codas[rng.integers(len(codas))]
            for _ in range(rng.integers(1, 5))
        )
        words.append(word.capitalize() if rng.random() < 0.7 else word)
    units = [tuple(e.ids) for e in tokenizer.encode_batch(words, add_special_tokens=False)]
    vocabulary = tokenizer.get_vocab()
    opening = [i for token, i in vocabulary.items() if token[0] == "Ġ"]
    inner = [i for token, i in vocabulary.items() if token[0] != "Ġ" and i > MASK_ID]
    for _ in range(count - len(units)):
        tail = rng.integers(len(inner), size=rng.integers(0, 6))
        units.append((opening[rng.integers(len(opening))], *(inner[i] for i in tail)))
    return units
