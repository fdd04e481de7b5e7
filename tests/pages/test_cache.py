"""Shared models and traces: loaded once, each visitor's own numbers, nothing left behind, nothing half-written kept."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import streamlit as st
import torch

import attention_core
from attention_core.errors import AttentionError
from pages.ui import cache

TEXTS = ("The wolf ran home.", "The old queen sat by the window and looked into the garden for her lost daughter.")


@pytest.fixture
def empty():
    """No model and no trace is held."""
    st.cache_resource.clear()
    st.cache_data.clear()
    yield
    st.cache_resource.clear()


def hooks(model) -> int:
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.module.modules())


def test_many_visitors_load_one_model_and_see_their_own_text(empty, monkeypatch):
    loads, load = [], attention_core.load_model
    monkeypatch.setattr(attention_core, "load_model", lambda *a, **k: (loads.append(a), load(*a, **k))[1])
    single = load("embedded", device="cpu")
    key = cache.ModelKey(device="cpu")
    start = threading.Barrier(4)

    def visit(text: str):
        start.wait()
        run = cache.run(cache.TraceKey(key, text))
        return text, run.source_ids, run.steps("cross", 2, [5]).weights

    before = None
    for turn in range(20):
        texts = [f"{text} {turn}" for text in TEXTS] * 2
        with ThreadPoolExecutor(4) as visitors:
            for text, ids, weights in visitors.map(visit, texts):
                alone = attention_core.trace(single, text)
                assert torch.equal(ids, alone.source_ids)
                assert torch.allclose(weights, alone.steps("cross", 2, [5]).weights, atol=1e-6)
        before = before or hooks(cache.model(key))
    assert len(loads) == 1
    assert hooks(cache.model(key)) == before == hooks(single)


def test_a_trace_is_made_once_for_all(empty, monkeypatch):
    runs, trace = [], attention_core.trace
    monkeypatch.setattr(attention_core, "trace", lambda *a, **k: (runs.append(a), trace(*a, **k))[1])
    key = cache.TraceKey(cache.ModelKey(device="cpu"), TEXTS[0])
    with ThreadPoolExecutor(3) as visitors:
        found = list(visitors.map(cache.run, [key] * 3))
    assert len(runs) == 1 and found[0] is found[1] is found[2]
    cache.run(cache.TraceKey(cache.ModelKey(device="cpu"), TEXTS[0], "A target."))
    assert len(runs) == 2, "another target is another run"


def test_what_nobody_waits_for_is_stopped_and_not_kept(empty):
    key = cache.TraceKey(cache.ModelKey(device="cpu"), "The king had a<mask>.", None, 8)

    class Gone(Exception):
        pass

    seen = []

    def leave(count: int, whole: int | None) -> None:
        seen.append(count)
        if count > 1:
            raise Gone

    with pytest.raises(Gone):
        cache.run(key, leave)
    deadline = time.monotonic() + 60
    while key in cache._jobs and time.monotonic() < deadline:
        time.sleep(0.02)
    whole = cache.run(key)
    assert not [notice for notice in whole.notices if "stopped" in str(notice)]
    assert seen[-1] > 1


def test_an_error_reaches_every_visitor_and_is_not_kept(empty, tmp_path):
    key = cache.ModelKey(str(tmp_path / "none"), device="cpu")
    for _ in range(2):
        with pytest.raises(AttentionError, match="not a folder"):
            cache.model(key)
    assert not cache._jobs
