"""The What-if page's views: what the model says, the maps of its heads, and cells to be clicked away."""

import html

import numpy as np
import streamlit as st

from attention_core.analysis.effects import next_tokens, predicts, text_changes
from attention_core.figures.bars import bars_figure
from attention_core.figures.series import clicked_token, series_figure
from pages.ui import whatif_run
from pages.ui.atlas import show_atlas
from pages.ui.cells import number
from pages.ui.compare_maps import Sides, numbers_table, side_by_side
from pages.ui.explore_head import head_of, window_of
from pages.ui.explore_pictures import narrow, show_panels
from pages.ui.explore_views import Table
from pages.ui.head_controls import HeadKeys, head_selectors, window_controls
from pages.ui.layout import current_palette, show_figure
from pages.ui.stages import array, panel
from pages.ui.text import _, verbatim
from pages.ui.whatif_run import Experiment
from pages.ui.whatif_settings import choose_head, readable_edits, set_edits
from pages.ui.whatif_words import likelihood_words, place_words

KEYS = HeadKeys("if_kind", "if_layer", "if_head")
_WIDE = 720
# Nats; a map that is computed in another order moves by about 2e-8.
_ROUNDING = 1e-6


def show_says(made: Experiment) -> Table:
    """Likelihood of the target, next tokens, and the written text, before and after."""
    run = made.before.trace
    if run.target is not None:
        _written(made)
    has_logits = run.model.module.get_output_embeddings() is not None
    if not has_logits:
        st.info(
            _("This model has no language head, so it says nothing; see what changes under “Heads”."),
            icon=":material/info:",
        )
        return Table("likelihood", np.zeros((0, 2)), [], [])
    return _likelihoods(made) if predicts(run) else _predictions(made)


def _likelihoods(made: Experiment) -> Table:
    run, effects = made.before.trace, whatif_run.effects(made)
    labels = _token_names(run, effects.ids)
    if made.edits:
        st.markdown(likelihood_words(effects, labels))
    else:
        st.markdown(
            _("The target's negative log-likelihood is **{loss} nats a token**.").format(
                loss=number(effects.loss_before, 3)
            )
        )
    most = effects.most_changed
    place = most if st.session_state["if_row"] < 0 else min(st.session_state["if_row"], len(labels) - 1)
    series = {_("before"): effects.before.numpy(), _("after"): effects.after.numpy()}
    show_figure(
        series_figure(
            labels,
            series if made.edits else {_("now"): effects.before.numpy()},
            palette=current_palette(),
            measure=_("log-likelihood of the target, token by token"),
            unit=_("nats"),
            marked=[place],
            width=400 if narrow() else _WIDE,
        ),
        "if_tokens",
        _("Log-likelihood of each token of the target: {before} nats on average before, {after} after.").format(
            before=number(-effects.loss_before, 3), after=number(-effects.loss_after, 3)
        ),
        _choose_row,
        picture=st.session_state["picture"],
    )
    row = st.session_state["if_row"]
    # Said anew, also where it is the same: the names in the box go with the text.
    st.session_state["if_row"] = row if row < len(labels) else -1
    st.selectbox(
        _("The step that writes"),
        range(-1, len(labels)),
        format_func=lambda n: _("where most changed") if n < 0 else f"{n} {labels[n]}",
        key="if_row",
        help=_("A click into the figure chooses one too."),
    )
    _next(made, effects.rows[place], effects.ids[place], labels[place])
    return Table(
        "likelihood",
        np.stack([effects.before.numpy(), effects.after.numpy()], 1),
        labels,
        [_("ln p before"), _("ln p after")],
    )


def _choose_row() -> None:
    place = clicked_token(st.session_state["if_tokens"].selection.points)
    if place is not None:
        st.session_state["if_row"] = place


