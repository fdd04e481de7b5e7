"""Attention painted on the text itself: what chosen tokens look at, or who looks at them."""

import html
from collections import Counter
from collections.abc import Sequence

import numpy as np
import streamlit as st

from attention_core.analysis.reading import ReadMap
from attention_core.extract.tokens import Token
from attention_core.figures.painted import painted_html
from pages.ui.cells import number
from pages.ui.explore_head import Head, read_head, reading_title
from pages.ui.explore_views import Table, title_of
from pages.ui.layout import current_palette
from pages.ui.stages import array
from pages.ui.text import _, verbatim

_MOST_CHIPS = 80


def show_painted(head: Head) -> Table:
    """The source and the target, with the attention of the chosen tokens as paint."""
    state, read = st.session_state, read_head(head)
    weights = array(read.weights)
    sides = {"from": _("What they look at"), "into": _("Who looks at them")}
    st.segmented_control(
        _("Direction"), list(sides), format_func=sides.get, key="side", required=True, label_visibility="collapsed"
    )
    looking = state["side"] == "from"
    labels, members = (read.row_labels, read.row_members) if looking else (read.column_labels, read.column_members)
    places = _choose(labels, members, looking)
    values = (weights[places].sum(0) if looking else weights[:, places].sum(1)) if places else None
    full = max(
        1.0, float(len(places)) if looking else float(values.max()) if values is not None and values.size else 1.0
    )
    rows, columns = (places, values) if looking else (values, places)
    _texts(head, read, rows, columns, looking, full)
    if not places:
        st.caption(_("Choose one token or more above."))
    else:
        chosen = ", ".join(verbatim(labels[place]) for place in places[:6]) + (" …" if len(places) > 6 else "")
        note = (
            _("{title}. What {chosen} gives to each token; the strongest colour is {full}.")
            if looking and len(places) == 1
            else _("{title}. What {chosen} give to each token, summed; the strongest colour is {full}.")
            if looking
            else _("{title}. What each token gives to {chosen}, summed; the strongest colour is {full}.")
        )
        st.caption(note.format(title=title_of(head), chosen=chosen, full=number(full, 3)))
    st.toggle(_("Numbers under the words"), key="printed")
    if values is None:
        return Table("weights", weights, read.row_labels, read.column_labels)
    name = _("from the chosen tokens") if looking else _("into the chosen tokens")
    return Table(name, values[:, None], read.column_labels if looking else read.row_labels, [name])


def _choose(labels: Sequence[str], members: Sequence[Sequence[int]], looking: bool) -> list[int]:
    """Lets the person choose tokens; returns rows (or columns) of the read map."""
    state = st.session_state
    firsts = [group[0] for group in members]
    owner = {place: group[0] for group in members for place in group}
    current = list(dict.fromkeys(owner[place] for place in state["chosen"] if place in owner))
    key = "painted_tokens"
    state[key] = current

    def take() -> None:
        state["chosen"] = sorted(state[key])

    label = _("Tokens that look (several are summed)") if looking else _("Tokens looked at (several are summed)")
    if len(firsts) <= _MOST_CHIPS:
        # Equal labels would be one chip to the browser: repeated ones are told apart by their number.
        seen = Counter()
        names = {}
        for place, label in zip(firsts, labels):
            seen[label] += 1
            names[place] = verbatim(label) + (f" {seen[label]}" if seen[label] > 1 else "")
        st.pills(label, firsts, selection_mode="multi", format_func=names.get, key=key, on_change=take)
    else:
        names = {place: f"{place} · {label}" for place, label in zip(firsts, labels)}
        st.multiselect(label, firsts, format_func=names.get, key=key, on_change=take)
    return [firsts.index(place) for place in current]


def _texts(
    head: Head, read: ReadMap, rows: Sequence | None, columns: Sequence | None, looking: bool, full: float
) -> None:
    """The one text of self-attention, or target and source of cross-attention, each with its paint or its marks."""
    palette, numbers = current_palette(), st.session_state["printed"]
    run, kind = head.trace, head.kind
    query = written_pieces(run.query_pieces(kind), run.side(kind, "query").texts[0], read.row_labels, read.row_members)
    key = written_pieces(run.key_pieces(kind), run.side(kind, "key").texts[0], read.column_labels, read.column_members)
    marked, painted = (rows, columns) if looking else (columns, rows)
    blank = np.nan

    def block(title: str, pieces, values, selected) -> str:
        texts, spaces = pieces
        paint = np.full(len(texts), blank) if values is None else values
        body = painted_html(
            texts,
            paint,
            palette=palette,
            selected=selected,
            spaces=spaces,
            full=full,
            numbers=numbers and values is not None,
        )
        return f'<div class="painted"><p>{html.escape(title)}</p>{body}</div>'

    if kind == "cross":
        target = block(_("Target"), query, None if looking else painted, marked or () if looking else ())
        source = block(_("Source"), key, painted if looking else None, () if looking else marked or ())
        body = target + source if looking else source + target
    else:
        title = _("Source") if run.side(kind, "query") is run.source else _("Target")
        body = block(title, key if looking else query, painted, marked or ())
    st.html(PAINTED_STYLE + body)
    if reading_title():
        st.caption(reading_title().capitalize() + ".")


def written_pieces(
    tokens: Sequence[Token], text: str, labels: Sequence[str], members: Sequence[Sequence[int]]
) -> tuple[list[str], list[bool]]:
    """Each row's or column's piece of the text as it was written, and whether a space goes before it."""
    texts, spaces = [], []
    for label, group in zip(labels, members):
        first, last = tokens[group[0]], tokens[group[-1]]
        bare = label.removeprefix("·") or label
        written = text[first.span[0] : last.span[1]].strip(" ") if first.span and last.span else ""
        # A piece of a split character keeps its label, "海 1/2": the written text would show the character twice.
        texts.append(written if written and written == bare else bare)
        spaces.append(label.startswith("·") or first.special or label.isspace())
    return texts, spaces


PAINTED_STYLE = """<style>
.painted { padding: .5rem .9rem .8rem; border: 1px solid rgba(128,128,128,.22); border-radius: 8px; margin-bottom: .8rem; }
.painted p { margin: 0 0 .2rem; font-size: .8rem; opacity: .65; }
.painted div { font-size: 1.06rem; }
.st-key-painted_tokens code { color: inherit; background: none; font-family: inherit; font-size: inherit; padding: 0; }
</style>"""
