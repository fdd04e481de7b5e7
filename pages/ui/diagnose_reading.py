"""The Diagnose page's view of a target: what it repeats, which passages of the source it skips, and which heads say so."""

import re
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from attention_core.analysis.passages import (
    LEAST_REPEATED,
    LEAST_SKIPPED,
    OVERLAP,
    SHARE,
    PassageFinding,
    find_omissions,
    find_repetitions,
)
from attention_core.analysis.summaries import coverage, coverage_loss
from attention_core.analysis.target_reading import CrossHead, TargetReading, aligned_heads, cross_heads, read_target
from pages.ui import cache
from pages.ui.diagnose_passages import show_findings, show_texts
from pages.ui.diagnose_scores import show_head_table, show_scores
from pages.ui.explore_pictures import narrow
from pages.ui.explore_run import Explored
from pages.ui.explore_views import Table
from pages.ui.state import Setting, real, whole
from pages.ui.text import _

if TYPE_CHECKING:
    from attention_core.extract.trace import Trace

_MOST_HEADS = 64
_PAIR = re.compile(r"\d{1,3}\.\d{1,3}")


def _read_pairs(text: str) -> list[str]:
    pairs = text.split("-") if text else []
    if len(pairs) > _MOST_HEADS or not all(_PAIR.fullmatch(pair) for pair in pairs):
        raise ValueError(text)
    return pairs


SETTINGS: tuple[Setting, ...] = (
    # "2.7" is layer 2, head 7; none = the heads that align.
    Setting("read_heads", [], _read_pairs, "-".join),
    whole("read_mark", -1, -1, 999),
    whole("read_least", LEAST_REPEATED, 2, 200),
    real("read_overlap", OVERLAP, 0.0, 1.0),
    whole("read_skip", LEAST_SKIPPED, 1, 200),
    real("read_share", SHARE, 0.01, 1.0),
)
_THRESHOLDS = tuple(setting for setting in SETTINGS if setting.key not in ("read_heads", "read_mark"))


def show_reading(explored: Explored) -> Table:
    """Findings in words, the two texts painted, the heads that they are read through, and the numbers."""
    run = explored.trace
    if "cross" not in run.kinds:
        st.info(
            _(
                "This model has no cross-attention: nothing is written from a source, so that there is nothing to repeat or to "
                "skip."
            ),
            icon=":material/info:",
        )
        return _empty()
    heads = _heads(explored.key, run)
    top = st.container()
    chosen = _choose(heads)
    if not chosen:
        with top:
            _none_aligns(heads)
        _thresholds()
        return _empty()
    reading = _reading(explored.key, tuple((head.layer, head.head) for head in chosen), run)
    found = _findings(explored.key, reading)
    with top:
        _about(explored, reading)
        marked = show_findings(explored, reading, found)
        show_texts(reading, found, marked)
    left, right = (st.container(), st.container()) if narrow() else st.columns([5, 7], gap="large")
    with left:
        numbers = range(len(reading.heads))
        show_head_table(reading, [_findings(explored.key, reading.of_head(n)) for n in numbers[:12]])
    with right:
        show_scores(reading)
    _thresholds()
    return _table(reading)


def _choose(heads: list[CrossHead]) -> list[CrossHead]:
    """The heads that the person names, or those that align; may be none."""
    state = st.session_state
    names = {f"{head.layer}.{head.head}": head for head in heads}
    state["read_heads"] = [name for name in state["read_heads"] if name in names]
    text = _("Layer {layer}, head {head} · finds {hits:.0%}")

    def label(name: str) -> str:
        head = names[name]
        hits = 0.0 if head.hits != head.hits else head.hits
        return text.format(layer=head.layer, head=head.head, hits=hits)

    aligned = aligned_heads(heads)
    placeholder = (
        _("The {count} that align").format(count=len(aligned)) if len(aligned) != 1 else _("The one that aligns")
    )
    st.multiselect(
        _("Heads that the target is read through"),
        list(names),
        format_func=label,
        key="read_heads",
        placeholder=placeholder if aligned else _("None aligns: choose some"),
        max_selections=_MOST_HEADS,
        help=_(
            "All heads of the cross-attention, the one that finds most of the target's words in the source first. Where none "
            "is chosen, those are taken that find at least 0.8 of what the best one finds, and 0.2 more than chance."
        ),
    )
    return [names[name] for name in state["read_heads"]] or aligned