def _next(made: Experiment, row: int, wanted: int, label: str, *, there: bool = False) -> None:
    """The likeliest tokens of one step, before and after; ``there``: that token stands there, instead of being asked for."""
    found = next_tokens(made.before.trace, made.after.trace, row, also=(wanted,))
    names = _token_names(made.before.trace, [token for token, _before, _after in found])
    before, after = ([each[side] for each in found] for side in (1, 2))
    text = _("**What may stand there**, by probability. There stands {token}.") if there else None
    text = text or _("**What may stand there**, by probability. Wanted: {token}")
    st.markdown(text.format(token=verbatim(label)))
    both = {"before": before, "pair": (_("before"), _("after"))} if made.edits else {}
    show_figure(
        bars_figure(
            names,
            after,
            palette=current_palette(),
            selected=[place for place, (token, _b, _a) in enumerate(found) if token == wanted],
            **both,
        ),
        "if_next",
        _("Probability of the likeliest tokens: {all}.").format(
            all="; ".join(f"{name} {number(b, 3)} → {number(a, 3)}" for name, b, a in zip(names, before, after))
        ),
        picture=st.session_state["picture"],
    )


def _predictions(made: Experiment) -> Table:
    """Of an encoder with a language head: what it would put at each place."""
    run, state = made.before.trace, st.session_state
    tokens = run.query_tokens(run.kinds[0])
    state["if_row"] = min(max(0, state["if_row"]), len(tokens) - 1)
    st.selectbox(_("What may stand at"), range(len(tokens)), format_func=lambda n: f"{n} {tokens[n]}", key="if_row")
    row = state["if_row"]
    _next(made, row, int(run.source_ids[0, row]), tokens[row], there=True)
    return Table("likelihood", np.zeros((0, 2)), [], [])


def _token_names(run, ids) -> list[str]:
    reader = run.model.target_reader
    return [f"#{token}" if reader is None else reader.describe([token])[0][0].label for token in ids]


def _written(made: Experiment) -> None:
    """The text that the model writes for the source, what differs being marked."""
    texts = whatif_run.writings(made)
    if texts is None:
        return
    if not made.edits:
        _text(_("The model writes"), html.escape(texts[0]))
        return
    if texts[0] == texts[1]:
        _text(_("The model writes, before and after"), html.escape(texts[1]))
        return
    palette = current_palette()
    marks = {
        "same": lambda words: words,
        "removed": lambda words: f'<del style="opacity:.6">{words}</del>',
        "added": lambda words: (
            f'<ins style="text-decoration:underline;text-decoration-thickness:2px;text-decoration-color:{palette.accent};'
            f'font-weight:600">{words}</ins>'
        ),
    }
    parts = [marks[part.what](html.escape(part.words)) for part in text_changes(*texts)]
    _text(_("The model writes: struck out before, underlined after"), " ".join(parts) or "∅")


def _text(title: str, body: str) -> None:
    st.html(
        f'<div style="margin-bottom:.4rem"><div style="opacity:.65;font-size:.86rem">{html.escape(title)}</div>'
        f'<div dir="auto" style="font-size:1.05rem;line-height:1.6;overflow-wrap:anywhere">{body}</div></div>'
    )


def show_heads(made: Experiment) -> Table:
    """One head before and after, and the heads that moved most."""
    run, state = made.before.trace, st.session_state
    kind, layer, head = state["if_kind"], state["if_layer"], state["if_head"]
    one, two = (head_of(each, kind, layer, head).steps for each in (made.before, made.after))
    sides = Sides(
        one.weights[:1], two.weights[:1], *(None if s.mask is None else s.full_mask()[:1].cpu() for s in (one, two)),
        (_("Before"), _("After")), run.query_tokens(kind), run.key_tokens(kind),
    )  # fmt: skip
    if made.edits:
        _moved(made)
    else:
        st.caption(_("Nothing is changed, so before and after are one."))
    _selectors(run)
    compared, table = side_by_side(sides, "whatif", rows=False, width=_WIDE, stacked=True)
    numbers_table(compared, sides.names)
    return table


