"""Rollout and flow on the Diagnose page, against the core, and against products and shares worked out here."""

import html
import re
import time

import numpy as np
import pytest

from attention_core import load_model, trace
from attention_core.analysis.flow import FLOW_TOKENS, cross_graph, flow, flow_to_source, rollout_to_source, stack_graph
from pages.ui import jobs
from tests.extract.forms import saved_bert
from tests.pages.compare_reader import recorded, value
from tests.pages.page_reader import EMBEDDED, HOSTILE, SHORT, PageReader, numbers

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is not in this copy"
)
LONG = "The old king lost a golden ring in the sea, and his daughter went far into the dark woods to find it for him there."


class FlowPage(PageReader):
    path = "pages/diagnose.py"

    def __init__(self, query=None, **state):
        super().__init__(query, **({} if query else {"source": SHORT, "diag_view": "flow"} | state))
        self.fine()

    @property
    def map(self) -> np.ndarray:
        (drawn,) = [t for t in self.charts["flow_map"]["data"] if t["type"] == "heatmap"]
        return numbers(drawn["z"])

    def wait(self) -> "FlowPage":
        deadline = time.monotonic() + 120
        while any(b.key == "flow_job_stop" for b in self.app.button) and time.monotonic() < deadline:
            time.sleep(0.2)
            self.app.run()
        return self.fine()

    def painted(self, title: str) -> list[tuple[str, float]]:
        """Tokens of a painted text and the numbers in their titles."""
        (body,) = [e.proto.body for e in self.app.get("html") if f"<p>{title}</p>" in e.proto.body]
        body = body.split(f"<p>{title}</p>")[1].split('<div class="painted">')[0]
        titles = [html.unescape(t) for t in re.findall(r'title="([^"]*)"', body)]
        return [(t.rsplit(": ", 1)[0], float(t.rsplit(": ", 1)[1])) if ": " in t else (t, np.nan) for t in titles]

    @property
    def sentence(self) -> str:
        return self.app.text[0].value


def by_hand(kind: str) -> np.ndarray:
    """The rollout of a stack, written out: the product of (mean of heads + I) / 2, rows divided by their sum."""
    run, total = recorded(SHORT), None
    for layer in range(run.num_layers(kind)):
        mean = run.steps(kind, layer).weights[0].double().numpy().mean(0)
        mixed = (mean + np.eye(len(mean))) / 2
        mixed /= mixed.sum(1, keepdims=True)
        total = mixed if total is None else mixed @ total
    return total


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_rollout_is_the_product_of_the_layers_and_its_row_is_painted(kind):
    page = FlowPage(flow_of=kind, flow_row=3)
    expected = by_hand(kind)
    seen = np.tril(np.ones_like(expected)) if kind == "decoder" else np.ones_like(expected)
    np.testing.assert_allclose(page.map, np.where(seen, expected, np.nan), atol=1e-6)
    painted = page.painted("Source" if kind == "encoder" else "Target")
    np.testing.assert_allclose([number for _token, number in painted], expected[3], atol=1e-6)
    best = int(expected[3].argmax())
    assert f"draws most on {best} " in page.sentence
    assert value(re.search(r": ([\d.e−]+) of its row", page.sentence)[1]) == pytest.approx(expected[3].max(), rel=6e-3)
    assert "Abnar and Zuidema 2020" in page.captions and "**Rollout**" in page.words


def test_from_decoder_to_source_is_labelled_as_ours():
    page = FlowPage(flow_of="source", flow_row=2)
    found = rollout_to_source(cross_graph(recorded(SHORT)))
    np.testing.assert_allclose(page.map, found.to_source, atol=1e-6)
    assert "extension of this project, not of the paper" in page.words
    layers = recorded(SHORT).num_layers("decoder")
    assert value(re.search(r"([\d.]+) of what this token holds", page.captions)[1]) == pytest.approx(1 - 2.0**-layers)
    np.testing.assert_allclose([n for _t, n in page.painted("Source")], found.to_source[2], atol=1e-6)
    assert all(np.isnan(n) for _t, n in page.painted("Target"))


