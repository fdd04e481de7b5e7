"""Repeated and skipped passages: the rules on maps made by hand, then on copies of held-out stories by the shipped model."""

import json
import re
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

from attention_core import AttentionError, load_model, trace
from attention_core.analysis import passages
from attention_core.analysis.passages import (
    _passage,
    find_omissions,
    find_repetitions,
    low_runs,
    repeated_runs,
    shortest_window,
)
from attention_core.analysis.target_reading import (
    CrossHead,
    TargetReading,
    aligned_heads,
    cross_heads,
    read_target,
)
from attention_core.extract.tokens import Token

STORIES = Path(__file__).parents[2] / "attention_core" / "embedded" / "stories.jsonl"


def tokens_of(text: str) -> tuple[Token, ...]:
    words = list(re.finditer(r"\S+", text))
    ids = {word: n for n, word in enumerate(sorted({w.group().casefold() for w in words}))}
    return tuple(
        Token(sum(map(ord, w.group().casefold())) * 100 + ids[w.group().casefold()], w.group(), span=w.span(), word=n)
        for n, w in enumerate(words)
    )


def reading(target: str, source: str, places: list[int], rest: float = 0.0) -> TargetReading:
    """Each target word looks at the source word at its place, with ``rest`` spread over all others."""
    targets, sources = tokens_of(target), tokens_of(source)
    ids = {token.label.casefold(): token.id for token in (*sources, *targets)}
    targets, sources = (
        tuple(Token(ids[t.label.casefold()], t.label, span=t.span, word=t.word) for t in side)
        for side in (targets, sources)
    )
    weights = torch.full((len(targets), len(sources)), rest / len(sources))
    weights[range(len(targets)), places] += 1 - rest
    head = CrossHead(0, 0, "read", 1.0, 0.1)
    return TargetReading(
        (head,), weights[None], targets, sources, tuple(range(len(targets))), tuple(range(len(sources))),
        len(targets), len(sources), target, source,
    )  # fmt: skip


ONE, TWO = "the old king lost a golden ring", "His daughter went far into dark woods to find it"


def test_runs_that_come_again():
    assert repeated_runs(list("xabcyabcz"), 3) == [((1, 4), (5, 8))]
    assert repeated_runs(list("xabcyabcz"), 4) == []
    assert repeated_runs(list("xabyab"), 2) == [((1, 3), (4, 6))]


def test_a_loop_is_one_turn_and_its_repetition():
    assert repeated_runs(list("qababababr"), 4)[0] == ((1, 3), (3, 9))


def test_what_is_said_three_times_is_told_twice():
    found = repeated_runs(list("abcdXabcdYabcd"), 4)
    assert [again for _, again in found] == [(5, 9), (10, 14)]


def test_low_runs_are_the_best_of_all_runs():
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        values = torch.rand(13, generator=generator) * 0.5
        score = 0.2 - values
        found = low_runs(values, 0.2)
        sums = {
            (a, b): float(score[a:b].sum()) for a, b in product(range(14), repeat=2) if b > a and score[a:b].sum() > 0
        }
        if not sums:
            assert not found
            continue
        best = max(sums, key=sums.get)
        assert best in found, "the run of the highest sum is among them"
        assert all(one[1] < two[0] for one, two in pairwise(found))
        covered = {place for a, b in found for place in range(a, b)}
        assert {n for n in range(13) if values[n] < 0.2} <= covered
        assert all(values[a:b].mean() < 0.2 for a, b in found)


def test_one_high_value_does_not_break_a_long_run():
    values = torch.tensor([1.0, 1.0] + [0.0] * 7 + [1.0] + [0.0] * 7 + [1.0])
    assert low_runs(values, 0.2) == [(2, 17)]
    values[9] = 5.0
    assert low_runs(values, 0.2) == [(2, 9), (10, 17)]


def test_the_shortest_window():
    assert shortest_window(torch.tensor([0.0, 1, 0, 4, 4, 1, 0]), 0.8) == (3, 5)
    assert shortest_window(torch.tensor([0.0, 0, 3]), 1.0) == (2, 3)
    assert shortest_window(torch.tensor([1.0, 0, 1]), 1.0) == (0, 3)


def test_a_repetition_with_its_spans_and_numbers():
    target = f"{ONE} so sad {ONE}"
    words = list(range(7))
    found = find_repetitions(reading(target, f"{ONE} {TWO}", [*words, 8, 9, *words], rest=0.1))
    assert [f.name for f in found] == ["repetition"]
    assert [target[slice(*passage.span)] for passage in found[0].targets] == [ONE, ONE]
    assert found[0].source.text in ONE and len(found[0].source.text) > 0.6 * len(ONE)
    assert found[0].values["overlap"] == pytest.approx(1) and found[0].values["tokens"] == 7
    assert f"the target says “{ONE}” more often than the source" in str(found[0])


