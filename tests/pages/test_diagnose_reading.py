"""The view of a target over its source: what is planted is named and marked, the numbers are the core's and those of hand."""

import html
import math
import re

import numpy as np
import pytest

from attention_core import load_model, trace
from attention_core.analysis.passages import find_omissions, find_repetitions
from attention_core.analysis.summaries import reading_scores
from attention_core.analysis.target_reading import aligned_heads, cross_heads, read_target
from attention_core.extract.interventions import Forbid, Uniform, edits_from_text, edits_to_text
from tests.extract.forms import saved_bert
from tests.pages.compare_reader import value
from tests.pages.page_reader import EMBEDDED, HOSTILE, PageReader

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is not in this copy"
)

FIRST = "The old king lost a golden ring in the sea."
SECOND = "His daughter went far into the dark woods to find it, and she came to a well."
THIRD = "There lay the ring, bright as the sun."
SOURCE = f"{FIRST} {SECOND} {THIRD}"
TWICE = f"{FIRST} {FIRST} {SECOND} {THIRD}"


class ReadingPage(PageReader):
    path = "pages/diagnose.py"

    def __init__(self, source=SOURCE, target=TWICE, query=None, **state):
        mode = {"mode": "shift"} if target is None else {"mode": "typed", "target": target}
        super().__init__(query, **({} if query else {"source": source, "diag_view": "reading", **mode} | state))
        self.fine()

    @property
    def bodies(self) -> list[str]:
        return [e.proto.body for e in self.app.get("html")]

    @property
    def findings(self) -> list[str]:
        """The sentences, as they are read."""
        found = [b for b in self.bodies if '<div class="passages">' in b]
        lines = re.findall(r"<p>(.*?)</p>", "".join(body.split("</style>")[-1] for body in found), re.DOTALL)
        return [html.unescape(re.sub(r"<[^>]+>", "", line)) for line in lines]

    def text(self, title: str) -> str:
        (body,) = [b for b in self.bodies if f"<p>{title}" in b]
        return body

    def values(self, title: str) -> list[float]:
        """The numbers in the titles of a painted text's tokens."""
        return [float(html.unescape(t).rsplit(": ", 1)[1]) for t in re.findall(r'title="([^"]*)"', self.text(title))]

    def marked(self, title: str) -> dict[str, str]:
        """The word over each marked passage -> the passage."""
        found = re.findall(r"<mark [^>]*><b [^>]*>(.*?)</b>(.*?)</mark>", self.text(title), re.DOTALL)
        return {word: html.unescape(re.sub(r"<[^>]+>", "", passage)).strip() for word, passage in found}

    @property
    def numbers(self) -> dict[str, str]:
        return {row[0]: row[1] for row in self.table("number", "", "what it says")[1:]}


def read(source=SOURCE, target=TWICE, heads=None, **options):
    return read_target(trace(load_model("embedded", device="cpu"), source, target=target, **options), heads=heads)


def test_a_repeated_sentence_is_named_and_marked_in_both_texts():
    page = ReadingPage()
    (told,) = find_repetitions(read())
    repeated = [line for line in page.findings if "· said twice:" in line]
    assert len(repeated) == 1 and FIRST[:-1] in repeated[0]
    assert f"overlap by {told.values['overlap']:.2f} (told from 0.30 on" in repeated[0]
    over = page.marked("Target, painted by its coverage loss")
    assert {word.split(maxsplit=1)[-1] if word[0].isdigit() else word for word in over} == {"said first", "said again"}
    assert all(re.sub(r"\s", "", passage) in FIRST.replace(" ", "") and len(passage) > 30 for passage in over.values())
    (again,) = page.marked("Source, painted by its coverage").values()
    assert re.sub(r"\s", "", again) in FIRST.replace(" ", "")