@pytest.mark.parametrize("of", ["encoder", "source"])
def test_flow_is_the_core_s(of):
    page = FlowPage(flow_of=of, flow_how="flow").wait()
    run = recorded(SHORT)
    if of == "encoder":
        expected = flow(stack_graph(run, "encoder").layers)
    else:
        expected = flow_to_source(cross_graph(run)).to_source
    np.testing.assert_allclose(page.map, expected, atol=1e-6)
    np.testing.assert_allclose(page.map.sum(1), 1, atol=1e-6)
    assert "**Flow**" in page.words


def test_a_text_too_long_for_flow_is_said_and_rolled_out():
    text = " ".join([LONG] * 2)
    page = FlowPage(source=text, flow_how="flow", flow_of="encoder")
    count = len(recorded(text).key_tokens("encoder"))
    assert count > FLOW_TOKENS
    (said,) = page.app.info
    assert f"at most {FLOW_TOKENS} tokens" in said.value and f"has {count}" in said.value
    assert page.map.size and "**Rollout**" in page.words and not page.errors


def test_a_flow_can_be_stopped_and_goes_on(monkeypatch):
    from pages.ui import diagnose_flow

    real = diagnose_flow.flow

    def slow(*args, **options):
        time.sleep(0.4)
        return real(*args, **options)

    monkeypatch.setattr(diagnose_flow, "flow", slow)
    source = "The queen had a cup, and the cup was lost."
    page = FlowPage(source=source, flow_how="flow", flow_of="encoder")
    page.app.button(key="flow_job_stop").click().run()
    deadline = time.monotonic() + 60
    while not any(b.key == "flow_go" for b in page.app.button) and time.monotonic() < deadline:
        time.sleep(0.2)
        page.app.run()
    done = int(re.search(r"Stopped: (\d+) of", page.fine().captions)[1])
    rows = len(recorded(source).key_tokens("encoder"))
    assert 1 <= done < rows and np.isnan(page.map[done:]).all() and np.isfinite(page.map[:done]).all()
    page.set(flow_row=rows - 1)
    assert "not computed yet" in page.captions
    calls = []
    monkeypatch.setattr(diagnose_flow, "flow", lambda *a, **o: calls.append(1) or real(*a, **o))
    page.app.button(key="flow_go").click().run()
    page.wait()
    assert len(calls) == rows - done
    np.testing.assert_allclose(page.map, flow(stack_graph(recorded(source), "encoder").layers), atol=1e-6)


def test_a_link_opens_the_same_view():
    query = {"source": SHORT, "diag_view": "flow", "flow_of": "decoder", "flow_row": "2"}
    page = FlowPage(query)
    assert page.app.query_params == query and page["flow_row"] == 2
    page = FlowPage(query | {"flow_row": "900"})
    assert page["flow_row"] == len(recorded(SHORT).query_tokens("decoder")) - 1


def test_a_hostile_text_is_shown_as_it_is():
    page = FlowPage(source=HOSTILE, flow_row=5)
    joined = "".join(e.proto.body for e in page.app.get("html"))
    assert "<b>" not in joined and "<i" not in joined and not page.errors
    words = html.unescape(re.sub(r"<[^>]+>", "", joined.split("<p>Source</p>")[1].split("</div>")[0]))
    assert re.sub(r"[\s·]", "", words) == f"<s>{HOSTILE}</s>".replace(" ", "")
    assert page.sentence.startswith(f"5 {recorded(HOSTILE).key_tokens('encoder')[5]} draws")


def test_an_encoder_alone_has_its_own_stack_only(tmp_path):
    folder = saved_bert(tmp_path / "bert")
    page = FlowPage(source="the cat", model="folder", name=str(folder), flow_of="source")
    assert page["flow_of"] == "encoder" and not page.errors
    from attention_core.analysis.flow import rollout

    run = trace(load_model(folder), "the cat")
    np.testing.assert_allclose(page.map, rollout(stack_graph(run, "encoder").layers)[-1], atol=1e-6)


def test_jobs_are_told_apart_by_their_text():
    FlowPage(flow_how="flow", flow_of="encoder").wait()
    page = FlowPage(source=HOSTILE[:30], flow_how="flow", flow_of="encoder").wait()
    assert len(page.map) == len(recorded(HOSTILE[:30]).key_tokens("encoder"))
    assert sum(key[0] == "flow" for key in jobs._jobs if isinstance(key, tuple)) >= 2
