"""Passages that a target says twice, and source passages that it never looks at: found, with the numbers that show it.

Both are read off a map (targets, sources) of ordinary tokens (``target_reading.TargetReading``): of one head, or the mean
over chosen heads. They say where attention went, not why. The rules are ours; their thresholds are arguments, told in each
finding, and were calibrated on copies of held-out stories by the embedded model (tests/analysis/test_passages.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..extract.tokens import Token
from .summaries import copy_hits, coverage
from .target_reading import TargetReading

REPETITION = (
    "the target says “{passage}” more often than the source, and each time it reads the same source passage, “{source}”: the "
    "two readings overlap by {overlap:.2f} (told from {threshold:.2f} on; heads that count: {heads})"
)
REPEATED_TEXT = (
    "the target says “{passage}” more often than the source, but these heads do not read one source passage for it: the two "
    "readings overlap by {overlap:.2f} (a repetition is told from {threshold:.2f} on; heads that find its words: {heads})"
)
OMISSION = (
    "the target hardly looks at the source passage “{source}” (tokens: {tokens}): each of its tokens gets {got:.3f} of the "
    "attention of one target token, where {expected:.3f} is the source's mean, at most 1 (told below {share:.2f} of that)"
)
LEAST_REPEATED, OVERLAP = 6, 0.3
LEAST_SKIPPED, SHARE = 8, 0.2
FINDS = 0.5
"""Copy hits on a passage from which on a head is taken to find its words in the source."""


@dataclass(frozen=True)
class Passage:
    """Neighbouring ordinary tokens of one side.

    Attributes:
        first, end: which of the reading's tokens, end exclusive.
        span: (start, end) in the characters of the side's text; None where its tokens have none.
        text: what stands there.
    """

    first: int
    end: int
    span: tuple[int, int] | None
    text: str


@dataclass(frozen=True)
class PassageFinding:
    """One repeated or skipped passage.

    Attributes:
        name: "repetition", "repeated text" (said twice, but the heads do not show where it is read) or "omission".
        template, values: the sentence, to be translated first and filled in then.
        targets: passages of the target: the first saying and the repeated one; empty for an omission.
        source: the passage of the source that is read twice, or skipped; None for a repeated text.
        strength: overlap of the two readings, or 1 - got / expected; from 0 to 1.
    """

    name: str
    template: str
    values: dict
    targets: tuple[Passage, ...]
    source: Passage | None
    strength: float

    def __str__(self) -> str:
        return self.template.format(**self.values)


def find_repetitions(
    reading: TargetReading, *, least: int = LEAST_REPEATED, overlap: float = OVERLAP
) -> tuple[PassageFinding, ...]:
    """Passages that the target says more often than the source has them, the longest first, and whether attention shows it.

    A passage is a run of equal tokens (case aside). Of the reading's heads those count that find the words of the second
    saying in the source (copy hits on it of at least 0.5). How far its two readings overlap is, for each of these heads,
    sum_j min(p_j, q_j), p and q being the attention of the tokens of either saying, summed and divided by its total: 0 for
    different source words, 1 for the same; then the mean over these heads. The source passage is the shortest that holds four
    fifths of what they share.

    Args:
        reading: of the heads to go by.
        least: tokens that a passage must have.
        overlap: a "repetition" from this overlap on; below it, or where no head finds the words, a "repeated text".

    Returns:
        findings; values: passage, source, overlap, threshold, tokens, heads (how many count).
    """
    said, known = ([_key(token) for token in tokens] for tokens in (reading.targets, reading.sources))
    found = []
    for first, again in repeated_runs(said, least):
        run = said[slice(*again)][: first[1] - first[0]]
        if _occurrences(run, known) >= _occurrences(run, said):
            continue
        shared, heads = _shared_reading(reading, first, again)
        strength = float(shared.sum())
        shown = heads > 0 and strength >= overlap
        source = _passage(reading.sources, *shortest_window(shared, 0.8), reading.source_text) if shown else None
        targets = tuple(_passage(reading.targets, *ends, reading.target_text) for ends in (first, again))
        values = {
            "passage": targets[1].text,
            "source": source.text if shown else None,
            "overlap": strength,
            "threshold": overlap,
            "tokens": again[1] - again[0],
            "heads": heads,
        }
        name, template = ("repetition", REPETITION) if shown else ("repeated text", REPEATED_TEXT)
        found.append(PassageFinding(name, template, values, targets, source, strength))
    return tuple(found)


def _shared_reading(reading: TargetReading, first: tuple[int, int], again: tuple[int, int]) -> tuple[Tensor, int]:
    """min(p_j, q_j), mean over the heads that find the words said again: (sources,), and how many heads these are."""
    ids = [torch.tensor([token.id for token in tokens]) for tokens in (reading.targets, reading.sources)]
    hits = copy_hits(reading.weights[:, slice(*again)], ids[0][slice(*again)], ids[1])
    finding = hits >= FINDS
    one, two = (coverage(reading.weights[finding, slice(*ends)]) for ends in (first, again))
    shares = [each / each.sum(-1, keepdim=True).clamp(min=torch.finfo(each.dtype).tiny) for each in (one, two)]
    count = int(finding.sum())
    return torch.minimum(*shares).sum(0) / max(count, 1), count


def find_omissions(
    reading: TargetReading, *, least: int = LEAST_SKIPPED, share: float = SHARE
) -> tuple[PassageFinding, ...]:
    """Source passages whose coverage stays far below what the source gets on average, in the order of the source.

    With r_j = c_j / e, e = min(1, mean_j c_j), the passages are the maximal runs in which min(r_j, 1) is below ``share`` on
    average (``low_runs``), so that one looked-at word does not hide that its whole paragraph was skipped. A target that is
    much shorter than its source must skip most of it: then these are what it leaves out.

    Args:
        reading: of the heads to go by; their mean is taken.
        least: tokens that a passage must have.
        share: of the expected coverage, above 0.

    Returns:
        findings; values: source, tokens, got (mean coverage in the passage, in target tokens), expected (e), share, of_source
        (share of the source's tokens).
    """
    got = coverage(reading.mean)
    expected = float(got.mean().clamp(max=1))
    if not expected > 0:
        return ()
    found = []
    for first, end in low_runs((got / expected).clamp(max=1), share):
        passage = _passage(reading.sources, first, end, reading.source_text)
        if passage.end - passage.first < least:
            continue
        mean = float(got[passage.first : passage.end].mean())
        values = {
            "source": passage.text,
            "tokens": passage.end - passage.first,
            "got": mean,
            "expected": expected,
            "share": share,
            "of_source": (passage.end - passage.first) / len(reading.sources),
        }
        found.append(PassageFinding("omission", OMISSION, values, (), passage, 1 - mean / expected))
    return tuple(found)


def repeated_runs(keys: Sequence[str], least: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Runs of equal keys that come again: ((first, end), (first again, end again)), ends exclusive, the longest first.

    The two never overlap: of a loop ("so so so so") the first is one turn and the second is all the others. What lies
    within a longer run that is already told is not told again.
    """
    found = []
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    ids = torch.tensor([numbers[key] for key in keys])
    for lag in range(1, len(keys)):
        equal = [False, *(ids[lag:] == ids[:-lag]).tolist(), False]
        edges = [place for place in range(1, len(equal)) if equal[place] != equal[place - 1]]
        for start, end in zip(edges[::2], edges[1::2]):
            if end - start >= least:
                first = start - 1, start - 1 + min(end - start, lag)
                found.append((first, (start - 1 + lag, end - 1 + lag)))
    found.sort(key=lambda pair: (pair[1][0] - pair[1][1], pair[1][0] - pair[0][0]))
    told: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for pair in found:
        if not any(again[0] <= pair[1][0] and pair[1][1] <= again[1] for _, again in told):
            told.append(pair)
    return told


def low_runs(values: Tensor, share: float) -> list[tuple[int, int]]:
    """Maximal runs whose mean is below ``share``: [(first, end)], ends exclusive, in order.

    All maximal scoring runs of share - value (Ruzzo and Tompa 1999): each begins and ends with a low value, cannot be
    made longer or shorter for a higher sum, and no two touch.

    Args:
        values: (len,), from 0 up.
        share: above 0.
    """
    # Of each run: sum of the scores before it, sum up to its end, first, end.
    runs: list[tuple[float, float, int, int]] = []
    total = 0.0
    for place, value in enumerate(values.tolist()):
        before, total = total, total + share - value
        if value >= share:
            continue
        run = (before, total, place, place + 1)
        while True:
            earlier = next((n for n in reversed(range(len(runs))) if runs[n][0] < run[0]), None)
            if earlier is None or runs[earlier][1] >= run[1]:
                runs.append(run)
                break
            run = (runs[earlier][0], run[1], runs[earlier][2], run[3])
            del runs[earlier:]
    return [(first, end) for _, _, first, end in runs]


def shortest_window(values: Tensor, share: float) -> tuple[int, int]:
    """The shortest run of neighbours that holds a share of a sum, (first, end), the first of equally short ones.

    Args:
        values: (len,), from 0 up, not all 0.
        share: from 0 to 1.
    """
    sums = [0.0, *values.double().cumsum(0).tolist()]
    wanted = share * sums[-1]
    best, first = (0, len(values)), 0
    for end in range(1, len(sums)):
        while first + 1 < end and sums[end] - sums[first + 1] >= wanted:
            first += 1
        if sums[end] - sums[first] >= wanted and end - first < best[1] - best[0]:
            best = (first, end)
    return best


def _occurrences(run: Sequence[str], keys: Sequence[str]) -> int:
    return sum(keys[place : place + len(run)] == run for place in range(len(keys) - len(run) + 1))


def _key(token: Token) -> str:
    """What tells tokens apart: not a capital, nor the space before it."""
    return token.label.lstrip("·").casefold() or token.label


def _passage(tokens: Sequence[Token], first: int, end: int, text: str) -> Passage:
    """A run of tokens, cut to whole words where any is whole."""
    inner = first, end
    while inner[0] < inner[1] and inner[0] > 0 and _one_word(tokens[inner[0] - 1], tokens[inner[0]]):
        inner = inner[0] + 1, inner[1]
    while inner[0] < inner[1] < len(tokens) and _one_word(tokens[inner[1] - 1], tokens[inner[1]]):
        inner = inner[0], inner[1] - 1
    first, end = inner if inner[0] < inner[1] else (first, end)
    spans = [token.span for token in tokens[first:end]]
    if None in spans:
        return Passage(first, end, None, " ".join(token.label for token in tokens[first:end]))
    span = min(span[0] for span in spans), max(span[1] for span in spans)
    return Passage(first, end, span, text[slice(*span)])


def _one_word(left: Token, right: Token) -> bool:
    return left.word is not None and left.word == right.word