def test_a_refrain_of_the_source_is_no_repetition():
    source = f"{ONE} {TWO} {ONE}"
    places = list(range(len(source.split())))
    assert find_repetitions(reading(source, source, places)) == ()
    # Said three times where the source has it twice, it is one.
    assert find_repetitions(reading(f"{source} {ONE}", source, [*places, *range(7)]))


def test_words_said_twice_but_read_in_two_places_are_a_repetition_of_text_only():
    source = f"{ONE} {TWO} a golden ring lost king the old"
    places = {word: n for n, word in reversed(list(enumerate(source.split())))}
    later = {word: n for n, word in enumerate(source.split())}
    said = [*(places[word] for word in ONE.split()), *(later[word] for word in ONE.split())]
    found = find_repetitions(reading(f"{ONE} {ONE}", source, said))
    assert [f.name for f in found] == ["repeated text"]
    assert found[0].source is None and found[0].strength < 0.3
    scattered = find_repetitions(reading(f"{ONE} {ONE}", source, said, rest=1.0))
    assert [(f.name, f.values["heads"]) for f in scattered] == [("repeated text", 0)]


def test_an_omission_with_its_span_and_numbers():
    source = f"{ONE} {TWO}"
    found = find_omissions(reading(ONE, source, list(range(7)), rest=0.1))
    assert [f.source.text for f in found] == [TWO]
    assert source[slice(*found[0].source.span)] == TWO
    got = 7 * 0.1 / 17
    assert found[0].values["got"] == pytest.approx(got) and found[0].values["expected"] == pytest.approx(7 / 17)
    assert found[0].strength == pytest.approx(1 - got / (7 / 17))
    assert found[0].values["of_source"] == pytest.approx(10 / 17)
    assert "the target hardly looks at the source passage" in str(found[0])


def test_copies_and_even_attention_skip_nothing():
    source = f"{ONE} {TWO}"
    places = list(range(17))
    assert find_omissions(reading(source, source, places)) == ()
    assert find_omissions(reading(ONE, source, list(range(7)), rest=1.0)) == ()
    # A target that says one sentence twenty times has read the other one once: that one is not skipped.
    often = " ".join([ONE] * 20)
    assert find_omissions(reading(f"{often} {TWO}", source, [*range(7)] * 20 + [*range(7, 17)])) == ()


def test_passages_are_whole_words():
    tokens = tuple(
        Token(n, letter, span=(n, n + 1), word=word) for n, (letter, word) in enumerate(zip("abcdef", "001122"))
    )
    assert _passage(tokens, 1, 5, "abcdef").text == "cd"
    assert _passage(tokens, 1, 2, "abcdef").text == "b", "a part of one word stays what it is"
    plain = tuple(Token(n, f"#{n}") for n in range(6))
    assert _passage(plain, 1, 3, "").text == "#1 #2" and _passage(plain, 1, 3, "").span is None


# ---- the shipped model


@pytest.fixture(scope="module")
def model():
    return load_model("embedded")


def held_out(model, count: int) -> list[list[str]]:
    """Sentences of held-out paragraphs that the model can read whole, as many from either book."""
    found = []
    for line in STORIES.read_text("utf-8").splitlines():
        chosen = []
        for paragraph in json.loads(line)["paragraphs"]:
            sentences = re.findall(r"\S.*?[.!?][\"']?(?=\s+[\"A-Z]|$)", paragraph)
            length = len(model.reader("source").encode(paragraph))
            whole = "".join(sentences).replace(" ", "") == paragraph.replace(" ", "")
            if whole and 4 <= len(sentences) <= 9 and 70 <= length <= 160:
                chosen.append(sentences)
        found += chosen[:count]
    return found


@pytest.fixture(scope="module")
def paragraphs(model):
    return held_out(model, 3)


def read(model, source: list[str], target: list[str]) -> TargetReading:
    return read_target(trace(model, " ".join(source), target=" ".join(target)))


def test_a_faithful_copy_raises_neither(model, paragraphs):
    assert len(paragraphs) == 6
    for sentences in paragraphs:
        found = read(model, sentences, sentences)
        assert find_repetitions(found) == () and find_omissions(found) == ()


