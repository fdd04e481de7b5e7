"""Repeated and skipped passages: in words, marked in both texts, and the way to the experiment that would confirm them."""

import html
from collections.abc import Iterable, Sequence

import numpy as np
import streamlit as st

from attention_core.analysis.passages import PassageFinding
from attention_core.analysis.summaries import coverage, coverage_loss
from attention_core.analysis.target_reading import TargetReading
from attention_core.extract.tokens import Token
from attention_core.figures.painted import Mark, painted_html
from pages.ui.explore_painted import PAINTED_STYLE, written_pieces
from pages.ui.explore_pictures import narrow
from pages.ui.explore_run import Explored
from pages.ui.layout import MENU, current_palette
from pages.ui.stages import array
from pages.ui.state import carry
from pages.ui.text import _

_MOST_TOLD = 6
"""Findings that are told at once; the others are one click away."""
_LONGEST = 150
"""Characters of a passage that are quoted; it is marked whole in the text."""


def show_findings(explored: Explored, reading: TargetReading, found: Sequence[PassageFinding]) -> list[int]:
    """Tells them, and lets the person choose which are marked; returns their numbers."""
    repeated = [n for n, finding in enumerate(found) if finding.name != "omission"]
    skipped = [n for n, finding in enumerate(found) if finding.name == "omission"]
    lines = [_line(number, found[number]) for number in (*repeated, *skipped)]
    state, nothing = st.session_state, []
    if not repeated:
        text = _(
            "Nothing is repeated: the target says no passage of {least} tokens or more that the source has less often."
        )
        nothing.append(f"<p>{html.escape(text.format(least=state['read_least']))}</p>")
    if not skipped:
        text = _(
            "Nothing is skipped: no {least} neighbouring tokens of the source get less than {share:g} of what is expected."
        )
        nothing.append(f"<p>{html.escape(text.format(least=state['read_skip'], share=state['read_share']))}</p>")
    st.html(_STYLE + f'<div class="passages">{"".join(lines[:_MOST_TOLD] + nothing)}</div>')
    if len(lines) > _MOST_TOLD:
        with st.expander(_("{count} more").format(count=len(lines) - _MOST_TOLD)):
            st.html(f'<div class="passages">{"".join(lines[_MOST_TOLD:])}</div>')
    if not found:
        state["read_mark"] = -1
        return []
    state["read_mark"] = min(state["read_mark"], len(found) - 1)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="read_row"):
        names = {-1: _("All findings ({count})").format(count=len(found))}
        names |= {n: f"{n + 1} {_kind(finding)}: {_short(_passage(finding), 60)}" for n, finding in enumerate(found)}
        st.selectbox(_("Marked in the texts"), list(names), format_func=names.get, key="read_mark", width=460)
        marked = list(range(len(found))) if state["read_mark"] < 0 else [state["read_mark"]]
        _blinding(explored, reading, [found[n] for n in marked])
    st.caption(
        _(
            "Weights say where attention went, not why the model wrote what it wrote (Jain and Wallace 2019). What would confirm a "
            "finding: hide the passage from the decoder. One that was skipped should cost the target nothing, one that was read "
            "twice should cost both sayings."
        )
    )
    return marked


def _blinding(explored: Explored, reading: TargetReading, found: Iterable[PassageFinding]) -> None:
    """A button that opens What if with these passages of the source hidden from all cross-attention."""
    from attention_core.extract.interventions import Forbid, edits_from_text, edits_to_text

    # Passages that were skipped and those that were read twice are two questions: of all findings, the first is asked.
    found = [finding for finding in found if finding.source is not None]
    skipped = [finding for finding in found if finding.name == "omission"]
    passages = [finding.source for finding in skipped or found]
    keys = sorted({reading.source_places[n] for passage in passages for n in range(passage.first, passage.end)})
    if not keys or "whatif" not in MENU:
        return
    pressed = st.button(
        _("Hide what was skipped from the decoder") if skipped else _("Hide what was read twice from the decoder"),
        key="read_blind",
        icon=":material/visibility_off:",
        help=_(
            "Opens the What-if page, with these passages of the source hidden from every head of the cross-attention."
        ),
    )
    if pressed:
        # On top of what this run was already made under, so that only the passage differs.
        edits = edits_from_text(explored.key.edits) if explored.key.edits else ()
        carry(
            {
                "edits": edits_to_text((*edits, Forbid(kind="cross", keys=tuple(keys)))),
                "experiment": "",
                "if_view": "says",
            }
        )
        st.switch_page(MENU["whatif"][0])