def _none_aligns(heads: list[CrossHead]) -> None:
    best = heads[0]
    if best.hits != best.hits:
        text = _(
            "No token of the target stands in the source, so that no head can be seen to find its words. Choose heads below to "
            "read through; what they skip is then their own matter."
        )
        st.info(text, icon=":material/info:")
        return
    text = _(
        "No head of the cross-attention finds the target's tokens in the source (the best one {hits:.2f} of them, chance "
        "{chance:.2f}). Choose heads below to read through."
    )
    st.info(text.format(hits=best.hits, chance=best.chance), icon=":material/info:")


def _about(explored: Explored, reading: TargetReading) -> None:
    """Whose target this is, how long the two are, and what follows from that."""
    key = explored.key
    targets, sources = len(reading.targets), len(reading.sources)
    if key.beams is not None:
        text = _("The target was written by the model: {targets} tokens, for a source of {sources}.")
    elif key.target is not None:
        text = _("The target was typed: {targets} tokens, for a source of {sources}.")
    else:
        text = _(
            "The target is the source itself ({targets} tokens), so that nothing should be skipped. Type a target on the left, or "
            "let the model write one."
        )
    parts = [text.format(targets=targets, sources=sources)]
    if key.edits:
        parts.append(_("The model ran under the edits of the What-if page."))
    if targets < 0.8 * sources:
        text = (
            _(
                "So short a target must leave out most of its source: what is skipped is then what it leaves out, not a fault."
            )
            if targets < 0.5 * sources
            else _("The shorter target must leave out a part of its source: what is skipped may be just that part.")
        )
        parts.append(text)
    st.caption(" ".join(parts))


def _thresholds() -> None:
    """When something is told, to be changed."""
    with st.expander(_("Thresholds")):
        with st.container(horizontal=True, gap="medium", key="read_thresholds"):
            st.number_input(_("Repeated: least tokens"), 2, 200, key="read_least", width=200)
            st.number_input(_("Repeated: least overlap"), 0.0, 1.0, step=0.05, key="read_overlap", width=200)
            st.number_input(_("Skipped: least tokens"), 1, 200, key="read_skip", width=200)
            st.number_input(_("Skipped: below this share"), 0.01, 1.0, step=0.05, key="read_share", width=200)
        st.button(_("As calibrated"), key="read_default", on_click=_as_calibrated)
        st.caption(
            _(
                "Calibrated on copies of held-out stories by the embedded model: a faithful copy tells nothing, a sentence said "
                "twice and a skipped half are told. Other models and longer texts may need others."
            )
        )


def _as_calibrated() -> None:
    for setting in _THRESHOLDS:
        st.session_state[setting.key] = setting.default


@st.cache_resource(max_entries=16, show_spinner=False)
def _heads(key: cache.TraceKey, _run: "Trace") -> list[CrossHead]:
    return cross_heads(_run)


@st.cache_resource(max_entries=16, show_spinner=False)
def _reading(key: cache.TraceKey, pairs: tuple[tuple[int, int], ...], _run: "Trace") -> TargetReading:
    return read_target(_run, heads=pairs)


def _findings(key: cache.TraceKey, reading: TargetReading) -> tuple[PassageFinding, ...]:
    """Repetitions, then omissions, by the thresholds that are set."""
    values = tuple(st.session_state[setting.key] for setting in _THRESHOLDS)
    return _found(key, tuple((head.layer, head.head) for head in reading.heads), values, reading)


@st.cache_resource(max_entries=128, show_spinner=False)
def _found(key: cache.TraceKey, pairs: tuple, values: tuple, _of: TargetReading) -> tuple[PassageFinding, ...]:
    least, overlap, skip, share = values
    return (*find_repetitions(_of, least=least, overlap=overlap), *find_omissions(_of, least=skip, share=share))


def _table(reading: TargetReading) -> Table:
    """Coverage of each source token, then the coverage loss of each target token."""
    got, lost = coverage(reading.mean).numpy(), coverage_loss(reading.mean).numpy()
    values = np.full((len(got) + len(lost), 2), np.nan)
    values[: len(got), 0], values[len(got) :, 1] = got, lost
    rows = [_("source: {token}").format(token=token.label) for token in reading.sources]
    rows += [_("target: {token}").format(token=token.label) for token in reading.targets]
    return Table("reading", values, rows, [_("coverage"), _("coverage loss")])


def _empty() -> Table:
    return Table("reading", np.zeros((0, 2)), [], [_("coverage"), _("coverage loss")])