def test_a_repeated_sentence_is_shown(model, paragraphs):
    for sentences in paragraphs:
        half = len(sentences) // 2
        again = max(range(half), key=lambda n: len(sentences[n]))
        target = [*sentences[: again + 1], *sentences[again:]]
        found = [f for f in find_repetitions(read(model, sentences, target)) if f.name == "repetition"]
        assert found, target
        assert found[0].source.text in sentences[again] or sentences[again][3:-3] in found[0].source.text
        text = " ".join(target)
        assert [text[slice(*p.span)] for p in found[0].targets] == [p.text for p in found[0].targets]
        assert found[0].targets[1].text.strip(' .!?"') in sentences[again]


def test_a_skipped_second_half_is_shown(model, paragraphs):
    for sentences in paragraphs:
        half = len(sentences) // 2
        found = read(model, sentences, sentences[:half])
        start, end = len(" ".join(sentences[:half])), len(" ".join(sentences))
        spans = [f.source.span for f in find_omissions(found)]
        inside = sum(min(b, end) - max(a, start) for a, b in spans if b > start)
        assert inside > 0.6 * (end - start), spans
        assert all(a > 0.5 * start for a, b in spans)
        assert find_repetitions(found) == ()


def test_heads_by_name_or_by_how_well_they_find(model, paragraphs):
    run = trace(model, " ".join(paragraphs[0]), target=" ".join(paragraphs[0]))
    heads = cross_heads(run)
    assert len(heads) == run.num_layers("cross") * run.num_heads("cross")
    assert [h.hits for h in heads] == sorted((h.hits for h in heads), reverse=True)
    chosen = aligned_heads(heads)
    assert chosen and heads[0] in chosen and len(chosen) < len(heads)
    ids, source = run.target_ids[0].tolist(), run.source_ids[0].tolist()
    best = heads[0]
    weights = run.steps("cross", best.layer, [best.head]).weights[0, 0]
    rows = [n for n, piece in enumerate(run.query_pieces("cross")) if n and not piece.special]
    shift = 1 if best.looks_for == "written" else 0
    hits = [ids[n] == source[int(weights[n - shift].argmax())] for n in rows]
    assert best.hits == pytest.approx(sum(hits) / len(hits))

    found = read_target(run, heads=[(best.layer, best.head), heads[-1]])
    assert [(h.layer, h.head) for h in found.heads] == [(h.layer, h.head) for h in (best, heads[-1])]
    columns = [n for n, piece in enumerate(run.key_pieces("cross")) if not piece.special]
    assert torch.equal(found.weights[0], weights[[n - shift for n in rows]][:, columns])
    assert torch.equal(found.of_head(1).mean, found.weights[1])
    assert float(found.special_mass[0]) == pytest.approx(1 - float(found.weights[0].sum(-1).mean()), abs=1e-6)


def test_values_go_back_over_the_whole_text(model):
    run = trace(model, "The fox ran.", target="The fox.")
    found = read_target(run, heads=[(0, 0)])
    spread = found.over_source(torch.arange(float(len(found.sources))))
    special = [piece.special for piece in run.key_pieces("cross")]
    assert [value != value for value in spread] == special
    assert [value for value in spread if value == value] == list(range(len(found.sources)))
    assert len(found.over_target(found.mean.sum(-1))) == run.target_ids.shape[1]


def test_padding_and_other_texts_change_nothing(model):
    alone = read_target(trace(model, "The fox ran.", target="The fox."), heads=[(0, 0), (1, 1)])
    batch = trace(
        model, ["A much longer text about a wolf.", "The fox ran."], target=["The wolf is here now.", "The fox."]
    )
    padded = read_target(batch, text=1, heads=[(0, 0), (1, 1)])
    assert padded.targets == alone.targets and padded.sources == alone.sources
    torch.testing.assert_close(padded.weights, alone.weights, atol=1e-5, rtol=0)


def test_errors_say_what_must_hold(model):
    run = trace(model, "The fox ran.", target="Seven geese swam under bridges")
    with pytest.raises(AttentionError, match=r"there is no cross-attention head \(99, 0\) \(layer, head\)"):
        read_target(run, heads=[(99, 0)])
    with pytest.raises(AttentionError, match="at least one head"):
        read_target(run, heads=[])
    with pytest.raises(AttentionError, match="no head of the cross-attention finds the target's tokens"):
        read_target(trace(model, "Ran.", target="seven geese"))
    with pytest.raises(AttentionError, match="the target has no token but control tokens"):
        read_target(trace(model, "The fox ran.", target=[[2, 0]]), heads=[(0, 0)])


def test_no_sentence_has_a_number_before_a_plural():
    for template in (passages.REPETITION, passages.REPEATED_TEXT, passages.OMISSION):
        assert not re.search(r"\{[a-z_]+\} [a-z]+s\b", template)