def show_texts(reading: TargetReading, found: Sequence[PassageFinding], marked: Sequence[int]) -> None:
    """The source painted by its coverage, the target by its coverage loss; the marked passages are underlined and named."""
    palette = current_palette()
    # Orange is skipped and blue is said twice, as the ends of the signed scale; never the ink of the paint.
    orange, blue = palette.signed[0][1], palette.signed[-1][1]
    over_source, over_target = [], []
    for number in marked:
        finding = found[number]
        name = f"{number + 1} " if len(found) > 1 else ""
        if finding.name == "omission":
            over_source.append(Mark(*_ends(finding.source), name + _("skipped"), orange, dashed=True))
            continue
        for passage, word in zip(finding.targets, (_("said first"), _("said again"))):
            over_target.append(Mark(*_ends(passage), name + word, blue))
        if finding.source is not None:
            over_source.append(Mark(*_ends(finding.source), name + _("read twice"), blue))
    got, lost = array(coverage(reading.mean)), array(coverage_loss(reading.mean))
    left, right = (st.container(), st.container()) if narrow() else st.columns(2, gap="medium")
    with left:
        _text(_("Source, painted by its coverage"), reading.sources, reading.source_text, got, over_source)
        st.caption(
            _(
                "Coverage: how much attention a source token got from all target tokens together. The strongest colour is 1 (the "
                "whole of one target token's attention) or more, a blank token got none; on average {mean:.2f}, at most {most:.2f}."
            ).format(mean=float(got.mean()), most=float(got.max()))
        )
    with right:
        _text(_("Target, painted by its coverage loss"), reading.targets, reading.target_text, lost, over_target)
        st.caption(
            _(
                "Coverage loss: how much of a target token's attention fell where attention had been before. The strongest colour "
                "is 1 (all of it); on average {mean:.2f}."
            ).format(mean=float(lost.mean()))
        )


def _text(title: str, tokens: Sequence[Token], text: str, values: np.ndarray, marks: Sequence[Mark]) -> None:
    pieces, spaces = written_pieces(tokens, text, [t.label for t in tokens], [[n] for n in range(len(tokens))])
    body = painted_html(pieces, values, palette=current_palette(), spaces=spaces, marks=marks)
    st.html(f'{PAINTED_STYLE}<div class="painted"><p>{html.escape(title)}</p>{body}</div>')


def _ends(passage) -> tuple[int, int]:
    return passage.first, passage.end


def _kind(finding: PassageFinding) -> str:
    """In a word or two."""
    return {"repetition": _("said twice"), "repeated text": _("words said twice"), "omission": _("skipped")}[
        finding.name
    ]


def _passage(finding: PassageFinding) -> str:
    return finding.source.text if finding.name == "omission" else finding.targets[1].text


def _line(number: int, finding: PassageFinding) -> str:
    """The sentence with its numbers and its threshold; passages are a visitor's text and stay text."""
    values = {
        name: f"<bdi>{html.escape(_short(value, _LONGEST))}</bdi>" if isinstance(value, str) else value
        for name, value in finding.values.items()
    }
    sentence = html.escape(_(finding.template), quote=False).format(**values)
    return f"<p><b>{number + 1} · {html.escape(_kind(finding))}:</b> {sentence}.</p>"


def _short(text: str, longest: int) -> str:
    """Beginning and end of a long passage, in one line."""
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest * 2 // 3]} … {text[-(longest // 3) :]}"


_STYLE = """<style>
.passages p { margin: 0 0 .45rem; max-width: 66rem; line-height: 1.55; overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums; }
.passages bdi { font-style: italic; }
.passages b { margin-right: .35rem; }
</style>"""