def test_a_skipped_half_is_named_marked_and_carried_to_what_if():
    page = ReadingPage(target=FIRST)
    (told,) = [f for f in find_omissions(read(target=FIRST)) if f.values["tokens"] > 15]
    lines = [line for line in page.findings if "· skipped:" in line]
    said = next(line for line in lines if "daughter went far" in line)
    assert f"gets {told.values['got']:.3f} of the attention" in said and "told below 0.20" in said
    assert "Nothing is repeated" in page.findings[-1]
    assert "must leave out most of its source" in page.captions
    marked = " ".join(p for w, p in page.marked("Source, painted by its coverage").items() if "skipped" in w)
    assert "daughter went far" in marked and "golden" not in marked
    page.app.button(key="read_blind").click().run()
    page.fine()
    (edit,) = edits_from_text(page["edits"])
    pieces = trace(load_model("embedded", device="cpu"), SOURCE, target=FIRST).key_pieces("cross")
    spans = [finding.source.span for finding in find_omissions(read(target=FIRST))]
    inside = [n for n, t in enumerate(pieces) if not t.special and any(a <= t.span[0] < b for a, b in spans)]
    assert edit == Forbid(kind="cross", keys=tuple(inside)) and told.source.span in spans
    assert page["if_view"] == "says" and "edits" in page.app.query_params


def test_of_all_findings_the_skipped_passages_are_hidden_and_a_chosen_one_alone():
    page, skipped = ReadingPage(target=f"{FIRST} {FIRST}"), "Hide what was skipped from the decoder"
    labels = []
    for number in (-1, 0, 1):
        page.set(read_mark=number)
        labels.append(page.app.button(key="read_blind").label)
    assert labels == [skipped, "Hide what was read twice from the decoder", skipped]
    reading = read(target=f"{FIRST} {FIRST}")
    for number, found in ((0, find_repetitions(reading)), (-1, find_omissions(reading))):
        page = ReadingPage(target=f"{FIRST} {FIRST}", read_mark=number)
        page.app.button(key="read_blind").click().run()
        keys = [n for f in found for n in reading.source_places[f.source.first : f.source.end]]
        assert edits_from_text(page.fine()["edits"]) == (Forbid(kind="cross", keys=tuple(keys)),)


def test_nothing_wrong_is_said_too():
    page = ReadingPage(target=None)
    assert "The target is the source itself" in page.captions
    assert [line[:18] for line in page.findings] == ["Nothing is repeate", "Nothing is skipped"]
    assert not page.marked("Source, painted by its coverage")
    assert not [b for b in page.app.button if b.key == "read_blind"]


def test_paint_and_numbers_are_the_map_s_own():
    page, reading = ReadingPage(), read()
    mean = reading.weights.double().mean(0).numpy()
    np.testing.assert_allclose(page.values("Source, painted"), mean.sum(0), atol=1e-5)
    loss = [np.minimum(mean[t], mean[:t].sum(0)).sum() for t in range(len(mean))]
    np.testing.assert_allclose(page.values("Target, painted"), loss, atol=1e-5)
    got, numbers = mean.sum(0), page.numbers
    first = math.ceil(0.2 * len(got))
    by_hand = {
        "coverage loss": np.mean(loss),
        "omission penalty": np.log(np.minimum(got, 1)).mean(),
        "coverage deviation": -np.log1p((1 - got) ** 2).mean(),
        "lead bias": got[:first].sum() / got.sum(),
        "copy hits": np.mean([head.hits for head in reading.heads]),
    }
    for name, expected in by_hand.items():
        assert value(numbers[name]) == pytest.approx(expected, rel=6e-3, abs=1e-3), name
    scores = reading_scores(reading.mean)
    for name, key in (
        ("absent-mindedness, target", "absentminded_target"),
        ("absent-mindedness, source", "absentminded_source"),
        ("monotonicity", "monotonicity"),
    ):
        assert value(numbers[name]) == pytest.approx(float(scores[key]), rel=6e-3)


