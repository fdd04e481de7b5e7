"""What the Diagnose page examines: a set of texts, and the job that takes the numbers of every head over them."""

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from attention_core.analysis.profile_sums import Profile, fingerprint, shipped_profile
from attention_core.errors import AttentionError
from pages.ui import cache, jobs
from pages.ui.explore_run import Explored
from pages.ui.text import _, verbatim

if TYPE_CHECKING:
    from attention_core.extract.models import LoadedModel

_FILE = "_diagnose_file"


@dataclass(frozen=True)
class Texts:
    """A set of texts.

    Attributes:
        sources: what the encoder reads.
        targets: what the decoder reads; None = each source itself, shifted right.
        broken: (line, reason) of what a file holds and could not be read.
        name: of the file.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...] | None = None
    broken: tuple[tuple[int, str], ...] = ()
    name: str = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr((self.sources, self.targets)).encode()).hexdigest()


@dataclass(frozen=True)
class Step:
    """How far the job is.

    Attributes:
        profile: the sums so far.
        stage: "maps", "gradients" or "ablation".
        done: stage -> steps done.
        total: steps of this stage; None where not known.
        seconds_left: of this stage; None where not known.
        skipped: sentences on texts that were left out.
    """

    profile: Profile
    stage: str
    done: dict[str, int]
    total: int | None
    seconds_left: float | None
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What is to be examined, by values: the key of the job.

    Attributes:
        model: which model.
        edits: changes inside it, as text; empty = none.
        texts: digest of the set.
        gradients: whether the gradient is taken.
        ablation: over how many texts each head is switched off; 0 = not at all.
    """

    model: cache.ModelKey
    edits: str
    texts: str
    gradients: bool
    ablation: int


