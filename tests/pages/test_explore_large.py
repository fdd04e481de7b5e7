"""Models of exactly bart-base's and bart-large's shape on the Explore page, at the longest text that they take.

The weights are random and the tokenizer is one of bytes and a few words: no published weights are at hand here. (A vocabulary of
50,265 rows is there; most of it is never used.)
"""

import shutil

import numpy as np
import pytest
import torch
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue

from pages.ui import cache
from tests.extract import forms
from tests.pages.explore_reader import ExplorePage

# Of these letters each is a token; two control tokens stand around them: 1024, the most that these models take.
LONGEST = ("abcd" * 256)[:1022]
MOST_VIEW, MOST_MAP = 10 * 2**20, 120 * 2**10


@pytest.fixture(params=forms.SHAPES)
def large(request, tmp_path):
    """(name, folder); the folder of 280 or 810 MB goes at the end, and so does what the page keeps of it."""
    yield request.param, forms.saved(forms.exact_shape(request.param), tmp_path / request.param)
    shutil.rmtree(tmp_path / request.param)
    cache._model.clear()
    cache._trace.clear()


@pytest.fixture
def sent(monkeypatch):
    """Bytes of every message that the page puts out for the browser, in the order in which they go."""
    sizes: list[int] = []
    enqueue = ForwardMsgQueue.enqueue

    def counted(self, message):
        sizes.append(message.ByteSize())
        return enqueue(self, message)

    monkeypatch.setattr(ForwardMsgQueue, "enqueue", counted)
    return sizes


def test_a_model_of_the_published_shape_opens_at_its_longest_text(large, sent):
    """Every view within 10 MB, a head's picture within 120 KB, and the numbers are those of the run."""
    name, folder = large
    settings, _ = forms.SHAPES[name]
    source, last = LONGEST, settings["layers"] - 1
    page = ExplorePage(
        model="folder", name=str(folder), source=source, mode="typed", target="a b a", kind="encoder", layer=last, h=0
    ).fine()
    assert not page.errors and "1,024 of 1,024 tokens" in page.captions
    assert sum(sent) <= MOST_VIEW
    run = cache.run(cache.TraceKey(cache.ModelKey(str(folder)), source, "a b a"))
    for head in (0, settings["heads"] - 1):
        sent.clear()
        page.set(h=head, from_q=900, from_k=500)
        (shown,) = page.panels("detail").values()
        wanted = run.steps("encoder", last, [head]).weights[0, 0, 900:932, 500:532].numpy()
        np.testing.assert_allclose(shown["z"], wanted, atol=1e-6)
        pictures = [c.proto.ByteSize() for c in page.app.get("plotly_chart") if "overview" not in c.proto.id]
        # The whole map and its window.
        assert len(pictures) == 2 and sum(pictures) <= MOST_MAP, pictures
        assert max(sent) <= MOST_VIEW and sum(sent) <= MOST_VIEW
    for view in ("one", "lines", "norms"):
        sent.clear()
        page.set(show=view)
        assert not page.errors and sum(sent) <= MOST_VIEW, view


def test_a_text_one_token_too_long_is_told_before_the_model_runs(large, monkeypatch):
    _, folder = large
    monkeypatch.setattr(torch.nn.Embedding, "forward", lambda *_: pytest.fail("the model ran"))
    page = ExplorePage(model="folder", name=str(folder), source=LONGEST + "a", mode="typed", target="a").fine()
    assert len(page.errors) == 1 and "1025 tokens and this model takes at most 1024" in page.errors[0]
