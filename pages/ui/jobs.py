"""Long work beside the page: progress, time left, stop; what is done stays, and is shared by all who ask for the same.

A job goes through a generator in a thread of its own. Whoever shows it polls; where nobody has looked for a while, it stops,
so that a page that was closed does not go on computing.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import streamlit as st

from attention_core.errors import AttentionError
from pages.ui.layout import show_error
from pages.ui.text import _

# Finished and stopped jobs that are kept, for all visitors together.
_MOST_KEPT = 24
# Seconds without a look after which a job stops.
_PATIENCE = 30.0
# Jobs that run at once; the others wait their turn.
_turns = threading.Semaphore(2)
_jobs: "OrderedDict[object, Job]" = OrderedDict()
_lock = threading.Lock()


@dataclass(eq=False)
class Job:
    """Work that goes on, or did.

    Attributes:
        latest: the last thing that the generator yielded; None before the first.
        running: whether it still goes on.
        stopped: whether it ended before its end.
        error: what it raised.
    """

    latest: object = None
    running: bool = True
    stopped: bool = False
    error: AttentionError | None = None
    looked: float = field(default_factory=time.monotonic)
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Ends it after the step that it is at (a callback)."""
        self._stop.set()

    def _run(self, steps: Callable[["Job | None"], Iterable], earlier: "Job | None") -> None:
        try:
            with _turns:
                for self.latest in steps(earlier):
                    if self._stop.is_set() or time.monotonic() - self.looked > _PATIENCE:
                        self.stopped = True
                        break
        except AttentionError as error:
            self.error = error
        except Exception as error:
            self.error = AttentionError(
                "this could not be computed ({reason})", reason=f"{type(error).__name__}: {error}"
            )
        finally:
            self.running = False


def job(key: object) -> Job | None:
    """The job of that key, if there is one; looking keeps it going."""
    with _lock:
        found = _jobs.get(key)
        if found is not None:
            _jobs.move_to_end(key)
            found.looked = time.monotonic()
        return found


def start(key: object, steps: Callable[[Job | None], Iterable]) -> Job:
    """Begins a job, or goes on with a stopped one.

    Args:
        key: names it by values.
        steps: called with the stopped job that stood under this key, or None; gives what the job goes through.
    """
    with _lock:
        earlier = _jobs.get(key)
        if earlier is not None and earlier.running:
            return earlier
        made = _jobs[key] = Job(latest=None if earlier is None else earlier.latest)
        _jobs.move_to_end(key)
        idle = [name for name, each in _jobs.items() if not each.running]
        for name in idle[: max(0, len(_jobs) - _MOST_KEPT)]:
            del _jobs[name]
        threading.Thread(target=made._run, args=(steps, earlier), daemon=True).start()
        return made


def show_job(key: object, share: Callable[[object], tuple[float, str]], name: str) -> None:
    """Progress and a stop button while the job of that key goes on; the page runs again when it has ended.

    Args:
        key: of the job.
        share: from what the job yielded last to the part that is done, from 0 to 1, and a sentence.
        name: of the widgets; unique on the page.
    """
    found = job(key)
    if found is None:
        return
    if not found.running:
        if found.error is not None:
            show_error(found.error)
        return

    @st.fragment(run_every=0.5)
    def watch() -> None:
        now = job(key)
        if now is None or not now.running:
            st.rerun(scope="app")
        part, text = (0.0, _("Waiting for its turn…")) if now.latest is None else share(now.latest)
        with st.container(horizontal=True, vertical_alignment="center", key=f"{name}_progress"):
            st.progress(min(1.0, part), text)
            st.button(_("Stop"), key=f"{name}_stop", on_click=now.stop, icon=":material/stop:")

    watch()


def time_left(seconds: float | None) -> str:
    """About 12 s left; nothing where it is not known."""
    if seconds is None:
        return ""
    if seconds < 90:
        return _("about {seconds} s left").format(seconds=max(1, round(seconds)))
    return _("about {minutes} min left").format(minutes=round(seconds / 60))