def _moved(made: Experiment) -> None:
    """Which maps changed, and by how much; a click shows one."""
    state = st.session_state
    moved = whatif_run.moved(made)
    # What rounding makes of an unchanged map is no change.
    moved = {kind: np.where(values < _ROUNDING, 0.0, values) for kind, values in moved.items()}
    ranked = sorted(
        (
            (float(value), kind, *place)
            for kind, values in moved.items()
            for place, value in np.ndenumerate(values)
            if value > 0
        ),
        key=lambda each: -each[0],
    )
    if not ranked:
        st.caption(_("No map changed: what the edits do shows in what the heads add, not in where they look."))
        return
    most = ", ".join(
        f"{place_words(kind, layer, (head,))} ({number(value, 3)})" for value, kind, layer, head in ranked[:3]
    )
    st.markdown(_("**{count} maps changed**, most: {most}. A click shows one.").format(count=len(ranked), most=most))
    show_atlas(
        moved,
        "if_moved",
        _("how far the map moved"),
        _("nats"),
        chosen=choose_head,
        selected=(state["if_kind"], state["if_layer"], state["if_head"]),
        width=_WIDE,
    )
    st.caption(_("Jensen-Shannon divergence, mean of rows: 0 = the same map, 0.693 = no key in common."))


def show_cells(made: Experiment) -> Table:
    """The map after the edits; a click hides a cell, or gives it back."""
    run, state = made.after.trace, st.session_state
    _selectors(run)
    scopes = {"head": _("this head"), "layer": _("every head of the layer"), "kind": _("every layer and head")}
    st.segmented_control(_("A click is for"), list(scopes), format_func=scopes.get, key="scope", required=True)
    kind, layer, head = state["if_kind"], state["if_layer"], state["if_head"]
    shown = head_of(made.after, kind, layer, head)
    weights = array(shown.steps.weights[0, 0])
    window = window_of(*weights.shape)

    def toggled(_key: str, row: int, column: int) -> None:
        hidden = shown.hidden is not None and bool(shown.hidden[row, column])
        if not toggle(row, column, hidden):
            st.toast(_("The model's mask or another change hides that cell: it cannot be given back here."))

    title = place_words(kind, layer, (head,))
    drawn = panel(
        "weights",
        window.cut(weights),
        current_palette(),
        hidden=window.cut(shown.hidden),
        row_labels=shown.query_tokens[slice(*window.rows)],
        column_labels=shown.key_tokens[slice(*window.columns)],
        title=f"A  {title}",
    )
    show_panels([[drawn]], "if_cells", window, width=_WIDE, chosen=toggled)
    st.caption(
        _(
            "Click a cell: that query may no longer look at that key. Click it again to give it back. Cells that are grey for "
            "another reason, the model's mask or a change on the left, stay so."
        )
    )
    return Table("weights", weights, shown.query_tokens, shown.key_tokens)


def toggle(row: int, column: int, hidden: bool = False) -> bool:
    """Hides a cell by an edit, or takes it out of the edit that hides it; False where something else hides it already."""
    from attention_core.extract.interventions import Forbid

    state = st.session_state
    place = {
        "kind": state["if_kind"],
        "layer": None if state["scope"] == "kind" else state["if_layer"],
        "heads": (state["if_head"],) if state["scope"] == "head" else None,
    }
    kept, keys = [], ()
    for edit in readable_edits():
        same = isinstance(edit, Forbid) and edit.queries == (row,) and edit.after is None
        if same and all(getattr(edit, name) == value for name, value in place.items()):
            keys = edit.keys
        else:
            kept.append(edit)
    if hidden and column not in keys:
        return False
    keys = tuple(k for k in keys if k != column) if column in keys else (*keys, column)
    set_edits((*kept, *([Forbid(**place, keys=keys, queries=(row,))] if keys else [])))
    return True


def _selectors(run) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="which"):
        head_selectors(run, KEYS)
        window_controls(run, st.session_state["if_kind"])
