"""Models and traces, made once and shared by all visitors; what takes long runs beside the page and says how far it is.

Everything is keyed by values: name, revision, device and dtype for a model, and the texts and how the target came about for
a trace. A trace is read by many visitors and changed by none.
"""

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import streamlit as st

if TYPE_CHECKING:
    from attention_core.extract.interventions import Means
    from attention_core.extract.models import LoadedModel
    from attention_core.extract.overview import Overview
    from attention_core.extract.trace import Trace

# bart-large takes 1.6 GB in float32, and its trace at 1024 tokens about 50 MB.
MOST_MODELS = 2
MOST_TRACES = 12
_POLL_SECONDS = 0.1

Result = TypeVar("Result")
Show = Callable[[int, int | None], None]


@dataclass(frozen=True)
class ModelKey:
    """Which model: what ``load_model`` is given."""

    name: str = "embedded"
    revision: str | None = None
    device: str = "auto"
    dtype: str | None = None


@dataclass(frozen=True)
class TraceKey:
    """Which run of a model.

    Attributes:
        model: which model.
        source: its text, already cut where the person agreed to that.
        target: the typed target; None where there is none.
        beams: of the search, where the model writes the target (1 = greedy); None where it does not.
        edits: what is changed inside the model, as ``edits_to_text`` writes it (the cache tells edits apart by their text; of
            two dataclasses with the same fields it would take one for the other).
        again: the edited model reads what the unedited one wrote, instead of writing itself.
    """

    model: ModelKey
    source: str
    target: str | None = None
    beams: int | None = None
    edits: str = ""
    again: bool = False


@dataclass(eq=False)
class _Job:
    """Work that one or more visitors wait for."""

    waiting: int = 0
    progress: tuple[int, int | None] = (0, None)
    done: threading.Event = field(default_factory=threading.Event)
    result: object = None
    error: BaseException | None = None


class _Abandoned(Exception):
    """Nobody waits any more."""


_jobs: dict[object, _Job] = {}
_jobs_lock = threading.Lock()
_load_lock = threading.Lock()


def model(key: ModelKey, show: Show | None = None) -> "LoadedModel":
    """The model, loaded at the first call of all.

    Args:
        key: which.
        show: called from the page while it waits, with bytes so far and bytes in all (None = not known).

    Raises:
        AttentionError: it cannot be loaded.
    """
    return _beside(key, lambda job: _model(key, job), show)


def run(key: TraceKey, show: Show | None = None) -> "Trace":
    """The trace; the model runs at the first call of all. ``show`` gets the number of tokens written so far."""
    loaded = model(key.model)
    means = mean_contexts(key.model) if "by='mean'" in key.edits else None
    written = run(replace(key, edits="", again=False), show) if key.again else None
    return _beside(key, lambda job: _trace(key, loaded, means, written, job), show)


def mean_contexts(key: ModelKey, show: Show | None = None) -> "Means":
    """The mean contexts of a model's heads over the stories; ``show`` gets the stories read and all of them."""
    loaded = model(key)
    return _beside(("means", key), lambda job: _means(key, loaded, job), show)


@st.cache_resource(max_entries=MOST_MODELS, show_spinner=False)
def _means(key: ModelKey, _loaded: "LoadedModel", _job: _Job) -> "Means":
    from attention_core.extract.means import mean_contexts

    def tell(done: int, total: int) -> None:
        _job.progress = (done, total)

    return mean_contexts(_loaded, on_progress=tell)


@st.cache_data(max_entries=64, show_spinner=False)
def overview(key: TraceKey, kind: str, limit: int, _trace: "Trace") -> "Overview":
    """Small maps of all layers and heads of a kind."""
    return _trace.overview(kind, limit=limit)


@st.cache_resource(max_entries=MOST_MODELS, show_spinner=False)
def _model(key: ModelKey, _job: _Job) -> "LoadedModel":
    import torch

    from attention_core import load_model

    def tell(done: int, total: int) -> None:
        _job.progress = (done, total)

    # One at a time: two large models at once may not fit, and the collector's list is one for the whole process.
    with _load_lock:
        # A shared host is better served by many visitors on a thread each than by one on all.
        torch.set_num_threads(1)
        gc.unfreeze()
        try:
            return load_model(key.name, revision=key.revision, device=key.device, dtype=key.dtype, on_progress=tell)
        finally:
            gc.collect()
            gc.freeze()


@st.cache_resource(max_entries=MOST_TRACES, show_spinner=False)
def _trace(
    key: TraceKey, _loaded: "LoadedModel", _means: "Means | None", _written: "Trace | None", _job: _Job
) -> "Trace":
    from attention_core import trace
    from attention_core.extract.inputs import Generation
    from attention_core.extract.interventions import edits_from_text

    def tell(count: int) -> None:
        _job.progress = (count, None)

    def abandoned() -> bool:
        return _job.waiting == 0

    edited = {"edits": edits_from_text(key.edits), "means": _means} if key.edits else {}
    if _written is not None:
        target = _written.target
        return trace(_loaded, key.source, target=target.ids, target_mask=target.mask, **edited)
    if key.beams is None:
        return trace(_loaded, key.source, target=key.target, **edited)
    how = Generation(num_beams=key.beams, on_progress=tell, should_stop=abandoned)
    written = trace(_loaded, key.source, generate=how, **edited)
    if abandoned():
        # What was cut short is not what the model writes, and must not be kept.
        raise _Abandoned
    return written


def _beside(key: object, work: Callable[[_Job], Result], show: Show | None) -> Result:
    """Runs work in a thread of its own, one for all who ask for the same key, while the page says how far it is."""
    while True:
        with _jobs_lock:
            job = _jobs.get(key)
            if job is None:
                job = _jobs[key] = _Job()
                threading.Thread(target=_work, args=(key, job, work), daemon=True).start()
            job.waiting += 1
        try:
            while not job.done.wait(_POLL_SECONDS):
                if show is not None:
                    show(*job.progress)
        finally:
            with _jobs_lock:
                job.waiting -= 1
        if isinstance(job.error, _Abandoned):
            continue
        if job.error is not None:
            raise job.error
        return job.result


def _work(key: object, job: _Job, work: Callable[[_Job], object]) -> None:
    try:
        job.result = work(job)
    except BaseException as error:  # the page that waits raises it
        job.error = error
    finally:
        with _jobs_lock:
            _jobs.pop(key, None)
        job.done.set()