def chosen_texts(explored: Explored) -> Texts:
    """The set of texts that the settings name.

    Raises:
        AttentionError: an empty set.
    """
    state = st.session_state
    if state["texts_from"] == "stories":
        every = all_stories().sources
        count = min(state["story_count"], len(every))
        return Texts(tuple(every[place * len(every) // count] for place in range(count)))
    if state["texts_from"] == "one":
        run = explored.trace
        target = explored.key.target if run.generated_text is None else run.generated_text[0]
        return Texts((explored.key.source,), None if target is None else (target,))
    if state["texts_from"] == "file":
        found = state.get(_FILE)
        if found is None:
            raise AttentionError(
                "choose a file: a .txt with a text a line, or a .csv with a column “text” (and “target”)"
            )
        return found
    lines = tuple(line.strip() for line in state["typed_texts"].splitlines() if line.strip())
    if not lines:
        raise AttentionError("there is no text: type at least one, each on a line of its own")
    return Texts(lines)


def all_stories() -> Texts:
    """Every story of the embedded model, as the shipped profile numbers them."""
    from attention_core.extract.means import stories

    return Texts(stories())


def take_file(uploaded) -> None:
    """Reads an uploaded file into the session, so that it is still there after another page.

    Raises:
        AttentionError: a file that holds no texts.
    """
    from attention_core.analysis.text_files import read_texts, sources_and_targets

    with tempfile.TemporaryDirectory() as folder:
        # Its own name would be a path of the person's making.
        path = Path(folder) / f"texts{Path(uploaded.name).suffix.lower()}"
        path.write_bytes(uploaded.getvalue())
        lines, broken = read_texts(path)
    if not lines:
        raise AttentionError("the file holds no text: {reason}", reason=broken[0][1] if broken else _("it is empty"))
    sources, targets = sources_and_targets(lines)
    found = Texts(tuple(sources), None if targets is None else tuple(targets), tuple(broken), uploaded.name)
    st.session_state[_FILE] = found


def say_file() -> None:
    """Which file's texts are in use: the upload itself is forgotten on another page, its texts are not."""
    found = st.session_state.get(_FILE)
    if found is not None:
        st.caption(
            _("In use: {name}, texts: {count}").format(name=verbatim(found.name), count=f"{len(found.sources):,}")
        )


def plan(explored: Explored, texts: Texts) -> Plan:
    """The job that the settings describe."""
    state, decodes = st.session_state, explored.trace.model.is_encoder_decoder
    return Plan(
        explored.key.model,
        _edits() if state["with_edits"] else "",
        texts.digest,
        bool(state["with_gradients"] and decodes),
        min(state["ablation_texts"], len(texts.sources)) if state["with_ablation"] and decodes else 0,
    )


def _edits() -> str:
    """The edits in the one form that tells them apart, however a link writes them."""
    from attention_core.extract.interventions import edits_from_text, edits_to_text

    written = st.session_state["edits"]
    return edits_to_text(edits_from_text(written)) if written else ""


def begin(made: Plan, texts: Texts, model: "LoadedModel") -> None:
    """Starts the job, or goes on with a stopped one."""
    means = None
    if made.model.name == "embedded" or "by='mean'" in made.edits:
        means = cache.mean_contexts(made.model)
    jobs.start(("diagnose", made), lambda earlier: _steps(made, texts, model, means, earlier))


def job_of(made: Plan) -> jobs.Job | None:
    return jobs.job(("diagnose", made))


def show_progress(made: Plan) -> None:
    """Progress, time left and stop while the job goes on."""
    names = {"maps": _("Reading the maps"), "gradients": _("Gradients"), "ablation": _("Switching heads off")}

    def share(step: Step) -> tuple[float, str]:
        total = step.total or max(1, step.done[step.stage])
        text = _("{stage}: {done} of {total}").format(stage=names[step.stage], done=step.done[step.stage], total=total)
        left = jobs.time_left(step.seconds_left)
        return step.done[step.stage] / total, f"{text}, {left}" if left else text

    jobs.show_job(("diagnose", made), share, "diagnose")


def _steps(made: Plan, texts: Texts, model: "LoadedModel", means, earlier: jobs.Job | None) -> Iterator[Step]:
    from attention_core.analysis.importance import ablation_effects, gradient_importance
    from attention_core.analysis.profile import profile_texts
    from attention_core.analysis.profile_sums import new_profile
    from attention_core.extract.interventions import edits_from_text

    last = None if earlier is None else earlier.latest
    profile = new_profile(model, made.edits or "[]") if last is None else last.profile
    done = {"maps": 0, "gradients": 0, "ablation": 0} if last is None else dict(last.done)
    edits = edits_from_text(made.edits) if made.edits else ()
    skipped: dict[str, None] = {} if last is None else dict.fromkeys(last.skipped)
    every = range(len(texts.sources))
    some = [place * len(every) // made.ablation for place in range(made.ablation)]

    def of(places, stage: str) -> dict:
        return {
            "texts": [texts.sources[place] for place in places],
            "targets": None if texts.targets is None else [texts.targets[place] for place in places],
            "indices": places,
            "edits": edits,
            "means": means,
            "into": profile,
            "done": done[stage],
        }

    stages = [("maps", lambda: profile_texts(model, **of(every, "maps")))]
    if made.gradients:
        stages.append(("gradients", lambda: gradient_importance(model, **of(every, "gradients"))))
    if made.ablation:
        stages.append(("ablation", lambda: ablation_effects(model, **of(some, "ablation"))))
    for stage, steps in stages:
        for progress in steps():
            done[stage] = progress.done
            for text in getattr(progress, "skipped", ()):
                skipped[_("text {number}: {reason}").format(number=text.index + 1, reason=text)] = None
            yield Step(profile, stage, dict(done), progress.total, progress.seconds_left, tuple(skipped))


@st.cache_resource(max_entries=4, show_spinner=False)
def shipped() -> Profile:
    """The profile of the sound embedded model."""
    return shipped_profile()


def is_the_shipped_model(key: cache.ModelKey, model: "LoadedModel") -> bool:
    """Whether this is, by its weights, the model that the shipped profile is of."""
    return _fingerprint(key, _model=model) == shipped().model["fingerprint"]


@st.cache_data(max_entries=8, show_spinner=False)
def _fingerprint(key: cache.ModelKey, _model: "LoadedModel") -> str:
    return fingerprint(_model)