def test_heads_are_those_that_align_until_others_are_chosen():
    run = trace(load_model("embedded", device="cpu"), SOURCE, target=TWICE)
    heads = cross_heads(run)
    page = ReadingPage()
    shown = page.table("head", "looks for")[1:]
    assert [row[0] for row in shown] == [f"layer {h.layer}, head {h.head}" for h in aligned_heads(heads)][:12]
    assert value(shown[0][2]) == pytest.approx(heads[0].hits, rel=6e-3) and shown[0][1] == heads[0].looks_for
    assert "a map that no single head has" in page.captions
    (box,) = [m for m in page.app.multiselect if m.key == "read_heads"]
    assert len(box.options) == run.num_layers("cross") * run.num_heads("cross")
    assert box.options[0].startswith(f"Layer {heads[0].layer}, head {heads[0].head} ·")
    worst = heads[-1]
    page.set(read_heads=[f"{worst.layer}.{worst.head}"])
    assert "its own verdict" in page.captions and "no single head" not in page.captions
    alone = read(heads=[(worst.layer, worst.head)])
    np.testing.assert_allclose(page.values("Source, painted"), alone.weights[0].sum(0), atol=1e-5)
    assert page.app.query_params["read_heads"] == f"{worst.layer}.{worst.head}"


def test_one_finding_can_be_marked_alone():
    page = ReadingPage(target=f"{FIRST} {FIRST}")
    assert len(page.findings) == 2
    for number, words in enumerate(({"1 read twice"}, {"2 skipped"})):
        page.set(read_mark=number)
        assert set(page.marked("Source, painted by its coverage")) == words
    assert not page.marked("Target, painted by its coverage loss")


def test_thresholds_change_what_is_told():
    page = ReadingPage(target=FIRST)
    count = sum("· skipped:" in line for line in page.findings)
    assert count
    page.set(read_skip=200)
    assert not any("· skipped:" in line for line in page.findings) and "no 200 neighbouring tokens" in page.findings[-1]
    page.app.button(key="read_default").click().run()
    assert sum("· skipped:" in line for line in page.fine().findings) == count


def test_a_hostile_text_is_shown_as_it_is():
    target = f"{HOSTILE} {HOSTILE}"
    page = ReadingPage(source=f"{HOSTILE} {SECOND}", target=target, read_heads=["0.0", "2.1"])
    joined = "".join(page.bodies)
    assert "<b>bold" not in joined and "<i" not in joined and not page.errors
    for title, text in (("Source, painted", f"{HOSTILE} {SECOND}"), ("Target, painted", target)):
        words = re.sub(r"<b [^>]*>.*?</b>", "", page.text(title).split("</p>", 1)[1])
        assert re.sub(r"[\s·]", "", html.unescape(re.sub(r"<[^>]+>", "", words))) == text.replace(" ", "")
    assert any(HOSTILE[:20] in line for line in page.findings)


def test_nothing_in_common_is_one_sentence_until_heads_are_named():
    page = ReadingPage(source="Ran.", target="seven geese")
    assert not page.errors and len(page.app.info) == 1 and "Choose heads below" in page.app.info[0].value
    page.set(read_heads=["0.0"])
    assert not page.app.info and page.values("Source, painted")


def test_a_run_under_edits_is_read_as_it_then_is():
    edits = (Uniform(kind="cross"),)
    page = ReadingPage(edits=edits_to_text(edits), with_edits=True, read_heads=["1.2"])
    assert "under the edits" in page.captions
    expected = read(heads=[(1, 2)], edits=edits)
    np.testing.assert_allclose(page.values("Source, painted"), expected.weights[0].sum(0), atol=1e-5)
    assert np.ptp(page.values("Source, painted")) < 1e-4


def test_a_link_opens_the_same_view_and_nonsense_in_it_is_said():
    query = {"diag_view": "reading", "mode": "typed", "target": FIRST, "source": SOURCE, "read_heads": "1.2-0.3"}
    page = ReadingPage(query=query)
    assert page["read_heads"] == ["1.2", "0.3"] and len(page.table("head", "looks for")) == 3
    assert page.app.query_params == query
    page = ReadingPage(query=query | {"read_heads": "1.2-<b>"})
    assert page["read_heads"] == [] and "Not understood in the link" in page.words
    page = ReadingPage(query=query | {"read_heads": "77.5"})
    assert page["read_heads"] == []


def test_a_model_without_cross_attention_is_one_sentence(tmp_path):
    folder = saved_bert(tmp_path / "bert")
    page = ReadingPage(source="the cat", target=None, model="folder", name=str(folder))
    assert not page.errors and [i for i in page.app.info if "no cross-attention" in i.value]
    assert not page.charts and not [m for m in page.app.multiselect if m.key == "read_heads"]
